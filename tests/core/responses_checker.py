"""Rules of OpenAI Responses, checked on a payload: order, pairing and members, which the SDK's types cannot all see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Found = list[tuple[str, str]]
Block = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")

_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_SPOKEN = {
    *_CALLS,
    *("reasoning", "compaction", "item_reference", "web_search_call", "file_search_call", "code_interpreter_call"),
    *("image_generation_call", "mcp_call", "mcp_list_tools", "mcp_approval_request", "program", "program_output"),
    *("tool_search_call", "tool_search_output"),
}
_KEYS: dict[str, set[str]] = {
    "input": {"role", "content", "status", "type"},
    "spoken": {"role", "content", "phase", "type"},
    "output": {"id", "role", "content", "status", "phase", "type"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "caller", "namespace", "status", "async"},
    "function_call_output": {"type", "id", "call_id", "output", "caller", "name", "namespace", "status"},
    "custom_tool_call": {"type", "id", "call_id", "name", "input", "caller", "namespace", "async"},
    "custom_tool_call_output": {"type", "id", "call_id", "output", "caller"},
    "computer_call": {"type", "id", "call_id", "action", "actions", "pending_safety_checks", "status"},
    "computer_call_output": {"type", "id", "call_id", "output", "acknowledged_safety_checks", "status"},
    "local_shell_call": {"type", "id", "call_id", "action", "status"},
    "local_shell_call_output": {"type", "id", "output", "status"},
    "shell_call": {"type", "id", "call_id", "action", "caller", "environment", "status"},
    "shell_call_output": {"type", "id", "call_id", "output", "caller", "max_output_length", "status"},
    "apply_patch_call": {"type", "id", "call_id", "operation", "caller", "status"},
    "apply_patch_call_output": {"type", "id", "call_id", "output", "caller", "status"},
    "compaction": {"type", "id", "encrypted_content"},
    "input_text": {"type", "text", "prompt_cache_breakpoint"},
    "input_image": {"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"},
    "input_file": {"type", "file_data", "file_url", "file_id", "filename", "detail", "prompt_cache_breakpoint"},
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
}
_INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")


def check_responses(
    body: Mapping[str, Any], *, store: bool = True, compactions: Sequence[Block] | None = None
) -> Found:
    """What breaks the rules of OpenAI Responses.

    ``store`` is the host's argument; ``compactions`` are the items that the API gave, where that is known.
    """
    text = json.dumps(body, ensure_ascii=False)
    found: Found = [("all.S1", "body")] if _SURROGATE.search(text) else []
    found += _unknown_keys(body, {"instructions", "input", "tools"}, "body")
    if not body["input"]:
        return [*found, ("responses.R1", "input")]
    if isinstance(body["input"], str):
        return found
    items: Sequence[Block] = body["input"]
    for index, item in enumerate(items):
        place = f"input[{index}]"
        found += _item_keys(item, place)
        found += _content(item, place)
        if _kind(item) == "function_call" and not _is_json(item["arguments"]):
            found.append(("responses.R3", place))
        if _kind(item) == "compaction" and compactions is not None and item not in compactions:
            found.append(("responses.R8", place))
    found += _pairing(items)
    found += _reasoning(items, store=store)
    newest = max((index for index, item in enumerate(items) if _kind(item) == "compaction"), default=0)
    before = [index for index, item in enumerate(items[:newest]) if item.get("role") not in ("system", "developer")]
    found += [("responses.L7", f"input[{index}]") for index in before]
    return found


def _kind(item: Block) -> str:
    return str(item.get("type") or ("message" if "role" in item else "item_reference"))


def _form(item: Block) -> str:
    if _kind(item) != "message":
        return _kind(item)
    if item["role"] != "assistant":
        return "input"
    return "output" if "id" in item else "spoken"


def _is_spoken(item: Block) -> bool:
    return item.get("role") == "assistant" or _kind(item) in _SPOKEN


def _item_keys(item: Block, place: str) -> Iterator[tuple[str, str]]:
    form = _form(item)
    if form in _KEYS:
        yield from _unknown_keys(item, _KEYS[form], place)


def _content(item: Block, place: str) -> Iterator[tuple[str, str]]:
    """Kinds of content by role (R7)."""
    name = "output" if _kind(item) in ("function_call_output", "custom_tool_call_output") else "content"
    content = item.get(name)
    if isinstance(content, str) or (_kind(item) != "message" and name == "content"):
        return
    allowed = ("output_text", "refusal") if item.get("role") == "assistant" else _INPUT_PARTS
    for number, part in enumerate(content or ()):
        where = f"{place}.{name}[{number}]"
        if part["type"] not in allowed:
            yield "responses.R7", where
        yield from _unknown_keys(part, _KEYS.get(part["type"], set(part)), where)


def _pairing(items: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """Calls and outputs (R2, R4, R9)."""
    seen: set[str] = set()
    waiting: dict[str, str] = {}
    answered_by_id: dict[str, str] = {}
    for index, item in enumerate(items):
        place, kind = f"input[{index}]", _kind(item)
        if kind in _CALLS:
            call_id = item["call_id"]
            if not 1 <= len(call_id) <= 64 or call_id in seen:
                yield "responses.R2", place
            seen.add(call_id)
            waiting[call_id] = _CALLS[kind]
            if kind == "local_shell_call":
                answered_by_id[item["id"]] = call_id
        elif kind in _CALLS.values():
            named: str = item["id"] if kind == "local_shell_call_output" else item["call_id"]
            call_id = answered_by_id.get(named, named)
            if waiting.pop(str(call_id), None) != kind:
                yield "responses.R4", place
    for call_id in waiting:
        yield "responses.R9", call_id


def _reasoning(items: Sequence[Block], *, store: bool) -> Iterator[tuple[str, str]]:
    """Reasoning and what belongs to it (R5, R6, L6)."""
    reasoned = False
    for index, item in enumerate(items):
        place, kind = f"input[{index}]", _kind(item)
        if not _is_spoken(item):
            reasoned = False
        elif kind == "reasoning":
            reasoned = True
            behind = next((other for other in items[index + 1 :] if _kind(other) != "reasoning"), None)
            if behind is None or not _is_spoken(behind):
                yield "responses.R5", place
            if not store and not item.get("encrypted_content"):
                yield "responses.R6", place
        elif kind == "item_reference":
            reasoned = reasoned or item["id"].startswith("rs_")
        elif (kind == "message" or kind in _CALLS) and item.get("id") is not None and not reasoned:
            yield "responses.L6", place


def _unknown_keys(value: Block, known: set[str], place: str) -> Iterator[tuple[str, str]]:
    for key in value:
        if key not in known:
            yield "responses.keys", f"{place}.{key}"


def _is_json(text: object) -> bool:
    try:
        json.loads(str(text))
    except ValueError:
        return False
    return isinstance(text, str)

"""Ordering rules of the providers' APIs, checked on a payload.

A checker returns what it found as (code, place); E codes (A, C, S) mean that the API refuses the request, L codes that
strict endpoints do or that quality is lost.  SDK types cannot see order and pairing; these do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.core.gemini_checker import check_gemini
from tests.core.responses_checker import check_responses

Found = list[tuple[str, str]]
Block = Mapping[str, Any]

_ANTHROPIC_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENAI_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_ANTHROPIC_KEYS: dict[str, set[str]] = {
    "text": {"type", "text", "citations", "cache_control"},
    "image": {"type", "source", "transformations", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
}
_OPENAI_KEYS: dict[str, set[str]] = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id"},
}


def check_anthropic(body: Mapping[str, Any], *, prefill: bool = False) -> Found:
    """What breaks the rules of Anthropic Messages; ``prefill`` says that the model takes one."""
    found = _surrogates(body)
    messages: Sequence[Block] = body["messages"]
    if not messages:
        return [*found, ("anthropic.A1", "messages")]
    if messages[0]["role"] != "user":
        found.append(("anthropic.A2", "messages[0]"))
    found += _unknown_keys(body, {"messages", "system", "tools"}, "body", "anthropic.A19")
    found += _anthropic_texts(body.get("system", ()), "system")
    found += _anthropic_breakpoints(body)
    places = [
        (index, number)
        for index, message in enumerate(messages)
        for number, block in enumerate(message["content"])
        if block["type"] == "compaction"
    ]
    if places not in ([], [(0, 0)]):
        found.append(("anthropic.A17", "messages"))
    ids: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        found += _unknown_keys(message, {"role", "content"}, place, "anthropic.A19")
        if message["role"] not in ("user", "assistant"):
            found.append(("anthropic.A3", place))
        if index and messages[index - 1]["role"] == message["role"]:
            found.append(("anthropic.L1", place))
        blocks: Sequence[Block] = message["content"]
        if not blocks:
            found.append(("anthropic.A4", place))
        found += _anthropic_texts(blocks, place)
        if message["role"] == "assistant":
            found += _anthropic_assistant(blocks, place, ids)
            waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        else:
            found += _anthropic_user(blocks, place, waiting)
            waiting = []
    if waiting:
        found.append(("anthropic.A6", "end"))
    if messages[-1]["role"] == "assistant":
        last = messages[-1]["content"][-1]
        if not prefill or last["type"] != "text" or last["text"] != last["text"].rstrip():
            found.append(("anthropic.A5", "end"))
    if any(block["type"] in ("tool_use", "tool_result") for m in messages for block in m["content"]) and not body.get(
        "tools"
    ):
        found.append(("anthropic.A12", "tools"))
    return found


def _anthropic_breakpoints(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """At most four in the order of the request, and none asks for longer than one before it."""
    blocks: list[Block] = [*body.get("tools", ()), *body.get("system", ())]
    for message in body["messages"]:
        for block in message["content"]:
            inner = block.get("content") if block["type"] == "tool_result" else None
            blocks += [*(inner if isinstance(inner, list) else ()), block]
    marked = [block for block in blocks if block.get("cache_control") is not None]
    times = [block["cache_control"].get("ttl", "5m") for block in marked]
    if len(times) > 4 or times != sorted(times):  # 1h sorts before 5m
        yield "anthropic.A15", "cache_control"
    if any(block.get("type") in ("thinking", "redacted_thinking") for block in marked):
        yield "anthropic.A15", "thinking"


def _anthropic_texts(blocks: Sequence[Block], place: str) -> Iterator[tuple[str, str]]:
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        kind = block["type"]
        if kind in _ANTHROPIC_KEYS:
            yield from _unknown_keys(block, _ANTHROPIC_KEYS[kind], where, "anthropic.A19")
        if kind == "text" and not block["text"].strip():
            yield "anthropic.A4", where
        if kind == "tool_result" and isinstance(block.get("content"), list):
            if not block["content"]:
                yield "anthropic.A4", where
            yield from _anthropic_texts(block["content"], where)


def _anthropic_assistant(blocks: Sequence[Block], place: str, ids: set[str]) -> Iterator[tuple[str, str]]:
    before: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind == "tool_result":
            yield "anthropic.A8", place
        if kind == "tool_use":
            if block["id"] in ids or not _ANTHROPIC_ID.match(block["id"]):
                yield "anthropic.A9", place
            ids.add(block["id"])
            if not isinstance(block["input"], Mapping):
                yield "anthropic.A10", place
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]):
                yield "anthropic.A19", place
        elif "tool_use" in before and kind not in ("thinking", "redacted_thinking"):
            yield "anthropic.L3", place
        if kind in ("thinking", "redacted_thinking"):
            if kind == "thinking" and not block.get("signature"):
                yield "anthropic.A13", place
            if "text" in before or "tool_use" in before:
                yield "anthropic.L2", place
        before.append(kind)


def _anthropic_user(blocks: Sequence[Block], place: str, waiting: list[str]) -> Iterator[tuple[str, str]]:
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if any(block["type"] in ("tool_use", "thinking", "redacted_thinking") for block in blocks):
        yield "anthropic.A8", place
    if any(result not in waiting for result in results):
        yield "anthropic.A8", place
    if sorted(results) != sorted(waiting):
        yield "anthropic.A6", place
    if any(block["type"] == "tool_result" for block in blocks[len(results) :]):
        yield "anthropic.A7", place


def check_openai(body: Mapping[str, Any]) -> Found:
    """What breaks the rules of OpenAI Chat Completions."""
    found = _surrogates(body)
    messages: Sequence[Block] = body["messages"]
    if not messages:
        return [*found, ("openai.C1", "messages")]
    found += _unknown_keys(body, {"messages", "tools"}, "body", "openai.keys")
    ids: set[str] = set()
    waiting: list[str] = []
    started = False
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = message["role"]
        if role not in _OPENAI_KEYS:
            found.append(("openai.C2", place))
            continue
        found += _unknown_keys(message, _OPENAI_KEYS[role], place, "openai.keys")
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                found.append(("openai.C4", place))
            else:
                waiting.remove(message["tool_call_id"])
        elif waiting:
            found.append(("openai.C3", place))
            waiting = []
        content = message.get("content")
        if content is None and not any(message.get(key) for key in ("tool_calls", "refusal", "audio")):
            found.append(("openai.C5", place))
        if content == [] or ("tool_calls" in message and not message["tool_calls"]):
            found.append(("openai.C6", place))
        if role in ("system", "developer") and started:
            found.append(("openai.L4", place))
        started = started or role not in ("system", "developer")
        if role == "user" and not content:
            found.append(("openai.L5", place))
        for call in message.get("tool_calls", ()):
            found += _openai_call(call, place, ids)
            waiting.append(call["id"])
    if waiting:
        found.append(("openai.C3", "end"))
    return found


def _openai_call(call: Block, place: str, ids: set[str]) -> Iterator[tuple[str, str]]:
    if not 1 <= len(call["id"]) <= 40:
        yield "openai.C7", place
    if call["id"] in ids:
        yield "openai.L9", place
    ids.add(call["id"])
    if call.get("type") == "custom":
        if not _OPENAI_NAME.match(call["custom"]["name"]):
            yield "openai.C8", place
        return
    function = call["function"]
    if not _OPENAI_NAME.match(function["name"]):
        yield "openai.C8", place
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        yield "openai.C9", place


def _unknown_keys(value: Block, known: set[str], place: str, code: str) -> Iterator[tuple[str, str]]:
    for key in value:
        if key not in known:
            yield code, f"{place}.{key}"


def _surrogates(body: Mapping[str, Any]) -> Found:
    return [("all.S1", "body")] if _SURROGATE.search(json.dumps(body, ensure_ascii=False)) else []


CHECKERS = {
    "anthropic": check_anthropic,
    "gemini": check_gemini,
    "openai": check_openai,
    "openai-responses": check_responses,
}


def errors(found: Found) -> Found:
    """Those of the findings that make the API refuse the request."""
    return [item for item in found if not item[0].partition(".")[2].startswith("L")]

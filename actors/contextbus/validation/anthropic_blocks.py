"""The parts of a request to Anthropic Messages, each for itself: blocks, tools, limits (anthropic.A4 to A19)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from contextbus.core.json_text import as_list, as_object
from contextbus.validation.findings import (
    SHAPE,
    Finding,
    Object,
    as_count,
    as_text,
    error,
    find_unknown_keys,
    read_objects,
)

THINKING: Final = ("thinking", "redacted_thinking")
CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")
SMALLEST_BUDGET: Final = 1024

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_BODY: Final = frozenset(
    (
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "max_tokens",
        "mcp_servers",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "thread",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "user_profile_id",
        "workspace_id",
    )
)
_TOOL: Final = frozenset(
    (
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_examples",
        "input_schema",
        "name",
        "strict",
        "type",
    )
)
_RESULT: Final = ("cache_control", "content", "tool_use_id")
_BLOCKS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(("type", *keys))
    for kind, keys in {
        "text": ("cache_control", "citations", "text"),
        "image": ("cache_control", "source", "transformations"),
        "document": ("cache_control", "citations", "context", "source", "title"),
        "search_result": ("cache_control", "citations", "content", "source", "title"),
        # cache_control on thinking is anthropic.A15, which says more.
        "thinking": ("cache_control", "signature", "thinking"),
        "redacted_thinking": ("cache_control", "data"),
        "tool_use": ("cache_control", "caller", "id", "input", "name", "toolset_name"),
        "tool_result": (*_RESULT, "is_error", "toolset_name"),
        "server_tool_use": ("cache_control", "caller", "id", "input", "name"),
        "web_search_tool_result": (*_RESULT, "caller"),
        "web_fetch_tool_result": (*_RESULT, "caller"),
        "advisor_tool_result": _RESULT,
        "code_execution_tool_result": _RESULT,
        "bash_code_execution_tool_result": _RESULT,
        "text_editor_code_execution_tool_result": _RESULT,
        "tool_search_tool_result": _RESULT,
        "mcp_tool_use": ("cache_control", "id", "input", "name", "server_name"),
        "mcp_tool_result": (*_RESULT, "is_error"),
        "mcp_tool_listing": ("mcp_server_name", "tools"),
        "container_upload": ("cache_control", "file_id"),
        "compaction": ("cache_control", "content", "encrypted_content", "signature", "tool_changes"),
        "tool_addition": ("cache_control", "tool"),
        "tool_removal": ("cache_control", "tool"),
        "fallback": ("from", "to", "trigger"),
        "tool_reference": ("cache_control", "tool_name"),
        "browser_state": ("cache_control", "state_changes", "tabs"),
    }.items()
}
_IN_RESULTS: Final = ("text", "image", "search_result", "document", "tool_reference", "browser_state")


class Block(msgspec.Struct, frozen=True):
    """A content block, its type (empty where it has none), and where it stands."""

    place: str
    kind: str
    fields: Object


def read_blocks(content: object, place: str) -> Iterator[Block | Finding]:
    """The blocks of a content; a text stands for one text block."""
    if isinstance(content, str):
        yield Block(place, "text", {"type": "text", "text": content})
        return
    if content is None:
        yield error(
            "anthropic.A4", place, "There is no content; write a text or a list of blocks, or drop the message."
        )
    for where, block in read_objects(content, place, "block"):
        yield block if isinstance(block, Finding) else Block(where, as_text(block.get("type")) or "", block)


def check_block(block: Block) -> Iterator[Finding]:
    """What is wrong with one block, whatever stands around it."""
    known = _BLOCKS.get(block.kind)
    if known is None:
        yield error(SHAPE, block.place, "This block has no type that the Messages API takes; use one that it knows.")
        return
    yield from find_unknown_keys(block.fields, known, block.place, "anthropic.A19", "This block")
    if block.kind == "text":
        yield from _check_text(block)
    elif block.kind in CALLS:
        yield from _check_call(block)
    elif block.kind == "tool_result":
        yield from _check_result(block)
    elif block.kind in THINKING:
        yield from _check_thinking(block)
    elif block.kind == "compaction" and block.fields.get("content") == "":
        yield error("anthropic.A4", block.place, "The summary of this compaction block is empty; send it as it came.")


def _check_text(block: Block) -> Iterator[Finding]:
    text = as_text(block.fields.get("text"))
    if text is None:
        yield error(SHAPE, block.place, "This text block has no text; write one.")
    elif not text.strip():
        yield error("anthropic.A4", block.place, "This text is empty or only white space; drop the block.")


def _check_call(block: Block) -> Iterator[Finding]:
    call_id = as_text(block.fields.get("id"))
    if call_id is None or not _ID.fullmatch(call_id):
        yield error(
            "anthropic.A9",
            block.place,
            "The id is not made of letters, digits, _ and -; give call and result another one.",
        )
    if as_object(block.fields.get("input")) is None:
        yield error("anthropic.A10", f"{block.place}.input", "The input is no object; write one, {} if there is none.")
    if block.kind == "tool_use":
        yield from _check_name(block.fields.get("name"), block.place)


def _check_name(value: object, place: str) -> Iterator[Finding]:
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        yield error(SHAPE, place, "The tool's name is not 1 to 128 letters, digits, _ and -; rename it.")


def _check_result(block: Block) -> Iterator[Finding]:
    content, where = block.fields.get("content"), f"{block.place}.content"
    if content is None or isinstance(content, str):
        return
    if as_list(content) == []:
        yield error("anthropic.A4", where, "The list of blocks is empty; leave content out.")
    for inner in read_blocks(content, where):
        if isinstance(inner, Finding):
            yield inner
        elif inner.kind not in _IN_RESULTS:
            yield error(SHAPE, inner.place, f"A tool result holds only {', '.join(_IN_RESULTS)}; move this block out.")
        else:
            yield from check_block(inner)


def _check_thinking(block: Block) -> Iterator[Finding]:
    if block.kind == "redacted_thinking":
        if not as_text(block.fields.get("data")):
            yield error(
                "anthropic.A13", block.place, "Redacted thinking has lost its data; send it as it came, or drop it."
            )
    elif not as_text(block.fields.get("signature")) or as_text(block.fields.get("thinking")) is None:
        yield error(
            "anthropic.A13", block.place, "Thinking has lost its signature or its text; send it as it came, or drop it."
        )


def check_members(body: Object) -> Iterator[Finding]:
    """The members of the body that are no messages: unknown ones, system, tools, limits (anthropic.A18, A19)."""
    yield from find_unknown_keys(body, _BODY, "", "anthropic.A19", "A request")
    system = body.get("system")
    if system:
        for block in read_blocks(system, "system"):
            if isinstance(block, Finding):
                yield block
            elif block.kind != "text":
                yield error(SHAPE, block.place, "The system prompt holds only text blocks; move this one to a message.")
            else:
                yield from check_block(block)
    for place, tool in read_objects(body.get("tools"), "tools", "tool"):
        if isinstance(tool, Finding):
            yield tool
        elif tool.get("type") in (None, "custom"):
            yield from _check_tool(tool, place)
    yield from _check_limits(body)


def _check_tool(tool: Object, place: str) -> Iterator[Finding]:
    yield from find_unknown_keys(tool, _TOOL, place, "anthropic.A19", "A tool")
    yield from _check_name(tool.get("name"), place)
    if as_object(tool.get("input_schema")) is None:
        yield error(SHAPE, place, "This tool has no input_schema; write the JSON Schema of its input.")


def _check_limits(body: Object) -> Iterator[Finding]:
    most = as_count(body.get("max_tokens"))
    if "max_tokens" in body and (most is None or most < 1):
        yield error(SHAPE, "max_tokens", "max_tokens is no whole number from 1 on; write one.")
    thinking = as_object(body.get("thinking")) or {}
    if thinking.get("type") != "enabled":
        return
    budget = as_count(thinking.get("budget_tokens"))
    if budget is None or budget < SMALLEST_BUDGET:
        yield error(
            "anthropic.A18",
            "thinking.budget_tokens",
            f"The thinking budget is below {SMALLEST_BUDGET} tokens; raise it, or turn thinking off.",
        )
    elif most is not None and most <= budget:
        yield error(
            "anthropic.A18", "max_tokens", "max_tokens is not above the thinking budget; raise it, or lower the budget."
        )

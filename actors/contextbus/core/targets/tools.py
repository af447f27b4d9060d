"""Tool definitions, read from any provider's shape and written in the target's (P.E.3)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus.core import json_text
from contextbus.core.breakpoints import read_cache, write_list
from contextbus.core.targets.gemini_tools import Declaration, read_gemini_tool
from contextbus.core.wire import Piece, Target, Written
from contextbus_protocol.chat import Cache
from contextbus_protocol.errors import InvalidTypeError

NO_PARAMETERS: Final = b'{"type":"object","properties":{}}'
FORMER_TOOL: Final = "Was used earlier in this conversation and is not available now."
_OURS: Final = ("cache_control", "_cache_breakpoint", "cache", "tags")
_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
_ANTHROPIC, _CHAT, _RESPONSES = "anthropic", "openai", "openai-responses"
# What a definition may hold in the shape of a target beside what every one has.
_MEMBERS: Final[dict[str, tuple[str, ...]]] = {
    _ANTHROPIC: ("strict", "defer_loading", "allowed_callers", "input_examples", "eager_input_streaming"),
    _CHAT: ("strict",),
    _RESPONSES: ("strict", "allowed_callers", "defer_loading", "output_schema", "async"),
}
_CUSTOM: Final = ("name", "description", "format", "allowed_callers", "defer_loading", "async")


class ToolDefinition(msgspec.Struct, frozen=True):
    """One tool: ``parameters`` is a JSON Schema as JSON.

    ``members`` are a target and further members of the definition, as a JSON object, that go back to it alone.  ``own``
    are complete definitions by target, ``native`` tells that only those targets know the tool.  ``cache`` asks for a
    breakpoint behind it (P.E.4).
    """

    name: str
    description: str = ""
    parameters: bytes = NO_PARAMETERS
    members: tuple[str, bytes] | None = None
    own: tuple[tuple[str, bytes], ...] = ()
    native: bool = False
    cache: Cache = False


def tools_text(tools: Iterable[Mapping[str, object]] | str | None) -> str | None:
    """Tool definitions as JSON text; None for none.

    Raises:
        InvalidTypeError: a definition cannot be read.
    """
    if tools is None:
        return None
    text = tools if isinstance(tools, str) else json_text.encode([dict(tool) for tool in tools]).decode()
    return text if read_tools(text) else None


@functools.lru_cache(maxsize=64)
def read_tools(text: str) -> tuple[ToolDefinition, ...]:
    """Read a JSON list of tool definitions: Anthropic's, OpenAI's (nested or flat), Gemini's, MCP's or ours.

    Raises:
        InvalidTypeError: the text is no list of definitions; the message names the index and the field.
    """
    try:
        values = msgspec.json.decode(text, type=list[dict[str, object]])
    except (msgspec.MsgspecError, UnicodeEncodeError) as exc:
        raise InvalidTypeError(f"tools: not a JSON list of objects: {exc}") from None
    found: list[ToolDefinition] = []
    for index, value in enumerate(values):
        of_gemini = read_gemini_tool(value, f"tools[{index}]")
        found += [_read_tool(value, index)] if of_gemini is None else map(_from_gemini, of_gemini)
    return tuple(found)


def _from_gemini(tool: Declaration) -> ToolDefinition:
    parameters = NO_PARAMETERS if tool.parameters is None else tool.parameters
    own = tool.native or tool.own
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters=parameters,
        own=() if own is None else (("gemini", own),),
        native=tool.native is not None,
    )


def _read_tool(value: dict[str, object], index: int) -> ToolDefinition:
    kind, cache = value.get("type"), read_cache(value, tool=True)
    inner = json_text.as_object(value.get("function"))
    schema = _schema(value if inner is None else inner)
    if inner is None and isinstance(kind, str) and schema is None and kind != "function":
        own = _native(kind, value)
        if own:
            return ToolDefinition(_native_name(kind, value), own=own, native=True, cache=cache)
    value = value if inner is None else inner
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"tools[{index}].name: expected a text that is not empty")
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidTypeError(f"tools[{index}].description: expected a text")
    if schema is not None and json_text.as_object(schema) is None:
        raise InvalidTypeError(f"tools[{index}].parameters: expected a JSON Schema object")
    return ToolDefinition(
        name=name,
        description=description or "",
        parameters=json_text.encode(schema) if schema else NO_PARAMETERS,
        members=_members(_shape_of(kind, value, nested=inner is not None), value),
        own=_custom(kind, value) if schema is None else (),
        cache=cache,
    )


def _schema(value: dict[str, object]) -> object:
    return next((value[key] for key in _SCHEMAS if value.get(key) is not None), None)


def _shape_of(kind: object, value: dict[str, object], *, nested: bool) -> str | None:
    """The target that a definition was written for; None where its shape does not show it."""
    if nested:
        return _CHAT
    if kind == "function":
        return _RESPONSES
    return _ANTHROPIC if "input_schema" in value else None


def _members(target: str | None, value: dict[str, object]) -> tuple[str, bytes] | None:
    if target is None:
        return None
    found = _pick(value, _MEMBERS[target])
    if target != _RESPONSES:  # which has members that are there and null
        found = {key: item for key, item in found.items() if item is not None}
    elif "parameters" in value and value["parameters"] is None:
        found["parameters"] = None
    return (target, json_text.encode(found)) if found else None


def _native(kind: str, value: dict[str, object]) -> tuple[tuple[str, bytes], ...]:
    """A tool that only one provider knows, as its targets take it; nothing where it is a plain definition."""
    custom = json_text.as_object(value.get("custom"))
    if kind == "custom" and custom is not None:
        flat = {"type": kind, **_pick(custom, _CUSTOM)}
        return (_CHAT, json_text.encode(_without_ours(value))), (_RESPONSES, json_text.encode(flat))
    if kind == "custom":
        if "format" not in value:
            return ()  # any provider may mean it
        flat = {"type": kind, **_pick(value, _CUSTOM)}
        chat = {"type": kind, "custom": _pick(value, ("name", "description", "format"))}
        return (_RESPONSES, json_text.encode(flat)), (_CHAT, json_text.encode(chat))
    named = isinstance(value.get("name"), str) and kind != "namespace"
    return ((_ANTHROPIC if named else _RESPONSES, json_text.encode(_without_ours(value))),)


def _custom(kind: object, value: dict[str, object]) -> tuple[tuple[str, bytes], ...]:
    """A tool of free text as Responses has it, where its form does not say that it is one; a function elsewhere."""
    if kind != "custom":
        return ()
    return ((_RESPONSES, json_text.encode({"type": kind, **_pick(value, _CUSTOM)})),)


def _native_name(kind: str, value: dict[str, object]) -> str:
    custom = json_text.as_object(value.get("custom")) or {}
    name = value.get("name", custom.get("name", kind))
    return name if isinstance(name, str) else kind


def _pick(value: dict[str, object], keys: Iterable[str]) -> dict[str, object]:
    return {key: item for key, item in value.items() if key in keys}


def _without_ours(value: dict[str, object]) -> dict[str, object]:
    return {key: item for key, item in value.items() if key not in _OURS}


def _write(tool: ToolDefinition, target: Target) -> bytes | None:
    """A definition in the target's shape; None where the target does not know such a tool."""
    own = next((definition for name, definition in tool.own if name == target.name), None)
    if tool.native or own is not None:
        return own
    written = target.tool(tool.name, tool.description, tool.parameters)
    if tool.members is None or tool.members[0] != target.name:
        return written
    definition = json_text.read_object(written.decode())
    nested = json_text.as_object(definition.get("function"))
    members = {**(definition if nested is None else nested), **json_text.read_object(tool.members[1].decode())}
    return json_text.encode(members if nested is None else {**definition, "function": members})


@functools.lru_cache(maxsize=64)
def write_tools(text: str, target: Target) -> Written | None:
    """The definitions in the target's shape, a JSON list; None if none of them is for this target."""
    written = [(json, tool.cache) for tool in read_tools(text) if (json := _write(tool, target)) is not None]
    return write_list(Piece(json, cache=cache) for json, cache in written) if written else None


@functools.lru_cache(maxsize=64)
def write_former_tools(names: tuple[str, ...], target: Target) -> bytes:
    """Definitions for tools that only the history knows (anthropic.A12)."""
    return b"[%b]" % b",".join(target.tool(name, FORMER_TOOL, NO_PARAMETERS) for name in names)

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
_FLAT_TARGET: Final = "openai-responses"
_FLAT_MEMBERS: Final = ("strict", "allowed_callers", "defer_loading", "output_schema", "async")
_FLAT_CUSTOM: Final = ("name", "description", "format", "allowed_callers", "defer_loading", "async")


class ToolDefinition(msgspec.Struct, frozen=True):
    """One tool: ``parameters`` is a JSON Schema as JSON.  ``native`` is a tool that only ``provider`` knows.

    ``cache`` asks for a breakpoint behind it (P.E.4).  ``flat`` holds further members of a definition in the shape of
    OpenAI's Responses API; they go back there alone.  ``own`` is the definition of any other tool as ``provider`` wrote
    it, which is what that provider gets.
    """

    name: str
    description: str = ""
    parameters: bytes = NO_PARAMETERS
    provider: str | None = None
    native: bytes | None = None
    cache: Cache = False
    flat: bytes | None = None
    own: bytes | None = None


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
    return ToolDefinition(tool.name, tool.description, parameters, "gemini", tool.native, own=tool.own)


def _read_tool(value: dict[str, object], index: int) -> ToolDefinition:
    kind = value.get("type")
    cache = read_cache(value, tool=True)
    inner = json_text.as_object(value.get("function"))
    if inner is not None:
        value = inner
    elif isinstance(kind, str) and kind not in ("function", "custom") and not _schema(value):
        provider = "anthropic" if isinstance(value.get("name"), str) and kind != "namespace" else "openai"
        return ToolDefinition(str(value.get("name", kind)), provider=provider, native=_native(value), cache=cache)
    elif kind == "custom" and isinstance(value.get("custom"), dict):
        custom = json_text.encode({**_flat_custom(json_text.as_object(value["custom"]) or {}), "type": kind})
        return ToolDefinition("custom", provider="openai", native=_native(value), cache=cache, flat=custom)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"tools[{index}].name: expected a text that is not empty")
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidTypeError(f"tools[{index}].description: expected a text")
    schema = _schema(value)
    if schema is not None and json_text.as_object(schema) is None:
        raise InvalidTypeError(f"tools[{index}].parameters: expected a JSON Schema object")
    parameters = json_text.encode(schema) if schema else NO_PARAMETERS
    flat = None if inner is not None else _flat(value)
    return ToolDefinition(name, description or "", parameters, cache=cache, flat=flat)


def _native(value: dict[str, object]) -> bytes:
    return json_text.encode({key: item for key, item in value.items() if key not in _OURS})


def _schema(value: dict[str, object]) -> object:
    return next((value[key] for key in _SCHEMAS if value.get(key) is not None), None)


def _flat(value: dict[str, object]) -> bytes | None:
    """Members that a flat definition has beside name, description and parameters; None for none."""
    kind = value.get("type")
    if kind == "custom" and _schema(value) is None:
        return json_text.encode({**_flat_custom(value), "type": kind})
    if kind != "function":
        return None
    found: dict[str, object] = {key: value[key] for key in _FLAT_MEMBERS if key in value}
    if "parameters" in value and value["parameters"] is None:
        found["parameters"] = None
    return json_text.encode(found) if found else None


def _flat_custom(value: dict[str, object]) -> dict[str, object]:
    return {key: value[key] for key in _FLAT_CUSTOM if value.get(key) is not None}


def _write(tool: ToolDefinition, target: Target) -> bytes | None:
    """A definition in the target's shape; None where the target does not know such a tool."""
    if target.name == _FLAT_TARGET and tool.flat is not None:
        flat = json_text.read_object(tool.flat.decode())
        name = str(flat.get("name", tool.name))
        made = json_text.read_object(target.tool(name, tool.description, tool.parameters).decode())
        if flat.get("type") == "custom":
            made = {"name": made["name"], **{key: made[key] for key in ("description",) if key in made}}
        flat.pop("name", None)
        return json_text.encode({**made, **flat})
    if tool.native is None and tool.own is not None and tool.provider == target.provider:
        return tool.own
    if tool.native is None:
        return target.tool(tool.name, tool.description, tool.parameters)
    known = (tool.provider, _FLAT_TARGET) if tool.provider == "openai" else (tool.provider,)
    return tool.native if target.name in known else None


@functools.lru_cache(maxsize=64)
def write_tools(text: str, target: Target) -> Written | None:
    """The definitions in the target's shape, a JSON list; None if none of them is for this target."""
    written = [(json, tool.cache) for tool in read_tools(text) if (json := _write(tool, target)) is not None]
    return write_list(Piece(json, cache=cache) for json, cache in written) if written else None


@functools.lru_cache(maxsize=64)
def write_former_tools(names: tuple[str, ...], target: Target) -> bytes:
    """Definitions for tools that only the history knows (anthropic.A12)."""
    return b"[%b]" % b",".join(target.tool(name, FORMER_TOOL, NO_PARAMETERS) for name in names)

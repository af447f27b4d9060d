"""Tool definitions, read from any provider's shape and written in the target's (P.E.3)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus.core import json_text
from contextbus.core.breakpoints import read_cache, write_list
from contextbus.core.wire import Piece, Target, Written
from contextbus_protocol.chat import Cache
from contextbus_protocol.errors import InvalidTypeError

NO_PARAMETERS: Final = b'{"type":"object","properties":{}}'
FORMER_TOOL: Final = "Was used earlier in this conversation and is not available now."
_OURS: Final = ("cache_control", "_cache_breakpoint", "cache", "tags")
_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")


class ToolDefinition(msgspec.Struct, frozen=True):
    """One tool: ``parameters`` is a JSON Schema as JSON.  ``native`` is a tool that only ``provider`` knows.

    ``cache`` asks for a breakpoint behind it (P.E.4).
    """

    name: str
    description: str = ""
    parameters: bytes = NO_PARAMETERS
    provider: str | None = None
    native: bytes | None = None
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
    """Read a JSON list of tool definitions: Anthropic's, OpenAI's (nested or flat), MCP's or ours.

    Raises:
        InvalidTypeError: the text is no list of definitions; the message names the index and the field.
    """
    try:
        values = msgspec.json.decode(text, type=list[dict[str, object]])
    except (msgspec.MsgspecError, UnicodeEncodeError) as exc:
        raise InvalidTypeError(f"tools: not a JSON list of objects: {exc}") from None
    return tuple(_read_tool(value, index) for index, value in enumerate(values))


def _read_tool(value: dict[str, object], index: int) -> ToolDefinition:
    kind = value.get("type")
    cache = read_cache(value, tool=True)
    inner = json_text.as_object(value.get("function"))
    if inner is not None:
        value = inner
    elif isinstance(kind, str) and kind not in ("function", "custom") and not _schema(value):
        provider = "anthropic" if isinstance(value.get("name"), str) else "openai"
        return ToolDefinition(str(value.get("name", kind)), provider=provider, native=_native(value), cache=cache)
    elif kind == "custom" and isinstance(value.get("custom"), dict):
        return ToolDefinition("custom", provider="openai", native=_native(value), cache=cache)
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
    return ToolDefinition(name, description or "", parameters, cache=cache)


def _native(value: dict[str, object]) -> bytes:
    return json_text.encode({key: item for key, item in value.items() if key not in _OURS})


def _schema(value: dict[str, object]) -> object:
    return next((value[key] for key in _SCHEMAS if value.get(key) is not None), None)


@functools.lru_cache(maxsize=64)
def write_tools(text: str, target: Target) -> Written | None:
    """The definitions in the target's shape, a JSON list; None if none of them is for this target."""
    written = [
        (tool.native if tool.native is not None else target.tool(tool.name, tool.description, tool.parameters), tool)
        for tool in read_tools(text)
        if tool.native is None or tool.provider == target.name
    ]
    return write_list(Piece(json, cache=tool.cache) for json, tool in written) if written else None


@functools.lru_cache(maxsize=64)
def write_former_tools(names: tuple[str, ...], target: Target) -> bytes:
    """Definitions for tools that only the history knows (anthropic.A12)."""
    return b"[%b]" % b",".join(target.tool(name, FORMER_TOOL, NO_PARAMETERS) for name in names)

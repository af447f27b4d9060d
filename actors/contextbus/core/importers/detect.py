"""Files of conversations: which provider wrote them, and how many there are in one."""

from __future__ import annotations

from typing import Final, cast

from contextbus.core.importers.anthropic import from_anthropic
from contextbus.core.importers.openai import from_openai
from contextbus.core.importers.reading import Conversation, Object, Provider, load
from contextbus_protocol.errors import InvalidTypeError

_ANTHROPIC_PARTS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document")
_OPENAI_ROLES: Final = ("developer", "tool", "function")
_OPENAI_KEYS: Final = ("tool_calls", "tool_call_id", "function_call", "refusal")


def detect(data: object) -> Provider:
    """Which provider's form a file holds: an object with messages, a bare list, or a conversation a line.

    What both providers write alike counts as OpenAI's.

    Raises:
        InvalidTypeError: it holds no messages.
    """
    return _detect(_split(data)[0])


def read_conversations(data: object, provider: Provider | None = None) -> tuple[Conversation, ...]:
    """Read every conversation of a file; each is told apart by itself unless the provider is given.

    Raises:
        InvalidTypeError: something cannot be read; the message names the line, or the message's index and field.
    """
    found: list[Conversation] = []
    for value in _split(data):
        form = provider or _detect(value)
        found.append(from_anthropic(value) if form == "anthropic" else from_openai(value))
    return tuple(found)


def _detect(value: object) -> Provider:
    top = cast("Object", value) if isinstance(value, dict) else {"messages": value}
    if top.get("system") is not None or _has_schema(top.get("tools")):
        return "anthropic"
    messages = top.get("messages", [top] if "role" in top or "choices" in top else None)
    if not isinstance(messages, list | tuple):
        raise InvalidTypeError("no conversation: expected a list of messages, or an object with a list 'messages'")
    for item in cast("list[object]", messages):
        if not isinstance(item, dict):
            continue
        message = cast("Object", item)
        if message.get("role") in _OPENAI_ROLES or any(message.get(key) is not None for key in _OPENAI_KEYS):
            return "openai"
        content = message.get("content")
        for part in cast("list[object]", content) if isinstance(content, list | tuple) else ():
            if isinstance(part, dict) and cast("Object", part).get("type") in _ANTHROPIC_PARTS:
                return "anthropic"
    return "openai"


def _has_schema(tools: object) -> bool:
    listed = cast("list[object]", tools) if isinstance(tools, list | tuple) else []
    return any(isinstance(tool, dict) and "input_schema" in tool for tool in listed)


def _split(data: object) -> list[object]:
    """The conversations of a file, at least one."""
    if isinstance(data, bytes | bytearray):
        data = bytes(data).decode("utf-8-sig", "replace")
    values: list[object]
    try:
        value = load(data)
        listed = cast("list[object]", value) if isinstance(value, list | tuple) else None
        if not listed:
            return [value]
        values = listed
    except InvalidTypeError:
        if not isinstance(data, str) or "\n" not in data.strip():
            raise
        values = _lines(data)
    if all(isinstance(item, dict) and "role" in item and "messages" not in item for item in values):
        return [values]
    if all(isinstance(item, list) or (isinstance(item, dict) and "messages" in item) for item in values):
        return values
    return [values]


def _lines(text: str) -> list[object]:
    values: list[object] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(load(line))
        except InvalidTypeError as exc:
            raise InvalidTypeError(f"line {number}: {exc.message}") from None
    return values

"""What users hand over: our messages, a provider's dicts, or an SDK's objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, cast, runtime_checkable

from contextbus.core.importers import read_conversations
from contextbus_protocol.chat import ChatMessage, ToolResult
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Usage


@runtime_checkable
class Dumpable(Protocol):
    """An SDK's object (pydantic)."""

    def model_dump(self) -> dict[str, object]:
        """Its fields as plain values."""
        ...


GivenMessage = ChatMessage | ToolResult | Mapping[str, object] | Dumpable

_INPUT: Final = ("input_tokens", "prompt_tokens")
_OUTPUT: Final = ("output_tokens", "completion_tokens")
_CACHE_READ: Final = ("cache_read_tokens", "cache_read_input_tokens")
_CACHE_WRITE: Final = ("cache_write_tokens", "cache_creation_input_tokens")


def read_given(messages: Iterable[GivenMessage]) -> tuple[ChatMessage, ...]:
    """Messages of ours as they are; others through the importers, each run of them together.

    A bare tool result, as ``tools.call`` and ``answer_load_skill`` give them, becomes a tool message of its own.

    Raises:
        InvalidTypeError: a message cannot be read; the text names its index and field.
    """
    given = tuple(messages)
    if all(type(m) is ChatMessage for m in given):
        return cast("tuple[ChatMessage, ...]", given)
    read: list[ChatMessage] = []
    foreign: list[object] = []
    for message in given:
        if isinstance(message, ChatMessage | ToolResult):
            read += _import(foreign)
            foreign = []
            read.append(message if isinstance(message, ChatMessage) else _answer(message))
        else:
            foreign.append(_plain(message))
    read += _import(foreign)
    return tuple(read)


def _import(foreign: Sequence[object]) -> tuple[ChatMessage, ...]:
    return read_conversations(list(foreign))[0].messages if foreign else ()


def _answer(result: ToolResult) -> ChatMessage:
    if not result.id:
        raise InvalidTypeError("a tool result has no id: give it the id of the call that it answers")
    return ChatMessage(role="tool", content=(result,))


def _plain(message: object) -> object:
    if isinstance(message, Mapping):
        return dict(cast("Mapping[str, object]", message))
    if isinstance(message, Dumpable):
        return message.model_dump()
    raise InvalidTypeError(
        f"a message is a ChatMessage, a ToolResult, a provider's dict or an SDK object, not {type(message).__name__}"
    )


def read_usage(usage: object) -> Usage | None:
    """Reported usage, from ours, a dict, or an SDK's object of either provider; None stays None.

    Raises:
        InvalidTypeError: it holds no token counts.
    """
    if usage is None or isinstance(usage, Usage):
        return usage
    fields = usage.model_dump() if isinstance(usage, Dumpable) else usage
    if not isinstance(fields, Mapping):
        raise InvalidTypeError(f"usage holds token counts, not {type(usage).__name__}")
    known = cast("Mapping[str, object]", fields)
    return Usage(
        input_tokens=_count(known, _INPUT),
        output_tokens=_count(known, _OUTPUT),
        cache_read_tokens=_count(known, _CACHE_READ),
        cache_write_tokens=_count(known, _CACHE_WRITE),
    )


def _count(fields: Mapping[str, object], names: tuple[str, ...]) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0

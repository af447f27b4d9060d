"""What users hand over: our messages, a provider's dicts, or an SDK's objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

from contextbus.core.importers import read_conversations
from contextbus.core.usage_facts import read_usage_facts
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
            foreign.append(members_of(message))
    read += _import(foreign)
    return tuple(read)


def _import(foreign: Sequence[object]) -> tuple[ChatMessage, ...]:
    return read_conversations(list(foreign))[0].messages if foreign else ()


def _answer(result: ToolResult) -> ChatMessage:
    if not result.id:
        raise InvalidTypeError("a tool result has no id: give it the id of the call that it answers")
    return ChatMessage(role="tool", content=(result,))


def members_of(message: object) -> dict[str, object]:
    """The members of a message of others: a dict, or an SDK's object.

    Raises:
        InvalidTypeError: it is no message.
    """
    if isinstance(message, Mapping):
        return dict(cast("Mapping[str, object]", message))
    if isinstance(message, Dumpable):
        return message.model_dump()
    raise InvalidTypeError(
        f"a message is a ChatMessage, a ToolResult, a provider's dict or an SDK object, not {type(message).__name__}"
    )


def read_usage(usage: object) -> Usage | None:
    """Reported usage, from ours, a dict, or an SDK's object of any provider; None stays None.

    Cached tokens are counted once, whether the provider's input count holds them or not.

    Raises:
        InvalidTypeError: it holds no token counts.
    """
    given = plain_usage(usage)
    return None if given is None else read_usage_facts(given).usage


def plain_usage(usage: object) -> Usage | Mapping[str, object] | None:
    """Usage as it was given, an SDK's object as its fields.

    Raises:
        InvalidTypeError: it holds no token counts.
    """
    if usage is None or isinstance(usage, Usage):
        return usage
    fields = usage.model_dump() if isinstance(usage, Dumpable) else usage
    if not isinstance(fields, Mapping):
        raise InvalidTypeError(f"usage holds token counts, not {type(usage).__name__}")
    return cast("Mapping[str, object]", fields)

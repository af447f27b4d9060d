"""How a call counts: with the caller's function, or the characters of the AI SDK's JSON divided by four (C.C)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, cast

from anyio.lowlevel import checkpoint

from contextbus.client.compaction.messages import Source, read_source
from contextbus.client.given import GivenMessage
from contextbus.core import ai_sdk
from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.policy import check_count
from contextbus.core.compaction.reduction import Count, CountComposed, CountRange, CountTail, CountWhole
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import InvalidTypeError

CountGiven = Callable[[tuple[GivenMessage, ...]], "int | Awaitable[int]"]
"""Counts a complete list of messages, in tokens; it must not change them (C.C.4)."""


def estimate_tokens(messages: Iterable[GivenMessage]) -> int:
    """What ``compact`` counts by default: characters of the messages' JSON divided by four, rounded up (C.C.8).

    It is a rule of thumb, and knows nothing of a provider's tokenizer, prices, or framing.

    Args:
        messages: ChatMessages, a provider's dicts, or SDK objects.

    Raises:
        InvalidTypeError: a message cannot be read, or holds media, which has no default count (C.C.3).
    """
    return ai_sdk.estimate_tokens(read_source(messages).messages)


def candidate(source: Source, count: Count) -> tuple[GivenMessage, ...]:
    """The messages that are to be counted: the caller's own objects, and a summary's message where there is one."""
    given = source.given
    match count:
        case CountWhole():
            return given
        case CountTail(start=start):
            return given[start:]
        case CountRange(start=start, end=end):
            return given[start:end]
        case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
            made = () if summary is None else (source.summary_message(start, summary),)
            again = () if replayed is None else (given[replayed],)
            return (*given[:start], *made, *again, *given[end:])


class Counter(Protocol):
    """Counts what a reduction asks for."""

    def count(self, count: Count) -> int:
        """The tokens, where no waiting is needed."""
        ...

    async def wait(self, count: Count) -> int:
        """The tokens; a cancellation is noticed before and after (C.F.9)."""
        ...


class DefaultCounter:
    """The default estimate; each message is written and measured once (C.C.1-C.C.3).

    Raises:
        InvalidTypeError: on the first count, if a message holds media (C.C.3).
    """

    def __init__(self, source: Source) -> None:
        self._messages = source.messages
        self._lengths: list[int] | None = None

    def count(self, count: Count) -> int:
        """The tokens of these messages."""
        if self._lengths is None:
            ai_sdk.refuse_opaque(self._messages)
            self._lengths = list(map(ai_sdk.measure, self._messages))
        lengths = self._lengths
        match count:
            case CountWhole():
                return ai_sdk.tokens_of(lengths)
            case CountTail(start=start):
                return ai_sdk.tokens_of(lengths[start:])
            case CountRange(start=start, end=end):
                return ai_sdk.tokens_of(lengths[start:end])
            case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
                made = [] if summary is None else [ai_sdk.measure(summary_message(summary))]
                again = [] if replayed is None else [lengths[replayed]]
                return ai_sdk.tokens_of([*lengths[:start], *made, *again, *lengths[end:]])

    async def wait(self, count: Count) -> int:
        """The tokens of these messages."""
        await checkpoint()
        tokens = self.count(count)
        await checkpoint()
        return tokens


class GivenCounter:
    """The caller's function; what it gives is checked (C.C.4, C.C.5)."""

    def __init__(self, source: Source, function: Callable[..., object]) -> None:
        self._source = source
        self._function = function

    def count(self, count: Count) -> int:
        """The tokens of these messages.

        Raises:
            InvalidTypeError: the function is async.
            RangeError: it gave no safe integer from 0.
        """
        found = self._function(candidate(self._source, count))
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise InvalidTypeError("count_tokens must not be async here; use compact(), which awaits it")
        return check_count("count_tokens", found)

    async def wait(self, count: Count) -> int:
        """The tokens of these messages.

        Raises:
            RangeError: the function gave no safe integer from 0.
        """
        await checkpoint()
        found = self._function(candidate(self._source, count))
        tokens = check_count("count_tokens", await found if inspect.isawaitable(found) else found)
        await checkpoint()
        return tokens


def counter_of(source: Source, count_tokens: object) -> Counter:
    """What counts these messages; the caller's function was checked to be one."""
    if count_tokens is None:
        return DefaultCounter(source)
    return GivenCounter(source, cast("Callable[..., object]", count_tokens))


class InputCounter:
    """Counts what a summariser is given, whose budget is another model's (C.X.2): always the default estimate.

    Pieces are tried in many sizes, so what a message took is kept, with the message, whose place in memory it stands
    under.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ChatMessage, int]] = {}

    def __call__(self, messages: Sequence[ChatMessage]) -> int:
        """The tokens of these messages."""
        return ai_sdk.tokens_of([self._measure(message) for message in messages])

    def _measure(self, message: ChatMessage) -> int:
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = (message, ai_sdk.measure(message))
        return known[1]

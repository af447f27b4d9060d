"""What a summariser is, and how a function becomes one (C.F.10)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast, runtime_checkable

import msgspec

from contextbus.core.compaction.finish import STOP, normalise_finish
from contextbus.summarisers.prompt import write_prompt
from contextbus.user_functions import DEFAULT_THREADS, UserFunction
from contextbus_protocol import subjects
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError, word_of
from contextbus_protocol.values import MAX_SAFE_INTEGER, Usage


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a summariser is asked (C.F.10).

    ``instructions`` are the fixed ones with the caller's behind them (C.F.4); ``max_output_tokens`` is the allowance,
    in tokens (C.F.3).  The time left is the deadline of the cancel scope that the call runs in.
    """

    messages: tuple[ChatMessage, ...]
    instructions: str
    max_output_tokens: int

    @property
    def prompt(self) -> str:
        """The messages as the one user text of a model call: JSON in the AI SDK's form (C.F.4)."""
        return write_prompt(self.messages)


class Summary(msgspec.Struct, frozen=True):
    """What a summariser wrote.

    A part is of type ``text``, ``reasoning``, or anything else that came and makes the summary incomplete (C.G.5).
    ``finish_reason`` is the provider's own word; ``usage`` is there if the model was called and reported it (C.G.4).
    """

    parts: tuple[SummaryPart, ...]
    finish_reason: str = STOP
    usage: Usage | None = None


class MalformedSummaryError(InvalidTypeError):
    """A summariser answered what is no summary."""


Answer = str | Summary
AsyncFunction = Callable[[SummaryRequest], Awaitable[Answer]]
SyncFunction = Callable[[SummaryRequest], Answer]


@runtime_checkable
class Summariser(Protocol):
    """Summarising behind one method; ``id`` names it in runs and subjects."""

    @property
    def id(self) -> str:
        """The name of the summariser."""
        ...

    async def summarise(self, request: SummaryRequest) -> Answer:
        """Summarise the messages; a plain text stands for one part of text that ended with ``stop`` (C.F.10).

        Whatever it raises reaches an in-process caller unchanged (C.F.8).
        """
        ...


class FunctionSummariser:
    """A summariser made of one function; calling it calls the function."""

    def __init__(
        self,
        function: AsyncFunction | SyncFunction,
        *,
        id: str,  # noqa: A002  (the word that users write)
        threads: int = DEFAULT_THREADS,
    ) -> None:
        if not callable(function):
            raise InvalidTypeError("a summariser needs a function (request) -> str or Summary")
        self.id = id
        self._function = function
        self._call = UserFunction(function, name=str(id), arguments=1, threads=threads)
        check_summariser(self)

    def __call__(self, request: SummaryRequest) -> Awaitable[Answer] | Answer:
        """Call the function itself."""
        return self._function(request)

    async def summarise(self, request: SummaryRequest) -> Answer:
        """Await an async function; run any other in a thread."""
        return cast("Answer", await self._call(request))


def summariser(
    *,
    id: str,  # noqa: A002  (the word that users write)
) -> Callable[[AsyncFunction | SyncFunction], FunctionSummariser]:
    """Make a summariser of a function ``(request) -> str | Summary``, async or not (C.F.10).

    Args:
        id: The name of the summariser in runs and subjects.

    Raises:
        InvalidTypeError: the id is not usable, or what is decorated cannot be called.
    """

    def decorate(function: AsyncFunction | SyncFunction) -> FunctionSummariser:
        return FunctionSummariser(function, id=id)

    return decorate


def summariser_of(given: object) -> Summariser:
    """Give back a summariser, or make one of a function, under the function's own name.

    Raises:
        InvalidTypeError: it is neither.
    """
    if isinstance(given, Summariser) and not isinstance(given, type):
        return check_summariser(given)
    if callable(given) and not isinstance(given, type):
        name = getattr(given, "__name__", None)
        function = cast("AsyncFunction | SyncFunction", given)
        return FunctionSummariser(function, id=name if isinstance(name, str) and name else type(given).__name__)
    raise InvalidTypeError(
        "a summariser is a function (request) -> str or Summary, or an object with an id and such a method summarise, "
        f"not {type(given).__name__}"
    )


def check_summariser(given: object) -> Summariser:
    """Give back what is a usable summariser.

    Raises:
        InvalidTypeError: no or an unusable id, or no async method ``summarise``.
    """
    name = getattr(given, "id", None)
    if not isinstance(name, str) or not name:
        raise InvalidTypeError('a summariser needs an id, for example @summariser(id="mine")')
    subjects.encode_name(name)
    if not inspect.iscoroutinefunction(getattr(given, "summarise", None)) or not isinstance(given, Summariser):
        raise InvalidTypeError(f"summariser {name!r}: summarise must be an async function (request) -> str or Summary")
    return given


def read_answer(answer: object) -> Summary:
    """Read what a summariser returned: texts encodable, the finish reason normalised (C.F.10).

    Raises:
        MalformedSummaryError: it is neither a text nor a well-formed ``Summary``.
    """
    if isinstance(answer, str):
        return Summary((SummaryPart("text", clean_text(answer)),))
    if not isinstance(answer, Summary):
        raise MalformedSummaryError(f"a summariser must return a str or a Summary, not {type(answer).__name__}")
    # The annotations are promises of a user's code: nothing is taken for granted.
    parts = cast("object", answer.parts)
    if not isinstance(parts, tuple | list):
        raise MalformedSummaryError("the parts of a summary must be a tuple")
    usage = cast("object", answer.usage)
    if usage is not None and not _is_usage(usage):
        raise MalformedSummaryError("the usage of a summary must be a Usage of non-negative integers")
    read = tuple(_read_part(place, part) for place, part in enumerate(cast("Sequence[object]", parts)))
    return Summary(read, normalise_finish(answer.finish_reason), answer.usage)


def _read_part(place: int, part: object) -> SummaryPart:
    if not isinstance(part, SummaryPart):
        raise MalformedSummaryError(f"part {place} of a summary must be a SummaryPart, not {type(part).__name__}")
    text = cast("object", part.text)
    if word_of(part.type) is None or not isinstance(text, str):
        raise MalformedSummaryError(f"part {place} of a summary needs a word as its type and a text")
    return SummaryPart(part.type, clean_text(text))


def _is_usage(usage: object) -> bool:
    return isinstance(usage, Usage) and all(
        type(count) is int and 0 <= count <= MAX_SAFE_INTEGER for count in msgspec.structs.astuple(usage)
    )

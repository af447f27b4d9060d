"""What a source is, and how a function becomes one."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

from contextbus_protocol import subjects
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Query
from contextbus_protocol.values import SOURCE_KINDS, Candidate, Provenance, SourceKind

Answer = Sequence[Candidate]
AsyncFunction = Callable[[Query], Awaitable[Answer]]
SyncFunction = Callable[[Query], Answer]

DEFAULT_THREADS = 8


class MalformedAnswerError(InvalidTypeError):
    """A source answered what is no list of candidates (D.K.27)."""


@runtime_checkable
class Source(Protocol):
    """Retrieval behind one method (D.K.16).

    ``id`` names the source in runs, manifests and subjects; ``kind`` picks its share of the budget (D.B.9); a step
    fails when a ``required`` source does.
    """

    @property
    def id(self) -> str:
        """The name of the source."""
        ...

    @property
    def kind(self) -> SourceKind:
        """One of ``SOURCE_KINDS``."""
        ...

    @property
    def required(self) -> bool:
        """Whether a step fails without it."""
        ...

    async def query(self, query: Query) -> Answer:
        """Find candidates, best first, ``query.limit`` of them; nothing found is an empty list (D.K.19)."""
        ...


@runtime_checkable
class Kept(Protocol):
    """A source with work of its own beside the queries; the worker runs it, and again when it fails."""

    async def keep(self) -> None:
        """Work until cancelled."""
        ...


@runtime_checkable
class Configured(Protocol):
    """A source whose answers depend on settings that all its workers must share (D.K.23)."""

    @property
    def options_digest(self) -> str:
        """The digest of those settings."""
        ...


class FunctionSource:
    """A source made of one function; calling it calls the function."""

    def __init__(
        self,
        function: AsyncFunction | SyncFunction,
        *,
        id: str,  # noqa: A002  (the word that users write)
        kind: SourceKind,
        required: bool = False,
        threads: int = DEFAULT_THREADS,
    ) -> None:
        if not callable(function):
            raise InvalidTypeError("a source needs a function (query) -> list[Candidate]")
        self.id = id
        self.kind: SourceKind = kind
        self.required = required
        self._function = function
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        check_source(self)

    def __call__(self, query: Query) -> Awaitable[Answer] | Answer:
        """Call the function itself."""
        return self._function(query)

    async def query(self, query: Query) -> Answer:
        """Await an async function; run any other in a worker thread."""
        if is_async(self._function):
            found = self._function(query)
        else:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=f"source-{self.id}")
            # Threads of its own, so that functions which do not end take up those and no others: later queries wait
            # for one within their deadline, and a query that is given up leaves its thread behind.
            context = contextvars.copy_context()
            found = await asyncio.wrap_future(self._executor.submit(context.run, self, query))
        return await found if inspect.isawaitable(found) else found


def source(
    *,
    id: str,  # noqa: A002  (the word that users write)
    kind: SourceKind,
    required: bool = False,
) -> Callable[[AsyncFunction | SyncFunction], FunctionSource]:
    """Make a source of a function ``(query) -> list[Candidate]``, async or not (D.K.16).

    Args:
        id: The name of the source in runs and subjects.
        kind: ``memory``, ``rag``, ``transcript`` or ``skills``.
        required: Whether a step fails when this source does.

    Raises:
        InvalidTypeError: the id or kind is not usable, or what is decorated cannot be called (D.K.20).
    """

    def decorate(function: AsyncFunction | SyncFunction) -> FunctionSource:
        return FunctionSource(function, id=id, kind=kind, required=required)

    return decorate


def is_async(function: object) -> bool:
    """Whether calling something gives an awaitable: an async function, or an object whose call is one."""
    call = type(function).__dict__.get("__call__")
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_source(candidate_source: object) -> Source:
    """Give back what is a usable source (D.K.20).

    Raises:
        InvalidTypeError: no or an unusable id, an unknown kind, a ``required`` that is no bool, or no query function.
    """
    name = getattr(candidate_source, "id", None)
    if not isinstance(name, str) or not name:
        raise InvalidTypeError('a source needs an id, for example @source(id="tickets", kind="rag")')
    subjects.encode_name(name)
    kind = getattr(candidate_source, "kind", None)
    if kind not in SOURCE_KINDS:
        raise InvalidTypeError(f"source {name!r}: the kind must be one of {', '.join(SOURCE_KINDS)}")
    if not isinstance(getattr(candidate_source, "required", None), bool):
        raise InvalidTypeError(f"source {name!r}: required must be True or False")
    if not inspect.iscoroutinefunction(getattr(candidate_source, "query", None)):
        raise InvalidTypeError(f"source {name!r}: query must be an async function (query) -> list[Candidate]")
    if not isinstance(candidate_source, Source):
        raise InvalidTypeError(f"source {name!r}: not a source; see contextbus.sources.interface.Source")
    return candidate_source


def candidate(
    record_id: str,
    text: str,
    score: float,
    revision: int | None = None,
    *,
    tokens: int | None = None,
    provenance: Provenance | None = None,
    mandatory: bool = False,
    query: str | None = None,
    match: str | None = None,
) -> Candidate:
    """Make a candidate and compute its digest (D.K.17, D.K.18).

    Args:
        record_id: The record's id within the source.
        text: The record's text; lone surrogates become U+FFFD.
        score: How well it matches; finite, higher is better.
        revision: The record's revision, where the source keeps any.
        tokens: The source's own count of the text, in tokens (D.K.22).
        provenance: Where the record comes from; a label only.
        mandatory: Whether it must be in the package.
        query: What it was found with, if other than the query.
        match: How it was found.
    """
    text = clean_text(text)
    return Candidate(
        record_id=record_id,
        text=text,
        score=float(score),
        digest=digest_text(text),
        revision=revision,
        tokens=tokens,
        provenance=provenance,
        mandatory=mandatory,
        query=query,
        match=match,
    )

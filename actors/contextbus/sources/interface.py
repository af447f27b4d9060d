"""What a source is, and how a function becomes one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast, runtime_checkable

import msgspec

from contextbus.core.scope import narrow
from contextbus.sources.accounting import Charge
from contextbus.user_functions import DEFAULT_THREADS, UserFunction
from contextbus_protocol import subjects
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Query
from contextbus_protocol.values import SOURCE_KINDS, Candidate, Provenance, Scope, SourceKind

Answer = Sequence[Candidate]
AsyncFunction = Callable[[Query], Awaitable[Answer]]
SyncFunction = Callable[[Query], Answer]


class MalformedAnswerError(InvalidTypeError):
    """A source answered what is no list of candidates (D.K.27)."""


class FoundRecords(msgspec.Struct, frozen=True):
    """An answer of a source whose records can be forgotten.

    ``erasures`` is the sequence of the tenant's erasures that it is as of: what was forgotten up to there is not in it.
    """

    candidates: Answer
    erasures: int | None = None


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

    async def query(self, query: Query) -> Answer | FoundRecords:
        """Find candidates, best first, ``query.limit`` of them; nothing found is an empty list (D.K.19).

        One that has a keyword ``charge`` gets a ``Charge`` with each query that somebody accounts for (D.K.10).
        """
        ...


@runtime_checkable
class Pinned(Protocol):
    """A source that reads within a scope of its own (D.K.2)."""

    @property
    def pinned_scope(self) -> Scope | None:
        """That scope; None if it is pinned to nothing, and reads at the scope of each request."""
        ...


@runtime_checkable
class Fixed(Protocol):
    """A pinned source that may read at one scope alone, as a session does (D.K.5)."""

    @property
    def fixed_scope(self) -> Scope | None:
        """The scope at which it reads, whatever a request leaves open; None if requests narrow the pinned one."""
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
        self._call = UserFunction(function, name=str(id), arguments=1, threads=threads)
        check_source(self)

    def __call__(self, query: Query) -> Awaitable[Answer] | Answer:
        """Call the function itself."""
        return self._function(query)

    async def query(self, query: Query, *, charge: Charge | None = None) -> Answer:
        """Await an async function; run any other in a thread.  One with a keyword ``charge`` gets it (D.K.10)."""
        return cast("Answer", await self._call(query, charge=charge))


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

    A function with a keyword ``charge`` gets a ``Charge`` with each query that somebody accounts for, and is called
    without it else (D.K.10).

    Raises:
        InvalidTypeError: the id or kind is not usable, what is decorated cannot be called, or its ``charge`` has no
            default (D.K.20).
    """

    def decorate(function: AsyncFunction | SyncFunction) -> FunctionSource:
        return FunctionSource(function, id=id, kind=kind, required=required)

    return decorate


def scope_read(source: object, requested: Scope) -> Scope:
    """The scope at which a source reads for a request: its own as the request narrows it, or a fixed one (D.K.5).

    Raises:
        ScopeConflictError: the request names somebody else than the source's own scope (D.K.3).
    """
    pinned = source.pinned_scope if isinstance(source, Pinned) else None
    narrowed = requested if pinned is None else narrow(pinned, requested)
    fixed = source.fixed_scope if isinstance(source, Fixed) else None
    return narrowed if fixed is None else fixed


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

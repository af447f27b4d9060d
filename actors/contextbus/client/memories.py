"""Memory records from the client's side: remember, forget, list, allow (D.K.24)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, TypedDict, TypeVar

from contextbus.client.asking import ask_once
from contextbus.runtime.clock import read_milliseconds
from contextbus.runtime.host import Host
from contextbus.sources.memory import MemorySource
from contextbus.sources.memory_session import MemorySession
from contextbus.sources.worker import AdminRequest
from contextbus_protocol import subjects
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError
from contextbus_protocol.memory_records import (
    AllowRecords,
    Forget,
    Forgotten,
    ListRecords,
    RecordsAllowed,
    RecordsListed,
    Remember,
    Remembered,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import Scope

DEFAULT_SECONDS: Final = 10.0
FORGET_SECONDS: Final = 60.0
"""A forget waits until every package that holds the record is redacted."""

# An id is never used for another record, so that asking again is never meant as something new.
_FORGET: Final = "forget"

A = TypeVar("A", bound=AnyMessage)


class _Head(TypedDict):
    run: str
    tenant: str
    reply_to: str
    source: str
    message_id: str


class Memories:
    """The memory records of a tenant, in this process or through a worker.

    Args:
        host: the host of this process.
        local: the memory source, where it runs in this process.
    """

    def __init__(self, host: Host, local: MemorySource | None) -> None:
        self._host = host
        self._local = local

    async def remember(
        self,
        text: str,
        *,
        scope: Scope,
        record_id: str | None = None,
        origin: str = "asserted",
        source: str = "memory",
        message_id: str | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> Remembered:
        """Store a record, or a new revision of the record with an id.

        Args:
            text: what is to be remembered.
            scope: whose it is; at least one field is set.
            record_id: the record to change; a new one without it.
            origin: a label that its provenance carries.
            source: the id of the memory source.
            message_id: an id to ask again without a second effect.
            seconds: how long to wait.

        Raises:
            ScopeConflictError: the scope names nobody, or the record lies outside it.
            ForbiddenError: the text was forgotten, of whatever scope, and is not learned again before ``allow``.
            NotFoundError: there is no record of this id in the scope, or it was forgotten.
            DeadlineExceededError: no memory worker answers.
        """
        request = Remember(
            **self._head(source, message_id),
            text=text,
            scope=scope,
            record_id=record_id,
            origin=origin,
            now=read_milliseconds(),
        )
        return await self._ask(request, Remembered, seconds)

    async def forget(
        self,
        record_id: str,
        *,
        scope: Scope,
        source: str = "memory",
        message_id: str | None = None,
        seconds: float = FORGET_SECONDS,
    ) -> Forgotten:
        """Erase every stored revision of a record, and take it out of every stored package (D.J.7).

        Summaries of histories in which it was placed are deleted, with the spans that they were archived for; the next
        step of their runs compacts the messages again (C.X.11).

        Its texts are refused from now on for every scope of this memory source, until ``allow``.
        The next step of each run that held it compiles as ``redacted``.  Messages and working memory that quote it are
        not touched; the answer says how many there are.  An error or no answer leaves the rest to be finished in the
        background, or by asking again.

        Args:
            record_id: the record.
            scope: what the record lies within.
            source: the id of the memory source.
            message_id: an id of the request; without it every request to forget the record in this scope is the same.
            seconds: how long to wait.

        Raises:
            NotFoundError: there is no such record in the scope.
            DeadlineExceededError: no memory worker answers, or nobody runs the actors that redact its packages.
        """
        request = Forget(**self._head(source, message_id or _FORGET), record_id=record_id, scope=scope)
        return await self._ask(request, Forgotten, seconds)

    async def allow(
        self,
        *texts: str,
        digests: Sequence[str] = (),
        record_id: str | None = None,
        source: str = "memory",
        message_id: str | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> RecordsAllowed:
        """Let forgotten texts be remembered again (D.K.24); what was forgotten stays erased.

        The answer has the digests of those that were forgotten; a text that never was is left out.

        Args:
            texts: the texts, which do not leave this process.
            digests: their digests, where the texts are not at hand.
            record_id: a forgotten record, all of whose texts are meant.
            source: the id of the memory source.
            message_id: an id to ask again without a second effect.
            seconds: how long to wait.

        Raises:
            InvalidTypeError: nothing is named, or what is no digest.
            NotFoundError: the record was not forgotten, or none of the texts was.
            DeadlineExceededError: no memory worker answers.
        """
        named = (*digests, *(digest_text(clean_text(text)) for text in texts))
        request = AllowRecords(**self._head(source, message_id), digests=named, record_id=record_id)
        return await self._ask(request, RecordsAllowed, seconds)

    async def list(
        self, *, scope: Scope, limit: int = 1000, source: str = "memory", seconds: float = DEFAULT_SECONDS
    ) -> RecordsListed:
        """The newest revisions of the records of a scope, by id.

        Raises:
            DeadlineExceededError: no memory worker answers.
        """
        request = ListRecords(**self._head(source, None), scope=scope, limit=limit)
        return await self._ask(request, RecordsListed, seconds)

    def session(self, *, scope: Scope) -> MemorySession:
        """A session of this process's memory store: it forgets as ``forget`` does, packages included (D.J.4, D.K.1).

        It lives as long as the bus is open, and is not to be closed.

        Args:
            scope: whose records; at least one field is set.

        Raises:
            ScopeConflictError: the scope names nobody.
            InvalidRequestError: the records are kept by a worker of another process.
        """
        if self._local is None:
            raise InvalidRequestError("a worker of another process keeps the records: use remember, list and forget")
        return MemorySession(self._local.store, scope, forgetting=self._local.forgetting)

    def _head(self, source: str, message_id: str | None) -> _Head:
        return _Head(
            run="",
            tenant=self._host.tenant,
            reply_to="",
            source=source,
            message_id=message_id or uuid.uuid4().hex,
        )

    async def _ask(self, request: AdminRequest, answer: type[A], seconds: float) -> A:
        if self._local is not None and request.source == self._local.id:
            got: AnyMessage = await self._local.administer(request)
        else:
            to = subjects.source_admin(self._host.tenant, request.source)
            got = await ask_once(self._host, to, request, seconds)
        if not isinstance(got, answer):
            raise InvalidTypeError(f"the memory worker answered with {type(got).__name__}; same release?")
        return got

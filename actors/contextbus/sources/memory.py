"""The source of kind ``memory``: the records of a store, asked and administered through one worker."""

from __future__ import annotations

from pathlib import Path
from typing import Final, overload

import anyio

from contextbus.core.scope import narrow
from contextbus.runtime.journal import Journal
from contextbus.sources.citations import open_citations
from contextbus.sources.forgetting import Forgetting, Redact
from contextbus.sources.interface import FoundRecords, candidate, check_source, scope_read
from contextbus.sources.memory_index import SCHEMA_VERSION, open_index
from contextbus.sources.memory_session import MemorySession, forgetting_of
from contextbus.sources.memory_store import ANY_SCOPE, MemoryStore
from contextbus.sources.worker import AdminReply, AdminRequest
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.memory_records import (
    AllowRecords,
    Forget,
    ListRecords,
    RecordsAllowed,
    RecordsListed,
    Remember,
    Remembered,
)
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Provenance, Scope, SourceKind

DEFAULT_ID: Final = "memory"
KEEP_SECONDS: Final = 5.0
MAX_LISTED: Final = 10_000
_HOST: Final = ("host",)


class MemorySource:
    """Memory records as a source (D.K.1, D.K.11).

    Args:
        store: The store; its source id is this source's id.
        required: Whether a step fails without it.
        keep_seconds: How often the indexes follow other processes while nobody asks.
        session: A session of the store: the source reads and is administered at its scope.
        forgetting: Redacts the packages that hold forgotten records; by default that of the session, or one that
            refuses to forget what packages hold.

    Attributes:
        pinned_scope: The session's scope, or the store's; None if the store is pinned to nothing (D.K.5).
        fixed_scope: The session's scope: a request that leaves fields of it open, or sets others, changes nothing.
    """

    kind: SourceKind = "memory"

    def __init__(
        self,
        store: MemoryStore,
        *,
        required: bool = False,
        keep_seconds: float = KEEP_SECONDS,
        session: MemorySession | None = None,
        forgetting: Forgetting | None = None,
    ) -> None:
        self.id = store.source
        self.required = required
        self.store = store
        scope = store.scope if session is None else session.scope
        self.pinned_scope: Scope | None = None if scope == ANY_SCOPE else scope
        self.fixed_scope: Scope | None = None if session is None else scope
        options = (SCHEMA_VERSION, store.scope) if session is None else (SCHEMA_VERSION, store.scope, scope)
        self.options_digest = digest_bytes(encode_json(options))
        self._keep_seconds = keep_seconds
        if forgetting is None:
            forgetting = forgetting_of(store) if session is None else session.forgetting
        self.forgetting = forgetting
        check_source(self)

    async def query(self, query: Query) -> FoundRecords:
        """The best records within the query's scope narrowed to the store's, or at the session's (D.K.2, D.K.24).

        Raises:
            ScopeConflictError: the scope names nobody (B61), or lies outside the pinned one.
            DeadlineExceededError: the stream does not answer.
        """
        scope = scope_read(self, query.scope)
        hits, marks = await self.store.search_as_of(query.text, scope, limit=query.limit, seen=query.seen)
        found = [
            candidate(
                hit.record.record_id,
                hit.record.text,
                hit.score,
                hit.record.revision,
                provenance=Provenance(hit.record.origin, hit.record.source_kinds),
            )
            for hit in hits
        ]
        return FoundRecords(found, erasures=marks.erasures)

    async def administer(self, request: AdminRequest) -> AdminReply:
        """Remember, forget, list or allow.

        Raises:
            ContextBusError: as ``MemoryStore`` and ``Forgetting.forget`` do.
        """
        match request:
            case Remember():
                return await self._remember(request)
            case Forget():
                return await self.forgetting.forget(
                    self.store,
                    request.record_id,
                    scope=self._narrow(request.scope),
                    message_id=request.message_id,
                    run=request.run,
                )
            case ListRecords():
                limit = max(0, min(request.limit, MAX_LISTED))
                records, sequence = await self.store.list_records(self._narrow(request.scope), limit=limit)
                return RecordsListed(run=request.run, message_id=request.message_id, records=records, sequence=sequence)
            case AllowRecords():
                digests, sequence = await self.store.allow(
                    request.digests, record_id=request.record_id, message_id=request.message_id
                )
                return RecordsAllowed(
                    run=request.run, message_id=request.message_id, digests=digests, sequence=sequence
                )

    async def keep(self) -> None:
        """Follow the streams while nobody asks."""
        while True:
            await self.follow()
            await anyio.sleep(self._keep_seconds)

    async def follow(self) -> None:
        """Bring the indexes up to date, and redact what commits have shown of forgotten records since (D.J.4).

        What others forget leaves this index too, and a step that was under way while a record was forgotten is found.

        Raises:
            DeadlineExceededError: the streams do not answer.
        """
        await self.store.catch_up()
        if self.forgetting.redacts:
            await self.forgetting.settle()

    async def aclose(self) -> None:
        """Close the store's indexes."""
        await self.store.aclose()
        await self.forgetting.aclose()

    def _narrow(self, requested: Scope) -> Scope:
        """Requests that write stay within the pinned scope, and may say more exactly whose record it is (D.K.2)."""
        return requested if self.pinned_scope is None else narrow(self.pinned_scope, requested)

    async def _remember(self, request: Remember) -> Remembered:
        kinds = tuple(sorted({ref.kind for ref in request.source_refs})) or _HOST
        stored = await self.store.remember(
            request.text,
            scope=self._narrow(request.scope),
            message_id=request.message_id,
            now=request.now,
            record_id=request.record_id,
            origin=request.origin,
            source_kinds=kinds,
        )
        return Remembered(
            run=request.run,
            message_id=request.message_id,
            record_id=stored.record.record_id,
            revision=stored.record.revision,
            digest=stored.record.digest,
            sequence=stored.sequence,
        )


@overload
def memory_source(
    journal: Journal,
    tenant: str,
    *,
    data: Path | str | None = None,
    id: str = DEFAULT_ID,
    required: bool = False,
    scope: Scope = ANY_SCOPE,
    redact: Redact | None = None,
) -> MemorySource: ...


@overload
def memory_source(*, session: MemorySession, required: bool = False) -> MemorySource: ...


def memory_source(
    journal: Journal | None = None,
    tenant: str | None = None,
    *,
    data: Path | str | None = None,
    id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
    required: bool = False,
    scope: Scope = ANY_SCOPE,
    redact: Redact | None = None,
    session: MemorySession | None = None,
) -> MemorySource:
    """Make a memory source, from a session or from a store with a pinned scope (D.K.1).

    Args:
        journal: The streams of the tenant.
        tenant: The tenant.
        data: The folder for the index file; without it the index is in memory.
        id: The source's id; that of a session is its store's.
        required: Whether a step fails without it.
        scope: What the source is pinned to; requests narrow it (D.K.2).
        redact: Has redactions recorded in the logs of runs; without it a record that packages hold is not forgotten.
        session: A session, instead of all of these but ``required``: the source reads at its scope, and forgets as the
            session does.

    Raises:
        InvalidTypeError: there is neither a session nor a journal with its tenant, or both.
    """
    if session is not None:
        given = (journal, tenant, data, redact)
        if any(one is not None for one in given) or id != DEFAULT_ID or scope != ANY_SCOPE:
            raise InvalidTypeError(
                "a session has its store, scope and redact= already: give session= and required= alone"
            )
        return MemorySource(session.store, required=required, session=session)
    if journal is None or tenant is None:
        raise InvalidTypeError("a memory source needs a journal and a tenant, or session=")
    store = MemoryStore(journal, tenant, open_index(tenant, id, data), source=id, scope=scope)
    forgetting = Forgetting(journal, tenant, id, open_citations(tenant, id, data), redact)
    return MemorySource(store, required=required, forgetting=forgetting)

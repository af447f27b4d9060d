"""A memory session: one store at one scope (D.K.1)."""

from __future__ import annotations

import uuid
from pathlib import Path

from contextbus.core.scope import narrow, require_scope
from contextbus.runtime.clock import Clock, SystemClock
from contextbus.runtime.journal import Journal
from contextbus.sources.citations import open_citations
from contextbus.sources.forgetting import Forgetting, Redact
from contextbus.sources.memory_index import open_index
from contextbus.sources.memory_store import MemoryStore, Stored
from contextbus_protocol.memory_records import Forgotten, MemoryRecord
from contextbus_protocol.values import Scope


class MemorySession:
    """Remembers, lists and forgets the records of one scope.

    Args:
        store: The store.
        scope: Whose records; it lies within what the store is pinned to (D.K.2).
        clock: Dates what is remembered.
        forgetting: Redacts the packages that hold what is forgotten; without one, what packages hold is not forgotten.

    Raises:
        ScopeConflictError: the scope names nobody (B61), or lies outside the store's.
    """

    def __init__(
        self, store: MemoryStore, scope: Scope, *, clock: Clock | None = None, forgetting: Forgetting | None = None
    ) -> None:
        self.store = store
        self.scope = require_scope(narrow(store.scope, scope))
        self.forgetting = forgetting_of(store) if forgetting is None else forgetting
        self._clock: Clock = clock or SystemClock()

    async def remember(
        self,
        text: str,
        *,
        record_id: str | None = None,
        origin: str = "asserted",
        source_kinds: tuple[str, ...] = ("host",),
        message_id: str | None = None,
        now: int | None = None,
    ) -> Stored:
        """Store a new record of the scope, or the next revision of one (D.K.24).

        Args:
            text: The record's text.
            record_id: The record to change; left out for a new one.
            origin: Where it comes from, as a label (D.K.11).
            source_kinds: What kinds of sources it rests on, as labels.
            message_id: The same id has one effect, whenever it is repeated; left out, each call has its own.
            now: When, in milliseconds since the epoch; left out, the clock says.

        Raises:
            ContextBusError: as ``MemoryStore.remember``.
        """
        return await self.store.remember(
            text,
            scope=self.scope,
            message_id=message_id or uuid.uuid4().hex,
            now=int(self._clock.now() * 1000) if now is None else now,
            record_id=record_id,
            origin=origin,
            source_kinds=source_kinds,
        )

    async def list(self, *, limit: int = 1000) -> tuple[MemoryRecord, ...]:
        """The newest revisions of the scope's records, ordered by id.

        Raises:
            DeadlineExceededError: the stream does not answer.
        """
        records, _ = await self.store.list_records(self.scope, limit=limit)
        return records

    async def forget(self, record_id: str, *, message_id: str | None = None) -> Forgotten:
        """Erase every revision of a record of the scope, and take it out of every stored package (D.J.4, D.K.24).

        Raises:
            ContextBusError: as ``Forgetting.forget``.
        """
        return await self.forgetting.forget(
            self.store, record_id, scope=self.scope, message_id=message_id or uuid.uuid4().hex
        )

    async def aclose(self) -> None:
        """Close the indexes."""
        await self.store.aclose()
        await self.forgetting.aclose()


def memory_session(
    journal: Journal,
    tenant: str,
    *,
    scope: Scope,
    data: Path | str | None = None,
    id: str = "memory",  # noqa: A002  (the word that users write)
    redact: Redact | None = None,
) -> MemorySession:
    """Open a session on the memory store of a tenant.

    Args:
        journal: The streams of the tenant.
        tenant: The tenant.
        scope: Whose records.
        data: The folder for the index files; without it the indexes are in memory.
        id: The id of the source that the store belongs to.
        redact: Has redactions recorded in the logs of runs; without it a record that packages hold is not forgotten.

    Raises:
        ScopeConflictError: the scope names nobody (B61).
    """
    store = MemoryStore(journal, tenant, open_index(tenant, id, data), source=id)
    forgetting = Forgetting(journal, tenant, id, open_citations(tenant, id, data), redact)
    return MemorySession(store, scope, forgetting=forgetting)


def forgetting_of(store: MemoryStore) -> Forgetting:
    """What forgets for a store where nothing has packages redacted: it refuses what packages hold (D.J.4)."""
    index = open_citations(store.tenant, store.source, None)
    return Forgetting(store.journal, store.tenant, store.source, index)

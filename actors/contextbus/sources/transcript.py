"""The source of kind ``transcript``: what was said in the runs of a scope, read from the tenant's log.

A query of a run is never offered its own messages: they are in its request, or a summary and the archived span stand
for them (docs/decisions/0008).  Messages that
the host replaced are gone for good: the host took them back.  Tool calls, tool results, files and reasoning are not
searched; neither are texts above 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from contextbus.core.scope import narrow, require_scope
from contextbus.runtime.journal import Journal
from contextbus.sources.answers import MAX_ANSWER_BYTES
from contextbus.sources.database import MEMORY
from contextbus.sources.interface import Answer, candidate, check_source
from contextbus.sources.transcript_feed import TranscriptFeed
from contextbus.sources.transcript_index import SCHEMA_VERSION, TranscriptHit, TranscriptIndex
from contextbus_protocol import subjects
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import DeadlineExceededError
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, Scope, SourceKind

DEFAULT_ID: Final = "transcript"
ANY_SCOPE: Final = Scope()
KEEP_SECONDS: Final = 5.0
SWEEP_ROUNDS: Final = 12
DELETIONS: Final = 8
MAX_TEXTS_BYTES: Final = MAX_ANSWER_BYTES // 2


class TranscriptSource:
    """Past chat messages as a source (D.K.1, D.K.12, D.K.25).

    Args:
        journal: The streams of the tenant.
        tenant: The tenant.
        index: The index; it is closed with the source.
        id: The source's id; by default the kind's name.
        required: Whether a step fails without it.
        scope: What the source is pinned to; requests narrow it (D.K.2).
        keep_seconds: How often the index follows the log while nobody asks.

    Attributes:
        pinned_scope: What it is pinned to; None if to nothing (D.K.5).
    """

    kind: SourceKind = "transcript"

    def __init__(
        self,
        journal: Journal,
        tenant: str,
        index: TranscriptIndex,
        *,
        id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
        required: bool = False,
        scope: Scope = ANY_SCOPE,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self.id = id
        self.required = required
        self.scope = scope
        self.pinned_scope: Scope | None = None if scope == ANY_SCOPE else scope
        self.options_digest = digest_bytes(encode_json((SCHEMA_VERSION, scope)))
        self._index = index
        self._feed = TranscriptFeed(journal, tenant, index)
        self._keep_seconds = keep_seconds
        check_source(self)

    async def query(self, query: Query) -> Answer:
        """The best messages of other runs within the query's scope, narrowed to the source's (D.K.2, D.K.12).

        A log that is too long to be read in half of the time left is answered from as far as it was read; the next
        query goes on there.

        Raises:
            ScopeConflictError: the scope names nobody (B61), or lies outside the source's.
            DeadlineExceededError: the log does not answer.
            UnsupportedVersionError: a newer release wrote the log.
        """
        effective = require_scope(narrow(self.scope, query.scope))
        if query.only_records:
            return []  # a run is owed nothing of other runs
        seconds = query.seconds_left / 2 if query.seconds_left > 0 else 0.0

        def search() -> tuple[TranscriptHit, ...]:
            return self._index.search(query.text, effective, query.limit, run=query.run)

        for _ in range(DELETIONS):
            hits = await self._feed.ask(search, seconds)
            deleted = await self._feed.find_deleted(hit.run for hit in hits)
            if not deleted:
                return list(_offer(hits))
            await self._feed.drop_runs(deleted)
        raise DeadlineExceededError("runs are deleted faster than the transcript can be searched; try again")

    async def catch_up(self) -> None:
        """Take in all that the log has now.

        Raises:
            DeadlineExceededError: the log does not answer.
            UnsupportedVersionError: a newer release wrote the log.
        """
        await self._feed.catch_up()

    async def drop_deleted(self) -> None:
        """Erase from the index what was deleted from the log.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        await self._feed.drop_deleted()

    async def keep(self) -> None:
        """Follow the log while nobody asks, so that queries find the work done and deleted runs leave the disk."""
        while True:
            await self.drop_deleted()
            for _ in range(SWEEP_ROUNDS):
                await self.catch_up()
                await anyio.sleep(self._keep_seconds)

    async def aclose(self) -> None:
        """Close the index."""
        await anyio.to_thread.run_sync(self._index.close)


def transcript_source(
    journal: Journal,
    tenant: str,
    *,
    data: Path | str | None = None,
    id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
    required: bool = False,
    scope: Scope = ANY_SCOPE,
) -> TranscriptSource:
    """Make the transcript source of a tenant.

    Args:
        journal: The streams of the tenant.
        tenant: The tenant.
        data: The folder for the index file, which all transcript sources of a tenant share; without it the index is
            in memory.
        id: The source's id.
        required: Whether a step fails without it.
        scope: What the source is pinned to; requests narrow it (D.K.2).
    """
    path: Path | str = MEMORY
    if data is not None:
        path = Path(data) / f"transcript-{subjects.encode_name(tenant)}.sqlite"
    return TranscriptSource(journal, tenant, TranscriptIndex(path), id=id, required=required, scope=scope)


def _offer(hits: Iterable[TranscriptHit]) -> Iterator[Candidate]:
    """The best of them whose texts an answer may hold together."""
    room = MAX_TEXTS_BYTES
    for hit in hits:
        text = f"{hit.role}: {hit.text}"
        room -= len(text.encode())
        if room < 0:
            return
        yield candidate(hit.record_id, text, hit.score)

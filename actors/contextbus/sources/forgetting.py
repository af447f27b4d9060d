"""Forgetting beyond the store: packages that hold a forgotten record are redacted, and their bytes erased (D.J).

So are the summaries of histories in which it was placed, with the spans that they were archived for (C.X.11).

All of it is decided by what log and package store have, so that whoever reads on finishes what another began.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from contextbus.runtime.clock import Clock, SystemClock
from contextbus.runtime.journal import Journal, Refused
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import PackageStore
from contextbus.sources import memory_log
from contextbus.sources.citations import CitationIndex, Due
from contextbus.sources.citations_feed import CitationFeed
from contextbus.sources.cited_summaries import DueSummary
from contextbus.sources.memory_store import MemoryStore
from contextbus.sources.quotations import Quotations, count_quotations
from contextbus.sources.redaction import redact_output
from contextbus.sources.uncommitted import read_uncommitted
from contextbus_protocol import subjects
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commands import Recorded, RedactedPackage, RedactedSummary, RedactPackages
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import (
    ConflictError,
    ContextBusError,
    DeadlineExceededError,
    InvalidRequestError,
    LimitError,
)
from contextbus_protocol.memory_records import DeletedSummary, Forgotten, RedactedRun
from contextbus_protocol.values import Scope

T = TypeVar("T")

Redact = Callable[[RedactPackages], Awaitable[Recorded]]
"""Asks selection to record redactions, again until it is answered; raises what it refuses with."""

AT_ONCE: Final = 256
"""So many packages and summaries of a run are redacted with one command."""
REDACT_SECONDS: Final = 10.0

_log = get_logger(__name__)


class Redactions(msgspec.Struct, frozen=True):
    """What a forget took: steps of runs and summaries, how many blobs were erased, and who quotes the record still."""

    runs: tuple[RedactedRun, ...] = ()
    summaries: tuple[DeletedSummary, ...] = ()
    blobs: int = 0
    quotations: Quotations | None = None


class ErasedBlobs:
    """How many blobs one worker erased for a record while it forgets it, whichever of its tasks settled it.

    What another worker erases of the record meanwhile is not counted.
    """

    __slots__ = ("count", "record_id")

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        self.count = 0


class Forgetting:
    """Redacts the packages that hold forgotten records of one memory store.

    Args:
        journal: The streams.
        tenant: The tenant.
        source: The id of the memory source.
        index: The citations of the store.
        redact: Has redactions recorded in the log of a run; without it a record that packages hold is not forgotten.
        clock: The clock that commands carry.

    Attributes:
        redacts: Whether it can have redactions recorded.
    """

    def __init__(
        self,
        journal: Journal,
        tenant: str,
        source: str,
        index: CitationIndex,
        redact: Redact | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._journal = journal
        self._tenant = tenant
        self._source = source
        self._index = index
        self.redacts = redact is not None
        self._redact = redact
        self._clock: Clock = clock or SystemClock()
        self._packages = PackageStore(journal, tenant)
        self._feed = CitationFeed(journal, tenant, source, index, self._packages)
        self._lock: anyio.Lock | None = None
        self._counting: list[ErasedBlobs] = []

    @contextmanager
    def counting(self, record_id: str) -> Generator[ErasedBlobs]:
        """Count what is erased here for a record, from before its tombstone: ``keep`` may settle it first."""
        counted = ErasedBlobs(record_id)
        self._counting.append(counted)
        try:
            yield counted
        finally:
            self._counting.remove(counted)

    async def forget(
        self, store: MemoryStore, record_id: str, *, scope: Scope, message_id: str, run: str = ""
    ) -> Forgotten:
        """Erase a record from its store, then every package and summary that may hold it (D.J.4, D.J.7, C.X.11).

        It is answered when all is done.

        Args:
            store: The store, of this tenant and source.
            record_id: The record.
            scope: What the record lies within.
            message_id: The same id has one effect, whenever it is repeated.
            run: The run of the request, which the answer carries.

        Raises:
            NotFoundError: there is no such record within the scope.
            InvalidRequestError: packages of runs hold the record, and nothing here has them redacted.  It has left the
                store; a worker of this source that redacts finishes the rest.
            ContextBusError: as ``MemoryStore.forget`` and ``settle``.
        """
        with self.counting(record_id) as counted:
            erased = await store.forget(record_id, scope=scope, message_id=message_id)
            await self.settle(record_id)
        done = await self.report(record_id, erased.texts, counted.count)
        return Forgotten(
            run=run,
            message_id=message_id,
            record_id=record_id,
            revisions=erased.revisions,
            sequence=erased.sequence,
            redacted=done.runs,
            summaries=done.summaries,
            blobs=done.blobs,
            messages=None if done.quotations is None else done.quotations.messages,
            items=None if done.quotations is None else done.quotations.items,
        )

    async def settle(self, record_id: str | None = None) -> None:
        """Redact and erase whatever holds a record that is forgotten by now.

        A commit that cites a tombstone which its step had not seen is redacted here too (D.J.4).

        Args:
            record_id: A forgotten record, of which nothing may be left in the end.

        Raises:
            ContextBusError: the streams do not answer, or the record could not be taken out of a run; all others are
                done, and the rest is done when it is settled again.
        """
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            await self._feed.catch_up()
            failed = await self._redact_due()
            await self._erase_spent()
            if await self._read_uncommitted():
                # A step whose blob was looked at may have committed meanwhile.
                await self._feed.catch_up()
                failed |= await self._redact_due()
                await self._erase_spent()
                await self._erase_condemned()
            if failed and record_id is not None:
                for one in await self._list_due():
                    if one.record_id == record_id and one.run in failed:
                        raise failed[one.run]

    async def report(self, record_id: str, texts: Sequence[str], erased: int) -> Redactions:
        """What became of a forgotten record: what it was taken out of, and who quotes it still (D.J.7).

        Args:
            record_id: The record.
            texts: The texts of its revisions; none if they were gone already, and then nothing can be counted.
            erased: How many blobs were erased.

        Raises:
            DeadlineExceededError: log or store do not answer.
        """
        steps = await _in_thread(partial(self._index.redacted, record_id))
        runs = tuple(
            RedactedRun(run, tuple(step for _, step in found))
            for run, found in groupby(steps, key=lambda pair: pair[0])
        )
        deleted = await _in_thread(partial(self._index.deleted_summaries, record_id))
        summaries = tuple(DeletedSummary(run, summary, archive) for run, summary, archive in deleted)
        quotations: Quotations | None = None
        if texts:
            named = sorted({*(found.run for found in runs), *(found.run for found in summaries)})
            quotations = await count_quotations(self._journal, self._packages, self._tenant, named, texts)
        return Redactions(runs, summaries, erased, quotations)

    async def aclose(self) -> None:
        """Close the index."""
        await _in_thread(self._index.close)

    # -- packages and summaries that commits name

    async def _list_due(self) -> list[Due | DueSummary]:
        """The packages and summaries that hold forgotten records, by run and record."""
        packages, summaries = await _in_thread(self._index.due), await _in_thread(self._index.due_summaries)
        due: tuple[Due | DueSummary, ...] = (*packages, *summaries)
        return sorted(due, key=lambda one: (one.run, one.record_id))

    async def _redact_due(self) -> dict[str, ContextBusError]:
        """Redact all that is due, run by run; gives the runs that could not be, each with the reason."""
        failed: dict[str, ContextBusError] = {}
        asked: set[str] = set()
        while True:
            due = [one for one in await self._list_due() if one.run not in failed]
            if not due:
                return failed
            seen = 0
            for run, found in groupby(due, key=lambda one: one.run):
                # One record at a time: the next one is taken out of what takes the place of these packages.
                _, first = next(groupby(found, key=lambda one: one.record_id))
                try:
                    seen = max(seen, await self._redact_run(run, tuple(first)[:AT_ONCE], asked))
                except DeadlineExceededError as exc:
                    # Nobody is there: each further run would wait as long for nothing.
                    _log.warning("redaction_unanswered", source=self._source, run=run)
                    failed |= {one.run: exc for one in due}
                    break
                except ContextBusError as exc:
                    _log.warning("redaction_failed", source=self._source, run=run, code=exc.code)
                    failed[run] = exc
            await self._feed.catch_up(seen)

    async def _redact_run(self, run: str, due: tuple[Due | DueSummary, ...], asked: set[str]) -> int:
        """Redact what one run has of one record; gives the sequence of its commit, 0 if the run is gone."""
        if await memory_log.insist(partial(self._journal.last, subjects.log(self._tenant, run, "run"))) is None:
            await _in_thread(partial(self._index.drop_run, run))
            return 0
        if self._redact is None:
            raise InvalidRequestError(
                f"packages of run {run!r} hold the record, and nothing here takes it out of them: forget it through "
                "memories of an open bus or a memory worker, or give the source or session redact="
            )
        # A summary of the same bytes may come again; a package that was redacted is followed by another.
        named = [
            (d.record_id, d.erasure, d.package)
            if isinstance(d, Due)
            else (d.record_id, d.erasure, d.summary, d.sequence)
            for d in due
        ]
        key = ("redact-packages", self._tenant, self._source, named)
        command = digest_bytes(encode_json(key)).removeprefix("sha256:")
        if command in asked:
            raise ConflictError(f"run {run!r} says that its packages are redacted, and its log does not; ask again")
        asked.add(command)
        packages: list[RedactedPackage] = []
        for one in due:
            if isinstance(one, DueSummary):
                continue
            found = await memory_log.insist(partial(self._packages.get, run, (one.package,)))
            replacement = redact_output(
                found[0][1] if found else None,
                one.package,
                source=self._source,
                record_id=one.record_id,
                placed=one.placed,
            )
            reference = digest_bytes(replacement)
            await self._insist(partial(self._packages.put, run, ((reference, replacement),), command))
            packages.append(RedactedPackage(one.step, one.package, reference))
        recorded = await self._redact(
            RedactPackages(
                run=run,
                tenant=self._tenant,
                command=command,
                attempt=1,
                reply_to="",
                seconds_left=REDACT_SECONDS,
                now=int(self._clock.now() * 1000),
                seen=max(one.sequence for one in due),
                source=self._source,
                record_id=due[0].record_id,
                erasure=due[0].erasure,
                packages=tuple(packages),
                summaries=tuple(RedactedSummary(d.summary, d.archive) for d in due if isinstance(d, DueSummary)),
            )
        )
        return recorded.sequence

    async def _erase_spent(self) -> None:
        """Erase the blobs that redactions replaced or withdrew."""
        for run, reference, record in await _in_thread(self._index.spent):
            await self._erase(run, reference, (record,))
            await _in_thread(partial(self._index.drop_spent, run, reference))

    async def _erase(self, run: str, reference: str, records: Container[str]) -> None:
        """Erase a blob that holds forgotten records."""
        if await self._insist(partial(self._packages.erase, run, reference)):
            for counted in self._counting:
                counted.count += counted.record_id in records

    # -- blobs that no commit names

    async def _read_uncommitted(self) -> bool:
        """Look into the blobs that no commit names and that may hold a forgotten record; gives whether one does."""
        unread = await _in_thread(self._index.unread)
        if unread:
            found = await read_uncommitted(self._journal, self._packages, self._tenant, unread)
            await _in_thread(partial(self._index.note_read, found))
        return bool(await _in_thread(self._index.condemned))

    async def _erase_condemned(self) -> None:
        for blob, records in await _in_thread(self._index.condemned):
            await self._erase(blob.run, blob.reference, records)
            await _in_thread(partial(self._index.drop_uncommitted, (blob.sequence,)))

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Ask the package store until it answers.

        Raises:
            LimitError: it refuses.
            DeadlineExceededError: it does not answer.
        """
        answer = await memory_log.insist(ask)
        if isinstance(answer, Refused):
            raise LimitError(f"the package store refuses with code {answer.code}: {answer.description}")
        return answer


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)

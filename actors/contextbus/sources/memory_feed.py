"""The feed of a memory index: what the stream and the erasures have, taken in before a question is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from contextbus.runtime.journal import Journal, Page
from contextbus.runtime.logs import get_logger
from contextbus.runtime.streams import find_stream
from contextbus.sources import memory_log
from contextbus.sources.memory_erasures import ErasureLog
from contextbus.sources.memory_index import Marks, MemoryIndex
from contextbus_protocol import subjects
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import DeadlineExceededError
from contextbus_protocol.events import RecordErased
from contextbus_protocol.memory_records import MemoryRecord

T = TypeVar("T")

STALE_SECONDS: Final = 0.02
STALE_ATTEMPTS: Final = 50
REBUILDS: Final = 3

_log = get_logger(__name__)
_records: msgspec.json.Decoder[MemoryRecord] = msgspec.json.Decoder(MemoryRecord)


def decode_record(data: bytes) -> MemoryRecord | None:
    """Read a stored revision; None if it is damaged, or not the text that its digest names."""
    try:
        record = _records.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.digest == digest_text(record.text) else None


class MemoryFeed:
    """Keeps one index as new as the stream."""

    def __init__(self, journal: Journal, tenant: str, source: str, index: MemoryIndex, erasures: ErasureLog) -> None:
        self._journal = journal
        self._tenant = tenant
        self._source = source
        self._pattern = subjects.memories(tenant, source)
        self._index = index
        self._erasures = erasures
        self._lock: anyio.Lock | None = None
        self._recognised = False
        # How far the index is at least: spares a look into it while nothing is new.
        self._known = Marks()

    async def ask(self, question: Callable[[], T], seen: int = 0) -> tuple[T, Marks]:
        """Ask the index once it has caught up; gives the answer and the sequences that it is as of.

        Raises:
            DeadlineExceededError: the stream does not answer, or the index cannot keep up.
        """
        for _ in range(REBUILDS):
            before = await self.catch_up(seen)
            answer, after = await anyio.to_thread.run_sync(
                lambda: (question(), self._index.marks()), abandon_on_cancel=True
            )
            # A damaged file is made anew by whoever stumbles on it: what it answered then was from an empty one.
            if after.records >= before.records and after.erasures >= before.erasures:
                return answer, before
            self._known = after
        raise DeadlineExceededError("the memory index is damaged again and again; look at the disk of its folder")

    async def catch_up(self, seen: int = 0) -> Marks:
        """Take in all that the stream has now; gives how far the index is.

        Raises:
            DeadlineExceededError: the stream does not answer.
        """
        async with self._locked():
            if not self._recognised:
                await self._recognise()
                self._recognised = True
            await self._follow_erasures()
            return await self._follow_records(seen)

    async def follow_erasures(self) -> None:
        """Take in the tombstones that there are now.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        async with self._locked():
            await self._follow_erasures()

    def _locked(self) -> anyio.Lock:
        if self._lock is None:
            self._lock = anyio.Lock()
        return self._lock

    async def _marks(self) -> Marks:
        self._known = await anyio.to_thread.run_sync(self._index.marks)
        return self._known

    async def _recognise(self) -> None:
        """Empty an index that was made of another stream: the data folder of the server may have been replaced."""
        marks = await self._marks()
        stream, log = find_stream(self._pattern), find_stream(self._erasures.subject)
        known = await memory_log.insist(lambda: self._journal.last_sequence(stream)) >= marks.records
        known = known and await memory_log.insist(lambda: self._journal.last_sequence(log)) >= marks.erasures
        anchor = await anyio.to_thread.run_sync(self._index.anchor)
        if known and anchor is not None:
            subject = subjects.memory(self._tenant, self._source, anchor.record_id)
            page = await memory_log.insist(lambda: self._journal.read(subject, after=anchor.sequence - 1, limit=1))
            record = decode_record(page.records[0].data) if page.records else None
            known = (
                record is not None and record.digest == anchor.digest and page.records[0].sequence == anchor.sequence
            )
        if not known:
            await anyio.to_thread.run_sync(self._index.reset)

    async def _follow_erasures(self) -> None:
        target = await self._erasures.last_sequence()
        if self._known.erasures >= target:
            return
        for _ in range(STALE_ATTEMPTS):
            mark = (await self._marks()).erasures
            if mark >= target:
                return
            page = await memory_log.insist(partial(self._journal.read, self._erasures.subject, after=mark))
            if not page.records:
                await anyio.sleep(STALE_SECONDS)
                continue
            events = [event for record in page.records for event in self._erasures.events_of(record)]
            for event in events:
                if isinstance(event, RecordErased):
                    # Whoever committed the tombstone may have died before all was erased.
                    await memory_log.erase_all(
                        self._journal, subjects.memory(self._tenant, self._source, event.record_id)
                    )
            apply = partial(self._index.apply_erasures, events, after=mark, mark=page.records[-1].sequence)
            await anyio.to_thread.run_sync(apply)
        raise DeadlineExceededError("the erasures cannot be read to their end; try again")

    async def _follow_records(self, seen: int) -> Marks:
        stale = 0
        marks = self._known
        while True:
            last = await memory_log.insist(partial(self._journal.last, self._pattern))
            target = 0 if last is None else last.sequence
            if marks.records >= target and (marks.records >= seen or stale >= STALE_ATTEMPTS):
                # A sequence that the client has seen and nobody has any more was erased.
                return marks
            marks = await self._marks()
            page = await memory_log.insist(partial(self._journal.read, self._pattern, after=marks.records))
            if page.records:
                await self._apply(page, marks.records)
                marks = await self._marks()
                continue
            stale += 1
            if stale > STALE_ATTEMPTS:
                raise DeadlineExceededError("the memory stream cannot be read to its end; try again")
            await anyio.sleep(STALE_SECONDS)

    async def _apply(self, page: Page, after: int) -> None:
        revisions: list[tuple[int, MemoryRecord]] = []
        for stored in page.records:
            record = decode_record(stored.data)
            if record is None:
                _log.error("memory_record_damaged", source=self._source, sequence=stored.sequence)
            else:
                revisions.append((stored.sequence, record))
        mark = page.records[-1].sequence
        await anyio.to_thread.run_sync(lambda: self._index.apply_records(revisions, after=after, mark=mark))

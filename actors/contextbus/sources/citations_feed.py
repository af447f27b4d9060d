"""The feed of a citation index: what the log says of packages and summaries, and which blobs it does not name yet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from contextbus.runtime.journal import Heading, Journal, Record
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import PackageStore, stored_at
from contextbus.runtime.streams import find_stream
from contextbus.sources import memory_log
from contextbus.sources.citations import CitationIndex, CitationMarks, Cited, LoggedRun
from contextbus.sources.cited_summaries import cited_summary
from contextbus.sources.memory_erasures import ErasureLog
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import ContextBusError, DeadlineExceededError, InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    CompactionCompleted,
    EntryFact,
    MessagesAppended,
    PackageRedacted,
    RecordErased,
    StepCompiled,
    SummaryRedacted,
    UnknownEvent,
)

HEADINGS: Final = 512
AT_ONCE: Final = 8
STALE_SECONDS: Final = 0.02
STALE_ATTEMPTS: Final = 50

_REFERENCE = re.compile(r"sha256:[0-9a-f]{64}")

_log = get_logger(__name__)


class _Commit(NamedTuple):
    """A commit of a run, read."""

    run: str
    steps: tuple[StepCompiled, ...]
    redacted: tuple[PackageRedacted, ...]
    blobs: tuple[str, ...]
    compacted: tuple[CompactionCompleted, ...]
    deleted: tuple[SummaryRedacted, ...]


class CitationFeed:
    """Keeps one citation index as new as the log."""

    def __init__(
        self, journal: Journal, tenant: str, source: str, index: CitationIndex, packages: PackageStore
    ) -> None:
        self._journal = journal
        self._source = source
        self._index = index
        self._packages = packages
        self._erasures = ErasureLog(journal, tenant, source)
        self._runs = subjects.run_logs(tenant)
        self._blobs = subjects.blobs_of_tenant(tenant)
        self._recognised = False

    async def catch_up(self, seen: int = 0) -> CitationMarks:
        """Take in all that log and package store have now; gives how far the index is.

        A blob is taken in before the commit that names it, so that a commit always finds the blobs it names.

        Args:
            seen: A sequence of the log that there is, whatever a look at its end may say.

        Raises:
            DeadlineExceededError: log or store do not answer.
            UnsupportedVersionError: a newer release wrote a commit: its citations must not be overlooked.
        """
        if not self._recognised:
            await self._recognise()
            self._recognised = True
        await self._follow_erasures()
        target = max(seen, await self._last(self._runs))
        await self._follow_blobs()
        await self._follow_runs(target)
        return await self._marks()

    async def _marks(self) -> CitationMarks:
        return await anyio.to_thread.run_sync(self._index.marks)

    async def _last(self, pattern: str) -> int:
        last = await memory_log.insist(partial(self._journal.last, pattern))
        return 0 if last is None else last.sequence

    async def _recognise(self) -> None:
        """Empty an index that was made of another log: the data folder of the server may have been replaced."""
        marks = await self._marks()
        known = True
        for subject, mark in ((self._runs, max(marks.log, marks.erasures)), (self._blobs, marks.blobs)):
            stream = find_stream(subject)
            known = known and await memory_log.insist(partial(self._journal.last_sequence, stream)) >= mark
        if known and marks.log:
            read = partial(self._journal.read, self._runs, after=marks.log - 1, limit=1)
            page = await memory_log.insist(read)
            # A run that was deleted took its commits with it, which says nothing of the others.
            first = page.records[0] if page.records else None
            known = first is None or first.sequence != marks.log or digest_bytes(first.data) == marks.digest
        if not known:
            await anyio.to_thread.run_sync(self._index.reset)

    async def _follow_erasures(self) -> None:
        target = await self._erasures.last_sequence()
        for _ in range(STALE_ATTEMPTS):
            mark = (await self._marks()).erasures
            if mark >= target:
                return
            page = await memory_log.insist(partial(self._journal.read, self._erasures.subject, after=mark))
            if not page.records:
                await anyio.sleep(STALE_SECONDS)
                continue
            events = [
                (event, record.sequence, stored_at(record, 0.0))
                for record in page.records
                for event in self._erasures.events_of(record)
                if isinstance(event, RecordErased)
            ]
            apply = partial(self._index.apply_erasures, events, after=mark, mark=page.records[-1].sequence)
            await anyio.to_thread.run_sync(apply)
        raise DeadlineExceededError("the erasures cannot be read to their end; try again")

    async def _follow_blobs(self) -> None:
        mark = (await self._marks()).blobs
        if await memory_log.insist(partial(self._journal.last_sequence, find_stream(self._blobs))) <= mark:
            return
        # What the stream counted last may be erased; what is there can be reached.
        target = await self._last(self._blobs)
        stale = 0
        while mark < target:
            page = await memory_log.insist(partial(self._journal.headings, self._blobs, after=mark, limit=HEADINGS))
            if not page.headings:
                stale += 1
                if stale > STALE_ATTEMPTS:
                    raise DeadlineExceededError("the package store cannot be read to its end; try again")
                await anyio.sleep(STALE_SECONDS)
                target = await self._last(self._blobs)
                continue
            taken: list[tuple[str, str, Heading]] = []
            for heading in page.headings:
                token, _, reference = heading.subject.removeprefix(self._blobs.removesuffix(">")).partition(".")
                try:
                    taken.append((subjects.decode_name(token), f"sha256:{reference}", heading))
                except InvalidTypeError:
                    _log.warning("blob_subject_foreign", source=self._source, sequence=heading.sequence)
            after, mark = mark, page.headings[-1].sequence
            apply = partial(self._index.apply_headings, taken, after=after, mark=mark)
            await anyio.to_thread.run_sync(apply)

    async def _follow_runs(self, target: int) -> None:
        stale = 0
        while True:
            mark = (await self._marks()).log
            if mark >= target:
                return
            page = await memory_log.insist(partial(self._journal.read, self._runs, after=mark))
            # Commits behind the target may name blobs that were stored after the look at the blobs.
            records = tuple(record for record in page.records if record.sequence <= target)
            if records:
                await self._apply(records, mark)
                continue
            stale += 1
            if stale > STALE_ATTEMPTS:
                raise DeadlineExceededError("the log cannot be read to its end; try again")
            await anyio.sleep(STALE_SECONDS)
            # A run that is deleted meanwhile takes the target with it.
            target = min(target, await self._last(self._runs))

    async def _apply(self, records: tuple[Record, ...], after: int) -> None:
        waiting = await anyio.to_thread.run_sync(self._index.runs_with_uncommitted)
        commits: list[LoggedRun] = []
        for record in records:
            if len(commits) % AT_ONCE == 0:
                # It may share its event loop with the actors: no step waits for a whole page.
                await anyio.lowlevel.checkpoint()
            commits.append(await self._read(record, waiting))
        apply = partial(self._index.apply_commits, commits, after=after, mark=records[-1].sequence)
        await anyio.to_thread.run_sync(apply)

    async def _read(self, record: Record, waiting: dict[str, bool]) -> LoggedRun:
        digest = digest_bytes(record.data)
        commit = self._decode(record)
        if commit is None:
            return LoggedRun(record.sequence, "", digest, frozenset())
        names: set[str] = set(commit.blobs if commit.run in waiting else ())
        if waiting.get(commit.run):
            for reference in commit.blobs:
                chunks = partial(self._packages.chunks_of, commit.run, reference)
                names.update(await memory_log.insist(chunks))
        cited = [
            Cited(step.step, step.package, records)
            for step in commit.steps
            if (records := self._citations(await self._entries(commit.run, step)))
        ]
        summaries = (cited_summary(event, self._source) for event in commit.compacted)
        return LoggedRun(
            record.sequence,
            commit.run,
            digest,
            frozenset(names),
            tuple(cited),
            commit.redacted,
            tuple(summary for summary in summaries if summary.records),
            commit.deleted,
        )

    def _decode(self, record: Record) -> _Commit | None:
        try:
            commit = codec.decode_commit(record.data)
        except InvalidTypeError:
            _log.error("commit_damaged", source=self._source, sequence=record.sequence)
            return None
        steps = tuple(event for event in commit.events if isinstance(event, StepCompiled))
        redacted = tuple(event for event in commit.events if isinstance(event, PackageRedacted))
        named = tuple(name for event in commit.events for name in _blobs_of(event))
        compacted = tuple(event for event in commit.events if isinstance(event, CompactionCompleted))
        deleted = tuple(event for event in commit.events if isinstance(event, SummaryRedacted))
        return _Commit(commit.run, steps, redacted, named, compacted, deleted)

    async def _entries(self, run: str, step: StepCompiled) -> tuple[EntryFact, ...]:
        """All entries of a step; those of the commit alone where the blob that holds all is gone."""
        if step.facts is None:
            return step.entries
        found = await memory_log.insist(partial(self._packages.get, run, (step.facts,)))
        try:
            return blobs.decode_facts(found[0][1]).entries if found else step.entries
        except ContextBusError:
            _log.error("facts_damaged", source=self._source, step=step.step)
            return step.entries

    def _citations(self, entries: tuple[EntryFact, ...]) -> tuple[tuple[str, bool], ...]:
        cited: dict[str, bool] = {}
        for entry in entries:
            # An item of the working memory may be named like a source.
            if entry.source == self._source and entry.kind != "working-memory":
                cited[entry.record_id] = cited.get(entry.record_id, False) or entry.selected
        return tuple(cited.items())


def _blobs_of(event: AnyEvent | UnknownEvent) -> Iterable[str]:
    """The blobs that an event names; of one whose fields are not known here, whatever may be a reference."""
    match event:
        case MessagesAppended():
            return (event.inputs,)
        case StepCompiled():
            return (event.package,) if event.facts is None else (event.package, event.facts)
        case CompactionCompleted():
            return (event.replaced_by,) if event.archive is None else (event.replaced_by, event.archive)
        case _:
            data = event.data if isinstance(event, UnknownEvent) else codec.encode_json(event).decode()
            return _REFERENCE.findall(data)

"""The feed of a transcript's index: the commits of all runs, taken in page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from contextbus.runtime.journal import Journal, Record
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import PackageStore
from contextbus.runtime.streams import find_stream
from contextbus.sources.memory_log import insist
from contextbus.sources.transcript_index import (
    BlocksPlaced,
    Change,
    HistoryKept,
    MessageSaid,
    RunBegun,
    RunCommit,
    TranscriptIndex,
)
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.digests import clean_text, digest_bytes
from contextbus_protocol.errors import DeadlineExceededError, InvalidTypeError
from contextbus_protocol.events import (
    Commit,
    CompactionCompleted,
    HistoryReplaced,
    MessagesAppended,
    RunStarted,
    StepCompiled,
)

T = TypeVar("T")

PAGE_COMMITS: Final = 64
STALE_SECONDS: Final = 0.02
STALE_ATTEMPTS: Final = 50
REBUILDS: Final = 3
MAX_TEXT_BYTES: Final = 64 * 1024
"""The longest message that is indexed: a longer one fits no share of a budget, and cut it would be another message."""
_AT_ONCE: Final = 8

_log = get_logger(__name__)


class TranscriptFeed:
    """Keeps one index as new as the log of a tenant."""

    def __init__(self, journal: Journal, tenant: str, index: TranscriptIndex) -> None:
        self._journal = journal
        self._tenant = tenant
        self._pattern = subjects.run_logs(tenant)
        self._store = PackageStore(journal, tenant)
        self._index = index
        self._lock: anyio.Lock | None = None
        self._recognised = False
        # How far the index is at least: spares a look into it while nothing is new.
        self._known = 0

    async def ask(self, question: Callable[[], T], seconds: float) -> T:
        """Ask the index once it has caught up, or after some seconds as it is then: the log may be long.

        Raises:
            DeadlineExceededError: the log does not answer, or the index cannot keep up.
        """
        for _ in range(REBUILDS):
            with anyio.move_on_after(seconds):
                await self.catch_up()
            before = self._known
            answer, mark = await anyio.to_thread.run_sync(
                lambda: (question(), self._index.mark()), abandon_on_cancel=True
            )
            # A damaged file is made anew by whoever stumbles on it: what it answered then was from an empty one.
            if mark.sequence >= before:
                return answer
            self._known = mark.sequence
        raise DeadlineExceededError("the transcript's index is damaged again and again; look at the disk of its folder")

    async def catch_up(self) -> None:
        """Take in all that the log has now.

        Raises:
            DeadlineExceededError: the log does not answer.
            UnsupportedVersionError: a newer release wrote a commit; nothing behind it is taken in before an upgrade.
        """
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            if not self._recognised:
                await self._recognise()
                self._recognised = True
            await self._follow()

    async def find_deleted(self, runs: Iterable[str]) -> tuple[str, ...]:
        """Which of some runs have no log any more.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        deleted: list[str] = []
        for some in _groups(tuple(dict.fromkeys(runs))):
            found = await asyncio.gather(*(self._read_last(subjects.log(self._tenant, run, "run")) for run in some))
            deleted += [run for run, last in zip(some, found, strict=True) if last is None]
        return tuple(deleted)

    async def drop_deleted(self) -> None:
        """Erase from the index what was deleted from the log, and what the log's retention let go.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        known = await anyio.to_thread.run_sync(self._index.runs)
        there = await insist(partial(self._journal.subjects, self._pattern))
        gone = {subjects.log(self._tenant, run, "run"): run for run in known}
        for subject in there:
            gone.pop(subject, None)
        if gone:
            # Looked at one by one: a run may have begun since the list was made.
            await self.drop_runs(await self.find_deleted(gone.values()))
        oldest = await insist(partial(self._journal.read, self._pattern, after=0, limit=1))
        if oldest.records:
            await anyio.to_thread.run_sync(self._index.drop_before, oldest.records[0].sequence)

    async def drop_runs(self, runs: Sequence[str]) -> None:
        """Erase runs from the index."""
        if runs:
            await anyio.to_thread.run_sync(self._index.drop_runs, runs)

    async def _read_last(self, subject: str) -> Record | None:
        return await insist(partial(self._journal.last, subject))

    async def _recognise(self) -> None:
        """Empty an index that was made of another log: the data folder of the server may have been replaced."""
        mark = await anyio.to_thread.run_sync(self._index.mark)
        if not mark.sequence:
            return
        known = await insist(partial(self._journal.last_sequence, find_stream(self._pattern))) >= mark.sequence
        if known:
            subject = subjects.log(self._tenant, mark.run, "run")
            page = await insist(partial(self._journal.read, subject, after=mark.sequence - 1, limit=1))
            record = page.records[0] if page.records else None
            # A run that was deleted is no other log; then the commit is missing, and the index is cheap to make anew.
            known = record is not None and record.sequence == mark.sequence and digest_bytes(record.data) == mark.digest
        if not known:
            await anyio.to_thread.run_sync(self._index.reset)

    async def _follow(self) -> None:
        stale = 0
        while True:
            last = await self._read_last(self._pattern)
            if last is None or self._known >= last.sequence:
                return
            self._known = (await anyio.to_thread.run_sync(self._index.mark)).sequence
            while self._known < last.sequence:
                page = await insist(partial(self._journal.read, self._pattern, after=self._known, limit=PAGE_COMMITS))
                if not page.records:
                    break
                await self._take(page.records, self._known)
                self._known = (await anyio.to_thread.run_sync(self._index.mark)).sequence
            else:
                return
            # What was last is gone again, or a replica lags behind.
            stale += 1
            if stale > STALE_ATTEMPTS:
                raise DeadlineExceededError("the event log cannot be read to its end; try again")
            await anyio.sleep(STALE_SECONDS)

    async def _take(self, records: Sequence[Record], after: int) -> None:
        commits = await anyio.to_thread.run_sync(_decode, records)
        wanted: dict[str, list[str]] = {}
        for commit in commits:
            if commit is None:
                continue
            for event in commit.events:
                if isinstance(event, MessagesAppended) and event.messages:
                    wanted.setdefault(commit.run, []).append(event.inputs)
        texts: dict[tuple[str, str], bytes] = {}
        for some in _groups(tuple(wanted.items())):
            got = await asyncio.gather(*(insist(partial(self._store.get, run, digests)) for run, digests in some))
            for (run, _), found in zip(some, got, strict=True):
                texts.update({(run, digest): data for digest, data in found})

        def apply() -> None:
            made = [_as_changes(r, c, texts) for r, c in zip(records, commits, strict=True)]
            self._index.apply(made, after=after)

        await anyio.to_thread.run_sync(apply)


def words_of(message: ChatMessage) -> str:
    """What a user or the assistant said in a message; calls, results, files and reasoning are no words of theirs."""
    if message.role not in ("user", "assistant"):
        return ""
    text = "\n".join(part.text for part in message.content if isinstance(part, Text) and part.text.strip())
    return clean_text(text)


def _decode(records: Sequence[Record]) -> list[Commit | None]:
    commits: list[Commit | None] = []
    for record in records:
        try:
            commits.append(codec.decode_commit(record.data))
        except InvalidTypeError:
            _log.error("commit_damaged", sequence=record.sequence)
            commits.append(None)
    return commits


def _as_changes(record: Record, commit: Commit | None, texts: dict[tuple[str, str], bytes]) -> RunCommit:
    digest = digest_bytes(record.data)
    if commit is None:
        return RunCommit(record.sequence, "", digest)
    changes: list[Change] = []
    for event in commit.events:
        match event:
            case RunStarted(scope=scope):
                changes.append(RunBegun(scope))
            case HistoryReplaced(keep=keep):
                changes.append(HistoryKept(keep))
            case MessagesAppended():
                changes += _said(event, texts.get((commit.run, event.inputs)), record.sequence)
            case StepCompiled(blocks=placed) if placed:
                changes.append(BlocksPlaced(tuple(block.digest for block in placed)))
            case CompactionCompleted(replacement=replacement):
                changes.append(BlocksPlaced(tuple(fact.digest for fact in replacement if fact.own)))
            case _:
                pass
    return RunCommit(record.sequence, commit.run, digest, tuple(changes))


def _said(event: MessagesAppended, data: bytes | None, sequence: int) -> Iterator[MessageSaid]:
    if data is None or not event.messages:
        return  # the run was deleted meanwhile
    try:
        messages = blobs.decode_input(data).messages
    except InvalidTypeError:
        messages = ()
    if len(messages) != len(event.messages):
        _log.error("messages_damaged", sequence=sequence)
        return
    for position, (fact, message) in enumerate(zip(event.messages, messages, strict=True), start=event.start):
        text = words_of(message)
        if text and len(text.encode()) <= MAX_TEXT_BYTES:
            yield MessageSaid(position, fact.digest, message.role, text)


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]

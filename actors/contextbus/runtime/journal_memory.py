"""A journal in memory, with the semantics of JetStream: for tests, and for use without a server."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Awaitable, Generator, Mapping
from datetime import datetime
from typing import Generic, TypeVar

from contextbus.runtime.clock import Clock, SystemClock, format_moment
from contextbus.runtime.journal import (
    COMMAND_HEADER,
    DUPLICATE_WINDOW_SECONDS,
    MESSAGE_ID_HEADER,
    PAGE_HEADINGS,
    PAGE_RECORDS,
    Appended,
    Code,
    Heading,
    Headings,
    Page,
    Record,
    Refused,
    Unanswered,
)
from contextbus.runtime.streams import find_stream

T = TypeVar("T")

_BLOB_PREFIX = "ctx.blob."


class Settled(Generic[T]):
    """An awaitable that has its result already and never yields to the event loop."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self._value


class _Stream:
    """One stream: its subjects, each a list of records in order, and the ids seen lately."""

    def __init__(self) -> None:
        self.last = 0
        self.subjects: dict[str, list[Record]] = {}
        # Oldest first; a dict would be searched from its start for the first that is left, again and again.
        self.ids: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def find_duplicate(self, message_id: str, now: float) -> int | None:
        while self.ids:
            known, (_, seen) = next(iter(self.ids.items()))
            if now - seen <= DUPLICATE_WINDOW_SECONDS:
                break
            del self.ids[known]
        found = self.ids.get(message_id)
        return None if found is None else found[0]

    def matching(self, pattern: str) -> list[list[Record]]:
        """The records of each subject that matches, a literal subject being its own pattern."""
        if "*" not in pattern and not pattern.endswith(">"):
            return [self.subjects.get(pattern, [])]
        return [records for name, records in self.subjects.items() if _matches(name, pattern)]


class MemoryJournal:
    """A journal that lives and ends with its process.

    Args:
        clock: Dates the records and bounds the memory of message ids.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._streams: dict[str, _Stream] = {}

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        """Append to a subject whose last message has the sequence `expected` (0: it has none)."""
        stream = self._stream(subject)
        records = stream.subjects.get(subject, [])
        last = records[-1].sequence if records else 0
        if last != expected:
            return Settled(Refused(Code.WRONG_LAST_SEQUENCE, f"wrong last sequence: {last}"))
        duplicate = stream.find_duplicate(message_id, self._clock.elapsed())
        if duplicate is not None:
            return Settled(Appended(duplicate, duplicate=True))
        return Settled(Appended(self._store(stream, subject, data, command, message_id)))

    async def last(self, subject: str) -> Record | Unanswered | None:
        """Read the last message of a subject or pattern."""
        lasts = (records[-1] for records in self._stream(subject).matching(subject) if records)
        return max(lasts, key=_sequence, default=None)

    async def read(self, subject: str, *, after: int, limit: int = PAGE_RECORDS) -> Page | Unanswered:
        """Read the messages of a subject or pattern whose sequence is above `after`, `limit` at most."""
        found: list[Record] = []
        for records in self._stream(subject).matching(subject):
            start = bisect.bisect_right(records, after, key=_sequence)
            found += records[start : start + limit + 1]
        found.sort(key=_sequence)
        return Page(tuple(found[:limit]), more=len(found) > limit)

    async def headings(self, pattern: str, *, after: int, limit: int = PAGE_HEADINGS) -> Headings | Unanswered:
        """List the messages that match a pattern behind a sequence, without their bytes."""
        found = [
            Heading(r.sequence, subject, r.command, len(r.data), datetime.fromisoformat(r.stored_at).timestamp())
            for subject, records in self._stream(pattern).subjects.items()
            if _matches(subject, pattern)
            for r in records[bisect.bisect_right(records, after, key=_sequence) :]
        ]
        found.sort(key=lambda heading: heading.sequence)
        return Headings(tuple(found[:limit]), more=len(found) > limit)

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        """Store a blob where nothing is stored yet; False if something is."""
        if self._records(subject) and subject.startswith(_BLOB_PREFIX):
            return Settled(value=False)
        command, message_id = headers.get(COMMAND_HEADER, ""), headers.get(MESSAGE_ID_HEADER, "")
        self._store(self._stream(subject), subject, data, command, message_id)
        return Settled(value=True)

    async def get(self, subject: str) -> bytes | Unanswered | None:
        """Read a blob; None if it is missing."""
        records = self._records(subject)
        return records[-1].data if records else None

    async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
        """Remove a message; False if the subject has none of this sequence."""
        records = self._records(subject)
        index = bisect.bisect_left(records, sequence, key=_sequence)
        if index == len(records) or records[index].sequence != sequence:
            return False
        del records[index]
        return True

    async def purge(self, subject: str) -> int | Refused | Unanswered:
        """Remove all messages of a subject, which may end in `.>`."""
        removed = 0
        subjects = self._stream(subject).subjects
        for name in [name for name in subjects if _matches(name, subject)]:
            removed += len(subjects.pop(name))
        return removed

    async def sequences(self, subject: str) -> tuple[int, ...] | Unanswered:
        """List the sequences of all messages stored on one subject, in order."""
        return tuple(record.sequence for record in self._records(subject))

    async def subjects(self, pattern: str) -> tuple[str, ...] | Unanswered:
        """List the subjects of one stream that match a pattern and hold a message, in order."""
        subjects = self._stream(pattern).subjects.items()
        return tuple(sorted(name for name, held in subjects if held and _matches(name, pattern)))

    async def last_sequence(self, stream: str) -> int | Unanswered:
        """Read the sequence of the last message ever stored in a stream (0: none)."""
        found = self._streams.get(stream)
        return 0 if found is None else found.last

    def _stream(self, subject: str) -> _Stream:
        return self._streams.setdefault(find_stream(subject), _Stream())

    def _records(self, subject: str) -> list[Record]:
        return self._stream(subject).subjects.get(subject, [])

    def _store(self, stream: _Stream, subject: str, data: bytes, command: str, message_id: str) -> int:
        stream.last += 1
        if message_id:
            stream.ids[message_id] = (stream.last, self._clock.elapsed())
            stream.ids.move_to_end(message_id)
        moment = format_moment(self._clock.now())
        record = Record(stream.last, data, command, message_id, moment)
        stream.subjects.setdefault(subject, []).append(record)
        return stream.last


def _sequence(record: Record) -> int:
    return record.sequence


def _matches(subject: str, pattern: str) -> bool:
    """Compare as NATS does: `*` stands for one token, `>` at the end for one or more."""
    names, wanted = subject.split("."), pattern.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(names) > index
        if index >= len(names) or token not in ("*", names[index]):
            return False
    return len(names) == len(wanted)

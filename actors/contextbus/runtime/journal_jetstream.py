"""The journal on JetStream.

Answers come to one inbox, told apart by a counter; one timer ends the waiting for those that do not
come.  So a message costs a future, and no task, timer or subscription of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from contextbus.runtime import jetstream_api
from contextbus.runtime.connection import Connection
from contextbus.runtime.connection_errors import DisconnectedError, OverloadedError
from contextbus.runtime.headings import read_headings
from contextbus.runtime.jetstream_api import (
    Done,
    Failure,
    StoredMessage,
    StreamAnswer,
    record_from,
    record_of,
)
from contextbus.runtime.journal import (
    COMMAND_HEADER,
    EXPECTED_HEADER,
    MESSAGE_ID_HEADER,
    PAGE_HEADINGS,
    PAGE_RECORDS,
    Appended,
    Code,
    Headings,
    Page,
    Record,
    Refused,
    Unanswered,
)
from contextbus.runtime.streams import find_stream

T = TypeVar("T")

ANSWER_SECONDS = 5.0
SWEEP_SECONDS = 0.25

_ABSENT = (Code.NO_MESSAGE, Code.SEQUENCE_NOT_FOUND)
_TAKEN = "per subject"


class _Pending(Enum):
    """What a reader returns while more of its answer is to come."""

    MORE = "more"


class _Question:
    """What was asked and not yet answered: collects messages until the answer is whole."""

    __slots__ = ("deadline", "future", "receive")

    def __init__(self, receive: Callable[[Mapping[str, str], bytes], Any], deadline: float) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.receive = receive
        self.deadline = deadline

    def settle(self, outcome: object) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class JetStreamJournal:
    """A journal on the streams of one or more tenants.

    Args:
        connection: The connection; the streams are there, see `streams.ensure`.
        answer_seconds: How long an answer is waited for.
    """

    def __init__(self, connection: Connection, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._connection = connection
        self._answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._inbox = connection.open_inbox(self._receive)
        self._prefix = len(self._inbox) + 1
        self._tokens = itertools.count(1)
        self._open: dict[str, _Question] = {}
        self._timer: asyncio.TimerHandle | None = None
        connection.on_disconnect(self._abandon)

    def close(self) -> None:
        """Stop waiting; what is unanswered stays so."""
        self._connection.close_inbox(self._inbox)
        self._abandon()
        if self._timer is not None:
            self._timer.cancel()

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        """Append to a subject whose last message has the sequence `expected` (0: it has none)."""
        headers = {
            EXPECTED_HEADER: str(expected),
            MESSAGE_ID_HEADER: message_id,
            COMMAND_HEADER: command,
        }
        return self._ask(subject, data, _read_append, headers)

    async def last(self, subject: str) -> Record | Unanswered | None:
        """Read the last message of a subject or pattern, as the leader of the stream knows it."""
        body = msgspec.json.encode({"last_by_subj": subject})
        api = f"$JS.API.STREAM.MSG.GET.{find_stream(subject)}"
        answer = await self._ask(api, body, _read_message)
        return record_of(answer) if isinstance(answer, StoredMessage) else answer

    async def read(self, subject: str, *, after: int, limit: int = PAGE_RECORDS) -> Page | Unanswered:
        """Read the messages of a subject or pattern whose sequence is above `after`, `limit` at most."""
        body = msgspec.json.encode({"seq": after + 1, "batch": limit, "next_by_subj": subject})
        batch = _Batch()
        return await self._ask(f"$JS.API.DIRECT.GET.{find_stream(subject)}", body, batch.receive)

    async def headings(self, pattern: str, *, after: int, limit: int = PAGE_HEADINGS) -> Headings | Unanswered:
        """List the messages that match a pattern behind a sequence, without their bytes."""
        return await read_headings(
            self._connection, find_stream(pattern), pattern, after=after, limit=limit, seconds=self._answer_seconds
        )

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        """Store a blob where nothing is stored yet; False if something is."""
        return self._ask(subject, data, _read_put, headers)

    async def get(self, subject: str) -> bytes | Unanswered | None:
        """Read a blob; it counts as missing (None) only if the leader of the stream says so."""
        api = f"$JS.API.DIRECT.GET.{find_stream(subject)}.{subject}"
        found = await self._ask(api, b"", _read_direct)
        if found is not None:
            return found
        record = await self.last(subject)
        return record.data if isinstance(record, Record) else record

    async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
        """Overwrite a message on disk and remove it; False if the subject has no such message."""
        if sequence < 1:
            return False
        stored = await self._holds(subject, sequence)
        if stored is not True:
            return stored
        body = msgspec.json.encode({"seq": sequence, "no_erase": False})
        answer = await self._ask(f"$JS.API.STREAM.MSG.DELETE.{find_stream(subject)}", body, _read_done)
        if not isinstance(answer, Refused):
            return answer if isinstance(answer, Unanswered) else True
        if answer.code == Code.DELETE_FAILED:
            # Of two who erase it at once the server refuses one, with the code of all that can go wrong there.
            stored = await self._holds(subject, sequence)
            return answer if stored is True else stored
        return False if answer.code in _ABSENT else answer

    async def _holds(self, subject: str, sequence: int) -> bool | Unanswered:
        """Whether a subject has the message of a sequence, as the leader of the stream knows it."""
        body = msgspec.json.encode({"seq": sequence})
        found = await self._ask(f"$JS.API.STREAM.MSG.GET.{find_stream(subject)}", body, _read_message)
        if isinstance(found, Unanswered):
            return found
        return found is not None and found.subject == subject

    async def purge(self, subject: str) -> int | Refused | Unanswered:
        """Remove all messages of a subject, which may end in `.>`; the bytes may stay on disk."""
        body = msgspec.json.encode({"filter": subject})
        api = f"$JS.API.STREAM.PURGE.{find_stream(subject)}"
        answer: Done | Refused | Unanswered = await self._ask(api, body, _read_done)
        return answer.purged if isinstance(answer, Done) else answer

    async def sequences(self, subject: str) -> tuple[int, ...] | Unanswered:
        """List the sequences of all messages stored on one subject, in order."""
        found: list[int] = []
        while True:
            page = await self.read(subject, after=found[-1] if found else 0)
            if isinstance(page, Unanswered):
                return page
            found.extend(record.sequence for record in page.records)
            if not page.more or not page.records:
                return tuple(found)

    async def subjects(self, pattern: str) -> tuple[str, ...] | Unanswered:
        """List the subjects of one stream that match a pattern and hold a message, in order."""
        found: set[str] = set()
        offset = 0
        while True:
            body = msgspec.json.encode({"subjects_filter": pattern, "offset": offset})
            api = f"$JS.API.STREAM.INFO.{find_stream(pattern)}"
            answer: StreamAnswer | Unanswered = await self._ask(api, body, _read_stream)
            if isinstance(answer, Unanswered):
                return answer
            page = answer.state.subjects or {}
            found.update(page)
            offset += len(page)
            if not page or offset >= answer.total:
                return tuple(sorted(found))

    async def last_sequence(self, stream: str) -> int | Unanswered:
        """Read the sequence of the last message ever stored in a stream (0: none)."""
        api = f"$JS.API.STREAM.INFO.{stream}"
        answer: StreamAnswer | Unanswered = await self._ask(api, b"", _read_stream)
        return answer if isinstance(answer, Unanswered) else answer.state.last_seq

    def _ask(
        self,
        subject: str,
        data: bytes,
        receive: Callable[[Mapping[str, str], bytes], T | _Pending],
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Future[T | Unanswered]:
        """Send, and return what will hold the outcome."""
        question = _Question(receive, self._loop.time() + self._answer_seconds)
        token = str(next(self._tokens))
        try:
            self._connection.send(subject, data, f"{self._inbox}.{token}", headers)
        except DisconnectedError:
            question.settle(Unanswered("disconnected"))
        except OverloadedError:
            question.settle(Unanswered("overloaded"))
        else:
            self._open[token] = question
            if self._timer is None:
                self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        return question.future

    def _receive(self, subject: str, _reply: str, headers: Mapping[str, str], data: bytes) -> None:
        """Give an answer to its question; one that comes too late is dropped."""
        token = subject[self._prefix :]
        question = self._open.get(token)
        if question is None:
            return
        try:
            if headers and headers.get("Status") == "503":
                outcome: object = Unanswered("no-responders")
            else:
                outcome = question.receive(headers, data)
        except (ValueError, msgspec.DecodeError):
            outcome = Unanswered("malformed")
        if outcome is not _Pending.MORE:
            del self._open[token]
            question.settle(outcome)

    def _sweep(self) -> None:
        """End the waiting for overdue answers; the questions are in the order of deadlines."""
        self._timer = None
        now = self._loop.time()
        for token, question in list(self._open.items()):
            if question.deadline > now:
                break
            del self._open[token]
            question.settle(Unanswered("timeout"))
        if self._open:
            self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _abandon(self) -> None:
        """Settle all questions of a connection that is gone: their answers may never come."""
        questions, self._open = self._open, {}
        for question in questions.values():
            question.settle(Unanswered("disconnected"))


class _Batch:
    """The messages of a batch, checked to be all that the server sent.

    Each message says which one came before it and how many are still to come, and the end says
    which one was the last: a message that was lost on the way cannot go unnoticed.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._pending: int | None = None

    def receive(self, headers: Mapping[str, str], data: bytes) -> Page | Unanswered | _Pending:
        status = headers.get("Status")
        if status is None:
            return self._take(headers, data)
        if status == "204":
            return self._end(headers)
        if status == "404" and not self._records:
            return Page((), more=False)
        return Unanswered("malformed")

    def _take(self, headers: Mapping[str, str], data: bytes) -> Unanswered | _Pending:
        record = record_from(headers, data)
        pending = int(headers.get("Nats-Num-Pending", ""))
        before = self._records[-1].sequence if self._records else 0
        in_order = int(headers.get("Nats-Last-Sequence", "")) == before
        if not in_order or (self._pending is not None and pending != self._pending - 1):
            return Unanswered("gap")
        self._pending = pending
        self._records.append(record)
        return _Pending.MORE

    def _end(self, headers: Mapping[str, str]) -> Page | Unanswered:
        last = self._records[-1].sequence if self._records else 0
        if int(headers.get("Nats-Last-Sequence", "")) != last:
            return Unanswered("gap")
        return Page(tuple(self._records), more=int(headers.get("Nats-Num-Pending", "")) > 0)


def _refuse(error: Failure) -> Refused:
    return Refused(error.err_code, error.description)


def _read_append(_headers: Mapping[str, str], data: bytes) -> Appended | Refused | Unanswered:
    answer = jetstream_api.acknowledgement(data)
    if answer.error is not None:
        return _refuse(answer.error)
    return Appended(answer.seq, answer.duplicate) if answer.seq else Unanswered("malformed")


def _read_put(_headers: Mapping[str, str], data: bytes) -> bool | Refused | Unanswered:
    answer = jetstream_api.acknowledgement(data)
    if answer.error is not None:
        # The code covers all that can go wrong in a store; only its words say what.
        if answer.error.err_code == Code.STORE_FAILED and _TAKEN in answer.error.description:
            return False
        return _refuse(answer.error)
    return not answer.duplicate if answer.seq else Unanswered("malformed")


def _read_message(_headers: Mapping[str, str], data: bytes) -> StoredMessage | Unanswered | None:
    answer = jetstream_api.message_answer(data)
    if answer.error is not None:
        return None if answer.error.err_code in _ABSENT else Unanswered("refused")
    return answer.message if answer.message is not None else Unanswered("malformed")


def _read_direct(headers: Mapping[str, str], data: bytes) -> bytes | Unanswered | None:
    status = headers.get("Status")
    if status is None:
        return data
    return None if status == "404" else Unanswered("malformed")


def _read_done(_headers: Mapping[str, str], data: bytes) -> Done | Refused | Unanswered:
    answer = jetstream_api.done(data)
    if answer.error is not None:
        return _refuse(answer.error)
    return answer if answer.success else Unanswered("malformed")


def _read_stream(_headers: Mapping[str, str], data: bytes) -> StreamAnswer | Unanswered:
    answer = jetstream_api.stream_answer(data)
    return answer if answer.error is None else Unanswered("refused")

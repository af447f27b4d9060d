"""The journal: what the append algorithm and the readers ask of the store, one attempt at a time.

Outcomes are values: whatever can race is decided by a pure state machine, and this is what it
drives.  Nothing in here tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from enum import IntEnum
from typing import Literal, Protocol

import msgspec

COMMAND_HEADER = "Ctx-Command"
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
MESSAGE_ID_HEADER = "Nats-Msg-Id"

PAGE_RECORDS = 256
PAGE_HEADINGS = 4096
DUPLICATE_WINDOW_SECONDS = 120.0


class Code(IntEnum):
    """The error codes of JetStream that somebody acts on."""

    NO_MESSAGE = 10037
    SEQUENCE_NOT_FOUND = 10043
    DELETE_FAILED = 10057
    STREAM_NAME_IN_USE = 10058
    STREAM_NOT_FOUND = 10059
    WRONG_LAST_SEQUENCE = 10071
    STORE_FAILED = 10077
    CONFLICT_IN_FLIGHT = 10164


class Appended(msgspec.Struct, frozen=True):
    """The message is stored, and durable as the stream is; or one with its id was stored before.

    Attributes:
        sequence: The sequence in the stream of the stored message.
        duplicate: The message of that sequence has the same id, whatever its subject: read `last`.
    """

    sequence: int
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True):
    """The store answered with an error, and nothing was stored.

    Attributes:
        code: JetStream's error code; see `Code`.
        description: JetStream's words.
    """

    code: int
    description: str = ""


class Unanswered(msgspec.Struct, frozen=True):
    """No usable answer came; what was asked for may have happened.

    Attributes:
        reason: `timeout`; `no-responders`: there is no such stream, or it has no leader now;
            `disconnected`; `overloaded`: the send buffer is full; `gap`: part of an answer is
            missing; `malformed`: the answer makes no sense; `refused`: a question was answered with
            an error.
    """

    reason: Literal["timeout", "no-responders", "disconnected", "overloaded", "gap", "malformed", "refused"]


class Record(msgspec.Struct, frozen=True):
    """One stored message.

    Attributes:
        sequence: Its sequence in the stream.
        data: Its bytes as stored.
        command: The command that stored it; empty if none was named.
        message_id: The id under which it was stored; empty if none was named.
        stored_at: When it was stored, RFC 3339 in UTC.
    """

    sequence: int
    data: bytes
    command: str = ""
    message_id: str = ""
    stored_at: str = ""


class Page(msgspec.Struct, frozen=True):
    """A part of a subject or pattern in order, without a gap.

    Attributes:
        records: The records.
        more: Whether more were stored after the last of them when the page was read.
    """

    records: tuple[Record, ...]
    more: bool


class Heading(msgspec.Struct, frozen=True):
    """What is known of a stored message without its bytes.

    Attributes:
        sequence: Its sequence in the stream.
        subject: Where it is stored.
        command: The command that stored it; empty if none was named.
        size: The bytes of its data.
        stored_at: When it was stored, in seconds since 1970 (UTC).
    """

    sequence: int
    subject: str
    command: str
    size: int
    stored_at: float


class Headings(msgspec.Struct, frozen=True):
    """A part of a pattern in order, without a gap.

    Attributes:
        headings: The headings.
        more: Whether more were stored after the last of them.
    """

    headings: tuple[Heading, ...]
    more: bool


class Journal(Protocol):
    """The store of commits, blobs and memory records.

    `append` and `put` send when they are called; awaiting waits for the acknowledgement.  So blobs
    and a commit can leave in one flush, with no task each.  The other methods act when awaited.
    """

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        """Append to a subject whose last message has the sequence `expected` (0: it has none)."""
        ...

    async def last(self, subject: str) -> Record | Unanswered | None:
        """Read the last message of a subject, or of all that match a pattern, as the leader of the stream knows it."""
        ...

    async def read(self, subject: str, *, after: int, limit: int = PAGE_RECORDS) -> Page | Unanswered:
        """Read the messages of a subject, or of all that match a pattern, behind a sequence.

        Args:
            subject: A subject or pattern of one stream; the messages are in the order of the stream.
            after: The sequence behind which to begin.
            limit: How many messages at most.
        """
        ...

    async def headings(self, pattern: str, *, after: int, limit: int = PAGE_HEADINGS) -> Headings | Unanswered:
        """List the messages that match a pattern behind a sequence, without their bytes.

        Args:
            pattern: A subject or pattern of one stream; the messages are in the order of the stream.
            after: The sequence behind which to begin.
            limit: How many messages at most.
        """
        ...

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        """Store a blob where nothing is stored yet.

        Returns:
            True if it was stored, False if something is there already, which is a success too.
        """
        ...

    async def get(self, subject: str) -> bytes | Unanswered | None:
        """Read a blob; it counts as missing (None) only if the leader of the stream says so."""
        ...

    async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
        """Overwrite a message on disk and remove it.

        Returns:
            True if it was erased, False if the subject has no message of this sequence.
        """
        ...

    async def purge(self, subject: str) -> int | Refused | Unanswered:
        """Remove all messages of a subject, which may end in `.>`; their bytes may stay on disk.

        Returns:
            How many were removed.
        """
        ...

    async def sequences(self, subject: str) -> tuple[int, ...] | Unanswered:
        """List the sequences of all messages stored on one subject, in order."""
        ...

    async def subjects(self, pattern: str) -> tuple[str, ...] | Unanswered:
        """List the subjects of one stream that match a pattern and hold a message, in order."""
        ...

    async def last_sequence(self, stream: str) -> int | Unanswered:
        """Read the sequence of the last message ever stored in a stream (0: none)."""
        ...

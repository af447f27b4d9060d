"""The erasures of a tenant: tombstones of forgotten records, in the tenant's log."""

from __future__ import annotations

from typing import Final

from contextbus import __version__
from contextbus.runtime.journal import Journal, Record
from contextbus.runtime.logs import get_logger
from contextbus.sources import memory_log
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import ConflictError, InvalidTypeError
from contextbus_protocol.events import AnyEvent, Commit, RecordAllowed, RecordErased, UnknownEvent

CONFLICTS: Final = 64
# Erasures belong to no run; nothing decides by a policy whether a record is erased.
_NO_RUN: Final = ""
_NO_POLICY: Final = 0

_log = get_logger(__name__)


class ErasureLog:
    """Commits tombstones of one memory store, and finds them."""

    def __init__(self, journal: Journal, tenant: str, source: str) -> None:
        self.subject = subjects.erasures(tenant)
        self._journal = journal
        self._tenant = tenant
        self._source = source

    async def commit_erased(self, record_id: str, digests: tuple[str, ...], command: str, at: int) -> int:
        """Commit that a record is erased; gives the sequence.

        Raises:
            ConflictError: others commit faster.
            LimitError: the log refuses.
            DeadlineExceededError: the log does not answer.
        """
        return await self._commit(RecordErased(source=self._source, record_id=record_id, digests=digests), command, at)

    async def commit_allowed(self, digests: tuple[str, ...], command: str, at: int) -> int:
        """Commit that forgotten digests may be remembered again; gives the sequence.

        Raises:
            ConflictError: others commit faster.
            LimitError: the log refuses.
            DeadlineExceededError: the log does not answer.
        """
        return await self._commit(RecordAllowed(source=self._source, digests=digests), command, at)

    async def find_allowed(self, command: str) -> tuple[RecordAllowed, int] | None:
        """What a command allowed again, and the sequence of its commit.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        async for records in memory_log.read_all(self._journal, self.subject):
            for record in records:
                if record.command == command:
                    for event in self.events_of(record):
                        if isinstance(event, RecordAllowed):
                            return event, record.sequence
        return None

    async def last_sequence(self) -> int:
        """The sequence of the last commit, as the leader knows it; 0 if there is none.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        last = await self._last()
        return 0 if last is None else last.sequence

    async def find(self, record_id: str, command: str) -> tuple[RecordErased, int] | None:
        """The tombstone that a command committed for a record, and its sequence.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        found = [(event, sequence) for event, sequence, by in await self._tombstones(record_id) if by == command]
        return found[-1] if found else None

    async def digests_of(self, record_id: str) -> tuple[str, ...]:
        """The digests of all that a forgotten record said, in order; none if it was not forgotten.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        found = await self._tombstones(record_id)
        return tuple(sorted({digest for event, _, _ in found for digest in event.digests}))

    async def _tombstones(self, record_id: str) -> list[tuple[RecordErased, int, str]]:
        """The tombstones of a record, each with its sequence and its command."""
        return [
            (event, record.sequence, record.command)
            async for records in memory_log.read_all(self._journal, self.subject)
            for record in records
            for event in self.events_of(record)
            if isinstance(event, RecordErased) and event.record_id == record_id
        ]

    def events_of(self, record: Record) -> tuple[AnyEvent | UnknownEvent, ...]:
        """The events of a commit that concern this store; none if the commit is damaged.

        Raises:
            UnsupportedVersionError: a newer release wrote it: a tombstone must not be overlooked.
        """
        try:
            commit = codec.decode_commit(record.data)
        except InvalidTypeError:
            _log.error("erasure_damaged", source=self._source, sequence=record.sequence)
            return ()
        return tuple(
            event
            for event in commit.events
            if isinstance(event, RecordErased | RecordAllowed) and event.source == self._source
        )

    async def _last(self) -> Record | None:
        return await memory_log.insist(lambda: self._journal.last(self.subject))

    async def _commit(self, event: RecordErased | RecordAllowed, command: str, at: int) -> int:
        command_digest = digest_bytes(codec.encode_json(event))
        tried: set[str] = set()
        for attempt in range(1, CONFLICTS + 1):
            last = await self._last()
            # A lost acknowledgement: what we wrote is the last message, or was a moment ago.
            if last is not None and digest_bytes(last.data) in tried:
                return last.sequence
            commit = Commit(
                version=codec.COMMIT_VERSION,
                tenant=self._tenant,
                run=_NO_RUN,
                part="run",
                command=command,
                command_digest=command_digest,
                attempt=attempt,
                engine=__version__,
                policy=_NO_POLICY,
                previous="" if last is None else digest_bytes(last.data),
                at=at,
                events=(event,),
            )
            data = codec.encode_commit(commit)
            tried.add(digest_bytes(data))
            sequence = await memory_log.append(
                self._journal,
                self.subject,
                data,
                expected=0 if last is None else last.sequence,
                message_id=digest_bytes(data),
                command=command,
            )
            if sequence is not None:
                return sequence
        raise ConflictError("the tenant's erasures change faster than they can be written; try again")

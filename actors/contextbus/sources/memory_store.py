"""Memory records over a stream: remembered in revisions, searched by scope, forgotten for good.

One subject a record, every revision a message on it.  Each write carries the last sequence of its subject that it was
decided at, so a repeated or concurrent request has one effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from contextbus.core.scope import lies_within, narrow, require_scope
from contextbus.runtime.clock import Clock, SystemClock
from contextbus.runtime.journal import Journal
from contextbus.sources import memory_log
from contextbus.sources.memory_erasures import ErasureLog
from contextbus.sources.memory_feed import MemoryFeed, decode_record
from contextbus.sources.memory_index import Marks, MemoryHit, MemoryIndex
from contextbus_protocol import subjects
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import clean_text, digest_bytes, digest_text, is_digest
from contextbus_protocol.errors import (
    CommandMismatchError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    InvalidTypeError,
    LimitError,
    NotFoundError,
)
from contextbus_protocol.memory_records import MemoryRecord
from contextbus_protocol.values import Scope

T = TypeVar("T")

RECORD_VERSION: Final = 1
MAX_TEXT_BYTES: Final = 64 * 1024
MAX_LABEL_CHARACTERS: Final = 256
MAX_SOURCE_KINDS: Final = 16
MAX_ALLOWED: Final = 1024
CONFLICTS: Final = 16
_ID_DIGITS: Final = 32
ANY_SCOPE: Final = Scope()


class Stored(msgspec.Struct, frozen=True):
    """A revision and its sequence in the stream."""

    record: MemoryRecord
    sequence: int


class Erased(msgspec.Struct, frozen=True):
    """A forgotten record: how many revisions it had, and the sequence of its tombstone in the tenant's log.

    ``texts`` are what its revisions said; none if they were erased already.
    """

    record_id: str
    revisions: int
    sequence: int
    texts: tuple[str, ...] = ()


class MemoryStore:
    """One memory store of a tenant.

    Args:
        journal: The streams.
        tenant: The tenant.
        index: The searchable copy of the newest revisions.
        source: The id of the source that the store belongs to.
        scope: What the store is pinned to; each request lies within it (D.K.2).
        clock: Dates tombstones.
        max_text_bytes: The longest text of a record, in bytes of UTF-8.
    """

    def __init__(
        self,
        journal: Journal,
        tenant: str,
        index: MemoryIndex,
        *,
        source: str = "memory",
        scope: Scope = ANY_SCOPE,
        clock: Clock | None = None,
        max_text_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        self.tenant = tenant
        self.source = source
        self.scope = scope
        self.journal = journal
        self._index = index
        self._erasures = ErasureLog(journal, tenant, source)
        self._feed = MemoryFeed(journal, tenant, source, index, self._erasures)
        self._clock: Clock = clock or SystemClock()
        self._max_text_bytes = max_text_bytes

    async def catch_up(self, seen: int = 0) -> None:
        """Bring the index up to the end of the stream, and at least to a sequence that a client has seen.

        Raises:
            DeadlineExceededError: the stream does not answer.
        """
        await self._feed.catch_up(seen)

    async def remember(
        self,
        text: str,
        *,
        scope: Scope,
        message_id: str,
        now: int,
        record_id: str | None = None,
        origin: str = "asserted",
        source_kinds: tuple[str, ...] = ("host",),
    ) -> Stored:
        """Store a new record, or the next revision of one (D.K.24).

        Args:
            text: The record's text.
            scope: Whose record it is; for a change, what the record lies within: its own scope stays.
            message_id: The same id has one effect, whenever it is repeated.
            now: The clock of whoever asks, in milliseconds since the epoch.
            record_id: The record to change; left out for a new one.
            origin: Where it comes from, as a label (D.K.11).
            source_kinds: What kinds of sources it rests on, as labels.

        Raises:
            ScopeConflictError: the scope names nobody, or lies outside the store's.
            InvalidTypeError: the text is empty, or a label is unusable.
            LimitError: the text is too long, or the stream is full.
            ForbiddenError: this text was forgotten (D.K.24).
            NotFoundError: there is no such record within the scope.
            CommandMismatchError: the message id was used for something else.
            ConflictError: others changed the record faster.
            DeadlineExceededError: the stream does not answer.
        """
        effective = require_scope(narrow(self.scope, scope))
        text = self._check_text(text)
        _check_labels(message_id, origin, source_kinds)
        command = self._command("remember", message_id, effective, record_id)
        digest = digest_text(text)
        await self.catch_up()
        target = record_id if record_id is not None else await self._find_id(command, digest)
        subject = subjects.memory(self.tenant, self.source, target)
        for _ in range(CONFLICTS):
            revisions = await self._read_revisions(subject)
            for revision in revisions:
                if revision.command == command:
                    return _repeat(revision, digest)
            await self._check_allowed(target, digest)
            record = _next_revision(
                [known.record for known in revisions if known.record is not None],
                MemoryRecord(
                    version=RECORD_VERSION,
                    record_id=target,
                    revision=1,
                    text=text,
                    digest=digest,
                    scope=effective,
                    at=now,
                    origin=origin,
                    source_kinds=tuple(sorted(set(source_kinds))),
                ),
                is_new=record_id is None,
            )
            sequence = await memory_log.append(
                self.journal,
                subject,
                encode_json(record),
                expected=revisions[-1].sequence if revisions else 0,
                # A request that is made again under another id, after its record was forgotten, is no duplicate.
                message_id=f"{target}.{command}",
                command=command,
            )
            if sequence is not None:
                await self._settle(subject, sequence, target, digest)
                return Stored(record, sequence)
        raise ConflictError(f"record {target!r} changes faster than it can be written; try again")

    async def forget(self, record_id: str, *, scope: Scope, message_id: str) -> Erased:
        """Erase every revision of a record from the store, and from the disk (D.K.24): the store's part alone.

        Packages of runs that hold the record keep it: use ``MemorySession.forget`` or ``Memories.forget``, which erase
        it from them too (D.J.4).  The tombstone is committed first, so that an erasure which is interrupted is finished
        by whoever reads on.

        Raises:
            ScopeConflictError: the scope names nobody, or lies outside the store's.
            NotFoundError: there is no such record within the scope.
            LimitError: the stream refuses.
            DeadlineExceededError: the stream does not answer.
        """
        effective = require_scope(narrow(self.scope, scope))
        _check_labels(message_id, "asserted", ())
        command = self._command("forget", message_id, effective, record_id)
        subject = subjects.memory(self.tenant, self.source, record_id)
        erased: Erased | None = None
        while revisions := await self._read_revisions(subject):
            # Revisions that were added meanwhile get a tombstone of their own.
            records = [known.record for known in revisions if known.record is not None]
            if erased is None and not (records and lies_within(records[-1].scope, effective)):
                raise NotFoundError(f"there is no record {record_id!r} within the scope")
            digests = tuple(sorted({record.digest for record in records}))
            sequence = await self._erasures.commit_erased(record_id, digests, command, self._now())
            count = 0 if erased is None else erased.revisions
            texts = () if erased is None else erased.texts
            texts = tuple(dict.fromkeys((*texts, *(record.text for record in records))))
            erased = Erased(record_id, count + len(revisions), sequence, texts)
            for known in revisions:
                await memory_log.erase(self.journal, subject, known.sequence)
        if erased is None:
            erased = await self._find_erased(record_id, command)
        await self.catch_up()
        return erased

    async def allow(
        self, digests: tuple[str, ...] = (), *, record_id: str | None = None, message_id: str
    ) -> tuple[tuple[str, ...], int]:
        """Let forgotten texts be remembered again (D.K.24); gives their digests and the sequence in the tenant's log.

        Texts that were never forgotten are left out.

        Args:
            digests: The digests of the texts.
            record_id: A forgotten record, all of whose texts are meant too; it is not used again itself.
            message_id: The same id has one effect, whenever it is repeated.

        Raises:
            InvalidTypeError: nothing is named, or what is no digest.
            LimitError: too many are named at once, or the log refuses.
            NotFoundError: the record was not forgotten, or none of the texts was.
            DeadlineExceededError: the log does not answer.
        """
        _check_labels(message_id, "asserted", ())
        for digest in digests:
            if not is_digest(digest):
                raise InvalidTypeError("a digest is sha256: and 64 hex digits of lower case")
        command = self._command("allow", message_id, Scope(), None)
        done = await self._erasures.find_allowed(command)
        if done is not None:  # a repeated request must not lift a later forget
            return done[0].digests, done[1]
        if record_id is not None:
            named = await self._erasures.digests_of(record_id)
            if not named:
                raise NotFoundError(f"record {record_id!r} was not forgotten, so there is nothing to allow")
            digests += named
        digests = tuple(sorted(set(digests)))
        if not digests:
            raise InvalidTypeError("name what is allowed again: a text, its digest, or a forgotten record")
        if len(digests) > MAX_ALLOWED:
            raise LimitError(f"at most {MAX_ALLOWED} digests are allowed at once, not {len(digests)}: split them")
        await self.catch_up()
        digests = await _in_thread(lambda: tuple(filter(self._index.was_forgotten, digests)))
        if not digests:
            raise NotFoundError("none of these texts was forgotten, so there is nothing to allow; check their spelling")
        sequence = await self._erasures.commit_allowed(digests, command, self._now())
        await self.catch_up()
        return digests, sequence

    async def list_records(self, scope: Scope, *, limit: int = 1000) -> tuple[tuple[MemoryRecord, ...], int]:
        """The newest revisions within a scope ordered by id, and the sequence that they are as of.

        Raises:
            ScopeConflictError: the scope names nobody (B61), or lies outside the store's.
            DeadlineExceededError: the stream does not answer.
        """
        effective = require_scope(narrow(self.scope, scope))
        records, marks = await self._feed.ask(lambda: self._index.list_records(effective, limit))
        return records, marks.records

    async def search(self, text: str, scope: Scope, *, limit: int, seen: int = 0) -> tuple[MemoryHit, ...]:
        """The best records for a text within a scope, as of now and at least of ``seen`` (D.K.24).

        Raises:
            ScopeConflictError: the scope names nobody (B61), or lies outside the store's.
            DeadlineExceededError: the stream does not answer.
        """
        hits, _ = await self.search_as_of(text, scope, limit=limit, seen=seen)
        return hits

    async def search_as_of(
        self, text: str, scope: Scope, *, limit: int, seen: int = 0
    ) -> tuple[tuple[MemoryHit, ...], Marks]:
        """As ``search``, with the sequences of records and erasures that the answer is as of.

        Raises:
            ScopeConflictError: the scope names nobody (B61), or lies outside the store's.
            DeadlineExceededError: the stream does not answer.
        """
        effective = require_scope(narrow(self.scope, scope))
        return await self._feed.ask(lambda: self._index.search(text, effective, limit), seen)

    async def aclose(self) -> None:
        """Close the index."""
        await anyio.to_thread.run_sync(self._index.close)

    async def _read_revisions(self, subject: str) -> list[_Revision]:
        found: list[_Revision] = []
        async for records in memory_log.read_all(self.journal, subject):
            found.extend(_Revision(r.sequence, r.command, decode_record(r.data)) for r in records)
        return found

    async def _find_id(self, command: str, digest: str) -> str:
        """The id of a new record: that of the request, or the next free one if the host allows its text again.

        Without that, a late copy of a request whose record was forgotten meets the forgotten id.
        """
        name = command
        while await _in_thread(partial(self._index.is_erased, target := f"m-{name[:_ID_DIGITS]}")):
            if not await _in_thread(lambda: self._index.is_allowed(digest)):
                break
            name = digest_bytes(target.encode()).removeprefix("sha256:")
        return target

    async def _check_allowed(self, record_id: str, digest: str) -> None:
        is_erased = await _in_thread(lambda: self._index.is_erased(record_id))
        if await _in_thread(lambda: self._index.is_forbidden(digest)):
            named = f"--id {record_id}" if is_erased else f"--digest {digest}"
            raise ForbiddenError(f"this text was forgotten; to remember it again: contextbus allow {named}")
        if is_erased:
            raise NotFoundError(f"record {record_id!r} was forgotten; remember the text without an id, as a new record")

    async def _settle(self, subject: str, sequence: int, record_id: str, digest: str) -> None:
        """Take a revision back that was stored beside the tombstone which forbids it."""
        await self._feed.follow_erasures()
        try:
            await self._check_allowed(record_id, digest)
        except (ForbiddenError, NotFoundError):
            await memory_log.erase(self.journal, subject, sequence)
            raise

    async def _find_erased(self, record_id: str, command: str) -> Erased:
        """The tombstone of a forget that was repeated after all was erased."""
        found = await self._erasures.find(record_id, command)
        if found is None:
            raise NotFoundError(f"there is no record {record_id!r} within the scope")
        event, sequence = found
        return Erased(record_id, len(event.digests), sequence)

    def _check_text(self, text: str) -> str:
        text = clean_text(text)
        if not text.strip():
            raise InvalidTypeError("the text of a record must not be empty")
        size = len(text.encode())
        if size > self._max_text_bytes:
            raise LimitError(f"a record holds at most {self._max_text_bytes} bytes; this text has {size}: split it")
        return text

    def _command(self, verb: str, message_id: str, scope: Scope, record_id: str | None) -> str:
        """Hex that stands for a request: a client's own id could hold what no header may."""
        key = (verb, self.tenant, self.source, scope, record_id, clean_text(message_id))
        return digest_bytes(encode_json(key)).removeprefix("sha256:")

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


class _Revision(msgspec.Struct, frozen=True):
    """A stored message: its command, and the record unless it cannot be read."""

    sequence: int
    command: str
    record: MemoryRecord | None


def _repeat(revision: _Revision, digest: str) -> Stored:
    if revision.record is None or revision.record.digest != digest:
        raise CommandMismatchError("this message id was used for another text; use a new id for each request")
    return Stored(revision.record, revision.sequence)


def _next_revision(known: list[MemoryRecord], wanted: MemoryRecord, *, is_new: bool) -> MemoryRecord:
    """The revision to write: a changed record keeps its scope."""
    if is_new and not known:
        return wanted
    if not known or not lies_within(known[-1].scope, wanted.scope):
        raise NotFoundError(f"there is no record {wanted.record_id!r} within the scope")
    return msgspec.structs.replace(wanted, revision=known[-1].revision + 1, scope=known[-1].scope)


def _check_labels(message_id: str, origin: str, source_kinds: tuple[str, ...]) -> None:
    if not 0 < len(message_id) <= MAX_LABEL_CHARACTERS:
        raise InvalidRequestError(f"a message id must have 1 to {MAX_LABEL_CHARACTERS} characters")
    if len(source_kinds) > MAX_SOURCE_KINDS:
        raise LimitError(f"a record has at most {MAX_SOURCE_KINDS} source kinds")
    for label in (origin, *source_kinds):
        if not 0 < len(label) <= MAX_LABEL_CHARACTERS or not label.isprintable():
            raise InvalidTypeError(f"origin and source kinds must be printable, 1 to {MAX_LABEL_CHARACTERS} characters")


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)

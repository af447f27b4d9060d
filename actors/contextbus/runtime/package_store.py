"""The package store: the blobs of a run, content-addressed, over the journal.

A blob is one message on the subject of its digest.  A longer one is cut into chunks, each a blob of its own, under a
list of their digests that stands on the subject of the whole.  What is stored there is told apart by its digest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from contextbus.actors.append import BlobsPut
from contextbus.runtime.connection_errors import PayloadTooLargeError
from contextbus.runtime.journal import COMMAND_HEADER, Journal, Record, Refused, Unanswered
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes, is_digest
from contextbus_protocol.errors import ContextBusError

CHUNK_BYTES: Final = 512 * 1024
LONGEST_BLOB: Final = 64 * 1024 * 1024
LONGEST_LIST: Final = 80 * (LONGEST_BLOB // CHUNK_BYTES + 1)
"""Bytes that the list of the chunks of the longest blob takes, at most."""
RUN_HEADER: Final = "Ctx-Run"
UNCOMMITTED_SECONDS: Final = 600.0

_AT_ONCE: Final = 8
_TOO_LARGE: Final = 10054
_HEX = re.compile(rb"[0-9a-f]{64}")

T = TypeVar("T")


class ChunkList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands on the subject of a blob that was cut: the digests of its chunks in order, and its bytes."""

    chunks: tuple[str, ...]
    size: int


@lru_cache(maxsize=4096)
def name_command(command: str) -> str:
    """Write a command id as a header holds it: a client chose it, and a header has no line breaks.

    Raises:
        InvalidTypeError: it is longer than a name may be.
    """
    return subjects.encode_name(command) if command else ""


class PackageStore:
    """The blobs of one tenant.

    Args:
        journal: Where they are stored.
        tenant: Whose they are.
    """

    def __init__(self, journal: Journal, tenant: str) -> None:
        self._journal = journal
        self._tenant = tenant

    async def put(self, run: str, blobs: Iterable[tuple[str, bytes]], command: str) -> BlobsPut | Refused | Unanswered:
        """Store blobs; one that is there already is stored.

        Args:
            run: The run that they belong to.
            blobs: Digest and bytes of each.
            command: The command whose commit will name them; without such a commit `sweep` erases them.
        """
        whole: list[tuple[str, bytes]] = []
        for digest, data in blobs:
            if len(data) <= CHUNK_BYTES:
                whole.append((digest, data))
                continue
            if len(data) > LONGEST_BLOB:
                return Refused(_TOO_LARGE, f"a blob of {len(data)} bytes exceeds {LONGEST_BLOB}")
            chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
            named = [(digest_bytes(chunk), chunk) for chunk in chunks]
            outcome = await self._put_all(run, named, command)
            if not isinstance(outcome, BlobsPut):
                return outcome
            # The list comes last, so that whoever finds it finds the chunks.
            listed = ChunkList(tuple(name for name, _ in named), len(data))
            whole.append((digest, codec.encode_json(listed)))
        return await self._put_all(run, whole, command)

    async def get(self, run: str, digests: Iterable[str]) -> tuple[tuple[str, bytes], ...] | Unanswered:
        """Read blobs, several at once; a missing or damaged one is left out.

        Args:
            run: The run that they belong to.
            digests: Which, at most once each.
        """
        wanted = tuple(dict.fromkeys(filter(is_digest, digests)))
        found: list[tuple[str, bytes]] = []
        for some in _groups(wanted):
            if len(some) == 1:
                answers: list[bytes | Unanswered | None] = [await self._get_one(run, some[0])]
            else:
                answers = await asyncio.gather(*(self._get_one(run, digest) for digest in some))
            for digest, data in zip(some, answers, strict=True):
                if isinstance(data, Unanswered):
                    return data
                if data is not None:
                    found.append((digest, data))
        return tuple(found)

    async def erase_run(self, run: str) -> int | Refused | Unanswered:
        """Delete a run with two purges: its log, then its blobs.

        Returns:
            How many messages were removed.
        """
        log = f"{subjects.log_of_tenant(self._tenant).removesuffix('>')}{subjects.encode_name(run)}.>"
        commits = await self._journal.purge(log)
        if not isinstance(commits, int):
            return commits
        blobs = await self._journal.purge(subjects.blobs_of_run(self._tenant, run))
        return blobs if not isinstance(blobs, int) else commits + blobs

    async def erase(self, run: str, digest: str) -> int | Refused | Unanswered:
        """Erase a blob from the disk, and its chunks if it was cut, but for those that another blob of the run has too.

        The chunks go first: an erasure that is interrupted can be repeated as long as their list is there.

        Returns:
            How many messages were erased.
        """
        subject = subjects.blob(self._tenant, run, digest)
        record = await self._journal.last(subject)
        if not isinstance(record, Record):
            return 0 if record is None else record
        erased = 0
        listed = _read_list(record.data, digest)
        if listed is not None:
            kept = await self._shared(run, digest, set(listed.chunks))
            if isinstance(kept, Unanswered):
                return kept
            for chunk in dict.fromkeys(listed.chunks):
                if chunk in kept or not is_digest(chunk):
                    continue
                outcome = await self._erase_one(subjects.blob(self._tenant, run, chunk))
                if not isinstance(outcome, bool):
                    return outcome
                erased += outcome
        outcome = await self._journal.erase(subject, record.sequence)
        return outcome if not isinstance(outcome, bool) else erased + outcome

    async def chunks_of(self, run: str, digest: str) -> tuple[str, ...] | Unanswered:
        """The digests of the chunks of a blob that was cut; none if it is whole or not there."""
        data = await self._journal.get(subjects.blob(self._tenant, run, digest))
        if isinstance(data, Unanswered):
            return data
        listed = None if data is None else _read_list(data, digest)
        return () if listed is None else listed.chunks

    async def _erase_one(self, subject: str) -> bool | Refused | Unanswered:
        sequences = await self._journal.sequences(subject)
        if isinstance(sequences, Unanswered):
            return sequences
        erased = False
        for sequence in sequences:
            outcome = await self._journal.erase(subject, sequence)
            if not isinstance(outcome, bool):
                return outcome
            erased = erased or outcome
        return erased

    async def _shared(self, run: str, digest: str, chunks: set[str]) -> set[str] | Unanswered:
        """Which of some chunks another blob of the run has too."""
        shared: set[str] = set()
        after, more = 0, True
        while more:
            page = await self._journal.headings(subjects.blobs_of_run(self._tenant, run), after=after)
            if isinstance(page, Unanswered):
                return page
            for heading in page.headings:
                other = f"sha256:{heading.subject.rpartition('.')[2]}"
                if heading.size <= LONGEST_LIST and other != digest:
                    listed = await self.chunks_of(run, other)
                    if isinstance(listed, Unanswered):
                        return listed
                    shared.update(chunks.intersection(listed))
            more = page.more
            after = page.headings[-1].sequence if page.headings else after
        return shared

    async def sweep(self, now: float) -> int | Refused | Unanswered:
        """Erase the blobs that no commit names and that are older than ten minutes.

        A blob stays if its command is in a commit of its run or if a commit or a list of chunks that stays names its
        digest, for "already there" may have given it to another command.

        Args:
            now: Seconds since 1970 (UTC).

        Returns:
            How many were erased.
        """
        prefix = f"ctx.blob.{subjects.encode_name(self._tenant)}."
        listed = await self._journal.subjects(f"{prefix}>")
        if isinstance(listed, Unanswered):
            return listed
        runs: dict[str, list[str]] = {}
        for subject in listed:
            runs.setdefault(subject.removeprefix(prefix).partition(".")[0], []).append(subject)
        erased = 0
        for token, held in runs.items():
            outcome = await self._sweep_run(subjects.decode_name(token), held, now)
            if not isinstance(outcome, int):
                return outcome
            erased += outcome
        return erased

    async def _sweep_run(self, run: str, held: list[str], now: float) -> int | Refused | Unanswered:
        old: dict[str, Record] = {}
        for subject in held:
            record = await self._journal.last(subject)
            if isinstance(record, Unanswered):
                return record
            if record is not None and now - stored_at(record, now) > UNCOMMITTED_SECONDS:
                old[subject] = record
        if not old:
            return 0
        commands: set[str] = set()
        cited: set[bytes] = set()
        for part in subjects.PARTS:
            records = await self._read_all(subjects.log(self._tenant, run, part))
            if isinstance(records, Unanswered):
                return records
            for record in records:
                commands.add(record.command)
                cited.update(_HEX.findall(record.data))
        for subject, record in old.items():
            if _stays(subject, record, commands, cited):
                cited.update(_HEX.findall(record.data) if record.data.startswith(b'{"chunks"') else ())
        erased = 0
        for subject, record in old.items():
            if _stays(subject, record, commands, cited):
                continue
            done = await self._journal.erase(subject, record.sequence)
            if isinstance(done, Refused | Unanswered):
                return done
            erased += done
        return erased

    async def _read_all(self, subject: str) -> list[Record] | Unanswered:
        records: list[Record] = []
        while True:
            page = await self._journal.read(subject, after=records[-1].sequence if records else 0)
            if isinstance(page, Unanswered):
                return page
            records.extend(page.records)
            if not page.more or not page.records:
                return records

    async def _put_all(self, run: str, blobs: list[tuple[str, bytes]], command: str) -> BlobsPut | Refused | Unanswered:
        headers = {COMMAND_HEADER: name_command(command), RUN_HEADER: subjects.encode_name(run)}
        worst: BlobsPut | Refused | Unanswered = BlobsPut()
        for some in _groups(tuple(blobs)):
            # All leave in one flush; awaiting one after the other only collects what has come.
            sent: list[Awaitable[bool | Refused | Unanswered]] = []
            for digest, data in some:
                try:
                    sent.append(self._journal.put(subjects.blob(self._tenant, run, digest), data, headers=headers))
                except PayloadTooLargeError as error:
                    worst = Refused(_TOO_LARGE, str(error))
            for answer in sent:
                outcome = await answer
                if isinstance(outcome, Refused) or (isinstance(outcome, Unanswered) and isinstance(worst, BlobsPut)):
                    worst = outcome
            if not isinstance(worst, BlobsPut):
                return worst
        return worst

    async def _get_one(self, run: str, digest: str) -> bytes | Unanswered | None:
        data = await self._journal.get(subjects.blob(self._tenant, run, digest))
        if not isinstance(data, bytes) or digest_bytes(data) == digest:
            return data
        listed = _read_list(data, digest)
        if listed is None:
            return None
        if listed.size > LONGEST_BLOB or len(listed.chunks) > LONGEST_BLOB // CHUNK_BYTES + 1:
            return None
        return await self._join(run, digest, listed)

    async def _join(self, run: str, digest: str, listed: ChunkList) -> bytes | Unanswered | None:
        chunks: list[bytes] = []
        for some in _groups(listed.chunks):
            named = [subjects.blob(self._tenant, run, chunk) for chunk in some if is_digest(chunk)]
            for data in await asyncio.gather(*(self._journal.get(subject) for subject in named)):
                if not isinstance(data, bytes):
                    return data
                chunks.append(data)
        whole = b"".join(chunks)
        return whole if digest_bytes(whole) == digest else None


def _read_list(data: bytes, digest: str) -> ChunkList | None:
    """The list of chunks that stands for a blob; None if this is the blob itself, or damaged."""
    if digest_bytes(data) == digest:
        return None
    try:
        return codec.decode_json(data, ChunkList)
    except ContextBusError:
        return None


def _groups(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


def _stays(subject: str, record: Record, commands: set[str], cited: set[bytes]) -> bool:
    digest = subject.rpartition(".")[2].encode()
    return digest in cited or (record.command != "" and record.command in commands)


def stored_at(record: Record, now: float) -> float:
    """Seconds since 1970 (UTC); a record without a readable date counts as new."""
    try:
        return datetime.fromisoformat(record.stored_at).timestamp()
    except ValueError:
        return now

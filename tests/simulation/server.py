"""The simulated log and package store: the semantics of JetStream that the design rests on, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from contextbus.actors.append import (
    AppendCommit,
    Appended,
    BlobsPut,
    LastRead,
    PutBlobs,
    ReadLast,
    Refused,
)
from contextbus.actors.catch_up import PageRead, ReadPage

WRONG_LAST_SEQUENCE = 10071
MAXIMUM_BYTES = 10077

Request = PutBlobs | AppendCommit | ReadLast | ReadPage
Reply = BlobsPut | Appended | Refused | LastRead | PageRead


class Server:
    """One stream for the log with an expectation for each append, one content-addressed store for blobs."""

    def __init__(self, *, replicated: bool) -> None:
        self.log: list[tuple[str, bytes, str]] = []
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.by_subject: dict[str, list[int]] = {}
        self.conflicts = 0
        self.duplicates = 0
        self.full = False
        self.on_append: Callable[[str, int, bytes], None] | None = None
        self.once: dict[tuple[str, str], bytes] = {}
        self.erased: set[tuple[str, str]] = set()
        self.lost: set[tuple[str, str]] = set()
        self._ids: dict[str, int] = {}
        self._replicated = replicated

    def answer(self, request: Request, *, lag: int = 0) -> Reply:
        """Carry out one operation; ``lag`` is how many of a subject's newest messages a stale replica misses."""
        match request:
            case PutBlobs(run, blobs):
                for digest, data in blobs:
                    self.blobs.setdefault((run, digest), data)
                    self.erased.discard((run, digest))
                return BlobsPut()
            case AppendCommit() if self.full:
                return Refused(MAXIMUM_BYTES, "maximum bytes exceeded")
            case AppendCommit():
                return self._append(request)
            case ReadLast(subject):
                sequences = self.by_subject.get(subject)
                if not sequences:
                    return LastRead()
                _, data, command = self.log[sequences[-1] - 1]
                return LastRead(sequences[-1], data, command)
            case ReadPage(subject, after, limit):
                known = self.by_subject.get(subject, [])
                known = known[: len(known) - lag] if lag else known
                wanted = [s for s in known if s > after]
                page = wanted[: max(1, limit)]
                return PageRead(tuple((s, self.log[s - 1][1]) for s in page), len(wanted) > len(page))

    def _append(self, request: AppendCommit) -> Appended | Refused:
        if self._replicated and request.message_id in self._ids:  # a replicated stream looks for duplicates first
            self.duplicates += 1
            return Appended(self._ids[request.message_id], duplicate=True)
        sequences = self.by_subject.setdefault(request.subject, [])
        if request.expected != (sequences[-1] if sequences else 0):
            self.conflicts += 1
            return Refused(WRONG_LAST_SEQUENCE)
        if request.message_id in self._ids:
            self.duplicates += 1
            return Appended(self._ids[request.message_id], duplicate=True)
        self.log.append((request.subject, request.data, request.command))
        sequences.append(len(self.log))
        if self.on_append is not None:
            self.on_append(request.subject, len(self.log), request.data)
        self._ids[request.message_id] = len(self.log)
        return Appended(len(self.log))

    def write(self, subject: str, data: bytes, command: str) -> int:
        """Append what no race is about; gives its sequence."""
        expected = self.by_subject.get(subject) or [0]
        answer = self._append(AppendCommit(subject, data, expected[-1], f"{command}/{len(self.log)}", command))
        assert isinstance(answer, Appended)
        return answer.sequence

    def erase(self, run: str, digest: str) -> None:
        """Erase a blob, as retention does."""
        data = self.blobs.pop((run, digest), None)
        if data is not None:
            self.once[run, digest] = data
            self.erased.add((run, digest))
            self.lost.add((run, digest))

    def remembered(self, run: str, digest: str) -> bytes:
        """A blob that is stored or was: checks look at what nobody else can read any more."""
        data = self.blobs.get((run, digest))
        return self.once[run, digest] if data is None else data

    def records(self, subject: str) -> list[tuple[int, bytes]]:
        """All messages of a subject, oldest first."""
        return [(s, self.log[s - 1][1]) for s in self.by_subject.get(subject, [])]

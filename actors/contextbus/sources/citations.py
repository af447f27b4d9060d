"""Which packages and summaries hold which memory records: an index of the tenant's log, made of ids and digests alone.

It also knows the blobs that no commit names yet, since a step that died may have left a record's text in one.  All of
it blocks: use a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from contextbus.runtime.journal import Heading
from contextbus.runtime.package_store import CHUNK_BYTES, UNCOMMITTED_SECONDS
from contextbus.sources import cited_summaries
from contextbus.sources.cited_summaries import CitedSummary, DueSummary
from contextbus.sources.database import MEMORY, Database
from contextbus_protocol.events import PackageRedacted, RecordErased, SummaryRedacted
from contextbus_protocol.subjects import encode_name

SCHEMA_VERSION: Final = 3
_SCHEMA: Final = f"""{cited_summaries.SCHEMA}
CREATE TABLE marks (name TEXT PRIMARY KEY, sequence INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE erased (record_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, at REAL NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, record_id TEXT NOT NULL UNIQUE);
CREATE TABLE packages (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, reference TEXT NOT NULL, step INTEGER NOT NULL,
    sequence INTEGER NOT NULL, UNIQUE (run, reference)
);
CREATE TABLE citations (
    record INTEGER NOT NULL, package INTEGER NOT NULL, placed INTEGER NOT NULL, PRIMARY KEY (record, package)
) WITHOUT ROWID;
CREATE TABLE redacted (
    record_id TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (record_id, run, step)
) WITHOUT ROWID;
CREATE TABLE spent (
    run TEXT NOT NULL, reference TEXT NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (run, reference, record_id)
) WITHOUT ROWID;
CREATE TABLE uncommitted (
    sequence INTEGER PRIMARY KEY, run TEXT NOT NULL, reference TEXT NOT NULL, command TEXT NOT NULL,
    size INTEGER NOT NULL, at REAL NOT NULL, seen INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX uncommitted_runs ON uncommitted (run, reference);
CREATE TABLE named (
    sequence INTEGER NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (sequence, record_id)
) WITHOUT ROWID;
CREATE INDEX named_records ON named (record_id)
"""

_SPEND: Final = "INSERT OR IGNORE INTO spent (run, reference, record_id) VALUES (?, ?, ?)"

# CROSS JOIN keeps the order of the tables: a look costs as much as was forgotten, not as much as was cited.
DUE: Final = """
SELECT p.run, e.record_id, e.sequence, p.step, p.reference, c.placed, p.sequence FROM erased e
CROSS JOIN records r ON r.record_id = e.record_id CROSS JOIN citations c ON c.record = r.id
CROSS JOIN packages p ON p.id = c.package ORDER BY p.run, e.record_id, p.sequence
"""
CONDEMNED: Final = """
SELECT u.sequence, u.run, u.reference, u.command, u.size, group_concat(e.record_id, ' ') FROM erased e
CROSS JOIN named n ON n.record_id = e.record_id CROSS JOIN uncommitted u ON u.sequence = n.sequence
GROUP BY u.sequence ORDER BY u.sequence
"""


class Cited(msgspec.Struct, frozen=True):
    """The records of the store that one package was offered, each with whether it was placed."""

    step: int
    package: str
    records: tuple[tuple[str, bool], ...]


class LoggedRun(msgspec.Struct, frozen=True):
    """What a commit of a run says of its blobs; ``names`` are the digests that it names."""

    sequence: int
    run: str
    digest: str
    names: frozenset[str]
    cited: tuple[Cited, ...] = ()
    redacted: tuple[PackageRedacted, ...] = ()
    summaries: tuple[CitedSummary, ...] = ()
    deleted: tuple[SummaryRedacted, ...] = ()


class Due(msgspec.Struct, frozen=True):
    """A package that holds a forgotten record: ``erasure`` is its tombstone, ``sequence`` the package's commit."""

    run: str
    record_id: str
    erasure: int
    step: int
    package: str
    placed: bool
    sequence: int


class Uncommitted(msgspec.Struct, frozen=True):
    """A blob that no commit names; ``sequence`` is that of its stream."""

    sequence: int
    run: str
    reference: str
    command: str
    size: int


class CitationMarks(msgspec.Struct, frozen=True):
    """The last sequences that the index has taken in; ``digest`` is that of the last commit of a run."""

    log: int = 0
    digest: str = ""
    erasures: int = 0
    blobs: int = 0


def open_citations(tenant: str, source: str, data: Path | str | None) -> CitationIndex:
    """The citations of one memory store: a file in a folder, or in memory without one."""
    if data is None:
        return CitationIndex(MEMORY, source)
    return CitationIndex(Path(data) / f"citations-{encode_name(tenant)}-{encode_name(source)}.sqlite", source)


class CitationIndex:
    """The citations of one memory store.

    Args:
        path: The index file, or ``database.MEMORY``.
        source: The id of the memory source.
    """

    def __init__(self, path: Path | str, source: str) -> None:
        self._source = source
        self._database = Database(path, schema=_SCHEMA, version=SCHEMA_VERSION, full_text=())

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def reset(self) -> None:
        """Empty the index: it is filled again from the log."""
        self._database.reset()

    def marks(self) -> CitationMarks:
        """How far the index has come."""
        return self._database.use(_read_marks)

    # -- what is taken in

    def apply_erasures(self, events: Iterable[tuple[RecordErased, int, float]], *, after: int, mark: int) -> None:
        """Take in tombstones, each with its sequence and the time it was stored, between two sequences."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                if not after <= _read_marks(connection).erasures < mark:
                    return
                rows = [(event.record_id, sequence, at) for event, sequence, at in events]
                connection.executemany("INSERT OR REPLACE INTO erased (record_id, sequence, at) VALUES (?, ?, ?)", rows)
                _write_mark(connection, "erasures", mark)

        self._database.use(write)

    def apply_headings(self, headings: Sequence[tuple[str, str, Heading]], *, after: int, mark: int) -> None:
        """Take in stored blobs, each with its run and reference, between two sequences: no commit names them yet."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                done = _read_marks(connection).blobs
                if not after <= done < mark:
                    return
                rows = [
                    (h.sequence, run, reference, h.command, h.size, h.stored_at)
                    for run, reference, h in headings
                    if h.sequence > done
                ]
                connection.executemany(
                    "INSERT OR IGNORE INTO uncommitted (sequence, run, reference, command, size, at)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    rows,
                )
                _write_mark(connection, "blobs", mark)

        self._database.use(write)

    def apply_commits(self, commits: Sequence[LoggedRun], *, after: int, mark: int) -> None:
        """Take in commits between two sequences of the log, the first of which the index has reached."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                done = _read_marks(connection).log
                if not after <= done < mark:
                    return
                new = [commit for commit in commits if commit.sequence > done]
                ids = _record_ids(connection, {name for commit in new for name in _records_of(commit)})
                for commit in new:
                    self._take_in(connection, commit, ids)
                _write_mark(connection, "log", mark, commits[-1].digest if commits else "")

        self._database.use(write)

    def _take_in(self, connection: sqlite3.Connection, commit: LoggedRun, ids: dict[str, int]) -> None:
        if commit.names:
            held = connection.execute("SELECT sequence, reference FROM uncommitted WHERE run = ?", (commit.run,))
            _drop_uncommitted(connection, [s for s, reference in held.fetchall() if reference in commit.names])
        for cited in commit.cited:
            package = _package_of(connection, commit.run, cited.package)
            if package is None:
                package = connection.execute(
                    "INSERT INTO packages (run, reference, step, sequence) VALUES (?, ?, ?, ?)",
                    (commit.run, cited.package, cited.step, commit.sequence),
                ).lastrowid
            connection.executemany(
                "INSERT OR REPLACE INTO citations (record, package, placed) VALUES (?, ?, ?)",
                [(ids[name], package, placed) for name, placed in cited.records],
            )
        for summary in commit.summaries:
            cited_summaries.take_in_summary(connection, commit.run, commit.sequence, summary, ids)
        for event in commit.redacted:
            self._take_redaction(connection, commit, event)
        for gone in commit.deleted:
            if gone.source == self._source and cited_summaries.take_deletion(connection, commit.run, gone):
                spent = (gone.replaced_by,) if gone.archive is None else (gone.replaced_by, gone.archive)
                connection.executemany(_SPEND, [(commit.run, reference, gone.record_id) for reference in spent])

    def _take_redaction(self, connection: sqlite3.Connection, commit: LoggedRun, event: PackageRedacted) -> None:
        package = _package_of(connection, commit.run, event.package)
        if event.source == self._source:
            connection.execute(
                "DELETE FROM citations WHERE package = ? AND record = (SELECT id FROM records WHERE record_id = ?)",
                (package, event.record_id),
            )
            connection.execute(
                "INSERT OR IGNORE INTO redacted (record_id, run, step) VALUES (?, ?, ?)",
                (event.record_id, commit.run, event.step),
            )
        if package is not None and event.replacement != event.package:
            connection.execute(
                "UPDATE OR REPLACE packages SET reference = ?, sequence = ? WHERE id = ?",
                (event.replacement, commit.sequence, package),
            )
        if package is not None and event.source == self._source and event.replacement != event.package:
            connection.execute(_SPEND, (commit.run, event.package, event.record_id))

    # -- what is to be done

    def due(self) -> tuple[Due, ...]:
        """The packages that hold forgotten records, by run, record and step."""
        rows = self._database.use(lambda c: c.execute(DUE).fetchall())
        return tuple(
            Due(run, name, erasure, step, ref, bool(placed), at) for run, name, erasure, step, ref, placed, at in rows
        )

    def due_summaries(self) -> tuple[DueSummary, ...]:
        """The summaries that may tell of forgotten records, by run, record and commit."""
        return self._database.use(cited_summaries.list_due)

    def spent(self) -> tuple[tuple[str, str, str], ...]:
        """The blobs that a forget of this store has replaced or withdrawn, as (run, reference, record id).

        A redaction without a tombstone is none: anybody may send the command, and nothing is erased for it.
        """
        sql = "SELECT run, reference, record_id FROM spent WHERE record_id IN (SELECT record_id FROM erased)"
        return self._database.use(lambda c: tuple(c.execute(sql).fetchall()))

    def unread(self) -> tuple[Uncommitted, ...]:
        """The uncommitted blobs that nobody has looked into and that may be of a step from before a tombstone."""
        sql = (
            "SELECT sequence, run, reference, command, size FROM uncommitted"
            " WHERE NOT seen AND at <= (SELECT max(at) FROM erased) + ? ORDER BY sequence"
        )
        rows = self._database.use(lambda c: c.execute(sql, (UNCOMMITTED_SECONDS,)).fetchall())
        return tuple(Uncommitted(*row) for row in rows)

    def condemned(self) -> tuple[tuple[Uncommitted, frozenset[str]], ...]:
        """The uncommitted blobs that hold forgotten records, each with those records."""
        rows = self._database.use(lambda c: c.execute(CONDEMNED).fetchall())
        return tuple((Uncommitted(*row), frozenset(names.split(" "))) for *row, names in rows)

    def runs_with_uncommitted(self) -> dict[str, bool]:
        """The runs that have uncommitted blobs, each with whether one may be a chunk."""
        sql = "SELECT run, max(size = ?) FROM uncommitted GROUP BY run"
        rows = self._database.use(lambda c: c.execute(sql, (CHUNK_BYTES,)).fetchall())
        return {run: bool(chunk) for run, chunk in rows}

    def redacted(self, record_id: str) -> tuple[tuple[str, int], ...]:
        """The steps that a record was taken out of, as (run, step) in this order."""
        sql = "SELECT run, step FROM redacted WHERE record_id = ? ORDER BY run, step"
        return self._database.use(lambda c: tuple(c.execute(sql, (record_id,)).fetchall()))

    def deleted_summaries(self, record_id: str) -> tuple[tuple[str, str, str | None], ...]:
        """The summaries that a record took with it, as (run, summary, archive) in this order."""
        return self._database.use(lambda c: cited_summaries.list_deleted(c, record_id))

    # -- what was done

    def note_read(self, found: Iterable[tuple[int, Iterable[str]]]) -> None:
        """Keep which records uncommitted blobs name, each as (sequence, record ids); one that names none is let go."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                for sequence, names in found:
                    rows = [(sequence, name) for name in names]
                    if not rows:
                        _drop_uncommitted(connection, (sequence,))
                        continue
                    connection.execute("UPDATE uncommitted SET seen = 1 WHERE sequence = ?", (sequence,))
                    connection.executemany("INSERT OR IGNORE INTO named (sequence, record_id) VALUES (?, ?)", rows)

        self._database.use(write)

    def drop_uncommitted(self, sequences: Iterable[int]) -> None:
        """Let go of uncommitted blobs that are erased."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                _drop_uncommitted(connection, sequences)

        self._database.use(write)

    def drop_spent(self, run: str, reference: str) -> None:
        """Let go of a replaced blob that is erased."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                connection.execute("DELETE FROM spent WHERE run = ? AND reference = ?", (run, reference))
                cited_summaries.drop_erased(connection, run, reference)

        self._database.use(write)

    def drop_run(self, run: str) -> None:
        """Let go of a run whose log is gone."""

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                connection.execute(
                    "DELETE FROM citations WHERE package IN (SELECT id FROM packages WHERE run = ?)", (run,)
                )
                connection.execute("DELETE FROM packages WHERE run = ?", (run,))
                cited_summaries.drop_summaries(connection, run)

        self._database.use(write)


def _records_of(commit: LoggedRun) -> Iterator[str]:
    for cited in commit.cited:
        yield from (name for name, _ in cited.records)
    for summary in commit.summaries:
        yield from summary.records


def _read_marks(connection: sqlite3.Connection) -> CitationMarks:
    found = {name: (sequence, digest) for name, sequence, digest in connection.execute("SELECT * FROM marks")}
    log, digest = found.get("log", (0, ""))
    return CitationMarks(log, digest, found.get("erasures", (0, ""))[0], found.get("blobs", (0, ""))[0])


def _write_mark(connection: sqlite3.Connection, name: str, sequence: int, digest: str = "") -> None:
    connection.execute(
        "INSERT OR REPLACE INTO marks (name, sequence, digest) VALUES (?, ?, ?)", (name, sequence, digest)
    )


def _record_ids(connection: sqlite3.Connection, names: set[str]) -> dict[str, int]:
    """The numbers of records; those that are new get one."""
    connection.executemany("INSERT OR IGNORE INTO records (record_id) VALUES (?)", [(name,) for name in sorted(names)])
    sql = "SELECT id FROM records WHERE record_id = ?"
    return {name: connection.execute(sql, (name,)).fetchone()[0] for name in names}


def _package_of(connection: sqlite3.Connection, run: str, reference: str) -> int | None:
    sql = "SELECT id FROM packages WHERE run = ? AND reference = ?"
    row = connection.execute(sql, (run, reference)).fetchone()
    return None if row is None else int(row[0])


def _drop_uncommitted(connection: sqlite3.Connection, sequences: Iterable[int]) -> None:
    rows = [(sequence,) for sequence in sequences]
    connection.executemany("DELETE FROM uncommitted WHERE sequence = ?", rows)
    connection.executemany("DELETE FROM named WHERE sequence = ?", rows)

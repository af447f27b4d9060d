"""The summaries of compacted histories in a citation index: which records each may tell of, and what a forget took.

All of it works on the connection of the index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus_protocol.events import CompactionCompleted, SummaryRedacted

SCHEMA: Final = """
CREATE TABLE summaries (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, reference TEXT NOT NULL, archive TEXT NOT NULL,
    sequence INTEGER NOT NULL, UNIQUE (run, reference, archive)
);
CREATE TABLE summary_citations (
    record INTEGER NOT NULL, summary INTEGER NOT NULL, PRIMARY KEY (record, summary)
) WITHOUT ROWID;
CREATE INDEX cited_summaries ON summary_citations (summary);
CREATE TABLE redacted_summaries (
    record_id TEXT NOT NULL, run TEXT NOT NULL, reference TEXT NOT NULL, archive TEXT NOT NULL,
    PRIMARY KEY (record_id, run, reference, archive)
) WITHOUT ROWID;
"""

# CROSS JOIN keeps the order of the tables: a look costs as much as was forgotten, not as much as was cited.
DUE_SUMMARIES: Final = """
SELECT s.run, e.record_id, e.sequence, s.reference, s.archive, s.sequence FROM erased e
CROSS JOIN records r ON r.record_id = e.record_id CROSS JOIN summary_citations c ON c.record = r.id
CROSS JOIN summaries s ON s.id = c.summary ORDER BY s.run, e.record_id, s.sequence
"""


class CitedSummary(msgspec.Struct, frozen=True):
    """A summary with the records of the store whose blocks lay in or before its range (C.X.11)."""

    summary: str
    archive: str | None
    records: tuple[str, ...]


class DueSummary(msgspec.Struct, frozen=True):
    """A summary that may tell of a forgotten record: ``erasure`` is the tombstone, ``sequence`` its own commit."""

    run: str
    record_id: str
    erasure: int
    summary: str
    archive: str | None
    sequence: int


def cited_summary(event: CompactionCompleted, source: str) -> CitedSummary:
    """What a compaction says of the records of one source, each once."""
    records = dict.fromkeys(record.record_id for record in event.records if record.source == source)
    return CitedSummary(event.replaced_by, event.archive, tuple(records))


def take_in_summary(
    connection: sqlite3.Connection, run: str, sequence: int, cited: CitedSummary, ids: Mapping[str, int]
) -> None:
    """Note a summary; the same blobs may be the outcome of another compaction later on."""
    key = (run, cited.summary, cited.archive or "")
    connection.execute(
        "INSERT INTO summaries (run, reference, archive, sequence) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (run, reference, archive) DO UPDATE SET sequence = excluded.sequence",
        (*key, sequence),
    )
    number = _number_of(connection, *key)
    connection.executemany(
        "INSERT OR IGNORE INTO summary_citations (record, summary) VALUES (?, ?)",
        [(ids[name], number) for name in cited.records],
    )


def take_deletion(connection: sqlite3.Connection, run: str, event: SummaryRedacted) -> bool:
    """Note that a forget took a summary; gives whether the summary was cited for that record: any command may say so.

    Its other records keep citing it until its blobs are erased, for what was said may be no forget.
    """
    key = (run, event.replaced_by, event.archive or "")
    deleted = connection.execute(
        "DELETE FROM summary_citations WHERE summary = ? AND record = (SELECT id FROM records WHERE record_id = ?)",
        (_number_of(connection, *key), event.record_id),
    ).rowcount
    if deleted:
        connection.execute(
            "INSERT OR IGNORE INTO redacted_summaries (record_id, run, reference, archive) VALUES (?, ?, ?, ?)",
            (event.record_id, *key),
        )
    return bool(deleted)


def list_due(connection: sqlite3.Connection) -> tuple[DueSummary, ...]:
    """The summaries that may tell of forgotten records, by run, record and commit."""
    rows = connection.execute(DUE_SUMMARIES).fetchall()
    return tuple(
        DueSummary(run, name, erasure, summary, archive or None, at)
        for run, name, erasure, summary, archive, at in rows
    )


def list_deleted(connection: sqlite3.Connection, record_id: str) -> tuple[tuple[str, str, str | None], ...]:
    """The summaries that a record took with it, as (run, summary, archive) in this order."""
    sql = "SELECT run, reference, archive FROM redacted_summaries WHERE record_id = ? ORDER BY run, reference, archive"
    return tuple((run, summary, archive or None) for run, summary, archive in connection.execute(sql, (record_id,)))


def drop_erased(connection: sqlite3.Connection, run: str, reference: str) -> None:
    """Let go of what records cite of a summary whose blob is erased."""
    sql = "SELECT id FROM summaries WHERE run = ? AND reference = ?"
    _drop(connection, connection.execute(sql, (run, reference)).fetchall())


def drop_summaries(connection: sqlite3.Connection, run: str) -> None:
    """Let go of the summaries of a run whose log is gone."""
    _drop(connection, connection.execute("SELECT id FROM summaries WHERE run = ?", (run,)).fetchall())


def _drop(connection: sqlite3.Connection, numbers: Iterable[tuple[int]]) -> None:
    numbers = tuple(numbers)
    connection.executemany("DELETE FROM summary_citations WHERE summary = ?", numbers)
    connection.executemany("DELETE FROM summaries WHERE id = ?", numbers)


def _number_of(connection: sqlite3.Connection, run: str, summary: str, archive: str) -> int | None:
    sql = "SELECT id FROM summaries WHERE run = ? AND reference = ? AND archive = ?"
    row = connection.execute(sql, (run, summary, archive)).fetchone()
    return None if row is None else int(row[0])

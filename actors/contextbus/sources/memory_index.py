"""The index of a memory store: the newest revision of each record, searched by scope.  All of it blocks: use a thread.

It follows two subjects: the records themselves and the erasures.  Whatever order they are read in, an erased record
never comes back, since a tombstone names the record and its digests for good.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from contextbus.core.scope import SCOPE_FIELDS, read_field, require_scope, set_fields
from contextbus.sources.database import MEMORY, Database
from contextbus.sources.lexical import TOKENIZER, match_expression, score_of, spread
from contextbus_protocol.events import RecordAllowed, RecordErased
from contextbus_protocol.memory_records import MemoryRecord
from contextbus_protocol.subjects import encode_name
from contextbus_protocol.values import Scope

SCHEMA_VERSION: Final = 2
_SCHEMA: Final = f"""
CREATE TABLE marks (name TEXT PRIMARY KEY, sequence INTEGER NOT NULL);
CREATE TABLE records (
    id INTEGER PRIMARY KEY, record_id TEXT NOT NULL UNIQUE, sequence INTEGER NOT NULL, revision INTEGER NOT NULL,
    digest TEXT NOT NULL, text TEXT NOT NULL, at INTEGER NOT NULL, origin TEXT NOT NULL, source_kinds TEXT NOT NULL,
    version INTEGER NOT NULL, {", ".join(f"{field} TEXT" for field in SCOPE_FIELDS)}
);
CREATE TABLE erased (record_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL);
CREATE TABLE forbidden (digest TEXT PRIMARY KEY);
CREATE TABLE allowed (digest TEXT PRIMARY KEY);
CREATE VIRTUAL TABLE words USING fts5(body, tokenize = '{TOKENIZER}')
"""
_COLUMNS: Final = "record_id, revision, digest, text, at, origin, source_kinds, version, " + ", ".join(SCOPE_FIELDS)


class MemoryHit(msgspec.Struct, frozen=True):
    """A record that matches: higher scores match better."""

    record: MemoryRecord
    score: float


class Marks(msgspec.Struct, frozen=True):
    """The last sequences that the index has taken in: of the records and of the erasures."""

    records: int = 0
    erasures: int = 0


class Anchor(msgspec.Struct, frozen=True):
    """The newest record of the index, by which a stream is recognised."""

    record_id: str
    sequence: int
    digest: str


def open_index(tenant: str, source: str, data: Path | str | None) -> MemoryIndex:
    """The index of one memory store: a file in a folder, or in memory without one."""
    if data is None:
        return MemoryIndex(MEMORY)
    return MemoryIndex(Path(data) / f"memory-{encode_name(tenant)}-{encode_name(source)}.sqlite")


class MemoryIndex:
    """The searchable newest revisions of one memory store.

    Args:
        path: The index file, or ``database.MEMORY``.
    """

    def __init__(self, path: Path | str) -> None:
        self._database = Database(path, schema=_SCHEMA, version=SCHEMA_VERSION, full_text=("words",))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def reset(self) -> None:
        """Empty the index: it is filled again from the stream."""
        self._database.reset()

    def marks(self) -> Marks:
        """How far the index has come."""
        return self._database.use(_read_marks)

    def anchor(self) -> Anchor | None:
        """The newest record, if there is any."""

        def read(connection: sqlite3.Connection) -> Anchor | None:
            row = connection.execute(
                "SELECT record_id, sequence, digest FROM records ORDER BY sequence DESC LIMIT 1"
            ).fetchone()
            return None if row is None else Anchor(*row)

        return self._database.use(read)

    def apply_records(self, revisions: Iterable[tuple[int, MemoryRecord]], *, after: int, mark: int) -> None:
        """Take in the revisions between two sequences of the stream, the first of which the index has reached.

        Repeating it, or another process doing the same, changes nothing; neither does a gap, which a file that was
        damaged and made anew leaves.
        """

        def write(connection: sqlite3.Connection) -> None:
            with self._database.writing(connection):
                done = _read_marks(connection).records
                if not after <= done < mark:
                    return
                for sequence, record in revisions:
                    if sequence > done and not _is_erased(connection, record):
                        _replace(connection, sequence, record)
                _write_mark(connection, "records", mark)

        self._database.use(write)

    def apply_erasures(self, events: Iterable[object], *, after: int, mark: int) -> None:
        """Take in the events between two sequences of the erasures.

        The bytes of erased records are gone from the file when the mark moves; it stays where it is if another process
        holds on to them.
        """

        def write(connection: sqlite3.Connection) -> None:
            has_erased = False
            with self._database.writing(connection):
                if not after <= _read_marks(connection).erasures < mark:
                    return
                for event in events:
                    if isinstance(event, RecordErased):
                        has_erased = True
                        _erase(connection, event, mark)
                    elif isinstance(event, RecordAllowed):
                        rows = [(digest,) for digest in event.digests]
                        connection.executemany("DELETE FROM forbidden WHERE digest = ?", rows)
                        connection.executemany("INSERT OR IGNORE INTO allowed (digest) VALUES (?)", rows)
            if has_erased and not self._database.scrub(connection):
                return
            # Only now: whoever dies before has to do all of it again.
            with self._database.writing(connection):
                _write_mark(connection, "erasures", max(mark, _read_marks(connection).erasures))

        self._database.use(write)

    def is_forbidden(self, digest: str) -> bool:
        """Whether a digest was forgotten and not allowed again (D.K.24)."""
        return self._database.use(lambda connection: _exists(connection, "forbidden", "digest", digest))

    def is_allowed(self, digest: str) -> bool:
        """Whether a digest was forgotten, and the host allowed it again (D.K.24)."""
        return self._database.use(lambda connection: _exists(connection, "allowed", "digest", digest))

    def was_forgotten(self, digest: str) -> bool:
        """Whether a digest was forgotten, be it allowed again or not (D.K.24)."""
        return self.is_forbidden(digest) or self.is_allowed(digest)

    def is_erased(self, record_id: str) -> bool:
        """Whether a record was forgotten; its id is never used again."""
        return self._database.use(lambda connection: _exists(connection, "erased", "record_id", record_id))

    def search(self, text: str, scope: Scope, limit: int) -> tuple[MemoryHit, ...]:
        """The best records for a text within a scope, best first, ties by id (D.K.24).

        Raises:
            ScopeConflictError: the scope names nobody (B61).
        """
        where, values = _within(scope)
        expression = match_expression(text)
        if expression is None or limit < 1:
            return ()
        columns = ", ".join(f"records.{name}" for name in _COLUMNS.split(", "))
        sql = (
            f"SELECT {columns}, bm25(words) AS rank FROM words JOIN records ON records.id = words.rowid"
            f" WHERE words MATCH ? AND {where} ORDER BY rank, records.record_id LIMIT ?"
        )
        rows = self._database.use(lambda c: c.execute(sql, (expression, *values, limit)).fetchall())
        hits = (MemoryHit(_record_of(row[:-1]), score_of(row[-1])) for row in rows)
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.record.record_id)))

    def list_records(self, scope: Scope, limit: int) -> tuple[MemoryRecord, ...]:
        """The newest revisions within a scope, ordered by id.

        Raises:
            ScopeConflictError: the scope names nobody (B61).
        """
        where, values = _within(scope)
        sql = f"SELECT {_COLUMNS} FROM records WHERE {where} ORDER BY record_id LIMIT ?"
        rows = self._database.use(lambda c: c.execute(sql, (*values, limit)).fetchall())
        return tuple(_record_of(row) for row in rows)


def _within(scope: Scope) -> tuple[str, tuple[str, ...]]:
    """SQL for "every field of the scope has the same value there"; only our own names are in its text."""
    pairs = set_fields(require_scope(scope))
    return " AND ".join(f"records.{field} = ?" for field, _ in pairs), tuple(value for _, value in pairs)


def _read_marks(connection: sqlite3.Connection) -> Marks:
    found: dict[str, int] = dict(connection.execute("SELECT name, sequence FROM marks").fetchall())
    return Marks(found.get("records", 0), found.get("erasures", 0))


def _write_mark(connection: sqlite3.Connection, name: str, sequence: int) -> None:
    connection.execute("INSERT OR REPLACE INTO marks (name, sequence) VALUES (?, ?)", (name, sequence))


def _exists(connection: sqlite3.Connection, table: str, column: str, value: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} WHERE {column} = ?", (value,)).fetchone() is not None


def _is_erased(connection: sqlite3.Connection, record: MemoryRecord) -> bool:
    return _exists(connection, "erased", "record_id", record.record_id)


def _delete(connection: sqlite3.Connection, record_id: str) -> None:
    row = connection.execute("SELECT id FROM records WHERE record_id = ?", (record_id,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM words WHERE rowid = ?", row)
        connection.execute("DELETE FROM records WHERE id = ?", row)


def _erase(connection: sqlite3.Connection, event: RecordErased, sequence: int) -> None:
    _delete(connection, event.record_id)
    connection.execute("INSERT OR IGNORE INTO erased (record_id, sequence) VALUES (?, ?)", (event.record_id, sequence))
    rows = [(digest,) for digest in event.digests]
    connection.executemany("INSERT OR IGNORE INTO forbidden (digest) VALUES (?)", rows)
    connection.executemany("DELETE FROM allowed WHERE digest = ?", rows)


def _replace(connection: sqlite3.Connection, sequence: int, record: MemoryRecord) -> None:
    _delete(connection, record.record_id)
    values = (
        record.record_id,
        record.revision,
        record.digest,
        record.text,
        record.at,
        record.origin,
        "\n".join(record.source_kinds),
        record.version,
        *(read_field(record.scope, field) for field in SCOPE_FIELDS),
    )
    marks = ", ".join("?" * (len(values) + 1))
    row = connection.execute(
        f"INSERT INTO records ({_COLUMNS}, sequence) VALUES ({marks})", (*values, sequence)
    ).lastrowid
    connection.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row, spread(record.text)))


def _record_of(row: tuple[object, ...]) -> MemoryRecord:
    names = _COLUMNS.split(", ")
    fields = dict(zip(names, row, strict=True))
    scope = {field: fields.pop(field) for field in SCOPE_FIELDS}
    kinds = str(fields.pop("source_kinds"))
    return msgspec.convert(
        {
            "recordId": fields.pop("record_id"),
            **fields,
            "sourceKinds": kinds.split("\n") if kinds else [],
            "scope": {_camel(field): value for field, value in scope.items() if value is not None},
        },
        type=MemoryRecord,
    )


def _camel(field: str) -> str:
    first, second = field.split("_")
    return first + second.title()

"""The index of a tenant's transcript: what runs said, searched by scope.  All of it blocks: use a thread.

It follows the ``run`` parts of the log.  What a host replaced has left the transcript, and blocks of ours never enter
it, in whatever run they turn up (D.G.33, B56).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from contextbus.core.scope import SCOPE_FIELDS, read_field, require_scope, set_fields
from contextbus.sources.database import Database
from contextbus.sources.lexical import TOKENIZER, match_expression, score_of, spread
from contextbus_protocol.chat import Role
from contextbus_protocol.values import Scope

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = f"""
CREATE TABLE mark (id INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, run TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE runs (run TEXT PRIMARY KEY, {", ".join(f"{field} TEXT" for field in SCOPE_FIELDS)});
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, record_id TEXT NOT NULL UNIQUE, run TEXT NOT NULL, position INTEGER NOT NULL,
    sequence INTEGER NOT NULL, digest TEXT NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX messages_of_run ON messages (run, position);
CREATE INDEX messages_by_digest ON messages (digest);
CREATE TABLE blocks (digest TEXT PRIMARY KEY);
CREATE VIRTUAL TABLE words USING fts5(body, tokenize = '{TOKENIZER}')
"""


class RunBegun(msgspec.Struct, frozen=True):
    """A run began, with the scope that is pinned for good (D.K.2)."""

    scope: Scope


class HistoryKept(msgspec.Struct, frozen=True):
    """Only the first ``keep`` source messages stayed."""

    keep: int


class MessageSaid(msgspec.Struct, frozen=True):
    """A message with words: ``position`` is its place in the run's source history, from 0."""

    position: int
    digest: str
    role: Role
    text: str


class BlocksPlaced(msgspec.Struct, frozen=True):
    """A step has blocks of ours, or a history a summary: the digests of their messages (D.G.33)."""

    digests: tuple[str, ...]


Change = RunBegun | HistoryKept | MessageSaid | BlocksPlaced


class RunCommit(msgspec.Struct, frozen=True):
    """What a commit changes; ``digest`` is over its bytes, ``sequence`` the one in the log's stream."""

    sequence: int
    run: str
    digest: str
    changes: tuple[Change, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """The last commit that the index has taken in, by which a stream is recognised too."""

    sequence: int = 0
    run: str = ""
    digest: str = ""


class TranscriptHit(msgspec.Struct, frozen=True):
    """A message that matches: higher scores match better."""

    record_id: str
    run: str
    role: Role
    text: str
    score: float


class TranscriptIndex:
    """The searchable messages of one tenant's runs.

    Args:
        path: The index file, or ``database.MEMORY``.
    """

    def __init__(self, path: Path | str) -> None:
        self._database = Database(path, schema=_SCHEMA, version=SCHEMA_VERSION, full_text=("words",))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def reset(self) -> None:
        """Empty the index: it is filled again from the log."""
        self._database.reset()

    def mark(self) -> Mark:
        """How far the index has come."""
        return self._database.use(_read_mark)

    def apply(self, commits: Sequence[RunCommit], *, after: int) -> None:
        """Take in the commits behind a sequence that the index has reached, in the order of the stream.

        Repeating it, or another process doing the same, changes nothing; neither does a gap, which a file that was
        damaged and made anew leaves.
        """

        def write(connection: sqlite3.Connection) -> None:
            removed = 0
            with self._database.writing(connection):
                done = _read_mark(connection).sequence
                if not (commits and after <= done < commits[-1].sequence):
                    return
                for commit in commits:
                    if commit.sequence > done:
                        removed += sum(_apply(connection, commit, change) for change in commit.changes)
                last = commits[-1]
                values = (last.sequence, last.run, last.digest)
                connection.execute(
                    "INSERT OR REPLACE INTO mark (id, sequence, run, digest) VALUES (1, ?, ?, ?)", values
                )
            if removed:
                self._database.scrub(connection)

        self._database.use(write)

    def runs(self) -> tuple[str, ...]:
        """The runs that the index knows, ordered."""
        rows = self._database.use(lambda c: c.execute("SELECT run FROM runs ORDER BY run").fetchall())
        return tuple(run for (run,) in rows)

    def drop_runs(self, runs: Iterable[str]) -> None:
        """Erase all that runs said: they were deleted."""
        self._drop([("run = ?", run) for run in runs])

    def drop_before(self, sequence: int) -> None:
        """Erase what commits below a sequence said: the log does not hold them any more."""
        self._drop([("sequence < ?", sequence)])

    def _drop(self, conditions: Sequence[tuple[str, str | int]]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            removed = 0
            with self._database.writing(connection):
                for where, value in conditions:
                    removed += _delete(connection, where, value)
                    if isinstance(value, str):
                        connection.execute("DELETE FROM runs WHERE run = ?", (value,))
            if removed:
                self._database.scrub(connection)

        self._database.use(write)

    def search(self, text: str, scope: Scope, limit: int, *, run: str = "") -> tuple[TranscriptHit, ...]:
        """The best messages for a text in the runs within a scope, best first, ties by id (D.K.25).

        Left out is what the request of ``run`` holds: its own history, copies of that in other runs, and what says
        nothing but the text that is searched for (D.K.12).

        Raises:
            ScopeConflictError: the scope names nobody (B61).
        """
        pairs = set_fields(require_scope(scope))
        expression = match_expression(text)
        if expression is None or limit < 1:
            return ()
        # Only our own names are in the text of the statement.
        within = " AND ".join(f"runs.{field} = ?" for field, _ in pairs)
        sql = (
            "SELECT messages.record_id, messages.run, messages.role, messages.text, bm25(words) AS rank"
            " FROM words JOIN messages ON messages.id = words.rowid JOIN runs ON runs.run = messages.run"
            f" WHERE words MATCH ? AND {within} AND messages.run <> ? AND messages.text <> ? AND NOT EXISTS"
            " (SELECT 1 FROM messages AS own WHERE own.digest = messages.digest AND own.run = ?)"
            " ORDER BY rank, messages.record_id LIMIT ?"
        )
        values = (expression, *(value for _, value in pairs), run, text, run, limit)
        rows = self._database.use(lambda c: c.execute(sql, values).fetchall())
        hits = (
            TranscriptHit(record_id, name, role, said, score_of(rank)) for record_id, name, role, said, rank in rows
        )
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.record_id)))


def _read_mark(connection: sqlite3.Connection) -> Mark:
    row = connection.execute("SELECT sequence, run, digest FROM mark").fetchone()
    return Mark() if row is None else Mark(*row)


def _apply(connection: sqlite3.Connection, commit: RunCommit, change: Change) -> int:
    """Take in one change; gives how many messages it removed."""
    match change:
        case RunBegun(scope=scope):
            # A deleted run whose name is used again has nothing of the first.
            removed = _delete(connection, "run = ?", commit.run)
            values = (commit.run, *(read_field(scope, field) for field in SCOPE_FIELDS))
            connection.execute(f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(values))})", values)
            return removed
        case HistoryKept(keep=keep):
            return _delete(connection, "run = ? AND position >= ?", commit.run, keep)
        case MessageSaid():
            _insert(connection, commit, change)
            return 0
        case BlocksPlaced(digests=digests):
            connection.executemany("INSERT OR IGNORE INTO blocks (digest) VALUES (?)", [(d,) for d in digests])
            return sum(_delete(connection, "digest = ?", digest) for digest in digests)


def _insert(connection: sqlite3.Connection, commit: RunCommit, said: MessageSaid) -> None:
    # Without the run's beginning its scope is unknown, and nobody may see it.
    for table, column, value, wanted in (("blocks", "digest", said.digest, False), ("runs", "run", commit.run, True)):
        found = connection.execute(f"SELECT 1 FROM {table} WHERE {column} = ?", (value,)).fetchone()
        if (found is not None) is not wanted:
            return
    record_id = f"{commit.run}/{said.position}"
    _delete(connection, "record_id = ?", record_id)
    row = connection.execute(
        "INSERT INTO messages (record_id, run, position, sequence, digest, role, text) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (record_id, commit.run, said.position, commit.sequence, said.digest, said.role, said.text),
    ).lastrowid
    connection.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row, spread(said.text)))


def _delete(connection: sqlite3.Connection, where: str, *values: str | int) -> int:
    """Remove messages with their words; gives their number."""
    connection.execute(f"DELETE FROM words WHERE rowid IN (SELECT id FROM messages WHERE {where})", values)
    return connection.execute(f"DELETE FROM messages WHERE {where}", values).rowcount

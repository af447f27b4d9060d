"""SQLite files of our indexes: private, erased in earnest, rebuilt when damaged.  All of it blocks: use a thread.

An index is a cache of a folder or a stream, so a damaged file is thrown away and made again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

BUSY_SECONDS: Final = 30.0
MEMORY: Final = ":memory:"
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_INCOMPLETE: Final = ("no such table", "no such column", "vtable constructor failed")
_RETRY_SECONDS: Final = 0.01
_PRIMARY: Final = 0xFF
_SECURE_FTS: Final = (3, 42, 0)


class Database:
    """One SQLite file with one connection, used by one thread at a time.

    Attributes:
        generation: How many times this object made the tables anew.

    Args:
        path: The file, or ``MEMORY``.
        schema: SQL that makes the tables of an empty file.
        version: The version of schema and settings; a file of another one is made anew.
        full_text: The names of the FTS5 tables, from which deleted words are to vanish.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        schema: str,
        version: int,
        full_text: tuple[str, ...],
    ) -> None:
        self._path = None if path == MEMORY else Path(path)
        self._schema = schema
        self._version = version
        self._full_text = full_text
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._is_ready = False
        self.generation = 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work on the connection, once more on an empty file if this one is damaged."""
        with self._lock:
            try:
                return work(self._open())
            except sqlite3.DatabaseError as exc:
                if not is_damage(exc):
                    raise
                self.reset()
                return work(self._open())

    def reset(self) -> None:
        """Throw the file away, unless another connection has done so already."""
        with self._lock:
            replaced = self._is_replaced()
            self.close()
            if self._path is not None and not replaced:
                for suffix in ("", "-wal", "-shm", "-journal"):
                    Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, connection: sqlite3.Connection) -> Generator[None]:
        """A transaction that no other process writes beside."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def scrub(self, connection: sqlite3.Connection) -> bool:
        """Make what was deleted vanish from the file, words in the full-text index and the write-ahead log included.

        Gives False if another process reads an old state for so long that the write-ahead log has to stay.
        """
        if sqlite3.sqlite_version_info < _SECURE_FTS:
            with self.writing(connection):
                # Older releases only mark words as deleted; merging all segments drops them.
                for table in self._full_text:
                    connection.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_replaced() and self._is_ready:
            return self._connection
        self.close()
        self._is_ready = False
        # Kept while it is made ready: a reset has to know which file was damaged.
        self._connection = self._connect()
        self._prepare(self._connection)
        self._is_ready = True
        return self._connection

    def _is_replaced(self) -> bool:
        """Whether the path now names another file than the one that is open: somebody found it damaged."""
        if self._path is None or self._connection is None:
            return False
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def _connect(self) -> sqlite3.Connection:
        name = MEMORY
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The mode has to be right before the first byte is in it; SQLite gives its companions the same one.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._inode = os.fstat(descriptor).st_ino
            finally:
                os.close(descriptor)
            self._path.chmod(0o600)
            name = str(self._path)
        return sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA secure_delete = ON").fetchall()
        self._write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        with self.writing(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != self._version:
                self._make(connection)

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as exc:
                # SQLite's own waiting does not cover this statement.
                busy = (exc.sqlite_errorcode & _PRIMARY) == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def _make(self, connection: sqlite3.Connection) -> None:
        virtual = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
        plain = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        # A full-text table takes its own tables with it, so it goes first.
        for query in (virtual, plain):
            for (name,) in connection.execute(query).fetchall():
                connection.execute(f'DROP TABLE IF EXISTS "{name}"')
        for statement in self._schema.split(";"):
            if statement.strip():
                connection.execute(statement)
        if sqlite3.sqlite_version_info >= _SECURE_FTS:
            for table in self._full_text:
                connection.execute(f"INSERT INTO {table}({table}, rank) VALUES ('secure-delete', 1)")
        connection.execute(f"PRAGMA user_version = {self._version}")
        self.generation += 1


def is_damage(exc: sqlite3.DatabaseError) -> bool:
    """Whether the file is to blame, and not a query, another process or the disk."""
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY
    return code in _DAMAGED or (code == sqlite3.SQLITE_ERROR and str(exc).startswith(_INCOMPLETE))

"""The index of a folder of documents: chunks in SQLite FTS5, ranked by BM25.  All of it blocks: use a thread."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from contextbus.sources import vectors as vector_table
from contextbus.sources.chunking import DEFAULT_TARGET_TOKENS, chunk_text
from contextbus.sources.database import MEMORY, Database
from contextbus.sources.documents import (
    DEFAULT_PATTERNS,
    UNREADABLE,
    WITHOUT_TEXT,
    FoundFile,
    Survey,
    parse_file,
    read_file,
    survey_folder,
)
from contextbus.sources.fusion import fuse_ranks
from contextbus.sources.lexical import TOKENIZER, match_expression, score_of, spread
from contextbus.sources.vectors import Missing, Near
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes, digest_text

SCHEMA_VERSION: Final = 3
FUSED_DEPTH: Final = 100
_BATCH_BYTES: Final = 2 * 1024 * 1024
_RECENT_NANOSECONDS: Final = 2_000_000_000
_SCHEMA: Final = f"""
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, changed INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, record_id TEXT NOT NULL UNIQUE, path TEXT NOT NULL, digest TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX chunks_of_file ON chunks (path);
CREATE INDEX chunks_of_digest ON chunks (digest);
{vector_table.VECTORS_SCHEMA};
CREATE VIRTUAL TABLE words USING fts5(heading, body, tokenize = '{TOKENIZER}')
"""
_SEARCH: Final = """
SELECT chunks.record_id, chunks.text, bm25(words, 2.0, 1.0) AS rank
FROM words JOIN chunks ON chunks.id = words.rowid
WHERE words MATCH ? ORDER BY rank, chunks.record_id LIMIT ?
"""

_WITHOUT_CHUNKS: Final = """
SELECT count(*) FILTER (WHERE digest = ''), count(*) FILTER (WHERE digest <> '') FROM files
WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.path = files.path)
"""

Progress = Callable[[int, int], None]


class IndexStoppedError(Exception):
    """The index was told to stop in the middle of a refresh; what it stored before stays, the next one goes on."""


class Hit(msgspec.Struct, frozen=True):
    """A chunk that matches: higher scores match better."""

    record_id: str
    text: str
    score: float


class Refreshed(msgspec.Struct, frozen=True):
    """What a refresh did: files read and removed; files and chunks now in the index, files left out by reason."""

    read: int
    removed: int
    chunks: int
    files: int
    skipped: Mapping[str, int]


class _Prepared(msgspec.Struct, frozen=True):
    """A file ready to be stored: its chunks are record id, heading and text."""

    file: FoundFile
    digest: str
    chunks: tuple[tuple[str, str, str], ...] | None


class RagIndex:
    """The chunks of a folder, kept fresh by size, time and digest of its files.

    Args:
        folder: The folder of documents; it is only read.
        path: The index file; several processes may share it.
        patterns: Names or relative paths of the files to take, as ``fnmatch`` patterns.
        target_tokens: The longest chunk, in tokens of four characters.
        embedder: The name of what makes the vectors, where there are any; a search may ask for them.
    """

    def __init__(
        self,
        folder: Path,
        path: Path | str,
        *,
        patterns: tuple[str, ...] = DEFAULT_PATTERNS,
        target_tokens: int = DEFAULT_TARGET_TOKENS,
        embedder: str = "",
    ) -> None:
        self._folder = folder
        self._patterns = patterns
        self._target_tokens = target_tokens
        settings = encode_json((SCHEMA_VERSION, patterns, target_tokens, TOKENIZER))
        self.options_digest = digest_bytes(settings + embedder.encode())
        # The folder belongs to the file, not to what workers must agree on: it may lie elsewhere on each machine.  The
        # embedder does not: vectors are kept by name, so that one file serves searches with and without them.
        version = int(digest_bytes(settings + str(folder.absolute()).encode())[-7:], 16) + 1
        self._refreshing = threading.Lock()
        self._stopped = threading.Event()
        self._orphans = True  # an earlier refresh may have been interrupted before it took them away
        self._writer = Database(path, schema=_SCHEMA, version=version, full_text=("words",))
        # Searches do not wait for a long refresh, where a file lets two connections see the same.
        self._reader = self._writer
        if path != MEMORY:
            self._reader = Database(path, schema=_SCHEMA, version=version, full_text=("words",))

    def stop(self) -> None:
        """End a refresh that runs in another thread between two chunks, and refuse later ones."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and close the file."""
        self.stop()
        self._reader.close()
        self._writer.close()

    def refresh(self, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to date: only files of another size or time are read, only changed ones indexed again.

        Args:
            progress: Told how many of the files to read are done, from 0, and how many there are.

        Raises:
            NotADirectoryError: the folder does not exist.
            IndexStoppedError: it was stopped.
        """
        with self._refreshing:
            self._check()
            survey = survey_folder(self._folder, self._patterns, check=self._check)
            return self._writer.use(lambda connection: self._refresh(connection, survey, progress))

    def search(self, text: str, limit: int, near: Near | None = None) -> tuple[Hit, ...]:
        """The best chunks for a text, best first, ties by record id (D.C.2).

        Args:
            text: What is asked.
            limit: How many chunks at most.
            near: The vector of the text: the ranking by words and the one by cosine are fused by reciprocal rank.

        Raises:
            DimensionError: the vector differs in dimensions from those in the index.
        """
        if limit < 1:
            return ()
        expression = match_expression(text)
        if expression is None and near is None:
            return ()
        before = self._reader.generation
        hits = self._find(expression, limit, near)
        if before not in (0, self._reader.generation):
            # The file was damaged and is empty now.
            self.refresh()
            hits = self._find(expression, limit, near)
        return hits

    def has_vectors(self, embedder: str) -> bool:
        """Whether there is any vector of an embedder."""
        return self._reader.use(lambda connection: vector_table.read_dimensions(connection, embedder)) > 0

    def read_missing(self, embedder: str, after: int, limit: int) -> tuple[Missing, ...]:
        """The first chunks behind a row that have no vector of an embedder."""
        return self._reader.use(lambda connection: vector_table.read_missing(connection, embedder, after, limit))

    def add_vectors(self, embedder: str, vectors: Mapping[str, Sequence[float]]) -> None:
        """Keep vectors of length 1 by the digest of their text.

        Raises:
            DimensionError: they differ in dimensions, from each other or from those that are there.
        """

        def write(connection: sqlite3.Connection) -> None:
            with self._writer.writing(connection):
                vector_table.insert_vectors(connection, embedder, vectors)

        self._writer.use(write)

    def _find(self, expression: str | None, limit: int, near: Near | None) -> tuple[Hit, ...]:
        depth = limit if near is None else max(limit, FUSED_DEPTH)

        def find(connection: sqlite3.Connection) -> tuple[Hit, ...]:
            rows = () if expression is None else connection.execute(_SEARCH, (expression, depth)).fetchall()
            hits = (Hit(record_id, found, score_of(rank)) for record_id, found, rank in rows)
            worded = tuple(sorted(hits, key=lambda hit: (-hit.score, hit.record_id)))
            if near is None:
                return worded
            nearest = vector_table.find_nearest(connection, near, depth)
            texts = {**dict(nearest), **{hit.record_id: hit.text for hit in worded}}
            fused = fuse_ranks((tuple(hit.record_id for hit in worded), tuple(found for found, _ in nearest)))
            return tuple(Hit(record_id, texts[record_id], score) for record_id, score in fused[:limit])

        return self._reader.use(find)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise IndexStoppedError("the index was stopped")

    def _refresh(self, connection: sqlite3.Connection, survey: Survey, progress: Progress | None) -> Refreshed:
        files = survey.files
        known = {
            path: (size, changed, digest)
            for path, size, changed, digest in connection.execute("SELECT path, size, changed, digest FROM files")
        }
        gone = sorted(known.keys() - {file.path for file in files})
        due = [file for file in files if known.get(file.path, (0, 0))[:2] != (file.size, file.changed)]
        self._orphans = self._orphans or bool(gone or due)
        scrub = self._remove(connection, gone)
        batch: list[_Prepared] = []
        pending = 0
        if progress is not None and due:
            progress(0, len(due))
        for done, file in enumerate(due, start=1):
            batch.append(self._prepare(file, known[file.path][2] if file.path in known else ""))
            pending += file.size
            if pending >= _BATCH_BYTES or done == len(due):
                scrub = self._store(connection, batch) or scrub
                batch, pending = [], 0
            if progress is not None:
                progress(done, len(due))
        if self._orphans:
            with self._writer.writing(connection):
                # Only now: a text that moved to another file keeps its vector.
                scrub = vector_table.delete_orphans(connection) or scrub
            self._orphans = False
        if scrub:
            self._writer.scrub(connection)
        (chunks,) = connection.execute("SELECT count(*) FROM chunks").fetchone()
        (unreadable, without_text) = connection.execute(_WITHOUT_CHUNKS).fetchone()
        skipped = dict(survey.skipped)
        skipped[UNREADABLE] = skipped.get(UNREADABLE, 0) + unreadable
        skipped[WITHOUT_TEXT] = without_text
        return Refreshed(
            read=len(due),
            removed=len(gone),
            chunks=chunks,
            files=len(files) - unreadable - without_text,
            skipped={reason: count for reason, count in sorted(skipped.items()) if count},
        )

    def _prepare(self, file: FoundFile, known: str) -> _Prepared:
        """Read and cut a file; ``chunks`` is None if its bytes are those that the index has."""
        self._check()
        before = time.time_ns()
        data = read_file(self._folder, file.path)
        if data is None:
            return _Prepared(msgspec.structs.replace(file, changed=-1), "", ())
        if before - file.changed < _RECENT_NANOSECONDS:
            # Another write in the same tick of the clock would leave size and time as they are: look again next time.
            file = msgspec.structs.replace(file, changed=-1)
        digest = digest_bytes(data)
        if digest == known:
            return _Prepared(file, digest, None)
        chunks: list[tuple[str, str, str]] = []
        for document in parse_file(file.path, data):
            self._check()
            cut = chunk_text(document.text, title=document.title, target_tokens=self._target_tokens, check=self._check)
            chunks.extend((f"{document.id}#{number}", chunk.heading, chunk.text) for number, chunk in enumerate(cut))
        return _Prepared(file, digest, tuple(chunks))

    def _remove(self, connection: sqlite3.Connection, paths: list[str]) -> bool:
        if not paths:
            return False
        with self._writer.writing(connection):
            for path in paths:
                _delete_chunks(connection, path)
                connection.execute("DELETE FROM files WHERE path = ?", (path,))
        return True

    def _store(self, connection: sqlite3.Connection, batch: list[_Prepared]) -> bool:
        """Store files in one transaction; says whether anything was deleted."""
        deleted = False
        with self._writer.writing(connection):
            for prepared in batch:
                if prepared.chunks is not None:
                    deleted = _delete_chunks(connection, prepared.file.path) or deleted
                    self._insert_chunks(connection, prepared.file.path, prepared.chunks)
                connection.execute(
                    "INSERT OR REPLACE INTO files (path, size, changed, digest) VALUES (?, ?, ?, ?)",
                    (prepared.file.path, prepared.file.size, prepared.file.changed, prepared.digest),
                )
        return deleted

    def _insert_chunks(
        self, connection: sqlite3.Connection, path: str, chunks: tuple[tuple[str, str, str], ...]
    ) -> None:
        for record_id, heading, text in chunks:
            self._check()  # the transaction is taken back as a whole
            body = text.removeprefix(heading + "\n") if heading else text
            row = connection.execute(
                "INSERT INTO chunks (record_id, path, digest, text) VALUES (?, ?, ?, ?)",
                (record_id, path, digest_text(text), text),
            ).lastrowid
            connection.execute(
                "INSERT INTO words (rowid, heading, body) VALUES (?, ?, ?)", (row, spread(heading), spread(body))
            )


def _delete_chunks(connection: sqlite3.Connection, path: str) -> bool:
    connection.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE path = ?)", (path,))
    return connection.execute("DELETE FROM chunks WHERE path = ?", (path,)).rowcount > 0

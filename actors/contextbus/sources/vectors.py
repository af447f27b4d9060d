"""Vectors beside the chunks of an index: float32 of length 1, kept by embedder and by the digest of the text.

All of it blocks: use a thread.
"""

from __future__ import annotations

import heapq
import math
import operator
import sqlite3
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from contextbus_protocol.errors import InvalidTypeError

VECTORS_SCHEMA: Final = """
CREATE TABLE vectors (
    embedder TEXT NOT NULL, digest TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (embedder, digest)
)
"""
_FLOAT_BYTES: Final = 4
_MISSING: Final = """
SELECT id, digest, text FROM chunks WHERE id > ? AND NOT EXISTS (
    SELECT 1 FROM vectors WHERE vectors.embedder = ? AND vectors.digest = chunks.digest
) ORDER BY id LIMIT ?
"""
_ALL: Final = """
SELECT digest, vector FROM vectors
WHERE embedder = ? AND EXISTS (SELECT 1 FROM chunks WHERE chunks.digest = vectors.digest)
"""
_INSERT: Final = """
INSERT OR IGNORE INTO vectors (embedder, digest, vector)
SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM chunks WHERE chunks.digest = ?2)
"""
_ORPHANS: Final = """
DELETE FROM vectors WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.digest = vectors.digest)
"""


class DimensionError(InvalidTypeError):
    """A vector has another number of dimensions than those of its embedder in the index."""


class Missing(msgspec.Struct, frozen=True):
    """A chunk that has no vector yet."""

    row: int
    digest: str
    text: str


class Near(msgspec.Struct, frozen=True):
    """What to look for: the vector of a query, of length 1, and whose vectors it is compared with."""

    embedder: str
    vector: Sequence[float]


def unit_vector(values: Sequence[float]) -> tuple[float, ...] | None:
    """The vector of the same direction and of length 1, all zeros if it has none; None if it is no vector."""
    if isinstance(values, str | bytes):
        return None
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError, OverflowError):
        return None
    largest = max(map(abs, numbers), default=math.nan)
    if not all(map(math.isfinite, numbers)) or not numbers:
        return None
    if not largest:
        return numbers
    # Divided by the largest first: squares of very large or very small numbers would leave the range of a float.
    scaled = tuple(number / largest for number in numbers)
    length = math.sqrt(math.fsum(number * number for number in scaled))
    return tuple(number / length for number in scaled)


def read_missing(connection: sqlite3.Connection, embedder: str, after: int, limit: int) -> tuple[Missing, ...]:
    """The first chunks behind a row that have no vector of an embedder."""
    return tuple(Missing(*row) for row in connection.execute(_MISSING, (after, embedder, limit)))


def insert_vectors(connection: sqlite3.Connection, embedder: str, vectors: Mapping[str, Sequence[float]]) -> None:
    """Keep vectors by the digest of their text, unless it is gone meanwhile; one that is there already stays.

    Raises:
        DimensionError: they differ in dimensions, from each other or from those that are there.
    """
    dimensions = read_dimensions(connection, embedder)
    for digest, vector in vectors.items():
        dimensions = dimensions or len(vector)
        _check_dimensions(embedder, dimensions, len(vector))
        connection.execute(_INSERT, (embedder, digest, _encode(vector)))


def delete_orphans(connection: sqlite3.Connection) -> bool:
    """Delete the vectors whose chunks are gone; says whether there were any."""
    return connection.execute(_ORPHANS).rowcount > 0


def read_dimensions(connection: sqlite3.Connection, embedder: str) -> int:
    """How many dimensions the vectors of an embedder have; 0 if there are none."""
    row = connection.execute("SELECT length(vector) FROM vectors WHERE embedder = ? LIMIT 1", (embedder,)).fetchone()
    return 0 if row is None else int(row[0]) // _FLOAT_BYTES


def find_nearest(connection: sqlite3.Connection, near: Near, limit: int) -> tuple[tuple[str, str], ...]:
    """Record ids and texts of the chunks nearest by cosine, best first, ties by record id.

    Chunks at a right angle or more have nothing in common with the query and are left out.

    Raises:
        DimensionError: the query's vector differs in dimensions from those in the index.
    """
    dimensions = read_dimensions(connection, near.embedder)
    if not dimensions:
        return ()
    _check_dimensions(near.embedder, dimensions, len(near.vector))
    rows = connection.execute(_ALL, (near.embedder,))
    measured = ((_multiply(near.vector, _decode(blob)), digest) for digest, blob in rows)
    best = heapq.nlargest(limit, (pair for pair in measured if pair[0] > 0))
    found = [
        (-closeness, record_id, text)
        for closeness, digest in best
        for record_id, text in connection.execute("SELECT record_id, text FROM chunks WHERE digest = ?", (digest,))
    ]
    return tuple((record_id, text) for _, record_id, text in sorted(found)[:limit])


def _multiply(one: Sequence[float], other: Sequence[float]) -> float:
    """The scalar product; of two vectors of length 1 it is their cosine."""
    if sys.version_info >= (3, 12):
        return math.sumprod(one, other)  # several times as fast
    return float(sum(map(operator.mul, one, other)))


def _check_dimensions(embedder: str, known: int, given: int) -> None:
    if known != given:
        raise DimensionError(
            f"embedder {embedder!r} gave a vector of {given} dimensions, the index has {known}: give another model "
            "another name, or delete the index file to embed everything anew"
        )


def _encode(vector: Sequence[float]) -> bytes:
    return _little_endian(array("f", vector)).tobytes()


def _decode(blob: bytes) -> array[float]:
    vector = array("f")
    vector.frombytes(blob)
    return _little_endian(vector)


def _little_endian(vector: array[float]) -> array[float]:
    if sys.byteorder == "big":
        vector.byteswap()
    return vector

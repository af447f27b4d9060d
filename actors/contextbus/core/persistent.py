"""Persistent collections: a change makes a new value that shares almost all of the old one."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

CHUNK: Final = 64
_BITS: Final = 4
_WIDTH: Final = 1 << _BITS
_BUCKET: Final = 16
_HASH_BITS: Final = 32


class Vector(msgspec.Struct, Generic[T], frozen=True):
    """An append-only sequence in chunks of 64; appending costs one chunk at most, whatever the length."""

    chunks: tuple[tuple[T, ...], ...] = ()
    rest: tuple[T, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks) * CHUNK + len(self.rest)

    def __iter__(self) -> Iterator[T]:
        for chunk in self.chunks:
            yield from chunk
        yield from self.rest

    def backwards(self) -> Iterator[T]:
        """The items from the last to the first."""
        yield from reversed(self.rest)
        for chunk in reversed(self.chunks):
            yield from reversed(chunk)

    def behind(self, count: int) -> Iterator[T]:
        """The items behind the first ``count``."""
        whole, offset = divmod(count, CHUNK)
        for chunk in self.chunks[whole:]:
            yield from chunk[offset:]
            offset = 0
        yield from self.rest[max(0, count - len(self.chunks) * CHUNK) :]

    def keep(self, count: int) -> Vector[T]:
        """The first ``count`` items; whole chunks are shared."""
        if count >= len(self):
            return self
        whole, offset = divmod(max(0, count), CHUNK)
        last = self.chunks[whole] if whole < len(self.chunks) else self.rest
        return Vector(self.chunks[:whole], last[:offset])

    def begins_with(self, other: Vector[T]) -> bool:
        """Whether the items of another vector are the first of this one; shared chunks are compared by identity."""
        whole = len(other.chunks)
        if self.chunks[:whole] != other.chunks:
            return False
        mine = self.chunks[whole] if whole < len(self.chunks) else self.rest
        return mine[: len(other.rest)] == other.rest

    def extend(self, items: Iterable[T]) -> Vector[T]:
        """This vector with the items behind it."""
        rest = (*self.rest, *items)
        chunks = self.chunks
        while len(rest) >= CHUNK:
            chunks, rest = (*chunks, rest[:CHUNK]), rest[CHUNK:]
        return Vector(chunks, rest)


class _Branch(msgspec.Struct, frozen=True, gc=False):
    children: tuple[_Node, ...]


_Node = _Branch | dict[str, int]
_EMPTY: Final[_Node] = {}


class Counts(msgspec.Struct, frozen=True):
    """A persistent map from text to a number; looking up and changing cost the depth of a 16-way tree.

    The place of a key is its CRC-32, so the tree is the same in every process.
    """

    root: _Branch | dict[str, int] = _EMPTY

    def get(self, key: str) -> int:
        """The number of the key; 0 if it has none."""
        node, place = self.root, _place(key)
        while isinstance(node, _Branch):
            node, place = node.children[place % _WIDTH], place >> _BITS
        return node.get(key, 0)

    def set(self, key: str, number: int) -> Counts:
        """This map with another number for the key."""
        return Counts(_set(self.root, _place(key), 0, key, number))


def _place(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "surrogatepass"))


def _set(node: _Node, place: int, depth: int, key: str, number: int) -> _Node:
    if isinstance(node, _Branch):
        index = place >> depth & (_WIDTH - 1)
        child = _set(node.children[index], place, depth + _BITS, key, number)
        return _Branch((*node.children[:index], child, *node.children[index + 1 :]))
    bucket = {**node, key: number}
    if len(bucket) <= _BUCKET or depth >= _HASH_BITS:
        return bucket
    parts: list[dict[str, int]] = [{} for _ in range(_WIDTH)]
    for name, value in bucket.items():
        parts[_place(name) >> depth & (_WIDTH - 1)][name] = value
    return _Branch(tuple(parts))

"""The operation ids that a run has applied, for good, and what each of them came to (D.O.23, D.Q.12)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from contextbus.core.persistent import Counts
from contextbus.core.working_memory_patch import operation_digest

_LISTS: Final = ("constraints", "observations", "hypotheses", "decisions", "questions", "attempts")
_BITS: Final = 3
_OPERATIONS: Final = 16
_TAKEN_OVER: Final = -1


class Outcome(NamedTuple):
    """What a patch came to: the revision that it produced and the ids of the items that it added.

    Of an operation id that came with a snapshot neither is known.
    """

    revision: int | None
    ids: tuple[str, ...]


class AppliedOperations(msgspec.Struct, frozen=True):
    """A persistent map from operation id to outcome: one number for each, found by the 16-byte digest of the id.

    Ids of items are ``<list>-<revision>-<index>`` (D.O.13), so a number holds them all: for each of 16 operations three
    bits that name the list it added to, and the revision above.
    """

    numbers: Counts = Counts()

    def find(self, operation_id: str) -> Outcome | None:
        """What an operation id came to; None if it was not applied."""
        number = self.numbers.get(_key(operation_id))
        if number == 0:
            return None
        if number == _TAKEN_OVER:
            return Outcome(None, ())
        revision = number >> _BITS * _OPERATIONS
        kinds = [number >> _BITS * index & (1 << _BITS) - 1 for index in range(_OPERATIONS)]
        return Outcome(revision, tuple(f"{_LISTS[k - 1]}-{revision}-{i}" for i, k in enumerate(kinds) if k))

    def add(self, operation_id: str, revision: int, ids: tuple[str, ...]) -> AppliedOperations:
        """The map with one more operation id; ``revision`` is from 1, ``ids`` are as a patch makes them."""
        number = revision << _BITS * _OPERATIONS
        for item_id in ids:
            name, _, index = item_id.split("-")
            number |= _LISTS.index(name) + 1 << _BITS * int(index)
        return AppliedOperations(self.numbers.set(_key(operation_id), number))

    def take_over(self, operation_id: str) -> AppliedOperations:
        """The map with an operation id of another place, of which only the id is known."""
        return AppliedOperations(self.numbers.set(_key(operation_id), _TAKEN_OVER))


def _key(operation_id: str) -> str:
    return operation_digest(operation_id).hex()

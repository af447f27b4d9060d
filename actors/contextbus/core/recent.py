"""The newest commands of a run, found by their id: adding and finding cost the same however many there were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

import msgspec

REMEMBERED_COMMANDS: Final = 256
"""At least so many of the newest are found."""

_CHUNK: Final = 32


class HasCommand(Protocol):
    """What can be found by the id of its command."""

    @property
    def command(self) -> str:
        """The id."""
        ...


T = TypeVar("T", bound=HasCommand)


class Recent(msgspec.Struct, Generic[T], frozen=True):
    """An immutable queue of facts: chunks of 32 by command, oldest first, and those behind them.

    The dicts are never changed once they are in a chunk.  ``forgotten`` tells that older facts were dropped.
    """

    chunks: tuple[dict[str, T], ...] = ()
    rest: tuple[T, ...] = ()
    forgotten: bool = False

    def __iter__(self) -> Iterator[T]:
        for chunk in self.chunks:
            yield from chunk.values()
        yield from self.rest

    def add(self, fact: T) -> Recent[T]:
        """The queue with one more fact behind it; the oldest chunk leaves once 256 are behind it."""
        rest = (*self.rest, fact)
        if len(rest) < _CHUNK:
            return Recent(self.chunks, rest, self.forgotten)
        chunks = (*self.chunks, {fact.command: fact for fact in rest})
        too_many = len(chunks) > REMEMBERED_COMMANDS // _CHUNK
        return Recent(chunks[1:] if too_many else chunks, (), self.forgotten or too_many)

    def find(self, command: str) -> T | None:
        """The newest remembered fact of a command."""
        for fact in reversed(self.rest):
            if fact.command == command:
                return fact
        for chunk in reversed(self.chunks):
            found = chunk.get(command)
            if found is not None:
                return found
        return None

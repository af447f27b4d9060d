"""A bounded table whose entries are taken at most once and expire."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Expiring(Generic[T]):
    """What is waited for, by address; the oldest goes first when there is no room.

    Args:
        limit: How many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: str, value: T, now: float, seconds: float) -> None:
        """Hold a value for some seconds; what has expired at the front is let go."""
        while self._held:
            first = next(iter(self._held))
            if len(self._held) < self._limit and self._held[first][0] > now:
                break
            del self._held[first]
        self._held[key] = (now + seconds, value)

    def take(self, key: str, now: float) -> T | None:
        """Give a value away; None if it is not held, was taken before, or has expired."""
        found = self._held.pop(key, None)
        return None if found is None or found[0] <= now else found[1]

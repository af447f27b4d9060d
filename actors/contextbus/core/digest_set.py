"""A set of short digests that grows without copying itself at every step.

Levels of frozen sets, each at least twice as large as the next: adding one merges only the small ones, so n additions
cost O(n log n) in all, and an older value stays what it was.
"""

from __future__ import annotations

import msgspec


class DigestSet(msgspec.Struct, frozen=True):
    """An immutable set of byte strings."""

    levels: tuple[frozenset[bytes], ...] = ()

    def __contains__(self, digest: bytes) -> bool:
        """Whether the digest was added."""
        return any(digest in level for level in self.levels)

    def __len__(self) -> int:
        """How many digests there are."""
        return sum(map(len, self.levels))

    def add(self, digest: bytes) -> DigestSet:
        """The set with one more digest."""
        if digest in self:
            return self
        newest = frozenset((digest,))
        levels = self.levels
        while levels and len(levels[-1]) < 2 * len(newest):
            newest |= levels[-1]
            levels = levels[:-1]
        return DigestSet((*levels, newest))

"""The blocks that a run sent, by digest: what a host hands back of them is no message of its user (D.F.19, D.G.33)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

KEPT_STEPS: Final = 256
"""A block that does not stand in the history is known for so many further steps after it was sent or handed back."""


class OwnBlocks(Collection[str]):
    """Digests of own blocks, bounded: those in the history, and those that can still be handed back.

    Looking a digest up marks it as handed back, so that a host that keeps every tail in its list has all of them known;
    what nobody handed back for ``kept_steps`` steps is forgotten.

    Args:
        kept_steps: for how many further steps a block is known.
    """

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        self._kept_steps = kept_steps
        self._steps = 0
        self._standing: set[str] = set()
        self._last_seen: dict[str, int] = {}  # the longest unseen first

    def send(self, digests: Iterable[str]) -> None:
        """Take the blocks that a step sent, or that several steps of the log did, as one step."""
        self._steps += 1
        for digest in digests:
            self._see(digest)
        while self._last_seen:
            digest, step = next(iter(self._last_seen.items()))
            if step > self._steps - self._kept_steps:
                break
            del self._last_seen[digest]

    def place(self, digests: Iterable[str]) -> None:
        """Take blocks that joined the history."""
        self._standing.update(digests)

    def replace(self, digests: Iterable[str]) -> None:
        """Take all blocks that stand in the history now; one that left it can be handed back for a while."""
        standing = set(digests)
        for digest in sorted(self._standing - standing):
            self._see(digest)
        self._standing = standing

    def _see(self, digest: str) -> None:
        self._last_seen.pop(digest, None)
        self._last_seen[digest] = self._steps

    def __contains__(self, digest: object) -> bool:
        if isinstance(digest, str) and digest in self._last_seen:
            self._see(digest)
            return True
        return digest in self._standing

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._standing, *self._last_seen)))

    def __len__(self) -> int:
        return len(self._standing | self._last_seen.keys())

    def __bool__(self) -> bool:
        return bool(self._standing or self._last_seen)

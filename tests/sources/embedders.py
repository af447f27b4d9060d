"""An embedder without a model: what it gives depends on the text alone, on every machine (D.R.15)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

DIMENSIONS = 256
GRAMS = (3, 4, 5)


class HashEmbedder:
    """Hashes the character n-grams of each word into signed counts; words that share parts come out near.

    Attributes:
        batches: The texts of each call.
        failing: What the next calls raise.
    """

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions = dimensions
        self.batches: list[tuple[str, ...]] = []
        self.failing: Exception | None = None

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text."""
        self.batches.append(tuple(texts))
        if self.failing is not None:
            raise self.failing
        return [embed_text(text, self.dimensions) for text in texts]

    @property
    def texts(self) -> list[str]:
        """All texts that it was asked for."""
        return [text for batch in self.batches for text in batch]


def embed_text(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        padded = f"<{word}>"
        for size in GRAMS:
            for start in range(max(1, len(padded) - size + 1)):
                hashed = int.from_bytes(hashlib.blake2b(padded[start : start + size].encode(), digest_size=8).digest())
                vector[(hashed >> 1) % dimensions] += 1.0 if hashed & 1 else -1.0
    return vector

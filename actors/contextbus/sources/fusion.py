"""Rankings of one query made one: reciprocal rank fusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from contextbus_protocol.errors import RangeError

DEFAULT_K: Final = 60


def fuse_ranks(rankings: Sequence[Sequence[str]], k: int = DEFAULT_K) -> tuple[tuple[str, float], ...]:
    """Fuse rankings of ids, best first, by reciprocal rank: an id scores the sum of ``1 / (k + rank)``, ranks from 1.

    The order of the rankings does not matter, and neither do the scores that they were made of.  An id that stands
    twice in a ranking counts at its better place.

    Args:
        rankings: Ids, best first; each ranking may lack some.
        k: How little the first ranks weigh against later ones; at least 0.

    Returns:
        Each id once with its score, the highest first, equal scores by id (D.C.3).

    Raises:
        RangeError: ``k`` is negative.
    """
    if k < 0:
        raise RangeError("k must be 0 or more; 60 is usual")
    shares: dict[str, list[float]] = {}
    for ranking in rankings:
        for rank, identifier in enumerate(dict.fromkeys(ranking), start=1):
            shares.setdefault(identifier, []).append(1 / (k + rank))
    # fsum rounds once, so that the same ranks give the same score in whatever order they are added.
    scores = {identifier: math.fsum(found) for identifier, found in shares.items()}
    return tuple(sorted(scores.items(), key=lambda item: (-item[1], item[0])))

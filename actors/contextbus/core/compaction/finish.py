"""How a summariser's output ended, in one vocabulary (C.F.10)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from contextbus_protocol.errors import word_of

STOP: Final = "stop"
LENGTH: Final = "length"
UNKNOWN: Final = "unknown"
"""The provider gave no reason."""
OTHER: Final = "other"
"""The provider gave a reason that is no word; its text may be content and goes no further."""

_SAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "end_turn": STOP,
        "stop_sequence": STOP,
        "STOP": STOP,
        "max_tokens": LENGTH,
        "MAX_TOKENS": LENGTH,
    }
)


def normalise_finish(reason: object) -> str:
    """The finish reason of any provider: ``stop``, ``length``, or the provider's own name for it (C.F.10)."""
    if reason is None:
        return UNKNOWN
    word = word_of(reason)
    return OTHER if word is None else _SAME.get(word, word)

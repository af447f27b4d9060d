"""Models that continue an assistant message at the end of a request (P.C.2, anthropic.A5)."""

from __future__ import annotations

import re
from typing import Final

import msgspec


class PrefillRow(msgspec.Struct, frozen=True):
    """Models that take a prefill: ids in which ``pattern`` finds a major and a minor version up to ``newest``."""

    provider: str
    pattern: re.Pattern[str]
    newest: tuple[int, int]


PREFILL_MODELS: Final = (
    PrefillRow("anthropic", re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)"), (4, 5)),
)
"""A model that no row is for takes none."""


def takes_prefill(provider: str, model_id: str) -> bool:
    """Whether a model continues an assistant message at the end of a request."""
    for row in PREFILL_MODELS:
        match = row.pattern.search(model_id) if row.provider == provider else None
        if match is not None:
            return (int(match[1]), int(match[2] or 0)) <= row.newest
    return False

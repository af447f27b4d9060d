"""What a model's id says of the rules that hold for it.

Without an id, or with one that names no version, the strict answer is given: that of the newest models.
"""

from __future__ import annotations

import re
from typing import Final

# A family's name may stand before the version (claude-opus-4-6) or behind it (claude-3-7-sonnet); a date is no minor.
_CLAUDE = re.compile(r"claude-(?:instant-)?(?:[a-z]+-)?v?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_GEMINI = re.compile(r"gemini-(\d{1,2})(?!\d)(?:\.(\d{1,2}))?")
_FIRST_WITHOUT_PREFILL: Final = (4, 6)
_FIRST_WITH_INLINE_SYSTEM: Final = (4, 8)
_FIRST_WITH_CHECKED_SIGNATURES: Final = (3, 0)
_NEVER_REASON: Final = ("gpt-3", "gpt-4", "chatgpt-4o")


def takes_prefill(model: str | None) -> bool:
    """Whether a Claude model continues an assistant message at the end of the request (anthropic.A5)."""
    version = _read_version(_CLAUDE, model)
    return version is not None and version < _FIRST_WITHOUT_PREFILL


def takes_inline_system(model: str | None) -> bool:
    """Whether a Claude model takes system messages among the others (anthropic.A3): from Opus 4.8 on."""
    version = _read_version(_CLAUDE, model)
    return version is not None and version >= _FIRST_WITH_INLINE_SYSTEM


def checks_signatures(model: str | None) -> bool:
    """Whether a Gemini model refuses calls without a thought signature (gemini.G8): from 3 on, image models apart."""
    version = _read_version(_GEMINI, model)
    return version is None or (version >= _FIRST_WITH_CHECKED_SIGNATURES and "image" not in (model or ""))


def may_reason(model: str | None) -> bool:
    """Whether an OpenAI model writes reasoning items (responses.L6)."""
    return model is None or not model.startswith(_NEVER_REASON)


def _read_version(pattern: re.Pattern[str], model: str | None) -> tuple[int, int] | None:
    match = pattern.search(model or "")
    return None if match is None else (int(match[1]), int(match[2] or 0))

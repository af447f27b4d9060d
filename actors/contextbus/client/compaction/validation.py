"""What the options of a compaction have to be, of one call and of a run alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from typing import Final, TypeVar, cast

from contextbus.core.compaction.media import MediaMode
from contextbus_protocol.errors import InvalidTypeError, RangeError

MEDIA_MODES: Final[tuple[MediaMode, ...]] = ("protect", "placeholder")

W = TypeVar("W", bound=str)


def check_word(name: str, value: object, words: Sequence[W]) -> W:
    """The one of some words that the value is.

    Raises:
        InvalidTypeError: it is none of them.
    """
    for word in words:
        if isinstance(value, str) and value == word:
            return word
    raise InvalidTypeError(f"{name} must be one of {', '.join(words)}, not {value!r:.40}")


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """Names or digests as a tuple of its own, those of a set sorted.

    Raises:
        InvalidTypeError: it is no collection of texts; one text alone would be taken for its letters.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise InvalidTypeError(f"{name} must be a collection of texts, not {type(value).__name__}")
    found = tuple(cast("Collection[object]", value))
    if not all(isinstance(text, str) for text in found):
        raise InvalidTypeError(f"{name} must hold texts only")
    texts = cast("tuple[str, ...]", found)
    return tuple(sorted(texts)) if isinstance(value, Set) else texts


def check_number(name: str, value: object, most: float = math.inf) -> float:
    """The value, a finite number from 0.

    Args:
        name: the option.
        value: what was given for it.
        most: the largest that it may be.

    Raises:
        InvalidTypeError: it is no number.
        RangeError: it is not finite, negative, or above ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTypeError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise RangeError(f"{name} must be finite and not negative" + ("" if most == math.inf else f", at most {most}"))
    return value


def check_instructions(value: object) -> str | None:
    """The instructions, if there are any (C.A.4).

    Raises:
        InvalidTypeError: they are no text.
    """
    if not isinstance(value, str | None):
        raise InvalidTypeError(f"instructions must be a text, not {type(value).__name__}")
    return value


def check_function(name: str, value: object) -> None:
    """Refuse what is given for a function and cannot be called.

    Raises:
        InvalidTypeError: it is something else.
    """
    if value is not None and not callable(value):
        raise InvalidTypeError(f"{name} must be a function, not {type(value).__name__}")

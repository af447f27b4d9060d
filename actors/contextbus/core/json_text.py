"""JSON text that a model or a provider wrote: checked before it is sent on, never trusted."""

from __future__ import annotations

import json
import re
from typing import Final, cast

import msgspec

from contextbus_protocol.digests import clean_text

MAX_DEPTH: Final = 100
"""Deepest nesting that is sent on: a decoder's own limit depends on the caller's stack, this one does not."""

_OUTSIDE_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def quote(text: str) -> bytes:
    """JSON string of a text; lone surrogates become U+FFFD (P.A.5)."""
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean_text(text))


def encode(value: object) -> bytes:
    """Compact JSON of a value made of dicts, lists and scalars, in the caller's order; surrogates as in ``quote``."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean_value(value))


def clean_value(value: object) -> object:
    """The value with every lone surrogate in keys and texts replaced by U+FFFD."""
    if isinstance(value, str):
        return clean_text(value)
    if (members := as_object(value)) is not None:
        # What a caller hands over may have keys that are no texts: they are the encoder's to judge.
        return {cast("str", clean_value(key)): clean_value(item) for key, item in members.items()}
    if (items := as_list(value)) is not None:
        return [clean_value(item) for item in items]
    return value


def as_object(value: object) -> dict[str, object] | None:
    """The value if it is a dict, for JSON with text keys; else None."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | tuple[object, ...] | None:
    """The value if it is a list or tuple, else None."""
    return cast("list[object] | tuple[object, ...]", value) if isinstance(value, list | tuple) else None


def sound_object(text: str) -> str | None:
    """The text if it holds one JSON object, else None.

    A sound text comes back as the model wrote it.  Only escaped halves of surrogate pairs, which providers refuse, are
    replaced; the text is then written anew.
    """
    value, sound = _read(text)
    return sound if isinstance(value, dict) else None


def read_value(text: str) -> tuple[object, bool]:
    """The value that a text holds, and whether it holds one that can be sent on."""
    value, sound = _read(text)
    return value, sound is not None


def read_object(text: str) -> dict[str, object]:
    """The members of a JSON object; empty if the text holds anything else."""
    return as_object(_read(text)[0]) or {}


def _read(text: str) -> tuple[object, str | None]:
    cleaned = clean_text(text)
    if _too_deep(cleaned):
        return None, None
    try:
        return msgspec.json.decode(cleaned), cleaned
    except msgspec.MsgspecError:
        return _read_half_escapes(cleaned)


def _read_half_escapes(text: str) -> tuple[object, str | None]:
    if not _HALF_ESCAPE.search(text):
        return None, None
    try:
        value: object = clean_value(json.loads(text, parse_constant=_refuse))
    except ValueError:
        return None, None
    return value, msgspec.json.encode(value).decode()


def _refuse(name: str) -> object:
    raise ValueError(name)


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _OUTSIDE_STRINGS.finditer(text):
        if match[1]:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif match[2]:
            depth -= 1
    return False

"""Lines of a session file: one JSON object each, the last one perhaps cut off (P.E.9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

from contextbus.core.importers.reading import Object, an_object, fail
from contextbus.core.json_text import as_object
from contextbus_protocol.errors import ErrorData, InvalidTypeError

Line = tuple[int, Object]
"""Number of a line, counted from 1, and its object."""


def session_lines(data: object) -> list[Line]:
    """The objects of a file's text, of its lines, or of lines that are decoded already; blank lines are left out.

    A last line that is no whole JSON is left out too: the process was killed while it wrote.

    Raises:
        InvalidTypeError: another line is no JSON object, or none can be read; the message names its number.
    """
    lines = [(number, item) for number, item in enumerate(_split(data), start=1) if not _blank(item)]
    found: list[Line] = []
    for index, (number, item) in enumerate(lines):
        place = f"line {number}"
        decoded = item
        if isinstance(item, str | bytes | bytearray):
            try:
                decoded = json.loads(_text(item))
            except json.JSONDecodeError as exc:
                if index == len(lines) - 1:
                    break
                raise InvalidTypeError(f"{place}: not JSON: {exc.msg}", ErrorData(field=place)) from None
            except (RecursionError, ValueError):
                reason = "not JSON that can be read: nested too deep, or a number too long"
                raise InvalidTypeError(f"{place}: {reason}", ErrorData(field=place)) from None
        value = as_object(decoded)
        found.append((number, an_object(decoded, place) if value is None else value))
    return found


def _split(data: object) -> Iterable[object]:
    if isinstance(data, str | bytes | bytearray):
        return _text(data).split("\n")
    if isinstance(data, Mapping):
        return [cast("object", data)]
    if not isinstance(data, Iterable):
        fail("session", "lines", data)
    return cast("Iterable[object]", data)


def _text(data: str | bytes | bytearray) -> str:
    text = data if isinstance(data, str) else bytes(data).decode("utf-8", "replace")
    return text.removeprefix("\ufeff")


def _blank(item: object) -> bool:
    return isinstance(item, str | bytes | bytearray) and not item.strip()

"""Where two values differ first, as a path that a person can follow."""

from __future__ import annotations

from typing import cast

import msgspec

from contextbus_protocol.codec import encode_json


def first_difference(expected: object, got: object) -> tuple[str, str, str]:
    """The path of the first field in which two values differ, with both sides; an empty path when none does."""
    if encode_json(expected) == encode_json(got):  # bytes, for 1 and 1.0 are equal and still two values
        return ("", "", "")
    one, other = msgspec.to_builtins(expected), msgspec.to_builtins(got)
    found = _first_difference(one, other, "")
    return found or ("", "", "")


def _first_difference(one: object, other: object, path: str) -> tuple[str, str, str] | None:
    same = one == other and type(one) is type(other)  # of leaves: 1, 1.0 and True are equal
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, object]", one), cast("dict[str, object]", other)
        for key in sorted({*left, *right}):
            found = _first_difference(left.get(key), right.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return None
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        items, others = cast("list[object]", one), cast("list[object]", other)
        if len(items) != len(others):
            return (f"{path}.length", str(len(items)), str(len(others)))
        for index, (a, b) in enumerate(zip(items, others, strict=True)):
            found = _first_difference(a, b, f"{path}[{index}]")
            if found:
                return found
        return None
    return None if same else (path, f"{one!s}", f"{other!s}")

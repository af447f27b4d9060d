"""Dynamic state as XML: the block that tells a model where the work stands (P.B.2, P.B.3, P.B.5)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from contextbus.core.escape import escape_text
from contextbus.core.json_text import MAX_DEPTH
from contextbus_protocol.chat import ChatMessage, system, user
from contextbus_protocol.errors import InvalidTypeError, LimitError, RangeError

STATE_VERSION: Final = 1
"""Version of the form and of its fixed text."""
CURRENT_STATE: Final = "This is the current state; it supersedes every earlier one."
ROOT: Final = "dynamic_state"
ITEM: Final = "item"
MOST_ELEMENTS: Final = 100_000
"""The most elements of one state: lists that share their items can unfold without end."""
WIDEST_INTEGER: Final = 1024
"""The most bits of an integer: writing longer ones out depends on settings of the interpreter."""

_OTHERS = re.compile(r"[^A-Za-z0-9_]")


def render_state(value: object) -> str:
    """The text of the block: the state as XML, then one fixed line (P.B.5).

    Args:
        value: a tree of mappings with text keys, sequences, texts, numbers, booleans and None; fields come in the
            order of their mapping.

    Raises:
        InvalidTypeError: it holds another value, or is nested deeper than ``MAX_DEPTH``.
        RangeError: a number is not finite, or an integer has more than ``WIDEST_INTEGER`` bits.
        LimitError: it has more than ``MOST_ELEMENTS`` elements.
    """
    writer = _Writer()
    if not writer.write(ROOT, value, 0):
        writer.lines.append(f"<{ROOT}></{ROOT}>")
    return "\n".join((*writer.lines, CURRENT_STATE))


def state_message(text: str) -> ChatMessage:
    """The block as a user message of its own, for the tail (P.B.4, D.F.21)."""
    return user(text)


def state_system_message(text: str) -> ChatMessage:
    """The block as the last message of the system layer (P.B.4)."""
    return system(text)


def element_name(key: str) -> str:
    """The element of a field: what is not in ``[A-Za-z0-9_]`` becomes ``_``, and no name begins with a digit."""
    name = _OTHERS.sub("_", key)
    return name if name and not name[0].isdigit() else f"_{name}"


def number_text(value: float) -> str:
    """A number as JSON writes it; a float keeps its point or exponent.

    Raises:
        RangeError: it is not finite, or an integer has more than ``WIDEST_INTEGER`` bits.
    """
    if isinstance(value, int):
        if value.bit_length() > WIDEST_INTEGER:
            raise RangeError(f"an integer has at most {WIDEST_INTEGER} bits")
        return int.__repr__(value)
    if not math.isfinite(value):
        raise RangeError("a number is finite")
    return float.__repr__(value)


class _Writer:
    """The lines of a state while it is walked."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._elements = 0

    def write(self, name: str, value: object, depth: int) -> bool:
        """Write one element; False where the rules omit it."""
        if value is None:
            return False
        self._elements += 1
        if self._elements > MOST_ELEMENTS:
            raise LimitError(f"a state has at most {MOST_ELEMENTS} elements")
        indent = "  " * depth
        if not isinstance(value, Mapping | Sequence) or isinstance(value, str | bytes | bytearray):
            self.lines.append(f"{indent}<{name}>{_scalar(value)}</{name}>")
            return True
        if depth >= MAX_DEPTH:
            raise InvalidTypeError(f"a state is nested at most {MAX_DEPTH} levels deep; this one is deeper or endless")
        place = len(self.lines)
        self.lines.append(f"{indent}<{name}>")
        if isinstance(value, Mapping):
            for key, child in cast("Mapping[object, object]", value).items():
                if not isinstance(key, str):
                    raise InvalidTypeError(f"a field of a state is named by a text, not by {type(key).__name__}")
                self.write(element_name(key), child, depth + 1)
        else:
            for child in cast("Sequence[object]", value):
                self.write(ITEM, child, depth + 1)
        if len(self.lines) > place + 1:
            self.lines.append(f"{indent}</{name}>")
        elif isinstance(value, Mapping):
            self.lines[place] = f"{indent}<{name}></{name}>"
        else:  # a sequence of nothing but what is omitted is an empty one
            self.lines.pop()
            return False
        return True


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    raise InvalidTypeError(f"a state is made of mappings, sequences, texts and numbers, not of {type(value).__name__}")

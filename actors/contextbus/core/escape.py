"""Escaping of text that stands inside our blocks (D.E.7, D.E.15)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from contextbus_protocol.digests import clean_text

_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# One scan tells whether anything has to be done; most text has nothing.  A match of all that may stay as it is takes
# half the time of a search for what may not.
_PLAIN: Final = re.compile("[\t\n !#-%(-;=?-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_PLAIN_LINE: Final = re.compile("[ !#-%(-;=?-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")

# The same set within ASCII, for many texts at once: deleting it from their bytes takes a quarter of the time.
_PLAIN_BYTES: Final = bytes(code for code in range(0x80) if _PLAIN.fullmatch(chr(code)))
_PLAIN_LINE_BYTES: Final = bytes(code for code in range(0x80) if _PLAIN_LINE.fullmatch(chr(code)))


def are_plain(texts: Sequence[str], *, lines: bool = False) -> bool:
    """Whether escaping leaves all of the texts as they are; False may also mean that one is not ASCII.

    Args:
        texts: What would be escaped.
        lines: As attribute values.
    """
    joined = "".join(texts)
    return joined.isascii() and not joined.encode().translate(None, _PLAIN_LINE_BYTES if lines else _PLAIN_BYTES)


def escape_text(text: str) -> str:
    """Escape the text of an element (D.E.7).

    What no XML 1.0 document may hold is replaced by U+FFFD, halves of surrogate pairs included; then ``& < > " '`` and
    carriage return become references, so that a parser gives the text back.
    """
    if _PLAIN.fullmatch(text):
        return text
    text = _FORBIDDEN.sub("\ufffd", clean_text(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;").replace("\r", "&#13;")


def escape_attribute(text: str) -> str:
    """Escape an attribute value: as text, and newline and tab become references too (D.E.7)."""
    if _PLAIN_LINE.fullmatch(text):
        return text
    return escape_text(text).replace("\n", "&#10;").replace("\t", "&#9;")

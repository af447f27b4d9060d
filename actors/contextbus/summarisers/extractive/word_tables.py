"""Tables of words that are looked for in a sentence; one look at each of its words rules most tables out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Final

UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
"""Chinese and Japanese write no spaces, so a word of theirs is found anywhere."""

_TOKEN: Final = re.compile(r"\w+")
_ALL: Final = -1
_TEXTS_HELD: Final = 256
_WORDS_HELD: Final = 65_536

_firsts: Final[dict[str, int]] = {}
_prefixes: Final[dict[str, dict[str, int]]] = {}
_gates: Final = count()


class WordGate:
    """Words that must be in a text for something to be in it.  A trailing ``*`` stands for any ending.

    Every text in Chinese or Japanese may have what is looked for.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.bit: Final = 1 << next(_gates)
        for word in words:
            first = _TOKEN.findall(word.casefold())[0]
            if word.casefold() == f"{first}*":
                group = _prefixes.setdefault(first[0], {})
                group[first] = group.get(first, 0) | self.bit
            else:
                _firsts[first] = _firsts.get(first, 0) | self.bit


class WordTable:
    """Words and phrases of several languages.  A trailing ``*`` stands for any ending; case does not matter."""

    def __init__(self, *languages: Sequence[str]) -> None:
        words = [word for words in languages for word in words]
        unspaced = [re.escape(word) for word in words if UNSPACED.search(word)]
        spaced = [word for word in words if not UNSPACED.search(word)]
        self._bit = WordGate(spaced).bit
        patterns = [
            re.escape(word.rstrip("*")).replace(r"\ ", r"\s+").replace("'", "['’]")
            + (r"\w*" if word[-1] == "*" else "")
            for word in spaced
        ]
        parts = [rf"(?<![\w-])(?:{'|'.join(patterns)})(?![\w-])", *unspaced]
        self.pattern: Final = re.compile("|".join(parts), re.IGNORECASE)

    def is_in(self, text: str) -> bool:
        """Whether a text has a word of the table."""
        return find_gates(text) & self._bit != 0 and self.pattern.search(text) is not None


@lru_cache(_TEXTS_HELD)
def find_gates(text: str) -> int:
    """The bits of the gates that a text passes."""
    if not text.isascii() and UNSPACED.search(text):
        return _ALL
    found = 0
    for token in _TOKEN.findall(text.casefold()):
        found |= _find_gates_of(token)
    return found


@lru_cache(_WORDS_HELD)
def _find_gates_of(token: str) -> int:
    found = _firsts.get(token, 0)
    for prefix, bit in _prefixes.get(token[0], {}).items():
        if token.startswith(prefix):
            found |= bit
    return found

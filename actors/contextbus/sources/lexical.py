"""Texts as words: what is indexed, and full-text expressions that cannot fail, whatever a query holds.

The tokenizer of SQLite takes a run of letters as one word, also in scripts that put no spaces between words.  So
each character of those scripts is indexed as a word of its own, and a query asks for neighbours.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from contextbus_protocol.digests import clean_text

TOKENIZER: Final = "porter unicode61 remove_diacritics 2"
MAX_TERMS: Final = 400
LONGEST_QUERY: Final = 100_000
LONGEST_TERM: Final = 64
SMALLEST_SCORE: Final = 1e-9

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # ideographs
    "\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_TERM = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")

# Words that stand in nearly every English text: they rank nothing and cost a scan each.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by can could did do does for from had has have he her his how i if in "
        "into is it its me my no not of on or our she should so some than that the their them then there "
        "these they this those to was we were what when where which who will with would you your ",
    )
)


def spread(text: str) -> str:
    """The text as it is indexed: spaces around each character of a script that is written without them."""
    return _UNSPACED_CHARACTER.sub(r" \g<0> ", text)


def match_expression(text: str) -> str | None:
    """An FTS5 expression that finds records with any word of a text; None if it has no word.

    Every word is quoted, so no character of the query is an operator.  At most ``LONGEST_QUERY`` characters are read
    and ``MAX_TERMS`` different words used.
    """
    words: dict[str, None] = {}
    common: dict[str, None] = {}
    for found in _TERM.finditer(clean_text(text[:LONGEST_QUERY])):
        word = found.group()
        if _UNSPACED_CHARACTER.match(word):
            words.update(dict.fromkeys(_neighbours(word)))
        else:
            word = word[:LONGEST_TERM].lower()
            (common if word in _COMMON else words)[word] = None
        if len(words) >= MAX_TERMS:
            break
    terms = list(words or common)[:MAX_TERMS]
    return " OR ".join(f'"{term}"' for term in terms) if terms else None


def score_of(rank: float) -> float:
    """A positive finite score of SQLite's rank, which is lower for better matches."""
    return max(-rank, SMALLEST_SCORE)


def _neighbours(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    return [f"{first} {second}" for first, second in itertools.pairwise(run)]

"""Clauses: the parts of a sentence that stand by themselves, and the thing that each is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.summarisers.extractive.changes import TELLING
from contextbus.summarisers.extractive.cues import is_duty
from contextbus.summarisers.extractive.function_words import FUNCTION_WORDS
from contextbus.summarisers.extractive.stems import find_concepts, is_attribute
from contextbus.summarisers.extractive.values import EXACT, SETTINGS, Value

NAMING: Final = (*EXACT, "number")
"""Kinds of values that can name a thing."""

WORD: Final = re.compile(
    r"[\u3400-\u9fff々]+|[\u30a0-\u30ff]{2,}|(?:(?![\u3040-\u30ff\u3400-\u9fff])[^\W\d_])+|[^\s\w]|[\x01\u3040-\u309f]+|\d+"
)
_LABEL_BEFORE: Final = re.compile(r"(?<!\w)([^\W\d_]{2,30})\s+(?:(?:no|nr)\.?\s*|number\s+)?#?$", re.IGNORECASE)
_PART: Final = re.compile(r"(?<=[,，])\s+(?:(?:and|und|et|y|и)\s+)?|\s+(?:and|und|et|y|и)\s+")
_WORD_BEHIND: Final = re.compile(r"\s+(?:(?:now|jetzt|nun|ahora|maintenant|теперь)\s+)?([^\W\d_]+)")
_IDENTIFIED: Final = re.compile(
    r"\s+(?:is|are|ist|sind|est|es)\s+(?:(?:now|jetzt|nun|maintenant|ahora)\s+)?"
    r"(?:the|our|my|der|die|das|unser\w*|mein\w*|le|la|notre|mon|ma|el|nuestr\w+|mi)(?!\w)",
    re.IGNORECASE,
)
_PLACING: Final = frozenset(
    (
        *("at", "on", "in", "to", "from", "for", "with", "as", "by", "of", "into", "instead", "now", "and", "or"),
        *("um", "auf", "an", "im", "aus", "von", "vom", "mit", "als", "für", "zu", "nach", "statt", "und", "oder"),
        *(
            "à",
            "de",
            "du",
            "des",
            "pour",
            "avec",
            "en",
            "comme",
            "et",
            "ou",
            "a",
            "del",
            "para",
            "con",
            "como",
            "y",
            "o",
        ),
        *("в", "на", "с", "из", "для", "к", "и", "или"),
    )
)
_LONGEST_SUBJECT: Final = 2
_NAME: Final = "name"


class Key(msgspec.Struct, frozen=True, gc=False):
    """The identifier that a claim is about: "order 7001" of "Order 7001 ships from D-1".

    ``label`` is the word before it, or of an identifier without one its letters.  ``leads`` says that it is the subject
    of the clause, ``others`` are the other values of the clause.
    """

    kind: str
    text: str
    label: str
    leads: bool
    others: tuple[tuple[str, str], ...]


def cut_parts(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Cut a clause at commas and at "and" where each part says something by itself; else it is one part."""
    spans = cut_spans(_PART, text, start, end)
    return spans if len(spans) > 1 and all(_stands_alone(text, a, b) for a, b in spans) else [(start, end)]


def cut_spans(sign: re.Pattern[str], text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The spans of a text between the matches of a sign, without empty ones."""
    spans: list[tuple[int, int]] = []
    for match in sign.finditer(text, start, end):
        spans.append((start, match.start()))
        start = match.end()
    return [(a, b) for a, b in (*spans, (start, end)) if text[a:b].strip()]


def _stands_alone(text: str, start: int, end: int) -> bool:
    return TELLING.pattern.search(text, start, end) is not None or is_duty(text[start:end])


def find_key(rest: str, start: int, end: int, held: Sequence[Value]) -> Key | None:
    """The first identifier or number of a clause, where it names the thing that the rest of the clause tells of."""
    first = next((v for v in held if v.kind in NAMING or v.kind == _NAME), None)
    if first is None or TELLING.pattern.search(rest, start, first.start) is not None:
        return None
    before = rest[start : first.start]
    labelled = _LABEL_BEFORE.search(before)
    word = labelled[1].lower() if labelled is not None else ""
    label = "" if not word or word in FUNCTION_WORDS else find_concepts(word)[-1]
    if first.kind == "number" and (not label or is_attribute(label) or not first.text.isdigit()):
        return None
    words = [m[0].lower() for m in WORD.finditer(before)]
    behind = _WORD_BEHIND.match(rest, first.end, end)
    leads = (
        behind is not None
        and behind[1].lower() not in _PLACING
        and _IDENTIFIED.match(rest, first.end) is None
        and len([w for w in words if w not in FUNCTION_WORDS]) <= _LONGEST_SUBJECT
        and not any(w in _PLACING or not w[0].isalpha() for w in words)
    )
    others = tuple((v.kind, v.text) for v in held if v is not first and v.kind not in SETTINGS)
    # a name alone may be what is told: "Wilma Pellworm has the key"
    if not others and (not leads or first.kind == _NAME):
        return None
    if first.kind == _NAME:
        label = ""
    elif not label:
        label = re.split(r"\d", first.text, maxsplit=1)[0]
    return Key(first.kind, first.text, label, leads, others)


def are_of_two(mine: Key | None, theirs: Key | None, *, change: bool) -> bool:
    """Whether two claims, the later one first, are about two things of a kind, such as order 7001 and order 7002.

    A claim that tells of a change and repeats another value of the earlier one may have given the thing another name.
    """
    if mine is None or theirs is None or mine.kind != theirs.kind or mine.text == theirs.text:
        return False
    if (
        mine.label != theirs.label
        or (mine.kind, mine.text) in theirs.others
        or (theirs.kind, theirs.text) in mine.others
    ):
        return False
    return not change or (mine.leads and theirs.leads) or not any(v in theirs.others for v in mine.others)

"""Claims: what a clause says about what, so that a later claim can take the place of an earlier one."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from contextbus.summarisers.extractive.changes import CHANGE, HEDGE, LIMIT, TELLING, TOLD_AS
from contextbus.summarisers.extractive.clauses import NAMING, WORD, Key, are_of_two, cut_parts, find_key
from contextbus.summarisers.extractive.function_words import FUNCTION_WORDS, LABELS
from contextbus.summarisers.extractive.stems import find_concepts, is_attribute
from contextbus.summarisers.extractive.values import MANNER, SETTINGS, Value, find_values

_CLAUSE_END: Final = re.compile(r"[;；。！？]|[.!?](?=\s|$)")
_ORDER: Final = re.compile(
    r"\s*([^\W\d_]{3,30})\s+(?:the|a|an|der|die|das|den|le|la|les|l['’]|el|los|las|un|una)(?!\w)", re.IGNORECASE
)
_LONGEST_LIMIT: Final = 24
_PART_END: Final = re.compile(r"[,，、](?=\s|$)|[:：](?=\s|$)|\s[–—]\s")
_ASSIGNMENT: Final = re.compile(
    r"^\s*(.{2,50}?)\s*(=|[:：]|(?<!\w)(?:is|are|ist|sind|lautet|heißt)(?!\w)|は)\s*(\w.{0,50}?)\s*[.。]?\s*$"
)
_LETTERS: Final = re.compile(r"[^\W\d_]{2,}")
_OF: Final = frozenset(("of", "for", "der", "des", "für", "von", "vom", "im", "in", "de", "du", "del", "для", "の"))
_LONGEST_UNTYPED: Final = 6
_SEVERAL: Final = 2
_STATE: Final = "state"
_RIVAL_SHARE: Final = 0.4
_MONEY: Final = ("money", "number")


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one clause says: its values by kind, the concepts it is about, and their neighbours.

    ``core`` are the concepts of the part between commas that holds the values.  ``told`` says that an identifier or
    number is what is told of a thing ("the code is K-7"), not the thing itself ("K-7 is broken").
    ``denied`` says that the clause holds a negation, ``tells`` that a
    word such as "is" or "was" stands before the first value.
    ``order`` is the concept of a verb that begins the clause, ``limit`` the word before the value that makes it a limit
    ("until"); both are empty where there is none.
    """

    values: tuple[tuple[str, str], ...]
    topic: frozenset[str]
    beside: tuple[tuple[str, tuple[str, ...]], ...]
    start: int
    end: int
    core: frozenset[str] = frozenset()
    told: bool = False
    order: str = ""
    limit: str = ""
    key: Key | None = None
    denied: bool = False
    tells: bool = False

    kinds: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Note the kinds of the values, each once, and those that are identifiers or numbers."""
        # the struct is not handed out before this is done
        msgspec.structs.force_setattr(self, "kinds", tuple(dict.fromkeys(kind for kind, _ in self.values)))
        msgspec.structs.force_setattr(self, "named", tuple(v for v in self.values if v[0] in NAMING))


_TELLS: Final = re.compile(
    rf"{TELLING.pattern.pattern}|(?<!\w)(?:was|were|has been|have been|wurden?|a été|fue|был[аои]?)(?!\w)",
    re.IGNORECASE,
)
_DENIAL: Final = re.compile(
    r"(?<!\w)(?:never|not|no|don['’]t|cannot|can['’]t|mustn['’]t|nie|niemals|nicht|kein\w*|jamais|ne|pas|nunca|не|никогда"
    r"|нельзя)(?!\w)|ない|禁止",
    re.IGNORECASE,
)


def is_change(text: str) -> bool:
    """Whether a sentence says that something is other than it was."""
    return CHANGE.is_in(text) and not HEDGE.is_in(text)


def count_content_words(text: str) -> int:
    """How many words of a text are no function words."""
    return sum(1 for m in _LETTERS.finditer(text) if m[0].lower() not in FUNCTION_WORDS)


def find_claims(text: str) -> tuple[tuple[Claim, ...], tuple[Value, ...]]:
    """The claims of a sentence that hold values, and all its values."""
    values, rest = find_values(text, FUNCTION_WORDS)
    claims: list[Claim] = []
    start = 0
    ends: list[int] = []
    for end in dict.fromkeys((*(m.end() for m in _CLAUSE_END.finditer(rest)), len(rest))):
        parts = cut_parts(rest, start, end)
        if all(any(a <= v.start < b for v in values) for a, b in parts):
            ends += [b for _, b in parts[:-1]]
        ends.append(end)
        start = end
    start = 0
    for end in ends:
        held = tuple(v for v in values if start <= v.start < end)
        inside = tuple((v.kind, v.text) for v in held)
        if inside:
            topic, beside = _find_topic(rest[start:end])
            core = _find_core(rest, start, end, held, topic)
            order, limit = _find_order(rest, start), _find_limit(rest, start, held)
            denied = _DENIAL.search(rest, start, end) is not None
            tells = _TELLS.search(rest, start, held[0].start) is not None
            told, key = _is_told(rest, start, held), find_key(rest, start, end, held)
            claims.append(Claim(inside, topic, beside, start, end, core, told, order, limit, key, denied, tells))
        if not inside or inside[0][0] == "number":
            assigned = _read_assignment(text[start:end], start, end)
            claims += () if assigned is None else (assigned,)
        start = end
    return tuple(claims), values


def are_rivals(newer: Claim, older: Claim) -> bool:
    """Whether two claims tell differently of one thing, as far as can be told; a reader must see which came later."""
    kinds = _shared_kinds(newer, older, change=False)
    if not kinds or are_of_two(newer.key, older.key, change=False):
        return False
    shared = newer.topic & older.topic
    return any(not is_attribute(c) for c in shared) and closeness(newer, older) >= _RIVAL_SHARE


def _find_core(rest: str, start: int, end: int, held: Sequence[Value], topic: frozenset[str]) -> frozenset[str]:
    """The concepts of the parts of a clause, between commas, that hold its values."""
    cuts = [start, *(m.end() for m in _PART_END.finditer(rest, start, end)), end]
    if len(cuts) == _SEVERAL:
        return topic
    core: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    for a, b in pairwise(cuts):
        about = _find_topic(rest[a:b])[0]
        if any(a <= v.start < b for v in held):
            # a part that is nothing but values belongs to the one before: "Passengers: Omar Davis"
            core |= about or before
        before = about
    return core


def _find_order(rest: str, start: int) -> str:
    """The concept of a first word with an article behind it: "Water the plants" begins with a verb."""
    first = _ORDER.match(rest, start)
    concepts = find_concepts(first[1].lower()) if first is not None else ()
    return concepts[0] if len(concepts) == 1 else ""


def _find_limit(rest: str, start: int, held: Sequence[Value]) -> str:
    """The word that makes the one value of a clause a limit."""
    if len(held) != 1:
        return ""
    before = LIMIT.search(rest, max(start, held[0].start - _LONGEST_LIMIT), held[0].start)
    return "" if before is None else before[1].lower()


def _is_told(rest: str, start: int, held: Sequence[Value]) -> bool:
    """Whether each identifier or number of a clause is told of something: "the code is K-7", "use K-7 as the code"."""
    named = [v for v in held if v.kind in NAMING]
    return len(named) > 0 and all(
        TELLING.pattern.search(rest, start, v.start) is not None or TOLD_AS.match(rest, v.end) is not None
        for v in named
    )


def _read_assignment(clause: str, start: int, end: int) -> Claim | None:
    """The claim of ``X: Y``, ``X = Y`` or ``X is Y`` without a value of a known kind."""
    match = _ASSIGNMENT.match(clause)
    if match is None or len(match[3].split()) > _LONGEST_UNTYPED:
        return None
    key = match[1].strip().lower()
    if match[2] != "=" and (key.split()[-1] in LABELS or match[1].isupper()):
        return None
    topic, beside = _find_topic(match[1])
    if not topic:
        return None
    sign = match[2]
    kind = _STATE if sign in "=:：" or match[3][0].isdigit() else f"{_STATE}?"
    return Claim(((kind, " ".join(match[3].lower().split())),), topic, beside, start, end)


def _find_topic(clause: str) -> tuple[frozenset[str], tuple[tuple[str, tuple[str, ...]], ...]]:
    """The concepts of a clause, and for each the concepts that stand directly beside it.

    The one before belongs to it ("trip costs"); the one behind does where a word such as "of" joins them.
    """
    row: list[str | None] = []
    joined: list[bool] = []
    for match in WORD.finditer(clause):
        word = match[0].lower()
        if word in {"-", "‐"}:
            continue
        if word in _OF:
            joined.append(True)
            row.append(None)
        elif (
            not (word[0].isalnum() and not word[0].isdigit())
            or word in FUNCTION_WORDS
            or "\u3040" <= word[0] <= "\u309f"
        ):
            joined.append(False)
            row.append(None)
        else:
            concepts = find_concepts(word)
            row += concepts
            joined += [False] * len(concepts)
    beside: dict[str, tuple[str, ...]] = {}
    for index, concept in enumerate(row):
        if concept is None:
            continue
        near: list[str] = []
        before = row[index - 1] if index else None
        if before is not None:
            near.append(before)
        if index + 2 < len(row) and joined[index + 1]:
            behind = row[index + 2]
            if behind is not None:
                near.append(behind)
        beside[concept] = (*beside.get(concept, ()), *near)
    return frozenset(beside), tuple(beside.items())


def replaces(
    newer: Claim,
    older: Claim,
    *,
    change: bool,
    given_up: Collection[tuple[str, str]] = (),
    swapped: Collection[tuple[str, str]] = (),
) -> bool:
    """Whether a later claim takes the place of an earlier one.

    Both have a value of one kind, and not the same; they are about the same thing.  What counts as the same depends on
    how sure the later one is that something changed (``change``), on whether the kind is a setting, and on whether the
    later one names the earlier value as one that is over (``given_up``), or as one it puts another in the place of
    (``swapped``).
    """
    if given_up and any(value in given_up for value in older.values):
        shared = newer.topic & older.topic
        # "host-9 instead of host-7" need not say again what host-7 was
        is_named = older.told and len(older.values) == 1 and older.values[0] in swapped
        same = is_named or (bool(shared) and not _contrast(newer, older, shared))
        is_key_over = older.key is not None and (older.key.kind, older.key.text) in given_up
        return same and (is_key_over or not are_of_two(newer.key, older.key, change=change))
    kinds = _shared_kinds(newer, older, change=change)
    if not kinds or not _differ(newer, older, kinds):
        return False
    if are_of_two(newer.key, older.key, change=change) or not _same_subject(newer, older, kinds, change=change):
        return False
    shared = newer.topic & older.topic
    if not shared or _contrast(newer, older, shared):
        return False
    if newer.topic == older.topic:
        return change or _STATE + "?" not in kinds
    if kinds[0].startswith(_STATE):
        return False
    if _is_said_again(newer, older, shared):
        return True
    within = newer.topic <= older.topic or older.topic <= newer.topic
    if within and (change or kinds[0] in SETTINGS):
        return True
    if all(is_attribute(c) for c in shared):
        return False
    if not change:
        return kinds[0] in SETTINGS
    # the name of a property, given only on one side, says nothing against the same thing
    return len(shared) * 5 >= sum(1 for c in newer.topic | older.topic if c in shared or not is_attribute(c))


def _is_said_again(newer: Claim, older: Claim, shared: frozenset[str]) -> bool:
    """Whether one of two claims says all that the other is about and adds words only in another part of the sentence.

    "Six cousins joined, so the party is for 40 guests" says again what "The party is for 30 guests" is about, while a
    word directly before a shared one narrows it: "the back door code" is not "the door code".
    """
    if newer.core == older.topic or newer.topic == older.core:
        return True
    if len(shared) < _SEVERAL:
        return False
    for wider, narrower in ((newer, older), (older, newer)):
        left = narrower.topic - wider.topic
        # of an order to keep something up to a limit, the same limit of the same thing may come with another verb
        if left and (not narrower.limit or narrower.limit != wider.limit or left != frozenset((narrower.order,))):
            continue
        if not any(near not in shared for word, all_near in wider.beside if word in shared for near in all_near):
            return True
    return False


def _same_subject(newer: Claim, older: Claim, kinds: tuple[str, ...], *, change: bool) -> bool:
    """Whether identifiers leave two claims about the same: "A-1 failed" and "A-2 failed" are about two things."""
    mine, theirs = newer.named, older.named
    if kinds[0].startswith(_STATE) or any(v in theirs for v in mine):
        return True
    taken_back = newer.tells and ("code" not in kinds or (newer.told and older.told))
    if newer.denied != older.denied and kinds[0] not in SETTINGS and not taken_back:
        # "Mail K-7 now" takes nothing back of "Never mail K-8"
        return False
    key = older.key
    if key is not None and key.leads and key.others and kinds == (key.kind,):
        # what was told of HAT1 still holds when HAT2 is taken
        return False
    if change:
        return len(mine) < _SEVERAL or len(theirs) < _SEVERAL
    if len(mine) == 1 and len(theirs) == 1:
        return newer.told and older.told
    return not mine and not theirs


def closeness(newer: Claim, older: Claim) -> float:
    """How much of what both are about they share, from 0 to 1."""
    return len(newer.topic & older.topic) / max(1, len(newer.topic | older.topic))


def _shared_kinds(newer: Claim, older: Claim, *, change: bool) -> tuple[str, ...]:
    theirs = older.kinds
    if newer.kinds == theirs and len(theirs) == 1:
        return theirs
    shared = tuple(kind for kind in newer.kinds if kind in theirs)
    if not shared and change and any(k in MANNER for k in newer.kinds) and any(k in MANNER for k in theirs):
        return MANNER
    if not shared and change and any(k in _MONEY for k in newer.kinds) and any(k in _MONEY for k in theirs):
        # "4500 EUR", then "cut to 3000"
        return _MONEY
    return tuple(sorted(shared, key=lambda kind: kind not in SETTINGS))


def _differ(newer: Claim, older: Claim, kinds: tuple[str, ...]) -> bool:
    return any(v[0] in kinds and v not in newer.values for v in older.values)


def _contrast(newer: Claim, older: Claim, shared: frozenset[str]) -> bool:
    """Whether a shared word has beside it a word of each alone: "test database", "live database"."""
    mine, theirs = dict(newer.beside), dict(older.beside)
    only_mine, only_theirs = newer.topic - shared, older.topic - shared
    return any(
        any(c in only_mine for c in mine[word]) and any(c in only_theirs for c in theirs[word])
        for word in sorted(shared)
    )

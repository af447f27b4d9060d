"""Facts: what a range says, by class, with later values in the place of earlier ones (C.X.9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from contextbus.summarisers.extractive.changes import HEDGE
from contextbus.summarisers.extractive.claims import (
    Claim,
    closeness,
    count_content_words,
    find_claims,
    is_change,
    replaces,
)
from contextbus.summarisers.extractive.cues import (
    CARE,
    CONDITIONS,
    DECISION,
    GOAL,
    OPEN,
    SELF,
    WISH,
    is_duty,
    is_failure,
)
from contextbus.summarisers.extractive.function_words import FUNCTION_WORDS
from contextbus.summarisers.extractive.segments import Section, Segment
from contextbus.summarisers.extractive.stems import is_attribute
from contextbus.summarisers.extractive.values import EXACT, SETTINGS, Value, find_values
from contextbus.summarisers.extractive.word_tables import UNSPACED, WordGate, find_gates

_CLAUSE: Final = re.compile(r"(?<=[.!;。；])\s*|,?\s+(?:and|und|et|y|и)\s+|、")
_JOINING: Final = re.compile(r"[\s,;]+(?:and|und|et|y|и)$")
_QUESTION: Final = re.compile(r"[?？؟]\s*$")
_SPEAKER: Final = re.compile(r"^(?:user|assistant): ")
_RECENT_OF_A_CONCEPT: Final = 16
_OFF: Final = re.compile(
    r"[\s,(（]*(?<!\w)(?:from|instead of|rather than|not|formerly|previously|was|von|vom|statt|anstelle von|bisher|с|со"
    r"|вместо|не|de|au lieu de|en vez de)\s+(?:(?:the|dem|den)\s+)?$",
    re.IGNORECASE,
)
_OFF_GATE: Final = WordGate(
    [
        "from",
        "instead",
        "rather",
        "not",
        "formerly",
        "previously",
        "was",
        "von",
        "vom",
        "statt",
        "anstelle",
        "bisher",
        "с",
        "со",
        "вместо",
        "не",
        "de",
        "au",
        "en",
    ]
)
_LONGEST_OFF: Final = 40
_JOINTS_OF_A_RECORD: Final = 2


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One statement of a range: its line, its class, how much it matters, and what it claims.

    ``message`` is the index of its message; ``carried`` says that an earlier summary had it.
    """

    text: str
    section: Section
    score: float
    message: int
    speaker: str
    claims: tuple[Claim, ...] = ()
    values: tuple[Value, ...] = ()
    carried: bool = False

    @property
    def said(self) -> str:
        """The line without who said it; ``values`` give positions in it."""
        return _SPEAKER.sub("", self.text)


class Turns(msgspec.Struct, frozen=True):
    """Which messages come last and first, by role: -1 where there is none."""

    last_user: int
    last_assistant: int
    first_user: int


def collect_facts(segments: Iterable[Segment], turns: Turns) -> tuple[tuple[Fact, ...], frozenset[str]]:
    """The facts that still hold, in the order in which they were said.

    Returns:
        The facts, and the values that were given up, in lower case.
    """
    ledger = _Ledger()
    for segment in segments:
        fact = make_fact(segment, turns)
        if fact is not None:
            ledger.add(fact)
    return ledger.live(), frozenset(ledger.retired)


def make_fact(segment: Segment, turns: Turns) -> Fact | None:
    """What a segment says, or None where it is an answered question or an empty phrase."""
    text = segment.text
    said = _SPEAKER.sub("", text) if segment.section is not None else text
    is_question = _QUESTION.search(said) is not None
    section = segment.section
    if section is None:
        section = _classify(segment, is_question=is_question, turns=turns)
    elif section == "Open" and is_question and _is_answered(text, segment.message, turns):
        section = None
    if section is None:
        return None
    claims, values = ((), ()) if is_question or section == "Tool calls" else find_claims(said)
    told = any(v.kind not in SETTINGS for v in values) or any("state" in claim.kinds for claim in claims)
    if section == "Notes" and (told or segment.marked) and segment.section is None:
        section = "Values"
    if segment.section is None and not segment.marked and _is_empty(segment, section, said, has_values=bool(values)):
        return None
    score = _score(segment, section, said, values, turns)
    if segment.section is None and (is_question or SELF.is_in(said)) and segment.speaker != "summary":
        text = f"{segment.speaker}: {said}"
    carried = segment.section is not None
    return Fact(text, section, score, segment.message, segment.speaker, claims, values, carried)


def _is_empty(segment: Segment, section: Section, said: str, *, has_values: bool) -> bool:
    """Whether a line says too little by itself: small talk, a heading, a request that only points back."""
    if segment.speaker == "assistant" and (
        said.endswith((":", "：")) or (section == "Notes" and len(said) < _SHORTEST_NOTE)
    ):
        return True
    if has_values or section not in {"Notes", "Goal"}:
        return False
    return not UNSPACED.search(said) and count_content_words(said) < _FEWEST_WORDS + (section == "Notes")


_SHORTEST_NOTE: Final = 40
_FEWEST_WORDS: Final = 2
_BASE: Final[dict[Section, float]] = {
    "Goal": 8,
    "Constraints": 11,
    "Decisions": 6,
    "Values": 6,
    "Open": 7,
    "Failures": 6,
    "Tool calls": 2,
    "Notes": 2,
    "References": 1,
}


_ASSISTANT_SHARE: Final[dict[Section, float]] = {"Decisions": 0.8, "Open": 1, "Values": 0.4, "Notes": 0.5}
"""What a line weighs when the assistant said it: it repeats, lists and offers much that nobody took up."""


def _classify(segment: Segment, *, is_question: bool, turns: Turns) -> Section | None:
    text, person = segment.text, segment.speaker != "assistant"
    if is_question:
        if person and GOAL.is_in(text):
            return "Goal"
        return None if _is_answered(f"{segment.speaker}: ", segment.message, turns) else "Open"
    if OPEN.is_in(text):
        return "Open"
    wants = GOAL.is_in(text)
    if person and wants and not is_duty(text):
        return "Goal"
    if is_duty(text) or (person and (CARE.is_in(text) or WISH.is_in(text) or text.startswith(CONDITIONS))):
        return "Constraints"
    if is_failure(text):
        return "Failures"
    if DECISION.is_in(text):
        return "Decisions"
    return "Goal" if wants and segment.marked else "Notes"


def _is_answered(text: str, message: int, turns: Turns) -> bool:
    return (turns.last_user if text.startswith("assistant") else turns.last_assistant) > message


def _score(segment: Segment, section: Section, said: str, values: Sequence[Value], turns: Turns) -> float:
    score = _BASE[section]
    if is_duty(said):
        score += 2
    score += min(3, sum(1 for v in values if v.kind not in SETTINGS)) + min(1, len(values))
    if is_change(said):
        score += 2
    if segment.marked:
        score += 4
    if segment.speaker == "assistant":
        score *= _ASSISTANT_SHARE.get(section, 0.6)
    elif segment.message == turns.first_user:
        score += 2
    return score + (1 if segment.section is not None else 0)


class _Ledger:
    """Facts as they come; a later one takes out what it replaces."""

    def __init__(self) -> None:
        self.retired: dict[str, None] = {}
        self._facts: list[Fact | None] = []
        self._lines: dict[str, int] = {}
        self._by_concept: dict[str, list[int]] = {}
        self._by_value: dict[tuple[str, str], list[int]] = {}

    def live(self) -> tuple[Fact, ...]:
        return tuple(fact for fact in self._facts if fact is not None)

    def add(self, fact: Fact) -> None:
        line = " ".join(fact.text.lower().split())
        at = self._lines.get(line)
        if at is not None and self._facts[at] is not None:
            return
        fact = self._replace(fact)
        self._lines[line] = len(self._facts)
        self._put(fact)

    def _put(self, fact: Fact) -> None:
        number = len(self._facts)
        self._facts.append(fact)
        for claim in fact.claims:
            for concept in sorted(claim.topic):
                self._by_concept.setdefault(concept, []).append(number)
            for value in claim.values:
                self._by_value.setdefault(value, []).append(number)

    def _replace(self, fact: Fact) -> Fact:
        """Take out what a new fact replaces; it takes over the class and the weight of that."""
        change = is_change(fact.text)
        if HEDGE.is_in(fact.text):
            return fact
        given_up = tuple((v.kind, v.text) for v in _find_given_up(fact))
        for claim in fact.claims:
            found = [
                (number, old)
                for number in self._near(claim)
                if self._may_replace(fact, self._facts[number], change=change)
                for old in self._claims(number)
                if replaces(claim, old, change=change, given_up=given_up)
            ]
            if not found:
                continue
            number, best = max(found, key=lambda each: (closeness(claim, each[1]), each[0]))
            gone = {n: old for n, old in found if old.topic == best.topic or set(old.values) & set(best.values)}
            gone[number] = best
            stale = (
                tuple(v for v in best.values if v[0] in claim.kinds and (v not in claim.values or v in given_up))
                or best.values
            )
            for value in stale:
                for other in self._by_value.get(value, ())[-_RECENT_OF_A_CONCEPT:]:
                    for old in self._claims(other):
                        if value in old.values and any(not is_attribute(c) for c in old.topic & best.topic):
                            gone[other] = old
            fact = self._take_over(fact, gone, stale)
        return fact

    def _near(self, claim: Claim) -> tuple[int, ...]:
        near: dict[int, None] = {}
        for concept in sorted(claim.topic):
            near.update(dict.fromkeys(self._by_concept.get(concept, ())[-_RECENT_OF_A_CONCEPT:]))
        return tuple(sorted(near))

    def _claims(self, number: int) -> tuple[Claim, ...]:
        fact = self._facts[number]
        return () if fact is None else fact.claims

    @staticmethod
    def _may_replace(newer: Fact, older: Fact | None, *, change: bool) -> bool:
        if older is None or (newer.carried and older.carried):
            return False
        if newer.message == older.message or (newer.speaker == "assistant" and older.speaker != "assistant"):
            return change
        return change or not (_is_record(newer) or _is_record(older)) or bool(_names(newer) & _names(older))

    def _take_over(self, fact: Fact, gone: dict[int, Claim], stale: Sequence[tuple[str, str]]) -> Fact:
        text, score, section = fact.text, fact.score, fact.section
        given_up = _find_given_up(fact)
        for kind, value in stale:
            over = next((v for v in given_up if (v.kind, v.text) == (kind, value)), None)
            if over is not None and text == fact.text:
                text = text.removesuffix(fact.said) + _cut_off(fact.said, over)
            if kind in EXACT or kind in {"date", "money", "name"}:
                self.retired[value] = None
        for number in sorted(gone):
            older = self._facts[number]
            if older is None:
                continue
            self._facts[number] = None
            score = max(score, (fact.score + older.score) / 2)
            if section in {"Notes", "Values", "Decisions"} and older.section in {"Constraints", "Goal"}:
                section = older.section
            rest = _without(older, gone[number], tuple(v for _, v in stale))
            if rest is not None:
                self._facts[number] = rest
        if text != fact.text:
            claims, values = find_claims(_SPEAKER.sub("", text))
            fact = msgspec.structs.replace(fact, text=text, claims=claims, values=values)
        return msgspec.structs.replace(fact, score=score, section=section)


def _is_record(fact: Fact) -> bool:
    """Whether a line is a record of a named thing: "Booking K-7; guests: Wilma Pellworm; date: 3 May"."""
    return fact.text.count("; ") >= _JOINTS_OF_A_RECORD and any(v.kind in EXACT for v in fact.values)


def _names(fact: Fact) -> frozenset[str]:
    return frozenset(v.text for v in fact.values if v.kind in EXACT)


def _find_given_up(fact: Fact) -> tuple[Value, ...]:
    """The values that a fact itself says are over: the first of "from 3 May to 9 May"."""
    said = fact.said
    if not fact.values or not find_gates(said) & _OFF_GATE.bit:
        return ()
    return tuple(
        v
        for v in fact.values
        if _OFF.search(said[max(0, v.start - _LONGEST_OFF) : v.start]) or said.startswith(("から", "ではなく"), v.end)
    )


def _cut_off(text: str, value: Value) -> str:
    """A text without a value that it says is over: "from 3 May to 9 May" becomes "to 9 May"."""
    before = _OFF.search(text[: value.start])
    start = value.start if before is None else before.start()
    end = value.end
    for particle in ("から", "ではなく"):
        if text.startswith(particle, end):
            end += len(particle)
    return " ".join(f"{text[:start]} {text[end:].removeprefix(')')}".split())


def _without(fact: Fact, claim: Claim, stale: tuple[str, ...]) -> Fact | None:
    """What is left of a fact without the part that a later one replaced; None where nothing of use is left."""
    said = fact.said
    _, masked = find_values(said, FUNCTION_WORDS)
    cuts = [0, *(m.end() for m in _CLAUSE.finditer(masked)), len(said)]
    clauses = [said[start:end] for start, end in pairwise(cuts)]
    kept = [c for c in clauses if c and not any(value in " ".join(c.lower().split()) for value in stale)]
    rest = _JOINING.sub("", "".join(kept).strip(" ,;"))
    if not kept or len(kept) == len(clauses):
        return None
    claims, values = find_claims(rest)
    lost = {v for v in claim.values if v[0] in SETTINGS}
    if lost or not any(v.kind in EXACT or v.kind in {"date", "money", "name"} for v in values):
        return None
    text = fact.text.removesuffix(said) + rest
    return msgspec.structs.replace(fact, text=text, claims=claims, values=values)

"""The ledger: facts as they come, each in the place of those it replaces (C.X.9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from contextbus.summarisers.extractive.changes import HEDGE
from contextbus.summarisers.extractive.claims import (
    Claim,
    are_rivals,
    closeness,
    find_claims,
    is_change,
    replaces,
)
from contextbus.summarisers.extractive.clauses import are_of_two, cut_parts, cut_spans
from contextbus.summarisers.extractive.cues import CASES, is_duty
from contextbus.summarisers.extractive.facts import SPEAKER, Fact, Turns, make_fact
from contextbus.summarisers.extractive.function_words import FUNCTION_WORDS
from contextbus.summarisers.extractive.segments import SECTIONS, Segment
from contextbus.summarisers.extractive.stems import is_attribute
from contextbus.summarisers.extractive.values import EXACT, SETTINGS, Value, find_values
from contextbus.summarisers.extractive.word_tables import WordGate, find_gates

_SENTENCE: Final = re.compile(r"(?<=[.!;。；])\s*")
_NEGATED: Final = re.compile(r"^(?:not|не)\s", re.IGNORECASE)
_SWAPPED: Final = re.compile(
    r"^[\s,(（]*(?:instead of|rather than|statt|anstelle von|вместо|au lieu de|en vez de)\s", re.IGNORECASE
)
_RECENT_OF_A_CONCEPT: Final = 16
_OFF: Final = re.compile(
    r"[\s,(（]*(?<!\w)(?:from|instead of|rather than|not|formerly|previously|was|von|vom|statt|anstelle von|bisher|с|со"
    r"|вместо|не|de|au lieu de|en vez de)\s+(?:(?:the|dem|den)\s+)?$"
    r"|[\s,(（]*(?<!\w)(?:instead of|rather than|statt|anstelle von|вместо|au lieu de|en vez de)"
    r"\s+(?:(?:the|dem|den|der|la|le|el)\s+)?[^\W\d_]+\s+$",
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
_POINTING: Final = re.compile(
    r"(?<!\w)(?:it|them|this|that|these|those|its|es|ihn|sie|ihm|dies\w*|le|la|les|lo|los|его|её|их)(?!\w)",
    re.IGNORECASE,
)
_SPACE_BEFORE_SIGN: Final = re.compile(r"\s+(?=[.,;!?](?:\s|$))")
_CASES: Final = (*CASES, *(f"{speaker}: {case}" for speaker in ("user", "assistant") for case in CASES))
_FEWEST_DIGITS: Final = 2
_SHARE_OF_A_REST: Final = 0.3
"""What a duty without values weighs that stood beside a value that is over: "Never exceed it." may say little now."""


class Held(msgspec.Struct, frozen=True):
    """What a range holds in the end.

    ``facts`` stand in the order in which they were said, ``retired`` are the values that were given up, in lower case,
    and ``kept`` are identifiers of facts that went for something else they said, with the index of their message.
    """

    facts: tuple[Fact, ...]
    retired: frozenset[str]
    kept: tuple[tuple[str, int], ...]


def collect_facts(segments: Iterable[Segment], turns: Turns) -> Held:
    """The facts that still hold, and what became of the others."""
    ledger = _Ledger()
    for segment in segments:
        fact = make_fact(segment, turns)
        if fact is not None:
            ledger.add(fact)
    return Held(ledger.live(), frozenset(ledger.retired), tuple(ledger.kept.items()))


class _Ledger:
    """Facts as they come; a later one takes out what it replaces."""

    def __init__(self) -> None:
        self.retired: dict[str, None] = {}
        self.kept: dict[str, int] = {}
        self._last_rank = 0
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
        self._put_behind(fact)
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

    def _put_behind(self, fact: Fact) -> None:
        """Move earlier facts that give the same thing another value into the section of the new one, or before it."""
        rank = SECTIONS.index(fact.section)
        if self._last_rank <= rank:
            self._last_rank = rank
            return
        for claim in fact.claims:
            for number in self._near(claim):
                older = self._facts[number]
                if older is None or (older.carried and fact.carried) or SECTIONS.index(older.section) <= rank:
                    continue
                if any(are_rivals(claim, old) for old in older.claims):
                    self._facts[number] = msgspec.structs.replace(older, section=fact.section)

    def _replace(self, fact: Fact) -> Fact:
        """Take out what a new fact replaces; it takes over the class and the weight of that."""
        change = is_change(fact.text)
        if HEDGE.is_in(fact.text):
            return fact
        over = _find_given_up(fact)
        given_up = tuple((v.kind, v.text) for v in over)
        swapped = tuple((v.kind, v.text) for v in over if _is_swapped(fact.said, v))
        for claim in fact.claims:
            found = [
                (number, old)
                for number in self._near(claim, swapped)
                if self._may_replace(fact, self._facts[number], change=change)
                for old in self._claims(number)
                if replaces(claim, old, change=change, given_up=given_up, swapped=swapped)
                and not self._says_all(number, claim)
            ]
            if not found:
                continue
            number, best = max(found, key=lambda each: (closeness(claim, each[1]), each[0]))
            gone = {n: old for n, old in found if old.topic == best.topic or set(old.values) & set(best.values)}
            gone[number] = best
            stale = _find_stale(claim, best, given_up)
            for value in stale:
                for other in self._by_value.get(value, ())[-_RECENT_OF_A_CONCEPT:]:
                    for old in self._claims(other):
                        if are_of_two(claim.key, old.key, change=change):
                            continue
                        if value in old.values and any(not is_attribute(c) for c in old.topic & best.topic):
                            gone[other] = old
            fact = self._take_over(fact, gone, stale)
        return fact

    def _near(self, claim: Claim, values: Sequence[tuple[str, str]] = ()) -> tuple[int, ...]:
        near: dict[int, None] = {}
        for concept in sorted(claim.topic):
            near.update(dict.fromkeys(self._by_concept.get(concept, ())[-_RECENT_OF_A_CONCEPT:]))
        for value in values:
            near.update(dict.fromkeys(self._by_value.get(value, ())[-_RECENT_OF_A_CONCEPT:]))
        return tuple(sorted(near))

    def _claims(self, number: int) -> tuple[Claim, ...]:
        fact = self._facts[number]
        return () if fact is None else fact.claims

    def _says_all(self, number: int, claim: Claim) -> bool:
        """Whether an earlier fact has all values of a new claim, so that it replaces none of them."""
        fact = self._facts[number]
        told = () if fact is None else tuple((v.kind, v.text) for v in fact.values)
        return len(claim.values) > 0 and all(value in told for value in claim.values)

    @staticmethod
    def _may_replace(newer: Fact, older: Fact | None, *, change: bool) -> bool:
        if older is None or (newer.carried and older.carried):
            return False
        if older.text.startswith(_CASES) and not newer.text.startswith(_CASES):
            # what to do in a case is no value of the thing that the case is about
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
            rest = _without(older, stale)
            if rest is not None:
                self._facts[number] = rest
            else:
                self._keep_names(older, fact, stale)
        if text != fact.text:
            claims, values = find_claims(SPEAKER.sub("", text))
            fact = msgspec.structs.replace(fact, text=text, claims=claims, values=values)
        return msgspec.structs.replace(fact, score=score, section=section)

    def _keep_names(self, older: Fact, fact: Fact, stale: Sequence[tuple[str, str]]) -> None:
        """Keep the identifiers of a fact that goes, but not what is replaced."""
        told = {(v.kind, v.text) for v in fact.values}
        for value in older.values:
            exact = value.kind in EXACT or (value.kind == "number" and len(value.text) > _FEWEST_DIGITS)
            over = any(value.text in text or text in value.text for _, text in stale)
            if exact and (value.kind, value.text) not in told and not over:
                self.kept[older.said[value.start : value.end]] = older.message


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


def _find_stale(claim: Claim, best: Claim, given_up: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The values of an earlier claim that a later one replaces."""
    over = tuple(v for v in best.values if v in given_up)
    if over:
        return over
    other = tuple(v for v in best.values if v[0] in claim.kinds and v not in claim.values)
    # of a kind of which both name one value, the others are of something else: "on host-7 with the key K-9"
    repeated = {kind for kind, _ in set(claim.values) & set(best.values)}
    return tuple(v for v in other if v[0] not in repeated) or other or best.values


def _is_swapped(said: str, value: Value) -> bool:
    """Whether a value stands behind words such as "instead of"."""
    before = _OFF.search(said[max(0, value.start - _LONGEST_OFF) : value.start])
    return before is not None and _SWAPPED.match(before[0]) is not None


def _cut_off(text: str, value: Value) -> str:
    """A text without a value that it says is over: "from 3 May to 9 May" becomes "to 9 May".

    "is not K-7" stays as it is: only a "not" behind a comma or bracket goes with its value.
    """
    before = _OFF.search(text[: value.start])
    if before is not None and _NEGATED.match(before[0].lstrip()) is not None:
        return text
    start = value.start if before is None else before.start()
    end = value.end
    for particle in ("から", "ではなく"):
        if text.startswith(particle, end):
            end += len(particle)
    return _SPACE_BEFORE_SIGN.sub("", " ".join(f"{text[:start]} {text[end:].removeprefix(')')}".split()))


def _without(fact: Fact, stale: Sequence[tuple[str, str]]) -> Fact | None:
    """What is left of a fact without the part that a later one replaced; None where nothing of use is left.

    Parts between commas are told apart only where each says something by itself, so that no "not" loses its reach.
    """
    said = fact.said
    if any(kind in SETTINGS and not any(k not in SETTINGS for k, _ in stale) for kind, _ in stale):
        return None
    _, masked = find_values(said, FUNCTION_WORDS)
    kept: list[str] = []
    cut = False
    for start, end in cut_spans(_SENTENCE, masked, 0, len(said)):
        parts = cut_parts(masked, start, end)
        left = [said[a:b] for a, b in parts if not _holds(said[a:b], stale)]
        if len(left) == len(parts):
            kept.append(said[start:end].strip())
        else:
            cut = True
            kept += [", ".join(p.strip(" ,、") for p in left)] if left else []
    rest = " ".join(part for part in kept if part)
    if not cut or not rest:
        return None
    claims, values = find_claims(rest)
    score = fact.score
    if not any(v.kind in EXACT or v.kind in {"date", "money", "name"} for v in values):
        # "never reboot it" says little where what "it" was is gone
        counted = any(v.kind == "number" for v in values)
        if not (counted or is_duty(rest)) or _POINTING.search(rest) is not None:
            return None
        score *= 1.0 if counted else _SHARE_OF_A_REST
    text = fact.text.removesuffix(said) + rest
    return msgspec.structs.replace(fact, text=text, score=score, claims=claims, values=values)


def _holds(part: str, values: Sequence[tuple[str, str]]) -> bool:
    low = " ".join(part.lower().split())
    return any(text in low for _, text in values)

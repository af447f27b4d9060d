"""Facts: what a range says, by class, with later values in the place of earlier ones (C.X.9)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.summarisers.extractive.claims import (
    Claim,
    count_content_words,
    find_claims,
    is_change,
)
from contextbus.summarisers.extractive.cues import (
    ASKING,
    ASSENT,
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
from contextbus.summarisers.extractive.values import SETTINGS, Value, find_values
from contextbus.summarisers.extractive.word_tables import UNSPACED

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_COMMA: Final = re.compile(r",\s+")
_QUESTION: Final = re.compile(r"[?？؟]\s*$")
SPEAKER: Final = re.compile(r"^(?:user|assistant): ")


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
        return SPEAKER.sub("", self.text)


class Turns(msgspec.Struct, frozen=True):
    """Which messages come last and first, by role: -1 where there is none."""

    last_user: int
    last_assistant: int
    first_user: int


def make_fact(segment: Segment, turns: Turns) -> Fact | None:
    """What a segment says, or None where it is an answered question or an empty phrase."""
    text = segment.text
    said = SPEAKER.sub("", text) if segment.section is not None else text
    if segment.section is None:
        text = said = _drop_assent(said)
        if not said:
            return None
    is_question = _QUESTION.search(said) is not None
    if segment.section is None and segment.speaker == "assistant" and not is_question:
        text = said = _drop_asking(said)
        is_question = _asks(said)
    section = segment.section
    if section is None:
        section = _classify(msgspec.structs.replace(segment, text=said), is_question=is_question, turns=turns)
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


def _drop_assent(said: str) -> str:
    """A text without the sentences that only agree to something: "I confirm. Please go ahead."""
    parts = _SENTENCE_END.split(said)
    left = [part for part in parts if not all(ASSENT.match(piece) for piece in _COMMA.split(part))]
    return said if len(left) == len(parts) else " ".join(left)


def _drop_asking(said: str) -> str:
    """What the assistant said without its requests for an answer, where it said more than those."""
    parts = _SENTENCE_END.split(said)
    left = [part for part in parts if not _asks(part)]
    return " ".join(left) if left and len(left) < len(parts) else said


def _asks(said: str) -> bool:
    """Whether the assistant asks for a confirmation or an answer, in words that are no question."""
    if ASKING.search(said) is None:
        return False
    return not any(v.kind not in SETTINGS for v in find_values(said, FUNCTION_WORDS)[0])


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

"""A second set of probes: sessions made by chance from other words than any public kit's, in several languages.

They ask what the kit asks: do standing statements survive five rounds, does the latest value win, is no value left that
was given up, are look-alikes kept apart, is the budget kept.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from tests.summarisers.held_out_texts import HELD_OUT
from tests.summarisers.probe_texts import LANGUAGES, Language
from tests.summarisers.unseen_texts import FRENCH

from contextbus.summarisers.extractive import extract_summary
from contextbus_protocol.chat import ChatMessage, assistant, user

BUDGETS: Final = (0.1, 0.2, 0.3)
SEEDS: Final = (1, 2, 3, 4)
ROUNDS: Final = 5
SUMMARY_LABEL: Final = "Previous conversation summary:\n"

_BRACES: Final = re.compile(r"\{(\w+)\}")
_Item = TypeVar("_Item")
Summarise = Callable[[Sequence[ChatMessage], int, Callable[[str], int]], str]


class Probe(msgspec.Struct, frozen=True):
    """What must be in the last summary, and what must not, all in lower case."""

    needs: tuple[str, ...]
    stale: tuple[str, ...] = ()

    def holds(self, text: str) -> bool:
        """Whether all that is needed is there."""
        return all(need in text for need in self.needs)

    def is_stale(self, text: str) -> bool:
        """Whether something is there that was given up."""
        return any(value in text for value in self.stale)


class Session(msgspec.Struct, frozen=True):
    """A conversation and its probes."""

    messages: tuple[ChatMessage, ...]
    standing: tuple[Probe, ...] = ()
    changing: tuple[Probe, ...] = ()
    pairs: tuple[tuple[Probe, Probe], ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a summariser reached at one budget; shares from 0 to 1."""

    language: str
    budget: float
    survival: float
    resolved: float
    stale: int
    pairs: float
    budget_kept: bool


class _Values:
    """Values of a session: each text draws its own, and no two are the same."""

    def __init__(self, language: Language, seed: int) -> None:
        self._language = language
        self._random = random.Random(f"{language.name} {seed}")
        self._used: set[str] = set()

    def draw(self, *texts: str) -> dict[str, str]:
        """A value for each name in braces."""
        return {name: self._fresh(name[0]) for name in dict.fromkeys(_BRACES.findall(" ".join(texts)))}

    def _fresh(self, kind: str) -> str:
        for _ in range(100):
            value = self._make(kind)
            if value not in self._used:
                self._used.add(value)
                return value
        raise AssertionError(f"no {kind} is left")

    def _make(self, kind: str) -> str:
        chance, language = self._random, self._language
        match kind:
            case "c":
                return f"{chance.choice('BDFGKMRTVZ')}{chance.choice('BDFGKMRTVZ')}{chance.randrange(1000, 9999)}"
            case "m":
                return language.amount.format(chance.randrange(1100, 9900))
            case "d":
                return language.date.format(day=chance.randrange(10, 29), month=chance.choice(language.months))
            case "t":
                return f"{chance.randrange(10, 24)}:{chance.randrange(10, 60)}"
            case "n":
                return str(chance.randrange(110, 990))
            case _:
                return f"{chance.choice(language.names[0])} {chance.choice(language.names[1])}"

    def shuffle(self, items: Sequence[_Item]) -> list[_Item]:
        return self._random.sample(items, len(items))


def make_standing(language: Language, seed: int) -> Session:
    """A session of statements that hold to the end, in any order, with small talk between them."""
    values = _Values(language, seed)
    said: list[str] = []
    probes: list[Probe] = []
    for statement in values.shuffle(language.standing):
        drawn = values.draw(statement.text)
        said.append(statement.text.format(**drawn))
        probes.append(_probe(statement.needs, (), drawn))
    return Session(_talk(language, said, seed), standing=tuple(probes))


def make_changing(language: Language, seed: int) -> Session:
    """A session of values that change, and of pairs that only look alike."""
    values = _Values(language, seed)
    drawn = [values.draw(c.earlier, c.later) for c in language.changing]
    earlier = [change.earlier.format(**d) for change, d in zip(language.changing, drawn, strict=True)]
    later = [change.later.format(**d) for change, d in zip(language.changing, drawn, strict=True)]
    between: list[str] = []
    pairs: list[tuple[Probe, Probe]] = []
    for first, second in language.pairs:
        one, two = values.draw(first.text), values.draw(second.text)
        between += (first.text.format(**one), second.text.format(**two))
        pairs.append((_probe(first.needs, (), one), _probe(second.needs, (), two)))
    probes = tuple(_probe(c.needs, c.stale, d) for c, d in zip(language.changing, drawn, strict=True))
    said = [*values.shuffle(earlier), *between, *values.shuffle(later)]
    return Session(_talk(language, said, seed), changing=probes, pairs=tuple(pairs))


def measure(language: Language, budget: float, summarise: Summarise = extract_summary) -> Row:
    """Run all sessions of a language at one budget: a share of the characters of the conversation."""
    standing: list[bool] = []
    resolved: list[bool] = []
    stale = 0
    pairs: list[bool] = []
    kept = True
    for seed in SEEDS:
        for session in (make_standing(language, seed), make_changing(language, seed)):
            room = int(count_session(session) * budget)
            text = ""
            for _ in range(ROUNDS):
                given = (user(SUMMARY_LABEL + text),) if text else session.messages
                text = summarise(given, room, len)
                kept = kept and len(text) <= room
            low = text.lower()
            standing += [probe.holds(low) for probe in session.standing]
            resolved += [probe.holds(low) and not probe.is_stale(low) for probe in session.changing]
            stale += sum(probe.is_stale(low) for probe in session.changing)
            pairs += [first.holds(low) and second.holds(low) for first, second in session.pairs]
    return Row(
        language=language.name,
        budget=budget,
        survival=sum(standing) / len(standing),
        resolved=sum(resolved) / len(resolved),
        stale=stale,
        pairs=sum(pairs) / len(pairs),
        budget_kept=kept,
    )


def measure_all(summarise: Summarise = extract_summary) -> tuple[Row, ...]:
    """The whole table: every language at every budget."""
    return tuple(
        measure(language, budget, summarise) for language in (*LANGUAGES, *HELD_OUT, FRENCH) for budget in BUDGETS
    )


def count_session(session: Session) -> int:
    """Characters of a conversation, one line a message with its role before it."""
    texts = [f"[{m.role}] {''.join(getattr(part, 'text', '') for part in m.content)}" for m in session.messages]
    return len("\n".join(texts))


def _probe(needs: Sequence[str], stale: Sequence[str], drawn: dict[str, str]) -> Probe:
    return Probe(tuple(n.format(**drawn).lower() for n in needs), tuple(s.format(**drawn).lower() for s in stale))


def _talk(language: Language, said: Sequence[str], seed: int) -> tuple[ChatMessage, ...]:
    """The statements, each behind three exchanges of small talk."""
    messages: list[ChatMessage] = []
    for number, statement in enumerate(said):
        for turn in range(3 * number + seed, 3 * number + seed + 3):
            messages.append(user(language.filler[turn % len(language.filler)]))
            messages.append(assistant(language.answers[0]))
        messages += (user(statement), assistant(language.answers[1]))
    return tuple(messages)

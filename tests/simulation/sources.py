"""Simulated sources: what most answer depends on the query alone, how they fail on chance."""

from __future__ import annotations

import hashlib
import random

import msgspec

from contextbus.core.skill_loads import BODY_SUFFIX
from contextbus_protocol.digests import digest_text
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Candidate, SourceKind, SourceSpec, SourceUsage

SOURCES: tuple[SourceSpec, ...] = (
    SourceSpec("memory", "memory"),
    SourceSpec("docs", "rag"),
    SourceSpec("tickets", "rag", required=True),
    SourceSpec("skills", "skills"),
)
MOVING = "docs"
FORGETTING = "memory"
SKILLS = ("deploy", "review", "rollback")
"""The skills that have a body; a model may ask for others."""
KINDS: dict[str, SourceKind] = {s.id: s.kind for s in SOURCES}


class Records:
    """What the sources have: which records are forgotten, and every digest under which one was offered."""

    def __init__(self) -> None:
        self.forgotten: set[tuple[str, str]] = set()
        self._offered: dict[tuple[str, str], dict[str, str]] = {}

    def digests(self, source: str, record_id: str) -> tuple[str, ...]:
        """The digests of all revisions of a record that were offered, in order."""
        return tuple(sorted(self._offered.get((source, record_id), ())))

    def texts(self, source: str, record_id: str) -> tuple[str, ...]:
        """The texts of all its revisions that were offered."""
        return tuple(self._offered.get((source, record_id), {}).values())

    def known(self, source: str) -> list[str]:
        """The ids of the records that a source has offered and that are not forgotten, in order."""
        return sorted(r for s, r in self._offered if s == source and (s, r) not in self.forgotten)

    def find(self, query: Query) -> tuple[Candidate, ...]:
        """What a source finds now: what is asked for by id first."""
        asked = tuple(c for record in query.records if (c := _asked_record(query.source, record)) is not None)
        found = asked if query.only_records else asked + _candidates_of(query)
        by_id = {c.record_id: c for c in reversed(found)}
        kept = tuple(c for c in by_id.values() if (query.source, c.record_id) not in self.forgotten)[::-1]
        for candidate in kept:
            self._offered.setdefault((query.source, candidate.record_id), {})[candidate.digest] = candidate.text
        return kept


def _asked_record(source: str, record_id: str) -> Candidate | None:
    """A record that is asked for by its id: a skill's body, or one that must be in the package."""
    if source == "skills":
        skill = record_id.removesuffix(BODY_SUFFIX)
        if skill not in SKILLS:
            return None
        text = f"skill {skill}: " + "do this and that " * 6
    else:
        text = f"{source} record {record_id} asked for by id"
    return Candidate(record_id=record_id, text=text, score=1.0, digest=digest_text(text), mandatory=True)


def _candidates_of(query: Query) -> tuple[Candidate, ...]:
    """What a source finds: drawn from the query's text, so that asking again finds the same.

    One source finds something else for every attempt, as one that is written to meanwhile does.
    """
    attempt = query.token if query.source == MOVING else ""
    seed = hashlib.sha256(f"{query.source}/{query.text}/{attempt}".encode()).digest()
    chance = random.Random(seed)
    if query.source == "skills":
        lines = chance.sample(SKILLS, chance.randrange(len(SKILLS) + 1))
        return tuple(_line(skill, chance) for skill in lines)
    return tuple(_record(query.source, index, chance) for index in range(chance.randrange(0, query.limit + 2)))


def _line(skill: str, chance: random.Random) -> Candidate:
    text = f"{skill} ({skill}): a skill"
    return Candidate(record_id=skill, text=text, score=round(chance.random(), 3), digest=digest_text(text))


def _record(source: str, index: int, chance: random.Random) -> Candidate:
    number = chance.randrange(40)
    revision = chance.randrange(3) if source == FORGETTING else None
    words = chance.randrange(1, 12)
    if source == FORGETTING:  # a record's revision is one text, whatever it is asked
        words = 1 + (number * 7 + chance.randrange(2)) % 11
    text = f"{source} record {number} revision {revision} " + "word <&> " * words
    return Candidate(
        record_id=f"r{number}" if index or source == FORGETTING else f"first-{number}",
        text=text,
        score=round(chance.random(), 3),
        digest=digest_text(text),
        revision=revision,
        mandatory=chance.random() < 0.02,
    )


def answer_query(
    query: Query, chance: random.Random, faulty: float, records: Records, erasures: int
) -> list[tuple[float, AnyMessage]]:
    """The answers to one query, each with its delay in seconds: usually one.

    Args:
        query: the query.
        chance: what delays and failures are drawn from.
        faulty: how often a source does not simply answer.
        records: what the sources have.
        erasures: the sequence of the tenant's erasures that an answer of now is as of.
    """
    usage: tuple[SourceUsage, ...] = ()
    if query.source == MOVING and not query.only_records:
        usage = (SourceUsage("embed-small", 7 + len(query.text), reported=chance.random() < 0.9),)
    offered = Offered(
        run=query.run,
        token=query.token,
        source=query.source,
        kind=KINDS[query.source],
        candidates=records.find(query),
        usage=usage,
        erasures=erasures if query.source == FORGETTING else None,
    )
    delay = chance.expovariate(500)
    if chance.random() >= faulty:
        return [(delay, offered)]

    def failed(code: str) -> Failed:
        return Failed(run=query.run, token=query.token, source=query.source, code=code, origin_type="OSError")

    bad = Candidate(record_id="x", text="text", score=1.0, digest="sha256:" + "0" * 64)
    garbage = msgspec.structs.replace(offered, candidates=(bad,))
    outcomes: list[list[tuple[float, AnyMessage]]] = [
        [],
        [(delay + 6, offered)],
        [(delay, offered), (delay * 2, offered)],
        [(delay, failed("error"))],
        [(0.0002, failed("absent"))],
        [(delay, failed("busy")), (delay * 3, offered)],
        [(delay, failed("busy"))],
        [(delay, garbage)],
        [(delay, offered), (delay * 2, failed("error"))],
    ]
    return chance.choice(outcomes)

"""Simulated sources: what most answer depends on the query alone, how they fail on chance."""

from __future__ import annotations

import hashlib
import random

from contextbus_protocol.digests import digest_text
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Candidate, SourceKind, SourceSpec, SourceUsage

SOURCES: tuple[SourceSpec, ...] = (
    SourceSpec("memory", "memory"),
    SourceSpec("docs", "rag"),
    SourceSpec("tickets", "rag", required=True),
)
MOVING = "docs"
KINDS: dict[str, SourceKind] = {s.id: s.kind for s in SOURCES}


def candidates_of(query: Query) -> tuple[Candidate, ...]:
    """What a source finds: drawn from the query's text, so that asking again finds the same.

    One source finds something else for every attempt, as one that is written to meanwhile does.
    """
    attempt = query.token if query.source == MOVING else ""
    seed = hashlib.sha256(f"{query.source}/{query.text}/{attempt}".encode()).digest()
    chance = random.Random(seed)
    found: list[Candidate] = []
    for index in range(chance.randrange(0, query.limit + 2)):
        number = chance.randrange(40)
        revision = chance.randrange(3) if query.source == "memory" else None
        text = f"{query.source} record {number} revision {revision} " + "word <&> " * chance.randrange(1, 12)
        found.append(
            Candidate(
                record_id=f"r{number}" if index else f"first-{number}",
                text=text,
                score=round(chance.random(), 3),
                digest=digest_text(text),
                revision=revision,
                mandatory=chance.random() < 0.02,
            )
        )
    return tuple(found)


def usage_of(query: Query) -> tuple[SourceUsage, ...]:
    """What a query costs: nothing, a little, or nobody knows how much."""
    chance = random.Random(f"{query.source}/{query.text}/usage")
    if chance.random() < 0.5:
        return ()
    return (SourceUsage("small", chance.randrange(1, 100), reported=chance.random() < 0.8),)


def answer_query(query: Query, chance: random.Random, faulty: float) -> list[tuple[float, AnyMessage]]:
    """The answers to one query, each with its delay in seconds: usually one."""
    offered = Offered(
        run=query.run,
        token=query.token,
        source=query.source,
        kind=KINDS[query.source],
        candidates=candidates_of(query),
        usage=usage_of(query),
    )
    delay = chance.expovariate(500)
    if chance.random() >= faulty:
        return [(delay, offered)]

    def failed(code: str) -> Failed:
        return Failed(run=query.run, token=query.token, source=query.source, code=code, origin_type="OSError")

    bad = Candidate(record_id="x", text="text", score=1.0, digest="sha256:" + "0" * 64)
    garbage = Offered(run=query.run, token=query.token, source=query.source, kind="rag", candidates=(bad,))
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

"""The steps that are measured: 4 sources, 48 candidates of 320 characters, one new message a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import contextbus.client as contextbus
from contextbus.sources.interface import Source
from contextbus_protocol.questions import Query
from contextbus_protocol.values import SourceKind

StepKind = Literal["refresh", "reused"]
STEP_KINDS: Final[tuple[StepKind, ...]] = ("refresh", "reused")

SOURCES: Final[tuple[tuple[str, SourceKind], ...]] = (
    ("notes", "memory"),
    ("docs", "rag"),
    ("past", "transcript"),
    ("tickets", "rag"),
)
STEPS_OF_A_RUN: Final = 8
IN_FLIGHT: Final = 16
MODEL: Final = contextbus.Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
SCOPE: Final = contextbus.Scope(user_id="bench")

_OF_A_SOURCE: Final = 12
_CHARACTERS: Final = 320
_VARIANTS: Final = 16
_WORDS: Final = tuple(
    re.findall(
        r"\w+",
        "deploy billing service region rollback image tag canary release branch error budget queue worker latency "
        "token index cache shard replica quota alert",
    )
)


def _write(seed: int, characters: int) -> str:
    """Words in an order that only the seed decides."""
    words: list[str] = []
    length = 0
    while length <= characters:
        seed = (seed * 1_103_515_245 + 12_345) % 2**31
        word = _WORDS[(seed >> 16) % len(_WORDS)]
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[: characters - 8] + f" {seed % 10**7:07d}"


def make_candidate(source: str, seed: int) -> contextbus.Candidate:
    """A candidate of 320 characters; the seed alone decides which."""
    return contextbus.candidate(f"{source}-{seed}", _write(seed, _CHARACTERS), (seed * 7919 % 1000) / 1000)


def _candidates(source: str, index: int, variant: int) -> tuple[contextbus.Candidate, ...]:
    return tuple(make_candidate(source, index * 10_000 + variant * 100 + n) for n in range(_OF_A_SOURCE))


def make_sources() -> tuple[Source, ...]:
    """The sources: each answers from memory at once, with other candidates at every step of a run."""
    return tuple(_make_source(name, kind, index) for index, (name, kind) in enumerate(SOURCES))


def _make_source(name: str, kind: SourceKind, index: int) -> Source:
    pool = [_candidates(name, index, variant) for variant in range(_VARIANTS)]

    async def answer(query: Query) -> Sequence[contextbus.Candidate]:
        return pool[query.step % _VARIANTS]

    return contextbus.source(id=name, kind=kind)(answer)


def source_specs() -> tuple[contextbus.SourceSpec, ...]:
    """The sources as a run names them."""
    return tuple(contextbus.SourceSpec(name, kind) for name, kind in SOURCES)


def write_message(step: int) -> contextbus.ChatMessage:
    """The new message of a step."""
    return contextbus.user(f"step {step}: {_write(step, 200)}")


async def begin_run(bus: contextbus.ContextBus, name: str, kind: StepKind) -> contextbus.Run:
    """A run whose next steps are of a kind; a reused one has its first retrieval behind it."""
    run = await bus.run(name, scope=SCOPE, sources=source_specs())
    if kind == "reused":
        run.append(write_message(0))
        await run.before_model_call(model=MODEL)
    return run


async def take_step(run: contextbus.Run, kind: StepKind, step: int) -> contextbus.CompiledStep:
    """One step, as a user of the library calls it."""
    run.append(write_message(step))
    return await run.before_model_call(model=MODEL, refresh=kind == "refresh")

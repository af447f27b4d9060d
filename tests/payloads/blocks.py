"""Blocks as the compiler writes them: retrieval over real documents, and a working memory that grows."""

from __future__ import annotations

import functools
import json
import re
from typing import Final, NamedTuple

import pytest

from contextbus.client import candidate
from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_patch import apply_working_memory_patch
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import Candidate, ContextBudget, SourceResult
from contextbus_protocol.working_memory import (
    AddDecision,
    AddHypothesis,
    AddObservation,
    AddQuestion,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
)
from tests.core.conversations import shared_data

STEPS: Final = 12
_RECORDS: Final = 3
_WORDS = re.compile(r"[a-z]{4,}")


class Blocks(NamedTuple):
    """What a step's package holds: the append block and the messages of the tail."""

    append: tuple[ChatMessage, ...]
    tail: tuple[ChatMessage, ...]


@functools.cache
def compiled_blocks() -> tuple[Blocks, ...]:
    """The blocks of some steps, each with records for another query and a later revision of the working memory."""
    made: list[Blocks] = []
    for step, (query, memory) in enumerate(zip(_queries(), _memories(), strict=True)):
        package = compile_context(
            ContextInput(
                run_id="run",
                step=step,
                pass_=step + 1,
                input_tokens=100_000,
                used_tokens=1_000,
                budget=ContextBudget(ratio=1, max_tokens=3_000),
                results=(SourceResult("bank", "rag", candidates=find_records(query)),),
                working_memory=memory,
                query=query,
            )
        )
        append, tail = (
            tuple(m for block in package.blocks if block.placement == place for m in block.messages)
            for place in ("append", "ephemeral-tail")
        )
        assert append
        assert tail
        made.append(Blocks(append, tail))
    return tuple(made)


def find_records(query: str) -> tuple[Candidate, ...]:
    """The documents that share most words with a query."""
    asked = set(_WORDS.findall(query.lower()))
    scored = [(len(asked & words) / (1 + len(words)), name) for name, (words, _) in _documents().items()]
    best = sorted(scored, reverse=True)[:_RECORDS]
    return tuple(candidate(name, _documents()[name][1], score) for score, name in best)


@functools.cache
def _documents() -> dict[str, tuple[set[str], str]]:
    folder = shared_data()
    if folder is None:
        pytest.skip("the folder of shared documents is not at hand")
    found: dict[str, tuple[set[str], str]] = {}
    with (folder / "banking" / "documents.jsonl").open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            text = f"{record['title']}\n{record['text'][:1_500]}"
            found[record["id"]] = (set(_WORDS.findall(text.lower())), text)
    return found


def _queries() -> list[str]:
    folder = shared_data()
    assert folder is not None or _documents()
    assert folder is not None
    with (folder / "banking" / "queries.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["query"] for line, _ in zip(file, range(STEPS), strict=False)]


def _memories() -> list[WorkingMemorySnapshot]:
    memory = create_working_memory(
        scope="ada", now=0, goal="Rebook the flight & keep the seat <12A>.", constraints=("Never book twice.",)
    )
    made: list[WorkingMemorySnapshot] = []
    for step in range(STEPS):
        made.append(memory)
        operation = (
            AddObservation(text=f"Reservation R{step} is \u201cbasic\u201d."),
            AddHypothesis(text=f"Fare {step} may be refunded."),
            AddDecision(text=f"Offer voucher {step}.", rationale="It costs least."),
            AddQuestion(text=f"Which of {step} bags?"),
        )[step % 4]
        patch = WorkingMemoryPatch(
            operation_id=str(step), expected_revision=memory.revision, writer="host", operations=(operation,)
        )
        memory = apply_working_memory_patch(memory, patch, now=step + 1).snapshot
    return made

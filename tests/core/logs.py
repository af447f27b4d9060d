"""Logs made by hand: commits that follow one another, of events that a test names."""

from __future__ import annotations

from typing import Any

import msgspec

from contextbus.core.memory_run import MemoryState, fold_memory_commit
from contextbus.core.run import fold_commit
from contextbus.core.run_state import RunState
from contextbus_protocol import codec, digests
from contextbus_protocol.events import (
    AnyEvent,
    BlockFact,
    Commit,
    EntryFact,
    MessageFact,
    MessagesAppended,
    StepCompiled,
    UnknownEvent,
)
from contextbus_protocol.package import BudgetSummary, PlacementSummary
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import Model, Scope, StepOptions

MODEL = Model("openai", "gpt-test", 128_000, 8_000)
OPTIONS = StepOptions(scope=Scope(user_id="ada"), model=MODEL)


def make_commit(
    previous: str, *events: AnyEvent | UnknownEvent, command: str = "c", part: Part = "run", run: str = "r"
) -> tuple[str, Commit]:
    """A commit behind another, with the digest of its bytes."""
    commit = Commit(
        version=1,
        tenant="t",
        run=run,
        part=part,
        command=command,
        command_digest="sha256:" + command,
        attempt=1,
        engine="0.1.0",
        policy=1,
        previous=previous,
        at=0,
        events=events,
    )
    return digests.digest_bytes(codec.encode_commit(commit)), commit


def commit_to(state: RunState, *events: AnyEvent | UnknownEvent, command: str = "c") -> RunState:
    """The run after one more commit."""
    digest, commit = make_commit(state.digest, *events, command=command)
    return fold_commit(state, state.sequence + 1, digest, commit)


def commit_to_memory(state: MemoryState, *events: AnyEvent | UnknownEvent, command: str = "c") -> MemoryState:
    """The working memory after one more commit."""
    digest, commit = make_commit(state.digest, *events, command=command, part="working-memory")
    return fold_memory_commit(state, state.sequence + 1, digest, commit)


def append(state: RunState, *texts: str, role: Any = "user") -> MessagesAppended:
    """The event of messages behind what the run has."""
    chain = state.history.chain
    facts: list[MessageFact] = []
    for text in texts:
        facts.append(MessageFact(digests.digest_text(text), 72 + 5 * len(text), role))
        chain = digests.extend_chain(chain, facts[-1].digest)
    return MessagesAppended(start=state.history.count, messages=tuple(facts), chain=chain, inputs="sha256:inputs")


def compiled(state: RunState, step: int, *records: str, retrieved: bool = True, **changes: object) -> StepCompiled:
    """The event of a step that placed records of the source ``docs``."""
    entries = tuple(
        EntryFact(
            source="docs", kind="rag", record_id=r, digest="sha256:" + r, tokens=9, selected=True, reason="ranked"
        )
        for r in records
    )
    block = (BlockFact("append", f"sha256:block-{step}", 180),) if records else ()
    event = StepCompiled(
        step=step,
        refresh="initial",
        pass_=state.passes + (1 if retrieved else 0),
        options=OPTIONS,
        budget=BudgetSummary(
            input_tokens=1, used_tokens=1, context_tokens=1, selected_tokens=1, working_memory_tokens=0
        ),
        entries=entries,
        blocks=block,
        placement=PlacementSummary(append=bool(records), tail=False),
        cache_prefix_changed=False,
        count=state.history.count,
        chain=state.history.chain,
        manifest_digest="sha256:m",
        package_digest="sha256:p",
        package=f"sha256:package-{step}",
    )
    return msgspec.structs.replace(event, **changes)

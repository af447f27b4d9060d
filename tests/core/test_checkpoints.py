"""The fold of compaction: which blocks leave, what counts as a failure, when a checkpoint stands (C.E.9, C.L, C.X)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.core import checkpoints
from contextbus.core.history import Entry
from contextbus.core.persistent import CHUNK, Vector
from contextbus.core.placed_blocks import PlacedBlock, PlacedBlocks
from contextbus.core.projection import blocks_before, request_count, request_digests, request_eighteenths
from contextbus.core.run_state import Checkpoint, CompactionFailures, RunState, Segment
from contextbus_protocol.events import (
    BlockFact,
    CompactionCompleted,
    CompactionFailed,
    ReplacedRange,
    ReplacementFact,
    TokenChange,
)
from contextbus_protocol.values import PlacedEntry, Usage

replace = msgspec.structs.replace


def state_of(count: int, positions: list[int], checkpoint: Checkpoint | None = None) -> RunState:
    """A run of so many messages that cost 10 each, with blocks that cost 1 each behind some of them."""
    state = RunState("r")
    history = state.history.extend(Entry(f"m{n}", 10) for n in range(count))
    blocks = (
        PlacedBlock(n, 1, position, BlockFact("append", f"b{n}", 1), f"p{n}") for n, position in enumerate(positions)
    )
    placed = tuple(PlacedEntry("rag", f"r{n}", "d", n, 1, tokens=1) for n in range(len(positions)))
    return replace(state, history=history, blocks=PlacedBlocks().add(*blocks), placed=placed, checkpoint=checkpoint)


def summary(count: int, *sources: int) -> tuple[ReplacementFact, ...]:
    facts = [ReplacementFact(digest="s", eighteenths=5, own="summary")]
    facts += [ReplacementFact(digest=f"m{n}", eighteenths=10, source=n) for n in sources]
    assert all(n < count for n in sources)
    return tuple(facts)


@st.composite
def runs(draw: st.DrawFn) -> RunState:
    count = draw(st.integers(0, 12))
    positions = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
    if not count or draw(st.booleans()):
        return state_of(count, positions)
    covered = draw(st.integers(1, count))
    sources = draw(st.lists(st.integers(0, covered - 1), max_size=2, unique=True))
    facts = summary(covered, *sorted(sources))
    return state_of(
        count, positions, Checkpoint(covered, "h", facts, "blob", None, covered * 10, 5 + 10 * len(sources))
    )


@pytest.mark.rule("C.E.9", "C.L.3")
@settings(max_examples=200, deadline=None)
@given(state=runs(), end=st.integers(0, 24))
def test_the_blocks_before_an_index_are_those_that_the_request_has_there(state: RunState, end: int) -> None:
    digests = [*request_digests(state)]
    assert len(digests) == request_count(state)
    assert blocks_before(state, end) == sum(digest.startswith("b") for digest in digests[:end])
    costs = {"m": 10, "b": 1, "s": 5}
    assert request_eighteenths(state) == sum(costs[digest[0]] for digest in digests)


def completed(state: RunState, end: int, source_count: int, **changes: Any) -> CompactionCompleted:
    made = CompactionCompleted(
        evaluation="e",
        tokens=TokenChange(9, 1),
        replaced_range=ReplacedRange(0, end),
        source_count=source_count,
        source_hash=state.history.keep(source_count).chain,
        replacement=summary(source_count),
        replaced_by="blob",
        pieces=1,
    )
    return replace(made, **changes)


@pytest.mark.rule("C.E.9", "D.H.5", "D.F.14", "C.L.9")
def test_blocks_of_the_range_leave_and_are_owed_and_one_right_behind_it_stays() -> None:
    state = state_of(6, [1, 4, 4, 6])
    # m0 b0 m1 m2 m3 | b1 b2 m4 m5 b3
    after = checkpoints.complete(state, completed(state, 5, 4))
    assert [b.step for b in after.blocks] == [1, 2, 3]
    assert [o.entry.record_id for o in after.owed] == ["r0"]
    assert [*request_digests(after)] == ["s", "b1", "b2", "m4", "m5", "b3"]
    after = checkpoints.complete(state, completed(state, 6, 4))
    assert [b.step for b in after.blocks] == [2, 3]
    assert [*request_digests(after)] == ["s", "b2", "m4", "m5", "b3"]
    assert request_count(after) == 5
    # a second one over it: its range ends behind the block that stayed
    again = checkpoints.complete(after, completed(after, 3, 5, replaced_by="second"))
    assert [*request_digests(again)] == ["s", "m5", "b3"]
    assert [o.entry.record_id for o in again.owed] == ["r0", "r1", "r2"]
    given_by_host = checkpoints.complete(state, completed(state, 6, 4, host=True))
    assert len(given_by_host.blocks) == 4  # (P.J.8)


@pytest.mark.rule("C.L.3", "C.L.4", "C.L.5")
def test_a_checkpoint_stands_while_the_history_begins_with_its_messages() -> None:
    state = state_of(6, [])
    after = checkpoints.complete(state, completed(state, 4, 4))
    assert after.checkpoint is not None
    rewound = checkpoints.rewind(after, 4)
    assert rewound.checkpoint == after.checkpoint
    rewound = checkpoints.rewind(after, 3)
    assert rewound.checkpoint is not None
    assert not rewound.checkpoint.applies
    assert checkpoints.is_applicable(state, rewound.checkpoint)
    assert not checkpoints.is_applicable(state, replace(rewound.checkpoint, forgotten=True))
    assert not checkpoints.is_applicable(state, replace(rewound.checkpoint, source_hash="other"))
    assert not checkpoints.is_applicable(state_of(3, []), rewound.checkpoint)


def failed(reason: Any = "error", **changes: Any) -> CompactionFailed:
    made = CompactionFailed(evaluation="e", step=1, phase="compact", reason=reason, summariser="x", usage=Usage(1, 1))
    return replace(made, **changes)


@pytest.mark.rule("C.X.5", "C.K.5")
def test_only_what_speaks_of_a_summary_counts_and_three_in_a_row_pause() -> None:
    state = state_of(6, [])
    for event in (
        failed("no-safe-boundary"),
        failed("protected-history"),
        failed("request-overhead"),
        failed(summariser=""),
        failed(phase="evaluate"),
        failed(phase="persist"),
        failed(phase="restore"),
    ):
        after = checkpoints.fail(state, event)
        assert after.failures == CompactionFailures()
        assert after.usage == Usage(1, 1)
    for number, reason in enumerate(("error", "empty-summary", "incomplete-summary", "summary-too-large"), 1):
        state = checkpoints.fail(state, failed(reason))
        assert (state.failures.in_row, state.failures.reason) == (number, reason)
        assert state.failures.paused_at == (60 if number >= 3 else None)
    told = checkpoints.fail(state, failed("paused", phase="evaluate"))
    assert told.failures == replace(state.failures, told=True)


@pytest.mark.rule("C.X.5")
def test_a_dropped_range_goes_on_with_the_row_if_its_summariser_was_asked() -> None:
    state = checkpoints.fail(checkpoints.fail(state_of(6, []), failed()), failed())
    dropped = completed(state, 4, 4, dropped=True, replacement=())
    third = checkpoints.complete(state, dropped)
    assert (third.failures.in_row, third.failures.paused_at) == (3, 20)
    assert checkpoints.complete(state, replace(dropped, pieces=0)).failures == state.failures
    assert checkpoints.complete(state, completed(state, 4, 4)).failures == CompactionFailures()


@pytest.mark.rule("C.L.4")
@given(lengths=st.lists(st.integers(1, 3), max_size=2 * CHUNK), data=st.data())
def test_a_cut_keeps_the_segments_before_it_and_the_beginning_of_the_one_it_goes_through(
    lengths: list[int], data: st.DataObject
) -> None:
    ends = [*accumulate(lengths)]
    segments = [Segment(end - length, end, f"b{end}") for length, end in zip(lengths, ends, strict=True)]
    keep = data.draw(st.integers(0, (ends or [0])[-1] + 1))
    whole = Vector[Segment]().extend(segments)
    kept = checkpoints.rewind(replace(RunState("r"), segments=whole), keep).segments
    assert kept == Vector[Segment]().extend(replace(s, end=min(s.end, keep)) for s in segments if s.start < keep)
    shared = zip(kept.chunks, whole.chunks, strict=False)
    assert all(a is b or a[-1].end == keep for a, b in shared)

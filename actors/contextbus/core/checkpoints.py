"""The fold of compaction: checkpoints, failures and pauses, and what was measured (C.K, C.L, C.M.1, C.X)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from contextbus.core.owed import REMEMBERED_REDACTIONS, drop_record, owe_entries
from contextbus.core.persistent import Vector
from contextbus.core.placed_blocks import PlacedBlocks
from contextbus.core.prefix import break_prefix
from contextbus.core.projection import applied, blocks_before, request_eighteenths
from contextbus.core.run_state import Checkpoint, CompactionFailures, LastStep, Measured, RunState, Segment
from contextbus_protocol.events import (
    CallSucceeded,
    CompactionCompleted,
    CompactionFailed,
    CompactionReason,
    MessagesAppended,
    ReplacementFact,
    SummaryRedacted,
)
from contextbus_protocol.values import Usage

MOST_FAILURES = 3
"""So many refused or failed summaries in a row pause compaction (C.X.5)."""

COUNTED: tuple[CompactionReason, ...] = ("incomplete-summary", "empty-summary", "summary-too-large", "error")
"""Reasons that speak of a summary or its summariser (C.X.5)."""

replace = msgspec.structs.replace


def complete(state: RunState, event: CompactionCompleted) -> RunState:
    """The state once a checkpoint is saved: it is adopted (C.K.2, C.L.9).

    A summary that passed ends a row of failures.  A range that was dropped since its summariser gave nothing goes on
    with it (C.X.5); one that was dropped without asking changes nothing of it.
    """
    checkpoint = Checkpoint(
        source_count=event.source_count,
        source_hash=event.source_hash,
        replacement=event.replacement,
        replaced_by=event.replaced_by,
        archive=event.archive,
        covered=state.history.keep(event.source_count).eighteenths,
        eighteenths=sum(fact.eighteenths for fact in event.replacement),
        records=event.records,
    )
    state = replace(
        state,
        compaction_due=False,
        # what goes on from the boundary of a summary that a forget took says so, whenever it does (C.X.11)
        redaction_due=state.redaction_due or (event.dropped and state.compaction_due),
        summaries=state.summaries.extend(((event.replaced_by, event.archive),)),
        redactions=tuple(r for r in state.redactions if r[0] != event.replaced_by),
    )
    if event.host:  # it says nothing of a summariser; blocks stand as where the host changes a history (P.J.8)
        return _adopt(state, checkpoint, 0, first_change(state, event.replacement))
    leaving = blocks_before(state, event.replaced_range.end)
    state = _adopt(state, checkpoint, leaving, event.source_count)
    if event.dropped and event.pieces:
        state = replace(state, failures=_count_failure(state, "error"))
    elif not event.dropped:
        state = replace(state, failures=CompactionFailures())
    return add_usage(state, event.usage)


def first_change(state: RunState, replacement: Sequence[ReplacementFact]) -> int:
    """How many source messages stand before the first difference between a request history and another one (D.F.20).

    Args:
        state: the run with its request history.
        replacement: what is to stand in place of its beginning.
    """
    checkpoint = applied(state)
    facts = () if checkpoint is None else checkpoint.replacement
    covered = 0 if checkpoint is None else checkpoint.source_count
    behind = (entry.digest for entry in state.history[covered:])
    same = 0
    for fact, digest in zip(replacement, chain((fact.digest for fact in facts), behind), strict=False):
        if fact.digest != digest:
            break
        same += 1
    if same >= len(facts):
        return covered + same - len(facts)
    return next((fact.source for fact in facts[same:] if fact.source is not None), covered)


def _adopt(state: RunState, checkpoint: Checkpoint, leaving: int, position: int) -> RunState:
    """The state with a checkpoint in place: the blocks of the range left with it (C.E.9), and are owed (D.H.5).

    What the last request began with has changed (D.F.22), and no count that was measured of it holds (C.M.7).

    Args:
        state: the run.
        checkpoint: what stands in place of its first messages.
        leaving: so many blocks, oldest first, lay in the range; one behind the boundary stays.
        position: how many source messages stand before what thinking behind it was written without (D.F.20).
    """
    blocks = [*state.blocks]
    if state.last is not None:
        state = break_prefix(state, "compaction", position)
    state = replace(
        state,
        checkpoint=replace(checkpoint, applies=True),
        blocks=PlacedBlocks().add(*blocks[leaving:]) if leaving else state.blocks,
        measured=None,
    )
    return owe_entries(state, blocks[:leaving])


def is_applicable(state: RunState, checkpoint: Checkpoint) -> bool:
    """Whether the history begins with the messages that a checkpoint stands for (C.L.3)."""
    if checkpoint.forgotten or state.history.count < checkpoint.source_count:
        return False
    return state.history.keep(checkpoint.source_count).chain == checkpoint.source_hash


def rewind(state: RunState, keep: int) -> RunState:
    """The state once only the first ``keep`` source messages stay: a checkpoint of more no longer applies (C.L.4)."""
    segments = _cut(state.segments, keep)
    checkpoint = state.checkpoint
    if checkpoint is not None and checkpoint.applies and keep < checkpoint.source_count:
        checkpoint = replace(checkpoint, applies=False)
        if state.last is not None:  # its messages return without the blocks that left with them (D.F.20)
            state = break_prefix(state, "history", 0)
    due = state.compaction_due and checkpoint is not None and keep >= checkpoint.source_count
    measured = state.measured if state.measured is not None and keep >= state.measured.count else None
    return replace(state, segments=segments, checkpoint=checkpoint, measured=measured, compaction_due=due)


def _cut(segments: Vector[Segment], keep: int) -> Vector[Segment]:
    """The segments of the first ``keep`` source messages: a walk back over what is cut, in shared chunks."""
    cut: Segment | None = None
    gone = 0
    for segment in segments.backwards():
        if segment.end <= keep:
            break
        gone += 1
        cut = segment
    if cut is None:
        return segments
    kept = segments.keep(len(segments) - gone)
    return kept.extend((replace(cut, end=keep),)) if cut.start < keep else kept


def extend(state: RunState, event: MessagesAppended) -> RunState:
    """The state behind further source messages: a checkpoint may apply again (C.L.5), a turn may begin (C.K.9)."""
    if event.inputs and event.messages:
        segment = Segment(event.start, event.start + len(event.messages), event.inputs)
        state = replace(state, segments=state.segments.extend((segment,)))
    if any(fact.role == "user" and not fact.only_results for fact in event.messages):
        state = replace(state, turn_begins=True)
    checkpoint = state.checkpoint
    if checkpoint is not None and not checkpoint.applies and is_applicable(state, checkpoint):
        leaving = sum(1 for block in state.blocks if block.position <= checkpoint.source_count)
        state = _adopt(state, checkpoint, leaving, checkpoint.source_count)
    return state


def fail(state: RunState, event: CompactionFailed) -> RunState:
    """The state after a failure: three of a summary in a row pause compaction (C.X.5)."""
    state = add_usage(state, event.usage)
    failures = state.failures
    if event.reason == "paused":
        return replace(state, failures=replace(failures, told=True))
    if event.phase != "compact" or event.reason not in COUNTED or not event.summariser:
        return state  # it says nothing of a summary or of who writes it
    return replace(state, failures=_count_failure(state, event.reason, event.refused))


def _count_failure(state: RunState, reason: CompactionReason, refused: int | None = None) -> CompactionFailures:
    in_row = state.failures.in_row + 1
    return CompactionFailures(
        in_row=in_row,
        reason=reason,
        refused_range=refused,
        paused_at=request_eighteenths(state) if in_row >= MOST_FAILURES else None,
    )


def redact_summary(state: RunState, event: SummaryRedacted) -> RunState:
    """The state once a forget took a summary and its archived span: the next step compacts again (C.X.11).

    What it took of the history makes the next step retrieve as well (D.J.1); one that does not apply is no part of it.
    """
    redaction = (event.replaced_by, event.source, event.record_id)
    state = replace(state, redactions=(*state.redactions, redaction)[-REMEMBERED_REDACTIONS:])
    checkpoint = state.checkpoint
    if checkpoint is None or checkpoint.replaced_by != event.replaced_by:
        return state
    applies, last = checkpoint.applies, state.last
    checkpoint = replace(checkpoint, applies=False, forgotten=True)
    state = drop_record(replace(state, checkpoint=checkpoint), event.source, event.record_id)
    if not applies:
        return state
    if last is not None:
        state = replace(break_prefix(state, "redacted", 0), last=replace(last, history_forgotten=True))
    return replace(state, compaction_due=True, redaction_due=True, measured=None)


def measure(state: RunState, last: LastStep, event: CallSucceeded) -> RunState:
    """The state with what a successful call measured (C.M.1, C.N.1-C.N.3); called before its blocks are placed."""
    usage = event.usage or Usage()
    state = add_usage(state, event.usage)
    own = last.prepared is None or last.prepared.messages is None
    known = state.history.count >= last.count and state.history.keep(last.count).chain == last.chain
    if not own or not known or state.broken_prefix is not None:
        return replace(state, measured=None)
    cached = usage.cache_read_tokens > 0 or usage.cache_write_tokens > 0
    model = last.options.model
    measured = Measured(
        count=last.count,
        model=(model.provider, model.model_id),
        tools=last.options.tools_digest,
        settings=last.options.settings_digest,
        system=last.system,
        input_tokens=event.measured,
        tail=last.tail_eighteenths,
        cached_at=(last.at if event.started_at is None else event.started_at) if cached else None,
        retention_ms=event.retention_ms if cached else None,
    )
    return replace(state, measured=measured)


def add_usage(state: RunState, usage: Usage | None) -> RunState:
    """The state with what a model call or a summary used (C.K.5)."""
    if usage is None:
        return state
    total = state.usage
    return replace(
        state,
        usage=Usage(
            total.input_tokens + usage.input_tokens,
            total.output_tokens + usage.output_tokens,
            total.cache_read_tokens + usage.cache_read_tokens,
            total.cache_write_tokens + usage.cache_write_tokens,
        ),
    )

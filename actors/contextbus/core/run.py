"""The fold of a run: from its log to its state.

Selection keeps it, replay rebuilds it, and both use these functions only.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contextbus.core import checkpoints
from contextbus.core.calibration import calibrate_factor, is_usage
from contextbus.core.history import Entry
from contextbus.core.owed import owe_entries, redact_package, still_owed
from contextbus.core.placed_blocks import PlacedBlock, PlacedBlocks
from contextbus.core.prefix import break_prefix, stale_ranges
from contextbus.core.prepared import prepared_options
from contextbus.core.projection import applied
from contextbus.core.run_state import (
    CallStatus,
    CommandFact,
    CompactionFailures,
    LastStep,
    LoadedSkill,
    OwedEntry,
    PlacedCall,
    RunState,
)
from contextbus.core.skill_loads import absent_records, body_record
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    CallFailed,
    CallSucceeded,
    Commit,
    CompactionCompleted,
    CompactionFailed,
    CompactionReset,
    CompactionRestored,
    CompactionStarted,
    HistoryCleared,
    HistoryReplaced,
    MessagesAppended,
    PackageRedacted,
    RefreshRequested,
    RunStarted,
    StepCompiled,
    StepFailed,
    SummaryRedacted,
    UnknownEvent,
)
from contextbus_protocol.values import PlacedEntry, SourceStatus, Usage


class ChainBrokenError(InvalidTypeError):
    """A commit does not follow the one before: commits are missing, or the log was changed."""


def fold_commit(state: RunState, sequence: int, digest: str, commit: Commit) -> RunState:
    """The state after one more commit.

    Args:
        state: the run before it.
        sequence: the commit's sequence in the log.
        digest: the digest of the commit's bytes.
        commit: what was stored.

    Raises:
        ChainBrokenError: the commit does not follow the state's last one.
    """
    if commit.previous != state.digest:
        raise ChainBrokenError(f"commit {sequence} of run does not follow commit {state.sequence}")
    compiled: StepCompiled | None = None
    failed = False
    for event in commit.events:
        state = fold_event(state, event, sequence, digest, commit.command, commit.at)
        if isinstance(event, StepCompiled):
            compiled = event
        failed = failed or isinstance(event, StepFailed)
    recent = state.recent
    if not failed:  # a failed step leaves its command open: the retry is another attempt
        fact = CommandFact(
            command=commit.command,
            command_digest=commit.command_digest,
            sequence=sequence,
            digest=digest,
            step=None if compiled is None else compiled.step,
            package=None if compiled is None else compiled.package,
            count=state.history.count,
            chain=state.history.chain,
            prepared=None if compiled is None else compiled.prepared,
            warnings=() if compiled is None else compiled.warnings,
        )
        recent = recent.add(fact)
    return msgspec.structs.replace(
        state,
        sequence=sequence,
        digest=digest,
        recent=recent,
    )


def fold_commits(state: RunState, commits: Iterable[tuple[int, str, Commit]]) -> RunState:
    """The state after further commits, each (sequence, digest of its bytes, commit); known ones change nothing.

    Raises:
        ChainBrokenError: a commit is missing or was changed.
    """
    for sequence, digest, commit in commits:
        if sequence > state.sequence:
            state = fold_commit(state, sequence, digest, commit)
    return state


def fold_event(
    state: RunState, event: AnyEvent | UnknownEvent, sequence: int, digest: str, command: str, at: int
) -> RunState:
    """The state after one event; events of other parts and unknown ones change nothing.

    Args:
        state: the run before it.
        event: what its commit says.
        sequence: the commit's sequence in the log.
        digest: the digest of the commit's bytes.
        command: the command that the commit is of.
        at: the commit's clock reading, in milliseconds since the epoch.
    """
    replace = msgspec.structs.replace
    match event:
        case RunStarted(scope=scope, estimator=estimator, parent=parent):
            return replace(state, scope=scope, estimator=estimator, parent=parent)
        case HistoryReplaced(keep=keep):
            return keep_messages(state, keep)
        case MessagesAppended():
            return replace(append_messages(state, event), inputs=event.inputs)
        case StepCompiled():
            return _fold_step(state, event, sequence, digest, command, at)
        case CallSucceeded():
            return _succeed(state, event)
        case CallFailed(step=step, status=status):
            return _fail(state, step, "overflow" if status == "overflow" else "failed")
        case StepFailed(usage=usage):
            unaccounted = state.unaccounted or any(not fact.reported for fact in usage)
            return replace(state, unaccounted=unaccounted)
        case RefreshRequested():
            return replace(state, refresh_requested=True)
        case PackageRedacted():
            return redact_package(state, event)
        case _:
            return _fold_compaction(state, event)


def _fold_compaction(state: RunState, event: AnyEvent | UnknownEvent) -> RunState:
    replace = msgspec.structs.replace
    match event:
        case CompactionStarted() | CompactionRestored():
            return replace(state, turn_begins=False)
        case CompactionCompleted():
            return checkpoints.complete(state, event)
        case CompactionFailed():
            return checkpoints.fail(state, event)
        case CompactionReset():
            return replace(state, failures=CompactionFailures())
        case SummaryRedacted():
            return checkpoints.redact_summary(state, event)
        case HistoryCleared():
            return _clear(state)
        case _:
            return state


def _clear(state: RunState) -> RunState:
    """The state as of a new topic: nothing of the history stays; passes and working memory do (P.J.9)."""
    empty = keep_messages(state, 0)
    if empty.last is not None:  # its outcome may still be told: nothing of its block joins or is owed to the new topic
        last = msgspec.structs.replace(empty.last, block=None, tail=(), entries=(), owed=())
        empty = msgspec.structs.replace(empty, last=last)
    return msgspec.structs.replace(
        empty,
        blocks=PlacedBlocks(),
        owed=(),
        placed=(),
        checkpoint=None,
        measured=None,
        failures=CompactionFailures(),
        compaction_due=False,
        stale_thinking=(),
        refresh_requested=True,
        turn_begins=True,
    )


def keep_messages(state: RunState, keep: int) -> RunState:
    """The state with only the first ``keep`` source messages; blocks behind them leave with them (D.F.14).

    Their records are owed to the run (D.H.5).
    """
    if keep >= state.history.count:
        return state
    if state.last is not None and keep < state.last.count:
        state = break_prefix(state, "system" if keep < state.system_count else "history", keep)
    state = checkpoints.rewind(state, keep)
    blocks, gone = state.blocks.drop(lambda block: block.position > keep)
    unloaded = {body_record(s.skill) for s in state.skills if s.position >= keep}
    state = msgspec.structs.replace(
        state,
        history=state.history.keep(keep),
        system_count=min(state.system_count, keep),
        blocks=blocks,
        stale_thinking=tuple((start, min(end, keep)) for start, end in state.stale_thinking if start < keep),
        skill_calls=_keep_calls(state.skill_calls, keep),
        skills=tuple(s for s in state.skills if s.position < keep),
    )
    state = owe_entries(state, gone)
    if not unloaded:
        return state
    return msgspec.structs.replace(state, owed=tuple(o for o in state.owed if o.entry.record_id not in unloaded))


def append_messages(state: RunState, event: MessagesAppended) -> RunState:
    """The state with further source messages."""
    system_count = state.system_count
    calls, skills = state.skill_calls, state.skills
    for index, fact in enumerate(event.messages, event.start):
        if fact.role == "system" and system_count == index:
            system_count += 1
        if fact.role == "assistant":  # what is not answered by now stays unanswered; ids may be used again
            calls = (*_close_calls(calls, index), *(PlacedCall(call, index) for call in fact.skill_calls))
        if fact.succeeded and calls:
            open_ = (placed.call for placed in calls if placed.closed is None)
            loaded = tuple(call.skill for call in open_ if call.call in fact.succeeded)
            skills = _load_skills(skills, loaded, index)
    entries = (Entry(fact.digest, fact.eighteenths) for fact in event.messages)
    history = state.history.extend(entries)
    state = msgspec.structs.replace(state, history=history, system_count=system_count, skill_calls=calls, skills=skills)
    return checkpoints.extend(state, event)


def _close_calls(calls: tuple[PlacedCall, ...], position: int) -> tuple[PlacedCall, ...]:
    if not calls or calls[-1].closed is not None:
        return calls
    return tuple(msgspec.structs.replace(c, closed=position) if c.closed is None else c for c in calls)


def _keep_calls(calls: tuple[PlacedCall, ...], keep: int) -> tuple[PlacedCall, ...]:
    """The calls in the first ``keep`` messages; those that a message behind them closed are open again."""
    return tuple(
        msgspec.structs.replace(c, closed=None) if c.closed is not None and c.closed >= keep else c
        for c in calls
        if c.position < keep
    )


def _load_skills(skills: tuple[LoadedSkill, ...], loaded: tuple[str, ...], position: int) -> tuple[LoadedSkill, ...]:
    """The loaded skills with further ones; one that is loaded again stays loaded as long as its first result stands."""
    first = {s.skill: s.position for s in skills}
    others = tuple(s for s in skills if s.skill not in loaded)
    return others + tuple(LoadedSkill(skill, first.get(skill, position)) for skill in dict.fromkeys(loaded))


def _fold_step(state: RunState, event: StepCompiled, sequence: int, digest: str, command: str, at: int) -> RunState:
    options = prepared_options(event.options, event.prepared)
    entries = tuple(
        PlacedEntry(
            source=e.source,
            record_id=e.record_id,
            digest=e.digest,
            step=event.step,
            pass_=event.pass_,
            tokens=e.tokens,
            revision=e.revision,
            mandatory=e.mandatory,
        )
        for e in event.entries
        if e.selected and e.kind != "working-memory"
    )
    retrieved = event.pass_ > state.passes
    limited = event.fallback == "pass-limit"
    served = retrieved or (event.redacted and not options.sources)
    tail = tuple(b for b in event.blocks if b.placement == "ephemeral-tail")
    return msgspec.structs.replace(
        state,
        last=LastStep(
            step=event.step,
            scope=event.options.scope,
            pass_=event.pass_,
            command=command,
            count=event.count,
            chain=event.chain,
            options=options,
            package=event.package,
            package_digest=event.package_digest,
            sequence=sequence,
            digest=digest,
            block=next((b for b in event.blocks if b.placement == "append"), None),
            tail=tail if event.placement.tail_kept else (),
            loose_tail=bool(tail) and not event.placement.tail_kept,
            entries=entries,
            owed=state.owed if event.overflow is None or state.last is None else state.last.owed,
            estimated=event.budget.used_tokens + event.budget.selected_tokens,
            prepared=event.prepared,
            tail_eighteenths=0 if event.placement.tail_kept else sum(fact.eighteenths for fact in tail),
            at=at,
            prompt=event.prompt,
        ),
        turn_begins=False,
        stale_thinking=stale_ranges(state, options, event.count, event.prompt),
        broken_prefix=None,
        broken_at=None,
        memory_sequence=max(
            state.memory_sequence, 0 if event.working_memory is None else event.working_memory.sequence
        ),
        passes=event.pass_,
        last_refresh_step=event.step if retrieved else state.last_refresh_step,
        last_active_task=event.active_task_id if retrieved else state.last_active_task,
        refused_task=(event.active_task_id,) if limited else () if retrieved else state.refused_task,
        refresh_requested=False if retrieved or limited else state.refresh_requested or event.host_request,
        redaction_due=state.redaction_due and not served,
        skills=_note_absent(state, event),
        unaccounted=False,
        warned=(*state.warned, *(w for w in event.warnings if w not in state.warned)),
    )


def _note_absent(state: RunState, event: StepCompiled) -> tuple[LoadedSkill, ...]:
    """The loaded skills, those marked whose body every source that was asked for it answered without (D.H.8)."""
    if not event.demanded:
        return state.skills
    answered = {fact.source for fact in event.sources if fact.status is SourceStatus.OK}
    offered = {entry.record_id for entry in event.entries}
    gone = absent_records(event.demanded, answered, offered)
    return tuple(msgspec.structs.replace(s, absent=True) if body_record(s.skill) in gone else s for s in state.skills)


def _succeed(state: RunState, event: CallSucceeded) -> RunState:
    """The state once a call succeeded: its blocks join the history (D.F.13), its usage calibrates (D.M.5)."""
    last, step = state.last, event.step
    if last is None or last.step != step or last.status != "open":
        return state
    state = checkpoints.measure(_calibrate(state, last, event.usage), last, event)
    settled = msgspec.structs.replace(last, status="succeeded")
    state = msgspec.structs.replace(state, last=settled)
    owed = tuple(_wait(o) if o in last.owed else o for o in state.owed)
    returned = tuple(OwedEntry(entry, last.package) for entry in last.entries if last.block is not None)
    checkpoint = applied(state)
    # what the host gave may stand for all messages of a step that was compiled behind it (P.J.8): its block stays
    newer = 0 if state.broken_prefix is None else 1
    replaced = checkpoint is not None and last.count < checkpoint.source_count + newer
    if replaced or (state.broken_at is not None and not _has_messages(state, last)):
        # what its request ended with left the history before the outcome was told: its block left with it (D.F.14)
        return msgspec.structs.replace(state, owed=still_owed((*owed, *returned), state.placed))
    # the text that a forget took does not join the history (D.J.4, D.J.6)
    block = None if last.block_forgotten else last.block
    facts = last.tail if block is None else (block, *last.tail)
    blocks = (PlacedBlock(step, last.pass_, last.count, fact, last.package) for fact in facts)
    placed = state.placed + (last.entries if block is not None else ())
    if block is None and last.block is not None:
        owed += returned
        state = break_prefix(state, "redacted", last.count)
    return msgspec.structs.replace(
        state, blocks=state.blocks.add(*blocks), placed=placed, owed=still_owed(owed, placed)
    )


def _has_messages(state: RunState, last: LastStep) -> bool:
    """Whether the history still begins with the messages that a step was compiled for."""
    return last.count <= state.history.count and state.history.keep(last.count).chain == last.chain


def _wait(owed: OwedEntry) -> OwedEntry:
    """What could have returned with a step and did not waits, unless it must be in the package (D.H.10)."""
    return owed if owed.entry.mandatory else msgspec.structs.replace(owed, waits=True)


def _calibrate(state: RunState, last: LastStep, usage: Usage | None) -> RunState:
    spec = state.estimator
    if spec is None or not spec.calibrate or usage is None:
        return state
    actual = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if not is_usage(actual) or not is_usage(last.estimated):
        return state
    factor = calibrate_factor(spec.factor, actual, last.estimated)
    return msgspec.structs.replace(state, estimator=msgspec.structs.replace(spec, factor=factor, calibrated=True))


def _fail(state: RunState, step: int, status: CallStatus) -> RunState:
    last = state.last
    if last is None or last.step != step or last.status != "open":
        return state
    return msgspec.structs.replace(state, last=msgspec.structs.replace(last, status=status))


def find_command(state: RunState, command: str) -> CommandFact | None:
    """The newest remembered commit of a command."""
    return state.recent.find(command)

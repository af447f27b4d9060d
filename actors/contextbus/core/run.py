"""The fold of a run: what its log says, as one frozen value.

Selection keeps it, replay rebuilds it, and both use these functions only.  It holds no text: ids, digests, counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from contextbus.core.history import Entry, SourceHistory
from contextbus.core.recent import Recent
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    BlockFact,
    CallFailed,
    CallSucceeded,
    Commit,
    HistoryReplaced,
    MessagesAppended,
    RefreshRequested,
    RunStarted,
    StepCompiled,
    StepFailed,
    UnknownEvent,
)
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import EstimatorSpec, PlacedEntry, Scope


class ChainBrokenError(InvalidTypeError):
    """A commit does not follow the one before: commits are missing, or the log was changed."""


class CommandFact(msgspec.Struct, frozen=True):
    """A command that the log holds: the same id and digest get the same answer."""

    command: str
    command_digest: str
    sequence: int
    digest: str
    step: int | None = None
    package: str | None = None
    count: int = 0
    chain: str = ""


class PlacedBlock(msgspec.Struct, frozen=True):
    """An append block in the request history: it stands behind the first ``position`` source messages."""

    step: int
    pass_: int
    position: int
    fact: BlockFact
    package: str


class LastStep(msgspec.Struct, frozen=True):
    """The newest compiled step and how its model call went; ``scope`` is the one that its step asked for."""

    step: int
    scope: Scope
    pass_: int
    command: str
    count: int
    chain: str
    provider: str
    model_id: str
    tools_digest: str | None
    package: str
    package_digest: str
    sequence: int
    digest: str
    status: Literal["open", "succeeded", "failed"] = "open"
    block: BlockFact | None = None
    entries: tuple[PlacedEntry, ...] = ()


class RunState(msgspec.Struct, frozen=True):
    """A run as of a commit.

    ``broken_prefix`` is set once the history that the last request began with was rewritten (D.F.22).
    ``refused_task`` is the active task for which a pass limit was already reported (D.G.11).  ``memory_sequence`` is
    the newest state of the working memory that a step was of: no later step is of an older one.
    """

    run: str
    sequence: int = 0
    digest: str = ""
    scope: Scope | None = None
    estimator: EstimatorSpec | None = None
    history: SourceHistory = SourceHistory()
    system_count: int = 0
    blocks: tuple[PlacedBlock, ...] = ()
    placed: tuple[PlacedEntry, ...] = ()
    last: LastStep | None = None
    broken_prefix: CachePrefixCause | None = None
    passes: int = 0
    last_refresh_step: int | None = None
    last_active_task: str | None = None
    refused_task: tuple[str | None, ...] = ()
    refresh_requested: bool = False
    memory_sequence: int = 0
    inputs: str | None = None
    recent: Recent[CommandFact] = Recent()


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
    step: int | None = None
    package: str | None = None
    failed = False
    for event in commit.events:
        state = fold_event(state, event, sequence, digest, commit.command)
        if isinstance(event, StepCompiled):
            step, package = event.step, event.package
        failed = failed or isinstance(event, StepFailed)
    recent = state.recent
    if not failed:  # a failed step leaves its command open: the retry is another attempt
        fact = CommandFact(
            command=commit.command,
            command_digest=commit.command_digest,
            sequence=sequence,
            digest=digest,
            step=step,
            package=package,
            count=state.history.count,
            chain=state.history.chain,
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


def fold_event(state: RunState, event: AnyEvent | UnknownEvent, sequence: int, digest: str, command: str) -> RunState:
    """The state after one event; events of other parts and unknown ones change nothing."""
    replace = msgspec.structs.replace
    match event:
        case RunStarted(scope=scope, estimator=estimator):
            return replace(state, scope=scope, estimator=estimator)
        case HistoryReplaced(keep=keep):
            return keep_messages(state, keep)
        case MessagesAppended():
            return replace(
                append_messages(state, event),
                inputs=event.inputs,
            )
        case StepCompiled():
            return _fold_step(state, event, sequence, digest, command)
        case CallSucceeded(step=step):
            return _settle(state, step, succeeded=True)
        case CallFailed(step=step):
            return _settle(state, step, succeeded=False)
        case RefreshRequested():
            return replace(state, refresh_requested=True)
        case _:
            return state


def keep_messages(state: RunState, keep: int) -> RunState:
    """The state with only the first ``keep`` source messages; blocks behind them leave with them (D.F.14)."""
    if keep >= state.history.count:
        return state
    broken = state.broken_prefix
    if state.last is not None and keep < state.last.count:
        cause: CachePrefixCause = "system" if keep < state.system_count else "history"
        broken = "system" if "system" in (cause, broken) else cause
    kept = tuple(b for b in state.blocks if b.position <= keep)
    steps = {(b.step, b.pass_) for b in kept}
    return msgspec.structs.replace(
        state,
        history=state.history.keep(keep),
        system_count=min(state.system_count, keep),
        blocks=kept,
        placed=tuple(p for p in state.placed if (p.step, p.pass_) in steps),
        broken_prefix=broken,
    )


def append_messages(state: RunState, event: MessagesAppended) -> RunState:
    """The state with further source messages."""
    system_count = state.system_count
    for index, fact in enumerate(event.messages, event.start):
        if fact.role != "system" or system_count != index:
            break
        system_count += 1
    entries = (Entry(fact.digest, fact.eighteenths) for fact in event.messages)
    return msgspec.structs.replace(state, history=state.history.extend(entries), system_count=system_count)


def _fold_step(state: RunState, event: StepCompiled, sequence: int, digest: str, command: str) -> RunState:
    block = next((b for b in event.blocks if b.placement == "append"), None)
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
    model = event.options.model
    return msgspec.structs.replace(
        state,
        last=LastStep(
            step=event.step,
            scope=event.options.scope,
            pass_=event.pass_,
            command=command,
            count=event.count,
            chain=event.chain,
            provider=model.provider,
            model_id=model.model_id,
            tools_digest=event.options.tools_digest,
            package=event.package,
            package_digest=event.package_digest,
            sequence=sequence,
            digest=digest,
            block=block,
            entries=entries,
        ),
        broken_prefix=None,
        memory_sequence=max(
            state.memory_sequence, 0 if event.working_memory is None else event.working_memory.sequence
        ),
        passes=event.pass_,
        last_refresh_step=event.step if retrieved else state.last_refresh_step,
        last_active_task=event.active_task_id if retrieved else state.last_active_task,
        refused_task=(event.active_task_id,) if limited else () if retrieved else state.refused_task,
        refresh_requested=False if retrieved or limited else state.refresh_requested or event.host_request,
    )


def _settle(state: RunState, step: int, *, succeeded: bool) -> RunState:
    last = state.last
    if last is None or last.step != step or last.status != "open":
        return state
    status: Literal["succeeded", "failed"] = "succeeded" if succeeded else "failed"
    last = msgspec.structs.replace(last, status=status)
    if not succeeded or last.block is None or last.count > state.history.count:
        return msgspec.structs.replace(state, last=last)
    block = PlacedBlock(last.step, last.pass_, last.count, last.block, last.package)
    return msgspec.structs.replace(
        state,
        last=last,
        blocks=(*state.blocks, block),
        placed=state.placed + last.entries,
    )


def find_command(state: RunState, command: str) -> CommandFact | None:
    """The newest remembered commit of a command."""
    return state.recent.find(command)

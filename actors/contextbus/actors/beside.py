"""A step whose history is being compacted is held: appends and reports of its run go on beside it (C.K.9).

Pure functions of selection's state; selection takes what is told here and goes on.
"""

from __future__ import annotations

import msgspec

from contextbus.actors import evaluating, gather, queueing, settle
from contextbus.actors.effects import Cancel, Effects, Load, Send
from contextbus.actors.flight import Flight, RunCommand, SelectionState, deadline_token
from contextbus_protocol import subjects
from contextbus_protocol.commands import CancelCommand, ClearHistory, CompileStep, OverflowStep
from contextbus_protocol.compaction import CompactionEnded

replace = msgspec.structs.replace


def goes_beside(command: RunCommand) -> bool:
    """Whether a command is served while the history is compacted for a step (C.K.9)."""
    return not isinstance(command, CompileStep | OverflowStep | ClearHistory)


def may_begin(state: SelectionState, command: RunCommand) -> bool:
    """Whether a command that comes now is taken at once: nothing is in flight, and a held step lets it pass."""
    held = state.held
    return state.flight is None and (held is None or (goes_beside(command) and held.command.command != command.command))


def take_waiting(state: SelectionState) -> tuple[SelectionState, RunCommand | None]:
    """The first command in the queue that may be taken, out of it; beside a held step those that pass it."""
    command = next((c for c in state.waiting if state.held is None or goes_beside(c)), None)
    return replace(state, waiting=tuple(c for c in state.waiting if c is not command)), command


def hold(state: SelectionState, flight: Flight) -> SelectionState:
    """Put the step aside while its history is compacted."""
    return replace(state, flight=None, held=flight)


def let_go(state: SelectionState, held: Flight, tenant: str) -> tuple[SelectionState, Effects]:
    """The step that waits for a compaction is over: the compaction stops before its next effect (D.W.5).

    What it committed is not known here, so whoever comes next looks at the log first.  The same command from another
    address, if it waits, has its time from now on.
    """
    command = held.command
    cancel = CancelCommand(run=command.run, tenant=tenant, command=command.command)
    effects: Effects = (
        Send(subjects.command("compaction", tenant), cancel),
        Cancel(command.run, deadline_token(command)),
    )
    if held.timed:
        effects += gather.cancel_timers(held)
    follower = next((c for c in state.waiting if c.command == command.command), None)
    if follower is not None:
        effects += (queueing.timer_of(follower),)
    return replace(state, held=None, loaded=False), effects


def note_lateness(state: SelectionState, token: str) -> SelectionState:
    """The state once a timer of the held step has run down: questions that it asks later need a new one."""
    held = state.held
    if held is None or token != gather.end_token(held):
        return state
    return replace(state, held=replace(held, timed=False))


def note_end(state: SelectionState, message: CompactionEnded) -> SelectionState:
    """The state with what came of the compaction; one that was interrupted is evaluated again (C.K.9)."""
    held = state.held
    if held is None or held.phase != "compact" or message.token != held.token:
        return state  # late, repeated, or of an earlier attempt
    if message.status == "interrupted":
        held = evaluating.forget_evaluation(replace(held, conflicts=held.conflicts + 1))
    else:
        held = replace(held, compacted=message, prepared=None)
    return replace(state, held=replace(held, phase="open", loading=True))


def resume(state: SelectionState, held: Flight) -> tuple[SelectionState, Load]:
    """Go on with the step whose compaction is over, on the log as it is now."""
    at_least = state.fold.sequence if held.compacted is None else held.compacted.sequence
    return replace(state, flight=held, held=None), settle.load_of(state.fold, held.token, at_least)

"""The commands of a run that wait behind the one in flight, and what comes once more of one that is there (D.R.7)."""

from __future__ import annotations

from typing import Final

import msgspec

from contextbus.actors import recorded
from contextbus.actors.effects import Effects, Timer
from contextbus.actors.flight import RunCommand, SelectionState, deadline_token, digest_command
from contextbus_protocol.errors import BusyError, CommandMismatchError

LONGEST_QUEUE: Final = 64

replace = msgspec.structs.replace


def timer_of(command: RunCommand) -> Timer:
    """The timer that ends the time of a command."""
    return Timer(command.run, deadline_token(command), command.seconds_left)


def enqueue(state: SelectionState, command: RunCommand) -> tuple[SelectionState, Effects]:
    """The state with a command whose turn has not come; one that is known already is not taken twice."""
    flight, held = state.flight, state.held
    under_way = tuple(f.command for f in (flight, held) if f is not None)
    known = next((c for c in (*under_way, *state.waiting) if c.command == command.command), None)
    if known is None:
        if len(state.waiting) >= LONGEST_QUEUE:
            busy = BusyError(f"{LONGEST_QUEUE} commands wait for this run; ask again later")
            return state, (recorded.refuse_command(command, busy),)
        return replace(state, waiting=(*state.waiting, command)), (timer_of(command),)
    if digest_command(known) != digest_command(command):
        error = CommandMismatchError(f"command id {command.command!r} is in use for another command; take a new id")
        return state, (recorded.refuse_command(command, error),)
    if command.attempt < known.attempt or (command.attempt, command.reply_to) == (known.attempt, known.reply_to):
        return state, ()
    if known in under_way and command.attempt == known.attempt:
        return follow(state, command), ()
    if flight is not None and known is flight.command:
        return replace(state, flight=replace(flight, command=command)), ()
    if held is not None and known is held.command:
        return replace(state, held=replace(held, command=command)), ()
    waiting = tuple(command if c is known else c for c in state.waiting)  # a retry keeps its place
    return replace(state, waiting=waiting), (timer_of(command),)


def drop_waiting(state: SelectionState, command: str) -> tuple[SelectionState, RunCommand | None]:
    """The state without a command whose turn has not come, and that command if there is one."""
    found = next((c for c in state.waiting if c.command == command), None)
    if found is None:
        return state, None
    waiting = tuple(c for c in state.waiting if c is not found)
    return replace(state, waiting=waiting), found


def follow(state: SelectionState, command: RunCommand) -> SelectionState:
    """The state with the command in flight once more behind it: whoever sent it first may be gone, and its address too.

    It is next, and finds what the first one stored; its time begins then, for one timer serves both.
    """
    waiting = (command, *(c for c in state.waiting if c.command != command.command))
    return replace(state, waiting=waiting)

"""The client's retry: one command until its answer, as a pure state machine (design: section 9).

The command keeps its id over all attempts, so that asking again never has a second effect.  The client asks again
when the time left and a second are over, at most three times, and at once when nobody serves the subject yet.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contextbus_protocol.commands import AnyCommand, ErrorReply
from contextbus_protocol.messages import AnyMessage

ATTEMPTS: Final = 3
GRACE_SECONDS: Final = 1.0
FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 1.0


class Transmit(msgspec.Struct, frozen=True):
    """Send the command, and wake the machine after some seconds if nothing came."""

    command: AnyCommand
    wake_after: float


class WakeAfter(msgspec.Struct, frozen=True):
    """Send nothing; wake the machine after some seconds."""

    seconds: float


class Resolve(msgspec.Struct, frozen=True):
    """The command is over: here is its answer."""

    answer: AnyMessage


Operation = Transmit | WakeAfter | Resolve | None


class Answered(msgspec.Struct, frozen=True):
    """An answer came for the command."""

    message: AnyMessage


class Silent(msgspec.Struct, frozen=True):
    """The time to wake came and no answer."""


class Absent(msgspec.Struct, frozen=True):
    """Nobody serves the subject, or the bus is not connected: nothing was taken."""


Outcome = Answered | Silent | Absent


class Asking(msgspec.Struct, frozen=True):
    """Where the command stands; ``waiting`` says what the next ``Silent`` means."""

    command: AnyCommand
    waited: float = 0.0
    waits: int = 0
    waiting: Literal["answer", "room"] = "answer"
    last_error: ErrorReply | None = None
    done: bool = False


def begin(command: AnyCommand) -> tuple[Asking, Operation]:
    """Send a command for the first time."""
    return Asking(command), Transmit(command, command.seconds_left + GRACE_SECONDS)


def advance(state: Asking, outcome: Outcome) -> tuple[Asking, Operation]:
    """Take what happened and say what to do; answers after the first change nothing."""
    if state.done:
        return state, None
    match outcome:
        case Answered(message):
            if isinstance(message, ErrorReply) and message.code == "deadline_exceeded":
                return _again(msgspec.structs.replace(state, last_error=message))
            if isinstance(message, ErrorReply) and message.code == "busy":
                return _wait_for_room(msgspec.structs.replace(state, last_error=message))
            return msgspec.structs.replace(state, done=True), Resolve(message)
        case Silent():
            if state.waiting == "room":
                state = msgspec.structs.replace(state, waiting="answer")
                return state, Transmit(state.command, state.command.seconds_left + GRACE_SECONDS)
            # it may be done by now: what was said before it was sent last is no answer any more
            return _again(msgspec.structs.replace(state, last_error=None))
        case Absent():
            return _wait_for_room(state)


def _again(state: Asking) -> tuple[Asking, Operation]:
    if state.command.attempt >= ATTEMPTS:
        answer = state.last_error or ErrorReply(
            run=state.command.run,
            command=state.command.command,
            code="deadline_exceeded",
            message=(
                f"no answer after {ATTEMPTS} attempts; the same command id may be sent again without a second effect"
            ),
        )
        return msgspec.structs.replace(state, done=True), Resolve(answer)
    command = msgspec.structs.replace(state.command, attempt=state.command.attempt + 1)
    state = msgspec.structs.replace(state, command=command, waiting="answer")
    return state, Transmit(command, command.seconds_left + GRACE_SECONDS)


def _wait_for_room(state: Asking) -> tuple[Asking, Operation]:
    """Nobody there, or no room: nothing was taken, so wait a little longer each time, as long as all attempts may."""
    allowed = (state.command.seconds_left + GRACE_SECONDS) * ATTEMPTS
    wait = min(FIRST_WAIT_SECONDS * 2**state.waits, LONGEST_WAIT_SECONDS)
    if state.waited + wait > allowed:
        answer = state.last_error or ErrorReply(
            run=state.command.run,
            command=state.command.command,
            code="deadline_exceeded",
            message="no actor serves this command; start one with `contextbus up` or `contextbus actor`",
        )
        return msgspec.structs.replace(state, done=True), Resolve(answer)
    state = msgspec.structs.replace(state, waited=state.waited + wait, waits=min(state.waits + 1, 16), waiting="room")
    return state, WakeAfter(wait)

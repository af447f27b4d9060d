"""What is asked of working memory: who waits, for how long, and what two requests of one id have in common."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus.actors.effects import Send
from contextbus.core.memory_run import MemoryState
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_checks import decode_snapshot
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commands import CreateWorkingMemory, PatchWorkingMemory, ReadWorkingMemory, refuse
from contextbus_protocol.errors import ContextBusError, InvalidTypeError
from contextbus_protocol.questions import AskItems, ItemsOffered
from contextbus_protocol.working_memory import WorkingMemorySnapshot

Write = CreateWorkingMemory | PatchWorkingMemory
Request = Write | ReadWorkingMemory | AskItems


class Writing(msgspec.Struct, frozen=True):
    """The write under way."""

    command: Write
    token: str
    phase: Literal["load", "commit"] = "commit"
    conflicts: int = 0


class WorkingMemoryActorState(msgspec.Struct, frozen=True):
    """The actor's state of one run: the fold, who waits for the log, the write under way and those behind it."""

    fold: MemoryState
    loaded: bool = False
    loading: str | None = None
    pending: tuple[Request, ...] = ()
    writing: Writing | None = None
    writes: tuple[Write, ...] = ()
    serial: int = 0


def deadline_token(command: str) -> str:
    """The token of the timer that ends the time of a command."""
    return command + "#deadline"


def seen_by(request: Request) -> int:
    """The newest sequence of this part that whoever asks knows of."""
    return request.seen if isinstance(request, AskItems) else request.seen_memory


def create_snapshot(command: CreateWorkingMemory) -> WorkingMemorySnapshot:
    """The first snapshot of a run, made or taken over (D.N.3).

    Raises:
        InvalidTypeError: what was given is malformed, or both a snapshot and what a new one is made of (D.R.12).
    """
    if command.snapshot is not None:
        if command.goal is not None or command.constraints or command.tasks is not None or command.goal_ref is not None:
            raise InvalidTypeError("give a snapshot, or what a new working memory is made of, not both")
        return decode_snapshot(command.snapshot)
    return create_working_memory(
        scope=command.scope,
        now=command.now,
        goal=command.goal,
        constraints=command.constraints,
        tasks=command.tasks,
        goal_ref=command.goal_ref,
    )


def digest_request(request: Write | ReadWorkingMemory) -> str:
    """What a command asks for, as a digest: attempt, reply address and times left out."""
    if isinstance(request, PatchWorkingMemory):
        return digests.digest_bytes(encode_json(("patch-working-memory", request.patch)))
    if isinstance(request, ReadWorkingMemory):
        return digests.digest_bytes(encode_json(("read-working-memory",)))
    key = (
        "create-working-memory",
        request.scope,
        request.goal,
        request.constraints,
        request.tasks,
        request.goal_ref,
        request.snapshot,
    )
    return digests.digest_bytes(encode_json(key))


def refuse_request(request: Request, error: ContextBusError) -> Send:
    """The answer to a request that came to nothing."""
    if isinstance(request, AskItems):
        offered = ItemsOffered(run=request.run, token=request.token, code=error.code)
        return Send(request.reply_to, offered)
    reply = refuse(request.run, request.command, error)
    return Send(request.reply_to, reply, request.reply_as)


def list_waiting(state: WorkingMemoryActorState) -> tuple[Write | ReadWorkingMemory, ...]:
    """The commands whose turn has not come."""
    return (*(p for p in state.pending if not isinstance(p, AskItems)), *state.writes)


def find_request(state: WorkingMemoryActorState, command: str) -> Write | ReadWorkingMemory | None:
    """The command of an id that is under way or waits here."""
    if state.writing is not None and state.writing.command.command == command:
        return state.writing.command
    return next((w for w in list_waiting(state) if w.command == command), None)


def drop_waiting(state: WorkingMemoryActorState, command: str) -> WorkingMemoryActorState:
    """The state without a command whose turn has not come."""

    def keeps(request: Request) -> bool:
        return isinstance(request, AskItems) or request.command != command

    return msgspec.structs.replace(
        state,
        pending=tuple(p for p in state.pending if keeps(p)),
        writes=tuple(w for w in state.writes if keeps(w)),
    )

"""The working_memory actor: patches, what a step gets of them, and the commits of that part of the log.

Writes of a run are taken one after the other; reads and steps see the fold as of the sequence that they name.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contextbus import __version__
from contextbus.actors.effects import Cancel, Effects, Load, Send, Store, Timer
from contextbus.core.memory_run import (
    MemoryState,
    find_memory_command,
    fold_memory_commit,
    try_patch,
)
from contextbus.core.run import ChainBrokenError
from contextbus.core.step import POLICY
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_checks import decode_snapshot
from contextbus_protocol import codec, digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import (
    BusyError,
    CommandMismatchError,
    ConflictError,
    ContextBusError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    error_of,
)
from contextbus_protocol.events import AnyEvent, Commit, WorkingMemoryCreated, WorkingMemoryPatched
from contextbus_protocol.messages import (
    AnyMessage,
    AskItems,
    CancelCommand,
    Committed,
    Conflicted,
    CreateWorkingMemory,
    Elapsed,
    ErrorReply,
    ItemsOffered,
    Loaded,
    PatchWorkingMemory,
    ReadWorkingMemory,
    Unstored,
    WorkingMemoryState,
)
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.working_memory import WorkingMemoryPatch, WorkingMemorySnapshot

CONFLICTS: Final = 5
LONGEST_QUEUE: Final = 64

replace = msgspec.structs.replace

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


State = WorkingMemoryActorState
Step = tuple[State, Effects]


class WorkingMemory:
    """The rule.

    Args:
        tenant: whose runs these are.
        instance: names this process in tokens, so that no other's answer is taken for ours.
    """

    name: ActorName = "working-memory"

    def __init__(self, tenant: str, instance: str) -> None:
        self._tenant = tenant
        self._instance = instance

    def initial(self, run: str) -> State:
        """Nothing is known of the run yet."""
        return State(MemoryState(run))

    def is_idle(self, state: State) -> bool:
        """Whether nothing is loading, waiting or being written."""
        return state.loading is None and state.writing is None and not state.pending

    def decide(self, state: State, message: AnyMessage) -> Step:
        """Take one message of a run."""
        match message:
            case AskItems() | ReadWorkingMemory() | CreateWorkingMemory() | PatchWorkingMemory():
                return self._take(state, message)
            case Loaded():
                return self._loaded(state, message)
            case Committed():
                return self._committed(state, message)
            case Conflicted():
                return self._conflicted(state, message)
            case Unstored():
                return self._unstored(state, message)
            case Elapsed():
                return self._elapsed(state, message)
            case CancelCommand():
                return _cancel(state, message), ()
            case _:
                return state, ()

    # -- requests

    def _take(self, state: State, request: Request) -> Step:
        if not isinstance(request, AskItems) and _is_known(state, request):
            return state, ()  # a retry of what is under way here
        if len(state.pending) + len(state.writes) >= LONGEST_QUEUE:
            error = BusyError(f"{LONGEST_QUEUE} requests wait for this run; ask again later")
            return state, (_refuse(request, error),)
        if state.loaded and not self._must_look(state, request):
            return self._serve(state, request)
        state = replace(state, pending=(*state.pending, request))
        if state.loading is not None:
            return state, ()
        return self._load(state, _seen(request))

    def _must_look(self, state: State, request: Request) -> bool:
        again = request.load if isinstance(request, AskItems) else request.attempt > 1
        return again or _seen(request) > state.fold.sequence

    def _load(self, state: State, at_least: int) -> Step:
        token = f"{self._instance}/load/{state.serial}"
        load = Load(state.fold.run, "working-memory", state.fold.sequence, token, at_least)
        return replace(state, loading=token, serial=state.serial + 1), (load,)

    def _loaded(self, state: State, message: Loaded) -> Step:
        writing = state.writing
        if message.token == state.loading:
            state = replace(state, loading=None)
        elif writing is None or writing.phase != "load" or writing.token != message.token:
            return state, ()
        if message.code is not None:
            return self._unreadable(state, message.token, message.code)
        try:
            fold = state.fold
            for sequence, digest, commit in message.commits:
                if sequence > fold.sequence:
                    fold = fold_memory_commit(fold, sequence, digest, commit)
        except ChainBrokenError as exc:
            return self._unreadable(replace(state, loaded=False), message.token, exc.code)
        state = replace(state, fold=fold, loaded=True)
        effects: Effects = ()
        if writing is not None and writing.token == message.token:
            state, effects = self._write(replace(state, writing=None), writing.command, writing.conflicts)
        pending, state = state.pending, replace(state, pending=())
        for index, request in enumerate(pending):
            if _seen(request) > state.fold.sequence and message.after < state.fold.sequence:
                # it knows of a newer commit than this catch-up was asked for
                state = replace(state, pending=pending[index:])
                state, more = self._load(state, _seen(request))
                return state, effects + more
            state, more = self._serve(state, request)
            effects += more
        return state, effects

    def _unreadable(self, state: State, token: str, code: str) -> Step:
        error = error_of(code, "the working memory's log could not be read")
        refused: list[Request] = list(state.pending)
        state = replace(state, pending=())
        effects: Effects = tuple(_refuse(r, error) for r in refused)
        writing = state.writing
        if writing is not None and writing.token == token:
            state, more = self._finish(state, (_refuse(writing.command, error),))
            effects += more
        return state, effects

    def _serve(self, state: State, request: Request) -> Step:
        fold = state.fold
        match request:
            case AskItems():
                offered = ItemsOffered(
                    run=request.run,
                    token=request.token,
                    sequence=fold.sequence,
                    digest=fold.snapshot_digest,
                    snapshot=fold.snapshot,
                )
                return state, (Send(request.reply_to, offered),)
            case ReadWorkingMemory():
                return state, (self._reply(request, fold, "read"),)
            case CreateWorkingMemory() | PatchWorkingMemory():
                if state.writing is not None:
                    return replace(state, writes=(*state.writes, request)), ()
                return self._write(state, request, 0)

    # -- writes

    def _write(self, state: State, command: Write, conflicts: int) -> Step:
        try:
            outcome = self._plan(state.fold, command)
        except ContextBusError as exc:
            return self._finish(state, (_refuse(command, exc),))
        if isinstance(outcome, Send):
            return self._finish(state, (outcome,))
        token = f"{self._instance}/{command.command}/{command.attempt}/{state.serial}"
        commit = Commit(
            version=codec.COMMIT_VERSION,
            tenant=self._tenant,
            run=command.run,
            part="working-memory",
            command=command.command,
            command_digest=_digest(command),
            attempt=command.attempt,
            engine=__version__,
            policy=POLICY,
            previous=state.fold.digest,
            at=command.now,
            events=(outcome,),
        )
        writing = Writing(command, token, "commit", conflicts)
        state = replace(state, writing=writing, serial=state.serial + 1)
        store = Store(commit, state.fold.sequence, token)
        return state, (store, Timer(command.run, token, command.seconds_left))

    def _plan(self, fold: MemoryState, command: Write) -> AnyEvent | Send:
        found = find_memory_command(fold, command.command)
        if found is not None:
            if found.command_digest != _digest(command):
                raise CommandMismatchError(
                    f"command id {command.command!r} was used for another command; take a new id"
                )
            status: Literal["created", "applied"] = "created" if isinstance(command, CreateWorkingMemory) else "applied"
            return self._reply(command, fold, status, ids=found.ids)
        if isinstance(command, CreateWorkingMemory):
            if fold.snapshot is not None:
                raise InvalidRequestError("the run has a working memory already; patch it")
            return WorkingMemoryCreated(snapshot=_create(command))
        result = try_patch(fold, command.patch, command.now)
        if result is None:
            raise NotFoundError("the run has no working memory; create it first")
        if result.status != "applied":
            return self._reply(command, fold, result.status, result.reason)
        return WorkingMemoryPatched(patch=command.patch, revision=result.snapshot.revision, now=command.now)

    def _committed(self, state: State, message: Committed) -> Step:
        writing = state.writing
        try:
            fold = state.fold
            if message.sequence > fold.sequence:
                fold = fold_memory_commit(fold, message.sequence, message.digest, message.commit)
            state = replace(state, fold=fold)
        except ChainBrokenError:
            state = replace(state, loaded=False)
        if writing is None or writing.token != message.token:
            return state, ()
        command = writing.command
        status: Literal["created", "applied"] = "created" if isinstance(command, CreateWorkingMemory) else "applied"
        found = find_memory_command(state.fold, command.command)
        answer = self._reply(command, state.fold, status, ids=() if found is None else found.ids)
        return self._finish(state, (answer,))

    def _conflicted(self, state: State, message: Conflicted) -> Step:
        writing = state.writing
        if writing is None or writing.token != message.token:
            return state, ()
        if writing.conflicts + 1 > CONFLICTS:
            error = ConflictError("others changed the working memory faster than this could be applied")
            return self._finish(replace(state, loaded=False), (_refuse(writing.command, error),))
        fold = state.fold
        writing = replace(writing, phase="load", conflicts=writing.conflicts + 1)
        load = Load(fold.run, "working-memory", fold.sequence, writing.token, fold.sequence + 1)
        return replace(state, writing=writing), (load,)

    def _unstored(self, state: State, message: Unstored) -> Step:
        writing = state.writing
        if writing is None or writing.token != message.token:
            return state, ()
        error = error_of(message.code, message.message)
        return self._finish(replace(state, loaded=False), (_refuse(writing.command, error),))

    def _elapsed(self, state: State, message: Elapsed) -> Step:
        writing = state.writing
        if writing is None or writing.token != message.token:
            return state, ()
        error = DeadlineExceededError("the time for this command is over")
        return self._finish(replace(state, loaded=False), (_refuse(writing.command, error),))

    def _finish(self, state: State, effects: Effects) -> Step:
        """The write is over: take the next."""
        if state.writing is not None:
            effects += (Cancel(state.fold.run, state.writing.token),)
        state = replace(state, writing=None)
        if not state.writes:
            return state, effects
        command, *rest = state.writes
        state = replace(state, writes=tuple(rest))
        if state.loaded:
            state, more = self._write(state, command, 0)
            return state, effects + more
        state, more = self._take(state, command)
        return state, effects + more

    def _reply(
        self,
        command: Write | ReadWorkingMemory,
        fold: MemoryState,
        status: Literal["applied", "duplicate", "rejected", "created", "read"],
        reason: Literal["forbidden", "not-found", "limit", "revision-conflict"] | None = None,
        ids: tuple[str, ...] = (),
    ) -> Send:
        answer = WorkingMemoryState(
            run=command.run,
            command=command.command,
            sequence=fold.sequence,
            snapshot=fold.snapshot,
            status=status,
            reason=reason,
            ids=ids,
        )
        return Send(command.reply_to, answer, command.reply_as)


def _create(command: CreateWorkingMemory) -> WorkingMemorySnapshot:
    if command.snapshot is not None:
        return decode_snapshot(command.snapshot)
    return create_working_memory(
        scope=command.scope,
        now=command.now,
        goal=command.goal,
        constraints=command.constraints,
        tasks=command.tasks,
        goal_ref=command.goal_ref,
    )


def digest_patch(patch: WorkingMemoryPatch) -> str:
    """The digest of the command that a patch comes with."""
    return digests.digest_bytes(encode_json(("patch-working-memory", patch)))


def _digest(command: Write) -> str:
    """What a command asks for, as a digest: attempt, reply address and times left out."""
    if isinstance(command, PatchWorkingMemory):
        return digest_patch(command.patch)
    key = (
        "create-working-memory",
        command.scope,
        command.goal,
        command.constraints,
        command.tasks,
        command.goal_ref,
        command.snapshot,
    )
    return digests.digest_bytes(encode_json(key))


def _seen(request: Request) -> int:
    return request.seen if isinstance(request, AskItems) else request.seen_memory


def _is_known(state: State, request: Write | ReadWorkingMemory) -> bool:
    under_way = state.writing is not None and state.writing.command.command == request.command
    waiting = (*state.writes, *(p for p in state.pending if not isinstance(p, AskItems)))
    return under_way or any(w.command == request.command for w in waiting)


def _cancel(state: State, message: CancelCommand) -> State:
    def keeps(request: Request) -> bool:
        return isinstance(request, AskItems) or request.command != message.command

    return replace(
        state,
        pending=tuple(p for p in state.pending if keeps(p)),
        writes=tuple(w for w in state.writes if keeps(w)),
    )


def _refuse(request: Request, error: ContextBusError) -> Send:
    if isinstance(request, AskItems):
        offered = ItemsOffered(run=request.run, token=request.token, code=error.code)
        return Send(request.reply_to, offered)
    reply = ErrorReply(
        run=request.run,
        command=request.command,
        code=error.code,
        message=error.message,
        data=error.data,
    )
    return Send(request.reply_to, reply, request.reply_as)

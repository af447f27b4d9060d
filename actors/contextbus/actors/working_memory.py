"""The working_memory actor: patches, what a step gets of them, and the commits of that part of the log.

Writes of a run are taken one after the other; reads and steps see the fold as of the sequence that they name.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contextbus import __version__
from contextbus.actors import append
from contextbus.actors.effects import Cancel, Effects, Load, Send, Store, Timer
from contextbus.actors.memory_requests import (
    Request,
    WorkingMemoryActorState,
    Write,
    Writing,
    create_snapshot,
    deadline_token,
    digest_request,
    drop_waiting,
    find_request,
    list_waiting,
    refuse_request,
    seen_by,
)
from contextbus.core.memory_run import (
    MemoryState,
    find_memory_command,
    fold_memory_commits,
    try_patch,
)
from contextbus.core.step import POLICY
from contextbus_protocol import codec
from contextbus_protocol.commands import (
    CancelCommand,
    CreateWorkingMemory,
    PatchWorkingMemory,
    ReadWorkingMemory,
    WorkingMemoryState,
)
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
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Loaded, Unstored
from contextbus_protocol.questions import AskItems, ItemsOffered
from contextbus_protocol.subjects import ActorName

CONFLICTS: Final = 5
LONGEST_QUEUE: Final = 64

replace = msgspec.structs.replace

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
        return state.loading is None and state.writing is None and not state.pending and not state.writes

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
                return _cancel(state, message)
            case _:
                return state, ()

    # -- requests

    def _take(self, state: State, request: Request) -> Step:
        if not isinstance(request, AskItems):
            known = find_request(state, request.command)
            if known is not None:
                return _take_again(state, known, request)
        ready = state.loaded and not self._must_look(state, request)
        if ready and isinstance(request, AskItems | ReadWorkingMemory):
            return state, (self._answer(state.fold, request),)
        if len(state.pending) + len(state.writes) >= LONGEST_QUEUE:
            error = BusyError(f"{LONGEST_QUEUE} requests wait for this run; ask again later")
            return state, (refuse_request(request, error),)
        effects: Effects = ()
        if not isinstance(request, AskItems):
            effects = (Timer(request.run, deadline_token(request.command), request.seconds_left),)
        if ready:
            state, more = self._serve(state, request)
        else:
            state, more = self._wait(state, request)
        return state, effects + more

    def _must_look(self, state: State, request: Request) -> bool:
        again = request.load if isinstance(request, AskItems) else request.attempt > 1
        return again or seen_by(request) > state.fold.sequence

    def _wait(self, state: State, request: Request) -> Step:
        state = replace(state, pending=(*state.pending, request))
        if state.loading is not None:
            return state, ()
        return self._load(state, seen_by(request))

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
            fold = fold_memory_commits(state.fold, message.commits)
        except ContextBusError as exc:
            # the log is another than this instance knew: whoever comes next reads all of it
            state = replace(state, fold=MemoryState(state.fold.run), loaded=False)
            return self._unreadable(state, message.token, exc.code)
        state = replace(state, fold=fold, loaded=True)
        effects: Effects = ()
        if writing is not None and writing.token == message.token:
            state, effects = self._write(state, writing)
        pending, state = state.pending, replace(state, pending=())
        for index, request in enumerate(pending):
            if seen_by(request) > state.fold.sequence and message.after < state.fold.sequence:
                # it knows of a newer commit than this catch-up was asked for
                state = replace(state, pending=pending[index:] + state.pending)
                state, more = (state, ()) if state.loading else self._load(state, seen_by(request))
                return state, effects + more
            state, more = self._serve(state, request)
            effects += more
        return state, effects

    def _unreadable(self, state: State, token: str, code: str) -> Step:
        """Nobody who waits for the log can be served; a commit under way has an answer of its own."""
        error = error_of(code, f"the working memory's log could not be read; {append.LOOK}")
        refused: tuple[Request, ...] = (*state.pending, *state.writes)
        writing = state.writing
        if writing is not None and writing.token == token:
            refused = (writing.command, *refused)
            writing = None
        state = replace(state, pending=(), writes=(), writing=writing)
        effects: Effects = ()
        for request in refused:
            effects += _end(request, refuse_request(request, error))
        return state, effects

    def _serve(self, state: State, request: Request) -> Step:
        """Serve a request whose timer runs, if it has one, at the present fold."""
        match request:
            case AskItems() | ReadWorkingMemory():
                return state, _end(request, self._answer(state.fold, request))
            case CreateWorkingMemory() | PatchWorkingMemory():
                if state.writing is not None:
                    return replace(state, writes=(*state.writes, request)), ()
                token = f"{self._instance}/{request.command}/{request.attempt}/{state.serial}"
                return self._write(replace(state, serial=state.serial + 1), Writing(request, token))

    def _answer(self, fold: MemoryState, request: AskItems | ReadWorkingMemory) -> Send:
        if isinstance(request, ReadWorkingMemory):
            return self._reply(request, fold, "read")
        offered = ItemsOffered(
            run=request.run,
            token=request.token,
            sequence=fold.sequence,
            digest=fold.snapshot_digest,
            snapshot=fold.snapshot,
        )
        return Send(request.reply_to, offered)

    # -- writes

    def _write(self, state: State, writing: Writing) -> Step:
        """Plan a write at the present fold: have it committed, or answer at once."""
        command = writing.command
        try:
            outcome = self._plan(state.fold, command)
        except ContextBusError as exc:
            return self._finish(state, command, refuse_request(command, exc))
        if isinstance(outcome, Send):
            return self._finish(state, command, outcome)
        commit = Commit(
            version=codec.COMMIT_VERSION,
            tenant=self._tenant,
            run=command.run,
            part="working-memory",
            command=command.command,
            command_digest=digest_request(command),
            attempt=command.attempt,
            engine=__version__,
            policy=POLICY,
            previous=state.fold.digest,
            at=command.now,
            events=(outcome,),
        )
        state = replace(state, writing=replace(writing, phase="commit"))
        return state, (Store(commit, state.fold.sequence, writing.token),)

    def _plan(self, fold: MemoryState, command: Write) -> AnyEvent | Send:
        found = find_memory_command(fold, command.command)
        if found is not None:
            if found.command_digest != digest_request(command):
                raise CommandMismatchError(
                    f"command id {command.command!r} was used for another command; take a new id"
                )
            return self._reply_done(command, fold)
        if isinstance(command, CreateWorkingMemory):
            if fold.snapshot is not None:
                raise InvalidRequestError("the run has a working memory already; patch it")
            return WorkingMemoryCreated(snapshot=create_snapshot(command))
        result = try_patch(fold, command.patch, command.now)
        if result is None:
            raise NotFoundError("the run has no working memory; create it first")
        if result.status != "applied":
            return self._reply(command, fold, result.status, result.reason, result.ids, result.revision)
        return WorkingMemoryPatched(
            patch=command.patch, revision=result.snapshot.revision, now=command.now, ids=result.ids
        )

    def _committed(self, state: State, message: Committed) -> Step:
        writing = state.writing
        ours = writing is not None and writing.token == message.token and writing.phase == "commit"
        try:
            fold = fold_memory_commits(state.fold, ((message.sequence, message.digest, message.commit),))
            state = replace(state, fold=fold)
        except ContextBusError:
            # commits in between are missing: whoever comes next looks first, and the answer is read from the log
            state = replace(state, loaded=False)
            return self._look(state, writing, message.sequence) if writing is not None and ours else (state, ())
        if writing is None or not ours:
            return state, ()
        command = writing.command
        return self._finish(state, command, self._reply_done(command, state.fold))

    def _look(self, state: State, writing: Writing, at_least: int) -> Step:
        fold = state.fold
        load = Load(fold.run, "working-memory", fold.sequence, writing.token, at_least)
        return replace(state, writing=replace(writing, phase="load")), (load,)

    def _conflicted(self, state: State, message: Conflicted) -> Step:
        writing = state.writing
        if writing is None or writing.token != message.token or writing.phase != "commit":
            return state, ()
        if writing.conflicts + 1 > CONFLICTS:
            error = ConflictError("others changed the working memory faster than this could be applied")
            state = replace(state, fold=MemoryState(state.fold.run), loaded=False)
            return self._finish(state, writing.command, refuse_request(writing.command, error))
        writing = replace(writing, conflicts=writing.conflicts + 1)
        return self._look(state, writing, state.fold.sequence + 1)

    def _unstored(self, state: State, message: Unstored) -> Step:
        writing = state.writing
        if writing is None or writing.token != message.token or writing.phase != "commit":
            return state, ()
        error = error_of(message.code, message.message)
        return self._finish(replace(state, loaded=False), writing.command, refuse_request(writing.command, error))

    def _elapsed(self, state: State, message: Elapsed) -> Step:
        error = DeadlineExceededError("the time for this command is over")
        writing = state.writing
        if writing is not None and deadline_token(writing.command.command) == message.token:
            # what becomes of its commit is not known: whoever comes next must look first
            return self._finish(replace(state, loaded=False), writing.command, refuse_request(writing.command, error))
        late = [r for r in list_waiting(state) if deadline_token(r.command) == message.token]
        if not late:
            return state, ()
        return drop_waiting(state, late[0].command), (refuse_request(late[0], error),)

    def _finish(self, state: State, command: Write, answer: Send) -> Step:
        """The write is over: take the next."""
        effects = _end(command, answer)
        state = replace(state, writing=None)
        if not state.writes:
            return state, effects
        if not state.loaded:
            # all of them wait for the log: the first may be gone when it comes
            waiting, state = state.writes, replace(state, writes=())
            for write in waiting:
                state, more = self._wait(state, write)
                effects += more
            return state, effects
        following, *rest = state.writes
        state, more = self._serve(replace(state, writes=tuple(rest)), following)
        return state, effects + more

    def _reply_done(self, command: Write, fold: MemoryState) -> Send:
        """The answer to a command that the log holds."""
        if isinstance(command, CreateWorkingMemory):
            return self._reply(command, fold, "created")
        found = find_memory_command(fold, command.command)
        ids, revision = ((), None) if found is None else (found.ids, found.revision)
        return self._reply(command, fold, "applied", ids=ids, revision=revision)

    def _reply(
        self,
        command: Write | ReadWorkingMemory,
        fold: MemoryState,
        status: Literal["applied", "duplicate", "rejected", "created", "read"],
        reason: Literal["forbidden", "not-found", "limit", "revision-conflict"] | None = None,
        ids: tuple[str, ...] = (),
        revision: int | None = None,
    ) -> Send:
        answer = WorkingMemoryState(
            run=command.run,
            command=command.command,
            sequence=fold.sequence,
            snapshot=fold.snapshot,
            status=status,
            reason=reason,
            ids=ids,
            revision=revision,
        )
        return Send(command.reply_to, answer, command.reply_as)


def _take_again(state: State, known: Write | ReadWorkingMemory, again: Write | ReadWorkingMemory) -> Step:
    """A command that is here already: a later attempt, or one to be answered elsewhere, takes its place."""
    if digest_request(known) != digest_request(again):
        error = CommandMismatchError(f"command id {again.command!r} is in use for another command; take a new id")
        return state, (refuse_request(again, error),)
    if again.attempt < known.attempt or (again.attempt, again.reply_to) == (known.attempt, known.reply_to):
        return state, ()
    writing = state.writing
    if writing is not None and writing.command is known and not isinstance(again, ReadWorkingMemory):
        return replace(state, writing=replace(writing, command=again)), ()
    state = replace(
        state,
        pending=tuple(again if p is known else p for p in state.pending),
        writes=tuple(again if w is known and not isinstance(again, ReadWorkingMemory) else w for w in state.writes),
    )
    return state, (Timer(again.run, deadline_token(again.command), again.seconds_left),)


def _cancel(state: State, message: CancelCommand) -> Step:
    """Drop a command whose turn has not come; one that is being written stays (D.W.5)."""
    found = [r for r in list_waiting(state) if r.command == message.command]
    if not found:
        return state, ()
    return drop_waiting(state, message.command), (Cancel(message.run, deadline_token(message.command)),)


def _end(request: Request, answer: Send) -> Effects:
    """Answer a request and forget its timer."""
    if isinstance(request, AskItems):
        return (answer,)
    return (answer, Cancel(request.run, deadline_token(request.command)))

"""The selection actor: takes a run's commands one after the other, gathers, decides, and has placement commit.

It owns the fold of each run.  It never writes: what is to be committed goes to placement with the sequence at which
it was decided, and the commit decides between instances (design: section 3, "One run, one order").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from contextbus.actors import append, beside, gather, queueing, recorded, settle, stepping, stored
from contextbus.actors.effects import Cancel, Effects, Fetch, Scatter, Send
from contextbus.actors.flight import (
    DEADLINE,
    Flight,
    RunCommand,
    SelectionState,
    StepCommand,
    answer_token,
    deadline_token,
    items_token,
)
from contextbus.actors.needs import late_callback
from contextbus.actors.stepping import StepAnswer
from contextbus.core.run import ChainBrokenError, fold_commits
from contextbus.core.run_state import CommandFact, RunState
from contextbus_protocol import subjects
from contextbus_protocol.commands import (
    AppendMessages,
    CancelCommand,
    ClearHistory,
    CompileStep,
    OverflowStep,
    Recorded,
    RedactPackages,
    ReportStep,
    RequestRefresh,
    ResetCompaction,
)
from contextbus_protocol.compaction import CompactionEnded
from contextbus_protocol.errors import (
    ConflictError,
    ContextBusError,
    DeadlineExceededError,
    error_of,
)
from contextbus_protocol.events import SummaryRedacted
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import ItemsOffered
from contextbus_protocol.subjects import ActorName

CONFLICTS: Final = 5

replace = msgspec.structs.replace
Step = tuple[SelectionState, Effects]


class Selection:
    """The rule.

    Args:
        tenant: whose runs these are.
        inbox: the address at which this instance takes answers.
        tokenizers: the named tokenizers that this process has at hand (design: section 2).
        durability: what an acknowledgement rests on; answers from the log name it as placement's do.
    """

    name: ActorName = "selection"

    def __init__(
        self,
        tenant: str,
        inbox: str,
        tokenizers: Mapping[str, Callable[[str], int]] | None = None,
        durability: str = "",
    ) -> None:
        self._tenant = tenant
        self._inbox = inbox
        self._instance = inbox.rsplit(".", 1)[-1]
        self._tokenizers = dict(tokenizers or {})
        self._at = stepping.Instance(tenant, inbox, subjects.command("placement", tenant), self._tokenizers)
        self._durability = durability

    def initial(self, run: str) -> SelectionState:
        """Nothing is known of the run yet."""
        return SelectionState(RunState(run))

    def is_idle(self, state: SelectionState) -> bool:
        """Whether no command is in flight or waiting."""
        return state.flight is None and state.held is None and not state.waiting

    def decide(self, state: SelectionState, message: AnyMessage) -> Step:
        """Take one message of a run."""
        match message:
            case (
                CompileStep()
                | OverflowStep()
                | ReportStep()
                | AppendMessages()
                | RequestRefresh()
                | RedactPackages()
                | ResetCompaction()
                | ClearHistory()
            ) as command:
                if beside.may_begin(state, command):
                    return self._begin(state, command, (queueing.timer_of(command),))
                return queueing.enqueue(state, command)
            case CompactionEnded():
                return self._compacted(state, message)
            case CancelCommand():
                return self._cancel(state, message)
            case Committed():
                return self._committed(state, message)
            case _:
                return self._answer(state, message)

    def _cancel(self, state: SelectionState, message: CancelCommand) -> Step:
        state, late = queueing.drop_waiting(state, message.command)
        held = state.held
        if held is not None and held.command.command == message.command:
            return self._let_go(state, held, ())
        flight = state.flight
        if flight is None or flight.command.command != message.command:
            return state, () if late is None else (Cancel(late.run, deadline_token(late)),)
        if flight.phase == "commit":
            return state, ()  # what is being committed stays (D.W.5)
        return self._end(state, ())

    def _begin(self, state: SelectionState, command: RunCommand, effects: Effects) -> Step:
        """Start a command whose timer runs."""
        token = f"{self._instance}/{command.command}/{command.attempt}/{state.serial}"
        loading = not state.loaded or command.seen > state.fold.sequence or command.attempt > 1
        flight = Flight(command, token, loading=loading)
        state = replace(state, flight=flight, serial=state.serial + 1)
        if loading:
            effects += (settle.load_of(state.fold, token, command.seen),)
        if isinstance(command, CompileStep | OverflowStep):
            effects += (self._ask_items(state, command, token),)
        if loading:
            return state, effects
        return self._proceed(state, flight, effects)

    def _ask_items(self, state: SelectionState, command: StepCommand, token: str) -> Send:
        ask = settle.ask_of(state.fold, command, token, self._tenant, self._inbox)
        return Send(subjects.command("working-memory", self._tenant), ask)

    # -- answers

    def _answer(self, state: SelectionState, message: AnyMessage) -> Step:
        if isinstance(message, Elapsed):
            return self._elapsed(state, message.token)
        flight = state.flight
        if flight is None:
            return state, ()
        if getattr(message, "token", None) != answer_token(flight, message):
            return state, ()  # late, repeated, or of an earlier attempt
        if stepping.is_awaited(message, flight):
            return self._resume(state, flight, message)
        match message:
            case Loaded():
                return self._loaded(state, flight, message)
            case ItemsOffered():
                return self._items(state, flight, message)
            case Conflicted() if flight.phase == "commit":
                return self._conflicted(state, flight)
            case Unstored(code=code, message=text) if flight.phase == "commit":
                state = replace(state, loaded=False)
                return self._fail(state, flight, error_of(code, text))
            case Fetched():
                return self._fetched(state, flight, message)
            case _:
                return state, ()

    def _loaded(self, state: SelectionState, flight: Flight, message: Loaded) -> Step:
        if not flight.loading:
            return state, ()
        if message.code is not None:
            return self._fail(state, flight, error_of(message.code, f"the run's log could not be read; {append.LOOK}"))
        try:
            fold = fold_commits(state.fold, message.commits)
        except ChainBrokenError as exc:
            # the log is another than this instance knew: whoever comes next reads all of it
            return self._fail(replace(state, fold=RunState(state.fold.run), loaded=False), flight, exc)
        if flight.conflicts > 1 and fold.sequence == message.after > 0:
            # others commit and the log ends here: it was erased and begun again
            return replace(state, fold=RunState(fold.run)), (settle.load_of(RunState(fold.run), flight.token, 0),)
        flight = gather.drop_charged(replace(flight, loading=False), message)
        events = tuple(event for _, _, commit in message.commits for event in commit.events)
        flight = stepping.note_forgets(flight, events)
        if flight.failing == "restore" and any(isinstance(event, SummaryRedacted) for event in events):
            flight = replace(flight, failing=None)  # what could not be read is forgotten, not damaged (C.L.8)
        state = replace(state, fold=fold, loaded=True, flight=flight)
        return self._proceed(state, flight, ())

    def _items(self, state: SelectionState, flight: Flight, message: ItemsOffered) -> Step:
        if flight.items is not None or not isinstance(flight.command, CompileStep | OverflowStep):
            return state, ()
        if message.code is not None and flight.phase == "stored":
            return state, ()  # a stored package needs no working memory
        if message.code is not None:
            error = error_of(message.code, "the working memory could not be read")
            return self._fail(state, flight, error)
        flight = replace(flight, items=message)
        return self._proceed(replace(state, flight=flight), flight, ())

    def _elapsed(self, state: SelectionState, token: str) -> Step:
        flight, held = state.flight, state.held
        if held is not None and token == deadline_token(held.command):
            late = recorded.refuse_command(held.command, DeadlineExceededError("the time for this command is over"))
            return self._let_go(state, held, (late,))
        if flight is not None and token == deadline_token(flight.command):
            # in the commit phase the outcome is not known: whoever comes next must look first
            state = replace(state, loaded=state.loaded and flight.phase != "commit")
            return self._fail(state, flight, DeadlineExceededError("the time for this command is over"))
        state, waiting = queueing.drop_waiting(state, token.removesuffix(DEADLINE))
        if waiting is not None:
            error = DeadlineExceededError("the time for this command was over before its turn came")
            return state, (recorded.refuse_command(waiting, error),)
        if flight is None:
            return beside.note_lateness(state, token), ()
        if token == gather.end_token(flight):
            flight = replace(flight, timed=False)
        if flight.phase == "callback" and token == gather.end_token(flight):
            return self._fail_step(state, stepping.note_lateness(flight), late_callback(flight))
        if flight.phase != "gather":
            return beside.note_lateness(replace(state, flight=flight), token), ()
        if token == gather.half_token(flight):
            flight, queries = gather.ask_missing(flight)
            return replace(state, flight=flight), (Scatter(queries),)
        if token == gather.end_token(flight):
            flight = stepping.end_gather(gather.time_out(flight))
            return self._proceed(replace(state, flight=flight), flight, gather.cancel_timers(flight))
        return state, ()

    # -- deciding

    def _proceed(self, state: SelectionState, flight: Flight, effects: Effects) -> Step:
        """Go on once the log, and for a step the working memory, are at hand."""
        if flight.loading or flight.phase != "open":
            return state, effects
        try:
            found = settle.look_up(state.fold, flight)
            if found is not None:
                return self._answer_stored(state, flight, found, effects)
            match flight.command:
                case CompileStep() | OverflowStep() as command:
                    if flight.items is None:
                        return state, effects
                    if flight.items.sequence < state.fold.memory_sequence > flight.items_asked:
                        # a step before was of a newer working memory: this instance's was behind
                        flight = replace(flight, items=None, items_asked=state.fold.memory_sequence)
                        ask = self._ask_items(state, command, items_token(flight))
                        return replace(state, flight=flight), (*effects, ask)
                    if isinstance(command, CompileStep):
                        settle.check_step(command)
                    flight, more = stepping.advance(state.fold, flight, self._at)
                    if flight.phase == "compact":
                        return self._take_next(beside.hold(state, flight), (*effects, *more))
                    return replace(state, flight=flight), (*effects, *more)
                case _:
                    return self._record(state, flight, effects)
        except ContextBusError as exc:
            return self._fail(state, flight, exc, effects)

    def _resume(self, state: SelectionState, flight: Flight, message: StepAnswer, effects: Effects = ()) -> Step:
        """Take an answer that the step waits for, and go on if that was all."""
        try:
            flight, more, complete = stepping.take_answer(flight, message)
        except ContextBusError as exc:
            return self._fail(state, flight, exc)
        state, effects = replace(state, flight=flight), (*effects, *more)
        return self._proceed(state, flight, effects) if complete else (state, effects)

    def _fail_step(self, state: SelectionState, flight: Flight, error: ContextBusError) -> Step:
        try:
            flight, effects = stepping.record_failure(state.fold, flight, self._at, error)
        except ContextBusError as exc:
            return self._fail(state, flight, exc)
        return replace(state, flight=flight), effects

    def _record(self, state: SelectionState, flight: Flight, effects: Effects) -> Step:
        """Have events committed that need no rendering."""
        outcome = recorded.plan_record(
            state.fold, flight, self._tenant, self._inbox, self._tokenizers, self._durability
        )
        if isinstance(outcome, Recorded):
            answer = Send(flight.command.reply_to, outcome, flight.command.reply_as)
            return self._end(state, (*effects, answer))
        flight, more = stepping.commit(flight, self._at, outcome)
        return replace(state, flight=flight), (*effects, *more)

    # -- beside a compaction

    def _let_go(self, state: SelectionState, held: Flight, effects: Effects) -> Step:
        state, more = beside.let_go(state, held, self._tenant)
        return (state, effects + more) if state.flight is not None else self._take_next(state, effects + more)

    def _compacted(self, state: SelectionState, message: CompactionEnded) -> Step:
        state, effects = beside.note_end(state, message)
        return self._take_next(state, effects) if state.flight is None else (state, effects)

    def _resume_held(self, state: SelectionState, held: Flight, effects: Effects) -> Step:
        state, load = beside.resume(state, held)
        if held.conflicts > CONFLICTS:
            error = ConflictError("others changed the run faster than its history could be compacted")
            return self._fail(replace(state, loaded=False), held, error, effects)
        return state, (*effects, load)

    # -- after the commit

    def _committed(self, state: SelectionState, message: Committed) -> Step:
        if message.part != "run":
            return state, ()
        try:
            record = (message.sequence, message.digest, message.commit)
            state = replace(state, fold=fold_commits(state.fold, (record,)))
        except ChainBrokenError:
            state = replace(state, loaded=False)  # commits in between are missing: look first
        if state.held is not None:  # it reads only what comes behind this commit
            state = replace(state, held=stepping.note_forgets(state.held, message.commit.events))
        flight = state.flight
        if flight is None or flight.token != message.token:
            return state, ()
        return self._end(state, ())

    def _conflicted(self, state: SelectionState, flight: Flight) -> Step:
        """Another commit came first: read it, then decide again with the offers at hand."""
        if flight.conflicts + 1 > CONFLICTS:
            error = ConflictError("others changed the run faster than this command could be decided")
            return self._fail(replace(state, loaded=False), flight, error)
        failing = None if flight.failing == "restore" else flight.failing  # the checkpoint may be another by now
        flight = replace(flight, phase="open", loading=True, conflicts=flight.conflicts + 1, failing=failing)
        load = settle.load_of(state.fold, flight.token, state.fold.sequence + 1)
        return replace(state, flight=flight), (load,)

    def _answer_stored(self, state: SelectionState, flight: Flight, found: CommandFact, effects: Effects) -> Step:
        command = flight.command
        if found.package is None:
            answer = stored.stored_record(command, found, self._durability)
            return self._end(state, (*effects, Send(command.reply_to, answer, command.reply_as)))
        flight = replace(flight, phase="stored", stored=found)
        fetch = Fetch(command.run, (found.package,), flight.token)
        return replace(state, flight=flight), (*effects, fetch)

    def _fetched(self, state: SelectionState, flight: Flight, message: Fetched) -> Step:
        found, command = flight.stored, flight.command
        if flight.phase != "stored" or found is None or found.package is None:
            return state, ()
        data = dict(message.blobs).get(found.package)
        if data is None and message.code is None and found.sequence != flight.gone:
            # retention or a forget took the package: what the log says now decides, and the step is compiled anew
            flight = replace(flight, phase="open", stored=None, gone=found.sequence, loading=True)
            load = settle.load_of(state.fold, flight.token, state.fold.sequence)
            return replace(state, flight=flight), (load,)
        if data is None:
            code = message.code or "not_found"
            return self._fail(state, flight, error_of(code, "the step's stored package is not at hand"))
        try:
            answer = stored.stored_step(state.fold, command, found, data, self._durability)
        except ContextBusError as exc:
            return self._fail(state, flight, exc)
        return self._end(state, (Send(command.reply_to, answer, command.reply_as),))

    def _fail(self, state: SelectionState, flight: Flight, error: ContextBusError, effects: Effects = ()) -> Step:
        return self._end(state, (*effects, recorded.refuse_command(flight.command, error)))

    def _end(self, state: SelectionState, effects: Effects) -> Step:
        """The command in flight is over: drop its timers, take the next."""
        flight = state.flight
        if flight is not None:
            effects += (Cancel(flight.command.run, deadline_token(flight.command)),)
            if flight.timed or flight.phase == "gather":
                effects += gather.cancel_timers(flight)
        over = None if flight is None else flight.command.command
        return self._take_next(replace(state, flight=None), effects, over)

    def _take_next(self, state: SelectionState, effects: Effects, over: str | None = None) -> Step:
        """Go on with the step that was put aside, or take the next command; ``over`` is the one that just ended."""
        held = state.held
        if held is not None and held.phase == "open":
            return self._resume_held(state, held, effects)
        state, command = beside.take_waiting(state)
        if command is None:
            return state, effects
        if command.command == over:
            effects += (queueing.timer_of(command),)
        return self._begin(state, command, effects)

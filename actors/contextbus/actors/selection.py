"""The selection actor: takes a run's commands one after the other, gathers, decides, and has placement commit.

It owns the fold of each run.  It never writes: what is to be committed goes to placement with the sequence at which
it was decided, and the commit decides between instances (design: section 3, "One run, one order").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from contextbus.actors import gather, recorded, settle
from contextbus.actors.effects import Cancel, Effects, Fetch, Load, Scatter, Send, Timer
from contextbus.actors.flight import (
    Flight,
    Prepared,
    RunCommand,
    SelectionState,
    digest_command,
)
from contextbus.core.run import ChainBrokenError, CommandFact, RunState, fold_commit
from contextbus_protocol import subjects
from contextbus_protocol.errors import (
    BusyError,
    ConflictError,
    ContextBudgetExceededError,
    ContextBusError,
    DeadlineExceededError,
    SourceFailedError,
    error_of,
)
from contextbus_protocol.events import StepFailed
from contextbus_protocol.messages import (
    AnyMessage,
    AppendMessages,
    AskItems,
    CancelCommand,
    Committed,
    CompileStep,
    Conflicted,
    Elapsed,
    ErrorReply,
    Failed,
    Fetched,
    ItemsOffered,
    Loaded,
    Offered,
    Recorded,
    ReportStep,
    RequestRefresh,
    Unstored,
)
from contextbus_protocol.subjects import ActorName

CONFLICTS: Final = 5
LONGEST_QUEUE: Final = 64
GATHER_SHARE: Final = 0.8
"""The part of the time left that sources get; the rest is for deciding and storing."""

replace = msgspec.structs.replace
Step = tuple[SelectionState, Effects]


class Selection:
    """The rule.

    Args:
        tenant: whose runs these are.
        inbox: the address at which this instance takes answers.
        tokenizers: the named tokenizers that this process has at hand (design: section 2).
    """

    name: ActorName = "selection"

    def __init__(self, tenant: str, inbox: str, tokenizers: Mapping[str, Callable[[str], int]] | None = None) -> None:
        self._tenant = tenant
        self._inbox = inbox
        self._working_memory = subjects.command("working-memory", tenant)
        self._placement = subjects.command("placement", tenant)
        self._tokenizers = dict(tokenizers or {})

    def initial(self, run: str) -> SelectionState:
        """Nothing is known of the run yet."""
        return SelectionState(RunState(run))

    def is_idle(self, state: SelectionState) -> bool:
        """Whether no command is in flight or waiting."""
        return state.flight is None and not state.waiting

    def decide(self, state: SelectionState, message: AnyMessage) -> Step:
        """Take one message of a run."""
        match message:
            case CompileStep() | ReportStep() | AppendMessages() | RequestRefresh():
                return self._take(state, message)
            case CancelCommand():
                return self._cancel(state, message)
            case Committed():
                return self._committed(state, message)
            case _:
                return self._answer(state, message)

    # -- commands

    def _take(self, state: SelectionState, command: RunCommand) -> Step:
        flight = state.flight
        if flight is None:
            return self._begin(state, command)
        if flight.command.command == command.command:
            if command.attempt > flight.command.attempt and _same(flight.command, command):
                state = replace(state, flight=replace(flight, command=command))
            return state, ()
        waiting = tuple(c for c in state.waiting if c.command != command.command)
        if len(waiting) >= LONGEST_QUEUE:
            error = BusyError(f"{LONGEST_QUEUE} commands wait for this run; ask again later")
            return state, (_refuse(command, error),)
        return replace(state, waiting=(*waiting, command)), ()

    def _cancel(self, state: SelectionState, message: CancelCommand) -> Step:
        waiting = tuple(c for c in state.waiting if c.command != message.command)
        state = replace(state, waiting=waiting)
        flight = state.flight
        if flight is None or flight.command.command != message.command or flight.phase == "commit":
            return state, ()  # what is being committed stays (D.W.5)
        return self._end(state, ())

    def _begin(self, state: SelectionState, command: RunCommand) -> Step:
        token = f"{command.command}/{command.attempt}/{state.serial}"
        loading = not state.loaded or command.seen > state.fold.sequence or command.attempt > 1
        flight = Flight(command, token, loading=loading)
        state = replace(state, flight=flight, serial=state.serial + 1)
        effects: Effects = (Timer(command.run, token, command.seconds_left),)
        if loading:
            effects += (self._load(state.fold, token, command.seen),)
        if isinstance(command, CompileStep):
            ask = AskItems(
                run=command.run,
                tenant=self._tenant,
                token=token,
                reply_to=self._inbox,
                seen=command.seen_memory,
                load=command.attempt > 1,
            )
            effects += (Send(self._working_memory, ask),)
        if loading:
            return state, effects
        return self._proceed(state, flight, effects)

    def _load(self, fold: RunState, token: str, at_least: int) -> Load:
        return Load(fold.run, "run", fold.sequence, token, at_least)

    # -- answers

    def _answer(self, state: SelectionState, message: AnyMessage) -> Step:
        flight = state.flight
        if flight is None or getattr(message, "token", None) is None:
            return state, ()
        if isinstance(message, Elapsed):
            return self._elapsed(state, flight, message.token)
        if getattr(message, "token", None) != flight.token:
            return state, ()  # late, repeated, or of an earlier attempt
        match message:
            case Loaded():
                return self._loaded(state, flight, message)
            case ItemsOffered():
                return self._items(state, flight, message)
            case Offered() | Failed():
                return self._result(state, flight, message)
            case Conflicted():
                return self._conflicted(state, flight)
            case Unstored(code=code, message=text):
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
            return self._fail(state, flight, error_of(message.code, "the run's log could not be read"))
        try:
            fold = _fold_all(state.fold, message)
        except ChainBrokenError as exc:
            return self._fail(replace(state, loaded=False), flight, exc)
        flight = replace(flight, loading=False)
        state = replace(state, fold=fold, loaded=True, flight=flight)
        return self._proceed(state, flight, ())

    def _items(self, state: SelectionState, flight: Flight, message: ItemsOffered) -> Step:
        if flight.items is not None or not isinstance(flight.command, CompileStep):
            return state, ()
        if message.code is not None:
            error = error_of(message.code, "the working memory could not be read")
            return self._fail(state, flight, error)
        flight = replace(flight, items=message)
        return self._proceed(replace(state, flight=flight), flight, ())

    def _elapsed(self, state: SelectionState, flight: Flight, token: str) -> Step:
        if token == flight.token:
            # in the commit phase the outcome is not known: whoever comes next must look first
            state = replace(state, loaded=state.loaded and flight.phase != "commit")
            return self._fail(state, flight, DeadlineExceededError("the time for this command is over"))
        if flight.phase != "gather" or not isinstance(flight.command, CompileStep):
            return state, ()
        if token == gather.half_token(flight):
            queries = gather.missing_queries(flight, self._tenant, self._inbox)
            return state, (Scatter(queries),) if queries else ()
        if token == gather.end_token(flight):
            return self._place(state, gather.time_out(flight), ())
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
                case CompileStep():
                    if flight.items is None:
                        return state, effects
                    return self._prepare(state, flight, flight.command, effects)
                case ReportStep() | AppendMessages() | RequestRefresh():
                    return self._record(state, flight, effects)
        except ContextBusError as exc:
            return self._fail(state, flight, exc, effects)

    def _prepare(self, state: SelectionState, flight: Flight, command: CompileStep, effects: Effects) -> Step:
        """Settle the step at the present fold; then gather, or go on with the offers at hand."""
        gather.check_sources(command.options)
        flight = settle.settle_step(state.fold, flight, command, self._tokenizers)
        prepared = flight.prepared
        assert prepared is not None
        if prepared.plan.refresh.retrieve and not flight.gathered:
            return self._gather(state, flight, command, prepared, effects)
        return self._place(state, flight, effects)

    def _gather(
        self,
        state: SelectionState,
        flight: Flight,
        command: CompileStep,
        prepared: Prepared,
        effects: Effects,
    ) -> Step:
        flight = replace(flight, phase="gather")
        estimator = recorded.estimator_of(state.fold, command.options.estimator, self._tokenizers)
        queries = gather.first_queries(flight, command, prepared, self._tenant, self._inbox, estimator)
        share = command.seconds_left * GATHER_SHARE
        effects += (
            Scatter(queries),
            Timer(command.run, gather.half_token(flight), share / 2),
            Timer(command.run, gather.end_token(flight), share),
        )
        return replace(state, flight=flight), effects

    def _result(self, state: SelectionState, flight: Flight, message: Offered | Failed) -> Step:
        if flight.phase != "gather":
            return state, ()
        if isinstance(message, Failed) and gather.may_ask_again(flight, message):
            queries = gather.queries_again(flight, message.source, self._tenant, self._inbox)
            flight = replace(flight, asked_again=(*flight.asked_again, message.source))
            return replace(state, flight=flight), (Scatter(queries),)
        flight = gather.add_result(flight, message)
        if not gather.is_complete(flight):
            return replace(state, flight=flight), ()
        return self._place(state, flight, ())

    def _place(self, state: SelectionState, flight: Flight, effects: Effects) -> Step:
        """Decide with the offers at hand and hand the step to placement."""
        command = flight.command
        assert isinstance(command, CompileStep)
        asked = flight.phase == "gather" or flight.gathered
        flight = replace(flight, phase="open", gathered=asked)
        run = command.run
        if asked:
            effects += (
                Cancel(run, gather.half_token(flight)),
                Cancel(run, gather.end_token(flight)),
            )
        try:
            found = settle.look_up(state.fold, flight)
            if found is not None:
                return self._answer_stored(state, flight, found, effects)
            flight = settle.settle_step(state.fold, flight, command, self._tokenizers)
            prepared = flight.prepared
            assert prepared is not None
            results = gather.in_order(flight, command.options) if asked else ()
            gather.check_required(results)
            place = settle.place_of(state.fold, flight, results, self._tenant, self._inbox, self._tokenizers)
        except (ContextBudgetExceededError, SourceFailedError) as exc:
            return self._record_failure(state, flight, exc, effects)
        except ContextBusError as exc:
            return self._fail(state, flight, exc, effects)
        flight = replace(flight, phase="commit")
        send = Send(self._placement, place)
        return replace(state, flight=flight), (*effects, send)

    def _record(self, state: SelectionState, flight: Flight, effects: Effects) -> Step:
        """Have events committed that need no rendering."""
        outcome = recorded.plan_record(state.fold, flight, self._tenant, self._inbox, self._tokenizers)
        if isinstance(outcome, Recorded):
            answer = Send(flight.command.reply_to, outcome, flight.command.reply_as)
            return self._end(state, (*effects, answer))
        send = Send(self._placement, outcome)
        return replace(state, flight=replace(flight, phase="commit")), (*effects, send)

    def _record_failure(self, state: SelectionState, flight: Flight, error: ContextBusError, effects: Effects) -> Step:
        """A failed step is a commit: it consumes nothing and leaves its command open."""
        prepared = flight.prepared
        assert prepared is not None
        data = error.data
        failed = StepFailed(
            step=prepared.plan.step,
            code=error.code,
            required_tokens=data.required_tokens,
            available_tokens=data.available_tokens,
            origin=data.origin,
            origin_code=data.origin_code,
            origin_type=data.origin_type,
            sources=gather.facts_of(flight.results),
        )
        record = recorded.record_of(state.fold, flight, self._tenant, self._inbox, failed=failed, error=error)
        send = Send(self._placement, record)
        return replace(state, flight=replace(flight, phase="commit")), (*effects, send)

    # -- after the commit

    def _committed(self, state: SelectionState, message: Committed) -> Step:
        state = _fold_one(state, message)
        flight = state.flight
        if flight is None or flight.token != message.token:
            return state, ()
        return self._end(state, ())

    def _conflicted(self, state: SelectionState, flight: Flight) -> Step:
        """Another commit came first: read it, then decide again with the offers at hand."""
        if flight.conflicts + 1 > CONFLICTS:
            error = ConflictError("others changed the run faster than this command could be decided")
            return self._fail(replace(state, loaded=False), flight, error)
        flight = replace(flight, phase="open", loading=True, conflicts=flight.conflicts + 1)
        load = self._load(state.fold, flight.token, state.fold.sequence + 1)
        return replace(state, flight=flight), (load,)

    def _answer_stored(self, state: SelectionState, flight: Flight, found: CommandFact, effects: Effects) -> Step:
        command = flight.command
        if found.package is None:
            answer = settle.stored_record(command, found)
            return self._end(state, (*effects, Send(command.reply_to, answer, command.reply_as)))
        flight = replace(flight, phase="stored", stored=found)
        fetch = Fetch(command.run, (found.package,), flight.token)
        return replace(state, flight=flight), (*effects, fetch)

    def _fetched(self, state: SelectionState, flight: Flight, message: Fetched) -> Step:
        found, command = flight.stored, flight.command
        if flight.phase != "stored" or found is None or found.package is None:
            return state, ()
        data = dict(message.blobs).get(found.package)
        if data is None:
            code = message.code or "not_found"
            return self._fail(state, flight, error_of(code, "the step's stored package is not at hand"))
        try:
            answer = settle.stored_step(command, found, data)
        except ContextBusError as exc:
            return self._fail(state, flight, exc)
        return self._end(state, (Send(command.reply_to, answer, command.reply_as),))

    def _fail(self, state: SelectionState, flight: Flight, error: ContextBusError, effects: Effects = ()) -> Step:
        return self._end(state, (*effects, _refuse(flight.command, error)))

    def _end(self, state: SelectionState, effects: Effects) -> Step:
        """The command in flight is over: drop its timers, take the next."""
        flight = state.flight
        if flight is not None:
            run = flight.command.run
            effects += (Cancel(run, flight.token),)
            if flight.phase == "gather":
                effects += (
                    Cancel(run, gather.half_token(flight)),
                    Cancel(run, gather.end_token(flight)),
                )
        state = replace(state, flight=None)
        if not state.waiting:
            return state, effects
        command, *rest = state.waiting
        state, more = self._begin(replace(state, waiting=tuple(rest)), command)
        return state, effects + more


def _same(one: RunCommand, other: RunCommand) -> bool:
    return digest_command(one) == digest_command(other)


def _refuse(command: RunCommand, error: ContextBusError) -> Send:
    reply = ErrorReply(
        run=command.run,
        command=command.command,
        code=error.code,
        message=error.message,
        data=error.data,
    )
    return Send(command.reply_to, reply, command.reply_as)


def _fold_all(fold: RunState, loaded: Loaded) -> RunState:
    for sequence, digest, commit in loaded.commits:
        if sequence > fold.sequence:
            fold = fold_commit(fold, sequence, digest, commit)
    return fold


def _fold_one(state: SelectionState, message: Committed) -> SelectionState:
    if message.part != "run" or message.sequence <= state.fold.sequence:
        return state
    try:
        fold = fold_commit(state.fold, message.sequence, message.digest, message.commit)
    except ChainBrokenError:
        return replace(state, loaded=False)  # commits in between are missing: look first
    return replace(state, fold=fold)

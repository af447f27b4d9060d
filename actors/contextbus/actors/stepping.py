"""How a step gets on: it sees to one need after the other until it can be decided (D.R.2).

Pure functions of fold and flight; selection keeps the state and the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeGuard

import msgspec

from contextbus.actors import append, decided, evaluating, gather, recorded
from contextbus.actors.effects import Effects, Fetch, Load, Scatter, Send, Timer
from contextbus.actors.evaluating import AskHost, Evaluated, ReadCheckpoint
from contextbus.actors.flight import Flight, RunCommand
from contextbus.actors.needs import AskSources, Decide, ReadErasures, ReadOffers, next_need, note_offers, request_of
from contextbus.actors.recorded import Tokenizers
from contextbus.actors.settle import settle_step
from contextbus.core.prepared import check_answer
from contextbus.core.projection import history_state
from contextbus.core.run_state import RunState
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.errors import (
    ContextBudgetExceededError,
    ContextBusError,
    HookFailedError,
    RequestOverheadError,
    SourceFailedError,
    SummariserFailedError,
    error_of,
)
from contextbus_protocol.events import AnyEvent, PackageRedacted, SummaryRedacted, UnknownEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Fetched, Loaded
from contextbus_protocol.questions import Failed, Offered

ANSWER_SHARE: Final = 0.8
"""The part of the time left that sources and the host's functions get; the rest is for deciding and storing."""

RECORDED: Final = (
    ContextBudgetExceededError,
    HookFailedError,
    SourceFailedError,
    SummariserFailedError,
    RequestOverheadError,
)
"""What a step can fail with that its log tells (D.G.27)."""

StepAnswer = Offered | Failed | CallbackAnswered | Fetched | Loaded

replace = msgspec.structs.replace


class Instance(msgspec.Struct, frozen=True):
    """The instance of selection that a step is at: whose runs, where answers go, where placement takes requests."""

    tenant: str
    inbox: str
    placement: str
    tokenizers: Tokenizers


def advance(fold: RunState, flight: Flight, at: Instance) -> tuple[Flight, Effects]:
    """See to what the step lacks; once it lacks nothing, have it placed.

    Raises:
        ContextBusError: the step cannot be compiled, and nothing of it is to be recorded.
    """
    run = flight.command.run
    try:
        flight, need = next_need(fold, flight, at.tokenizers)
        match need:
            case Decide():
                return _place(fold, flight, at)
            case AskHost():
                return _ask_host(flight, need, at)
            case ReadCheckpoint(blob):
                return replace(flight, phase="restore", reading=(blob,)), (Fetch(run, (blob,), flight.token),)
            case Evaluated():
                return _compact(fold, flight, need, at)
            case ReadOffers(packages):
                return replace(flight, phase="fetch", reading=packages), (Fetch(run, packages, flight.token),)
            case AskSources(demands):
                return _ask_sources(fold, flight, demands, at)
            case ReadErasures(after):
                return replace(flight, phase="erasures"), (Load(run, "erasures", after, flight.token),)
    except ContextBusError as exc:
        if flight.failing is None and not isinstance(exc, RECORDED):
            raise
        return record_failure(fold, flight, at, exc)


def _compact(fold: RunState, flight: Flight, need: Evaluated, at: Instance) -> tuple[Flight, Effects]:
    """Have the history compacted; the flight waits for what comes of it."""
    ended = evaluating.paused_again(fold, flight, need)
    if ended is not None:
        return advance(fold, replace(flight, compacted=ended), at)
    ask = evaluating.compact_of(fold, flight, need, at.tenant, at.inbox, at.tokenizers)
    return replace(flight, phase="compact"), (ask,)


def _ask_host(flight: Flight, need: AskHost, at: Instance) -> tuple[Flight, Effects]:
    """Ask a function of the host, at the step's reply address, with one timer for all that is asked (D.W.4)."""
    command, prepared = flight.command, flight.prepared
    assert prepared is not None
    seconds = _answer_seconds(command)
    index = None if need.trigger is None else need.trigger.index
    number = "" if index is None else index  # asked again at a later state of the log it is another question
    token = f"{flight.token}#{flight.rounds or ''}{need.name}{number}@{prepared.sequence}"
    ask = AskCallback(
        run=command.run,
        command=command.command,
        token=token,
        reply_to=at.inbox,
        name=need.name,
        step=prepared.plan.step,
        seconds_left=seconds,
        query=need.query,
        trigger=need.trigger,
        composition=need.composition,
        budget=need.budget,
        history=history_state(prepared.after),
    )
    asked = Send(command.reply_to, ask, command.reply_as)
    effects: Effects = (asked,) if flight.timed else (asked, Timer(command.run, gather.end_token(flight), seconds))
    flight = replace(flight, phase="callback", timed=True, question=token, asked=need.name, trigger=index)
    if need.name == "transform-context":
        flight = replace(flight, transformed_for=request_of(prepared.after))
    return flight, effects


def _answer_seconds(command: RunCommand) -> float:
    """The time that sources and the host's functions get, in seconds: what is for a summariser alone is not theirs."""
    own = command.summary_seconds if isinstance(command, CompileStep | OverflowStep) else 0.0
    return (command.seconds_left - own) * ANSWER_SHARE


def _ask_sources(
    fold: RunState, flight: Flight, demands: tuple[tuple[str, str], ...], at: Instance
) -> tuple[Flight, Effects]:
    command, prepared = flight.command, flight.prepared
    assert prepared is not None
    estimator = recorded.estimator_of(fold, prepared.options.estimator, at.tokenizers)
    flight = replace(forget_answers(flight), gathers=flight.gathers + 1, offers=flight.offers)
    queries = gather.first_queries(flight, prepared, demands, at.tenant, at.inbox, estimator)
    share = _answer_seconds(command)
    half = Timer(command.run, gather.half_token(flight), share / 2)
    effects: Effects = (Scatter(queries), half)
    if not flight.timed:  # else it runs since the host was asked
        effects += (Timer(command.run, gather.end_token(flight), share),)
    return replace(flight, phase="gather", queries=queries, timed=True), effects


def is_awaited(message: AnyMessage, flight: Flight) -> TypeGuard[StepAnswer]:
    """Whether a message is an answer that the step waits for in its phase."""
    match message:
        case Offered() | Failed():
            return flight.phase == "gather"
        case CallbackAnswered():
            return flight.phase == "callback"
        case Fetched():
            return flight.phase in ("fetch", "restore")
        case Loaded(part="erasures"):
            return flight.phase == "erasures"
        case _:
            return False


def take_answer(flight: Flight, message: AnyMessage) -> tuple[Flight, Effects, bool]:
    """The flight with an answer, what it makes necessary, and whether the step may go on.

    Raises:
        ContextBusError: log or store could not be read.
    """
    match message:
        case Offered() | Failed():
            return _take_result(flight, message)
        case CallbackAnswered(name=name) if name != flight.asked:
            return flight, (), False
        case CallbackAnswered(name="compaction-trigger" | "count-tokens"):
            return note_evaluation(flight, check_answer(message)), (), True
        case CallbackAnswered(name="budget-exceeded"):
            return evaluating.note_given(flight, check_answer(message)), (), True
        case CallbackAnswered(name="prepare-step"):
            return replace(flight, phase="open", hook=check_answer(message), prepared=None), (), True
        case CallbackAnswered(name="before-compile"):
            return replace(flight, phase="open", implicit=check_answer(message), prepared=None), (), True
        case CallbackAnswered(name="transform-context"):
            return replace(flight, phase="open", transformed=check_answer(message), prepared=None), (), True
        case CallbackAnswered():
            return replace(flight, phase="open", rewrite=check_answer(message), prepared=None), (), True
        case Fetched(code=None, blobs=found) if flight.phase == "restore":
            blob = flight.reading[0]
            return evaluating.note_checkpoint(flight, blob, dict(found).get(blob)), (), True
        case Fetched(code=None, blobs=found):
            return replace(note_offers(flight, flight.reading, dict(found)), phase="open"), (), True
        case Loaded(code=None):
            return replace(gather.drop_erased(flight, message), phase="open"), (), True
        case Fetched(code=code) | Loaded(code=code) if code is not None:
            raise error_of(code, f"what the step needs of the log could not be read; {append.LOOK}")
        case _:
            return flight, (), False


def _take_result(flight: Flight, message: Offered | Failed) -> tuple[Flight, Effects, bool]:
    refusal = gather.take_refusal(flight, message) if isinstance(message, Failed) else None
    if refusal is not None:
        flight, queries = refusal
        return flight, (Scatter(queries),) if queries else (), False
    flight = gather.add_result(flight, message)
    if not gather.is_complete(flight):
        return flight, (), False
    return end_gather(flight), gather.cancel_timers(flight), True


def note_evaluation(flight: Flight, answer: CallbackAnswered) -> Flight:
    """The flight with what a trigger of the host's own said, or what the host counted (C.H.8, C.M.11)."""
    flight = replace(flight, phase="open", evaluation=answer)
    if answer.code is not None:
        return replace(flight, failing="evaluate")
    if answer.name == "count-tokens":
        return replace(flight, host_tokens=answer.count)
    assert flight.trigger is not None
    return replace(flight, matched=(*flight.matched, (flight.trigger, bool(answer.matches))))


def note_lateness(flight: Flight) -> Flight:
    """The flight whose host did not answer in time: of an evaluation the log says so (C.K.4)."""
    late = flight.asked in ("compaction-trigger", "count-tokens", "budget-exceeded")
    return replace(flight, failing="evaluate") if late else flight


def end_gather(flight: Flight) -> Flight:
    """The flight once its sources have answered or their time is over."""
    asked = any(not query.only_records for query in flight.queries)
    return replace(flight, phase="open", timed=False, gathered="all" if asked else "records")


def forget_answers(flight: Flight) -> Flight:
    """The flight as before anything was asked or read: what it holds may hold what was forgotten."""
    return replace(
        flight,
        offers=(),
        results=(),
        queries=(),
        gathered="nothing",
        usage=gather.usage_of(flight),
        erasures=None,
        asked_again=(),
        asked_half=(),
        refused=(),
    )


def note_forgets(flight: Flight, events: Iterable[AnyEvent | UnknownEvent]) -> Flight:
    """The flight once others' events are known: after a forget, sources and the host's functions are asked again.

    What a function gave may hold a text of ours that it saw or that the client put among it (D.J.4).
    """
    events = tuple(events)
    if any(isinstance(event, PackageRedacted) for event in events):
        flight = forget_answers(flight)
    elif not any(isinstance(event, SummaryRedacted) for event in events):
        return flight
    return replace(
        flight, hook=None, implicit=None, transformed=None, transformed_for=None, rewrite=None, prepared=None
    )


def _place(fold: RunState, flight: Flight, at: Instance) -> tuple[Flight, Effects]:
    """Decide with the offers at hand and hand the step to placement."""
    results = decided.results_of(flight)
    gather.check_required(results)
    return commit(flight, at, decided.place_of(fold, flight, results, at.tenant, at.inbox, at.tokenizers))


def record_failure(fold: RunState, flight: Flight, at: Instance, error: ContextBusError) -> tuple[Flight, Effects]:
    """Record that a step failed; it consumes nothing (D.G.27).

    Raises:
        ContextBusError: the step cannot even be settled.
    """
    flight = settle_step(fold, flight, at.tokenizers)
    results = decided.results_of(flight)
    record = recorded.failure_of(fold, flight, results, error, at.tenant, at.inbox)
    if flight.failing is not None:  # the evaluation failed before anything was begun (C.K.4, C.O.6)
        record = replace(record, events=(evaluating.failed_evaluation(fold, flight, flight.failing),))
    return commit(flight, at, record)


def commit(flight: Flight, at: Instance, request: Place | Record) -> tuple[Flight, Effects]:
    """Have placement commit."""
    return replace(flight, phase="commit"), (Send(at.placement, request),)

"""The first part of a step: restore a checkpoint, estimate the request, evaluate triggers, compact (C.K.1, D.R.2).

Pure functions of fold and flight; what the host is asked for, and the compaction itself, come back into the flight.
"""

from __future__ import annotations

import msgspec

from contextbus.actors.compacting import LOST_CHECKPOINT, Failure
from contextbus.actors.compaction_records import error_of_failure
from contextbus.actors.effects import Send
from contextbus.actors.flight import Flight
from contextbus.actors.recorded import Tokenizers, estimator_of, head_of
from contextbus.actors.settle import snapshot_of
from contextbus.core.bound_models import binds_thinking
from contextbus.core.compaction.evaluation import (
    AskTrigger,
    Matched,
    RequestEstimate,
    describe_excess,
    estimate_request,
    evaluation_id,
    find_match,
    is_paused,
    policy_of,
    target_tokens,
    tokens_before,
)
from contextbus.core.estimate import Estimator
from contextbus.core.projection import applied
from contextbus.core.prompt import place_prompt
from contextbus.core.run_state import RunState
from contextbus_protocol import digests, subjects
from contextbus_protocol.callbacks import BudgetInfo, CallbackAnswered, CallbackName, Composition, TriggerSnapshot
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.compaction import Compact, CompactionEnded
from contextbus_protocol.errors import ContextBudgetExceededError, ErrorData, NotFoundError, error_of
from contextbus_protocol.events import (
    CompactionFailed,
    CompactionPhase,
    CompactionRestored,
    CompactionStarted,
    PromptFact,
)
from contextbus_protocol.values import CompactionOptions, StepOptions

replace = msgspec.structs.replace


class AskHost(msgspec.Struct, frozen=True):
    """Ask a function of the host (D.W.4)."""

    name: CallbackName
    query: str = ""
    trigger: TriggerSnapshot | None = None
    composition: Composition | None = None
    budget: BudgetInfo | None = None


class ReadCheckpoint(msgspec.Struct, frozen=True):
    """Read what stands in place of the history's beginning: a turn begins with it (C.L.3, C.L.8)."""

    blob: str


class Evaluated(msgspec.Struct, frozen=True):
    """A trigger matched, an overflow or a forget asks: the history is to be compacted, or replaced by the host's."""

    started: CompactionStarted
    paused: bool = False
    host_messages: tuple[ChatMessage, ...] | None = None


EvaluationNeed = AskHost | ReadCheckpoint | Evaluated


def options_of(fold: RunState, flight: Flight) -> StepOptions | None:
    """The options that a step's history is compacted by: as its command has them, before the host's hook (D.R.2)."""
    match flight.command:
        case CompileStep(options=options):
            return options
        case OverflowStep():
            return None if fold.last is None else fold.last.options
        case _:
            return None


def next_evaluation(fold: RunState, flight: Flight, tokenizers: Tokenizers) -> EvaluationNeed | None:
    """What the step needs before it is compiled on a history of the right size; None where nothing is left to do.

    Raises:
        ContextBusError: the step cannot be evaluated.
    """
    prepared, options = flight.prepared, options_of(fold, flight)
    if prepared is None or options is None:
        return None
    after, checkpoint = prepared.after, applied(prepared.after)
    if checkpoint is not None and after.turn_begins and flight.checkpoint != checkpoint.replaced_by:
        return ReadCheckpoint(checkpoint.replaced_by)
    compaction = options.compaction
    if compaction is None or (flight.compacted is not None and not _is_undone(flight, after)):
        return None
    if compaction.counts and flight.host_tokens is None:
        return AskHost("count-tokens", composition=Composition())
    estimator = estimator_of(fold, options.estimator, tokenizers)
    estimate = estimate_request(
        after,
        options,
        now=flight.command.now,
        working_memory=snapshot_of(flight),
        estimator=estimator,
        host_tokens=flight.host_tokens,
        prompt=_prompt_fact(fold, flight, options, estimator),
    )
    if isinstance(flight.command, OverflowStep):
        return _evaluated(fold, flight, options, compaction, estimate, None)
    if after.compaction_due:
        return _evaluated(fold, flight, options, compaction, estimate, None)
    match find_match(options, estimate, dict(flight.matched)):
        case AskTrigger(index=index):
            snapshot = TriggerSnapshot(
                index=index,
                tokens=estimate.tokens,
                message_count=estimate.message_count,
                cache_age_ms=estimate.cache_age_ms,
                cache_retention_ms=estimate.cache_retention_ms,
            )
            return AskHost("compaction-trigger", trigger=snapshot)
        case Matched(index=index) if asks_host(flight):
            return AskHost("budget-exceeded", budget=describe_excess(options, estimate, index))
        case Matched(index=index):
            return _evaluated(fold, flight, options, compaction, estimate, index)
        case _:
            return None


def _prompt_fact(fold: RunState, flight: Flight, options: StepOptions, estimator: Estimator) -> PromptFact | None:
    """What the prompt adds to the request, before the host's hooks: compaction comes first (P.D.4)."""
    if not isinstance(flight.command, CompileStep):
        return None if fold.last is None else fold.last.prompt
    placed = place_prompt(flight.command.prompt, None, options, estimator)
    return None if placed is None else placed.fact


def asks_host(flight: Flight) -> bool:
    """Whether the host is asked for a smaller history first: once a step, or again for another history (P.J.4)."""
    command, prepared = flight.command, flight.prepared
    if flight.rounds or prepared is None or not isinstance(command, CompileStep):
        return False
    answered = flight.given is not None and flight.given_for == prepared.after.history.chain
    return "budget-exceeded" in command.callbacks and not answered


def note_given(flight: Flight, answer: CallbackAnswered) -> Flight:
    """The flight with what the host gave of its too large history; an empty answer goes on as before (P.J.4)."""
    assert flight.prepared is not None
    flight = replace(flight, phase="open", given=answer, given_for=flight.prepared.after.history.chain)
    if answer.code is not None:
        return replace(flight, evaluation=answer, failing="evaluate")
    return flight


def note_compacted(flight: Flight, ended: CompactionEnded) -> Flight:
    """The flight whose compaction is over, its questions' time run from now on.

    One that was interrupted is evaluated again (C.K.9); the host's own history is counted again, with all triggers
    (P.J.8).
    """
    flight = replace(flight, phase="open", loading=True, prepared=None, timed=False)
    if ended.status == "interrupted":
        return replace(forget_evaluation(flight), conflicts=flight.conflicts + 1)
    if ended.status == "completed" and _given_messages(flight) is not None:
        return replace(forget_evaluation(flight), rounds=1)
    return replace(flight, compacted=ended)


def _given_messages(flight: Flight) -> tuple[ChatMessage, ...] | None:
    return None if flight.given is None or flight.given.code is not None else flight.given.messages


def _is_undone(flight: Flight, after: RunState) -> bool:
    """Whether a forget took the summary again that was made for this step (C.X.11)."""
    return flight.compacted is not None and flight.compacted.status == "completed" and after.compaction_due


def _evaluated(
    fold: RunState,
    flight: Flight,
    options: StepOptions,
    compaction: CompactionOptions,
    estimate: RequestEstimate,
    index: int | None,
) -> Evaluated:
    assert flight.prepared is not None
    command, items = flight.command, flight.items
    due = index is None and not isinstance(command, OverflowStep)
    started = CompactionStarted(
        evaluation=id_of(fold, flight),
        step=flight.prepared.plan.step,
        cause="redacted" if due else "trigger" if index is not None else "overflow",
        trigger_index=index,
        matched=flight.matched,
        tokens_before=tokens_before(compaction, estimate, index),
        envelope_tokens=estimate.envelope,
        target_tokens=target_tokens(compaction, options.model.context_window),
        message_count=estimate.message_count,
        host_tokens=flight.host_tokens,
        token_scope="request",
        model=options.model,
        options=compaction,
        policy=policy_of(compaction, index),
        binds_thinking=binds_thinking(options.model, options.bound_models),
        memory_sequence=0 if items is None or items.snapshot is None else items.sequence,
        prompt_tail_tokens=estimate.prompt_tail,
    )
    given = None if index is None else _given_messages(flight)
    return Evaluated(started, given is None and is_paused(flight.prepared.after), given)


def id_of(fold: RunState, flight: Flight) -> str:
    """The id of the evaluation that a step comes to at one state of the log."""
    return evaluation_id(fold.run, flight.command.command, fold.sequence)


def restored_event(fold: RunState, flight: Flight) -> CompactionRestored | None:
    """What the log says of a turn that begins with a checkpoint in place (C.L.3, C.L.5)."""
    prepared = flight.prepared
    if prepared is None or isinstance(flight.command, OverflowStep):
        return None
    checkpoint = applied(prepared.after)
    if checkpoint is None or not prepared.after.turn_begins:
        return None
    return CompactionRestored(
        evaluation=id_of(fold, flight),
        source_messages=checkpoint.source_count,
        replacement_messages=len(checkpoint.replacement),
    )


def compact_of(
    fold: RunState, flight: Flight, evaluated: Evaluated, tenant: str, inbox: str, tokenizers: Tokenizers
) -> Send:
    """Ask the compaction actor."""
    command, prepared = flight.command, flight.prepared
    options = options_of(fold, flight)
    assert isinstance(command, CompileStep | OverflowStep)
    assert prepared is not None
    assert options is not None
    message = Compact(
        run=command.run,
        head=head_of(fold, flight, tenant, inbox),
        history=prepared.history,
        started=evaluated.started,
        restored=restored_event(fold, flight),
        estimator=estimator_of(fold, options.estimator, tokenizers).spec,
        instructions=command.instructions,
        callbacks=command.callbacks,
        working_memory=snapshot_of(flight),
        paused=evaluated.paused,
        host_messages=evaluated.host_messages,
    )
    return Send(subjects.command("compaction", tenant), message)


def paused_again(fold: RunState, flight: Flight, evaluated: Evaluated) -> CompactionEnded | None:
    """What a pause comes to that the log tells of already; None where the compaction actor is to be asked (C.X.5)."""
    compaction = evaluated.started.options
    if not evaluated.paused or compaction.on_failure == "drop" or not fold.failures.told:
        return None
    failure = Failure(phase="evaluate", reason="paused")
    error = error_of_failure(failure, fold.failures.reason, compaction.summariser)
    return CompactionEnded(
        run=fold.run,
        token=flight.token,
        evaluation=evaluated.started.evaluation,
        sequence=fold.sequence,
        status="failed",
        phase="evaluate",
        reason="paused",
        code=error.code,
        message=error.message,
        data=error.data,
    )


def check_compacted(fold: RunState, flight: Flight) -> None:
    """Refuse to go on after a compaction that failed, unless the run goes on without (C.K.4, C.X.5).

    Raises:
        ContextBusError: the class of what failed.
        ContextBudgetExceededError: the run goes on, and its history alone is larger than the request may be.
    """
    ended, prepared, options = flight.compacted, flight.prepared, options_of(fold, flight)
    if ended is None or ended.status != "failed" or options is None or options.compaction is None:
        return
    if isinstance(flight.command, OverflowStep) and ended.reason == "no-safe-boundary":
        return  # there is nothing to compact: the smaller limit decides what the step leaves out (D.I.5)
    # an envelope above the target fails the step whatever the run says of reductions (C.J.5)
    reduction = ended.reason == "paused" or (ended.phase == "compact" and ended.reason != "request-overhead")
    if options.compaction.on_failure != "continue" or not reduction:
        raise error_of(ended.code or "internal", ended.message, ended.data)
    if prepared is not None and prepared.plan.used_tokens > prepared.plan.input_tokens:
        used, left = prepared.plan.used_tokens, prepared.plan.input_tokens
        text = f"the history takes {used} tokens, the request has room for {left}, and it could not be compacted"
        data = ErrorData(required_tokens=used, available_tokens=left, phase="compaction", origin_code=ended.reason)
        raise ContextBudgetExceededError(text, data)


def note_checkpoint(flight: Flight, blob: str, data: bytes | None) -> Flight:
    """The flight with a checkpoint that was read; one that is gone or damaged fails the step (C.L.8)."""
    if data is None or digests.digest_bytes(data) != blob:
        return replace(flight, phase="open", failing="restore")
    return replace(flight, phase="open", checkpoint=blob)


def check_restored(flight: Flight) -> None:
    """Refuse to go on where the checkpoint cannot be read; nothing is changed (C.L.8).

    Raises:
        NotFoundError: it is gone or damaged.
    """
    if flight.failing == "restore":
        raise NotFoundError(LOST_CHECKPOINT.text)


def forget_evaluation(flight: Flight) -> Flight:
    """The flight as before its evaluation: what the host said was of another history."""
    return replace(flight, host_tokens=None, matched=(), given=None, evaluation=None, failing=None, prepared=None)


def failed_evaluation(fold: RunState, flight: Flight, phase: CompactionPhase) -> CompactionFailed:
    """What the log says of an evaluation that failed before anything was begun (C.O.6)."""
    assert flight.prepared is not None
    return CompactionFailed(
        evaluation=id_of(fold, flight),
        step=flight.prepared.plan.step,
        phase=phase,
        reason="error",
        token_scope="request",
    )

"""Whether a compaction began as the run's log makes it begin, and was restored when it was due (C.H-C.L, C.O)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from contextbus.core.bound_models import binds_thinking
from contextbus.core.compaction.evaluation import (
    Matched,
    RequestEstimate,
    coming_tail,
    evaluation_id,
    find_match,
    is_paused,
    policy_of,
    target_tokens,
)
from contextbus.core.estimate import Estimator, make_estimator, recorded_estimator
from contextbus.core.memory_run import MemoryState
from contextbus.core.projection import applied, request_count, request_eighteenths, suffix_eighteenths
from contextbus.core.run_state import RunState
from contextbus.core.step import counter_of
from contextbus.replay.checks import Check
from contextbus.replay.run_log import LoggedCommit
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    StepCompiled,
    StepFailed,
    UnknownEvent,
)
from contextbus_protocol.values import Scope, StepOptions

_EVALUATION: Final = re.compile(r"compaction-[0-9a-f]{32}")
_OF_A_COMPACTION: Final = (CompactionRestored, CompactionStarted, CompactionCompleted, CompactionFailed)
Flaw = tuple[str, object, object]
"""A field, what the log says of it, and what it comes to."""


def check_head(state: RunState, logged: LoggedCommit) -> Iterator[Check]:
    """Whether a commit of the compaction actor has the command that its events make it have (C.O.1, C.O.8).

    An event beside a step is named after the step's command; elsewhere that command is not in the log.

    Args:
        state: the run before the commit.
        logged: the commit.
    """
    commit = logged.commit
    events = tuple(event for event in commit.events if isinstance(event, _OF_A_COMPACTION))
    for event in events:
        if _EVALUATION.fullmatch(event.evaluation) is None:
            got = "compaction- and 32 hex digits"
            yield Check(logged.sequence, "different", None, "evaluation", event.evaluation, got)
    if events and not _is_its_own(commit):
        named = evaluation_id(state.run, commit.command, state.sequence)
        for event in events:
            if event.evaluation != named:
                yield Check(logged.sequence, "different", None, "evaluation", event.evaluation, named)
    if not events or not _is_its_own(commit):
        return
    last = events[-1]
    expected = f"{last.evaluation}-{_status_of(last)}"
    if commit.command != expected:
        yield Check(logged.sequence, "different", None, "command", commit.command, expected)
    digest = digests.digest_bytes(encode_json(events))
    if commit.command_digest != digest:
        yield Check(logged.sequence, "different", None, "commandDigest", commit.command_digest, digest)
    if len({event.evaluation for event in events}) > 1:
        yield Check(logged.sequence, "different", None, "evaluation", last.evaluation, events[0].evaluation)


def _is_its_own(commit: Commit) -> bool:
    return not any(isinstance(event, StepCompiled | StepFailed) for event in commit.events)


def _status_of(event: AnyEvent) -> str:
    match event:
        case CompactionCompleted():
            return "completed"
        case CompactionFailed(phase=phase):
            return f"failed-{phase}"
        case _:
            return "started"


def estimator_of_run(state: RunState) -> Estimator:
    """The run's counter as it was; a tokenizer's counts are facts of the log (D.M.14)."""
    spec = None if state.estimator is None else counter_of(state, state.estimator)
    return make_estimator(spec) if spec is None or spec.kind == "heuristic" else recorded_estimator(spec, ())


def check_restored(state: RunState, logged: LoggedCommit, event: AnyEvent | UnknownEvent) -> Iterator[Check]:
    """Whether a turn with a checkpoint in place says so at its first step, and then only (C.L.3, C.L.5)."""
    checkpoint = applied(state)
    due = checkpoint is not None and state.turn_begins

    def check(field: str, expected: object, got: object) -> Check:
        return Check(logged.sequence, "different", None, field, str(expected), str(got))

    match event:
        case CompactionRestored() if not due or checkpoint is None:
            yield check("restored", "a turn that begins with a checkpoint", "none that is due")
        case CompactionRestored() if checkpoint is not None:
            numbers = (checkpoint.source_count, len(checkpoint.replacement))
            for field, expected, got in (
                ("sourceMessages", event.source_messages, numbers[0]),
                ("replacementMessages", event.replacement_messages, numbers[1]),
            ):
                if expected != got:
                    yield check(field, expected, got)
        case StepCompiled(overflow=None) if due:
            yield check("restored", "nothing", "a checkpoint that is restored with this step")
        case CompactionStarted(cause="trigger" | "redacted") if due:
            yield check("restored", "nothing", "a checkpoint that is restored before this evaluation")
        case _:
            return


def check_started(
    state: RunState, logged: LoggedCommit, event: CompactionStarted, memory: Mapping[int, MemoryState]
) -> Iterator[Check]:
    """Whether an evaluation comes out as it is recorded (C.I.3, C.J, C.O.2); the first flaw is told."""
    flaw = next(_find_flaws(state, logged, event, memory), None)
    if flaw is not None:
        field, expected, got = flaw
        yield Check(logged.sequence, "different", None, field, str(expected), str(got))


def _find_flaws(
    state: RunState, logged: LoggedCommit, event: CompactionStarted, memory: Mapping[int, MemoryState]
) -> Iterator[Flaw]:
    known = memory.get(event.memory_sequence)
    if known is None or event.memory_sequence < state.memory_sequence:
        yield "memorySequence", event.memory_sequence, f"a state not older than {state.memory_sequence}"
        return
    last, options = state.last, event.options
    window = event.model.context_window
    for field, expected, got in (
        ("messageCount", event.message_count, request_count(state)),
        ("tokenScope", event.token_scope, "request"),
        ("targetTokens", event.target_tokens, target_tokens(options, window)),
        ("hostTokens", event.host_tokens is not None, options.counts),
    ):
        if expected != got:
            yield field, expected, got
    if last is not None and event.step < last.step:
        yield "step", event.step, f"a step from {last.step}"
    if binds_thinking(event.model, ()) and not event.binds_thinking:
        yield "bindsThinking", event.binds_thinking, True
    yield from _find_cause_flaws(state, event)
    yield from _find_estimate_flaws(state, event, known)
    yield from _find_trigger_flaws(state, logged, event)


def _find_cause_flaws(state: RunState, event: CompactionStarted) -> Iterator[Flaw]:
    last = state.last
    if (event.trigger_index is None) == (event.cause == "trigger"):
        yield "triggerIndex", event.trigger_index, f"an index for a trigger alone, not for {event.cause}"
    if event.cause == "overflow":
        if last is None or last.status not in ("open", "overflow"):
            yield "cause", event.cause, "no step that overflowed"
            return
        for field, expected, got in (
            ("step", event.step, last.step),
            ("model", event.model, last.options.model),
            ("options", event.options, last.options.compaction),
            ("bindsThinking", event.binds_thinking, binds_thinking(event.model, last.options.bound_models)),
        ):
            if expected != got:
                yield field, expected, got
    elif (event.cause == "redacted") != state.compaction_due:
        yield "cause", event.cause, "redacted" if state.compaction_due else "trigger"
    if is_paused(state) and event.options.on_failure != "drop":
        yield "paused", "a compaction that begins", "one that is paused"


def _find_estimate_flaws(state: RunState, event: CompactionStarted, memory: MemoryState) -> Iterator[Flaw]:
    """The envelope holds what the host counts beside the messages: only an overflow names it."""
    estimator = estimator_of_run(state)
    reserve = event.model.max_output_tokens if event.options.reserves_output else 0
    tail = coming_tail(memory.snapshot, estimator) if estimator.spec.kind == "heuristic" else 0
    tail += event.prompt_tail_tokens
    if event.envelope_tokens < tail + reserve:
        yield "envelopeTokens", event.envelope_tokens, f"at least {tail + reserve}"
    last = state.last
    if event.cause == "overflow" and last is not None and estimator.spec.kind == "heuristic":
        prompt = last.prompt
        layer = 0 if prompt is None else estimator.tokens(prompt.system_eighteenths)
        if event.prompt_tail_tokens != coming_tail(None, estimator, prompt):
            yield "promptTailTokens", event.prompt_tail_tokens, coming_tail(None, estimator, prompt)
        envelope = last.options.overhead_tokens + layer + tail + reserve
        if event.envelope_tokens != envelope:
            yield "envelopeTokens", event.envelope_tokens, envelope
    possible = [_counted(state, event, estimator)]
    measured = state.measured
    if (
        event.host_tokens is None
        and measured is not None
        and measured.input_tokens is not None
        and measured.model == (event.model.provider, event.model.model_id)
    ):
        behind = estimator.tokens(suffix_eighteenths(state, measured.count))
        old = estimator.tokens(measured.tail)
        base = measured.input_tokens - old + behind
        possible.append(max(0, base + tail) + reserve)
        if estimator.spec.kind != "heuristic" and event.tokens_before >= possible[-1]:
            return  # the tail's own count is no fact of the log
    if event.tokens_before not in possible:
        yield "tokensBefore", event.tokens_before, " or ".join(map(str, possible))


def _counted(state: RunState, event: CompactionStarted, estimator: Estimator) -> int:
    messages = estimator.tokens(request_eighteenths(state)) if event.host_tokens is None else event.host_tokens
    return messages + event.envelope_tokens


def _find_trigger_flaws(state: RunState, logged: LoggedCommit, event: CompactionStarted) -> Iterator[Flaw]:
    index, triggers = event.trigger_index, event.options.triggers
    if index is not None and not 0 <= index < len(triggers):
        yield "triggerIndex", index, f"one of {len(triggers)}"
        return
    policy = policy_of(event.options, index)
    if event.policy != policy:
        yield "policy", event.policy, policy
    if index is None:
        return
    options = StepOptions(scope=state.scope or Scope(), model=event.model, compaction=event.options)
    measured, counted = state.measured, _counted(state, event, estimator_of_run(state))
    reserve = event.model.max_output_tokens if event.options.reserves_output else 0
    estimate = RequestEstimate(
        tokens=event.tokens_before,
        counted=counted,
        envelope=event.envelope_tokens,
        message_count=event.message_count,
        reserve=reserve,
        measured=None if measured is None or measured.input_tokens is None else event.tokens_before - reserve,
    )
    model = (event.model.provider, event.model.model_id)
    if measured is not None and measured.model != model:
        measured, estimate = None, msgspec.structs.replace(estimate, measured=None)
    # whether what was measured holds depends on settings and tools, which the event does not name (C.M.3)
    estimates = [estimate, msgspec.structs.replace(estimate, measured=None)]
    if measured is not None and measured.cached_at is not None and logged.commit.at >= measured.cached_at:
        age, kept = logged.commit.at - measured.cached_at, measured.retention_ms
        estimates.append(msgspec.structs.replace(estimate, cache_age_ms=age, cache_retention_ms=kept))
    answers = dict(event.matched)
    found = [find_match(options, each, answers) for each in estimates]
    if Matched(index) not in found:
        yield "triggerIndex", index, found[-1]

"""Whether a step compacts first: the estimate of its request, its triggers, a pause (C.H, C.J, C.M, C.N)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeGuard

import msgspec

from contextbus.core.estimate import Estimator
from contextbus.core.projection import request_count, request_eighteenths, suffix_eighteenths
from contextbus.core.run_state import CompactionFailures, Measured, RunState
from contextbus.core.tail import measure_tail
from contextbus.core.working_memory_items import list_items
from contextbus_protocol import digests
from contextbus_protocol.callbacks import BudgetInfo
from contextbus_protocol.events import PromptFact
from contextbus_protocol.values import MAX_SAFE_INTEGER, CompactionOptions, RetentionPolicy, StepOptions, Trigger
from contextbus_protocol.working_memory import WorkingMemorySnapshot

_FIFTH: Final = 5


class RequestEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a step would send, in tokens; ages are in milliseconds (C.H.1, C.J.1).

    ``tokens`` is what triggers see: the measured count where one holds.  ``counted`` is counted anew, ``envelope`` the
    part of both that is no message of the history, ``reserve`` the part of that which is kept for the output (P.J.6),
    ``prompt_tail`` what the host's prompt adds to the tail.
    ``measured`` is the provider's count with what came since, without the reserve; None where none holds (P.J.2).
    """

    tokens: int
    counted: int
    envelope: int
    message_count: int
    reserve: int = 0
    prompt_tail: int = 0
    measured: int | None = None
    cache_age_ms: int | None = None
    cache_retention_ms: int | None = None


class Matched(msgspec.Struct, frozen=True):
    """The trigger that decides (C.I.3)."""

    index: int


class AskTrigger(msgspec.Struct, frozen=True):
    """A trigger of the host's own is to be asked (C.H.8)."""

    index: int


def estimate_request(
    state: RunState,
    options: StepOptions,
    *,
    now: int,
    working_memory: WorkingMemorySnapshot | None,
    estimator: Estimator,
    host_tokens: int | None = None,
    prompt: PromptFact | None = None,
) -> RequestEstimate:
    """Estimate the request of a step before it is compiled.

    Args:
        state: the run with the step's messages.
        options: what the step is compiled for.
        now: the command's clock reading, in milliseconds since the epoch.
        working_memory: the working memory, whose mandatory part is the coming tail as far as it is known (C.M.14).
        estimator: the run's counter.
        host_tokens: what the host counted of the messages, where it counts (C.M.11).
        prompt: what the host's prompt adds, as far as it is known before the compile (P.A.6).
    """
    tail, layer = coming_tail(working_memory, estimator, prompt), 0
    if prompt is not None:
        layer = estimator.tokens(prompt.system_eighteenths)
    reserve = _reserve(options)
    envelope = options.overhead_tokens + layer + tail + reserve
    counted = (estimator.tokens(request_eighteenths(state)) if host_tokens is None else host_tokens) + envelope
    baseline = holding(state.measured, options, prompt)
    measured = None
    stored = None if baseline is None else baseline.input_tokens
    if host_tokens is None and baseline is not None and _is_count(stored):
        behind = estimator.tokens(suffix_eighteenths(state, baseline.count))
        old = estimator.tokens(baseline.tail)
        measured = max(0, stored - old + tail + behind)
    age = None
    cached_at = None if baseline is None else baseline.cached_at
    if _is_count(cached_at) and now >= cached_at:
        age = now - cached_at
    return RequestEstimate(
        tokens=counted if measured is None else measured + reserve,
        counted=counted,
        envelope=envelope,
        message_count=request_count(state),
        reserve=reserve,
        prompt_tail=coming_tail(None, estimator, prompt),
        measured=measured,
        cache_age_ms=age,
        cache_retention_ms=None if age is None or baseline is None else baseline.retention_ms,
    )


def evaluation_id(run: str, command: str, sequence: int) -> str:
    """One id for all events of an evaluation: the step's command at one state of the log (C.O.1).

    Args:
        run: the run's id.
        command: the id of the step's command.
        sequence: the log's sequence at which it is evaluated.
    """
    digest = digests.digest_text(f"{run}\n{command}\n{sequence}")
    return "compaction-" + digest.removeprefix("sha256:")[:32]


def _is_count(value: int | None) -> TypeGuard[int]:
    """Whether a stored number can be one: a damaged one is as if it were not there (C.M.10)."""
    return value is not None and 0 <= value <= MAX_SAFE_INTEGER


def coming_tail(
    working_memory: WorkingMemorySnapshot | None, estimator: Estimator, prompt: PromptFact | None = None
) -> int:
    """Tokens of the coming tail as far as it is known before the compile (C.M.14).

    Working memory's mandatory part, and the messages of the host's prompt.
    """
    own = 0 if prompt is None else estimator.tokens(prompt.tail_eighteenths)
    if working_memory is None:
        return own
    return own + measure_tail(list_items(working_memory), working_memory.revision, estimator).mandatory


def holding(measured: Measured | None, options: StepOptions, prompt: PromptFact | None = None) -> Measured | None:
    """What was measured, if a request with these options begins as that one did (C.M.3, C.N.4)."""
    if measured is None:
        return None
    model = options.model
    same = (
        measured.model == (model.provider, model.model_id)
        and measured.tools == options.tools_digest
        and measured.settings == options.settings_digest
        and measured.system == (digests.EMPTY_CHAIN if prompt is None else prompt.system)
    )
    return measured if same else None


def find_match(
    options: StepOptions, estimate: RequestEstimate, answers: Mapping[int, bool]
) -> Matched | AskTrigger | None:
    """The first trigger that matches; those behind it are not evaluated (C.I.3).

    Args:
        options: what the step is compiled for.
        estimate: one estimate for all (C.I.4).
        answers: what the host's own triggers said, by index.
    """
    if options.compaction is None:
        return None
    for index, trigger in enumerate(options.compaction.triggers):
        if trigger.kind == "custom":
            if index not in answers:
                return AskTrigger(index)
            matches = answers[index]
        else:
            matches = _matches(trigger, estimate, options)
        if matches:
            return Matched(index)
    return None


def _matches(trigger: Trigger, estimate: RequestEstimate, options: StepOptions) -> bool:
    window = options.model.context_window
    match trigger.kind:
        case "tokens-exceed":
            return trigger.limit is not None and estimate.tokens > trigger.limit
        case "messages-exceed":
            return trigger.limit is not None and estimate.message_count > trigger.limit
        case "cache-likely-cold":
            retention = estimate.cache_retention_ms if trigger.limit is None else trigger.limit
            age = estimate.cache_age_ms
            return age is not None and retention is not None and age >= retention
        case "window-exceeded":
            return _larger(estimate) > share_of(_ratio_of(trigger), window)
        case "usage-exceeded":  # of both numbers the larger one counts: a smaller report leaves it to the other trigger
            measured = estimate.measured
            return measured is not None and measured > window and measured >= estimate.counted - estimate.reserve
        case _:
            return False


def _ratio_of(trigger: Trigger) -> float:
    return 1.0 if trigger.ratio is None else trigger.ratio


def _larger(estimate: RequestEstimate) -> int:
    """The larger of what is counted and what was measured, in tokens of the whole request (P.J.2)."""
    return max(estimate.tokens, estimate.counted)


def tokens_before(options: CompactionOptions, estimate: RequestEstimate, index: int | None) -> int:
    """The estimate of the whole request that an evaluation reports: the number that its trigger looked at (C.O.2)."""
    if index is not None and options.triggers[index].kind == "window-exceeded":
        return _larger(estimate)
    return estimate.tokens


def describe_excess(options: StepOptions, estimate: RequestEstimate, index: int) -> BudgetInfo:
    """What the host is told of a trigger that matched, before anything is compacted (P.J.8).

    Args:
        options: what the step is compiled for; it compacts.
        estimate: what the trigger looked at.
        index: the trigger's.
    """
    compaction, window = options.compaction, options.model.context_window
    assert compaction is not None
    trigger = compaction.triggers[index]
    current, envelope = tokens_before(compaction, estimate, index), estimate.envelope
    limit = target_tokens(compaction, window)
    match trigger.kind:
        case "window-exceeded":
            limit = share_of(_ratio_of(trigger), window)
        case "usage-exceeded":  # a report says nothing of the output to come
            current, envelope, limit = current - estimate.reserve, envelope - estimate.reserve, window
        case "tokens-exceed" if trigger.limit is not None:
            limit = trigger.limit
        case _:
            pass
    return BudgetInfo(
        current_tokens=current, limit=limit, envelope_tokens=envelope, history_tokens=max(0, current - envelope)
    )


def _reserve(options: StepOptions) -> int:
    """Tokens kept for the output within the target (P.J.6)."""
    compaction = options.compaction
    return options.model.max_output_tokens if compaction is not None and compaction.reserves_output else 0


def share_of(ratio: float, tokens: int) -> int:
    """``floor(ratio x tokens)`` in IEEE doubles (P.J.1)."""
    return math.floor(ratio * tokens)


def target_tokens(options: CompactionOptions, window: int) -> int:
    """The configured target of the whole request, in tokens (C.J.4, P.J.1)."""
    if options.target_tokens is not None:
        return options.target_tokens
    return share_of(1.0 if options.target_ratio is None else options.target_ratio, window)


def policy_of(options: CompactionOptions, index: int | None) -> RetentionPolicy:
    """What is kept: as the trigger says that matched, else as the options say."""
    keep = None if index is None else options.triggers[index].keep
    return options.keep if keep is None else keep


def ratio_room(policy: RetentionPolicy, window: int, envelope: int) -> int:
    """The room that ``keep_ratio`` has: its share of the window less the envelope and the output reserve (C.X.1)."""
    return 0 if policy.keep_ratio is None else max(0, share_of(policy.keep_ratio, window) - envelope)


def is_paused(state: RunState) -> bool:
    """Whether the summariser is not to be asked (C.X.5): not before the history has grown by a fifth.

    Of a range that did not shrink only as far as it is told without planning it anew: it is less than all messages.
    """
    failures = state.failures
    now = request_eighteenths(state)
    if failures.paused_at is not None:
        return _FIFTH * (now - failures.paused_at) < failures.paused_at
    return is_range_paused(failures, now)


def is_range_paused(failures: CompactionFailures, cost: int) -> bool:
    """Whether a range of this cost, in eighteenths of a token, is not a fifth larger than the refused one (C.X.4)."""
    refused = failures.refused_range
    return refused is not None and _FIFTH * (cost - refused) < refused

"""One step of a run, from the fold and recorded inputs to a decision: what selection does and verify repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from contextbus.core.answers import merge_answers
from contextbus.core.bound_models import binds_thinking
from contextbus.core.budget import require_count, usable_input_tokens
from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide
from contextbus.core.estimate import Estimator
from contextbus.core.history import MAX_QUERY, make_query
from contextbus.core.prefix import first_cause, prefix_cause
from contextbus.core.projection import request_eighteenths
from contextbus.core.refresh import RefreshPlan, plan_refresh
from contextbus.core.run_state import OwedEntry, RunState
from contextbus.core.skill_loads import demand_bodies
from contextbus.core.working_memory_items import active_task
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    PreparedFact,
    PromptFact,
    UsageFact,
)
from contextbus_protocol.package import CachePrefixCause, StepDecision, WarningCode
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import (
    EstimatorSpec,
    PlacedEntry,
    SourceResult,
    StepOptions,
)
from contextbus_protocol.working_memory import WorkingMemorySnapshot

POLICY_RESTORING: Final = 2
POLICY: Final = 2
"""The version of the rules of this folder: a commit names the one that decided it."""

POLICIES: Final = (1, 2)
"""The versions that this release can repeat: 1 restored no record and kept no tail."""


class StepPlan(msgspec.Struct, frozen=True):
    """What is settled before any source is asked.

    Token figures are in tokens; ``pass_`` is the number of retrievals once this step's is counted.  ``restore`` are the
    records whose recorded offers compete again (D.H.5), ``demands`` what the run is owed of sources whatever the query
    says, as (source, record id) (D.H.8).  ``prompt`` is what the host's prompt comes to.
    """

    step: int
    refresh: RefreshPlan
    query: str
    input_tokens: int
    used_tokens: int
    pass_: int
    prefix_cause: CachePrefixCause | None
    active_task_id: str | None
    restore: tuple[OwedEntry, ...] = ()
    demands: tuple[tuple[str, str], ...] = ()
    owed: tuple[PlacedEntry, ...] = ()
    tail_kept: bool = False
    redacted: bool = False
    prompt: PlacedPrompt | None = None
    phase: Literal["compile", "overflow-retry"] = "compile"


def warn_of_usage(state: RunState, usage: Sequence[UsageFact]) -> tuple[WarningCode, ...]:
    """``unaccounted-usage`` where a step or a failed one before it held usage, once in a run (D.L.3)."""
    held = state.unaccounted or any(not fact.reported for fact in usage)
    return ("unaccounted-usage",) if held and "unaccounted-usage" not in state.warned else ()


def warn_of_state(state: RunState, parts: PromptParts | None) -> tuple[WarningCode, ...]:
    """``state-in-system`` where state stands in the system layer, once in a run (P.B.4)."""
    placed = parts is not None and parts.state_in_system
    return ("state-in-system",) if placed and "state-in-system" not in state.warned else ()


def counter_of(state: RunState, given: EstimatorSpec) -> EstimatorSpec:
    """What a step of the run counts with: a run that calibrates has learned its factor (D.M.5, D.M.11)."""
    pinned = state.estimator
    return pinned if pinned is not None and pinned.calibrate else given


def plan_step(
    state: RunState,
    *,
    step: int,
    options: StepOptions,
    host_request: bool,
    user_text: str,
    snapshot: WorkingMemorySnapshot | None,
    estimator: Estimator,
    rewritten: str | None = None,
    prepared: PreparedFact | None = None,
    messages: Sequence[ChatMessage] | None = None,
    prompt: PlacedPrompt | None = None,
    policy: int = POLICY,
) -> StepPlan:
    """Settle query, refresh, budget and cache prefix of a step.

    Args:
        state: the run with the step's messages.
        step: the step's number.
        options: what the step is compiled for, with what the host's hook changed.
        host_request: whether the host asks for a retrieval with this step.
        user_text: the latest user text (D.G.17).
        snapshot: the working memory, if there is one.
        estimator: the counter of the step.
        rewritten: the query that the host made of the step's own, if it did (D.A.9).
        prepared: what the host's hook changed.
        messages: the messages that the hook gave in place of the history, if it did.
        prompt: what the host's prompt comes to.
        policy: the version of the rules to decide by.

    Raises:
        InvalidTypeError: the model's numbers are no counts (D.B.21).
    """
    task = None if snapshot is None else active_task(snapshot)
    query = make_query(None if task is None else task.title, user_text)
    if rewritten is not None and query.strip():
        query = rewritten[:MAX_QUERY]
    refresh = plan_refresh(
        state,
        options.refresh,
        step=step,
        active_task_id=None if task is None else task.id,
        host_request=host_request,
        query=query,
        has_sources=bool(options.sources),
        redacted=state.redaction_due,
    )
    returns = policy >= POLICY_RESTORING
    return StepPlan(
        step=step,
        refresh=refresh,
        query=query,
        input_tokens=usable_input_tokens(options.model),
        used_tokens=_used_tokens(state, options, prepared, estimator, None if prompt is None else prompt.fact),
        pass_=state.passes + (1 if refresh.retrieve else 0),
        prefix_cause=prefix_cause(state, options, messages, None if prompt is None else prompt.fact),
        active_task_id=None if task is None else task.id,
        restore=tuple(o for o in state.owed if not o.waits) if returns else (),
        demands=_demand_skills(state, options),
        owed=tuple(o.entry for o in state.owed) if returns else (),
        tail_kept=returns and binds_thinking(options.model, options.bound_models),
        redacted=state.redaction_due,
        prompt=prompt,
    )


def plan_overflow(
    state: RunState,
    *,
    input_tokens: int,
    query: str,
    estimator: Estimator,
    snapshot: WorkingMemorySnapshot | None,
    prompt: PlacedPrompt | None = None,
) -> StepPlan:
    """Settle the run's last step again under a smaller limit: no source, no pass, the same candidates (D.I.1, D.I.4).

    Args:
        state: the run; its history is that of its last step.
        input_tokens: the limit in tokens.
        query: the query that the step's offers were found with.
        estimator: the counter of the step.
        snapshot: the working memory, if there is one.
        prompt: what the prompt of the step came to.

    Raises:
        InvalidTypeError: the run has no step (D.I.6), or the limit is no count.
    """
    last = state.last
    if last is None:
        raise InvalidTypeError("no step was compiled; before_model_call comes before on_overflow")
    require_count("input_tokens", input_tokens)
    task = None if snapshot is None else active_task(snapshot)
    return StepPlan(
        step=last.step,
        refresh=RefreshPlan("overflow-retry"),
        query=query,
        input_tokens=input_tokens,
        used_tokens=_used_tokens(state, last.options, last.prepared, estimator, last.prompt),
        pass_=state.passes,
        prefix_cause=state.broken_prefix,  # the block of the overflowed request is compared once decided
        active_task_id=None if task is None else task.id,
        owed=tuple(o.entry for o in state.owed),
        tail_kept=binds_thinking(last.options.model, last.options.bound_models),
        prompt=prompt,
        phase="overflow-retry",
    )


def overflow_limit(state: RunState, given: int | None) -> int:
    """The limit of a step compiled again, in tokens: by default one below its request's counted size (D.I.5)."""
    if given is not None:
        return given
    return 0 if state.last is None else max(0, state.last.estimated - 1)


def _used_tokens(
    state: RunState,
    options: StepOptions,
    prepared: PreparedFact | None,
    estimator: Estimator,
    prompt: PromptFact | None,
) -> int:
    """Tokens of the request before the compile (D.B.3, P.A.6).

    Those of the history with its blocks or of what the hook gave, of the prompt, and the overhead.
    """
    messages = None if prepared is None else prepared.messages
    base = request_eighteenths(state) if messages is None else messages.eighteenths
    if prompt is not None:
        base += prompt.system_eighteenths + prompt.tail_eighteenths
    return estimator.tokens(base) + options.overhead_tokens


def _demand_skills(state: RunState, options: StepOptions) -> tuple[tuple[str, str], ...]:
    """The bodies of loaded skills that are neither in the history nor owed, of each source of skills (D.K.26)."""
    if not state.skills:
        return ()
    held = (*state.placed, *(o.entry for o in state.owed))
    return demand_bodies((s.skill for s in state.skills if not s.absent), held, options.sources)


def decide_step(
    state: RunState,
    plan: StepPlan,
    *,
    options: StepOptions,
    results: Sequence[SourceResult],
    snapshot: WorkingMemorySnapshot | None,
    estimator: Estimator,
    restored: Sequence[SourceResult] = (),
) -> StepDecision:
    """Select for a step.

    Args:
        state: the run with the step's messages.
        plan: what ``plan_step`` or ``plan_overflow`` settled.
        options: what the step is compiled for.
        results: the sources' answers in source order; empty when none was asked.
        snapshot: the working memory, if there is one.
        estimator: the counter of the step.
        restored: the recorded offers of ``plan.restore``, by source (D.H.5).

    Raises:
        ContextBudgetExceededError: mandatory content does not fit (D.B.15).
        InvalidRequestError: a required source failed (D.G.28).
    """
    if plan.refresh.skipped:
        results = merge_answers(options.sources, results, skipped=True)
    decision = decide(step_input(state, plan, options, tuple(results), tuple(restored), snapshot), estimator)
    return decision if plan.phase == "compile" else _compare_block(state, decision)


def _compare_block(state: RunState, decision: StepDecision) -> StepDecision:
    """A step compiled again, with the prefix as it is if its block is that of the overflowed request (D.F.15)."""
    manifest, last = decision.manifest, state.last
    chosen = [
        (e.source, e.record_id, e.revision, e.digest)
        for e in manifest.entries
        if e.selected and e.kind != "working-memory"
    ]
    sent = [] if last is None else [(e.source, e.record_id, e.revision, e.digest) for e in last.entries]
    tail_differs = manifest.placement.tail_kept and last is not None and bool(last.tail)
    if (not sent or chosen == sent) and not tail_differs:
        return decision
    cause = first_cause((manifest.cache_prefix_cause, "history"))
    changed = msgspec.structs.replace(manifest, cache_prefix_changed=True, cache_prefix_cause=cause)
    return msgspec.structs.replace(decision, manifest=changed)


def step_input(
    state: RunState,
    plan: StepPlan,
    options: StepOptions,
    results: tuple[SourceResult, ...],
    restored: tuple[SourceResult, ...],
    snapshot: WorkingMemorySnapshot | None,
) -> ContextInput:
    """The input of the pure compile for a step of a run."""
    return ContextInput(
        run_id=state.run,
        step=plan.step,
        input_tokens=plan.input_tokens,
        used_tokens=plan.used_tokens,
        budget=options.budget,
        results=results,
        restored=restored,
        working_memory=snapshot,
        placed=state.placed,
        owed=plan.owed,
        query=plan.query,
        refresh=plan.refresh.reason,
        pass_=plan.pass_,
        fallback=plan.refresh.fallback,
        redacted=plan.redacted,
        cache_prefix_changed=plan.prefix_cause is not None,
        cache_prefix_cause=plan.prefix_cause,
        estimator_kind=options.estimator_kind,
        tail_kept=plan.tail_kept,
        tail_given=plan.prompt is not None and bool(plan.prompt.tail),
        phase=plan.phase,
    )

"""One step of a compiler without a run: what is asked, what is compiled, what comes of it (D.G, D.H, D.I, D.J)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from contextbus.core.bound_models import binds_thinking
from contextbus.core.budget import require_count, usable_input_tokens
from contextbus.core.compiler_state import Standing, StepOutcome, Texts, key_of, restorable, sort_placed
from contextbus.core.context_input import ContextInput
from contextbus.core.estimate import Estimator
from contextbus.core.history import SourceHistory, digest_message, make_query
from contextbus.core.prompt import place_prompt
from contextbus.core.refresh import RefreshPlan, plan_refresh
from contextbus.core.request_history import RequestHistory, make_prefix, prefix_cause
from contextbus.core.skill_loads import absent_records, body_record, demand_bodies
from contextbus.core.working_memory_items import active_task
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.compiler_state import ContextCompilerState, SentBlock
from contextbus_protocol.digests import EMPTY_CHAIN, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import CachePrefixCause, Package, WarningCode
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import (
    ContextBudget,
    Model,
    ModelPrefix,
    RefreshOptions,
    Scope,
    SourceResult,
    SourceSpec,
    SourceStatus,
    StepOptions,
)
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class CompilerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiler was made with, as far as its steps depend on it."""

    sources: tuple[SourceSpec, ...] = ()
    budget: ContextBudget = ContextBudget()
    refresh: RefreshOptions = RefreshOptions()
    bound_models: tuple[ModelPrefix, ...] = ()


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one step (D.G.3).

    ``user_text`` is the latest user text by D.G.17; ``input_tokens`` takes the place of what the model leaves (D.I.1).
    ``tools`` are the tool definitions as JSON text.
    ``implicit`` is the message of what ``before_compile`` gave, ``transformed`` what ``transform_context`` made of the
    messages, blocks included: it is sent in their place, and they still tell which blocks stand (P.D.1, P.D.4).
    """

    run_id: str
    step: int
    request: RequestHistory
    user_text: str
    model: Model
    overhead_tokens: int = 0
    working_memory: WorkingMemorySnapshot | None = None
    refresh: bool = False
    redacted: bool = False
    estimator_kind: str | None = None
    tools: str | None = None
    input_tokens: int | None = None
    prompt: PromptParts | None = None
    implicit: ChatMessage | None = None
    transformed: RequestHistory | None = None

    @property
    def sent(self) -> SourceHistory:
        """The messages that are sent."""
        return (self.request if self.transformed is None else self.transformed).history

    @property
    def tools_digest(self) -> str | None:
        """The digest of the tool definitions (D.F.22)."""
        return None if self.tools is None else digest_text(self.tools)


class CompilerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is settled before any source is asked; token figures are in tokens.

    ``demands`` are the records that sources are asked for whatever the query says, as (source, record id) (D.H.8,
    D.K.26).  ``prompt`` is what the host's prompt comes to.
    """

    refresh: RefreshPlan
    query: str
    pass_: int
    input_tokens: int
    used_tokens: int
    standing: Standing
    restored: tuple[SourceResult, ...]
    demands: tuple[tuple[str, str], ...]
    prefix_cause: CachePrefixCause | None
    tail_kept: bool
    active_task_id: str | None
    prompt: PlacedPrompt | None = None

    @property
    def layer(self) -> str | None:
        """The chain digest of the prompt's system messages; None without any."""
        chain = EMPTY_CHAIN if self.prompt is None else self.prompt.fact.system
        return None if chain == EMPTY_CHAIN else chain

    @property
    def is_due(self) -> bool:
        """Whether a retrieval is due and within the passes, be its query empty or not."""
        return self.refresh.retrieve or self.refresh.skipped

    def records_of(self, source: str) -> tuple[str, ...]:
        """The records that a source is asked for by id."""
        return tuple(record for name, record in self.demands if name == source)


class _RefreshView(msgspec.Struct, frozen=True):
    """The state of a compiler as ``plan_refresh`` reads it."""

    last: int | None
    passes: int
    last_refresh_step: int | None
    last_active_task: str | None
    refused_task: tuple[str | None, ...]
    refresh_requested: bool


def check_request(request: StepRequest) -> None:
    """Refuse an input that is not one.

    Raises:
        InvalidTypeError: a field has the wrong type or is no count (D.G.3, D.T.4).
    """
    run_id = cast("object", request.run_id)
    if not isinstance(run_id, str) or not run_id:
        raise InvalidTypeError("run_id is a text that is not empty")
    require_count("step", request.step)
    require_count("overhead_tokens", request.overhead_tokens)
    model = cast("object", request.model)
    if not isinstance(model, Model):
        raise InvalidTypeError("model is a Model(provider, model_id, context_window, max_output_tokens)")
    memory = cast("object", request.working_memory)
    if memory is not None and not isinstance(memory, WorkingMemorySnapshot):
        raise InvalidTypeError("working_memory is a WorkingMemorySnapshot; create_working_memory makes one")
    for name in ("refresh", "redacted"):
        if type(getattr(request, name)) is not bool:
            raise InvalidTypeError(f"{name} is True or False")


def is_reopened(state: ContextCompilerState, step: int) -> bool:
    """Whether a step is the last one again.

    Raises:
        InvalidTypeError: it lies before the last one (D.G.3).
    """
    if state.last_step is not None and step < state.last_step:
        raise InvalidTypeError(f"step {step} lies before step {state.last_step}: steps never go back")
    return step == state.last_step


def plan_step(
    state: ContextCompilerState,
    request: StepRequest,
    options: CompilerOptions,
    texts: Texts,
    estimator: Estimator,
    rewritten: str | None = None,
) -> CompilerPlan:
    """Settle query, refresh, budget and cache prefix of a step, and what is owed to it.

    Args:
        state: the compiler before the step.
        request: the step.
        options: what the compiler was made with.
        texts: what it retrieved of the records that it placed.
        estimator: the counter of the step.
        rewritten: the query that the host made of ours (D.A.9).

    Raises:
        InvalidTypeError: the step lies before the last one, or the model's numbers are no counts (D.B.21).
    """
    reopened = is_reopened(state, request.step)
    task = None if request.working_memory is None else active_task(request.working_memory)
    query = make_query(None if task is None else task.title, request.user_text)
    if rewritten is not None:
        query = make_query(None, rewritten)
    refresh = _plan_refresh(state, request, options, None if task is None else task.id, query)
    given = StepOptions(scope=Scope(), model=request.model, bound_models=options.bound_models)
    prompt = place_prompt(request.prompt, request.implicit, given, estimator)
    used = request.sent.eighteenths
    if prompt is not None:
        used += prompt.fact.system_eighteenths + prompt.fact.tail_eighteenths
    standing = sort_placed(state, request.request.present)
    restored = restorable(standing, texts, [s.id for s in options.sources])
    input_tokens = usable_input_tokens(request.model) if request.input_tokens is None else request.input_tokens
    plan = CompilerPlan(
        refresh=refresh,
        query=query,
        pass_=state.passes + (1 if refresh.retrieve else 0),
        input_tokens=input_tokens,
        used_tokens=estimator.tokens(used) + request.overhead_tokens,
        standing=standing,
        restored=restored,
        demands=_list_demands(state, request.request, options, standing, texts),
        prefix_cause=None,
        tail_kept=binds_thinking(request.model, options.bound_models),
        active_task_id=None if task is None else task.id,
        prompt=prompt,
    )
    before = state.prefix_before if reopened else state.prefix
    cause = prefix_cause(
        before, request.sent, request.model, request.tools_digest, plan.layer, redacted=request.redacted
    )
    return msgspec.structs.replace(plan, prefix_cause=cause)


def _plan_refresh(
    state: ContextCompilerState, request: StepRequest, options: CompilerOptions, task: str | None, query: str
) -> RefreshPlan:
    view = _RefreshView(
        state.last_step,
        state.passes,
        state.last_refresh_step,
        state.last_active_task,
        state.refused_task,
        state.refresh_requested,
    )
    return plan_refresh(
        view,
        options.refresh,
        step=request.step,
        active_task_id=task,
        host_request=request.refresh,
        query=query,
        has_sources=bool(options.sources),
        redacted=request.redacted,
    )


def _list_demands(
    state: ContextCompilerState,
    request: RequestHistory,
    options: CompilerOptions,
    standing: Standing,
    texts: Texts,
) -> tuple[tuple[str, str], ...]:
    """What the step needs and nobody has the text of: bodies of skills, then what is gone and mandatory."""
    absent = _known_absent(state)
    loaded = (load.skill for load in request.loads if (body_record(load.skill), load.chain) not in absent)
    sources = [spec.id for spec in options.sources]
    owed = [(p.source, p.record_id) for p in standing.gone if p.mandatory and key_of(p) not in texts]
    bodies = demand_bodies(loaded, (*standing.live, *standing.gone), options.sources)
    return (*bodies, *(pair for pair in owed if pair[0] in sources))


def _known_absent(state: ContextCompilerState) -> set[tuple[str, str]]:
    # A state of an earlier release names no loads: it asks once more.
    return set(zip(state.absent, state.absent_loads, strict=False))


def compile_input(
    request: StepRequest, plan: CompilerPlan, options: CompilerOptions, results: tuple[SourceResult, ...]
) -> ContextInput:
    """The input of the pure compile for a step."""
    return ContextInput(
        run_id=request.run_id,
        step=request.step,
        input_tokens=plan.input_tokens,
        used_tokens=plan.used_tokens,
        budget=options.budget,
        results=results,
        restored=plan.restored,
        working_memory=request.working_memory,
        placed=plan.standing.live,
        owed=plan.standing.gone,
        query=plan.query if plan.refresh.retrieve else "",
        refresh=plan.refresh.reason,
        pass_=plan.pass_,
        fallback=plan.refresh.fallback,
        redacted=request.redacted,
        cache_prefix_changed=plan.prefix_cause is not None,
        cache_prefix_cause=plan.prefix_cause,
        estimator_kind=request.estimator_kind,
        tail_kept=plan.tail_kept,
        tail_given=plan.prompt is not None and bool(plan.prompt.tail),
        phase="compile" if request.input_tokens is None else "overflow-retry",
    )


def warnings_once(state: ContextCompilerState, request: StepRequest) -> tuple[WarningCode, ...]:
    """``state-in-system`` where state stands in the system layer, once in a compiler's life (P.B.4)."""
    placed = request.prompt is not None and request.prompt.state_in_system
    return ("state-in-system",) if placed and "state-in-system" not in state.warned else ()


def plan_overflow(first: CompilerPlan, again: CompilerPlan) -> CompilerPlan:
    """The plan of a step that is compiled again because its request was too large (D.I.1, D.I.4).

    Args:
        first: the plan of its first compile: its query, its pass and what it could restore stay.
        again: the plan with the messages and the limit of now.
    """
    return msgspec.structs.replace(
        again,
        refresh=msgspec.structs.replace(first.refresh, reason="overflow-retry"),
        query=first.query,
        pass_=first.pass_,
        restored=first.restored,
        demands=first.demands,
    )


def _count_stale(state: ContextCompilerState, request: StepRequest, plan: CompilerPlan) -> int:
    """How many of the messages that are sent hold no thinking: those from before the last change (D.F.20)."""
    if not plan.tail_kept:
        return 0
    count = request.sent.count
    return min(state.stale_thinking, count) if plan.prefix_cause is None else count


def outcome_of(
    state: ContextCompilerState,
    request: StepRequest,
    plan: CompilerPlan,
    results: Sequence[SourceResult],
    package: Package,
) -> StepOutcome:
    """What a compiled step adds to the state."""
    blocks = tuple(
        SentBlock(block.placement, digest_message(message), package.step, package.manifest.pass_)
        for block in package.blocks
        for message in block.messages
    )
    kept = (b.digest for b in blocks if b.placement == "append" or plan.tail_kept)
    answered = {r.source: {c.record_id for c in r.candidates} for r in results if r.status is SourceStatus.OK}
    owed = {(p.source, p.record_id) for p in plan.standing.gone}
    gone = absent_records(plan.demands, answered, frozenset[str]().union(*answered.values()))
    absent, loads = _known_absent(state), ((body_record(x.skill), x.chain) for x in request.request.loads)
    return StepOutcome(
        package=package,
        blocks=blocks,
        prefix=make_prefix(request.sent, request.model, request.tools_digest, kept, plan.layer),
        prefix_before=state.prefix_before if is_reopened(state, request.step) else state.prefix,
        stale_thinking=_count_stale(state, request, plan),
        present=request.request.present,
        retrieved=plan.refresh.retrieve,
        host_request=request.refresh,
        active_task_id=plan.active_task_id,
        missing=tuple(
            (source, record)
            for source, record in plan.demands
            if (source, record) in owed and source in answered and record not in answered[source]
        ),
        absent=tuple(pair for pair in loads if pair in absent or pair[0] in gone),
    )

"""One step of a run, from the fold and recorded inputs to a decision: what selection does and verify repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.core.budget import usable_input_tokens
from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide
from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message, make_query
from contextbus.core.refresh import RefreshPlan, plan_refresh
from contextbus.core.run import RunState, append_messages, keep_messages
from contextbus.core.working_memory_items import active_task
from contextbus_protocol import digests
from contextbus_protocol.commands import NewMessages
from contextbus_protocol.commit_requests import HistoryFact
from contextbus_protocol.errors import ConflictError, InvalidRequestError
from contextbus_protocol.events import HistoryReplaced, MessageFact, MessagesAppended, RunStarted
from contextbus_protocol.package import CachePrefixCause, StepDecision
from contextbus_protocol.values import Scope, SourceResult, SourceStatus, StepOptions
from contextbus_protocol.working_memory import WorkingMemorySnapshot

POLICY: Final = 1
"""The version of the rules of this folder: a commit names the one that decided it."""


class StepPlan(msgspec.Struct, frozen=True):
    """What is settled before any source is asked.

    Token figures are in tokens; ``pass_`` is the number of retrievals once this step's is counted.
    """

    step: int
    refresh: RefreshPlan
    query: str
    input_tokens: int
    used_tokens: int
    pass_: int
    prefix_cause: CachePrefixCause | None
    active_task_id: str | None


def take_messages(
    state: RunState, new: NewMessages, scope: Scope, estimator: Estimator
) -> tuple[RunState, HistoryFact]:
    """The run with the messages that a command brings, and what its commit says of them (D.F.19).

    A client that built on the run's present history may replace its end; one that built on an older history may only
    bring what the run already has and more behind it.

    Raises:
        ConflictError: the run's history is another than the client thought; it must read it again.
        InvalidRequestError: the messages do not give the chain digest that the client names.
    """
    history = state.history
    facts = tuple(MessageFact(digest_message(m), estimator.message(m), m.role) for m in new.messages)
    keep = new.keep
    if not 0 <= keep <= history.count:
        raise ConflictError("the run's history is shorter than the client's; read the run again")
    is_older = (new.base_count, new.base_chain) != (history.count, history.chain)
    if is_older:
        known = _known_prefix(state, keep, facts)
        keep, facts = history.count, facts[known:]
        messages = new.messages[known:]
    else:
        messages = new.messages
    replaced = HistoryReplaced(keep=keep) if keep < history.count else None
    after = keep_messages(state, keep)
    event = MessagesAppended(start=keep, messages=facts, chain=new.chain, inputs="")
    after = append_messages(after, event)
    if after.history.chain != new.chain:
        if is_older:  # another client replaced a part that this one thought to be kept
            raise ConflictError("others changed the run's history; read the run again")
        raise InvalidRequestError("the messages do not give the chain digest that the command names")
    return after, HistoryFact(
        started=RunStarted(scope=scope, estimator=estimator.spec) if state.scope is None else None,
        replaced=replaced,
        start=keep,
        facts=facts,
        messages=messages,
        chain=new.chain,
        count=after.history.count,
    )


def _known_prefix(state: RunState, keep: int, facts: tuple[MessageFact, ...]) -> int:
    """How many of the messages the run already has behind the first ``keep``."""
    known = state.history.count - keep
    chain = state.history.keep(keep).chain
    for fact in facts[:known]:
        chain = digests.extend_chain(chain, fact.digest)
    if known > len(facts) or chain != state.history.chain:
        raise ConflictError("others changed the run's history; read the run again")
    return known


def plan_step(
    state: RunState,
    *,
    step: int,
    options: StepOptions,
    host_request: bool,
    user_text: str,
    snapshot: WorkingMemorySnapshot | None,
    estimator: Estimator,
) -> StepPlan:
    """Settle query, refresh, budget and cache prefix of a step.

    Args:
        state: the run with the step's messages.
        step: the step's number.
        options: what the step is compiled for.
        host_request: whether the host asks for a retrieval with this step.
        user_text: the latest user text (D.G.17).
        snapshot: the working memory, if there is one.
        estimator: the counter of the step.

    Raises:
        InvalidTypeError: the model's numbers are no counts (D.B.21).
    """
    task = None if snapshot is None else active_task(snapshot)
    query = make_query(None if task is None else task.title, user_text)
    refresh = plan_refresh(
        state,
        options.refresh,
        step=step,
        active_task_id=None if task is None else task.id,
        host_request=host_request,
        query=query,
        has_sources=bool(options.sources),
    )
    base = state.history.eighteenths + sum(b.fact.eighteenths for b in state.blocks)
    return StepPlan(
        step=step,
        refresh=refresh,
        query=query,
        input_tokens=usable_input_tokens(options.model),
        used_tokens=estimator.tokens(base) + options.overhead_tokens,
        pass_=state.passes + (1 if refresh.retrieve else 0),
        prefix_cause=_prefix_cause(state, options),
        active_task_id=None if task is None else task.id,
    )


def _prefix_cause(state: RunState, options: StepOptions) -> CachePrefixCause | None:
    """Why the request does not begin as the last one did (D.F.15, D.F.16, D.F.22); None when it does."""
    last = state.last
    if last is None:
        return None
    if (last.provider, last.model_id) != (options.model.provider, options.model.model_id):
        return "model"
    if last.tools_digest != options.tools_digest:
        return "tools"
    if state.broken_prefix is not None:
        return state.broken_prefix
    if last.block is not None and not any(b.step == last.step for b in state.blocks):
        return "history"  # the last request ended with a block whose call did not succeed (D.F.13)
    return None


def decide_step(
    state: RunState,
    plan: StepPlan,
    *,
    options: StepOptions,
    results: Sequence[SourceResult],
    snapshot: WorkingMemorySnapshot | None,
    estimator: Estimator,
) -> StepDecision:
    """Select for a step.

    Args:
        state: the run with the step's messages.
        plan: what ``plan_step`` settled.
        options: what the step is compiled for.
        results: the sources' answers in source order; empty when none was asked.
        snapshot: the working memory, if there is one.
        estimator: the counter of the step.

    Raises:
        ContextBudgetExceededError: mandatory content does not fit (D.B.15).
        InvalidRequestError: a required source failed (D.G.28).
    """
    if plan.refresh.skipped:
        results = tuple(SourceResult(s.id, s.kind, SourceStatus.SKIPPED, required=s.required) for s in options.sources)
    return decide(step_input(state, plan, options, tuple(results), snapshot), estimator)


def step_input(
    state: RunState,
    plan: StepPlan,
    options: StepOptions,
    results: tuple[SourceResult, ...],
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
        working_memory=snapshot,
        placed=state.placed,
        query=plan.query,
        refresh=plan.refresh.reason,
        pass_=plan.pass_,
        fallback=plan.refresh.fallback,
        cache_prefix_changed=plan.prefix_cause is not None,
        cache_prefix_cause=plan.prefix_cause,
        estimator_kind=options.estimator_kind,
    )

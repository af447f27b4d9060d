"""A step compiled again for less, as a plan and as a decision (D.I)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.logs import OPTIONS, append, commit_to, compiled
from tests.core.test_bound_models import BOUND

from contextbus.core.estimate import make_estimator
from contextbus.core.run_state import RunState
from contextbus.core.step import StepPlan, decide_step, overflow_limit, plan_overflow
from contextbus.core.working_memory import create_working_memory
from contextbus.sources.interface import candidate
from contextbus_protocol.errors import ContextBudgetExceededError, InvalidTypeError
from contextbus_protocol.events import CallFailed, CallSucceeded, RefreshRequested
from contextbus_protocol.package import BudgetSummary, StepDecision
from contextbus_protocol.values import EstimatorSpec, SourceResult
from contextbus_protocol.working_memory import WorkingMemorySnapshot

ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
FOUND = SourceResult(
    "docs", "rag", candidates=(candidate("big", "word " * 200, 0.9), candidate("small", "word " * 4, 0.8))
)
BUDGET = BudgetSummary(
    input_tokens=10_000, used_tokens=700, context_tokens=1_000, selected_tokens=300, working_memory_tokens=0
)


def run(**changes: Any) -> RunState:
    state = commit_to(RunState("r"), append(RunState("r"), "How?"))
    given: dict[str, Any] = {"budget": BUDGET, **changes}
    return commit_to(state, compiled(state, 0, "big", "small", **given))


def plan(state: RunState, limit: int, snapshot: WorkingMemorySnapshot | None = None) -> StepPlan:
    return plan_overflow(state, input_tokens=limit, query="q", estimator=ESTIMATOR, snapshot=snapshot)


def decide(state: RunState, limit: int, snapshot: WorkingMemorySnapshot | None = None) -> StepDecision:
    return decide_step(
        state,
        plan(state, limit, snapshot),
        options=OPTIONS,
        results=(FOUND,),
        snapshot=snapshot,
        estimator=ESTIMATOR,
    )


@pytest.mark.rule("D.I.1", "D.G.31")
def test_it_keeps_number_query_and_pass_and_asks_no_source() -> None:
    state = run()
    made = plan(state, 500)
    assert (made.step, made.query, made.pass_, made.input_tokens) == (0, "q", 1, 500)
    assert (made.refresh.reason, made.refresh.retrieve, made.refresh.skipped) == ("overflow-retry", False, False)
    assert (made.restore, made.demands) == ((), ())
    again = commit_to(state, compiled(state, 0, retrieved=False, overflow=500))
    assert (again.passes, again.last_refresh_step) == (1, 0)
    asked = commit_to(state, RefreshRequested())
    assert commit_to(asked, compiled(asked, 0, retrieved=False, overflow=500)).refresh_requested


@pytest.mark.rule("D.I.5")
def test_the_default_limit_is_one_below_the_counted_size() -> None:
    assert overflow_limit(run(), None) == 999
    assert overflow_limit(run(), 123) == 123
    assert overflow_limit(RunState("r"), None) == 0  # there is nothing to compile again
    nothing = msgspec.structs.replace(BUDGET, used_tokens=0, selected_tokens=0)
    assert overflow_limit(run(budget=nothing), None) == 0
    smaller = msgspec.structs.replace(BUDGET, selected_tokens=250)
    state = commit_to(run(), compiled(run(), 0, retrieved=False, overflow=999, budget=smaller))
    assert overflow_limit(state, None) == 949  # twice in a row: below the size of the second request


@pytest.mark.rule("D.I.1", "D.I.4")
def test_optional_records_drop_out_and_none_appears() -> None:
    full = decide(run(), 10_000)
    assert [(e.record_id, e.selected) for e in full.manifest.entries] == [("big", True), ("small", True)]
    used = full.manifest.budget.used_tokens
    less = decide(run(), used + 600)
    assert [(e.record_id, e.selected) for e in less.manifest.entries] == [("big", False), ("small", True)]
    assert less.manifest.refresh == "overflow-retry"
    none = decide(run(), used)
    assert [(e.record_id, e.selected) for e in none.manifest.entries] == [("big", False), ("small", False)]
    assert none.manifest.budget.input_tokens == used


@pytest.mark.rule("D.I.3", "D.B.15")
def test_mandatory_content_that_does_not_fit_is_an_error_of_its_phase() -> None:
    snapshot = create_working_memory(scope="s", now=0, goal="Deploy " * 50)
    assert decide(run(), 10_000, snapshot).manifest.entries[0].selected
    with pytest.raises(ContextBudgetExceededError) as raised:
        decide(run(), 60, snapshot)
    data = raised.value.data
    assert (data.phase, data.available_tokens is not None) == ("overflow-retry", True)
    assert (data.required_tokens or 0) > (data.available_tokens or 0)


@pytest.mark.rule("D.I.6", "D.T.4", "D.W.6")
def test_without_a_step_or_a_count_it_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="before_model_call"):
        plan(RunState("r"), 100)
    for limit in (-1, True, 1.5):
        with pytest.raises(InvalidTypeError):
            plan(run(), limit)  # type: ignore[arg-type]


@pytest.mark.rule("D.I.2", "D.F.13")
def test_its_placements_take_the_place_of_the_steps() -> None:
    state = run()
    again = commit_to(state, compiled(state, 0, "small", retrieved=False, overflow=900, package="sha256:again"))
    placed = commit_to(again, CallSucceeded(step=0))
    assert [(p.record_id, p.step) for p in placed.placed] == [("small", 0)]
    assert [(b.step, b.package) for b in placed.blocks] == [(0, "sha256:again")]
    reported = commit_to(state, CallFailed(step=0, status="overflow"))
    assert (reported.placed, len(reported.blocks)) == ((), 0)
    again = commit_to(reported, compiled(state, 0, "small", retrieved=False, overflow=900))
    assert [p.record_id for p in commit_to(again, CallSucceeded(step=0)).placed] == ["small"]


@pytest.mark.rule("D.I.1", "D.F.10")
def test_a_bound_model_keeps_its_tail_here_too() -> None:
    assert not plan(run(), 500).tail_kept
    assert plan(run(options=BOUND), 500).tail_kept

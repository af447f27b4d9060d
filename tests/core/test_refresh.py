"""When a run retrieves again: what is due, what is waived, what is reported (D.G.5-D.G.15, D.G.21)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.history import make_query
from contextbus.core.refresh import RefreshPlan, plan_refresh
from contextbus.core.run_state import LastStep, RunState
from contextbus_protocol.values import Model, RefreshOptions, Scope, StepOptions

LAST = LastStep(
    scope=Scope(user_id="ada"),
    step=3,
    pass_=1,
    command="c",
    count=1,
    chain="",
    options=StepOptions(scope=Scope(user_id="ada"), model=Model("p", "m", 1000, 100)),
    package="",
    package_digest="",
    sequence=1,
    digest="",
)
RUN = RunState("r", last=LAST, passes=1, last_refresh_step=3, last_active_task="t1")
OPTIONS = RefreshOptions()


def plan(
    state: RunState = RUN,
    *,
    step: int = 4,
    task: str | None = "t1",
    asked: bool = False,
    query: str = "How?",
    has_sources: bool = True,
    options: RefreshOptions = OPTIONS,
) -> RefreshPlan:
    return plan_refresh(
        state,
        options,
        step=step,
        active_task_id=task,
        host_request=asked,
        query=query,
        has_sources=has_sources,
    )


replace = msgspec.structs.replace


@pytest.mark.rule("D.J.1", "D.G.21")
@pytest.mark.parametrize(("query", "has_sources"), [("How?", True), (" ", True), ("How?", False), ("", False)])
def test_after_a_redaction_sources_are_asked_whatever_the_limits_say(query: str, has_sources: bool) -> None:
    due = plan_refresh(
        replace(RUN, passes=8),
        OPTIONS,
        step=4,
        active_task_id="t1",
        host_request=False,
        query=query,
        has_sources=has_sources,
        redacted=True,
    )
    asked = bool(query.strip())
    assert due == RefreshPlan("redacted", retrieve=has_sources and asked, skipped=has_sources and not asked)


@pytest.mark.rule("D.G.5", "D.G.15")
def test_the_first_call_retrieves() -> None:
    assert plan(RunState("r"), step=0) == RefreshPlan("initial", retrieve=True)
    assert plan(RunState("r"), step=7, task="t9", asked=True) == RefreshPlan("initial", retrieve=True)


@pytest.mark.rule("D.G.13", "D.G.5")
def test_nothing_new_is_reused() -> None:
    assert plan(step=500) == RefreshPlan("reused")


@pytest.mark.rule("D.G.5", "D.G.7", "D.G.15")
def test_a_host_request_is_not_bound_by_min_steps() -> None:
    assert plan(step=4, asked=True) == RefreshPlan("host-request", retrieve=True)
    assert plan(replace(RUN, refresh_requested=True)) == RefreshPlan("host-request", retrieve=True)


@pytest.mark.rule("D.G.5", "D.G.6", "D.G.9")
@pytest.mark.parametrize(("step", "due"), [(4, False), (6, False), (7, True), (8, True), (400, True)])
def test_a_task_change_waits_for_min_steps_and_stays_pending(step: int, due: bool) -> None:
    expected = RefreshPlan("task-change", retrieve=True) if due else RefreshPlan("reused")
    assert plan(step=step, task="t2") == expected
    assert plan(step=step, task="t1") == RefreshPlan("reused")  # back again: nothing differs any more


@pytest.mark.rule("D.G.8")
@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [(None, "t1", True), ("t1", None, True), ("t1", "t2", True), ("t1", "t1", False), (None, None, False)],
)
def test_set_cleared_and_switched_count_alike(before: str | None, after: str | None, changed: bool) -> None:
    state = replace(RUN, last_active_task=before)
    assert plan(state, step=9, task=after).retrieve == changed


@pytest.mark.rule("D.G.15")
def test_of_several_causes_the_strongest_is_reported() -> None:
    assert plan(step=9, task="t2", asked=True).reason == "host-request"
    assert plan(RunState("r"), step=9, task="t2", asked=True).reason == "initial"


@pytest.mark.rule("D.G.10", "D.G.12")
def test_at_the_pass_limit_nothing_is_retrieved_not_even_for_the_host() -> None:
    spent = replace(RUN, passes=8)
    limited = RefreshPlan("reused", fallback="pass-limit")
    assert plan(spent, asked=True) == limited
    assert plan(replace(spent, refresh_requested=True)) == limited
    assert plan(spent, step=9, task="t2") == limited
    assert plan(replace(RUN, passes=7), asked=True).retrieve
    assert plan(spent, asked=True, query=" ") == limited


@pytest.mark.rule("D.G.11")
def test_the_limit_is_reported_once_for_each_due_refresh() -> None:
    told = replace(RUN, passes=8, refused_task=("t2",))
    assert plan(told, step=9, task="t2") == RefreshPlan("reused")
    assert plan(told, step=9, task="t3") == RefreshPlan("reused", fallback="pass-limit")
    assert plan(told, step=9, task="t2", asked=True) == RefreshPlan("reused", fallback="pass-limit")
    nothing = RefreshOptions(max_passes=0)
    assert plan(RunState("r"), step=0, options=nothing).fallback == "pass-limit"
    assert plan(RunState("r", last=LAST, refused_task=("t1",)), options=nothing) == RefreshPlan("reused")


@pytest.mark.rule("D.G.21", "D.G.22")
@pytest.mark.parametrize("query", ["", " ", "\n\t\u3000"])
def test_an_empty_query_asks_nobody_and_names_the_due_reason(query: str) -> None:
    assert plan(RunState("r"), step=0, query=query) == RefreshPlan("initial", skipped=True)
    assert plan(asked=True, query=query) == RefreshPlan("host-request", skipped=True)
    assert plan(step=9, task="t2", query=query) == RefreshPlan("task-change", skipped=True)
    assert plan(query=query) == RefreshPlan("reused")


def test_without_sources_nothing_is_due() -> None:
    assert plan(RunState("r"), step=0, has_sources=False) == RefreshPlan("initial")
    assert plan(asked=True, has_sources=False) == RefreshPlan("reused")


@pytest.mark.rule("D.G.16", "D.G.19")
@given(st.none() | st.text(max_size=1500), st.text(max_size=1500))
def test_the_query_is_title_newline_text_cut_at_2000(title: str | None, text: str) -> None:
    query = make_query(title, text)
    assert len(query) <= 2000
    assert query == (f"{title}\n{text}" if title and text else title or text)[:2000]


STATES = st.builds(
    RunState,
    run=st.just("r"),
    last=st.none() | st.just(LAST),
    passes=st.integers(0, 9),
    last_refresh_step=st.none() | st.integers(0, 9),
    last_active_task=st.sampled_from([None, "t1", "t2"]),
    refused_task=st.sampled_from([(), (None,), ("t1",), ("t2",)]),
    refresh_requested=st.booleans(),
)


@pytest.mark.rule("D.G.10", "D.G.13", "D.G.14", "D.G.32", "D.D.14")
@given(
    state=STATES,
    step=st.integers(0, 20),
    task=st.sampled_from([None, "t1", "t2"]),
    asked=st.booleans(),
    query=st.sampled_from(["", "How?"]),
    passes=st.integers(0, 8),
    steps=st.integers(0, 6),
)
def test_a_plan_is_one_of_four_things(
    state: RunState, step: int, task: str | None, asked: bool, query: str, passes: int, steps: int
) -> None:
    options = RefreshOptions(steps, passes, 16)
    made = plan(state, step=step, task=task, asked=asked, query=query, options=options)
    assert made == plan(state, step=step, task=task, asked=asked, query=query, options=options)
    assert not (made.retrieve and made.skipped)
    if made.retrieve:
        assert state.passes < passes
        assert query
    if made.retrieve or made.skipped:
        assert made.reason in {"initial", "host-request", "task-change"}
        assert made.fallback is None
    else:
        assert made.reason == "reused"
    if made.fallback is not None:
        assert state.passes >= passes

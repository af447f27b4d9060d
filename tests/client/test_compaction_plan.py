"""Planning without a model, and putting a summary in its place: the same as ``compact`` in two halves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.compacting import (
    LABEL,
    MEDIA,
    Counted,
    Scripted,
    assistant,
    b1,
    b2,
    compact,
    compacted,
    user,
)

import contextbus.client as contextbus
from contextbus.client import CannotFit, Compacted, CompactionPlan, RetentionPolicy, Usage
from contextbus.summarisers.interface import MalformedSummaryError, Summary
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import InvalidTypeError, RangeError

plan_compaction: Any = contextbus.plan_compaction


def planned(messages: Any, **options: Any) -> CompactionPlan:
    plan = plan_compaction(messages, **{"target_tokens": 100, "keep_last_messages": 2, **options})
    assert isinstance(plan, CompactionPlan)
    return plan


@pytest.mark.rule("C.A.1", "C.F.2", "C.F.3", "C.F.4")
def test_a_plan_says_what_is_replaced_and_what_to_ask() -> None:
    plan = planned(b2(), instructions="Keep ids.")
    assert (plan.replaced_range.start, plan.replaced_range.end, plan.replayed) == (0, 3, 0)
    assert (plan.tokens_before, plan.room) == (170, 19)
    assert plan.request.max_output_tokens == 19
    assert plan.request.instructions.endswith("Keep ids.")
    assert "find it" in plan.request.prompt
    assert planned(b1()).replayed is None


@pytest.mark.rule("C.G.1", "C.E.7")
def test_a_summary_takes_its_place() -> None:
    messages = b1()
    plan = planned(messages)
    result = contextbus.apply_summary(plan, " Short. ")
    assert isinstance(result, Compacted)
    assert (result.summary, result.tokens.after) == ("Short.", 35)
    assert result.messages[0] == user(f"{LABEL}Short.")
    assert all(a is b for a, b in zip(result.messages[1:], messages[2:], strict=True))


@pytest.mark.rule("C.A.10", "C.G.8")
def test_a_plan_serves_again_after_a_summary_that_was_too_large() -> None:
    plan = planned(b1())
    large = contextbus.apply_summary(plan, "x" * 1000)
    assert isinstance(large, CannotFit)
    assert large.reason == "summary-too-large"
    small = contextbus.apply_summary(plan, "Short.")
    assert small == contextbus.apply_summary(planned(b1()), "Short.")


@pytest.mark.rule("C.G.4", "C.G.5", "C.G.6")
def test_the_checks_are_those_of_the_one_call() -> None:
    plan = planned(b1())
    cut = contextbus.apply_summary(plan, Summary((SummaryPart("text", "x"),), "length", Usage(5, 1)))
    assert isinstance(cut, CannotFit)
    assert (cut.reason, cut.usage) == ("incomplete-summary", Usage(5, 1))
    empty = contextbus.apply_summary(plan, " ")
    assert isinstance(empty, CannotFit)
    assert empty.reason == "empty-summary"
    with pytest.raises(MalformedSummaryError):
        contextbus.apply_summary(plan, 5)  # type: ignore[arg-type]  # what is tested


@pytest.mark.rule("C.G.3")
def test_where_nothing_can_be_asked_the_plan_says_so() -> None:
    assert plan_compaction([user()], target_tokens=100).reason == "no-safe-boundary"
    full = plan_compaction(b1(), target_tokens=34, keep_last_messages=2)
    assert (full.reason, full.required_tokens, full.messages) == ("protected-history", 35, tuple(b1()))


@pytest.mark.rule("C.A.2", "C.C.3", "C.C.5")
def test_its_options_are_checked_likewise() -> None:
    with pytest.raises(RangeError, match="target_tokens"):
        plan_compaction(b1(), target_tokens=0)
    with pytest.raises(InvalidTypeError, match="count_tokens"):
        plan_compaction([*b1(), MEDIA], target_tokens=100)
    with pytest.raises(RangeError, match="count_tokens"):
        plan_compaction(b1(), target_tokens=100, count_tokens=Counted(lambda _: -1))


@pytest.mark.rule("C.C.4")
def test_a_counter_that_waits_is_refused() -> None:
    async def later(_: Any) -> int:
        return 5

    with pytest.raises(InvalidTypeError, match="async"):
        plan_compaction(b1(), target_tokens=100, count_tokens=later)


@pytest.mark.rule("C.C.7", "C.A.10")
@given(
    st.integers(1, 300),
    st.integers(1, 6),
    st.sampled_from(["", "Short.", "x" * 200]),
    st.none() | st.integers(1, 200),
)
async def test_both_halves_together_are_the_one_call(target: int, keep: int, text: str, recent: int | None) -> None:
    messages = [*b2(), user("more"), assistant("x" * 40)]
    options: dict[str, Any] = {"target_tokens": target, "keep_last_messages": keep}
    if recent is not None:
        options["keep"] = RetentionPolicy(keep_recent_tokens=recent)
    one, two = Counted(), Counted()
    whole = await compact(messages, model=Scripted(text), count_tokens=one, **options)
    plan = plan_compaction(messages, count_tokens=two, **options)
    halves = contextbus.apply_summary(plan, text) if isinstance(plan, CompactionPlan) else plan
    assert halves == whole
    assert one.given == two.given


async def test_the_one_call_with_the_same_text_gives_the_same() -> None:
    assert contextbus.apply_summary(planned(b1()), "Short.") == await compacted(
        b1(), keep_last_messages=2, target_tokens=100
    )

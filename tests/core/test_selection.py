"""Selection under a budget, in the order of D.B.20.

The counter of these tests reads costs off the texts: ``#7#`` costs 7 tokens, everything else nothing.  A block then
costs the 4 tokens of its message and what its parts say.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide, share_hints
from contextbus.core.estimate import Estimator, make_estimator
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import ContextBudgetExceededError, InvalidRequestError
from contextbus_protocol.package import ContextManifest
from contextbus_protocol.values import (
    SOURCE_KINDS,
    Candidate,
    ContextBudget,
    EstimatorSpec,
    PlacedEntry,
    Shares,
    SourceKind,
    SourceResult,
    SourceStatus,
)
from contextbus_protocol.working_memory import Goal, Observation, Task, TaskList, Tasks, WorkingMemorySnapshot

EVEN = Shares(1, 1, 1, 1)
FRAME = 4
"""What a block's message costs beside the costs that texts name."""


def estimator() -> Estimator:
    spec = EstimatorSpec(kind="tokenizer", name="named-costs")
    return make_estimator(spec, {"named-costs": lambda text: sum(map(int, re.findall(r"#(\d+)#", text)))})


def offer(record_id: str, cost: int, score: float = 1.0, **fields: Any) -> Candidate:
    text = f"{record_id} #{cost}#"
    return Candidate(record_id, text, score, digest_text(text), **fields)


def answer(source: str, *candidates: Candidate, kind: SourceKind = "rag") -> SourceResult:
    return SourceResult(source, kind, candidates=candidates)


def memory(goal: int | None = None, *observations: int) -> WorkingMemorySnapshot:
    """A working memory whose goal and observations cost so much; the newest observation comes first."""
    return WorkingMemorySnapshot(
        version=1,
        scope="s",
        revision=1,
        goal=None if goal is None else Goal(text=f"#{goal}#", writer="host", revision=0, changed_at=0),
        observations=tuple(
            Observation(id=f"o{number}", text=f"#{cost}#", writer="model", revision=0, changed_at=0)
            for number, cost in enumerate(observations)
        ),
    )


def decided(context: int, *results: SourceResult, room: int = 10_000, **fields: Any) -> ContextManifest:
    """Decide with ``context`` tokens to add and ``room`` tokens that the request leaves."""
    fields.setdefault("budget", ContextBudget(ratio=1, max_tokens=context, shares=EVEN))
    given = ContextInput(run_id="r", step=0, input_tokens=room, used_tokens=0, results=results, **fields)
    return decide(given, estimator()).manifest


def reasons(manifest: ContextManifest) -> dict[str, str]:
    return {entry.record_id: entry.reason for entry in manifest.entries}


@pytest.mark.rule("D.C.1", "D.C.2", "D.C.3", "D.D.6")
def test_entries_go_by_source_then_score_then_id_by_code_point() -> None:
    manifest = decided(
        1000,
        answer("z", offer("b", 1), offer("B", 2), offer("ä", 3), offer("10", 4), offer("9", 5), offer("top", 6, 2.0)),
        answer("a", offer("first", 7, 9.0)),
    )
    assert [entry.record_id for entry in manifest.entries] == ["top", "10", "9", "B", "b", "ä", "first"]


@pytest.mark.rule("D.C.1", "D.C.2", "D.B.11")
def test_sources_of_one_kind_share_its_allowance_by_score_then_source_order() -> None:
    budget = ContextBudget(ratio=1, max_tokens=FRAME + 20, shares=Shares(0, 1, 0, 0))
    manifest = decided(
        0,
        answer("one", offer("x", 10, 0.5), offer("y", 10, 0.4)),
        answer("two", offer("a", 10, 0.5), offer("b", 10, 0.9)),
        budget=budget,
    )
    assert reasons(manifest) == {"x": "ranked", "y": "over-budget", "b": "ranked", "a": "over-budget"}


@pytest.mark.rule("D.C.2", "D.C.3")
@pytest.mark.parametrize(("first", "second"), [("B", "a"), ("10", "9"), ("Z", "ä"), ("z", "ä")])
@pytest.mark.parametrize("share", [0, 1], ids=["pass two", "pass one"])
def test_the_last_place_goes_to_the_id_that_is_first_by_code_point(first: str, second: str, share: int) -> None:
    budget = ContextBudget(ratio=1, max_tokens=FRAME + 8, shares=Shares(1 - share, share, 0, 0))
    manifest = decided(0, answer("docs", offer(second, 8), offer(first, 8)), budget=budget)
    taken = [entry.record_id for entry in manifest.entries if entry.selected]
    assert taken == [first]


@pytest.mark.rule("D.C.5", "D.C.6", "D.C.13", "D.B.18", "D.D.1")
def test_what_does_not_fit_is_skipped_and_smaller_ones_behind_it_are_tried() -> None:
    manifest = decided(
        FRAME + 20,
        answer("docs", offer("a", 15, 0.9), offer("b", 10, 0.8), offer("c", 5, 0.7), offer("d", 1, 0.6)),
        budget=ContextBudget(ratio=1, max_tokens=FRAME + 20, shares=Shares(0, 1, 0, 0)),
    )
    assert reasons(manifest) == {"a": "ranked", "b": "over-budget", "c": "ranked", "d": "over-budget"}
    assert [entry.tokens for entry in manifest.entries] == [15, 10, 5, 1]
    assert manifest.budget.selected_tokens == FRAME + 20


@pytest.mark.rule("D.C.7", "D.C.8", "D.B.11", "D.B.20")
def test_what_kinds_leave_is_open_to_all_by_score_source_order_and_id() -> None:
    manifest = decided(
        FRAME + 40,  # 10 for each kind
        answer("m", offer("m1", 10, 0.1), offer("m2", 7, 0.5), kind="memory"),
        answer("d", offer("d1", 10, 0.9), offer("d2", 8, 0.5), offer("d3", 8, 0.6), kind="rag"),
    )
    # Pass 1: m2 (7 of 10), d1 (10 of 10).  Pass 2: 23 left, d3, then d2, which leaves 7, too few for m1.
    assert reasons(manifest) == {
        "m2": "ranked",
        "m1": "over-budget",
        "d1": "ranked",
        "d3": "reallocated",
        "d2": "reallocated",
    }


@pytest.mark.rule("D.C.8")
def test_pass_two_breaks_ties_by_source_order() -> None:
    budget = ContextBudget(ratio=1, max_tokens=FRAME + 8, shares=Shares(0, 0, 1, 0))
    manifest = decided(0, answer("z", offer("z1", 8, 0.5)), answer("a", offer("a1", 8, 0.5)), budget=budget)
    assert reasons(manifest) == {"z1": "reallocated", "a1": "over-budget"}


@pytest.mark.rule("D.B.9", "D.B.20")
def test_allowance_is_floored_and_an_exact_fit_fits() -> None:
    budget = ContextBudget(ratio=1, max_tokens=FRAME + 19, shares=Shares(1, 1, 0, 0))  # 9.5 for each
    manifest = decided(0, answer("d", offer("a", 9, 0.9), offer("b", 10, 0.8)), budget=budget)
    assert reasons(manifest) == {"a": "ranked", "b": "reallocated"}
    assert manifest.budget.selected_tokens == FRAME + 19


@pytest.mark.rule("D.B.12", "D.B.13", "D.C.9", "D.B.20")
def test_mandatory_candidate_may_pass_the_budget_but_not_the_room() -> None:
    body = answer("skills", offer("s/body", 500, 0.0, mandatory=True), kind="skills")
    manifest = decided(100, body, answer("d", offer("a", 1)), room=FRAME + 500)
    assert reasons(manifest) == {"s/body": "mandatory", "a": "over-budget"}
    assert manifest.budget.selected_tokens == FRAME + 500


@pytest.mark.rule("D.B.14", "D.B.15", "D.B.16", "D.T.1")
@pytest.mark.parametrize("phase", ["compile", "overflow-retry"])
def test_mandatory_content_that_does_not_fit_is_an_error_with_both_numbers(phase: Any) -> None:
    body = answer("skills", offer("s/body", 500, mandatory=True), kind="skills")
    required = (FRAME + 30) + (FRAME + 500)
    fields: dict[str, Any] = {"working_memory": memory(30), "phase": phase}
    assert decided(100, body, room=required, **fields).budget.selected_tokens == required
    with pytest.raises(ContextBudgetExceededError) as caught:
        decided(100, body, room=required - 1, **fields)
    error = caught.value
    assert (error.code, error.required_tokens, error.available_tokens, error.phase) == (
        "context_budget_exceeded",
        required,
        required - 1,
        phase,
    )


@pytest.mark.rule("D.B.16", "D.B.6")
def test_available_tokens_are_never_negative() -> None:
    given = ContextInput(run_id="r", step=0, input_tokens=10, used_tokens=11, working_memory=memory(1))
    with pytest.raises(ContextBudgetExceededError) as caught:
        decide(given, estimator())
    assert (caught.value.required_tokens, caught.value.available_tokens) == (FRAME + 1, 0)


@pytest.mark.rule("D.B.15")
def test_budget_error_names_no_content() -> None:
    body = answer("skills", offer("secret", 500, mandatory=True), kind="skills")
    with pytest.raises(ContextBudgetExceededError, match=r"^[^#]*504 tokens[^#]*leaves 10[^#]*$") as caught:
        decided(0, body, room=10)
    assert "secret" not in str(caught.value)


@pytest.mark.rule("D.B.12", "D.B.20")
def test_mandatory_candidate_that_stands_in_the_history_is_not_owed() -> None:
    body = offer("s/body", 500, mandatory=True)
    standing = PlacedEntry("skills", body.record_id, body.digest, step=0, pass_=1, tokens=500)
    manifest = decided(100, answer("skills", body, kind="skills"), room=10, placed=(standing,))
    assert reasons(manifest) == {"s/body": "already-placed"}
    assert manifest.budget.selected_tokens == 0


@pytest.mark.rule("D.B.17", "D.B.20")
def test_optional_content_gets_what_mandatory_leaves_of_the_budget() -> None:
    body = answer("skills", offer("s/body", 50, mandatory=True), kind="skills")
    docs = answer("d", offer("a", 30, 0.9), offer("b", 6, 0.8))
    # 100 - (4 + 10 of the goal) - (4 + 50) = 32 to share; the frame is paid with the body.
    manifest = decided(100, body, docs, working_memory=memory(10))
    assert reasons(manifest) == {"goal": "mandatory", "s/body": "mandatory", "a": "over-budget", "b": "ranked"}
    assert manifest.budget.selected_tokens == 14 + 54 + 6
    # Four more: 36 to share, b takes 6 of rag's 9, and 30 are left for a.
    wider = decided(104, body, docs, working_memory=memory(10))
    assert reasons(wider) == {"goal": "mandatory", "s/body": "mandatory", "a": "reallocated", "b": "ranked"}
    assert wider.budget.selected_tokens == 104


@pytest.mark.rule("D.B.8", "D.B.20", "D.P.5", "D.D.5", "D.D.26", "D.C.13")
def test_optional_items_fill_what_mandatory_ones_leave_of_their_part() -> None:
    budget = ContextBudget(ratio=1, max_tokens=1000, working_memory_tokens=FRAME + 30, shares=EVEN)
    manifest = decided(0, working_memory=memory(10, 15, 10, 5), budget=budget)
    assert [(e.source, e.kind, e.record_id, e.reason, e.selected, e.query) for e in manifest.entries] == [
        ("working-memory", "working-memory", "goal", "mandatory", True, None),
        ("working-memory", "working-memory", "observation/o0", "ranked", True, None),
        ("working-memory", "working-memory", "observation/o1", "over-budget", False, None),
        ("working-memory", "working-memory", "observation/o2", "ranked", True, None),
    ]
    assert manifest.budget.working_memory_tokens == FRAME + 30


@pytest.mark.rule("D.B.8", "D.B.12")
def test_mandatory_items_alone_may_pass_their_part_and_leave_no_room_for_optional_ones() -> None:
    budget = ContextBudget(ratio=1, max_tokens=1000, working_memory_tokens=10, shares=EVEN)
    manifest = decided(0, working_memory=memory(50, 0, 1), budget=budget)
    assert reasons(manifest) == {"goal": "mandatory", "observation/o0": "ranked", "observation/o1": "over-budget"}
    assert manifest.budget.working_memory_tokens == FRAME + 50


@pytest.mark.rule("D.B.20", "D.F.7")
@pytest.mark.parametrize(("part", "taken"), [(FRAME + 15, ["o0"]), (FRAME + 14, ["o1"]), (FRAME + 9, []), (0, [])])
def test_without_a_mandatory_item_the_first_optional_one_pays_the_fixed_text(part: int, taken: list[str]) -> None:
    budget = ContextBudget(ratio=1, max_tokens=1000, working_memory_tokens=part, shares=EVEN)
    manifest = decided(0, working_memory=memory(None, 15, 10), budget=budget)
    assert [e.record_id.removeprefix("observation/") for e in manifest.entries if e.selected] == taken
    assert manifest.placement.tail == bool(taken)
    assert manifest.budget.working_memory_tokens == (FRAME + {"o0": 15, "o1": 10}[taken[0]] if taken else 0)


@pytest.mark.rule("D.B.20", "D.M.13")
def test_fixed_text_and_wrapper_are_paid_once() -> None:
    budget = ContextBudget(ratio=1, max_tokens=1000, working_memory_tokens=FRAME + 25, shares=EVEN)
    manifest = decided(0, working_memory=memory(None, 15, 10), budget=budget)
    assert [entry.selected for entry in manifest.entries] == [True, True]
    assert manifest.budget.working_memory_tokens == FRAME + 25

    characters = make_estimator(EstimatorSpec(name="characters"))
    given = ContextInput(run_id="r", step=0, input_tokens=9000, used_tokens=0, working_memory=memory(None, 15, 10))
    first, second = decide(given, characters).manifest.entries
    line, wrapper = len("- [o0] #15#\n"), len("<observations>\n</observations>\n")
    assert (first.tokens, second.tokens) == (-(-5 * (line + wrapper) // 18), -(-5 * line // 18))


@pytest.mark.rule("D.B.20")
def test_optional_items_are_bound_by_the_context_that_mandatory_candidates_leave() -> None:
    body = answer("skills", offer("s/body", 50, mandatory=True), kind="skills")
    manifest = decided(FRAME + 50 + FRAME + 10 + 5, body, working_memory=memory(10, 6, 5))
    assert reasons(manifest)["observation/o0"] == "over-budget"
    assert reasons(manifest)["observation/o1"] == "ranked"


@pytest.mark.rule("D.B.10", "D.B.20")
def test_kinds_share_what_working_memory_takes_not_what_it_might() -> None:
    budget = ContextBudget(ratio=1, max_tokens=100, working_memory_tokens=90, shares=Shares(0, 1, 0, 0))
    manifest = decided(0, answer("d", offer("a", 100 - 2 * FRAME - 10)), working_memory=memory(10), budget=budget)
    assert reasons(manifest) == {"goal": "mandatory", "a": "ranked"}
    assert manifest.budget.selected_tokens == 100


@pytest.mark.rule("D.B.20", "D.E.10", "D.D.10")
def test_frame_is_set_aside_but_not_charged_when_nothing_is_taken() -> None:
    manifest = decided(FRAME + 9, answer("d", offer("a", 10)), working_memory=None)
    assert reasons(manifest) == {"a": "over-budget"}
    assert manifest.budget.selected_tokens == 0
    assert not manifest.placement.append


@pytest.mark.rule("D.B.20")
@pytest.mark.parametrize("active_id", ["t", None])
def test_active_task_is_mandatory_and_the_list_is_not(active_id: str | None) -> None:
    listed = TaskList("", (Task("t", "#9#"),))
    tasks = Tasks(list=listed, list_revision=1, writer="host", revision=0, changed_at=0, active_task_id=active_id)
    snapshot = WorkingMemorySnapshot(version=1, scope="s", revision=0, tasks=tasks)
    budget = ContextBudget(ratio=1, max_tokens=1000, working_memory_tokens=0, shares=EVEN)
    manifest = decided(0, working_memory=snapshot, budget=budget)
    expected = {"tasks": "over-budget"} | ({"active-task": "mandatory"} if active_id else {})
    assert reasons(manifest) == expected


@pytest.mark.rule("D.B.20", "D.G.23")
def test_hint_of_a_source_is_its_share_of_what_working_memory_leaves() -> None:
    budget = ContextBudget(ratio=1, max_tokens=100, working_memory_tokens=30, shares=Shares(1, 3, 0, 0))
    snapshot = memory(10, 5, 20)
    hints = share_hints(10_000, 0, budget, snapshot, estimator())
    assert hints == {"memory": 20, "rag": 60, "transcript": 0, "skills": 0}  # of 100 - 4 - 10 - 5 = 81
    assert share_hints(10_000, 0, budget, None, estimator()) == {"memory": 25, "rag": 75, "transcript": 0, "skills": 0}
    for nothing_else in (budget, ContextBudget(shares=Shares(0, 1, 0, 0))):
        assert set(share_hints(10, 20, nothing_else, None, estimator()).values()) == {0}


@pytest.mark.rule("D.K.22")
@pytest.mark.parametrize(("claimed", "tokens", "ignored"), [(10, 10, 0), (9, 20, 1), (20, 20, 0), (300, 300, 0)])
def test_own_count_counts_from_half_of_ours(claimed: int, tokens: int, ignored: int) -> None:
    manifest = decided(1000, answer("d", offer("a", 20, tokens=claimed)))
    assert manifest.entries[0].tokens == tokens
    assert manifest.sources[0].tokens_ignored == ignored


@pytest.mark.rule("D.K.22", "D.M.13")
def test_rest_of_a_record_is_counted_by_us_beside_the_sources_own_count() -> None:
    manifest = decided(1000, answer("d #3#", offer("a", 20, tokens=12)))
    assert manifest.entries[0].tokens == 12 + 3


@pytest.mark.rule("D.H.10", "D.Y.1", "D.G.14")
def test_record_whose_block_left_competes_again_as_restored() -> None:
    again = answer("d", offer("a", 10, 0.9), offer("b", 50, 0.8), offer("c", 5, mandatory=True))
    manifest = decided(FRAME + 40, restored=(again,), refresh="reused")
    assert reasons(manifest) == {"c": "mandatory", "a": "restored", "b": "over-budget"}
    assert manifest.sources == ()


@pytest.mark.rule("D.H.9", "D.C.15")
def test_restored_record_gives_way_to_what_its_source_offers_now() -> None:
    old, same = offer("a", 1, revision=1), offer("b", 2, revision=1)
    fresh = answer("d", offer("a", 3, revision=2), same)
    manifest = decided(1000, fresh, restored=(answer("d", old, same), answer("gone", offer("x", 1))))
    assert [(e.source, e.record_id, e.revision, e.reason) for e in manifest.entries] == [
        ("d", "a", 2, "ranked"),
        ("d", "a", 1, "superseded"),
        ("d", "b", 1, "ranked"),
        ("gone", "x", None, "restored"),
    ]
    assert [summary.source for summary in manifest.sources] == ["d"]


@pytest.mark.rule("D.T.2", "D.G.28")
def test_failed_required_source_is_refused() -> None:
    failed = SourceResult(
        "docs", "rag", status=SourceStatus.FAILED, required=True, error="timeout", origin_code="error"
    )
    with pytest.raises(InvalidRequestError, match="docs") as caught:
        decided(100, failed)
    assert caught.value.data.origin == "docs"


COSTS = st.integers(0, 40)
SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def answers(draw: st.DrawFn) -> tuple[SourceResult, ...]:
    results: list[SourceResult] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(SOURCE_KINDS), max_size=5))):
        candidates = [
            offer(f"{number}-{index}", cost, score, mandatory=mandatory)
            for index, (cost, score, mandatory) in enumerate(
                draw(st.lists(st.tuples(COSTS, SCORES, st.sampled_from([False] * 6 + [True])), max_size=6))
            )
        ]
        results.append(answer(f"s{number}", *candidates, kind=kind))
    return tuple(results)


@pytest.mark.rule("D.B.9", "D.B.17", "D.B.20", "D.C.5", "D.C.6", "D.C.7", "D.D.10")
@given(
    answers(),
    st.integers(0, 150),
    st.integers(0, 60),
    st.builds(Shares, *[st.integers(0, 5).map(float)] * 4).filter(
        lambda s: s.memory + s.rag + s.transcript + s.skills > 0
    ),
    st.none() | st.builds(memory, st.none() | COSTS, COSTS, COSTS, COSTS),
)
def test_any_selection_keeps_its_sums(
    results: tuple[SourceResult, ...],
    context: int,
    part: int,
    shares: Shares,
    snapshot: WorkingMemorySnapshot | None,
) -> None:
    budget = ContextBudget(ratio=1, max_tokens=context, working_memory_tokens=part, shares=shares)
    manifest = decided(0, *results, budget=budget, working_memory=snapshot)
    entries = manifest.entries
    assert len(entries) == sum(len(r.candidates) for r in results) + sum(e.kind == "working-memory" for e in entries)
    records = [e for e in entries if e.kind != "working-memory"]
    optional = [e for e in records if e.selected and e.reason != "mandatory"]
    owed = [e.tokens for e in entries if e.reason == "mandatory"]
    taken = [e.tokens for e in records if e.selected]
    append = FRAME + sum(taken) if taken else 0
    assert manifest.budget.selected_tokens == manifest.budget.working_memory_tokens + append
    frames = FRAME * (
        any(e.reason == "mandatory" for e in records)
        + any(e.reason == "mandatory" for e in entries if e not in records)
    )
    assert manifest.budget.selected_tokens <= max(context, sum(owed) + frames)
    rest = max(
        0,
        context
        - manifest.budget.working_memory_tokens
        - FRAME
        - sum(e.tokens for e in records if e.reason == "mandatory"),
    )
    weights = {"memory": shares.memory, "rag": shares.rag, "transcript": shares.transcript, "skills": shares.skills}
    for kind, weight in weights.items():
        ranked = sum(e.tokens for e in optional if e.reason == "ranked" and e.kind == kind)
        assert ranked <= int(weight / sum(weights.values()) * rest)
    if any(e.reason == "mandatory" for e in records) or context - manifest.budget.working_memory_tokens >= FRAME:
        left = rest - sum(e.tokens for e in optional)
        assert all(e.tokens > left for e in records if e.reason == "over-budget")
    else:
        assert not optional


@pytest.mark.rule("D.B.17", "D.B.20")
def test_b47_record_that_costs_nothing_brings_no_block_that_does_not_fit() -> None:
    """Public report B47: something is always emitted, whatever the budget."""
    for context in range(FRAME):
        manifest = decided(context, answer("d", offer("a", 0)))
        assert reasons(manifest) == {"a": "over-budget"}
        assert manifest.budget.selected_tokens == 0
    assert reasons(decided(FRAME, answer("d", offer("a", 0)))) == {"a": "ranked"}

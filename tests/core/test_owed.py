"""Records that a run is owed: they left with their block, and return from what the log recorded (D.H, D.J)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.logs import OPTIONS, append, commit_to, compiled

from contextbus.core.estimate import make_estimator
from contextbus.core.owed import demand_missing, restore_results, still_owed
from contextbus.core.run_state import OwedEntry, RunState
from contextbus.core.step import StepPlan, decide_step, plan_step
from contextbus.sources.interface import candidate
from contextbus_protocol.codec import encode_json
from contextbus_protocol.events import (
    AnyEvent,
    CallFailed,
    CallSucceeded,
    EntryFact,
    HistoryReplaced,
    MessageFact,
    MessagesAppended,
    SkillCall,
    SourceFact,
    StepCompiled,
)
from contextbus_protocol.package import StepDecision
from contextbus_protocol.values import (
    ContextBudget,
    EstimatorSpec,
    PlacedEntry,
    RefreshOptions,
    SourceResult,
    SourceSpec,
    SourceStatus,
)

ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
DOCS = SourceSpec("docs", "rag")
SKILLS = SourceSpec("skills", "skills")
NEW = RunState("r")
WITH = msgspec.structs.replace(OPTIONS, sources=(DOCS, SKILLS))
replace = msgspec.structs.replace


def fact(record: str, revision: int | None = None, *, mandatory: bool = False, source: str = "docs") -> EntryFact:
    made = candidate(record, f"text of {record} {revision}", 0.5, revision)
    return EntryFact(
        source=source,
        kind="rag",
        record_id=record,
        digest=made.digest,
        tokens=9,
        selected=True,
        reason="mandatory" if mandatory else "ranked",
        revision=revision,
        mandatory=mandatory,
    )


def placing(state: RunState, step: int, *facts: EntryFact, **changes: Any) -> StepCompiled:
    return replace(compiled(state, step, *[f.record_id for f in facts]), entries=facts, **changes)


def take(state: RunState, step: int, *facts: EntryFact, text: str = "", **changes: Any) -> RunState:
    """The run after a step that placed records, and its call."""
    state = commit_to(state, append(state, text or f"message {step}"))
    state = commit_to(state, placing(state, step, *facts, **changes))
    return commit_to(state, CallSucceeded(step=step))


def offers(*facts: EntryFact) -> tuple[SourceResult, ...]:
    """What a package's blob holds of the offers of these records."""
    found = [candidate(f.record_id, f"text of {f.record_id} {f.revision}", 0.5, f.revision) for f in facts]
    return (SourceResult("docs", "rag", candidates=tuple(found)),)


def plan(state: RunState, step: int = 9, **changes: Any) -> StepPlan:
    return plan_step(
        state,
        step=step,
        options=replace(WITH, **changes),
        host_request=False,
        user_text="q",
        snapshot=None,
        estimator=ESTIMATOR,
    )


def decide(
    state: RunState, made: StepPlan, restored: tuple[SourceResult, ...], results: tuple[SourceResult, ...] = ()
) -> StepDecision:
    return decide_step(
        state, made, options=WITH, results=results, restored=restored, snapshot=None, estimator=ESTIMATOR
    )


def reasons(decision: StepDecision) -> list[tuple[str, bool, str]]:
    return [(e.record_id, e.selected, e.reason) for e in decision.manifest.entries]


X, Y = fact("x"), fact("y")


# -- what is owed


@pytest.mark.rule("D.H.5", "D.H.6", "D.F.14")
def test_the_records_of_a_block_that_left_are_owed_with_the_blob_that_holds_their_offers() -> None:
    state = take(take(NEW, 0, X, Y), 1, fact("z"))
    assert state.owed == ()
    cut = commit_to(state, HistoryReplaced(keep=1))
    assert [(o.entry.record_id, o.package, o.waits) for o in cut.owed] == [("z", "sha256:package-1", False)]
    assert [p.record_id for p in cut.placed] == ["x", "y"]
    cut = commit_to(state, HistoryReplaced(keep=0))
    assert [(o.entry.record_id, o.package) for o in cut.owed] == [
        ("x", "sha256:package-0"),
        ("y", "sha256:package-0"),
        ("z", "sha256:package-1"),
    ]
    assert cut.placed == ()


@pytest.mark.rule("D.H.9", "D.C.18")
def test_only_the_newest_placement_of_a_record_is_owed() -> None:
    state = take(take(NEW, 0, fact("x", 1)), 1, fact("x", 2))
    assert [o.entry.revision for o in commit_to(state, HistoryReplaced(keep=0)).owed] == [2]
    state = take(take(NEW, 0, fact("x", 2)), 1, fact("x"))  # a revision counts for more than the step
    assert [o.entry.revision for o in commit_to(state, HistoryReplaced(keep=0)).owed] == [2]
    state = take(take(NEW, 0, fact("x", 1)), 1, fact("x", 3))
    assert [o.entry.revision for o in commit_to(state, HistoryReplaced(keep=1)).owed] == [3]


ENTRIES = st.builds(
    PlacedEntry,
    source=st.sampled_from(["docs", "memory"]),
    record_id=st.sampled_from("xy"),
    digest=st.just("d"),
    step=st.integers(0, 4),
    pass_=st.just(1),
    tokens=st.just(1),
    revision=st.none() | st.integers(0, 3),
)


@pytest.mark.rule("D.H.9")
@given(owed=st.lists(ENTRIES, max_size=6), placed=st.lists(ENTRIES, max_size=4))
def test_no_older_placement_follows_a_newer_one(owed: list[PlacedEntry], placed: list[PlacedEntry]) -> None:
    def age(entry: PlacedEntry) -> tuple[int, int]:
        return (-1 if entry.revision is None else entry.revision, entry.step)

    left = [o.entry for o in still_owed((OwedEntry(e, "p") for e in owed), placed)]
    keys = [(e.source, e.record_id) for e in left]
    assert len(keys) == len(set(keys))
    for entry in owed:
        newest = [e for e in left if (e.source, e.record_id) == (entry.source, entry.record_id)]
        rivals = [e for e in placed if (e.source, e.record_id) == (entry.source, entry.record_id)]
        if newest:
            assert age(newest[0]) >= age(entry)
            assert all(age(e) < age(newest[0]) for e in rivals)
        else:
            assert any(age(e) >= age(entry) for e in rivals)


# -- what comes of it


@pytest.mark.rule("D.H.5", "D.H.10", "D.G.14", "D.Y.2")
def test_owed_records_compete_again_on_a_step_that_is_still_reused() -> None:
    state = commit_to(take(NEW, 0, X, Y), HistoryReplaced(keep=0))
    state = commit_to(state, append(state, "again"))
    made = plan(state)
    assert (made.refresh.reason, made.refresh.retrieve, made.pass_) == ("reused", False, 1)
    restored, missing = restore_results(made.restore, {"sha256:package-0": offers(Y, X)}, ["docs"])
    assert missing == ()
    decision = decide(state, made, restored)
    assert reasons(decision) == [("x", True, "restored"), ("y", True, "restored")]
    assert decision.manifest.sources == ()
    assert (decision.manifest.refresh, decision.manifest.pass_) == ("reused", 1)


@pytest.mark.rule("D.H.10")
def test_what_does_not_fit_waits_for_the_next_retrieval_once_the_call_succeeded() -> None:
    state = commit_to(take(NEW, 0, X, Y), HistoryReplaced(keep=0))
    state = commit_to(state, append(state, "again"))
    made = plan(state, budget=ContextBudget(max_tokens=0))
    none = decide_step(
        state,
        made,
        options=replace(WITH, budget=ContextBudget(max_tokens=0)),
        results=(),
        restored=offers(X, Y),
        snapshot=None,
        estimator=ESTIMATOR,
    )
    assert reasons(none) == [("x", False, "over-budget"), ("y", False, "over-budget")]
    state = commit_to(state, placing(state, 1, X, pass_=1))
    failed = commit_to(state, CallFailed(step=1, status="failed"))
    assert [o.entry.record_id for o in plan(failed).restore] == ["x", "y"]  # nothing was settled
    state = commit_to(state, CallSucceeded(step=1))
    assert [(o.entry.record_id, o.waits) for o in state.owed] == [("y", True)]
    made = plan(state)
    assert (made.restore, [e.record_id for e in made.owed]) == ((), ["y"])
    fresh = (SourceResult("docs", "rag", candidates=offers(Y)[0].candidates),)
    assert reasons(decide(state, plan(state), (), fresh)) == [("y", True, "ranked")]


@pytest.mark.rule("D.H.9", "D.C.18")
def test_no_old_revision_follows_one_that_is_owed_or_offered() -> None:
    state = commit_to(take(NEW, 0, fact("x", 2)), HistoryReplaced(keep=0))
    state = commit_to(state, append(state, "again"))
    made = plan(state)
    older, newer = offers(fact("x", 1)), offers(fact("x", 3))
    assert reasons(decide(state, made, offers(fact("x", 2)), older)) == [
        ("x", True, "restored"),
        ("x", False, "superseded"),
    ]
    assert reasons(decide(state, made, (), older)) == [("x", False, "superseded")]  # also where its text is gone
    assert reasons(decide(state, made, offers(fact("x", 2)), newer)) == [
        ("x", True, "ranked"),
        ("x", False, "superseded"),
    ]
    state = commit_to(state, placing(state, 1, fact("x", 3)))
    assert commit_to(state, CallSucceeded(step=1)).owed == ()


@pytest.mark.rule("D.H.7", "D.H.8")
def test_where_texts_are_gone_optional_records_wait_and_mandatory_ones_are_demanded() -> None:
    state = commit_to(take(NEW, 0, X, fact("m", mandatory=True)), HistoryReplaced(keep=0))
    made = plan(state, refresh=RefreshOptions(min_steps=99, max_passes=1))
    for found in ({}, {"sha256:package-0": ()}, {"sha256:package-0": offers(fact("x", 7))}):
        restored, missing = restore_results(made.restore, found, ["docs"])
        assert restored == ()
        assert demand_missing(missing, ["docs"]) == (("docs", "m"),)
        assert demand_missing(missing, ["memory"]) == ()  # a source that the step has not got cannot be asked
    assert (made.refresh.retrieve, made.pass_) == (False, 1)


@pytest.mark.rule("D.H.10", "D.H.14")
def test_a_mandatory_record_never_waits() -> None:
    state = commit_to(take(NEW, 0, X, fact("m", mandatory=True)), HistoryReplaced(keep=0))
    state = commit_to(state, append(state, "again"))
    state = commit_to(commit_to(state, placing(state, 1)), CallSucceeded(step=1))
    assert [(o.entry.record_id, o.waits) for o in state.owed] == [("x", True), ("m", False)]
    restored, _ = restore_results(plan(state).restore, {"sha256:package-0": offers(fact("m"))}, [])
    assert [c.mandatory for r in restored for c in r.candidates] == [True]


@pytest.mark.rule("D.H.5", "D.G.25")
def test_restored_records_come_by_source_in_the_steps_order_then_by_id() -> None:
    owed = [
        OwedEntry(
            PlacedEntry(source=s, record_id="r", digest=candidate("r", s, 1.0).digest, step=0, pass_=1, tokens=1), s
        )
        for s in ("b", "a", "docs", "z")
    ]
    found = {s: (SourceResult(s, "rag", candidates=(candidate("r", s, 1.0),)),) for s in ("b", "a", "docs", "z")}
    assert [r.source for r in restore_results(owed, found, ["z", "docs"])[0]] == ["z", "docs", "a", "b"]


# -- skills


def load_skill(state: RunState, *skills: str, error: bool = False) -> MessagesAppended:
    """The event of a call of ``load_skill`` for each skill, and its results."""
    calls = tuple(SkillCall(f"call-{s}", s) for s in skills)
    facts = append(state, "call", role="assistant").messages + append(state, "result", role="tool").messages
    call, result = facts
    done = () if error else tuple(c.call for c in calls)
    messages: tuple[MessageFact, ...] = (replace(call, skill_calls=calls), replace(result, succeeded=done))
    return replace(append(state, "call", "result"), messages=messages)


@pytest.mark.rule("D.K.26", "D.H.8")
def test_a_loaded_skill_is_demanded_of_every_source_of_skills_until_its_body_is_placed() -> None:
    state = take(NEW, 0, X)
    assert plan(commit_to(state, load_skill(state, "pdf", error=True))).demands == ()
    state = commit_to(state, load_skill(state, "pdf"))
    made = plan(state, refresh=RefreshOptions(min_steps=99, max_passes=1))
    assert (made.demands, made.refresh.retrieve, made.pass_) == ((("skills", "pdf/body"),), False, 1)
    assert plan(state, sources=(DOCS,)).demands == ()
    body = fact("pdf/body", mandatory=True, source="skills")
    placed = commit_to(commit_to(state, placing(state, 1, body)), CallSucceeded(step=1))
    assert plan(placed).demands == ()
    cut = commit_to(placed, HistoryReplaced(keep=3))
    assert plan(cut).demands == ()  # its body still stands
    gone = commit_to(placed, HistoryReplaced(keep=2))
    assert (gone.skills, gone.owed) == ((), ())  # the result is no longer in the history: it is not loaded


@pytest.mark.rule("D.K.26", "D.H.8", "D.H.14")
def test_a_skill_that_its_sources_have_not_got_is_not_asked_again_and_a_failure_leaves_it_owed() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, load_skill(state, "pdf"))
    wanted = (("skills", "pdf/body"),)
    ok = SourceFact(source="skills", kind="skills", status=SourceStatus.OK)
    failed = replace(ok, status=SourceStatus.FAILED, error="timeout")
    absent = commit_to(state, placing(state, 0, demanded=wanted, sources=(ok,)))
    assert plan(absent).demands == ()
    again = commit_to(absent, load_skill(absent, "pdf"))
    assert plan(again).demands == wanted  # the model loaded it once more
    assert plan(commit_to(state, placing(state, 0, demanded=wanted, sources=(failed,)))).demands == wanted
    assert plan(commit_to(state, placing(state, 0, demanded=wanted))).demands == wanted  # no answer at all
    two = (*wanted, ("more", "pdf/body"))
    assert plan(commit_to(state, placing(state, 0, demanded=two, sources=(ok,)))).demands == wanted


@pytest.mark.rule("D.K.26")
def test_a_skill_that_was_loaded_twice_stays_loaded_by_its_first_result() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, load_skill(state, "pdf"))
    state = commit_to(state, append(state, "b"))
    state = commit_to(state, load_skill(state, "pdf"))
    assert plan(commit_to(state, HistoryReplaced(keep=4))).demands == (("skills", "pdf/body"),)
    assert plan(commit_to(state, HistoryReplaced(keep=2))).demands == ()


# -- any log


@st.composite
def runs(draw: st.DrawFn) -> list[RunState]:
    """The states of a run whose history is rewritten now and then."""
    states = [commit_to(NEW, append(NEW, "a"))]
    step = 0
    for _ in range(draw(st.integers(0, 10))):
        state = states[-1]
        events: list[AnyEvent]
        match draw(st.sampled_from(["step", "step", "ok", "failed", "cut", "more"])):
            case "step":
                facts = [fact(r, draw(st.none() | st.integers(0, 2))) for r in draw(st.sets(st.sampled_from("xyz")))]
                events = [placing(state, step, *facts, pass_=state.passes + draw(st.integers(0, 1)))]
                step += 1
            case "ok":
                events = [append(state, "answer", role="assistant"), CallSucceeded(step=max(0, step - 1))]
            case "failed":
                events = [CallFailed(step=max(0, step - 1), status="failed")]
            case "cut":
                events = [HistoryReplaced(keep=draw(st.integers(0, state.history.count)))]
            case _:
                events = [append(state, "more")]
        states.append(commit_to(state, *events))
    return states


@pytest.mark.rule("D.H.5", "D.H.9", "D.C.18", "D.A.6")
@settings(deadline=None)
@given(runs())
def test_a_record_is_placed_or_owed_once_and_never_lost(states: list[RunState]) -> None:
    known: set[str] = set()
    for state in states:
        owed = [(o.entry.source, o.entry.record_id) for o in state.owed]
        assert len(owed) == len(set(owed))
        placed = {p.record_id for p in state.placed}
        assert {p.step for p in state.placed} <= {b.step for b in state.blocks}
        held = placed | {record for _, record in owed}
        assert known <= held
        known = held
        assert encode_json(plan(state)) == encode_json(plan(state))

"""A step compiled again for less, from selection's side (D.I, D.R.6)."""

from __future__ import annotations

import pytest
from tests.actors.bench import candidate, more
from tests.actors.driven import Driven, chosen, overflow
from tests.actors.test_owed_records import rewritten

from contextbus_protocol.commands import ErrorReply, StepCompiled
from contextbus_protocol.events import StepCompiled as StepCompiledEvent
from contextbus_protocol.events import StepFailed

BIG, SMALL = candidate(1, words=300), candidate(2, words=3)


def compiled(run: Driven | None = None) -> Driven:
    run = run or Driven()
    run.found["docs"] = (BIG, SMALL)
    assert chosen(run.step("How?")) == [("r1", True, "ranked"), ("r2", True, "ranked")]
    run.asked.clear()
    run.found["docs"] = (candidate(3),)  # what a source would give now
    return run


def newest(run: Driven) -> StepCompiledEvent:
    return [e for _, _, c in run.log.commits for e in c.events if isinstance(e, StepCompiledEvent)][-1]


@pytest.mark.rule("D.I.1", "D.I.2", "D.I.4", "D.I.5", "D.R.6", "D.Y.2")
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_it_takes_the_place_of_the_step_from_what_was_retrieved_for_it(*, reported: bool, restarted: bool) -> None:
    run = compiled()
    last = run.fold.last
    assert last is not None
    if reported:
        run.report("overflow")
    if restarted:
        run = run.beside()
    manifest = run.compiled(overflow())
    assert (manifest.refresh, manifest.step, manifest.pass_, run.asked) == ("overflow-retry", 0, 1, [])
    assert manifest.budget.input_tokens == last.estimated - 1
    assert {record for record, _, _ in chosen(manifest)} <= {"r1", "r2"}
    assert all(e.query == "How?" for e in manifest.entries)
    assert newest(run).overflow == last.estimated - 1
    run.report()
    assert [p.record_id for p in run.fold.placed] == [r for r, taken, _ in chosen(manifest) if taken]
    assert len(run.fold.blocks) == 1
    assert (run.verify().is_clean, run.verify().steps) == (True, 2)


@pytest.mark.rule("D.I.1", "D.I.5")
def test_twice_in_a_row_each_is_below_the_request_before() -> None:
    run = compiled()
    sizes: list[int] = []
    for number in range(3):
        last = run.fold.last
        assert last is not None
        sizes.append(last.estimated)
        manifest = run.compiled(overflow(command=f"o{number}"))
        assert manifest.budget.input_tokens == sizes[-1] - 1
    assert sizes == sorted(set(sizes), reverse=True)
    limit = run.compiled(overflow(limit=sizes[-1] - 3, command="given"))
    assert limit.budget.input_tokens == sizes[-1] - 3
    assert run.verify().is_clean


@pytest.mark.rule("D.I.1", "D.W.1")
def test_a_retry_of_the_command_gets_what_is_stored() -> None:
    run = compiled()
    first = run.send(overflow(limit=600))
    for again in (run, run.beside()):
        answer = again.send(overflow(limit=600, attempt=2))
        assert isinstance(first, StepCompiled)
        assert isinstance(answer, StepCompiled)
        assert (answer.package, answer.sequence, answer.stored) == (first.package, first.sequence, True)
    assert run.refused(overflow(limit=500)) == "command_mismatch"
    assert len(run.log.commits) == 2


@pytest.mark.rule("D.R.7", "D.I.2")
def test_the_step_reopened_afterwards_is_the_smaller_one() -> None:
    run = compiled()
    smaller = run.send(overflow(limit=600))
    assert isinstance(smaller, StepCompiled)
    answer = run.beside().send(run.next("How?", add=False, command="reopened"))
    assert isinstance(answer, StepCompiled)
    assert (answer.package, answer.step, answer.stored) == (smaller.package, 0, True)


@pytest.mark.rule("D.I.3", "D.I.5", "D.B.15")
def test_a_mandatory_misfit_fails_the_step_with_its_phase_and_changes_nothing() -> None:
    run = Driven()
    run.found["docs"] = (candidate(1, words=300, mandatory=True),)
    run.step("How?")
    before = run.fold.last
    answer = run.send(overflow(limit=20))
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.data.phase) == ("context_budget_exceeded", "overflow-retry")
    assert isinstance(run.log.commits[-1][2].events[-1], StepFailed)
    assert run.fold.last == before
    assert run.compiled(overflow(limit=5_000, command="larger")).refresh == "overflow-retry"


@pytest.mark.rule("D.I.6", "D.T.4")
def test_without_the_step_it_is_a_type_error_and_afterwards_stale() -> None:
    run = Driven()
    assert run.refused(overflow(command="a")) == "invalid_type"
    run.send(more("Hello", command="b"))
    assert run.refused(overflow(command="c")) == "invalid_type"
    compiled(run)
    assert run.refused(overflow(1, command="d")) == "invalid_type"
    assert run.refused(overflow(limit=-1, command="e")) == "invalid_type"
    run.send(more("went on", after=run.fold, command="f"))
    assert run.refused(overflow(command="g")) == "stale_step"


@pytest.mark.rule("D.I.6")
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_a_step_whose_outcome_is_another_is_over(status: str) -> None:
    run = compiled()
    run.report(status)
    assert run.refused(overflow()) == "stale_step"
    run.step("Next?")
    assert run.refused(overflow(0, command="other")) == "stale_step"


@pytest.mark.rule("D.I.1", "D.H.5", "D.D.25")
def test_restored_records_compete_again_and_the_query_is_kept() -> None:
    run = compiled()
    run.report()
    manifest = run.compiled(rewritten(run, "other"))
    assert chosen(manifest) == [("r1", True, "restored"), ("r2", True, "restored")]
    size = manifest.budget.used_tokens + 500
    for number in range(2):
        less = run.compiled(overflow(1, size, command=f"o{number}"))
        assert chosen(less) == [("r1", False, "over-budget"), ("r2", True, "restored")]
    run.report()
    assert [(o.entry.record_id, o.waits) for o in run.fold.owed] == [("r1", True)]
    assert run.verify().is_clean


@pytest.mark.rule("D.I.1", "D.H.7")
def test_where_the_offers_are_no_longer_stored_it_says_so() -> None:
    run = compiled()
    run.log.blobs.clear()
    assert run.refused(overflow()) == "not_found"


@pytest.mark.rule("D.I.1", "D.J.4")
def test_after_a_forget_the_step_is_compiled_anew_instead() -> None:
    run = compiled()
    run.redact("r1", run.package)
    assert run.refused(overflow()) == "stale_step"
    assert run.step("How?", add=False, command="anew").refresh == "redacted"


@pytest.mark.rule("D.I.4", "D.J.6", "D.H.5", "D.J.1")
def test_what_came_to_be_owed_since_the_step_returns_with_the_next_one() -> None:
    """A forget took a block of its history: the block's other record was no candidate of the first compile."""
    run = compiled()
    first = run.package
    run.report()
    run.step("And?")
    run.redact("r1", first)
    manifest = run.compiled(overflow(1, 500))
    assert (chosen(manifest), manifest.cache_prefix_cause, run.asked) == ([], "redacted", [])
    run.report()
    manifest = run.step("Next?")
    assert (manifest.refresh, chosen(manifest)) == ("redacted", [("r2", True, "restored"), ("r3", True, "ranked")])
    assert run.verify().is_clean


@pytest.mark.rule("D.I.1")
def test_no_source_is_asked_even_beside_a_conflict() -> None:
    run = compiled()
    other = run.beside()
    run.on_store = lambda: other.report("overflow")
    assert run.compiled(overflow()).refresh == "overflow-retry"
    assert run.asked == other.asked == []

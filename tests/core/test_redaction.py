"""What a forget does to the state of a run (D.J)."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.logs import append, commit_to, compiled
from tests.core.test_bound_models import BOUND, tailed
from tests.core.test_owed import ESTIMATOR, WITH, X, Y, fact, offers, placing, plan, reasons, take

from contextbus.core.owed import REMEMBERED_REDACTIONS, restore_results
from contextbus.core.prefix import prefix_cause, stale_ranges
from contextbus.core.run_state import RunState
from contextbus.core.step import decide_step
from contextbus_protocol.events import CallFailed, CallSucceeded, HistoryReplaced, PackageRedacted
from contextbus_protocol.values import RefreshOptions

NEW = RunState("r")
TIGHT = RefreshOptions(min_steps=99, max_passes=1)
replace = msgspec.structs.replace


def redact(step: int, record: str = "x", source: str = "docs", to: str = "") -> PackageRedacted:
    return PackageRedacted(
        step=step,
        package=f"sha256:package-{step}",
        replacement=to or f"sha256:less-{step}",
        source=source,
        record_id=record,
        erasure=4,
    )


@pytest.mark.rule("D.J.6", "D.J.4", "D.F.14", "D.F.22", "D.H.6")
def test_a_block_with_the_record_leaves_and_its_other_records_are_owed_from_the_replacement() -> None:
    state = take(take(take(NEW, 0, X, Y), 1, fact("z")), 2, fact("w"))
    state = commit_to(state, redact(0))
    assert [b.step for b in state.blocks] == [1, 2]
    assert [p.record_id for p in state.placed] == ["z", "w"]
    assert [(o.entry.record_id, o.package) for o in state.owed] == [("y", "sha256:less-0")]
    assert (state.broken_prefix, state.broken_at) == ("redacted", 1)
    assert state.redacted_packages == ("sha256:package-0",)
    assert state.blocks.eighteenths == 2 * 180


@pytest.mark.rule("D.J.1", "D.J.3", "D.J.6", "D.Y.2", "D.H.5", "D.J.5")
def test_the_next_step_retrieves_past_all_limits_and_restores_them() -> None:
    state = commit_to(take(take(NEW, 0, X, Y), 1, fact("z")), redact(0))
    state = commit_to(state, append(state, "again"))
    passes = state.passes
    made = plan(state, refresh=TIGHT)
    assert (made.refresh.reason, made.refresh.retrieve, made.redacted) == ("redacted", True, True)
    assert (made.pass_, made.prefix_cause) == (passes + 1, "redacted")
    restored, missing = restore_results(made.restore, {"sha256:less-0": offers(Y)}, ["docs"])
    decision = decide_step(
        state, made, options=BOUND, results=(), restored=restored, snapshot=None, estimator=ESTIMATOR
    )
    assert (reasons(decision), missing) == ([("y", True, "restored")], ())
    manifest = decision.manifest
    assert (manifest.refresh, manifest.redacted, manifest.cache_prefix_cause) == ("redacted", True, "redacted")


@pytest.mark.rule("D.J.4")
def test_a_forgotten_record_is_owed_no_more_wherever_it_stood() -> None:
    state = commit_to(take(take(NEW, 0, X, Y), 1, fact("x", 3)), HistoryReplaced(keep=0))
    assert sorted(o.entry.record_id for o in state.owed) == ["x", "y"]
    state = commit_to(state, redact(0), redact(1))
    assert [(o.entry.record_id, o.package) for o in state.owed] == [("y", "sha256:less-0")]
    assert [o.entry.record_id for o in commit_to(state, redact(0, "y")).owed] == []
    other = commit_to(take(NEW, 0, X), HistoryReplaced(keep=0))
    assert [o.entry.record_id for o in commit_to(other, redact(0, "x", "memory")).owed] == ["x"]  # another source's


@pytest.mark.rule("D.J.6", "D.F.3")
def test_a_block_without_the_record_stays_with_its_text_in_the_replacement() -> None:
    """A package may offer a record that its block does not carry."""
    state = commit_to(take(NEW, 0, Y), redact(0))
    assert [(b.step, b.package) for b in state.blocks] == [(0, "sha256:less-0")]
    assert (state.owed, state.broken_prefix, state.redaction_due) == ((), None, False)
    state = commit_to(state, HistoryReplaced(keep=0))
    assert [o.package for o in state.owed] == ["sha256:less-0"]


@pytest.mark.rule("D.J.1", "D.J.2", "D.J.3", "D.R.9")
def test_an_open_step_whose_package_was_redacted_retrieves_again_whatever_the_limits_say() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(commit_to(state, placing(state, 0, X, Y)), redact(0))
    assert state.last is not None
    assert (state.last.redacted, state.last.package, state.redaction_due) == (True, "sha256:less-0", True)
    made = plan(state, 0, refresh=TIGHT)
    assert (made.refresh.reason, made.refresh.retrieve, made.pass_, made.redacted) == ("redacted", True, 2, True)
    assert made.prefix_cause == "redacted"
    skipped = commit_to(state, placing(state, 0, redacted=True, pass_=1, options=WITH))
    assert skipped.redaction_due  # an empty query asked nobody: it is still due
    served = commit_to(state, placing(state, 0, Y, pass_=2, redacted=True, refresh="redacted"))
    assert (served.redaction_due, served.passes) == (False, 2)
    done = commit_to(served, CallSucceeded(step=0))
    assert [p.record_id for p in done.placed] == ["y"]  # in place of the step's own (D.J.5)


@pytest.mark.rule("D.J.1", "D.J.4", "D.J.6", "D.F.20")
def test_a_call_that_was_under_way_does_not_bring_the_record_into_the_history() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, replace(tailed(state, 0, "x", "y"), entries=(X, Y)))
    state = commit_to(state, redact(0))
    state = commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=0))
    assert [b.fact.placement for b in state.blocks] == ["ephemeral-tail"]
    assert state.placed == ()
    assert [(o.entry.record_id, o.package, o.waits) for o in state.owed] == [("y", "sha256:less-0", False)]
    assert prefix_cause(state, BOUND) == "redacted"
    assert stale_ranges(state, BOUND, 2) == ((1, 2),)
    assert plan(commit_to(state, append(state, "next")), refresh=TIGHT).refresh.reason == "redacted"


@pytest.mark.rule("D.J.1", "D.J.6", "D.F.13")
def test_a_block_under_way_that_does_not_carry_the_record_joins_all_the_same() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(commit_to(state, placing(state, 0, Y)), redact(0))
    assert state.redaction_due  # asked for once more before the report, it is compiled anew
    state = commit_to(state, CallSucceeded(step=0))
    assert state.redaction_due  # and reported instead, the next step retrieves
    assert [(b.step, b.package) for b in state.blocks] == [(0, "sha256:less-0")]
    assert ([p.record_id for p in state.placed], state.owed) == (["y"], ())


@pytest.mark.rule("D.H.10", "D.I.1", "D.J.6")
def test_what_came_to_be_owed_before_a_step_was_compiled_again_did_not_compete_and_does_not_wait() -> None:
    state = take(NEW, 0, X, Y)
    state = commit_to(state, append(state, "next"))
    state = commit_to(commit_to(state, placing(state, 1, pass_=1)), redact(0))
    state = commit_to(state, placing(state, 1, pass_=1, overflow=900))
    state = commit_to(state, CallSucceeded(step=1))
    assert [(o.entry.record_id, o.waits) for o in state.owed] == [("y", False)]


@pytest.mark.rule("D.J.1", "D.J.2")
@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_of_a_finished_step_a_forget_asks_a_retrieval_only_if_its_block_was_in_the_history(status: str) -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, placing(state, 0, X))
    outcome = CallSucceeded(step=0) if status == "succeeded" else CallFailed(step=0, status="failed")
    state = commit_to(commit_to(state, outcome), redact(0))
    assert (state.redaction_due, len(state.blocks), state.placed, state.owed) == (status == "succeeded", 0, (), ())


def test_the_newest_redactions_are_remembered() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, compiled(state, 0))
    for number in range(REMEMBERED_REDACTIONS + 3):
        state = commit_to(state, redact(number))
    assert len(state.redacted_packages) == REMEMBERED_REDACTIONS
    assert state.redacted_packages[-1] == f"sha256:package-{REMEMBERED_REDACTIONS + 2}"

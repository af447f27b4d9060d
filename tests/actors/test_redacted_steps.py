"""A forget that reaches a run, from selection's side: before, while, and after a step is compiled (D.J, D.R.9)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import DOCS, NOTES, candidate, head
from tests.actors.driven import Driven, chosen
from tests.actors.test_owed_records import TIGHT, rewritten

from contextbus_protocol.commands import (
    CompileStep,
    ErrorReply,
    Recorded,
    RedactedPackage,
    RedactPackages,
    StepCompiled,
)
from contextbus_protocol.events import PackageRedacted, RecordAllowed, RecordErased
from contextbus_protocol.events import StepCompiled as StepCompiledEvent
from contextbus_protocol.values import Candidate

ONE, TWO, THREE = candidate(1), candidate(2), candidate(3)


def compiled(*found: Candidate) -> Driven:
    run = Driven()
    run.found["docs"] = found or (ONE, TWO)
    run.step("How?")
    return run


def newest(run: Driven) -> StepCompiledEvent:
    return [e for _, _, c in run.log.commits for e in c.events if isinstance(e, StepCompiledEvent)][-1]


@pytest.mark.rule("D.J.1", "D.J.2", "D.J.3", "D.J.5", "D.R.9", "D.D.17")
@pytest.mark.parametrize("restarted", [False, True])
def test_the_open_step_is_compiled_again_under_its_number_past_all_limits(*, restarted: bool) -> None:
    run = compiled()
    assert isinstance(run.redact("r1", run.package), Recorded)
    if restarted:
        run = run.beside()
    run.found["docs"] = (TWO, THREE)
    manifest = run.compiled(again(run))
    assert (manifest.step, manifest.refresh, manifest.pass_, manifest.redacted) == (0, "redacted", 2, True)
    assert manifest.cache_prefix_cause == "redacted"
    assert chosen(manifest) == [("r2", True, "ranked"), ("r3", True, "ranked")]
    run.report()
    assert [(p.record_id, p.step) for p in run.fold.placed] == [("r2", 0), ("r3", 0)]
    assert run.step("Next?").refresh == "reused"  # served once
    assert [c.status for c in run.verify().checks] == ["redacted", "same", "same"]


def again(run: Driven) -> CompileStep:
    """The step once more, under limits that leave no room for a retrieval."""
    return tight(run, "How?", add=False, command="again")


def tight(run: Driven, text: str, **changes: Any) -> CompileStep:
    """A step under limits that leave no room for a retrieval."""
    made = run.next(text, **changes)
    assert isinstance(made, CompileStep)
    return msgspec.structs.replace(made, options=msgspec.structs.replace(made.options, refresh=TIGHT))


@pytest.mark.rule("D.R.9", "D.R.7")
def test_a_retry_of_the_steps_command_is_compiled_anew_and_then_stored() -> None:
    run = compiled()
    first = run.package
    run.redact("r1", first)
    run.found["docs"] = (TWO,)
    command = run.next("How?", add=False, command="How?", attempt=2)
    assert isinstance(command, CompileStep)
    manifest = run.compiled(command)
    assert (manifest.step, manifest.refresh, chosen(manifest)) == (0, "redacted", [("r2", True, "ranked")])
    asked = len(run.asked)
    for attempt, other in ((3, run), (4, run.beside())):
        answer = other.send(msgspec.structs.replace(command, attempt=attempt))
        assert isinstance(answer, StepCompiled)
        assert (answer.stored, answer.step, answer.reference != first) == (True, 0, True)
    assert len(run.asked) == asked


@pytest.mark.rule("D.R.9", "D.J.4")
def test_a_retry_after_the_run_went_on_gets_no_forgotten_text() -> None:
    run = compiled()
    first = run.package
    command = run.next("How?", add=False, command="How?", attempt=2)
    run.report()
    run.step("Next?")
    run.redact("r1", first)
    assert run.refused(command) == "stale_step"


@pytest.mark.rule("D.R.8", "D.R.9")
def test_with_other_messages_it_is_the_next_step_that_retrieves() -> None:
    run = compiled()
    run.redact("r1", run.package)
    run.found["docs"] = (TWO,)
    manifest = run.step("And?")
    assert (manifest.step, manifest.refresh, chosen(manifest)) == (1, "redacted", [("r2", True, "ranked")])


@pytest.mark.rule("D.R.7", "D.G.3", "D.G.21", "D.J.1")
def test_a_step_that_follows_a_forget_with_an_empty_query_is_reopened_from_its_package() -> None:
    """What is due is the retrieval: nothing of that step was forgotten."""
    run = compiled()
    run.redact("r1", run.package)
    run.asked.clear()
    assert run.step("  ").step == 1
    count = len(run.log.commits)
    for name, other in (("again", run), ("once more", run.beside())):
        answer = other.send(run.next("  ", add=False, command=name))
        assert isinstance(answer, StepCompiled)
        assert (answer.stored, answer.step, answer.reference) == (True, 1, run.package)
    assert (len(run.log.commits), run.asked, run.fold.redaction_due) == (count, [], True)
    manifest = run.step("And?")
    assert (manifest.step, manifest.refresh) == (2, "redacted")


@pytest.mark.rule("D.R.9", "D.J.6")
def test_an_open_step_whose_history_lost_a_block_is_compiled_again_under_its_number_once() -> None:
    run = compiled()
    first = run.package
    run.report()
    run.step("Next?")
    run.redact("r1", first)
    manifest = run.compiled(run.next("Next?", add=False, command="again"))
    assert (manifest.step, manifest.refresh) == (1, "redacted")
    answer = run.send(run.next("Next?", add=False, command="once more"))
    assert isinstance(answer, StepCompiled)
    assert (answer.stored, answer.step) == (True, 1)
    assert run.verify().is_clean


@pytest.mark.rule("D.G.3", "D.R.9")
@pytest.mark.parametrize("text", ["And?", "  "])
@pytest.mark.parametrize(("number", "outcome"), [(1, "stale_step"), (None, 2)])
def test_of_two_that_compile_a_touched_step_again_at_once_one_has_its_number(
    text: str, number: int | None, outcome: object
) -> None:
    run = compiled()
    first = run.package
    run.report()
    run.step(text)
    run.redact("r1", first)
    other = run.beside()
    command = run.next(text, add=False, command="again", number=number)
    run.on_store = lambda: other.compiled(run.next(text, add=False, command="at once", number=number))
    answer = run.send(command)
    assert (answer.code if isinstance(answer, ErrorReply) else getattr(answer, "step", None)) == outcome
    steps = [e.step for _, _, c in run.log.commits for e in c.events if isinstance(e, StepCompiledEvent)]
    assert steps == [0, 1, 1] + ([2] if number is None else [])
    assert run.verify().is_clean


@pytest.mark.rule("D.J.1", "D.J.3", "D.J.4", "D.J.6", "D.Y.2", "D.H.5")
@pytest.mark.parametrize("restarted", [False, True])
def test_the_block_of_an_earlier_step_leaves_the_next_retrieves_and_its_other_records_return(
    *, restarted: bool
) -> None:
    run = compiled()
    first = run.package
    run.report()
    run.step("Next?")
    run.report()
    run.redact("r1", first)
    if restarted:
        run = run.beside()
    run.asked.clear()
    run.found["docs"] = (THREE,)
    manifest = run.compiled(tight(run, "And?"))
    assert (manifest.refresh, manifest.redacted, manifest.pass_, len(run.asked)) == ("redacted", True, 2, 1)
    assert manifest.cache_prefix_cause == "redacted"
    assert chosen(manifest) == [("r2", True, "restored"), ("r3", True, "ranked")]
    run.report()
    assert (sorted(p.record_id for p in run.fold.placed), run.fold.owed) == (["r2", "r3"], ())
    assert run.step("More?").refresh == "reused"  # served once
    run.report()
    again = chosen(run.compiled(rewritten(run, "other")))
    assert again == [("r2", True, "restored"), ("r3", True, "restored")]
    assert run.verify().is_clean


@pytest.mark.rule("D.J.1", "D.J.4", "D.J.6")
def test_a_success_that_is_reported_after_the_forget_brings_no_block() -> None:
    run = compiled()
    run.redact("r1", run.package)
    run.report()
    assert (len(run.fold.blocks), [o.entry.record_id for o in run.fold.owed]) == (0, ["r2"])
    run.found["docs"] = ()
    manifest = run.compiled(tight(run, "Next?"))
    assert (manifest.refresh, manifest.redacted, manifest.pass_) == ("redacted", True, 2)
    assert (chosen(manifest), manifest.cache_prefix_cause) == ([("r2", True, "restored")], "redacted")
    assert run.verify().is_clean


@pytest.mark.rule("D.J.6")
def test_what_the_log_has_is_not_recorded_again() -> None:
    run = compiled()
    first = run.package
    done = run.redact("r1", first)
    assert isinstance(done, Recorded)
    event = next(e for e in run.log.commits[-1][2].events if isinstance(e, PackageRedacted))
    count = len(run.log.commits)
    package = RedactedPackage(event.step, event.package, event.replacement)
    repeated = RedactPackages(**head("other"), source="docs", record_id="r1", erasure=0, packages=(package,))
    assert isinstance(run.send(repeated), Recorded)
    assert len(run.log.commits) == count
    never = Driven()
    assert never.refused(repeated) == "not_found"


# -- while a step is under way


@pytest.mark.rule("D.J.4", "D.J.1", "D.G.29")
def test_a_forget_while_a_step_is_stored_makes_it_gather_again() -> None:
    run = compiled()
    first = run.package
    run.report()
    other = run.beside()

    def forget() -> None:
        other.redact("r1", first)
        run.found["docs"] = (TWO, THREE)

    run.on_store = forget
    run.asked.clear()
    manifest = run.step("Next?", refresh=True)
    assert [q.accounting.request_id.rsplit("/", 2)[1] for q in run.asked if q.accounting is not None] == ["1", "2"]
    assert chosen(manifest) == [("r2", True, "ranked"), ("r3", True, "ranked")]
    assert (manifest.pass_, manifest.cache_prefix_cause) == (2, "redacted")
    assert run.verify().is_clean


@pytest.mark.rule("D.J.4", "D.H.5")
def test_a_forget_while_owed_records_are_placed_drops_what_was_read() -> None:
    run = compiled()
    first = run.package
    run.report()
    other = run.beside()

    def forget() -> None:
        other.redact("r1", first)
        run.found["docs"] = ()

    run.on_store = forget
    manifest = run.compiled(rewritten(run, "other"))
    assert chosen(manifest) == [("r2", True, "restored")]
    assert (manifest.refresh, manifest.redacted, manifest.cache_prefix_cause) == ("redacted", True, "redacted")
    assert run.verify().is_clean


@pytest.mark.rule("D.J.4", "D.H.5")
def test_a_forget_while_sources_are_asked_is_noticed_at_the_commit() -> None:
    run = compiled()
    first = run.package
    run.report()
    other = run.beside()
    run.on_scatter = lambda: other.redact("r1", first)
    manifest = run.step("Next?", refresh=True)
    run.found["docs"] = (TWO,)
    assert len(run.asked) == 3  # the first step's, and the gather that was made twice
    assert manifest.cache_prefix_cause == "redacted"


def erase(run: Driven, record: str, *digests: str, source: str = "memory") -> None:
    run.erasures.add(RecordErased(source=source, record_id=record, digests=digests))


@pytest.mark.rule("D.J.4", "D.K.24")
def test_what_was_forgotten_since_a_source_answered_is_dropped_and_the_commit_says_how_far_it_looked() -> None:
    run = Driven()
    run.found["memory"], run.found["docs"] = (ONE, TWO, THREE), (candidate(4),)
    erase(run, "r9", "sha256:old")
    run.as_of = run.erasures.last[0]

    def forget() -> None:
        erase(run, "r1", ONE.digest)
        erase(run, "r2", TWO.digest, source="another")
        erase(run, "r3", THREE.digest)
        run.erasures.add(RecordAllowed(source="memory", digests=(THREE.digest,)))

    run.on_scatter = forget
    manifest = run.step("How?", NOTES, DOCS)
    assert chosen(manifest) == [("r2", True, "ranked"), ("r3", True, "ranked"), ("r4", True, "ranked")]
    assert newest(run).erasures == run.erasures.last[0]
    assert run.verify().is_clean


@pytest.mark.rule("D.J.4", "D.H.5")
def test_an_owed_record_that_was_forgotten_meanwhile_is_not_restored_either() -> None:
    run = Driven()
    run.found["memory"] = (ONE, TWO)
    run.as_of = 0
    run.step("How?", NOTES)
    run.report()
    run.found["memory"] = (THREE,)
    run.on_scatter = lambda: erase(run, "r1", ONE.digest)
    command = msgspec.structs.replace(rewritten(run, "other", NOTES), refresh=True)
    assert chosen(run.compiled(command)) == [("r2", True, "restored"), ("r3", True, "ranked")]
    assert run.verify().is_clean


@pytest.mark.rule("D.J.1", "D.J.4", "D.K.24")
@pytest.mark.parametrize("reported", [False, True])
def test_the_retrieval_after_a_forget_places_nothing_that_a_source_with_erasures_offers_still(
    *, reported: bool
) -> None:
    run = Driven()
    run.found["memory"], run.as_of = (ONE, TWO), 0
    run.step("How?", NOTES)
    run.report()
    first = run.package
    if not reported:
        run.step("And?", NOTES)
    erase(run, "r1", ONE.digest)
    run.redact("r1", first, source="memory")
    manifest = run.step("Next?", NOTES)  # the answer is as of before the tombstone
    assert (manifest.refresh, chosen(manifest)) == ("redacted", [("r2", True, "ranked")])
    assert newest(run).erasures == run.erasures.last[0]
    run.report()
    assert [p.record_id for p in run.fold.placed] == ["r2"]
    assert run.verify().is_clean


def test_without_a_source_that_can_forget_no_erasures_are_read() -> None:
    assert newest(compiled()).erasures is None


@pytest.mark.rule("D.J.4", "D.J.6")
def test_of_two_forgets_at_once_the_second_redacts_what_the_first_left() -> None:
    run = compiled()
    run.report()
    other, first = run.beside(), run.package
    run.on_store = lambda: other.redact("r2", first, command="other")
    assert isinstance(run.redact("r1", first), Recorded)
    events = [e for _, _, c in run.log.commits for e in c.events if isinstance(e, PackageRedacted)]
    assert [(e.record_id, e.package == first) for e in events] == [("r2", True), ("r1", False)]
    assert events[1].package == events[0].replacement
    assert (run.fold.owed, run.fold.placed, len(run.fold.blocks)) == ((), (), 0)
    assert not [data for data in run.log.blobs.values() if b"record 1" in data or b"record 2" in data]
    assert run.verify().is_clean

"""Compaction under simulation: what a bad summariser, a race or a fault does to a run, and what it does not."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.client.compaction_log import list_compactions
from contextbus.replay.run_log import RunLog, read_commits
from contextbus_protocol.chat import Text, user
from contextbus_protocol.commands import ErrorReply, RequestRefresh, StepCompiled
from contextbus_protocol.compaction import Compact
from contextbus_protocol.events import CompactionFailed, CompactionStarted
from contextbus_protocol.values import OnFailure, RetentionPolicy
from tests.simulation.clients import read_messages
from tests.simulation.driven import Compacting, long_talk
from tests.simulation.harness import LOG
from tests.simulation.machine_clients import RUN
from tests.simulation.run import simulate
from tests.simulation.summarisers import Behaviour, texts_of
from tests.simulation.world import Faults

SEEDS = 10


REASONS: list[tuple[Behaviour, str, str | None]] = [
    ("empty", "empty-summary", None),
    ("blank", "empty-summary", None),
    ("cut", "incomplete-summary", None),
    ("tool-call", "incomplete-summary", None),
    ("larger", "summary-too-large", None),
    ("barely", "summary-too-large", None),
    ("late", "error", "timeout"),
    ("never", "error", "timeout"),
    ("busy", "error", "busy"),
    ("absent", "error", "absent"),
    ("error", "error", "error"),
    ("costly-error", "error", "error"),
]


@pytest.mark.rule("C.K.4", "C.K.6", "C.X.5", "C.G.12", "C.O.4", "C.O.7")
@pytest.mark.parametrize(("behaviour", "reason", "code"), REASONS)
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
def test_a_summary_that_is_none_leaves_the_history_whole_and_the_event_says_why(
    behaviour: Behaviour, reason: str, code: str | None, on_failure: OnFailure
) -> None:
    run = Compacting(on_failure=on_failure)
    run.say(*long_talk(12))
    before = run.stored()
    answer = run.step(behaviour)
    assert run.bought == 1
    assert run.stored() == before
    if on_failure == "drop":
        assert isinstance(answer, StepCompiled)
        assert [e.dropped for e in run.completed()] == [True]
        assert run.failures() == []
        assert run.sent()[-2:] == before[-2:]
    else:
        assert run.failures() == [("compact", reason, code)]
        assert run.completed() == []
        assert run.sent() == before
    if on_failure == "stop":
        assert isinstance(answer, ErrorReply)
        assert answer.code == "summariser_failed"
    elif on_failure == "continue":
        assert isinstance(answer, StepCompiled)
        assert "compaction-failed" in answer.warnings
    run.harness.finish()


@pytest.mark.rule("C.X.5")
@pytest.mark.parametrize("behaviour", ["empty", "never", "error", "larger", "cut"])
@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_three_failures_pause_the_summariser_until_the_history_has_grown_or_the_host_resets(
    behaviour: Behaviour, on_failure: OnFailure
) -> None:
    run = Compacting(on_failure=on_failure)
    run.say(*long_talk(12))
    for number in range(8):
        run.say(f"small {number}")
        run.step(behaviour)
        if run.ada.compiled is not None:
            run.report("failed")
            run.ada.compiled = None
    assert run.bought == 3
    assert [reason for _, reason, _ in run.failures()] == [*[run.failures()[0][1]] * 3, "paused"]
    run.say(*long_talk(4, "more"))  # a fifth
    run.step(behaviour)
    assert run.bought == 4
    run.say("and on")
    run.step(behaviour)
    assert run.bought == 4, "the fourth failure in a row begins the next pause"
    run.reset()
    run.say("once more")
    assert isinstance(run.step("good"), StepCompiled)
    assert run.bought == 5
    assert len(run.completed()) == 1
    run.harness.finish()


@pytest.mark.rule("C.X.5")
def test_a_range_that_is_dropped_asks_nobody_in_a_pause() -> None:
    run = Compacting(on_failure="drop", limit=5)
    for number in range(3):
        run.say(*long_talk(8, f"round {number}"))
        assert isinstance(run.step("never"), StepCompiled)
        run.report()
    assert run.bought == 3
    run.say("a", "b", "c", "d")  # less than a fifth of the two that stayed
    assert isinstance(run.step("good"), StepCompiled)
    assert [e.dropped for e in run.completed()] == [True] * 4
    assert run.bought == 3
    run.harness.finish()


@pytest.mark.rule("C.X.4")
def test_a_summary_that_hardly_shrinks_is_bought_once() -> None:
    run = Compacting(on_failure="continue")
    run.say(*long_talk(12))
    for _ in range(5):
        assert isinstance(run.step("barely", "barely"), StepCompiled)
        run.report("failed")
    assert run.bought == 1
    assert run.failures() == [("compact", "summary-too-large", None), ("evaluate", "paused", None)]
    run.harness.finish()


@pytest.mark.rule("C.I.7", "C.L.5", "C.K.2")
@pytest.mark.parametrize("between", ["nothing", "failed", "succeeded", "answers", "restarts"])
def test_three_compiles_in_a_row_buy_one_summary(between: str) -> None:
    run = Compacting()
    run.say(*long_talk(12))
    for _ in range(3):
        assert isinstance(run.step(), StepCompiled)
        if between in {"failed", "succeeded"}:
            run.report(between)
        elif between == "answers":
            run.report()
            run.say("go on")
        elif between == "restarts":
            for node in run.world.nodes.values():
                run.world.kill(node)
    assert run.bought == 1
    assert len(run.completed()) == 1
    assert len(run.harness.events(CompactionStarted)) == 1
    run.harness.finish()


@pytest.mark.rule("C.G.14", "C.L.7", "C.F.5")
def test_three_compactions_in_a_row_keep_the_facts_of_the_first() -> None:
    run = Compacting(limit=5)
    facts = ["INV-20931", "ORD-77120", "ACME-0042"]
    run.say(*(f"the order is {fact} " + "and so forth " * 20 for fact in facts), *long_talk(6))
    summaries: list[str] = []
    for number in range(3):
        assert isinstance(run.step(), StepCompiled)
        part = run.sent()[0].content[0]
        assert isinstance(part, Text)
        summaries.append(part.text)
        run.report()
        run.say(f"now LATER-{number}0000 " + "and so forth " * 20, *long_talk(7, f"round {number}"))
    assert run.bought == 3
    assert [e.source_count for e in run.completed()] == sorted({e.source_count for e in run.completed()})
    for text in summaries:
        assert all(fact in text for fact in facts)
    assert "LATER-10000" in summaries[2]
    assert len(set(summaries)) == 3
    asked = [" ".join(texts_of(s.request.messages)) for s in run.world.summaries]
    assert [text.count("Previous conversation summary") for text in asked] == [0, 1, 1]
    assert len(run.stored()) == 9 + 3 * 8
    run.harness.finish()


@pytest.mark.rule("C.K.9")
def test_what_is_appended_beside_a_compaction_stays_behind_the_boundary_and_costs_no_second_summary() -> None:
    run = Compacting()
    run.say(*long_talk(12))
    run.bob.handle = run.bob.handle.rebase(*read_messages(run.world, RUN))
    run.world.writing = 0.3
    run.begin("good")

    def append_beside() -> None:
        if not run.world.summaries:
            run.world.at(0.0001, append_beside)
            return
        run.bob.handle = run.bob.handle.append((user("in between"),))
        run.harness.start(run.bob, run.appended(run.bob))

    append_beside()
    run.harness.rest()
    assert isinstance(run.ada.answer, ErrorReply)  # it has not read what stands before its step now (D.F.19)
    assert run.ada.answer.code == "conflict"
    assert isinstance(run.step(), StepCompiled)
    assert run.bought == 1
    (event,) = run.completed()
    assert event.source_count == 10
    assert run.sent()[-1] == user("in between")
    run.harness.finish()


def append_while_written(run: Compacting, *texts: str, behind: int = 1) -> None:
    """Have bob append once the summariser was asked so often."""
    if len(run.world.summaries) < behind:
        run.world.at(0.0001, lambda: append_while_written(run, *texts, behind=behind))
        return
    run.bob.handle = run.bob.handle.append([user(text) for text in texts])
    run.harness.start(run.bob, run.appended(run.bob))


@pytest.mark.rule("C.K.9", "C.K.5", "C.X.5")
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
@pytest.mark.parametrize("words", [150, 1_000])
def test_a_summary_that_no_longer_fits_since_others_appended_is_no_failure_and_its_cost_is_told(
    on_failure: OnFailure, words: int
) -> None:
    run = Compacting(on_failure=on_failure, target=400)
    run.say(*long_talk(12))
    run.bob.handle = run.bob.handle.rebase(*read_messages(run.world, RUN))
    run.world.writing = 0.2
    run.begin("fitting")
    append_while_written(run, "word " * words)
    run.harness.rest()
    run.world.behaviours = []
    run.world.writing = None
    assert ("compact", "summary-too-large", None) not in run.failures()
    first = run.harness.events(CompactionStarted)[0].evaluation
    (event, *_) = run.harness.events(CompactionFailed)
    assert (event.evaluation, event.phase, event.reason) == (first, "persist", "error")
    assert run.spent() == run.told()
    assert not any(e.dropped and e.evaluation == first for e in run.completed())
    run.harness.finish()


@pytest.mark.rule("C.O.11", "C.K.8")
def test_an_actor_that_dies_beside_the_summariser_leaves_an_interrupted_evaluation() -> None:
    run = Compacting()
    run.say(*long_talk(12))
    run.begin("good")

    def kill() -> None:
        if not run.world.summaries:
            run.world.at(0.0001, kill)
            return
        for name in ("compaction-0", "compaction-1"):
            run.world.kill(run.world.nodes[name])

    kill()
    run.harness.rest()
    assert isinstance(run.ada.answer, StepCompiled)
    started = [e.evaluation for e in run.harness.events(CompactionStarted)]
    (done,) = run.completed()
    assert run.bought == len(started) == 2
    assert done.evaluation == started[1] != started[0]
    log = RunLog(RUN, read_commits(run.world.server.records(LOG)), ())
    assert [c.status for c in list_compactions(log)] == ["interrupted", "completed"]
    run.harness.finish()


@pytest.mark.rule("C.F.1", "C.K.9")
def test_two_instances_that_take_one_evaluation_buy_one_summary() -> None:
    run = Compacting()
    run.world.everyone = (Compact,)
    run.say(*long_talk(12))
    assert isinstance(run.step(), StepCompiled)
    assert run.bought == 1
    run.harness.finish()


@pytest.mark.rule("C.K.9", "C.M.11")
def test_counts_of_the_host_behind_a_race_are_no_difference() -> None:
    """Seed 9043: what committed beside the summariser changed no message."""
    run = Compacting()
    keep = RetentionPolicy(keep_ratio=0.02)
    run.options = msgspec.structs.replace(run.options, counts=True, keep=keep, target_tokens=600)
    run.ada.counting, run.world.writing = 0.001, 0.3
    run.say(*long_talk(12))
    run.bob.handle = run.bob.handle.rebase(*read_messages(run.world, RUN))
    run.begin("good")

    def refresh_beside() -> None:
        if not run.world.summaries:
            run.world.at(0.0001, refresh_beside)
            return
        run.harness.start(run.bob, RequestRefresh(**run.harness.head(run.bob)))

    refresh_beside()
    run.harness.rest()
    assert isinstance(run.ada.answer, StepCompiled)
    assert (run.bought, len(run.completed())) == (1, 1)
    run.harness.finish()


@pytest.mark.rule("C.K.9", "C.O.8")
def test_a_start_that_is_stored_late_is_not_stored_again_by_the_next_attempt() -> None:
    """The late commit moved the fold below the second attempt, which stored its messages twice (seed 6021)."""
    run = Compacting()
    run.options = msgspec.structs.replace(run.options, counts=True)
    run.ada.counting = 0.02
    run.say(*long_talk(12))
    run.ada.handle = run.ada.handle.append((user("and now"),))
    run.world.unheard.append("-started")
    run.begin("good", "good", seconds=1.8)
    run.world.at(1.0, lambda: setattr(run.ada, "counting", 0.15))  # the second attempt counts when the first is stored
    run.harness.rest()
    assert len(run.stored()) == 13
    started = [e.evaluation for e in run.harness.events(CompactionStarted)]
    assert len(set(started)) == len(started)
    run.harness.finish()


@pytest.mark.rule("C.X.5", "C.O.6")
@pytest.mark.parametrize("status", ["started", "failed-compact", "completed"])
def test_a_commit_whose_acknowledgement_is_lost_behind_others_counts_once(status: str) -> None:
    run = Compacting(on_failure="continue")
    run.say(*long_talk(12))
    run.bob.handle = run.bob.handle.rebase(*read_messages(run.world, RUN))
    run.world.unacknowledged.append(f"-{status}")
    run.begin("empty" if status == "failed-compact" else "good", seconds=12.0)

    def append_behind() -> None:
        if run.world.unacknowledged:
            run.world.at(0.0001, append_behind)
            return
        run.bob.handle = run.bob.handle.append((user("in between"),))
        run.harness.start(run.bob, run.appended(run.bob))

    append_behind()
    run.harness.rest()
    run.world.behaviours = []
    over = [e.evaluation for e in run.harness.events(CompactionFailed)]
    over += [e.evaluation for e in run.completed()]
    assert len(set(over)) == len(over), "an evaluation ended twice"
    if isinstance(run.ada.answer, ErrorReply):  # its history is another by now: it reads the run again (D.F.19)
        assert run.ada.answer.code == "conflict"
        run.step("good")
    assert isinstance(run.ada.answer, StepCompiled)
    assert len(run.completed()) == 1
    assert run.bought == (2 if status == "failed-compact" else 1)
    run.harness.finish()


@pytest.mark.rule("C.D.9", "C.E.1", "C.K.4", "C.K.6", "C.L.3", "C.L.8", "C.O.6", "C.O.7", "C.X.4", "C.X.5")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_invariant_of_compaction_holds_under_faults(seed: int) -> None:
    assert simulate(seed, compacts=True).steps > 0


def test_the_simulation_reaches_every_outcome() -> None:
    """What the invariants speak of happens: summaries, refusals, pauses, restored checkpoints, dropped ranges."""
    found: dict[str, int] = {}
    for seed in range(400, 406):
        for status, count in simulate(seed, Faults(summariser=0.7), compacts=True).compactions.items():
            found[status] = found.get(status, 0) + count
    reached = {"completed", "dropped", "restored", "started", "failed compact error", "failed evaluate error"}
    reached |= {f"failed compact {r}" for r in ("empty-summary", "incomplete-summary", "summary-too-large")}
    assert reached <= set(found), reached - set(found)

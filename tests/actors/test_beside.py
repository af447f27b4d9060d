"""A step that is held while its history is compacted: what goes on beside it, and what becomes of it (C.K.9, C.X.5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import CLIENT, DOCS, RUN, TENANT, ask_refresh, head, more, report
from tests.actors.compacting_bench import Trio, answer_to, compacting, long, talk

from contextbus.actors.effects import AnyEffect, Scatter, Send, Timer
from contextbus.actors.selection import CONFLICTS
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.commands import (
    CancelCommand,
    ClearHistory,
    ErrorReply,
    OverflowStep,
    Recorded,
    RedactPackages,
    ResetCompaction,
    StepCompiled,
)
from contextbus_protocol.commit_requests import Record
from contextbus_protocol.compaction import Compact, CompactionEnded
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    HistoryCleared,
    RefreshRequested,
    StepFailed,
)
from contextbus_protocol.events import StepCompiled as StepCompiledEvent
from contextbus_protocol.values import Trigger, Usage

replace = msgspec.structs.replace
NEVER = compacting(triggers=(Trigger(kind="messages-exceed", limit=999),))


def held(**changes: Any) -> Trio:
    """A run with one step behind it, and one that waits for its summary."""
    trio = Trio()
    trio.tell(trio.step(*talk(6), compaction=NEVER))
    trio.tell(report(0, command="r0"))
    trio.summary = None
    assert trio.tell(trio.step(*talk(2, 6), command="c1", **changes)) == []
    assert trio.selection.state.held is not None
    return trio


def finish(trio: Trio, summary: str = "Short.") -> list[Any]:
    """The summariser answers."""
    trio.summary = summary
    return trio.tell(answer_to(trio.asked[-1], summary), to="compaction")


@pytest.mark.rule("C.K.9", "C.K.1")
def test_appends_refresh_requests_and_resets_go_on_beside_a_held_step() -> None:
    trio = held()
    redact = RedactPackages(**head("b3"), source="docs", record_id="r1", erasure=1, packages=())
    for answers in (
        trio.tell(ask_refresh(command="b1")),
        trio.tell(ResetCompaction(**head("b2"))),
        trio.tell(redact),
    ):
        (answer,) = answers
        assert isinstance(answer, Recorded)
    assert any(isinstance(e, RefreshRequested) for e in trio.events)
    (answer,) = finish(trio)
    assert isinstance(answer, StepCompiled)
    assert len(trio.asked) == 1
    assert trio.kinds == ["started", "reset", "completed"]
    assert trio.verify().is_clean
    assert trio.selection.idle


@pytest.mark.rule("C.K.9")
def test_messages_that_are_added_beside_it_stay_behind_the_boundary() -> None:
    trio = held()
    (answer,) = trio.tell(more("Beside.", after=trio.fold, command="b1", seen=trio.log.last[0]))
    assert isinstance(answer, Recorded)
    (answer,) = finish(trio)
    # the step was asked for on another history: its client reads the run again
    assert isinstance(answer, ErrorReply)
    assert answer.code == "conflict"
    completed = trio.find(CompactionCompleted)
    assert (completed.source_count, trio.fold.history.count) == (6, 9)
    assert trio.kinds == ["started", "completed"]
    assert isinstance(trio.tell(trio.step(command="c1", attempt=2, compaction=NEVER))[0], StepCompiled)
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9", "D.F.13", "D.F.14")
def test_the_report_of_the_step_before_goes_on_beside_it_and_its_block_is_behind_or_gone() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(6), compaction=NEVER))
    trio.summary = None
    trio.tell(trio.step(*talk(2, 6), command="c1"))
    (answer,) = trio.tell(report(0, command="r0"))
    assert isinstance(answer, Recorded)
    (answer,) = finish(trio)
    assert isinstance(answer, StepCompiled)
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
def test_another_step_and_a_new_topic_wait() -> None:
    trio = held()
    assert trio.tell(trio.step(command="c2", compaction=NEVER)) == []
    assert trio.tell(ClearHistory(**head("clear"))) == []
    assert [c.command for c in trio.selection.state.waiting] == ["c2", "clear"]
    (beside,) = trio.tell(ask_refresh(command="b1"))
    assert isinstance(beside, Recorded)
    answers = finish(trio)
    assert [a.command for a in answers] == ["c1", "c2", "clear"]
    assert trio.fold.history.count == 0
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
def test_a_command_that_waits_behind_a_held_step_has_its_deadline() -> None:
    trio = held()
    trio.tell(trio.step(command="c2", compaction=NEVER, seconds=3.0))
    (answer,) = trio.elapse("c2#deadline")
    assert isinstance(answer, ErrorReply)
    assert (answer.command, answer.code) == ("c2", "deadline_exceeded")
    assert trio.selection.state.waiting == ()
    (answer,) = finish(trio)
    assert answer.command == "c1"
    assert trio.selection.idle


def test_a_retry_of_a_held_step_takes_its_place_and_another_address_follows_it() -> None:
    trio = held()
    command = trio.selection.state.held.command
    assert trio.tell(command) == []  # the same once more
    assert trio.tell(replace(command, attempt=2, reply_to=CLIENT + "-2")) == []
    assert trio.selection.state.held.command.attempt == 2
    assert trio.tell(replace(command, attempt=2, reply_to=CLIENT + "-3")) == []
    assert trio.tell(replace(command, attempt=1)) == []  # older
    (other,) = trio.tell(replace(command, attempt=3, user_text="Another."))
    assert isinstance(other, ErrorReply)
    assert other.code == "command_mismatch"
    seen: list[str] = []

    def at(_: str, effect: AnyEffect) -> bool:
        if isinstance(effect, Send) and isinstance(effect.message, StepCompiled):
            seen.append(effect.to.removeprefix(CLIENT))
        return False

    trio.at = at
    one, two = finish(trio)
    assert seen == ["-2", "-3"]
    assert (one.step, one.package) == (two.step, two.package)
    assert trio.kinds.count("started") == 1
    assert trio.selection.idle


@pytest.mark.rule("C.K.8", "D.W.5")
def test_a_cancelled_step_takes_its_compaction_and_what_follows_it_along() -> None:
    trio = held()
    command = trio.selection.state.held.command
    trio.tell(replace(command, reply_to=CLIENT + "-2"))
    assert trio.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1")) == []
    assert trio.compaction.idle
    assert trio.selection.idle
    assert trio.kinds == ["started"]
    assert not trio.selection.state.loaded  # its start is in the log, and this instance has not read it


def test_whoever_follows_a_held_step_has_its_own_time_once_that_is_over() -> None:
    trio = held()
    command = trio.selection.state.held.command
    trio.tell(replace(command, reply_to=CLIENT + "-2"))
    trio.tell(ask_refresh(command="b0"))
    (late,) = trio.elapse("c1#deadline")
    assert isinstance(late, ErrorReply)
    assert late.code == "deadline_exceeded"
    assert "c1#deadline" in trio.selection.timers
    (answer,) = finish(trio)
    assert isinstance(answer, StepCompiled)
    assert trio.selection.idle


def test_a_deadline_beside_another_command_ends_the_held_step_alone() -> None:
    trio = held()
    trio.at = lambda name, e: name == "placement"
    trio.tell(ask_refresh(command="b1"))
    (late,) = trio.elapse("c1#deadline")
    assert late.command == "c1"
    assert trio.selection.state.held is None
    trio.release()
    assert trio.answers[-1].command == "b1"
    assert trio.selection.idle


def test_what_comes_of_a_compaction_that_nobody_waits_for_is_not_taken() -> None:
    trio = held()
    token = trio.selection.state.held.token
    ended = CompactionEnded(run=RUN, token=token, evaluation="e", sequence=99, status="completed")
    assert trio.tell(replace(ended, token="another")) == []
    trio.at = lambda name, e: name == "placement"
    trio.tell(ask_refresh(command="b1"))
    trio.tell(replace(ended, status="failed", phase="compact", reason="error", code="summariser_failed"))
    before = trio.selection.state
    trio.tell(ended)  # a second one
    assert trio.selection.state == before
    trio.release()
    assert [a.command for a in trio.answers[-2:]] == ["b1", "c1"]
    assert trio.answers[-1].code == "summariser_failed"
    trio.tell(ended)
    assert trio.selection.idle


@pytest.mark.rule("C.K.9")
def test_a_compaction_that_is_interrupted_again_and_again_ends_in_a_conflict() -> None:
    trio = run_of(8)

    def at(_: str, effect: AnyEffect) -> bool:
        record = effect.message if isinstance(effect, Send) else None
        if isinstance(record, Record) and record.head.command.endswith("-started"):
            trio.log.add(RefreshRequested(), command=f"other-{trio.log.last[0]}")
        return False

    trio.at = at
    (answer,) = trio.tell(trio.step(command="c1"))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "conflict"
    assert [e.status for e in trio.ended] == ["interrupted"] * (CONFLICTS + 1)
    assert trio.kinds == []
    trio.at = None
    assert isinstance(trio.tell(trio.step(command="c1", attempt=2))[0], StepCompiled)
    assert trio.selection.idle


@pytest.mark.rule("C.H.8", "C.I.3", "C.I.4", "C.O.2")
def test_after_an_interruption_the_host_is_asked_about_the_history_as_it_is_now() -> None:
    custom = compacting(
        triggers=(Trigger(kind="custom"), Trigger(kind="custom"), Trigger(kind="messages-exceed", limit=1))
    )
    trio = run_of(8)
    answers = iter([False, True, False, False])
    trio.count = lambda q: CallbackAnswered(run=RUN, token=q.token, name=q.name, matches=next(answers))
    once = [True]

    def at(_: str, effect: AnyEffect) -> bool:
        if isinstance(effect, Send) and isinstance(effect.message, Compact) and once:
            once.clear()
            trio.log.add(RefreshRequested(), command="other")
        return False

    trio.at = at
    (answer,) = trio.tell(trio.step(command="c1", compaction=custom))
    assert isinstance(answer, StepCompiled)
    started = trio.find(CompactionStarted)
    assert (started.trigger_index, started.matched) == (2, ((0, False), (1, False)))
    assert [q.trigger.index for q in trio.questions if q.trigger is not None] == [0, 1, 0, 1]
    assert {q.trigger.tokens for q in trio.questions if q.trigger is not None} == {started.tokens_before}
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.4", "C.I.6", "C.O.6", "D.W.4")
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_an_evaluation_that_fails_stops_the_step_before_anything_is_begun(*, late: bool, counts: bool) -> None:
    given = compacting(counts=counts, triggers=(Trigger(kind="custom"),), on_failure="continue")
    trio = run_of(8)
    failed = CallbackAnswered(run=RUN, token="", name="count-tokens", code="hook_failed", origin_code="KeyError")
    trio.count = lambda q: None if late else replace(failed, token=q.token, name=q.name)
    answers = trio.tell(trio.step(command="c1", compaction=given))
    if late:
        (token,) = (t for t in trio.selection.timers if not t.endswith("#deadline"))
        answers = trio.elapse(token)
    (answer,) = answers
    assert isinstance(answer, ErrorReply)
    assert answer.code == ("callback_timeout" if late else "hook_failed")
    assert answer.data.origin == ("count_tokens" if counts else "compaction_trigger")
    event = trio.find(CompactionFailed)
    assert (event.phase, event.reason) == ("evaluate", "error")
    assert trio.kinds == ["failed"]
    assert any(isinstance(e, StepFailed) for e in trio.events)
    assert trio.verify().is_clean


def test_a_timer_that_runs_down_while_the_step_is_held_is_set_again_for_its_sources() -> None:
    custom = compacting(triggers=(Trigger(kind="custom"),))
    trio = run_of(8)
    trio.summary = None
    trio.tell(replace(trio.step(command="c1", compaction=custom, sources=(DOCS,)), user_text="How?"))
    (token,) = (t for t in trio.selection.timers if not t.endswith("#deadline"))
    trio.elapse(token)
    seen: list[AnyEffect] = []

    def at(name: str, effect: AnyEffect) -> bool:
        if name == "selection":
            seen.append(effect)
        return False

    trio.at = at
    finish(trio)
    assert any(isinstance(e, Scatter) for e in seen)
    assert [e.token for e in seen if isinstance(e, Timer)].count(token) == 1
    assert isinstance(trio.answers[-1], StepCompiled)
    assert trio.selection.idle


# -- on_failure, pause and its end

SMALL = (long(50, "assistant"),)


def refuse(trio: Trio, times: int, on_failure: str = "stop", **changes: Any) -> list[Any]:
    """So many steps whose summary is refused."""
    trio.summary = "[error]"
    answers: list[Any] = []
    for _ in range(times):
        command = f"c{trio.log.last[0]}"
        answers += trio.tell(trio.step(command=command, compaction=compacting(on_failure=on_failure, **changes)))
        if isinstance(answers[-1], StepCompiled):
            trio.tell(report(answers[-1].step, command=f"r-{command}"))
    return answers


def run_of(count: int) -> Trio:
    trio = Trio()
    trio.tell(trio.step(*talk(count), compaction=NEVER))
    trio.tell(report(0, command="r0"))
    return trio


@pytest.mark.rule("C.X.5", "C.K.4")
def test_stop_fails_the_step_with_the_reason_and_the_pause_with_the_last_one() -> None:
    trio = run_of(8)
    answers = refuse(trio, 3)
    assert {(a.code, a.data.origin_code) for a in answers} == {("summariser_failed", "error")}
    assert trio.fold.failures.in_row == 3
    paused = refuse(trio, 2)
    assert len(trio.asked) == 3
    assert {(a.code, a.data.origin_code) for a in paused} == {("summariser_failed", "error")}
    assert all("paused" in a.message for a in paused)
    failed = [e for e in trio.events if isinstance(e, CompactionFailed)]
    assert [(e.phase, e.reason) for e in failed[3:]] == [("evaluate", "paused")]  # told once
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5")
def test_a_pause_ends_when_the_host_says_so() -> None:
    trio = run_of(8)
    refuse(trio, 4)
    (answer,) = trio.tell(ResetCompaction(**head("reset")))
    assert isinstance(answer, Recorded)
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="after"))
    assert isinstance(answer, StepCompiled)
    assert trio.kinds[-3:] == ["reset", "started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5")
def test_a_pause_ends_once_the_history_has_grown_by_a_fifth_and_a_further_failure_pauses_again() -> None:
    trio = run_of(10)
    refuse(trio, 4)
    trio.write(long(70, "assistant"))
    refuse(trio, 1)
    assert len(trio.asked) == 3  # a tenth
    trio.write(long(71), long(72, "assistant"))
    refuse(trio, 1)
    assert len(trio.asked) == 4
    refuse(trio, 2)
    assert len(trio.asked) == 4
    assert [e.reason for e in trio.events if isinstance(e, CompactionFailed)].count("paused") == 2
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5")
def test_a_summary_that_passes_ends_the_row() -> None:
    trio = run_of(8)
    refuse(trio, 2)
    trio.summary = "Short."
    trio.tell(trio.step(command="passes"))
    trio.tell(report(trio.fold.last.step if trio.fold.last else 0, command="rp"))
    assert trio.fold.failures.in_row == 0
    trio.write(*talk(6, 20))
    refuse(trio, 2)
    assert trio.fold.failures.in_row == 2
    assert trio.fold.failures.paused_at is None


@pytest.mark.rule("C.X.4", "C.X.5")
def test_a_range_that_did_not_shrink_is_not_tried_again_before_it_is_a_fifth_larger() -> None:
    trio = run_of(12)
    trio.summary = "word " * 370
    (answer,) = trio.tell(trio.step(command="c1"))
    assert (answer.code, answer.data.origin_code) == ("summariser_failed", "summary-too-large")
    failed = trio.find(CompactionFailed)
    assert failed.refused is not None
    assert trio.fold.failures.refused_range == failed.refused
    (answer,) = trio.tell(trio.step(command="c2"))
    assert (answer.data.origin_code, len(trio.asked)) == ("summary-too-large", 1)
    trio.write(long(70), long(71, "assistant"), long(72))
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="c3"))
    assert isinstance(answer, StepCompiled)
    assert len(trio.asked) == 2
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5")
def test_continue_goes_on_with_the_whole_history_and_says_so_also_while_paused() -> None:
    trio = run_of(8)
    answers = refuse(trio, 5, "continue")
    assert [isinstance(a, StepCompiled) for a in answers] == [True] * 5
    assert {a.warnings for a in answers} == {("compaction-failed",)}
    assert len(trio.asked) == 3
    reasons = [e.reason for e in trio.events if isinstance(e, CompactionFailed)]
    assert reasons == ["error", "error", "error", "paused"]
    compiled = [e for e in trio.events if isinstance(e, StepCompiledEvent)]
    assert {e.count for e in compiled} == {8}
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5", "D.B.15")
def test_continue_fails_where_the_request_does_not_fit() -> None:
    trio = run_of(8)
    small = replace(trio.step().options.model, context_window=400, max_output_tokens=100)
    trio.summary = "[error]"
    given = trio.step(command="c1", compaction=compacting(on_failure="continue"), model=small)
    (answer,) = trio.tell(given)
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.data.phase, answer.data.origin_code) == (
        "context_budget_exceeded",
        "compaction",
        "error",
    )
    assert trio.kinds == ["started", "failed"]
    assert any(isinstance(e, StepFailed) for e in trio.events)


@pytest.mark.rule("C.X.5")
def test_drop_drops_while_paused_and_nobody_is_asked() -> None:
    trio = run_of(8)
    refuse(trio, 3, "stop")
    (answer,) = refuse(trio, 1, "drop")
    assert isinstance(answer, StepCompiled)
    assert len(trio.asked) == 3
    completed = trio.find(CompactionCompleted)
    assert (completed.dropped, completed.pieces) == (True, 0)
    assert trio.fold.failures.in_row == 3  # nothing was tried
    assert trio.verify().is_clean


# -- restored


@pytest.mark.rule("C.L.3", "C.L.5", "C.O.5", "C.O.6")
def test_a_turn_begins_with_what_was_compacted_once() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8)))
    trio.tell(trio.step(long(8, "assistant"), command="c2"))  # the same turn
    assert trio.kinds == ["started", "completed"]
    trio.tell(trio.step(long(9), command="c3"))
    trio.tell(trio.step(long(10, "assistant"), command="c4", compaction=NEVER))
    assert trio.kinds.count("restored") == 1
    restored = trio.find(CompactionRestored)
    assert (restored.source_messages, restored.replacement_messages) == (6, 1)
    assert trio.verify().is_clean


@pytest.mark.rule("C.L.8")
def test_a_checkpoint_that_was_replaced_while_it_could_not_be_read_is_no_failure() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8)))
    checkpoint = trio.fold.checkpoint
    assert checkpoint is not None
    del trio.log.blobs[checkpoint.replaced_by]

    def at(_: str, effect: AnyEffect) -> bool:
        if isinstance(effect, Send) and isinstance(effect.message, Record) and effect.message.failed is not None:
            trio.at = None
            trio.log.add(HistoryCleared(), command="cleared")
        return False

    trio.at = at
    (answer,) = trio.tell(replace(trio.step(long(9), command="c2"), step=None))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "conflict"  # its messages stand behind others: not the checkpoint is at fault
    assert trio.kinds == ["started", "completed"]


# -- overflow


@pytest.mark.rule("D.I.5", "D.I.1", "C.O.2")
def test_an_overflow_compacts_first_and_then_compiles_again() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8), compaction=NEVER))
    (answer,) = trio.tell(OverflowStep(**head("o1"), step=0))
    assert isinstance(answer, StepCompiled)
    started = trio.find(CompactionStarted)
    assert (started.cause, started.trigger_index, started.step) == ("overflow", None, 0)
    assert answer.step == 0
    assert trio.kinds == ["started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("D.I.5", "C.D.10")
def test_an_overflow_with_nothing_to_compact_is_compiled_again_all_the_same() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(2), compaction=NEVER))
    (answer,) = trio.tell(OverflowStep(**head("o1"), step=0))
    assert isinstance(answer, StepCompiled)
    assert trio.kinds == ["started", "failed"]
    assert trio.find(CompactionFailed).reason == "no-safe-boundary"
    assert answer.warnings == ("compaction-failed",)
    assert trio.verify().is_clean


@pytest.mark.rule("D.I.5", "C.K.4")
def test_an_overflow_whose_summary_fails_stops() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8), compaction=NEVER))
    trio.summary = "[error]"
    (answer,) = trio.tell(OverflowStep(**head("o1"), step=0))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "summariser_failed"


# -- nothing that was said is in the log


@pytest.mark.rule("C.O.7")
def test_neither_summary_nor_message_nor_the_text_of_a_failure_is_in_the_log() -> None:
    trio = run_of(8)
    trio.summary = "[Provider said: the secret word is XYZZY]"
    trio.tell(trio.step(command="c1"))
    trio.summary = "A summary of PLUGH."
    trio.tell(trio.step(command="c2"))
    assert trio.kinds == ["started", "failed", "started", "completed"]
    log = b"".join(msgspec.json.encode(c) for _, _, c in trio.log.commits)
    for word in (b"XYZZY", b"PLUGH", b"summary of", b"Note", b"ticket", b"secret", b"word word"):
        assert word not in log
    assert any(b"PLUGH" in data for data in trio.log.blobs.values())


@pytest.mark.rule("C.K.5", "C.K.8")
def test_what_a_cancelled_step_paid_is_told_with_the_next_compaction() -> None:
    trio = held(compaction=compacting(summary_input_tokens=60))
    trio.tell(replace(answer_to(trio.asked[-1], "Short."), usage=Usage(70, 7)), to="compaction")
    job = trio.compaction.state.job
    assert job is not None
    assert job.usages == (Usage(70, 7),)
    trio.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1"))
    assert trio.kinds == ["started"]
    assert trio.compaction.state.job is None
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="c3"))
    assert isinstance(answer, StepCompiled)
    usage = trio.find(CompactionCompleted).usage
    assert usage is not None
    assert usage.input_tokens >= 70
    assert trio.compaction.state.spent == ()
    assert trio.verify().is_clean

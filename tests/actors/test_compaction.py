"""The compaction actor, driven by hand: every way that a compaction goes, and every way in which it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.actors.bench import CLIENT, RUN, TENANT, sent
from tests.actors.compacting_bench import COMPACTING, Trio, answer_to, compacting, long, talk, unstored

from contextbus.actors.compaction import CONFLICTS, LONGEST_QUEUE
from contextbus.actors.effects import AnyEffect, Fetch, Load, Scatter, Send, Store
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.commands import CancelCommand, ErrorReply, StepCompiled
from contextbus_protocol.commit_requests import Record
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.events import CompactionCompleted, CompactionFailed, CompactionStarted, HistoryReplaced
from contextbus_protocol.outcomes import Conflicted, Elapsed, Fetched, Loaded
from contextbus_protocol.values import Usage

replace = msgspec.structs.replace


def asked_to(trio: Trio, *messages: Any, **changes: Any) -> Compact:
    """What selection asks of the compaction actor, which does not get it yet."""
    trio.at = lambda _, e: isinstance(e, Send) and isinstance(e.message, Compact)
    trio.tell(trio.step(*(messages or talk(8)), **changes))
    ((_, effect),) = trio.kept
    trio.kept, trio.at = [], None
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Compact)
    return effect.message


def is_record(effect: AnyEffect, phase: str) -> bool:
    return (
        isinstance(effect, Send) and isinstance(effect.message, Record) and effect.message.head.command.endswith(phase)
    )


@pytest.mark.rule("C.K.2", "C.K.3", "C.K.6", "C.K.9", "C.L.1", "C.L.2", "C.O.2", "C.O.3", "C.O.8", "C.X.8")
def test_a_start_a_question_and_a_checkpoint_and_then_the_step() -> None:
    trio = Trio()
    (answer,) = trio.tell(trio.step(*talk(8)))
    assert isinstance(answer, StepCompiled)
    tags = [[str(e.__struct_config__.tag) for e in c.events] for _, _, c in trio.log.commits]
    assert tags == [
        ["run-started", "messages-appended", "compaction-started"],
        ["compaction-completed"],
        ["step-compiled"],
    ]
    started, completed = trio.find(CompactionStarted), trio.find(CompactionCompleted)
    assert [c.command for _, _, c in trio.log.commits[:2]] == [
        f"{started.evaluation}-started",
        f"{started.evaluation}-completed",
    ]
    assert (started.trigger_index, started.message_count, started.token_scope, started.step) == (0, 8, "request", 0)
    assert started.evaluation == completed.evaluation
    assert (completed.replaced_range.start, completed.replaced_range.end, completed.source_count) == (0, 6, 6)
    state = trio.fold
    assert completed.source_hash == state.history.keep(6).chain
    assert state.history.count == 8
    (question,) = trio.asked
    assert [m.role for m in question.messages] == ["user", "assistant"] * 3
    assert {completed.replaced_by, completed.archive} <= set(trio.log.blobs)
    assert trio.verify().is_clean
    assert trio.compaction.idle
    assert trio.selection.idle


@pytest.mark.rule("C.K.9")
def test_the_log_is_read_first_where_it_is_not_known() -> None:
    trio = Trio()
    compact = asked_to(trio)
    early = replace(compact, head=replace(compact.head, expected=3))
    effects = trio.compaction.tell(early)
    (load,) = (e for e in effects if isinstance(e, Load))
    assert (load.after, load.at_least) == (0, 3)
    gone = trio.compaction.tell(Loaded(run=RUN, token=load.token, part="run", after=0, code="deadline_exceeded"))
    told = sent(gone, CompactionEnded)
    assert (told.status, told.phase, told.reason, told.code) == ("failed", "evaluate", "error", "deadline_exceeded")
    assert trio.compaction.idle


@pytest.mark.rule("C.K.9")
def test_what_was_evaluated_on_another_log_is_interrupted() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8)))
    compact = asked_to(trio, *talk(4, 8), command="c2")
    trio.compaction.tell(compact)
    other = Trio(trio.log)
    stale = replace(compact, head=replace(compact.head, expected=compact.head.expected - 3))
    effects = other.compaction.tell(stale)
    for load in [e for e in effects if isinstance(e, Load)]:
        effects += other.compaction.tell(trio.log.load(load))
    assert sent(effects, CompactionEnded).status == "interrupted"
    assert other.asked == []


# -- races


@pytest.mark.rule("C.K.9")
def test_a_race_lost_at_the_start_has_the_step_evaluated_again() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(3)))
    once = [True]

    def at(_: str, effect: AnyEffect) -> bool:
        if is_record(effect, "-started") and once:
            once.clear()
            trio.write(long(50))
        return False

    trio.at = at
    (answer,) = trio.tell(trio.step(*talk(5, 3), command="c2"))
    assert [e.status for e in trio.ended] == ["interrupted"]
    # its messages were written behind another history: the client reads the run again, and asks again
    assert isinstance(answer, ErrorReply)
    assert (answer.code, trio.asked, trio.kinds) == ("conflict", [], [])
    (again,) = trio.tell(trio.step(*talk(5, 3), command="c2", attempt=2))
    assert isinstance(again, StepCompiled)
    assert trio.kinds == ["started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
def test_a_race_lost_to_an_append_at_the_end_uses_the_same_summary_again() -> None:
    trio = Trio()
    trio.at = lambda _, e: is_record(e, "-completed")
    trio.tell(trio.step(*talk(8)))
    trio.write(long(50), long(51, "assistant"))
    trio.release()
    completed = trio.find(CompactionCompleted)
    assert len(trio.asked) == 1
    assert (completed.source_count, completed.pieces, trio.fold.history.count) == (6, 1, 10)
    assert [e.status for e in trio.ended] == ["completed"]
    assert trio.kinds == ["started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
def test_a_race_lost_to_a_rewrite_in_the_range_asks_anew_and_forces_nothing() -> None:
    trio = Trio()
    usage = Usage(10, 5)
    trio.summary = Summarised(run=RUN, token="", summariser="", parts=(SummaryPart("text", "Short."),), usage=usage)
    trio.at = lambda _, e: is_record(e, "-completed")
    trio.tell(trio.step(*talk(8)))
    trio.log.add(HistoryReplaced(keep=2), command="rewrite")
    trio.write(*talk(6, 20))
    trio.release()
    completed = trio.find(CompactionCompleted)
    assert len(trio.asked) == 2
    assert trio.asked[0].messages != trio.asked[1].messages
    assert completed.source_hash == trio.fold.history.keep(6).chain
    assert (completed.pieces, completed.usage) == (2, Usage(20, 10))  # what both requests cost (C.K.5)
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9", "C.O.11")
def test_where_nothing_is_left_to_compact_the_start_stays_without_an_end() -> None:
    trio = Trio()
    trio.at = lambda _, e: is_record(e, "-completed")
    trio.tell(trio.step(*talk(8)))
    trio.log.add(HistoryReplaced(keep=1), command="rewrite")
    trio.release()
    # the step brings its messages once more, and is evaluated on them
    assert [e.status for e in trio.ended] == ["interrupted", "completed"]
    assert trio.kinds == ["started", "started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
def test_another_checkpoint_that_came_first_is_not_summarised_again() -> None:
    trio = Trio()
    trio.at = lambda _, e: is_record(e, "-completed")
    trio.tell(trio.step(*talk(8)))
    other = Trio(trio.log)
    other.tell(other.step(command="c9"))  # another instance compacts
    assert other.kinds == ["started", "started", "completed"]
    trio.release()
    assert [e.status for e in trio.ended] == ["interrupted"]
    assert len(trio.asked) == 1
    assert trio.kinds == ["started", "started", "completed"]
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9", "C.K.5")
def test_a_failure_that_loses_a_race_is_recorded_without_asking_again() -> None:
    trio = Trio()
    trio.summary = SummaryFailed(run=RUN, token="", summariser="", code="error", usage=Usage(7, 1))
    trio.at = lambda _, e: is_record(e, "-failed-compact")
    trio.tell(trio.step(*talk(8)))
    trio.write(long(50))
    trio.release()
    assert len(trio.asked) == 1
    failed = trio.find(CompactionFailed)
    assert (failed.phase, failed.reason, failed.usage) == ("compact", "error", Usage(7, 1))
    assert trio.fold.usage == Usage(7, 1)
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9", "C.K.4")
def test_too_many_lost_races_end_the_compaction_and_leave_the_history_as_it_is() -> None:
    trio = Trio()

    def store(store: Store) -> Conflicted | None:
        if not store.commit.command.endswith("-completed"):
            return None
        trio.write(long(60 + len(trio.log.commits)))
        return Conflicted(run=RUN, token=store.token, part="run")

    trio.store = store
    (answer,) = trio.tell(trio.step(*talk(8)))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "conflict"
    (told,) = trio.ended
    assert (told.status, told.phase, told.code) == ("failed", "persist", "conflict")
    assert len([c for _, _, c in trio.log.commits if c.command.startswith("other")]) == CONFLICTS + 1
    assert (len(trio.asked), trio.kinds, trio.fold.checkpoint) == (1, ["started"], None)
    assert trio.compaction.idle


# -- summarisers


@pytest.mark.rule("C.K.4", "C.O.4", "C.G.3", "C.G.5", "C.G.6", "C.G.8", "C.X.4")
@pytest.mark.parametrize(
    ("summary", "reason", "code"),
    [
        ("[absent]", "error", "absent"),
        ("[busy]", "error", "busy"),
        ("[error]", "error", "error"),
        ("[malformed]", "error", "malformed"),
        ("[No word at all]", "error", "error"),
        ("   ", "empty-summary", "empty-summary"),
        ("word " * 2_000, "summary-too-large", "summary-too-large"),
        ("word " * 185, "summary-too-large", "summary-too-large"),  # it fits, and shrinks too little
        (Summarised(run=RUN, token="", summariser="", parts=(), finish_reason="length"), "incomplete-summary", None),
        (
            Summarised(run=RUN, token="", summariser="", parts=(SummaryPart("tool-call"),)),
            "incomplete-summary",
            None,
        ),
    ],
)
def test_a_summary_that_cannot_be_used_fails_the_step_and_changes_nothing(
    summary: Any, reason: str, code: str | None
) -> None:
    trio = Trio()
    trio.summary = summary
    (answer,) = trio.tell(trio.step(*talk(8)))
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.data.origin, answer.data.origin_code) == (
        "summariser_failed",
        "extractive",
        code or reason,
    )
    failed = trio.find(CompactionFailed)
    assert (failed.phase, failed.reason, failed.summariser) == ("compact", reason, "extractive")
    assert trio.kinds == ["started", "failed"]
    state = trio.fold
    assert (state.checkpoint, state.history.count, state.failures.in_row) == (None, 8, 1)
    assert trio.verify().is_clean
    assert trio.compaction.idle


@pytest.mark.rule("C.K.4")
def test_a_summariser_that_is_late_fails_and_its_answer_is_not_taken() -> None:
    trio = Trio()
    trio.summary = None
    trio.tell(trio.step(*talk(8)))
    (question,) = trio.asked
    (answer,) = trio.late()
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.data.origin_code) == ("summariser_failed", "timeout")
    before = trio.log.last
    trio.tell(answer_to(question, "Late."), to="compaction")
    assert trio.log.last == before
    assert trio.compaction.idle


def test_an_answer_with_another_token_is_not_taken() -> None:
    trio = Trio()
    trio.summary = None
    trio.tell(trio.step(*talk(8)))
    (question,) = trio.asked
    for token in (question.token + "0", question.token.rpartition("#")[0], ""):
        trio.tell(replace(answer_to(question, "Wrong."), token=token), to="compaction")
    assert trio.kinds == ["started"]
    trio.tell(answer_to(question, "Right."), to="compaction")
    assert trio.kinds == ["started", "completed"]
    trio.tell(answer_to(question, "Again."), to="compaction")
    assert trio.kinds == ["started", "completed"]


@pytest.mark.rule("C.X.2", "C.K.5")
def test_pieces_are_asked_for_one_after_the_other_within_one_time() -> None:
    trio = Trio()
    usage = Usage(3, 1)
    trio.summary = Summarised(run=RUN, token="", summariser="", parts=(SummaryPart("text", "Short."),), usage=usage)
    trio.tell(trio.step(*talk(12), compaction=compacting(summary_input_tokens=100)))
    completed = trio.find(CompactionCompleted)
    assert len(trio.asked) == completed.pieces > 2
    assert completed.usage == Usage(3 * completed.pieces, completed.pieces)
    assert trio.verify().is_clean
    slow = Trio()
    slow.summary = None
    slow.tell(slow.step(*talk(12), compaction=compacting(summary_input_tokens=100)))
    slow.tell(answer_to(slow.asked[0], "One."), to="compaction")
    assert len(slow.asked) == 2
    slow.late()
    failed = slow.find(CompactionFailed)
    assert (failed.reason, failed.origin_code) == ("error", "timeout")


@pytest.mark.rule("C.K.4")
def test_a_time_that_is_over_before_the_summariser_is_asked_is_a_failure_too() -> None:
    trio = Trio()
    trio.at = lambda _, e: is_record(e, "-started")
    trio.tell(trio.step(*talk(8)))
    assert trio.late() == []  # what is being stored still comes
    trio.release()
    assert (trio.asked, trio.kinds) == ([], ["started", "failed"])
    assert trio.find(CompactionFailed).origin_code == "timeout"
    assert trio.verify().is_clean


# -- no room


@pytest.mark.rule("C.J.5", "C.O.4", "C.K.4")
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
def test_an_envelope_above_the_target_fails_the_step_whatever_the_run_says(on_failure: Any) -> None:
    trio = Trio()
    given = trio.step(*talk(8), compaction=compacting(on_failure=on_failure), overhead_tokens=2_000)
    (answer,) = trio.tell(given)
    assert isinstance(answer, ErrorReply)
    assert answer.code == "request_overhead"
    assert (trio.asked, trio.kinds) == ([], ["started", "failed"])
    assert trio.find(CompactionFailed).reason == "request-overhead"
    assert trio.fold.failures.in_row == 0  # no summary was asked for
    assert trio.verify().is_clean


@pytest.mark.rule("C.D.10", "C.F.2", "C.K.4")
@pytest.mark.parametrize(
    ("changes", "reason"), [({"target_tokens": 60}, "protected-history"), ({"keep": None}, "no-safe-boundary")]
)
def test_what_must_stay_and_has_no_room_fails_without_asking(changes: dict[str, Any], reason: str) -> None:
    trio = Trio()
    options = compacting(**{k: v for k, v in changes.items() if v is not None})
    if reason == "no-safe-boundary":
        options = replace(options, keep=replace(options.keep, keep_last_messages=99))
    (answer,) = trio.tell(trio.step(*talk(8), compaction=options))
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.data.phase, answer.data.origin_code) == (
        "context_budget_exceeded",
        "compaction",
        reason,
    )
    failed = trio.find(CompactionFailed)
    assert (failed.reason, failed.summariser, trio.asked) == (reason, "", [])
    assert len(trio.log.commits) == 2  # start and failure are one commit, then the failed step
    assert trio.verify().is_clean


# -- cancelled, late, asked again


PHASES: dict[str, Callable[[AnyEffect], bool]] = {
    "fetch": lambda e: isinstance(e, Fetch),
    "started": lambda e: is_record(e, "-started"),
    "summary": lambda e: isinstance(e, Scatter),
    "commit": lambda e: is_record(e, "-completed"),
    "failing": lambda e: is_record(e, "-failed-compact"),
}


def stopped_in(phase: str) -> Trio:
    """A compaction that waits in a phase; half of its messages are in the log already."""
    trio = Trio()
    if phase == "failing":
        trio.summary = "[error]"
    first = replace(compacting(), triggers=(replace(compacting().triggers[0], limit=99),))
    trio.tell(trio.step(*talk(4), compaction=first))
    trio.at = lambda name, e: (name == "compaction") and PHASES[phase](e)
    trio.tell(trio.step(*talk(4, 4), command="c2"))
    assert len(trio.kept) == 1
    assert trio.compaction.state.job.phase == phase
    return trio


@pytest.mark.rule("C.K.8", "D.W.5")
@pytest.mark.parametrize("phase", [*PHASES])
def test_a_cancelled_step_has_no_terminal_event_unless_it_is_being_stored(phase: str) -> None:
    trio = stopped_in(phase)
    trio.tell(CancelCommand(run=RUN, tenant=TENANT, command="c2"))
    stays = phase in ("commit", "failing")
    assert trio.compaction.idle is not stays
    assert trio.selection.idle
    trio.release()
    assert trio.compaction.idle
    assert trio.answers[1:] == []
    assert set(trio.kinds) <= ({"started", "completed", "failed"} if stays else {"started"})
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="c3"))
    assert isinstance(answer, StepCompiled)
    assert trio.verify().is_clean


@pytest.mark.rule("C.O.11", "C.K.4")
@pytest.mark.parametrize("phase", [*PHASES])
def test_a_step_whose_time_is_over_is_told_so_and_the_run_goes_on(phase: str) -> None:
    trio = stopped_in(phase)
    (answer,) = trio.elapse("c2#deadline")
    assert isinstance(answer, ErrorReply)
    assert answer.code == "deadline_exceeded"
    trio.release()
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="c3"))
    assert isinstance(answer, StepCompiled)
    assert trio.compaction.idle
    assert trio.verify().is_clean


@pytest.mark.parametrize("phase", [*PHASES])
def test_a_compaction_whose_own_time_is_over_lets_go_of_the_run(phase: str) -> None:
    trio = stopped_in(phase)
    job = trio.compaction.state.job
    trio.tell(Elapsed(run=RUN, token=job.token), to="compaction")
    assert trio.compaction.idle
    trio.elapse("c2#deadline")
    trio.release()
    trio.summary = "Short."
    (answer,) = trio.tell(trio.step(command="c3"))
    assert isinstance(answer, StepCompiled)
    assert trio.verify().is_clean


@pytest.mark.rule("C.K.9")
@pytest.mark.parametrize("phase", ["fetch", "started", "summary", "commit"])
def test_whoever_asks_again_for_the_same_is_told_and_its_time_counts(phase: str) -> None:
    trio = stopped_in(phase)
    job = trio.compaction.state.job
    compact = job.compact
    head = replace(compact.head, token="another", notify=CLIENT + "-2", seconds_left=99.0)
    effects = trio.compaction.tell(replace(compact, head=head))
    assert {t.removeprefix(job.token): s for t, s in trio.compaction.timers.items()} == {
        "": 99.0,
        "#late": pytest.approx(79.2),
    }
    assert not [e for e in effects if isinstance(e, Send | Scatter | Fetch)]
    told: list[CompactionEnded] = []

    def at(_: str, effect: AnyEffect) -> bool:
        if isinstance(effect, Send) and isinstance(effect.message, CompactionEnded):
            told.append(effect.message)
            assert effect.to == CLIENT + "-2"
            return True
        return False

    kept, trio.kept, trio.at = trio.kept, [], at
    trio.queue += kept
    trio.pump()
    assert [(e.token, e.status) for e in told] == [("another", "completed")]
    assert trio.kinds == ["started", "completed"]


def test_two_compactions_of_a_run_are_taken_one_after_the_other_and_too_many_are_told_to_wait() -> None:
    trio = stopped_in("summary")
    compact = trio.compaction.state.job.compact

    def other(number: int) -> Compact:
        head = replace(compact.head, command=f"d{number}", token=f"d{number}")
        started = replace(compact.started, evaluation=f"compaction-{number:032}")
        made: Compact = replace(compact, head=head, started=started)
        return made

    for number in range(LONGEST_QUEUE):
        assert trio.compaction.tell(other(number)) == ()
    assert trio.compaction.tell(other(0)) == ()  # it waits already
    busy = sent(trio.compaction.tell(other(LONGEST_QUEUE)), CompactionEnded)
    assert (busy.status, busy.code, busy.token) == ("failed", "busy", f"d{LONGEST_QUEUE}")
    trio.compaction.tell(CancelCommand(run=RUN, tenant=TENANT, command="d1"))
    assert len(trio.compaction.state.waiting) == LONGEST_QUEUE - 1
    seen: list[str] = []

    def at(_: str, effect: AnyEffect) -> bool:
        if isinstance(effect, Send) and isinstance(effect.message, CompactionEnded):
            seen.append(f"{effect.message.token}:{effect.message.status}")
        return False

    kept, trio.kept, trio.at = trio.kept, [], at
    trio.queue += kept
    trio.pump()
    assert seen[0].endswith(":completed")
    # they were evaluated before the first one was stored
    assert seen[1:] == [f"d{n}:interrupted" for n in range(LONGEST_QUEUE) if n != 1]
    assert trio.kinds == ["started", "completed"]
    assert trio.compaction.idle


@pytest.mark.rule("C.K.3", "C.K.9", "C.O.11")
@pytest.mark.parametrize("summary", ["Short.", "[error]"])
def test_the_actor_may_be_killed_between_any_two_effects(summary: str) -> None:
    counted = 0
    while True:
        trio = Trio()
        trio.summary = summary
        passed = [0]

        def at(_: str, __: AnyEffect, passed: list[int] = passed, trio: Trio = trio, kill_at: int = counted) -> bool:
            passed[0] += 1
            if passed[0] == kill_at:
                trio.compaction.state = trio.compaction.rule.initial(RUN)
                trio.compaction.timers.clear()
            return False

        trio.at = at
        trio.tell(trio.step(*talk(8), command="c1"))
        if not trio.answers:  # nobody answers the step: its time is over, and the client asks again
            trio.elapse("c1#deadline")
        trio.summary = "Short."
        trio.at = None
        (answer,) = trio.tell(trio.step(command="c1", attempt=2) if not trio.fold.last else trio.step(command="c2"))
        assert isinstance(answer, StepCompiled)
        assert trio.kinds.count("completed") == 1
        assert trio.fold.history.count == 8
        assert trio.verify().is_clean
        assert trio.compaction.idle
        assert trio.selection.idle
        if passed[0] < counted:
            break
        counted += 1
    assert counted > 15


# -- log and store


@pytest.mark.rule("C.K.4", "C.O.4")
@pytest.mark.parametrize(
    ("phase", "kinds"), [("-started", []), ("-completed", ["started"]), ("-failed-compact", ["started"])]
)
@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_a_log_that_stores_nothing_stops_the_step(phase: str, kinds: list[str], on_failure: Any) -> None:
    trio = Trio()
    if phase == "-failed-compact":
        trio.summary = "[error]"
    trio.store = lambda store: unstored(store) if store.commit.command.endswith(phase) else None
    (answer,) = trio.tell(trio.step(*talk(8), compaction=compacting(on_failure=on_failure)))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "limit"
    (told,) = trio.ended
    assert (told.status, told.phase, told.reason) == ("failed", "persist", "error")
    assert (trio.kinds, trio.fold.checkpoint) == (kinds, None)
    trio.store, trio.summary = None, "Short."
    (answer,) = trio.tell(trio.step(*(() if trio.fold.history.count else talk(8)), command="c2"))
    assert isinstance(answer, StepCompiled)
    assert trio.verify().is_clean


@pytest.mark.rule("C.L.8", "C.O.4")
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
@pytest.mark.parametrize("damaged", [True, False])
@pytest.mark.parametrize("first_of_turn", [True, False])
def test_a_checkpoint_that_cannot_be_read_fails_the_step_in_phase_restore(
    on_failure: Any, *, damaged: bool, first_of_turn: bool
) -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8)))
    before = trio.fold.checkpoint
    assert before is not None
    if damaged:
        trio.log.blobs[before.replaced_by] = b'{"version":1,"messages":[]}'
    else:
        del trio.log.blobs[before.replaced_by]
    more = talk(4, 8) if first_of_turn else (long(9, "assistant"), long(11, "assistant"))
    (answer,) = trio.tell(trio.step(*more, command="c2", compaction=compacting(on_failure=on_failure)))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "not_found"
    failed = trio.find(CompactionFailed)
    assert (failed.phase, failed.reason) == ("restore", "error")
    assert trio.kinds == ["started", "completed", "failed"]  # of the failed evaluation there is no start (C.O.6)
    assert trio.fold.checkpoint == before
    assert trio.fold.failures.in_row == 0


@pytest.mark.rule("C.K.4", "C.X.5")
def test_messages_that_are_gone_fail_the_reduction_and_are_no_fault_of_the_summariser() -> None:
    trio = Trio()
    first = replace(compacting(), triggers=(replace(compacting().triggers[0], limit=99),))
    trio.tell(trio.step(*talk(6), compaction=first))
    inputs = trio.fold.segments
    for segment in inputs:
        del trio.log.blobs[segment.inputs]
    (answer,) = trio.tell(trio.step(*talk(2, 6), command="c2"))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "not_found"
    failed = trio.find(CompactionFailed)
    assert (failed.phase, failed.reason, failed.origin_code, failed.summariser) == ("compact", "error", "not_found", "")
    assert (trio.asked, trio.fold.failures.in_row) == ([], 0)


def test_a_store_that_does_not_answer_ends_the_compaction_without_an_event() -> None:
    trio = stopped_in("fetch")
    job = trio.compaction.state.job
    before = trio.log.last
    trio.kept.clear()
    (answer,) = trio.tell(Fetched(run=RUN, token=job.token, code="deadline_exceeded"), to="compaction")
    assert isinstance(answer, ErrorReply)
    assert (answer.code, trio.log.last) == ("deadline_exceeded", before)
    assert trio.compaction.idle


# -- host counts

COUNTED = compacting(counts=True, target_tokens=2_000)


@pytest.mark.rule("C.C.4", "C.C.6", "C.C.7", "C.M.11")
def test_where_the_host_counts_it_counts_every_candidate_and_its_counts_are_facts() -> None:
    trio = Trio()
    counts = iter([900, 900, 120, 700, 130])
    trio.count = lambda q: CallbackAnswered(run=RUN, token=q.token, name=q.name, count=next(counts))
    (answer,) = trio.tell(trio.step(*talk(8), compaction=COUNTED))
    assert isinstance(answer, StepCompiled)
    started, completed = trio.find(CompactionStarted), trio.find(CompactionCompleted)
    assert (started.host_tokens, started.tokens_before) == (900, 900)
    assert completed.host_counts == (900, 120, 700, 130)
    assert (completed.tokens.before, completed.tokens.after) == (900, 130)
    whole, _, empty, size, final = (q.composition for q in trio.questions)
    assert whole is not None
    assert (whole.source_count, whole.replacement) == (None, ())
    assert empty is not None
    assert (empty.source_count, [m.role for m in empty.replacement]) == (6, ["user"])
    assert size is not None
    assert (size.source_count, size.until) == (0, 6)
    assert final is not None
    assert "Short." in str(final.replacement)
    assert trio.verify().is_clean


@pytest.mark.rule("C.C.4", "C.L.7")
def test_the_range_of_a_second_compaction_is_counted_with_the_summary_in_it() -> None:
    trio = Trio()
    trio.tell(trio.step(*talk(8)))
    trio.tell(trio.step(*talk(4, 8), command="c2", compaction=COUNTED))
    assert trio.kinds == ["started", "completed", "restored", "started", "failed"]  # 100 tokens do not shrink
    ranges = [q.composition for q in trio.questions if q.composition is not None and q.composition.until is not None]
    (size,) = ranges
    assert (size.source_count, size.until) == (6, 10)
    assert [("Short." in str(m)) for m in size.replacement] == [True]


@pytest.mark.rule("D.W.4", "C.C.5", "C.K.4")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"code": "hook_failed", "origin_code": "KeyError", "origin_type": "KeyError"}, "KeyError"),
        ({"count": -1}, "invalid_range"),
        ({}, "invalid_range"),
        ({"code": "hook_failed", "origin_code": "a whole sentence, with text"}, None),
    ],
)
def test_a_host_that_cannot_count_fails_the_step_as_its_function_does(answer: dict[str, Any], code: str | None) -> None:
    trio = Trio()

    def count(question: AskCallback) -> CallbackAnswered:
        given: dict[str, Any] = answer if question.reply_to == COMPACTING else {"count": 900}
        return CallbackAnswered(run=RUN, token=question.token, name=question.name, **given)

    trio.count = count
    (told,) = trio.tell(trio.step(*talk(8), compaction=COUNTED))
    assert isinstance(told, ErrorReply)
    assert (told.code, told.data.origin) == ("hook_failed", "count_tokens")
    failed = trio.find(CompactionFailed)
    assert (failed.phase, failed.reason, failed.origin_code, failed.summariser) == ("compact", "error", code, "")
    assert trio.fold.failures.in_row == 0
    assert trio.verify().is_clean


@pytest.mark.rule("D.W.4")
def test_a_host_that_does_not_count_in_time_fails_the_step() -> None:
    trio = Trio()
    trio.count = lambda q: (
        None if q.reply_to == COMPACTING else CallbackAnswered(run=RUN, token=q.token, name=q.name, count=900)
    )
    trio.tell(trio.step(*talk(8), compaction=COUNTED))
    job = trio.compaction.state.job
    again = trio.compaction.tell(replace(job.compact, head=replace(job.compact.head, reply_to=CLIENT + "-2")))
    assert sent(again, AskCallback, CLIENT + "-2").token == trio.questions[-1].token  # the newest host is asked too
    (told,) = trio.late()
    assert isinstance(told, ErrorReply)
    assert (told.code, told.data.origin) == ("callback_timeout", "count_tokens")
    assert trio.find(CompactionFailed).origin_code == "callback_timeout"
    assert trio.compaction.idle


# -- dropped


@pytest.mark.rule("C.X.5", "C.K.5")
@pytest.mark.parametrize("summary", ["[error]", "  ", "word " * 2_000])
def test_a_range_may_go_without_a_summary(summary: str) -> None:
    trio = Trio()
    trio.summary = summary
    (answer,) = trio.tell(trio.step(*talk(8), compaction=compacting(on_failure="drop")))
    assert isinstance(answer, StepCompiled)
    completed = trio.find(CompactionCompleted)
    assert (completed.dropped, completed.pieces, completed.summariser) == (True, 1, "")
    assert [(f.own, f.source) for f in completed.replacement] == []
    assert trio.fold.failures.in_row == 1  # its summariser gave nothing all the same
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5", "C.K.9", "C.K.5")
def test_a_dropped_range_that_loses_a_race_is_dropped_again_and_what_it_cost_is_told() -> None:
    trio = Trio()
    trio.summary = SummaryFailed(run=RUN, token="", summariser="", code="error", usage=Usage(7, 1))
    trio.at = lambda _, e: is_record(e, "-completed")
    trio.tell(trio.step(*talk(8), compaction=compacting(on_failure="drop")))
    trio.write(long(50))
    trio.release()
    completed = trio.find(CompactionCompleted)
    assert (len(trio.asked), completed.dropped, completed.pieces, completed.usage) == (1, True, 1, Usage(7, 1))
    assert trio.verify().is_clean


@pytest.mark.rule("C.X.5")
def test_a_summariser_that_fails_three_times_is_not_asked_for_a_range_that_may_be_dropped() -> None:
    trio = Trio()
    trio.summary = "[error]"
    given = compacting(on_failure="drop", keep=replace(compacting().keep, keep_last_messages=1))
    for number in range(3):
        trio.tell(trio.step(*talk(6, 6 * number), command=f"c{number}", compaction=given))
    assert (len(trio.asked), trio.fold.failures.in_row) == (3, 3)
    small = replace(given, triggers=(replace(given.triggers[0], limit=1),))
    trio.tell(trio.step(long(60, "assistant"), command="c8", compaction=small, number=None))
    completed = trio.find(CompactionCompleted)
    assert completed.dropped
    assert trio.verify().is_clean

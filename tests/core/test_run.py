"""The fold of a run: the same log gives the same state, whatever the events are (D.F.13, D.F.14, D.H.4)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.logs import append, commit_to, compiled, make_commit

from contextbus.core.placed_blocks import PlacedBlocks
from contextbus.core.refresh import plan_refresh
from contextbus.core.run import ChainBrokenError, find_command, fold_commit
from contextbus.core.run_state import RunState
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    CallFailed,
    CallSucceeded,
    HistoryReplaced,
    RefreshRequested,
    RunStarted,
    StepFailed,
    UnknownEvent,
    UsageFact,
)
from contextbus_protocol.values import EstimatorSpec, RefreshOptions, Scope

NEW = RunState("r")
UNKNOWN = UnknownEvent(name="later", data='{"type":"later"}')


def started(*texts: str) -> RunState:
    return commit_to(NEW, RunStarted(scope=Scope(user_id="ada"), estimator=EstimatorSpec()), append(NEW, *texts))


def test_a_commit_that_does_not_follow_is_refused() -> None:
    state = started("a")
    for previous in ("", "sha256:another"):
        digest, commit = make_commit(previous, RefreshRequested())
        with pytest.raises(ChainBrokenError):
            fold_commit(state, 2, digest, commit)
    assert issubclass(ChainBrokenError, InvalidTypeError)


@pytest.mark.rule("D.F.13", "D.F.2", "D.H.4")
def test_a_block_is_placed_when_its_call_succeeded_and_not_before() -> None:
    state = started("a", "b")
    state = commit_to(state, compiled(state, 0, "x", "y"))
    assert (len(state.blocks), state.placed) == (0, ())
    succeeded = commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=0))
    (block,) = succeeded.blocks
    assert (block.step, block.pass_, block.position, block.package) == (0, 1, 2, "sha256:package-0")
    assert [(p.source, p.record_id, p.digest, p.step, p.pass_, p.tokens) for p in succeeded.placed] == [
        ("docs", "x", "sha256:x", 0, 1, 9),
        ("docs", "y", "sha256:y", 0, 1, 9),
    ]
    failed = commit_to(state, CallFailed(step=0, status="cancelled"))
    assert (len(failed.blocks), failed.placed) == (0, ())
    assert commit_to(failed, CallSucceeded(step=0)).blocks == PlacedBlocks()  # settled for good
    assert commit_to(succeeded, CallSucceeded(step=0)).blocks == succeeded.blocks
    assert commit_to(state, CallSucceeded(step=5)).blocks == PlacedBlocks()


@pytest.mark.rule("D.F.13")
def test_a_step_that_was_never_reported_places_nothing() -> None:
    state = started("a")
    state = commit_to(state, compiled(state, 0, "x"))
    state = commit_to(state, compiled(state, 1, "x"))
    assert commit_to(state, CallSucceeded(step=0)).blocks == PlacedBlocks()
    assert [b.step for b in commit_to(state, CallSucceeded(step=1)).blocks] == [1]


@pytest.mark.rule("D.F.14", "D.F.15", "D.F.22")
def test_blocks_behind_a_rewritten_part_leave_with_it() -> None:
    state = started("a")
    for step, text in enumerate(["b", "c"]):
        state = commit_to(state, compiled(state, step, f"record-{step}"))
        state = commit_to(state, CallSucceeded(step=step), append(state, text))
    assert [b.position for b in state.blocks] == [1, 2]
    for keep, left in ((3, [0, 1]), (2, [0, 1]), (1, [0]), (0, [])):
        cut = commit_to(state, HistoryReplaced(keep=keep))
        assert [b.step for b in cut.blocks] == left
        assert [p.record_id for p in cut.placed] == [f"record-{step}" for step in left]
        assert cut.history.count == keep
        assert cut.broken_prefix == ("history" if keep < 2 else None)  # the last request began with two messages


@pytest.mark.rule("D.F.22")
def test_a_changed_system_message_is_the_cause_that_is_named() -> None:
    state = commit_to(NEW, append(NEW, "be brief", role="system"))
    state = commit_to(state, append(state, "a", "b"))
    assert state.system_count == 1
    state = commit_to(state, compiled(state, 0))
    assert commit_to(state, HistoryReplaced(keep=2)).broken_prefix == "history"
    broken = commit_to(state, HistoryReplaced(keep=0))
    assert (broken.broken_prefix, broken.system_count) == ("system", 0)
    assert commit_to(broken, compiled(broken, 1)).broken_prefix is None


@pytest.mark.rule("D.G.29", "D.G.31", "D.G.11")
def test_a_retrieval_serves_what_was_due_and_a_limit_is_remembered() -> None:
    state = commit_to(started("a"), RefreshRequested())
    assert state.refresh_requested
    reused = commit_to(state, compiled(state, 0, retrieved=False))
    assert (reused.refresh_requested, reused.passes, reused.last_refresh_step) == (True, 0, None)
    served = commit_to(reused, compiled(reused, 1, active_task_id="t1"))
    assert (served.refresh_requested, served.passes, served.last_refresh_step) == (False, 1, 1)
    assert (served.last_active_task, served.refused_task) == ("t1", ())
    limited = commit_to(
        served, compiled(served, 2, retrieved=False, fallback="pass-limit", active_task_id="t2", host_request=True)
    )
    assert (limited.refused_task, limited.refresh_requested, limited.last_active_task) == (("t2",), False, "t1")
    skipped = commit_to(served, compiled(served, 2, retrieved=False, host_request=True))
    assert skipped.refresh_requested  # an empty query leaves it due (D.G.21)
    reused = commit_to(limited, compiled(limited, 3, retrieved=False, active_task_id="t2"))
    assert reused.refused_task == ("t2",)
    assert commit_to(reused, compiled(reused, 4, active_task_id="t2")).refused_task == ()


@pytest.mark.rule("D.F.20", "D.F.14")
@pytest.mark.parametrize(
    ("keep", "left"), [(5, ((1, 2), (3, 5))), (4, ((1, 2), (3, 4))), (3, ((1, 2),)), (2, ((1, 2),)), (1, ())]
)
def test_thinking_that_was_cut_off_is_stale_no_more(keep: int, left: tuple[tuple[int, int], ...]) -> None:
    state = msgspec.structs.replace(started(*"abcde"), stale_thinking=((1, 2), (3, 5)))
    assert commit_to(state, HistoryReplaced(keep=keep)).stale_thinking == left


def test_the_newest_messages_name_the_blob_of_their_bodies() -> None:
    state = started("a")
    assert state.inputs == "sha256:inputs"
    later = msgspec.structs.replace(append(state, "b"), inputs="sha256:later")
    assert commit_to(state, later).inputs == "sha256:later"


@pytest.mark.rule("D.L.3")
@pytest.mark.parametrize(("reported", "unaccounted"), [((), False), ((True,), False), ((True, False), True)])
def test_a_failed_step_leaves_usage_unaccounted_that_no_source_reported(
    reported: tuple[bool, ...], unaccounted: bool
) -> None:
    usage = tuple(UsageFact(f"q{n}", "docs", "m", 5, reported=value) for n, value in enumerate(reported))
    state = commit_to(started("a"), StepFailed(step=0, code="source_failed", usage=usage))
    assert state.unaccounted == unaccounted
    assert commit_to(state, StepFailed(step=0, code="source_failed")).unaccounted == unaccounted
    assert not commit_to(state, compiled(state, 0)).unaccounted


@pytest.mark.rule("D.G.6", "D.G.5")
def test_a_task_change_that_came_too_early_is_due_once_enough_steps_have_passed() -> None:
    state = started("Hello")
    state = commit_to(state, compiled(state, 0, active_task_id="a"))
    reasons: list[str] = []
    for step in range(1, 6):
        due = plan_refresh(
            state, RefreshOptions(), step=step, active_task_id="b", host_request=False, query="q", has_sources=True
        )
        reasons.append(due.reason)
        state = commit_to(state, compiled(state, step, retrieved=due.retrieve, active_task_id="b"))
    assert reasons == ["reused", "reused", "reused", "task-change", "reused"]


def test_a_failed_step_leaves_its_command_open() -> None:
    state = commit_to(started("a"), StepFailed(step=0, code="source_failed"), command="try")
    assert find_command(state, "try") is None
    assert state.last is None
    state = commit_to(state, compiled(state, 0), command="try")
    fact = find_command(state, "try")
    assert fact is not None
    assert (fact.step, fact.package, fact.count, fact.sequence) == (0, "sha256:package-0", 1, 3)


def test_at_least_the_last_256_commands_are_remembered() -> None:
    state = NEW
    for number in range(600):
        state = commit_to(state, RefreshRequested(), command=str(number))
        assert find_command(state, str(max(0, number - 255))) is not None
        assert state.recent.forgotten == (find_command(state, "0") is None)
    assert state.recent.forgotten
    newest = find_command(state, "599")
    assert newest is not None
    assert newest.sequence == 600


# -- any log


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[AnyEvent | UnknownEvent, ...]]:
    """The events of commits, one after the other, each possible where it stands."""
    state, step = started("a"), 0
    commits: list[tuple[AnyEvent | UnknownEvent, ...]] = []
    for _ in range(draw(st.integers(0, 12))):
        events: list[AnyEvent | UnknownEvent] = []
        match draw(st.sampled_from(["append", "replace", "step", "reuse", "ok", "failed", "ask", "unknown", "error"])):
            case "append":
                events = [append(state, *draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3)))]
            case "replace":
                events = [HistoryReplaced(keep=draw(st.integers(0, state.history.count)))]
            case "step":
                events = [compiled(state, step, *draw(st.lists(st.sampled_from("xyz"), unique=True)))]
                step += 1
            case "reuse":
                events = [compiled(state, step, retrieved=False)]
                step += 1
            case "ok":
                events = [CallSucceeded(step=max(0, step - 1))]
            case "failed":
                events = [CallFailed(step=max(0, step - 1), status="failed")]
            case "ask":
                events = [RefreshRequested()]
            case "error":
                events = [StepFailed(step=step, code="conflict")]
            case _:
                events = [UNKNOWN]
        commits.append(tuple(events))
        state = commit_to(state, *events)
    return commits


def fold(commits: list[tuple[AnyEvent | UnknownEvent, ...]]) -> list[RunState]:
    states = [started("a")]
    for number, events in enumerate(commits):
        states.append(commit_to(states[-1], *events, command=str(number)))
    return states


@pytest.mark.rule("D.A.6", "D.F.3", "D.F.14")
@settings(deadline=None)
@given(logs())
def test_the_fold_is_deterministic_and_blocks_only_come_behind(
    commits: list[tuple[AnyEvent | UnknownEvent, ...]],
) -> None:
    states = fold(commits)
    assert states == fold(commits)
    for before, after, events in zip(states, states[1:], commits, strict=False):
        assert all(block.position <= after.history.count for block in after.blocks)
        assert {(p.step, p.pass_) for p in after.placed} <= {(b.step, b.pass_) for b in after.blocks}
        assert after.passes >= before.passes
        if not any(isinstance(e, HistoryReplaced) for e in events):
            assert after.blocks.items.begins_with(before.blocks.items)
        if events == (UNKNOWN,):
            assert (after.history, after.blocks, after.last) == (before.history, before.blocks, before.last)

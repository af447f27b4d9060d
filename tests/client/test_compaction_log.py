"""The evaluations of a log, grouped (C.O)."""

from __future__ import annotations

import pytest

from contextbus.client.compaction_log import list_compactions
from contextbus.core.compaction.evaluation import evaluation_id
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    ReplacedRange,
    StepFailed,
    TokenChange,
)
from contextbus_protocol.values import CompactionOptions, Model, RetentionPolicy

OPTIONS = CompactionOptions(triggers=())


def started(evaluation: str) -> CompactionStarted:
    return CompactionStarted(
        evaluation=evaluation,
        step=3,
        trigger_index=0,
        tokens_before=900,
        target_tokens=500,
        message_count=9,
        model=Model("openai", "gpt-test", 1_000, 100),
        options=OPTIONS,
        policy=RetentionPolicy(),
    )


def completed(evaluation: str) -> CompactionCompleted:
    return CompactionCompleted(
        evaluation=evaluation,
        tokens=TokenChange(900, 300),
        replaced_range=ReplacedRange(0, 5),
        source_count=5,
        source_hash="",
        replacement=(),
        replaced_by="",
        token_scope="request",
    )


def log_of(*commits: tuple[AnyEvent, ...]) -> RunLog:
    """A log with a commit for each; the command is the same."""

    def commit(events: tuple[AnyEvent, ...]) -> Commit:
        return Commit(
            version=1,
            tenant="t",
            run="r",
            part="run",
            command="c",
            command_digest="",
            attempt=1,
            engine="",
            policy=1,
            previous="",
            at=0,
            events=events,
        )

    logged = (LoggedCommit(10 * number, "", commit(events)) for number, events in enumerate(commits, 1))
    return RunLog("r", tuple(logged), ())


@pytest.mark.rule("C.O.8", "C.O.9", "C.O.13", "C.O.12", "C.O.6")
def test_events_are_grouped_by_evaluation_and_old_ones_speak_of_messages() -> None:
    failed = CompactionFailed(evaluation="b", step=4, phase="evaluate", reason="error", token_scope="request")
    restored = CompactionRestored(evaluation="a", source_messages=5, replacement_messages=1)
    infos = list_compactions(log_of((restored, started("a")), (completed("a"), completed("a")), (failed,)))
    assert [(i.evaluation, i.status, i.sequence) for i in infos] == [("a", "completed", 10), ("b", "failed", 30)]
    assert (infos[0].estimated_before, infos[0].estimated_after, infos[0].step) == (900, 300, 3)
    assert (infos[1].phase, infos[1].reason) == ("evaluate", "error")
    (old,) = list_compactions(log_of((started("a"),)))
    assert (old.scope, old.status) == ("messages", "started")


@pytest.mark.rule("C.O.11")
@pytest.mark.parametrize(
    ("later", "status"),
    [
        ((), "started"),
        ((StepFailed(step=3, code="x"),), "interrupted"),
        ((started("b"),), "interrupted"),
        ((completed("a"),), "completed"),
    ],
)
def test_what_has_no_end_is_interrupted_once_the_log_went_on(later: tuple[AnyEvent, ...], status: str) -> None:
    assert list_compactions(log_of((started("a"),), later))[0].status == status


@pytest.mark.rule("C.O.11")
def test_what_has_no_end_is_interrupted_once_its_command_is_over() -> None:
    own = evaluation_id("r", "c", 10)
    log = log_of((StepFailed(step=1, code="x"),), (started(own),))
    assert [list_compactions(log, over)[0].status for over in ((), ("other",), ("c",))] == [
        "started",
        "started",
        "interrupted",
    ]

"""What is committed without rendering: reports, messages, requests (D.W.8, D.F.13, D.F.19)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    CLIENT,
    DOCS,
    INBOX,
    RUN,
    SCOPE,
    TENANT,
    Bench,
    ask_refresh,
    candidate,
    more,
    new_messages,
    queries,
    refusal,
    report,
    sent,
    step,
)

from contextbus.actors.recorded import failure_of, refuse_command
from contextbus_protocol.chat import user
from contextbus_protocol.commands import ErrorReply, Recorded
from contextbus_protocol.commit_requests import Record
from contextbus_protocol.errors import ErrorData, SourceFailedError
from contextbus_protocol.events import (
    CallFailed,
    CallSucceeded,
    HistoryReplaced,
    MessagesAppended,
    RefreshRequested,
    RunStarted,
)
from contextbus_protocol.values import EstimatorSpec, Scope, Usage


def kinds(bench: Bench) -> list[str]:
    return [type(e).__name__ for e in bench.log.commits[-1][2].events]


@pytest.mark.rule("D.K.2", "D.M.1")
def test_the_first_messages_start_the_run_and_pin_scope_and_counter() -> None:
    bench = Bench()
    answer = sent(bench.record(more("a", "b")), Recorded, CLIENT)
    assert kinds(bench) == ["RunStarted", "MessagesAppended"]
    assert (answer.count, answer.chain) == (2, bench.log.fold.history.chain)
    assert bench.log.fold.scope == SCOPE
    bench.record(more("c", command="c2", after=bench.log.fold))
    assert kinds(bench) == ["MessagesAppended"]


def test_nothing_new_is_answered_and_not_committed() -> None:
    bench = Bench()
    bench.record(more("a"))
    effects = bench.begin(more(command="c2", after=bench.log.fold))
    answer = sent(effects, Recorded, CLIENT)
    assert (answer.sequence, answer.commit) == bench.log.last
    assert bench.selection.idle


@pytest.mark.rule("D.F.19")
def test_messages_that_the_run_has_are_no_news() -> None:
    bench = Bench()
    bench.record(more("a", "b"))
    assert sent(bench.begin(more("a", "b", command="c2")), Recorded, CLIENT).count == 2
    bench.record(more("a", "b", "c", command="c3"))
    assert bench.log.fold.history.count == 3


@pytest.mark.rule("D.F.19")
@pytest.mark.parametrize("texts", [("a", "x"), ("a",), ("x", "b", "c")])
def test_messages_built_on_another_history_are_a_conflict(texts: tuple[str, ...]) -> None:
    bench = Bench()
    bench.record(more("a", "b"))
    assert refusal(bench.begin(more(*texts, command="c2"))) == "conflict"


@pytest.mark.rule("D.F.19", "D.F.22")
def test_an_explicit_replacement_by_who_knows_the_history_is_its_own_event() -> None:
    bench = Bench()
    bench.record(more("a", "b"))
    history = bench.log.fold.history
    kept = history.keep(1)
    chain = new_messages(user("a"), user("c")).chain
    new = msgspec.structs.replace(
        new_messages(user("c")), base_count=2, base_chain=history.chain, keep=kept.count, chain=chain
    )
    bench.record(msgspec.structs.replace(more(command="c2"), history=new))
    assert bench.log.commits[-1][2].events[0] == HistoryReplaced(keep=1)
    assert (bench.log.fold.history.count, bench.log.fold.history.chain) == (2, chain)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"chain": "sha256:" + "1" * 64}, "invalid_request"),
        ({"keep": 9}, "conflict"),
        ({"keep": -1}, "conflict"),
    ],
)
def test_messages_that_do_not_give_what_the_command_names_are_refused(changes: dict[str, Any], code: str) -> None:
    bench = Bench()
    command = more("a")
    wrong = msgspec.structs.replace(command, history=msgspec.structs.replace(command.history, **changes))
    assert refusal(bench.begin(wrong)) == code
    assert bench.selection.idle


@pytest.mark.rule("D.M.1")
@pytest.mark.parametrize(
    "spec",
    [EstimatorSpec(name="characters"), EstimatorSpec(kind="tokenizer", name="x"), EstimatorSpec(version=2)],
)
def test_what_a_run_counts_with_cannot_change(spec: EstimatorSpec) -> None:
    bench = Bench()
    bench.record(more("a"))
    command = msgspec.structs.replace(more("b", command="c2", after=bench.log.fold), estimator=spec)
    assert refusal(bench.begin(command)) == "invalid_request"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (EstimatorSpec(kind="tokenizer", name="absent"), "invalid_request"),
        (EstimatorSpec(name="absent"), "invalid_request"),
        (EstimatorSpec(version=99), "unsupported_version"),
        (EstimatorSpec(factor=0), "invalid_range"),
    ],
)
def test_a_counter_that_is_not_at_hand_is_refused(spec: EstimatorSpec, code: str) -> None:
    assert refusal(Bench().begin(msgspec.structs.replace(more("a"), estimator=spec))) == code


@pytest.mark.rule("D.K.3")
def test_a_scope_outside_the_pinned_one_is_refused_and_named_without_its_value() -> None:
    bench = Bench()
    bench.record(more("a"))
    for effects in (
        bench.begin(more("b", command="c2", after=bench.log.fold, scope=Scope(user_id="someone-else"))),
        bench.open(step("b", command="c3", after=bench.log.fold, options_=_scoped(Scope(user_id="someone-else")))),
    ):
        reply = sent(effects, ErrorReply, CLIENT)
        assert (reply.code, reply.data.field) == ("scope_conflict", "user_id")
        assert "someone-else" not in reply.message


def _scoped(scope: Scope) -> Any:
    return msgspec.structs.replace(step().options, scope=scope)


@pytest.mark.rule("D.F.13", "D.W.8")
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "overflow"])
def test_a_report_is_the_outcome_of_the_last_step(status: str) -> None:
    bench = Bench()
    bench.compile(step("Hello", DOCS), candidate())
    command = report(0, status, command="r")
    command = msgspec.structs.replace(command, usage=Usage(10, 2), finish_reason="stop")
    answer = sent(bench.record(command), Recorded, CLIENT)
    event = bench.log.commits[-1][2].events[0]
    if status == "succeeded":
        assert event == CallSucceeded(step=0, usage=Usage(10, 2), finish_reason="stop")
    else:
        assert event == CallFailed(step=0, status=status)  # type: ignore[arg-type]  # the parameter is one of them
    assert (len(bench.log.fold.blocks), len(bench.log.fold.placed)) == ((1, 1) if status == "succeeded" else (0, 0))
    assert answer.count == 1


def test_a_report_brings_what_the_call_added() -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    history = new_messages(user("tool result"), after=bench.log.fold)
    answer = sent(bench.record(report(0, command="r", history=history)), Recorded, CLIENT)
    assert kinds(bench) == ["MessagesAppended", "CallSucceeded"]
    assert answer.count == bench.log.fold.history.count == 2


@pytest.mark.rule("D.W.8")
@pytest.mark.parametrize(
    ("number", "code"), [(1, "stale_step"), (7, "stale_step"), (0, None)], ids=["later", "far", "last"]
)
def test_only_the_last_step_has_an_outcome_and_one(number: int, code: str | None) -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    if code is None:
        bench.record(report(number, command="r"))
        code = "stale_step"
    assert refusal(bench.begin(report(number, "failed", command="r2"))) == code


def test_the_same_report_again_is_the_same_answer() -> None:
    bench = Bench(durability="fsync")
    bench.compile(step("Hello"))
    first = sent(bench.record(report(0, command="r")), Recorded, CLIENT)
    again = sent(bench.begin(report(0, command="r", attempt=2)), Recorded, CLIENT)
    assert again == first
    assert first.durability == "fsync"


@pytest.mark.parametrize("command", [report(0), ask_refresh()], ids=["report", "refresh"])
def test_a_run_that_is_not_there_is_not_found(command: Any) -> None:
    assert refusal(Bench().begin(command)) == "not_found"


def test_a_report_without_any_step_is_stale() -> None:
    bench = Bench()
    bench.record(more("a"))
    assert refusal(bench.begin(report(0, command="r"))) == "stale_step"


@pytest.mark.rule("D.G.5", "D.G.7")
def test_a_refresh_that_was_asked_for_comes_with_the_next_step() -> None:
    bench = Bench()
    bench.compile(step("Hello", DOCS), candidate())
    bench.record(ask_refresh(command="r"))
    assert bench.log.commits[-1][2].events == (RefreshRequested(),)
    assert queries(bench.open(step("Hello", DOCS, command="c2", after=bench.log.fold, add=False)))


def test_the_log_holds_no_text() -> None:
    bench = Bench()
    bench.compile(step("a very private question", DOCS), candidate())
    commit = msgspec.json.encode(bench.log.commits[0][2])
    assert b"private" not in commit
    assert b"word word" not in commit
    events = bench.log.commits[0][2].events
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[1], MessagesAppended)
    assert b"private" in bench.log.blobs[events[1].inputs]


def test_a_failed_step_keeps_code_and_origin_and_no_message() -> None:
    bench = Bench()
    bench.open(step("Hello", DOCS))
    assert bench.state.flight is not None
    error = SourceFailedError("secret text", ErrorData(origin="docs", origin_code="E1"))
    record = failure_of(bench.state.fold, bench.state.flight, (), error, TENANT, INBOX)
    assert isinstance(record, Record)
    assert record.failed is not None
    assert b"secret" not in msgspec.json.encode(record.failed)
    assert (record.failed.origin, record.failed.origin_code, record.history) == ("docs", "E1", None)


def test_a_refusal_goes_where_the_command_asked() -> None:
    command = msgspec.structs.replace(ask_refresh(), reply_as="json")
    refused = refuse_command(command, SourceFailedError("text", ErrorData(origin="docs")))
    assert (refused.to, refused.encoding) == (CLIENT, "json")
    assert refused.message == ErrorReply(
        run=RUN, command="c1", code="source_failed", message="text", data=ErrorData(origin="docs")
    )

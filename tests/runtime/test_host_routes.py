"""What is refused, and in which form who waits is told."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from tests.runtime.acting import step
from tests.runtime.summing import compact

from contextbus.actors.effects import Send
from contextbus.runtime import routes
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.commands import CancelCommand, ClearHistory, ErrorReply, ResetCompaction
from contextbus_protocol.commit_requests import CommitHead, Record
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarise, Summarised, SummaryFailed
from contextbus_protocol.events import RefreshRequested
from contextbus_protocol.memory_records import Forget
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Unstored
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Query
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import Scope

HEAD = CommitHead(
    tenant="t",
    run="run",
    command="c",
    command_digest="",
    attempt=1,
    at=0,
    expected=0,
    previous="",
    token="token",
    reply_to="client",
    notify="selection",
    seconds_left=1.0,
)
RECORD = Record(run="run", head=HEAD, events=(RefreshRequested(),), count=0, chain="")
ASK = AskItems(run="run", tenant="t", token="token", reply_to="selection")
QUERY = Query(
    run="run",
    tenant="t",
    command="c",
    token="token",
    reply_to="selection",
    source="docs",
    step=1,
    text="",
    scope=Scope(user_id="u"),
    limit=1,
    budget_tokens=1,
    seconds_left=1.0,
)
FORGET = Forget(
    run="run",
    tenant="t",
    reply_to="client",
    reply_as="json",
    source="memory",
    message_id="m",
    record_id="r",
    scope=Scope(user_id="u"),
)
COMPACT = compact("t", reply_to="client", notify="selection")
SUMMARISE = Summarise(
    run="run",
    tenant="t",
    command="c",
    token="token",
    reply_to="compaction",
    summariser="mine",
    messages=(),
    instructions="",
    max_output_tokens=1,
    seconds_left=1.0,
)
STEP = msgspec.structs.replace(step("t", "hello", reply_to="client"), command="c", reply_as="json")


@pytest.mark.rule("D.W.2")
@pytest.mark.parametrize(
    ("message", "told"),
    [
        (STEP, Send("client", ErrorReply(run="run", command="c", code="busy", message="text"), "json")),
        (FORGET, Send("client", ErrorReply(run="run", command="m", code="busy", message="text"), "json")),
        (RECORD, Send("selection", Unstored(run="run", token="token", part="run", code="busy", message="text"))),
        (ASK, Send("selection", ItemsOffered(run="run", token="token", code="busy"))),
        (QUERY, Send("selection", Failed(run="run", token="token", source="docs", code="busy"))),
        (SUMMARISE, Send("compaction", SummaryFailed(run="run", token="token", summariser="mine", code="busy"))),
        (
            COMPACT,
            Send(
                "selection",
                CompactionEnded(
                    run="run",
                    token="token-mine",
                    evaluation="e1",
                    sequence=7,
                    status="failed",
                    code="busy",
                    message="text",
                ),
            ),
        ),
    ],
)
def test_who_waits_is_told_in_the_form_it_takes(message: AnyMessage, told: Send) -> None:
    assert routes.refuse(message, "busy", "text") == (told,)


def test_nobody_waits_for_results() -> None:
    assert routes.refuse(Elapsed(run="run", token="token"), "internal", "") == ()
    assert routes.addresses(Elapsed(run="run", token="token")) == ()
    assert routes.check(Elapsed(run="run", token="token"), "t") is None


@pytest.mark.parametrize(("code", "word"), [("deadline_exceeded", "timeout"), ("internal", "error")])
def test_a_source_fails_with_a_word(code: str, word: str) -> None:
    (send,) = routes.refuse(QUERY, code, "")
    assert isinstance(send.message, Failed)
    assert send.message.code == word


@pytest.mark.parametrize("message", [RECORD, COMPACT])
def test_a_head_of_another_run_is_refused(message: AnyMessage) -> None:
    assert routes.check(message, "t") is None
    refusal = routes.check(msgspec.structs.replace(message, run="another"), "t")
    assert refusal is not None
    assert refusal.code == "invalid_request"


def test_who_takes_what_of_compaction() -> None:
    assert routes.COMMANDS["compaction"] == {Compact, CancelCommand}
    assert routes.ANSWERS["compaction"] == {
        Summarised,
        SummaryFailed,
        CallbackAnswered,
        Committed,
        Conflicted,
        Unstored,
    }
    assert {ResetCompaction, ClearHistory} <= routes.COMMANDS["selection"]
    assert CompactionEnded in routes.ANSWERS["selection"]
    assert {*routes.COMMANDS, *routes.ANSWERS} == set(get_args(ActorName))


@pytest.mark.parametrize("message", [STEP, RECORD, ASK, QUERY, FORGET, COMPACT, SUMMARISE])
def test_another_tenant_is_refused(message: AnyMessage) -> None:
    assert routes.check(message, "t") is None
    refusal = routes.check(message, "another")
    assert refusal is not None
    assert refusal.code == "invalid_request"


def test_an_empty_reply_address_is_the_frames() -> None:
    for message in (STEP, FORGET):
        empty: AnyMessage = msgspec.structs.replace(message, reply_to="")
        assert routes.addresses(routes.fill_reply(empty, "frame", "msgpack")) == ("frame",)
        assert routes.addresses(routes.fill_reply(message, "frame", "msgpack")) == (message.reply_to,)
    filled = routes.fill_reply(msgspec.structs.replace(STEP, reply_as="msgpack"), "frame", "json")
    assert filled == STEP
    assert routes.fill_reply(STEP, "frame", "msgpack") == STEP
    # Actors name theirs themselves.
    unnamed = msgspec.structs.replace(ASK, reply_to="")
    assert routes.fill_reply(unnamed, "frame", "msgpack") == unnamed
    assert routes.addresses(RECORD) == ("client", "selection")
    assert routes.addresses(COMPACT) == ("client", "selection")
    assert routes.addresses(SUMMARISE) == ("compaction",)


@pytest.mark.parametrize("seconds", [float("inf"), 86_401.0])
def test_a_command_without_an_end_is_refused(seconds: float) -> None:
    refusal = routes.check(msgspec.structs.replace(STEP, seconds_left=seconds), "t")
    assert refusal is not None
    assert refusal.code == "invalid_request"

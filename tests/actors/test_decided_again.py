"""What a step takes, charges and records when it is decided once more, or with less than it asked for."""

from __future__ import annotations

import msgspec
import pytest
from tests.actors.bench import (
    CLIENT,
    DOCS,
    RUN,
    TICKETS,
    Bench,
    Log,
    ask_refresh,
    candidate,
    new_messages,
    offer,
    only,
    queries,
    sent,
    step,
)

from contextbus.actors.effects import Load, Store
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import verify_run
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.chat import ChatMessage, ToolCall, ToolResult
from contextbus_protocol.commands import CompileStep
from contextbus_protocol.commit_requests import Record
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.outcomes import Conflicted
from contextbus_protocol.questions import Failed
from contextbus_protocol.values import SourceSpec, SourceUsage

SKILLS = SourceSpec("skills", "skills")


def is_clean(log: Log) -> bool:
    commits = tuple(LoggedCommit(*commit) for commit in log.commits)
    return all(check.status == "same" for check in verify_run(RunLog(RUN, commits), log.blobs.get).checks)


@pytest.mark.rule("D.L.6")
def test_a_failed_step_whose_acknowledgement_was_lost_is_charged_once() -> None:
    bench = Bench()
    bench.compile(step("Hi", command="c0"))
    asked = queries(bench.open(step("Hello", DOCS, TICKETS, after=bench.log.fold, refresh=True)))
    paid = msgspec.structs.replace(offer(asked[0]), usage=(SourceUsage("embed", 7, True),))
    failed = Failed(run=RUN, token=asked[1].token, source=TICKETS.id, code="error")
    effects = bench.tell(paid, failed)
    record = sent(effects, Record)
    assert record.failed is not None
    assert [u.tokens for u in record.failed.usage] == [7]
    bench.log.store(only(bench.place(effects), Store))
    Bench(bench.log).record(ask_refresh(command="c2"))
    effects = bench.tell(Conflicted(run=RUN, token=record.head.token, part="run"))
    again = sent(bench.tell(bench.log.load(only(effects, Load))), Record)
    assert again.failed is not None
    assert (again.failed.code, again.failed.usage) == ("source_failed", ())


@pytest.mark.rule("D.L.6")
def test_queries_of_a_state_that_was_dropped_have_ids_of_their_own() -> None:
    bench = Bench()
    first = queries(bench.open(step("Hello", DOCS, TICKETS)))
    failed = (Failed(run=RUN, token=q.token, source=q.source, code="error") for q in first)
    bench.commit(bench.tell(*failed))
    second = queries(Bench(bench.log).open(step("Hello", DOCS, TICKETS)))
    ids = [q.accounting.request_id for q in (*first, *second) if q.accounting is not None]
    assert len(ids) == len(set(ids)) == 4


@pytest.mark.rule("D.G.14")
def test_a_reused_step_takes_nothing_but_what_it_asked_for() -> None:
    bench = Bench()
    bench.compile(step("Hello", SKILLS, DOCS), candidate())
    call = ToolCall(id="t1", name="load_skill", arguments='{"skill":"pdf"}')
    loaded = (
        ChatMessage(role="assistant", content=(call,)),
        ChatMessage(role="tool", content=(ToolResult(id="t1", name="load_skill"),)),
    )
    effects = bench.open(loading(bench, loaded))
    (query,) = queries(effects)
    assert (query.source, query.only_records, query.records) == ("skills", True, ("pdf/body",))
    body = candidate(1, record_id="pdf/body", mandatory=True)
    bench.commit(bench.tell(offer(query, body, candidate(2, record_id="pdf"))))
    event = only(bench.log.commits[-1][2].events, StepCompiled)
    assert (event.refresh, [e.record_id for e in event.entries]) == ("reused", ["pdf/body"])
    assert is_clean(bench.log)


def loading(bench: Bench, messages: tuple[ChatMessage, ...]) -> CompileStep:
    """A step behind messages."""
    command = step("Hello", SKILLS, DOCS, command="c2", add=False, after=bench.log.fold)
    return msgspec.structs.replace(command, history=new_messages(*messages, after=bench.log.fold))


@pytest.mark.rule("D.G.21", "D.D.25", "D.A.9")
def test_a_query_that_the_host_emptied_is_recorded_as_its() -> None:
    bench = Bench()
    effects = bench.open(msgspec.structs.replace(step("Hello", DOCS), callbacks=("rewrite-query",)))
    ask = sent(effects, AskCallback, CLIENT)
    effects = bench.tell(CallbackAnswered(run=RUN, token=ask.token, name=ask.name, text="  "))
    assert queries(effects) == ()
    bench.commit(effects)
    event = only(bench.log.commits[-1][2].events, StepCompiled)
    assert (event.rewritten, event.query_digest, event.pass_) == (True, None, 0)
    assert is_clean(bench.log)

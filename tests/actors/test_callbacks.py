"""Functions of the host as selection asks for them: when, how often, and what becomes of their answers (D.W.4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    CLIENT,
    DOCS,
    INBOX,
    MODEL,
    RUN,
    TENANT,
    TICKETS,
    Bench,
    candidate,
    offer,
    options,
    queries,
    refusal,
    sent,
    step,
)

from contextbus.actors.effects import Cancel, Effects, Scatter, Send, Store, Timer
from contextbus_protocol import blobs, codec
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import CancelCommand, CompileStep, ErrorReply, StepCompiled
from contextbus_protocol.commit_requests import Place
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import RefreshRequested, StepFailed
from contextbus_protocol.events import StepCompiled as StepCompiledEvent
from contextbus_protocol.outcomes import Conflicted, Elapsed
from contextbus_protocol.package import Package
from contextbus_protocol.values import Model, Scope

SMALL = Model("openai", "gpt-small", 6_000, 1_000)
TOOLS = '[{"name":"deploy"}]'


def hooked(*names: CallbackName, **arguments: Any) -> CompileStep:
    """A step of a client that answers for functions."""
    return msgspec.structs.replace(step("How do we deploy?", DOCS, **arguments), callbacks=names)


def answer(effects: Effects, **what: Any) -> CallbackAnswered:
    """The answer to the question among the effects."""
    ask = sent(effects, AskCallback, CLIENT)
    return CallbackAnswered(run=RUN, token=ask.token, name=ask.name, **what)


def asked(effects: Effects) -> list[str]:
    """The functions that were asked for."""
    return [e.message.name for e in effects if isinstance(e, Send) and isinstance(e.message, AskCallback)]


def finish(bench: Bench, effects: Effects, *candidates: Any) -> StepCompiledEvent:
    """Take the step to its commit."""
    if queries(effects):
        effects = bench.tell(*(offer(q, *candidates) for q in queries(effects)))
    bench.commit(effects)
    (event,) = [e for e in bench.log.commits[-1][2].events if isinstance(e, StepCompiledEvent)]
    return event


@pytest.mark.rule("D.W.4", "D.R.2")
def test_the_hook_is_asked_at_the_reply_address_before_the_query_and_the_query_before_sources() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step", "rewrite-query"))
    ask = sent(effects, AskCallback, CLIENT)
    assert (ask.name, ask.step, ask.reply_to, ask.query, ask.command) == ("prepare-step", 0, INBOX, "", "c1")
    assert not queries(effects)
    effects = bench.tell(answer(effects))
    ask = sent(effects, AskCallback, CLIENT)
    assert (ask.name, ask.query) == ("rewrite-query", "How do we deploy?")
    assert not queries(effects)
    effects = bench.tell(answer(effects, text="deploy pipeline"))
    (query,) = queries(effects)
    assert (query.text, asked(effects)) == ("deploy pipeline", [])
    event = finish(bench, effects, candidate())
    assert (event.rewritten, event.prepared) == (True, None)
    assert event.query_digest == digest_text("deploy pipeline")


@pytest.mark.rule("D.A.9", "D.G.13")
def test_no_query_is_rewritten_where_nobody_is_asked() -> None:
    bench = Bench()
    assert asked(bench.open(step("How?", DOCS))) == []  # no such function
    bench = Bench()
    finish(bench, bench.tell(answer(bench.open(hooked("rewrite-query")), text="deploy")))
    effects = bench.open(hooked("rewrite-query", after=bench.log.fold, command="c2"))
    assert (asked(effects), queries(effects)) == ([], ())  # reused
    assert finish(bench, effects).rewritten is False


@pytest.mark.rule("D.R.3", "D.W.7", "D.B.2", "D.B.3")
def test_the_budget_uses_the_model_and_overhead_that_the_hook_chose() -> None:
    bench = Bench()
    given = (user("Only this."), assistant("So."))
    effects = bench.open(hooked("prepare-step"))
    effects = bench.tell(answer(effects, model=SMALL, overhead_tokens=700, tools=TOOLS, messages=given))
    event = finish(bench, effects, candidate())
    assert (event.budget.input_tokens, event.options.model) == (5_000, MODEL)  # as the command has it
    fact = event.prepared
    assert fact is not None
    assert fact.messages is not None
    assert event.budget.used_tokens == -(-fact.messages.eighteenths // 18) + 700
    assert (fact.model, fact.tools_digest) == (SMALL, digest_text(TOOLS))
    last = bench.log.fold.last
    assert last is not None
    assert (last.options.model, last.options.overhead_tokens) == (SMALL, 700)
    assert bench.log.fold.history.count == 1  # the history is the run's


@pytest.mark.rule("D.D.25")
def test_what_functions_gave_is_text_in_the_blob_and_digests_in_the_commit() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step", "rewrite-query"))
    effects = bench.tell(answer(effects, messages=(user("zq-given-qz"),), tools='[{"name":"zq_tool_qz"}]'))
    effects = bench.tell(answer(effects, text="zq-query-qz"))
    event = finish(bench, effects)
    stored = codec.encode_commit(bench.log.commits[-1][2])
    assert b"zq" not in stored
    output = blobs.decode_output(bench.log.blobs[event.package])
    assert output.query == "zq-query-qz"
    assert output.prepared == (user("zq-given-qz"),)
    assert output.tools == '[{"name":"zq_tool_qz"}]'


@pytest.mark.rule("D.G.16", "D.G.17", "D.G.18", "D.G.19", "D.G.20")
def test_the_query_of_given_messages_is_their_latest_user_text() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step"))
    (query,) = queries(bench.tell(answer(effects, messages=(user("Old?"), user("New?"), assistant("Hm.")))))
    assert query.text == "New?"
    long = Bench()
    effects = long.open(hooked("prepare-step"))
    (query,) = queries(long.tell(answer(effects, messages=(user("x" * 3_000),))))
    assert query.text == "x" * 2_000


@pytest.mark.rule("D.G.33", "D.G.18")
def test_a_block_of_the_run_among_given_messages_is_no_user_text() -> None:
    bench = Bench()
    first = finish(bench, bench.open(step("How do we deploy?", DOCS)), candidate())
    package = blobs.decode_output(bench.log.blobs[first.package]).package
    (block,) = decode_json(bytes(package), Package).blocks[0].messages
    effects = bench.open(hooked("prepare-step", after=bench.log.fold, command="c2", refresh=True))
    (query,) = queries(bench.tell(answer(effects, messages=(user("Mine."), block))))
    assert query.text == "Mine."


@pytest.mark.rule("D.R.0", "D.W.4")
def test_a_step_that_is_decided_again_asks_no_function_again() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step", "rewrite-query"))
    effects = bench.tell(answer(effects, model=SMALL))
    effects = bench.tell(answer(effects, text="deploy pipeline"))
    effects = bench.tell(*(offer(q, candidate()) for q in queries(effects)))
    token = sent(effects, Place).head.token
    bench.log.add(RefreshRequested())
    loads = bench.tell(Conflicted(run=RUN, token=token, part="run"))
    effects = bench.read(loads)
    assert (asked(effects), queries(effects)) == ([], ())
    event = finish(bench, effects)
    assert event.prepared is not None
    assert (event.prepared.model, event.rewritten) == (SMALL, True)


@pytest.mark.rule("D.W.4", "D.G.27")
@pytest.mark.parametrize("name", ["prepare-step", "rewrite-query"])
def test_a_function_that_failed_fails_the_step_which_can_be_retried(name: CallbackName) -> None:
    bench = Bench()
    command = hooked(name)
    effects = bench.open(command)
    effects = bench.tell(answer(effects, code="hook_failed", origin_code="E42", origin_type="DownError"))
    effects = bench.commit(effects)
    error = sent(effects, ErrorReply, CLIENT)
    function = name.replace("-", "_")
    assert (error.code, error.data.origin, error.data.origin_code) == ("hook_failed", function, "E42")
    (failed,) = bench.log.commits[-1][2].events
    assert isinstance(failed, StepFailed)
    assert (failed.code, failed.origin, failed.origin_type) == ("hook_failed", function, "DownError")
    assert (bench.log.fold.history.count, bench.log.fold.passes) == (0, 0)
    effects = bench.open(msgspec.structs.replace(command, attempt=2))
    assert asked(effects) == [name]
    effects = bench.tell(answer(effects, text="deploy") if name == "rewrite-query" else answer(effects))
    assert finish(bench, effects, candidate()).step == 0


@pytest.mark.rule("D.W.4", "D.W.9")
@pytest.mark.parametrize("name", ["prepare-step", "rewrite-query"])
def test_a_function_that_is_late_counts_as_raised(name: CallbackName) -> None:
    bench = Bench()
    effects = bench.open(hooked(name))
    (timer,) = [e for e in effects if isinstance(e, Timer) and e.token.endswith("#end")]
    assert 0 < timer.seconds < 10
    late = answer(effects)
    effects = bench.commit(bench.tell(Elapsed(run=RUN, token=timer.token)))
    error = sent(effects, ErrorReply, CLIENT)
    assert (error.code, error.data.origin) == ("callback_timeout", name.replace("-", "_"))
    (failed,) = bench.log.commits[-1][2].events
    assert isinstance(failed, StepFailed)
    assert failed.code == "callback_timeout"
    assert bench.tell(late) == ()
    assert bench.selection.idle


@pytest.mark.rule("D.W.4")
def test_the_functions_and_the_sources_share_one_time() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step", "rewrite-query"))
    (timer,) = [e for e in effects if isinstance(e, Timer) and e.token.endswith("#end")]
    effects = bench.tell(answer(effects))
    effects += bench.tell(answer(effects, text="deploy"))
    assert not any(isinstance(e, Timer | Cancel) and e.token == timer.token for e in effects)
    effects = bench.tell(Elapsed(run=RUN, token=timer.token))  # sources get what the host left
    event = finish(bench, effects)
    assert [s.error for s in event.sources] == ["timeout"]
    assert bench.selection.idle


@pytest.mark.rule("D.W.4")
@pytest.mark.parametrize(
    "wrong",
    [
        {"model": Model("openai", "gpt", -1, 0)},
        {"model": Model("openai", "gpt", 2**60, 0)},
        {"overhead_tokens": -5},
        {"tools": "no list"},
        {"tools": "[1]"},
    ],
)
def test_an_answer_that_no_step_can_be_made_with_counts_as_raised(wrong: dict[str, Any]) -> None:
    bench = Bench()
    effects = bench.tell(answer(bench.open(hooked("prepare-step")), **wrong))
    error = sent(bench.commit(effects), ErrorReply, CLIENT)
    assert (error.code, error.data.origin, error.data.origin_code) == ("hook_failed", "prepare_step", "invalid_type")


@pytest.mark.rule("D.W.2", "D.W.4")
def test_a_text_in_the_place_of_a_code_does_not_reach_the_log() -> None:
    bench = Bench()
    wrong = {"code": "hook_failed", "origin_code": "the password is swordfish", "origin_type": "T" * 500}
    bench.commit(bench.tell(answer(bench.open(hooked("prepare-step")), **wrong)))
    stored = codec.encode_commit(bench.log.commits[-1][2])
    assert b"swordfish" not in stored
    assert b"T" * 65 not in stored


@pytest.mark.rule("D.W.4")
def test_answers_that_are_repeated_or_of_another_step_change_nothing() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step", "rewrite-query"))
    good = answer(effects, overhead_tokens=1)
    strange = msgspec.structs.replace(good, token="another", overhead_tokens=9_000)
    assert bench.tell(strange) == ()
    assert bench.tell(msgspec.structs.replace(good, name="rewrite-query", text="too soon")) == ()
    effects = bench.tell(good)
    assert bench.tell(msgspec.structs.replace(good, overhead_tokens=9_000)) == ()
    assert bench.tell(msgspec.structs.replace(good, name="rewrite-query", text="of another question")) == ()
    effects = bench.tell(answer(effects, text="deploy"))
    event = finish(bench, effects)
    assert event.prepared is not None
    assert event.prepared.overhead_tokens == 1


@pytest.mark.rule("D.W.5")
def test_a_cancelled_step_is_over_while_its_host_is_asked() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step"))
    late = answer(effects)
    cancelled = bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1"))
    assert not [e for e in cancelled if isinstance(e, Send | Store | Scatter)]
    assert bench.selection.idle
    assert bench.tell(late) == ()
    assert bench.log.commits == []
    effects = bench.open(hooked("prepare-step"))
    assert asked(effects) == ["prepare-step"]


@pytest.mark.rule("D.R.7", "D.R.3", "D.W.4")
def test_a_step_that_is_stored_is_answered_without_asking_anybody() -> None:
    bench = Bench()
    effects = bench.open(hooked("prepare-step"))
    given = {"model": SMALL, "messages": (user("Only this."),), "tools": TOOLS}
    effects = bench.tell(answer(effects, **given))
    finish(bench, effects, candidate())
    fresh = Bench(bench.log)
    effects = fresh.open(hooked("prepare-step", attempt=2))
    assert asked(effects) == []
    reply = sent(fresh.read(effects), StepCompiled, CLIENT)
    assert (reply.stored, reply.prepared, reply.tools) == (True, given["messages"], TOOLS)
    assert reply.options is not None
    assert reply.options.model == SMALL
    other = Bench(bench.log)  # another client, another command, the same messages
    command = msgspec.structs.replace(hooked("prepare-step", command="c9"), history=hooked("prepare-step").history)
    effects = other.open(command)
    assert asked(effects) == []
    again = sent(other.read(effects), StepCompiled, CLIENT)
    assert (again.package, again.options, again.prepared) == (reply.package, reply.options, reply.prepared)


@pytest.mark.rule("D.W.4", "D.R.7")
def test_an_older_step_is_answered_with_what_its_own_hook_made_of_it() -> None:
    bench = Bench()
    first = hooked("prepare-step")
    finish(bench, bench.tell(answer(bench.open(first), model=SMALL)), candidate())
    second = step("And now?", DOCS, after=bench.log.fold, command="c2")
    finish(bench, bench.open(second))
    fresh = Bench(bench.log)
    reply = sent(fresh.read(fresh.open(msgspec.structs.replace(first, attempt=2))), StepCompiled, CLIENT)
    assert reply.step == 0
    assert reply.options is not None
    assert reply.options.model == SMALL


@pytest.mark.rule("D.R.2", "D.K.7")
def test_nobody_is_asked_before_the_scope_is_settled() -> None:
    bench = Bench()
    finish(bench, bench.open(step("How do we deploy?", DOCS)), candidate())
    wrong = options(TICKETS, scope=Scope(user_id="eve"))
    command = msgspec.structs.replace(
        step("And?", after=bench.log.fold, command="c2", options_=wrong), callbacks=("prepare-step",)
    )
    effects = bench.open(command)
    assert (asked(effects), refusal(effects)) == ([], "scope_conflict")

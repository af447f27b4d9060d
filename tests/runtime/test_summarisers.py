"""Whoever is asked for a summary, near or far: exactly one answer comes of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
import structlog
from tests.runtime.acting import KINDS, Kind, fail, step
from tests.runtime.summing import Answer, Summary, Summing, compact, run_summing

from contextbus.actors.effects import Effects, Send
from contextbus.runtime.bus import Frame
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.embedded import Server
from contextbus.runtime.host import Host
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.worker_answers import LONGEST_SUMMARY, MOST_PARTS, SUMMARISERS
from contextbus.runtime.worker_calls import SummariserHandler
from contextbus_protocol import codec, subjects
from contextbus_protocol.chat import user
from contextbus_protocol.commands import CompileStep, ErrorReply
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarise, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import Usage

Run = Callable[..., AbstractAsyncContextManager[Summary]]
TOLD = "the user asked about tea"


@pytest.fixture(
    params=[kind if kind.startswith("memory") else pytest.param(kind, marks=pytest.mark.broker) for kind in KINDS]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def run(kind: Kind, request: pytest.FixtureRequest, tenant: str) -> Run:
    server: Server | None = None if kind.startswith("memory") else request.getfixturevalue("broker")

    def make(
        summarisers: Mapping[str, SummariserHandler] | None = None, *, concurrency: int = 64
    ) -> AbstractAsyncContextManager[Summary]:
        return run_summing(kind, server, tenant, summarisers, concurrency=concurrency)

    return make


@pytest.fixture
async def world(run: Run) -> AsyncGenerator[Summary]:
    async with run() as made:
        yield made


def summarised(question: Summarise, *texts: str, **changes: Any) -> Summarised:
    parts = tuple(SummaryPart("text", text) for text in texts or ("a summary",))
    answer = Summarised(run=question.run, token=question.token, summariser=question.summariser, parts=parts)
    return msgspec.structs.replace(answer, **changes)


def code_of(answer: Answer) -> str:
    assert isinstance(answer, SummaryFailed), answer
    return answer.code


@pytest.mark.rule("C.X.10", "D.W.4", "C.F.10", "C.G.4")
async def test_a_request_finds_a_worker(run: Run) -> None:
    asked: list[Summarise] = []

    async def mine(question: Summarise) -> Summarised:
        asked.append(question)
        parts = (SummaryPart("reasoning", "hm"), SummaryPart("text", "x"), SummaryPart("tool-call"))
        return summarised(question, parts=parts, finish_reason="max_tokens", usage=Usage(1, 2, 3, 4))

    async with run({"mine": mine}) as world:
        answer = await world.ask(compact(world.tenant))
    assert isinstance(answer, Summarised)
    assert [part.type for part in answer.parts] == ["reasoning", "text", "tool-call"]
    assert (answer.finish_reason, answer.usage) == ("length", Usage(1, 2, 3, 4))
    (question,) = asked
    assert (question.messages, question.instructions, question.max_output_tokens) == ((user("hello"),), "sum up", 64)
    assert 4 < question.seconds_left <= 5
    assert world.rule.came == ["token-mine"]


@pytest.mark.rule("D.W.4")
async def test_an_absent_one_is_known_at_once(run: Run) -> None:
    async with run() as world:
        begun = time.monotonic()
        assert code_of(await world.ask(compact(world.tenant, "nobody", seconds=30.0))) == "absent"
        assert time.monotonic() - begun < 5


async def test_a_large_request_arrives_whole(run: Run) -> None:
    messages = tuple(user(f"{number} " + "é" * 10_000) for number in range(100))  # 2 MB
    sent = digest_bytes(codec.encode_json(messages))

    async def mine(question: Summarise) -> Summarised:
        return summarised(question, digest_bytes(codec.encode_json(question.messages)))

    async with run({"mine": mine}) as world:
        answer = await world.ask(compact(world.tenant, messages=messages, seconds=30.0))
    assert isinstance(answer, Summarised)
    assert answer.parts == (SummaryPart("text", sent),)


async def test_a_large_answer_arrives_whole(run: Run) -> None:
    text = "é" * (LONGEST_SUMMARY // 2)

    async def mine(question: Summarise) -> Summarised:
        return summarised(question, text)

    async with run({"mine": mine}) as world:
        answer = await world.ask(compact(world.tenant, seconds=30.0))
    assert isinstance(answer, Summarised)
    assert answer.parts == (SummaryPart("text", text),)


class _QuotaError(LookupError):
    code = "quota"


@pytest.mark.rule("D.W.2", "C.G.12")
async def test_whatever_one_does_exactly_one_answer_comes_and_no_text_is_logged(run: Run) -> None:
    async def raise_(_question: Summarise) -> Summarised:
        raise _QuotaError(TOLD)

    async def cancel(_question: Summarise) -> Summarised:
        raise asyncio.CancelledError(TOLD)

    async def hang(question: Summarise) -> Summarised:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # swallows its cancellation, and answers too late
        return summarised(question)

    def answering(make: Callable[[Summarise], object]) -> SummariserHandler:
        async def answer(question: Summarise) -> object:
            return make(question)

        return answer

    def failed(question: Summarise, **changes: Any) -> SummaryFailed:
        return msgspec.structs.replace(SUMMARISERS.fail(question, "error"), **changes)

    many = (SummaryPart("text", "x"),) * (MOST_PARTS + 1)
    handlers: dict[str, tuple[SummariserHandler, str]] = {
        "raises": (raise_, "error quota _QuotaError"),
        "cancels": (cancel, "error None CancelledError"),
        "hangs": (hang, "timeout None None"),
        "nothing": (answering(lambda _q: None), "malformed None None"),
        "text": (answering(lambda _q: TOLD), "malformed None None"),
        "token": (answering(lambda q: summarised(q, token="another")), "malformed None None"),
        "name": (answering(lambda q: summarised(q, summariser="another")), "malformed None None"),
        "run": (answering(lambda q: summarised(q, run="another")), "malformed None None"),
        "parts": (answering(lambda q: summarised(q, parts=(TOLD,))), "malformed None None"),
        "type": (answering(lambda q: summarised(q, parts=(SummaryPart(TOLD, "x"),))), "malformed None None"),
        "many": (answering(lambda q: summarised(q, parts=many)), "malformed None None"),
        "huge": (answering(lambda q: summarised(q, "x" * (LONGEST_SUMMARY + 1))), "malformed None None"),
        "surrogate": (answering(lambda q: summarised(q, "\ud800")), "malformed None None"),
        "usage": (answering(lambda q: summarised(q, usage=Usage(-1))), "malformed None None"),
        "codes": (answering(lambda q: failed(q, code=TOLD, origin_code=TOLD, origin_type=TOLD)), "error None None"),
        "fails": (answering(lambda q: failed(q, code="quota", origin_code="q-1")), "quota q-1 None"),
    }
    with structlog.testing.capture_logs() as logged:
        async with run({name: handler for name, (handler, _) in handlers.items()}) as world:
            answers = await asyncio.gather(
                *(world.ask(compact(world.tenant, name, run=name, seconds=1.5)) for name in handlers)
            )
            await asyncio.sleep(0.3)
    told: dict[str, str] = {}
    for answer in answers:
        assert isinstance(answer, SummaryFailed), answer
        told[answer.summariser] = f"{answer.code} {answer.origin_code} {answer.origin_type}"
    assert told == {name: expected for name, (_, expected) in handlers.items()}
    assert sorted(world.rule.came) == sorted(f"token-{name}" for name in handlers)
    assert "tea" not in str(logged)
    assert {line["event"] for line in logged} >= {"summariser_raised", "summariser_timed_out"}


async def test_a_reason_that_is_no_word_is_not_passed_on(run: Run) -> None:
    async def mine(question: Summarise) -> Summarised:
        return summarised(question, finish_reason=TOLD)

    async with run({"mine": mine}) as world:
        answer = await world.ask(compact(world.tenant))
    assert isinstance(answer, Summarised)
    assert answer.finish_reason == "other"


async def test_more_than_it_takes_at_once_are_busy(run: Run) -> None:
    release = asyncio.Event()

    async def mine(question: Summarise) -> Summarised:
        await release.wait()
        return summarised(question)

    async with run({"mine": mine}, concurrency=1) as world:
        first = asyncio.create_task(world.ask(compact(world.tenant, run="first")))
        await asyncio.sleep(0.2)
        assert code_of(await world.ask(compact(world.tenant, run="second"))) == "busy"
        release.set()
        assert isinstance(await first, Summarised)
        assert isinstance(await world.ask(compact(world.tenant, run="third")), Summarised)


async def test_strangers_on_the_subject(world: Summary) -> None:
    """Frames of somebody who is no host of ours: garbage, answers to others, second answers, silence."""
    asked: list[str] = []

    def answer(frame: Frame) -> None:
        question = codec.decode_message(frame.data)
        assert isinstance(question, Summarise)
        assert question.reply_to == frame.reply
        asked.append(question.run)
        good: AnyMessage = summarised(question)
        match question.run:
            case "json":
                world.bus.publish(frame.reply, codec.encode_message(good, codec.JSON), content_type=codec.JSON)
                world.bus.publish(frame.reply, codec.encode_message(good))
            case "garbage":
                world.bus.publish(frame.reply, b"\x00garbage")
            case "other":
                world.bus.publish(frame.reply, codec.encode_message(summarised(question, token="another")))
            case "huge":
                parts = (SummaryPart("text", "x"),) * (MOST_PARTS + 1)
                world.bus.publish(frame.reply, codec.encode_message(summarised(question, parts=parts)))
            case "words":
                failed = SUMMARISERS.fail(question, TOLD, TOLD, TOLD)
                world.bus.publish(frame.reply, codec.encode_message(failed))
            case "busy":
                busy = ErrorReply(run="", command="", code="busy", message=TOLD)
                world.bus.publish(frame.reply, codec.encode_message(busy))
            case _:
                pass  # it died with the request

    await world.bus.subscribe(subjects.summarise(world.tenant, "mine"), answer, queue="mine")
    await world.bus.flush()
    answers: dict[str, Answer] = {}
    for run_ in ("json", "garbage", "other", "huge", "words", "busy", "silent"):
        answers[run_] = await world.ask(compact(world.tenant, run=run_, seconds=0.5 if run_ == "silent" else 5.0))
    assert isinstance(answers.pop("json"), Summarised)
    assert {name: code_of(came) for name, came in answers.items()} == {
        "garbage": "malformed",
        "other": "malformed",
        "huge": "malformed",
        "words": "error",
        "busy": "busy",
        "silent": "timeout",
    }
    words = answers["words"]
    assert isinstance(words, SummaryFailed)
    assert (words.origin_code, words.origin_type) == (None, None)
    assert len(asked) == len(world.rule.came) == 7
    assert world.actor_host.stats.late == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"seconds_left": 0.0}, "timeout"),
        ({"seconds_left": float("nan")}, "timeout"),
        ({"seconds_left": 1e9}, "malformed"),
        ({"tenant": "another"}, "malformed"),
        ({"summariser": "another"}, "malformed"),
        ({"command": ""}, "malformed"),
    ],
)
async def test_what_a_worker_does_not_take_is_refused_in_its_own_form(
    tenant: str, change: dict[str, Any], code: str
) -> None:
    broker, called = MemoryBroker(), asyncio.Event()

    async def mine(question: Summarise) -> Summarised:
        called.set()
        return summarised(question)

    host = Host(tenant, "worker", broker.bus(), MemoryJournal())
    host.add_summariser("mine", mine, serve=True)
    bus = broker.bus()
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    address = f"{subjects.inbox(tenant, 'me')}.1"
    async with host:
        await bus.subscribe(address, frames.put_nowait)
        good = Summarise(
            run="run",
            tenant=tenant,
            command="c",
            token="token",
            reply_to=address,
            summariser="mine",
            messages=(),
            instructions="",
            max_output_tokens=1,
            seconds_left=1.0,
        )
        bus.publish(subjects.summarise(tenant, "mine"), codec.encode_message(msgspec.structs.replace(good, **change)))
        async with asyncio.timeout(5):
            answer = codec.decode_message((await frames.get()).data)
        assert isinstance(answer, SummaryFailed)
        assert (answer.code, answer.token) == (code, "token")
        outside = msgspec.structs.replace(good, reply_to="ctx.log.t.run.run")
        bus.publish(subjects.summarise(tenant, "mine"), codec.encode_message(outside))
        await asyncio.sleep(0.05)
        assert host.stats.refused == 2
    assert not called.is_set()
    assert frames.empty()


async def test_a_worker_is_shown_to_service_discovery(tenant: str) -> None:
    broker = MemoryBroker()

    async def mine(question: Summarise) -> Summarised:
        return summarised(question)

    host = Host(tenant, "worker", broker.bus(), MemoryJournal())
    host.add_summariser("mine", mine, serve=True)
    host.add_summariser("private", mine)
    async with host:
        assert [service.name for service in broker.services] == ["mine"]
    assert not broker.services


@pytest.mark.rule("D.W.4")
async def test_who_asks_while_nothing_can_be_sent_is_told(tenant: str) -> None:
    broker = MemoryBroker()
    bus = broker.bus()
    rule = Summing(tenant, f"{subjects.inbox(tenant, 'one')}.compaction")
    async with Host(tenant, "one", bus, MemoryJournal(), (rule,), drain_seconds=0.2) as host:
        address, answer = host.reply_address()
        bus.connected = False
        host.deliver(subjects.command("compaction", tenant), compact(tenant, reply_to=address))
        async with asyncio.timeout(5):
            came = await answer
        bus.connected = True
    assert isinstance(came, SummaryFailed)
    assert (came.code, came.origin_code) == ("error", "unsent")


async def test_compact_is_refused_where_it_is_not_in_order(world: Summary) -> None:
    ended = await world.refused(compact("another"))
    assert (ended.status, ended.code, ended.token, ended.evaluation) == (
        "failed",
        "invalid_request",
        "token-mine",
        "e1",
    )
    assert ended.sequence == 7
    late = await world.refused(compact(world.tenant, seconds=0.0))
    assert late.code == "deadline_exceeded"


class _Asking:
    """Selection in place of the real one: has a history compacted, and answers the client with what came of it."""

    name: ActorName = "selection"

    def __init__(self, tenant: str, inbox: str) -> None:
        self._tenant = tenant
        self._inbox = inbox

    def initial(self, run: str) -> CompileStep | None:
        """Give the state of a run of which nothing is known."""
        del run
        return None

    def is_idle(self, state: CompileStep | None) -> bool:
        """Tell whether nothing is under way."""
        return state is None

    def decide(self, state: CompileStep | None, message: AnyMessage) -> tuple[CompileStep | None, Effects]:
        """Take one message."""
        if isinstance(message, CompileStep):
            request = compact(self._tenant, reply_to=message.reply_to, notify=self._inbox)
            return message, (Send(subjects.command("compaction", self._tenant), request),)
        if isinstance(message, CompactionEnded) and state is not None:
            return None, (fail(state, message.code or ""),)
        return state, ()


class _Broken(Summing):
    """Raises on whatever it gets."""

    def decide(self, state: tuple[Compact, ...], message: AnyMessage) -> tuple[tuple[Compact, ...], Effects]:
        """Take one message."""
        raise ValueError(state, message)


@pytest.mark.parametrize("broken", [False, True])
async def test_selection_is_told_when_nobody_compacts(tenant: str, *, broken: bool) -> None:
    broker = MemoryBroker()
    bus = broker.bus()
    rule = _Asking(tenant, f"{subjects.inbox(tenant, 'one')}.selection")
    async with Host(tenant, "one", bus, MemoryJournal(), (rule,), drain_seconds=0.2) as host:
        if broken:  # somebody serves it, and lets the actor raise
            async with Host(tenant, "two", broker.bus(), MemoryJournal(), (_Broken(tenant, ""),), drain_seconds=0.2):
                answer = await _compile(host, tenant)
        else:
            answer = await _compile(host, tenant)
    assert isinstance(answer, ErrorReply)
    assert answer.code == ("internal" if broken else "busy")


async def _compile(host: Host, tenant: str) -> AnyMessage:
    address, answer = host.reply_address()
    host.deliver(subjects.command("selection", tenant), step(tenant, "hello", reply_to=address))
    async with asyncio.timeout(5):
        return await answer

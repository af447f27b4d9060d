"""One contract for every way to run actors: in memory, co-located on NATS, and as separate processes would be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
from tests.runtime.acting import KINDS, Asker, Items, Kind, Storer, World, offered, run_world, step

from contextbus.runtime.bus import Frame
from contextbus.runtime.embedded import Server
from contextbus.runtime.host import Host
from contextbus.runtime.worker_calls import SourceHandler
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import ErrorReply, StepCompiled
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InternalError
from contextbus_protocol.messages import AnyMessage, ByReference
from contextbus_protocol.outcomes import Loaded
from contextbus_protocol.questions import AskItems, Failed, Offered, Query

Run = Callable[..., AbstractAsyncContextManager[World]]


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
        sources: Mapping[str, SourceHandler] | None = None, *, concurrency: int = 64
    ) -> AbstractAsyncContextManager[World]:
        return run_world(kind, server, tenant, sources, concurrency=concurrency)

    return make


@pytest.fixture
async def world(run: Run) -> AsyncGenerator[World]:
    async with run() as made:
        yield made


async def answer_docs(query: Query) -> Offered:
    return offered(query, "found", query.text)


def text_of(answer: AnyMessage) -> str:
    assert isinstance(answer, StepCompiled), answer
    return answer.package


def code_of(answer: AnyMessage) -> str:
    assert isinstance(answer, ErrorReply), answer
    return answer.code


async def eventually(holds: Callable[[], bool], seconds: float = 2.0) -> None:
    """Wait until something holds; what is on its way in the broker needs its time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_a_step_goes_through_all_actors_and_is_stored(run: Run) -> None:
    async with run({"docs": answer_docs}) as world:
        command = step(world.tenant, "hello", sources=("docs",))
        answer = await world.ask(command)
        assert text_of(answer) == "docs found hello"
        assert isinstance(answer, StepCompiled)
        record = await world.journal.last(subjects.log(world.tenant, "run", "run"))
        assert record is not None
        assert getattr(record, "sequence", None) == answer.sequence
        found = await world.client.packages.get("run", (answer.reference,))
        assert found == ((answer.reference, b"docs found hello"),)
        assert text_of(await world.ask(step(world.tenant, f"fetch {answer.reference}"))) == "docs found hello"
        assert text_of(await world.ask(step(world.tenant, "load"))) == "1 None"


async def test_a_conflict_reaches_the_asker(world: World) -> None:
    assert isinstance(await world.ask(step(world.tenant, "first")), StepCompiled)
    assert code_of(await world.ask(step(world.tenant, "second", seen=99))) == "conflict"


async def test_a_blob_that_is_there_already_is_success(world: World) -> None:
    first = await world.ask(step(world.tenant, "same"))
    assert isinstance(first, StepCompiled)
    second = await world.ask(step(world.tenant, "same", seen=first.sequence))
    assert isinstance(second, StepCompiled)
    assert second.reference == first.reference


async def test_many_runs_at_once(run: Run) -> None:
    async with run({"docs": answer_docs}) as world:
        commands = [step(world.tenant, f"n{i}", run=f"run {i}", sources=("docs",)) for i in range(50)]
        answers = await asyncio.gather(*(world.ask(command) for command in commands))
        assert [text_of(answer) for answer in answers] == [f"docs found n{i}" for i in range(50)]


async def test_an_absent_source_is_known_at_once(run: Run) -> None:
    async with run({"docs": answer_docs}) as world:
        command = step(world.tenant, "hello", sources=("docs", "nobody"))
        await world.ask(step(world.tenant, "warm", run="warm", sources=("docs",)))
        assert text_of(await world.ask(command)) == "docs found hello\nnobody absent"  # not a timeout


@pytest.mark.rule("D.T.3", "D.W.2")
async def test_sources_that_misbehave_become_failures(run: Run) -> None:
    async def raise_(query: Query) -> Offered:
        raise InternalError(query.text)

    async def hang(query: Query) -> Offered:
        while True:  # swallows its cancellation, once
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                break
        return offered(query, "too late")

    async def talk_nonsense(query: Query) -> Offered:
        return msgspec.structs.replace(offered(query), candidates=("text",))  # not a candidate

    async def answer_another(query: Query) -> Offered:
        return msgspec.structs.replace(offered(query), token="another")

    async def cancel(query: Query) -> Offered:
        raise asyncio.CancelledError

    handlers: dict[str, SourceHandler] = {
        "raises": raise_,
        "hangs": hang,
        "nonsense": talk_nonsense,
        "another": answer_another,
        "cancels": cancel,
        "docs": answer_docs,
    }
    async with run(handlers) as world:
        answer = await world.ask(step(world.tenant, "hello", sources=tuple(handlers), seconds=0.4))
        assert text_of(answer).split("\n") == [
            "another malformed",
            "cancels error",
            "docs found hello",
            "hangs timeout",
            "nonsense malformed",
            "raises error",
        ]
        assert text_of(await world.ask(step(world.tenant, "count"))) == "2"


async def test_a_source_says_busy_beyond_its_concurrency(run: Run) -> None:
    gate = asyncio.Event()

    async def wait(query: Query) -> Offered:
        await gate.wait()
        return offered(query, "done")

    async with run({"slow": wait}, concurrency=1) as world:
        first = asyncio.ensure_future(world.ask(step(world.tenant, "a", run="a", sources=("slow",))))
        await asyncio.sleep(0.05)
        assert text_of(await world.ask(step(world.tenant, "b", run="b", sources=("slow",)))) == "slow busy"
        gate.set()
        assert text_of(await first) == "slow done"


async def test_a_rule_that_raises_changes_nothing(world: World) -> None:
    assert text_of(await world.ask(step(world.tenant, "count"))) == "1"
    answer = await world.ask(step(world.tenant, "raise"))
    assert code_of(answer) == "internal"
    assert isinstance(answer, ErrorReply)
    assert "raise" not in answer.message
    assert text_of(await world.ask(step(world.tenant, "count"))) == "2"


async def test_an_effect_that_cannot_start_does_not_keep_the_others(world: World) -> None:
    assert text_of(await world.ask(step(world.tenant, "garble"))) in {"the others start", "\ud800"}


async def test_timers(world: World) -> None:
    started = time.monotonic()
    assert text_of(await world.ask(step(world.tenant, "wait 0.05"))) == "elapsed"
    assert time.monotonic() - started >= 0.05
    assert text_of(await world.ask(step(world.tenant, "rearm"))) == "elapsed"


async def test_a_cancelled_timer_stays_silent(world: World) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.ask(step(world.tenant, "never")), 0.1)


async def test_five_megabytes_pass(run: Run) -> None:
    text = "x" * 5_000_000
    async with run({"docs": answer_docs}) as world:
        answer = text_of(await world.ask(step(world.tenant, text, sources=("docs",))))
        assert answer == f"docs found {text}"


async def test_no_time_left(world: World) -> None:
    assert code_of(await world.ask(step(world.tenant, "hello", seconds=0.0))) == "deadline_exceeded"
    assert code_of(await world.ask(step(world.tenant, "hello", seconds=float("nan")))) == "deadline_exceeded"


@pytest.mark.parametrize("name", ["", "n" * 129, "\u0000" * 50])
async def test_names_that_fit_no_subject(world: World, name: str) -> None:
    answer = await world.ask(msgspec.structs.replace(step(world.tenant, "hello"), run=name))
    assert code_of(answer) == "invalid_request"
    answer = await world.ask(msgspec.structs.replace(step(world.tenant, "hello"), command=name))
    assert code_of(answer) == "invalid_request"


async def test_another_tenant(world: World) -> None:
    answer = await world.ask(msgspec.structs.replace(step(world.tenant, "hello"), tenant="another"))
    assert code_of(answer) == "invalid_request"


async def test_a_foreign_reply_address_is_refused_before_anything_is_done(world: World) -> None:
    heard: list[Frame] = []
    subject = f"elsewhere.{world.tenant}"
    await world.bus.subscribe(subject, heard.append)
    command = step(world.tenant, "hello", reply_to=subject)
    host = world.hosts.get("selection", world.client)
    world.bus.publish(subjects.command("selection", world.tenant), codec.encode_message(command), reply=subject)
    world.bus.publish(subjects.command("selection", world.tenant), b"garbage", reply=subject)
    assert text_of(await world.ask(step(world.tenant, "count"))) == "1"
    await eventually(lambda: host.stats.refused == 2)
    assert heard == []


async def listen(world: World) -> tuple[str, asyncio.Queue[Frame]]:
    """Make a reply address of a client that is no host."""
    queue: asyncio.Queue[Frame] = asyncio.Queue()
    address = f"{subjects.inbox(world.tenant, 'plain')}.1"
    await world.bus.subscribe(address, queue.put_nowait)
    await world.bus.flush()
    return address, queue


async def hear(queue: asyncio.Queue[Frame]) -> AnyMessage:
    frame = await asyncio.wait_for(queue.get(), 2)
    return codec.decode_message(frame.data, frame.content_type)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe garbage", b"{}", codec.encode_json({"type": "no-such-thing", "run": "r"})]
)
@pytest.mark.parametrize("content_type", [codec.MSGPACK, codec.JSON])
async def test_bytes_that_are_no_message_get_an_error_in_kind(world: World, data: bytes, content_type: str) -> None:
    address, queue = await listen(world)
    subject = subjects.command("selection", world.tenant)
    world.bus.publish(subject, data, reply=address, content_type=content_type)
    frame = await asyncio.wait_for(queue.get(), 2)
    assert frame.content_type == content_type
    assert code_of(codec.decode_message(frame.data, frame.content_type)) == "invalid_request"
    assert text_of(await world.ask(step(world.tenant, "count"))) == "1"


async def test_a_client_cannot_play_the_log(world: World) -> None:
    await world.ask(step(world.tenant, "count"))
    handled = {name: host.stats.handled for name, host in world.hosts.items()}
    forged = Loaded(run="run", token="t", part="run", after=0)
    world.bus.publish(subjects.command("selection", world.tenant), codec.encode_message(forged))
    for name, host in world.hosts.items():
        world.bus.publish(f"{host.inbox}.selection", codec.encode_message(forged))
        assert name in handled
    await asyncio.sleep(0.05)
    assert {name: host.stats.handled for name, host in world.hosts.items()} == handled


async def test_an_actor_refuses_what_it_does_not_take(world: World) -> None:
    address, answer = world.client.reply_address()
    world.client.deliver(subjects.command("placement", world.tenant), step(world.tenant, "hello", reply_to=address))
    assert code_of(await answer) == "invalid_request"


async def test_json_is_answered_in_json_at_the_reply_address_of_the_request(world: World) -> None:
    address, queue = await listen(world)
    command = codec.encode_message(step(world.tenant, "hello"), codec.JSON)
    world.bus.publish(subjects.command("selection", world.tenant), command, reply=address, content_type=codec.JSON)
    frame = await asyncio.wait_for(queue.get(), 2)
    assert frame.content_type == codec.JSON
    assert isinstance(codec.decode_message(frame.data, codec.JSON), StepCompiled)


async def test_a_question_between_actors_that_names_no_address(world: World) -> None:
    address, queue = await listen(world)
    ask = codec.encode_message(AskItems(run="run", tenant=world.tenant, token="t", reply_to=""))
    world.bus.publish(subjects.command("working-memory", world.tenant), ask, reply=address)
    assert code_of(await hear(queue)) == "invalid_request"


async def test_references_that_lead_nowhere(world: World) -> None:
    address, queue = await listen(world)
    good = ByReference(run="run", tenant=world.tenant, digest=digest_text("none"), size=1, content_type=codec.MSGPACK)
    for bad, code in (
        (good, "not_found"),
        (msgspec.structs.replace(good, digest="sha256:*"), "invalid_request"),
        (msgspec.structs.replace(good, tenant="another"), "invalid_request"),
        (msgspec.structs.replace(good, run=""), "invalid_request"),
        (msgspec.structs.replace(good, size=10**10), "payload_too_large"),
    ):
        world.bus.publish(subjects.command("selection", world.tenant), codec.encode_message(bad), reply=address)
        assert code_of(await hear(queue)) == code
    data = b"no message"
    await world.client.packages.put("run", ((digest_text("no message"), data),), "")
    reference = msgspec.structs.replace(good, digest=digest_text("no message"))
    world.bus.publish(subjects.command("selection", world.tenant), codec.encode_message(reference), reply=address)
    assert code_of(await hear(queue)) == "invalid_request"


async def test_a_worker_with_no_host_around_it(run: Run, tenant: str) -> None:
    asked: list[str] = []

    async with run() as world:

        def answer(frame: Frame) -> None:
            query = codec.decode_message(frame.data)
            assert isinstance(query, Query)
            assert query.reply_to == frame.reply
            asked.append(query.text)
            late = codec.encode_message(offered(query, "twice"))
            match query.text:
                case "json":
                    data = codec.encode_message(offered(query, "json"), codec.JSON)
                    world.bus.publish(frame.reply, data, content_type=codec.JSON)
                case "garbage":
                    world.bus.publish(frame.reply, b"\x00garbage")
                case _:
                    world.bus.publish(
                        frame.reply, codec.encode_message(Failed(run="run", token="t", source="s", code="x"))
                    )
            world.bus.publish(frame.reply, late)

        await world.bus.subscribe(subjects.query(tenant, "plain"), answer, queue="plain")
        await world.bus.flush()
        texts = ("json", "garbage", "other")
        answers = [
            text_of(await world.ask(step(tenant, text, run=text, sources=("plain",)))).removeprefix("plain ")
            for text in texts
        ]
        assert answers == ["json", "malformed", "malformed"]
        assert asked == list(texts)
        host = world.hosts.get("selection", world.client)
        await eventually(lambda: host.stats.late == 3)


async def test_the_time_left_shrinks_by_what_was_spent(run: Run, tenant: str) -> None:
    left: list[float] = []

    async def note(query: Query) -> Offered:
        left.append(query.seconds_left)
        return offered(query)

    async with run({"docs": note}) as world:
        await world.ask(step(tenant, "hello", sources=("docs",), seconds=3.0))
        assert 1.0 < left[0] < 1.5


async def test_nobody_there(run: Run, tenant: str) -> None:
    async with run() as world:
        _, lonely = world.client.reply_address()
        lonely.cancel()
        address, answer = world.client.reply_address()
        command = msgspec.structs.replace(step(tenant, "hello"), reply_to=address)
        world.client.deliver("ctx.v1.nobody", command)
        with pytest.raises(ConnectionError):
            await answer


async def test_answers_for_nobody_are_dropped_and_counted(world: World) -> None:
    await world.ask(step(world.tenant, "count"))
    host = world.hosts.get("selection", world.client)
    late = codec.encode_message(Failed(run="unknown", token="t", source="s", code="x"))
    world.bus.publish(f"{host.inbox}.selection", late)
    world.bus.publish(f"{host.inbox}.worker.77", late)
    world.bus.publish(f"{host.inbox}.client.77", late)
    world.bus.publish(f"{host.inbox}.nothing", late)
    dead = codec.encode_message(Failed(run="run", token="dead flight", source="s", code="x"))
    world.bus.publish(f"{host.inbox}.selection", dead)
    await eventually(lambda: host.stats.ignored == 1)
    assert host.stats.late == 3
    assert host.stats.unroutable == 1


async def test_a_client_cannot_aim_a_reply_at_an_actor(world: World) -> None:
    host = world.hosts.get("selection", world.client)
    handled = host.stats.handled
    command = step(world.tenant, "count", reply_to=f"{host.inbox}.selection")
    world.client.deliver(subjects.command("selection", world.tenant), command)
    assert text_of(await world.ask(step(world.tenant, "count"))) == "2"
    assert host.stats.handled == handled + 2
    assert host.stats.unroutable == 1


@pytest.mark.parametrize("kind", ["memory-apart", pytest.param("nats", marks=pytest.mark.broker)], indirect=True)
async def test_an_absent_actor_fails_the_step_at_once(run: Run, tenant: str) -> None:
    async with run() as world:
        await world.hosts["placement"].__aexit__(None, None, None)
        assert code_of(await world.ask(step(tenant, "hello"))) == "busy"  # not a timeout


async def test_draining_answers_what_was_taken(run: Run, tenant: str) -> None:
    async def think(query: Query) -> Offered:
        await asyncio.sleep(0.1)
        return offered(query, "thought")

    async with run({"slow": think}) as world:
        answer = asyncio.ensure_future(world.ask(step(tenant, "hello", sources=("slow",))))
        await asyncio.sleep(0.03)
        await world.hosts.get("selection", world.client).__aexit__(None, None, None)
        if "selection" in world.hosts:
            assert text_of(await answer) == "slow thought"
        else:
            assert answer.done()
            assert text_of(answer.result()) == "slow thought"


@pytest.mark.parametrize("kind", ["memory-apart", pytest.param("nats", marks=pytest.mark.broker)], indirect=True)
async def test_instances_share_the_work(run: Run, tenant: str) -> None:
    async with run() as world:
        rules = (Asker(tenant, f"{subjects.inbox(tenant, 'second')}.selection"), Items(), Storer())
        async with Host(tenant, "second", world.bus, world.journal, rules) as second:
            answers = await asyncio.gather(*(world.ask(step(tenant, "count", run=f"r{i}")) for i in range(40)))
            assert all(isinstance(answer, StepCompiled) for answer in answers)
            assert second.stats.handled > 0
            assert world.hosts["selection"].stats.handled > 0
            assert second.stats.handled + world.hosts["selection"].stats.handled == 40


async def test_results_are_told_in_order(run: Run, tenant: str) -> None:
    async with run() as world:
        answer = await world.ask(step(tenant, "one"))
        assert isinstance(answer, StepCompiled)
        # Placement tells selection first, so the asker has forgotten the command when the client hears.
        host = world.hosts.get("selection", world.client)
        await asyncio.sleep(0.02)
        assert host.stats.ignored == 0

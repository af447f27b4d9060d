"""The host's own promises: bounded, fair, nothing kept while disconnected, one answer for each flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from nats.aio.client import Client
from tests.runtime.acting import Asker, Items, Storer, World, offered, reply, run_world, step
from tests.runtime.summing import compact

from contextbus.actors.effects import Cancel, Effects, Send
from contextbus.runtime.bus import BusUnavailableError, Frame
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.connection import Connection
from contextbus.runtime.embedded import Server
from contextbus.runtime.expiring import Expiring
from contextbus.runtime.flights import Alarms
from contextbus.runtime.host import Host
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.journal import Page, Refused, Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.outbox import Arrivals
from contextbus.runtime.run_states import RunStates
from contextbus.runtime.trampoline import Actor, Trampoline
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import CompileStep, ErrorReply, StepCompiled
from contextbus_protocol.compaction import Compact, Summarise
from contextbus_protocol.errors import PayloadTooLargeError
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Elapsed
from contextbus_protocol.questions import Query
from contextbus_protocol.subjects import ActorName

SELECTION = subjects.command("selection", "t")


class _Hooked:
    """Counts, and calls a function at each command; states are idle when even."""

    name: ActorName = "selection"

    def __init__(self, hook: Callable[[CompileStep], Effects]) -> None:
        self._hook = hook

    def initial(self, run: str) -> int:
        return len(run) * 0

    def is_idle(self, state: int) -> bool:
        return state % 2 == 0

    def decide(self, state: int, message: AnyMessage) -> tuple[int, Effects]:
        return (state + 2, self._hook(message)) if isinstance(message, CompileStep) else (state, ())


@asynccontextmanager
async def hooked(hook: Callable[[CompileStep], Effects], queued_per_run: int = 1024) -> AsyncGenerator[Host]:
    async with Host(
        "t", "one", MemoryBroker().bus(), MemoryJournal(), (_Hooked(hook),), queued_per_run=queued_per_run
    ) as host:
        yield host


async def world_of(cache: int) -> tuple[Host, World]:
    bus, journal = MemoryBroker().bus(), MemoryJournal()
    rules = (Asker("t", f"{subjects.inbox('t', 'one')}.selection"), Items(), Storer())
    host = await Host("t", "one", bus, journal, rules, cache=cache, drain_seconds=0.3).__aenter__()
    return host, World("t", host, {"one": host}, journal, bus)


async def text_of(world: World, text: str, run: str) -> str:
    answer = await world.ask(step("t", text, run=run))
    return answer.package if isinstance(answer, StepCompiled) else getattr(answer, "code", "?")


async def test_idle_states_are_dropped_and_busy_ones_kept() -> None:
    host, world = await world_of(cache=4)
    async with host:
        assert await text_of(world, "count", "busy") == "1"
        waiting = asyncio.ensure_future(text_of(world, "wait 0.1", "busy"))
        await asyncio.sleep(0)
        for number in range(20):
            assert await text_of(world, "count", f"idle {number}") == "1"
        assert await text_of(world, "count", "busy") == "3"
        assert await text_of(world, "count", "idle 0") == "1"
        assert await waiting == "elapsed"


async def test_no_run_is_added_when_twice_the_limit_is_busy() -> None:
    host, world = await world_of(cache=2)
    async with host:
        waiting = [asyncio.ensure_future(text_of(world, "wait 0.05", f"r{number}")) for number in range(5)]
        assert await asyncio.gather(*waiting) == ["elapsed"] * 4 + ["busy"]
        assert await text_of(world, "count", "r9") == "1"


def test_states_with_something_waiting_or_in_flight_are_busy() -> None:
    states = RunStates(_Hooked(lambda _: ()), 2)
    states.take("queued").queued = 1
    states.take("flying").flights = 1
    states.take("odd").state = 1
    states.take("idle")
    states.take("new")
    assert [states.known(run) for run in ("queued", "flying", "odd", "idle", "new")] == [True, True, True, False, True]
    assert not states.is_quiet()


async def test_a_run_takes_a_bounded_number_of_messages() -> None:
    futures: list[asyncio.Future[AnyMessage]] = []

    def flood(command: CompileStep) -> Effects:
        if command.user_text == "flood":
            for _ in range(5):
                address, answer = host.reply_address()
                futures.append(answer)
                host.deliver(SELECTION, step("t", "one of many", reply_to=address))
        return (reply(command, command.user_text),)

    async with hooked(flood, queued_per_run=3) as host:
        address, answer = host.reply_address()
        host.deliver(SELECTION, step("t", "flood", reply_to=address))
        await answer
        answers = [await future for future in futures]
        assert [isinstance(a, StepCompiled) for a in answers] == [True] * 3 + [False] * 2
        assert isinstance(answers[-1], ErrorReply)
        assert answers[-1].code == "busy"


async def test_messages_without_end_do_not_starve_the_loop() -> None:
    on = True

    def again(command: CompileStep) -> Effects:
        return (Send(SELECTION, command),) if on else ()

    async with hooked(again) as host:
        host.deliver(SELECTION, step("t", "again", reply_to=f"{host.inbox}.client.1"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert 20 * 256 <= host.stats.handled <= 22 * 256
        on = False


async def test_one_message_after_the_other_in_order() -> None:
    seen: list[str] = []

    def nest(command: CompileStep) -> Effects:
        seen.append(f"<{command.user_text}")
        if command.user_text == "outer":
            host.deliver(SELECTION, step("t", "inner", reply_to=command.reply_to))
        seen.append(f"{command.user_text}>")
        return ()

    async with hooked(nest) as host:
        host.deliver(SELECTION, step("t", "outer", reply_to=f"{host.inbox}.client.1"))
    assert seen == ["<outer", "outer>", "<inner", "inner>"]


async def test_nothing_is_kept_while_disconnected() -> None:
    broker, journal = MemoryBroker(), MemoryJournal()
    heard: list[Frame] = []
    await broker.bus().subscribe(f"{subjects.inbox('t', 'plain')}.1", heard.append)
    bus = broker.bus()
    rules = (Asker("t", f"{subjects.inbox('t', 'one')}.selection"), Items(), Storer())
    async with Host("t", "one", bus, journal, rules) as host:
        bus.connected = False
        host.deliver(SELECTION, step("t", "count", reply_to=f"{subjects.inbox('t', 'plain')}.1"))
        assert host.stats.unsent == 1
        with pytest.raises(BusUnavailableError):
            host.deliver("ctx.v1.elsewhere", step("t", "count"))
        bus.connected = True
        await asyncio.sleep(0.01)
        assert heard == []
        host.deliver(SELECTION, step("t", "count", reply_to=f"{subjects.inbox('t', 'plain')}.1"))
        await asyncio.sleep(0.01)
        assert len(heard) == 1


async def test_a_host_can_be_entered_while_the_bus_is_away() -> None:
    bus = MemoryBroker().bus()
    bus.connected = False
    async with Host("t", "one", bus, MemoryJournal(), (_Hooked(lambda c: (reply(c, "yes"),)),)) as host:
        address, answer = host.reply_address()
        host.deliver(SELECTION, step("t", "hello", reply_to=address))
        assert isinstance(await answer, StepCompiled)


async def test_who_waits_for_a_host_that_is_left_is_told() -> None:
    host = Host("t", "one", MemoryBroker().bus(), MemoryJournal(), (_Hooked(lambda _: ()),))
    async with host:
        address, answer = host.reply_address()
        host.deliver(SELECTION, step("t", "silence", reply_to=address))
    with pytest.raises(BusUnavailableError):
        await answer
    with pytest.raises(BusUnavailableError):
        host.deliver(SELECTION, step("t", "silence", reply_to=address))


async def test_leaving_does_not_wait_for_ever_and_ends_its_tasks() -> None:
    ended = asyncio.Event()

    async def hang(query: Query) -> object:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return query

    async with run_world("memory", None, "t", {"slow": hang}) as world:
        _, answer = world.client.reply_address()
        asking = asyncio.ensure_future(world.ask(step("t", "hello", sources=("slow",), seconds=60.0)))
        await asyncio.sleep(0)
    assert ended.is_set()
    with pytest.raises(BusUnavailableError):
        await asking
    with pytest.raises(BusUnavailableError):
        await answer


class _Mute(MemoryJournal):
    """A journal that takes no blob."""

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        async def silence() -> Unanswered:
            return Unanswered("timeout")

        return silence()


async def test_who_sent_a_large_message_that_could_not_be_stored_is_told() -> None:
    async with Host("t", "one", MemoryBroker().bus(), _Mute()) as host:
        address, answer = host.reply_address()
        host.deliver("ctx.v1.elsewhere", step("t", "x" * 300_000, reply_to=address))
        with pytest.raises(BusUnavailableError):
            await answer
        assert host.stats.unsent == 1


class _Broken(MemoryJournal):
    """A journal with a fault."""

    async def read(self, subject: str, *, after: int, limit: int = 256) -> Page | Unanswered:
        raise RuntimeError(subject)

    async def get(self, subject: str) -> bytes | Unanswered | None:
        raise RuntimeError(subject)

    async def last(self, subject: str) -> None:
        raise RuntimeError(subject)


async def test_a_flight_that_fails_comes_back() -> None:
    rules = (Asker("t", f"{subjects.inbox('t', 'one')}.selection"), Items(), Storer())
    bus, journal = MemoryBroker().bus(), _Broken()
    async with Host("t", "one", bus, journal, rules) as host:
        world = World("t", host, {}, journal, bus)
        assert await text_of(world, "load", "run") == "0 internal"
        assert await text_of(world, f"fetch sha256:{'0' * 64}", "run") == ""
        # The expectation fails, and the last message cannot be read.
        answer = await world.ask(step("t", "hello", seen=9))
        assert isinstance(answer, ErrorReply)
        assert answer.code == "internal"


async def test_a_timer_cancelled_after_it_rang_stays_silent() -> None:
    handled: list[AnyMessage] = []

    class Rule(_Hooked):
        """Notes what it gets."""

        def decide(self, state: int, message: AnyMessage) -> tuple[int, Effects]:
            handled.append(message)
            return state, (Cancel("run", "t"),) if isinstance(message, CompileStep) else ()

    stats = HostStats()

    def start(actor: Actor, _entry: object, effect: object) -> None:
        assert isinstance(effect, Cancel)
        alarms.cancel(actor, effect.run, effect.token)

    def refuse(message: AnyMessage, code: str, text: str) -> None:
        raise AssertionError(code)

    trampoline = Trampoline(start, refuse, lambda: None, stats)
    alarms = Alarms(trampoline, stats)
    actor = Actor(Rule(lambda _: ()), "t", "ctx.inbox.t.one", 4)
    trampoline.put(actor, actor.states.take("run"), step("t", "cancel"))
    alarms.set(actor, "run", "t", 0.0)
    await asyncio.sleep(0.01)  # it rings, and the command before it cancels it
    assert [type(message) for message in handled] == [CompileStep]
    assert stats.late == 1
    alarms.set(actor, "run", "t", 0.0)
    alarms.set(actor, "forgotten", "t", 0.0)
    await asyncio.sleep(0.01)
    assert [type(message) for message in handled] == [CompileStep, Elapsed]
    assert stats.late == 2


def test_expiring_gives_each_value_once_and_forgets_the_oldest() -> None:
    table: Expiring[int] = Expiring(2)
    table.put("a", 1, now=0.0, seconds=1.0)
    table.put("b", 2, now=0.0, seconds=1.0)
    table.put("c", 3, now=0.5, seconds=1.0)
    assert [table.take(key, 0.6) for key in ("a", "b", "b", "c")] == [None, 2, None, 3]
    table.put("d", 4, now=1.0, seconds=1.0)
    assert table.take("d", 2.0) is None
    table.put("e", 5, now=3.0, seconds=1.0)
    table.put("f", 6, now=9.0, seconds=1.0)
    assert len(table) == 1


class _Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = 100.0

    def now(self) -> float:
        return self.moment

    def elapsed(self) -> float:
        return self.moment


def test_time_left_is_what_the_last_attempt_brought_less_what_was_spent() -> None:
    clock = _Clock()
    arrivals = Arrivals(clock, 2)
    command = step("t", "hello", seconds=3.0)
    arrivals.note(command)
    clock.moment += 2.0
    query = msgspec.structs.replace(_query(command), seconds_left=3.0)
    assert arrivals.age_question(query).seconds_left == 1.0
    arrivals.note(msgspec.structs.replace(command, attempt=2))
    assert arrivals.age_question(query).seconds_left == 3.0
    clock.moment += 9.0
    assert arrivals.age_question(query).seconds_left == 0.0
    for _ in range(2):
        arrivals.note(step("t", "others"))
    assert arrivals.age_question(query).seconds_left == 3.0  # forgotten: as it came


def test_a_request_to_compact_brings_its_time_and_a_summariser_gets_what_is_left() -> None:
    clock = _Clock()
    arrivals = Arrivals(clock, 2)
    request = compact("t", seconds=5.0)
    arrivals.note(request)
    clock.moment += 2.0
    aged = arrivals.age(request)
    assert isinstance(aged, Compact)
    assert aged.head.seconds_left == 3.0
    asked = Summarise(
        run="run",
        tenant="t",
        command=request.head.command,
        token="",
        reply_to="",
        summariser="mine",
        messages=(),
        instructions="",
        max_output_tokens=1,
        seconds_left=4.0,
    )
    sent = arrivals.age(asked)
    assert isinstance(sent, Summarise)
    assert sent.seconds_left == 2.0


def _query(command: CompileStep) -> Query:
    return Query(
        run=command.run,
        tenant="t",
        command=command.command,
        token="t",
        reply_to="",
        source="s",
        step=1,
        text="",
        scope=command.options.scope,
        limit=1,
        budget_tokens=1,
        seconds_left=command.seconds_left,
    )


async def test_the_broker_is_bounded_and_survives_its_handlers() -> None:
    broker = MemoryBroker(most_waiting=3)
    heard: list[str] = []

    def fail(frame: Frame) -> None:
        raise RuntimeError(frame.subject)

    bus = broker.bus()
    await bus.subscribe("a.>", fail)
    await bus.subscribe(">", lambda frame: heard.append(frame.subject))
    exact = await bus.subscribe("a.b", lambda frame: heard.append(f"{frame.subject}!"))
    for _ in range(3):
        bus.publish("a.b", b"")
    with pytest.raises(BusUnavailableError):
        bus.publish("a.b", b"")
    await asyncio.sleep(0)
    assert sorted(heard) == ["a.b"] * 3 + ["a.b!"] * 3
    await exact.unsubscribe()
    await exact.unsubscribe()
    bus.publish("a.b", b"")
    bus.publish("a", b"")
    await asyncio.sleep(0)
    assert heard[6:] == ["a.b", "a"]
    with pytest.raises(PayloadTooLargeError):
        bus.publish("a.b", bytes(bus.longest + 1))


async def test_queue_groups_share_and_others_get_everything() -> None:
    broker = MemoryBroker()
    counts = {"one": 0, "two": 0, "all": 0}

    def count(name: str) -> Callable[[Frame], None]:
        def add(_: Frame) -> None:
            counts[name] += 1

        return add

    await broker.bus().subscribe("s", count("one"), queue="q")
    await broker.bus().subscribe("s", count("two"), queue="q")
    await broker.bus().subscribe("s", count("all"))
    for _ in range(10):
        broker.bus().publish("s", b"")
    await asyncio.sleep(0)
    assert counts == {"one": 5, "two": 5, "all": 10}


@pytest.mark.broker
async def test_any_client_of_nats_can_ask_in_json(broker: Server, tenant: str) -> None:
    async with run_world("nats", broker, tenant):
        client = Client()
        await client.connect(broker.url, token=broker.token, inbox_prefix=f"ctx.inbox.{tenant}.json")
        try:
            subject = subjects.command("selection", tenant)
            headers = {"Content-Type": "application/json; charset=utf-8"}
            command = codec.encode_message(step(tenant, "hello"), codec.JSON)
            answer = await client.request(subject, command, timeout=2, headers=headers)
            assert answer.header == {"Content-Type": "application/json"}
            assert codec.decode_json(answer.data, dict[str, object])["type"] == "step-compiled"
            answer = await client.request(subject, b"{}", timeout=2, headers=headers)
            assert codec.decode_json(answer.data, dict[str, object])["code"] == "invalid_request"
        finally:
            await client.close()


@pytest.mark.broker
async def test_service_discovery_shows_actors_and_workers(broker: Server, connection: Connection, tenant: str) -> None:
    async def answer(query: Query) -> object:
        return offered(query)

    names: set[str] = set()

    def note(_subject: str, _reply: str, _headers: object, data: bytes) -> None:
        names.add(str(codec.decode_json(data, dict[str, object])["name"]))

    async with run_world("nats", broker, tenant, {"my docs": answer}):
        connection.send("$SRV.PING", b"", connection.open_inbox(note) + ".1")
        await connection.flush()
        await asyncio.sleep(0.05)
    wanted = {"selection", "working-memory", "placement", "my_docs"}
    assert wanted <= names

"""Workers over a bus: each request answered once, and nothing that comes ends them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from tests.sources.conftest import Ask

from contextbus.runtime.bus import Bus, Frame
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.connection import Connection
from contextbus.sources.announcements import announce, announcement, check_peers
from contextbus.sources.interface import Answer, FunctionSource, candidate
from contextbus.sources.worker import AdminReply, AdminRequest, Worker, keep_running
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.errors import InvalidRequestError, NotFoundError
from contextbus_protocol.memory_records import Forget, Forgotten, ListRecords, RecordsListed
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Candidate, Scope, SourceKind

SECONDS = 5.0


async def find(query: Query) -> list[Candidate]:
    if query.text == "raise":
        raise RuntimeError("secret")
    if query.text == "hang":
        await anyio.sleep_forever()
    if query.text == "huge":
        return [candidate("r", "x" * 2_000_000, 1)]
    return [candidate("r", f"about {query.text}", 1)]


DOCS = FunctionSource(find, id="docs", kind="rag")


class Answers:
    """What came to an inbox."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()

    async def next(self) -> AnyMessage:
        """The next message."""
        async with asyncio.timeout(SECONDS):
            frame = await self.frames.get()
        return codec.decode_message(frame.data, frame.content_type)


@asynccontextmanager
async def inbox(bus: Bus, tenant: str) -> AsyncGenerator[Answers]:
    answers = Answers()
    subscription = await bus.subscribe(f"ctx.inbox.{tenant}.me.>", answers.frames.put_nowait)
    yield answers
    await subscription.unsubscribe()


def send(bus: Bus, query: Query) -> None:
    bus.publish(subjects.query(query.tenant, query.source), codec.encode_message(query))


async def test_a_worker_answers_queries(bus: Bus, tenant: str, ask: Ask) -> None:
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve():
        query = ask("tea")
        send(bus, query)
        offered = await answers.next()
        assert isinstance(offered, Offered)
        assert (offered.token, offered.candidates[0].text) == (query.token, "about tea")


@pytest.mark.rule("D.W.2")
async def test_what_a_source_raised_is_told_in_its_own_process_only(bus: Bus, tenant: str, ask: Ask) -> None:
    seen: list[str] = []
    told = Worker(bus, tenant, DOCS, on_error=lambda query, exc: seen.append(f"{query.source}: {exc}"))
    async with inbox(bus, tenant) as answers, told.serve():
        send(bus, ask("raise"))
        answer = await answers.next()
    assert isinstance(answer, Failed)
    assert "secret" not in repr(answer)
    assert seen == ["docs: secret"]


async def test_it_lives_on_whatever_comes(bus: Bus, tenant: str, ask: Ask) -> None:
    subject = subjects.query(tenant, "docs")
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve():
        bus.publish(subject, b"\xff\x00 no message")
        bus.publish(subject, b"")
        bus.publish(
            subject, codec.encode_message(Forgotten(run="r", message_id="m", record_id="x", revisions=1, sequence=1))
        )
        send(bus, ask("raise"))
        failed = await answers.next()
        assert isinstance(failed, Failed)
        assert (failed.code, failed.origin_type) == ("error", "RuntimeError")
        send(bus, ask("hang", seconds_left=0.05))
        failed = await answers.next()
        assert isinstance(failed, Failed)
        assert failed.code == "timeout"
        send(bus, ask("huge"))
        failed = await answers.next()
        assert isinstance(failed, Failed)
        assert failed.origin_code == "payload_too_large"
        send(bus, ask("tea"))
        assert isinstance(await answers.next(), Offered)


async def test_undecodable_bytes_with_a_reply_address_get_an_error(bus: Bus, tenant: str) -> None:
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve():
        bus.publish(subjects.query(tenant, "docs"), b"{oops", reply=f"ctx.inbox.{tenant}.me.1", content_type=codec.JSON)
        reply = await answers.next()
        assert isinstance(reply, ErrorReply)
        assert reply.code == "invalid_request"


async def test_a_json_query_is_answered_in_json(bus: Bus, tenant: str, ask: Ask) -> None:
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve():
        bus.publish(subjects.query(tenant, "docs"), codec.encode_message(ask(), codec.JSON), content_type=codec.JSON)
        async with asyncio.timeout(SECONDS):
            frame = await answers.frames.get()
        assert frame.content_type == codec.JSON
        assert msgspec.json.decode(frame.data)["type"] == "offered"


async def test_a_reply_address_or_tenant_that_is_not_ours_is_dropped(bus: Bus, tenant: str, ask: Ask) -> None:
    elsewhere = Answers()
    await bus.subscribe("ctx.log.victim.run-1.run", elsewhere.frames.put_nowait)
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve():
        send(bus, ask(reply_to="ctx.log.victim.run-1.run"))
        other = msgspec.structs.replace(ask(), tenant="victim")
        bus.publish(subjects.query(tenant, "docs"), codec.encode_message(other))
        query = ask("tea")
        send(bus, query)
        offered = await answers.next()
        assert isinstance(offered, Offered)
        assert offered.token == query.token
    assert elsewhere.frames.empty()
    assert answers.frames.empty()


async def test_workers_of_one_source_share_its_queries(bus: Bus, tenant: str, ask: Ask) -> None:
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS).serve(), Worker(bus, tenant, DOCS).serve():
        queries = [ask(str(n)) for n in range(10)]
        for query in queries:
            send(bus, query)
        came = [await answers.next() for _ in queries]
        tokens = sorted(message.token for message in came if isinstance(message, Offered))
        assert tokens == sorted(query.token for query in queries)
    assert answers.frames.empty()


async def test_beyond_its_concurrency_it_answers_busy(bus: Bus, tenant: str, ask: Ask) -> None:
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, DOCS, concurrency=1).serve():
        send(bus, ask("hang", seconds_left=0.2))
        send(bus, ask("tea"))
        codes = [
            message.code for message in (await answers.next(), await answers.next()) if isinstance(message, Failed)
        ]
        assert codes == ["busy", "timeout"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_stopping_worker_answers_what_it_took(bus: Bus, tenant: str, ask: Ask, *, cancelled: bool) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_query: Query) -> list[Candidate]:
        begun.set()
        await go.wait()
        return []

    async with inbox(bus, tenant) as answers, anyio.create_task_group() as group:
        worker = Worker(bus, tenant, FunctionSource(slow, id="docs", kind="rag"))
        stop = asyncio.Event()

        async def run() -> None:
            async with worker.serve():
                send(bus, ask())
                await stop.wait()

        group.start_soon(run)
        await begun.wait()
        if cancelled:
            group.cancel_scope.cancel()
        else:
            stop.set()
        asyncio.get_running_loop().call_later(0.05, go.set)
    with anyio.CancelScope(shield=True):
        frame = await asyncio.wait_for(answers.frames.get(), SECONDS)
        assert isinstance(codec.decode_message(frame.data), Offered)


async def test_a_stopping_worker_does_not_wait_for_ever(ask: Ask, tenant: str) -> None:
    bus = MemoryBroker().bus()
    with anyio.fail_after(SECONDS):
        async with Worker(bus, tenant, DOCS, drain_seconds=0.05).serve():
            send(bus, ask("hang", seconds_left=60))
            await anyio.sleep(0.02)


class Administered:
    """A source that takes requests."""

    id = "memory"
    kind: SourceKind = "memory"
    required = False

    async def query(self, query: Query) -> Answer:
        """Find nothing."""
        assert query.source == self.id
        return []

    async def administer(self, request: AdminRequest) -> AdminReply:
        """List, and fail otherwise."""
        if isinstance(request, ListRecords):
            return RecordsListed(run=request.run, message_id=request.message_id, sequence=7)
        if request.message_id == "crash":
            raise RuntimeError("secret")
        raise NotFoundError("there is no such record")


async def test_requests_are_answered_as_they_ask_and_errors_are_replies(bus: Bus, tenant: str) -> None:
    subject = subjects.source_admin(tenant, "memory")
    to, scope = f"ctx.inbox.{tenant}.me.1", Scope(user_id="ada")
    async with inbox(bus, tenant) as answers, Worker(bus, tenant, Administered()).serve():
        listing = ListRecords(
            run="", tenant=tenant, reply_to=to, reply_as="json", source="memory", message_id="m", scope=scope
        )
        bus.publish(subject, codec.encode_message(listing, codec.JSON), content_type=codec.JSON)
        async with asyncio.timeout(SECONDS):
            frame = await answers.frames.get()
        assert msgspec.json.decode(frame.data) == {"type": "records-listed", "run": "", "messageId": "m", "sequence": 7}
        for message_id, code in (("m", "not_found"), ("crash", "internal")):
            forget = Forget(
                run="", tenant=tenant, reply_to=to, source="memory", message_id=message_id, record_id="x", scope=scope
            )
            bus.publish(subject, codec.encode_message(forget))
            reply = await answers.next()
            assert isinstance(reply, ErrorReply)
            assert (reply.command, reply.code) == (message_id, code)
            assert "secret" not in reply.message


async def test_work_beside_the_queries_is_begun_again_when_it_fails() -> None:
    runs = itertools.count(1)
    done = asyncio.Event()

    async def work() -> None:
        if next(runs) == 4:
            done.set()
            await anyio.sleep_forever()
        raise RuntimeError("crash")

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: keep_running("docs", work, first=0.001, longest=0.01))
        await asyncio.wait_for(done.wait(), SECONDS)
        group.cancel_scope.cancel()


@pytest.mark.rule("D.K.23")
def test_workers_of_one_source_must_agree() -> None:
    own = announcement("t", DOCS)
    check_peers(own, [own.metadata])
    check_peers(own, [{**own.metadata, "kind": "memory", "source": "other"}])
    check_peers(own, [{**own.metadata, "kind": "memory", "tenant": "other"}])
    for name in ("kind", "required", "schema", "options"):
        with pytest.raises(InvalidRequestError, match=name):
            check_peers(own, [own.metadata, {**own.metadata, name: "other"}])


@pytest.mark.broker
@pytest.mark.rule("D.K.23")
async def test_a_worker_that_differs_is_refused_at_registration(connection: Connection, tenant: str) -> None:
    async with (
        announce(connection, tenant, DOCS, version="0.1.0"),
        announce(connection, tenant, DOCS, version="0.1.0"),
    ):
        other = FunctionSource(find, id="docs", kind="memory")
        with pytest.raises(InvalidRequestError, match="kind"):
            async with announce(connection, tenant, other, version="0.1.0"):
                pass
    async with announce(connection, tenant, FunctionSource(find, id="docs", kind="memory"), version="0.1.0"):
        pass

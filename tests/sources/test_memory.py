"""The memory source behind its worker: queries and requests, from clients of any language."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.sources.conftest import ADA, Ask

from contextbus.runtime.bus import Bus, Frame
from contextbus.runtime.journal import Journal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.answers import handler
from contextbus.sources.memory import memory_source
from contextbus.sources.worker import Worker
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.memory_records import (
    AllowRecords,
    Forget,
    Forgotten,
    ListRecords,
    RecordsAllowed,
    RecordsListed,
    Remember,
    Remembered,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered
from contextbus_protocol.values import Provenance, Scope
from contextbus_protocol.working_memory import SourceRef

SECONDS = 5.0


class Client:
    """Asks a memory worker over the bus and waits for its answers."""

    def __init__(self, bus: Bus, tenant: str) -> None:
        self.bus = bus
        self.tenant = tenant
        self.reply_to = f"ctx.inbox.{tenant}.me.1"
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()

    async def ask(self, message: AnyMessage, subject: str = "", content_type: str = codec.MSGPACK) -> AnyMessage:
        """Send a message and wait for the next answer."""
        to = subject or subjects.source_admin(self.tenant, "memory")
        self.bus.publish(to, codec.encode_message(message, content_type), content_type=content_type)
        async with asyncio.timeout(SECONDS):
            frame = await self.frames.get()
        return codec.decode_message(frame.data, frame.content_type)

    async def remember(self, text: str, message_id: str, scope: Scope = ADA, record: str | None = None) -> AnyMessage:
        """Remember a text."""
        return await self.ask(
            Remember(
                run="",
                tenant=self.tenant,
                reply_to=self.reply_to,
                source="memory",
                message_id=message_id,
                text=text,
                scope=scope,
                now=1,
                record_id=record,
            )
        )


@asynccontextmanager
async def serve(bus: Bus, journal: Journal, tenant: str, data: Path) -> AsyncGenerator[Client]:
    """A memory worker, and a client of it."""
    client = Client(bus, tenant)
    memory = memory_source(journal, tenant, data=data)
    subscription = await bus.subscribe(f"ctx.inbox.{tenant}.me.>", client.frames.put_nowait)
    async with Worker(bus, tenant, memory).serve():
        yield client
    await subscription.unsubscribe()
    await memory.aclose()


@pytest.mark.rule("D.K.11", "D.K.24")
async def test_remember_query_list_and_forget(
    bus: Bus, journal: Journal, tenant: str, tmp_path: Path, ask: Ask
) -> None:
    async with serve(bus, journal, tenant, tmp_path) as client:
        done = await client.remember("Ada likes green tea", "m1")
        assert isinstance(done, Remembered)
        assert done.revision == 1

        query = ask("tea", source="memory", reply_to=client.reply_to, seen=done.sequence)
        offered = await client.ask(query, subjects.query(tenant, "memory"))
        assert isinstance(offered, Offered)
        (found,) = offered.candidates
        assert (found.record_id, found.revision, found.digest) == (done.record_id, 1, done.digest)
        assert found.provenance == Provenance("asserted", ("host",))

        listing = ListRecords(
            run="", tenant=tenant, reply_to=client.reply_to, source="memory", message_id="l", scope=ADA
        )
        listed = await client.ask(listing)
        assert isinstance(listed, RecordsListed)
        assert [record.text for record in listed.records] == ["Ada likes green tea"]

        forget = Forget(
            run="",
            tenant=tenant,
            reply_to=client.reply_to,
            source="memory",
            message_id="f",
            record_id=done.record_id,
            scope=ADA,
        )
        forgotten = await client.ask(forget)
        assert isinstance(forgotten, Forgotten)
        assert forgotten.revisions == 1
        offered = await client.ask(ask("tea", source="memory"), subjects.query(tenant, "memory"))
        assert isinstance(offered, Offered)
        assert offered.candidates == ()
        refused = await client.remember("Ada likes green tea", "m2")
        assert isinstance(refused, ErrorReply)
        assert (refused.command, refused.code) == ("m2", "forbidden")

        allow = AllowRecords(
            run="",
            tenant=tenant,
            reply_to=client.reply_to,
            source="memory",
            message_id="a",
            record_id=done.record_id,
        )
        allowed = await client.ask(allow)
        assert isinstance(allowed, RecordsAllowed)
        assert (allowed.message_id, allowed.digests) == ("a", (done.digest,))
        assert isinstance(await client.remember("Ada likes green tea", "m3"), Remembered)


async def test_a_json_client_takes_part(bus: Bus, journal: Journal, tenant: str, tmp_path: Path) -> None:
    async with serve(bus, journal, tenant, tmp_path) as client:
        request = {
            "type": "remember",
            "run": "",
            "tenant": tenant,
            "replyTo": client.reply_to,
            "replyAs": "json",
            "source": "memory",
            "messageId": "m",
            "text": "tea",
            "scope": {"userId": "ada"},
            "now": 1,
        }
        subject = subjects.source_admin(tenant, "memory")
        client.bus.publish(subject, msgspec.json.encode(request), content_type=codec.JSON)
        async with asyncio.timeout(SECONDS):
            frame = await client.frames.get()
        answer = msgspec.json.decode(frame.data)
        assert frame.content_type == codec.JSON
        assert (answer["type"], answer["revision"]) == ("remembered", 1)
        client.bus.publish(subject, msgspec.json.encode({**request, "scope": {}}), content_type=codec.JSON)
        async with asyncio.timeout(SECONDS):
            answer = msgspec.json.decode((await client.frames.get()).data)
        assert (answer["type"], answer["code"]) == ("error", "scope_conflict")


@pytest.mark.rule("D.K.4")
async def test_a_query_without_a_scope_fails_the_source(tenant: str, ask: Ask) -> None:
    memory = memory_source(MemoryJournal(), tenant)
    await memory.store.remember("tea", scope=ADA, message_id="m", now=1)
    query = ask("tea", source="memory", scope=Scope())
    answer = await handler(memory)(query)
    assert answer == Failed(
        run=query.run,
        token=query.token,
        source="memory",
        code="scope",
        origin_code="scope_conflict",
        origin_type="ScopeConflictError",
    )


@pytest.mark.rule("D.K.2", "D.K.3")
async def test_a_query_outside_the_pinned_scope_fails_and_within_it_is_narrowed(tenant: str, ask: Ask) -> None:
    journal = MemoryJournal()
    everyone = memory_source(journal, tenant)
    await everyone.store.remember("tea of bob", scope=Scope(user_id="bob"), message_id="m", now=1)
    await everyone.store.remember("tea of ada", scope=ADA, message_id="n", now=1)
    pinned = handler(memory_source(journal, tenant, scope=ADA))
    failed = await pinned(ask("tea", scope=Scope(user_id="bob")))
    assert isinstance(failed, Failed)
    assert failed.code == "scope"
    offered = await pinned(ask("tea", scope=Scope()))
    assert isinstance(offered, Offered)
    assert [found.text for found in offered.candidates] == ["tea of ada"]


@pytest.mark.rule("D.K.11")
async def test_kinds_of_the_sources_it_rests_on_are_told(tenant: str, ask: Ask) -> None:
    memory = memory_source(MemoryJournal(), tenant)
    refs = (SourceRef("user", "u1"), SourceRef("document", "d1"), SourceRef("user", "u2"))
    request = Remember(
        run="",
        tenant=tenant,
        reply_to="",
        source="memory",
        message_id="m",
        text="tea",
        scope=ADA,
        now=1,
        origin="inferred",
        source_refs=refs,
    )
    await memory.administer(request)
    offered = await handler(memory)(ask("tea"))
    assert isinstance(offered, Offered)
    assert offered.candidates[0].provenance == Provenance("inferred", ("document", "user"))


async def test_while_nobody_asks_the_index_follows_what_others_forget(tenant: str, tmp_path: Path) -> None:
    journal = MemoryJournal()
    one, two = memory_source(journal, tenant), memory_source(journal, tenant, data=tmp_path)
    stored = await one.store.remember("the secret sentence", scope=ADA, message_id="m", now=1)
    await two.store.catch_up()
    await one.store.forget(stored.record.record_id, scope=ADA, message_id="f")

    def read() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert b"secret sentence" in await asyncio.to_thread(read)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await two.keep()
    assert b"secret sentence" not in await asyncio.to_thread(read)
    await two.aclose()

"""What only the journal on a real nats-server can show: disk, crashes, losses on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.connection_errors import PayloadTooLargeError
from contextbus.runtime.embedded import Server, find_server, serve
from contextbus.runtime.journal import Appended, Code, Page, Record, Refused, Unanswered
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.streams import (
    StreamConfig,
    StreamError,
    configure,
    ensure,
    find_stream,
    name_stream,
)

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
Handler = Callable[[str, str, Mapping[str, str], bytes], None]

pytestmark = pytest.mark.broker


@pytest.fixture
async def journal(connection: Connection, tenant: str) -> AsyncGenerator[JetStreamJournal]:
    await ensure(connection, tenant)
    made = JetStreamJournal(connection, answer_seconds=0.5)
    yield made
    made.close()


def holds(folder: Path, content: bytes) -> bool:
    """Look for bytes in all files of a folder."""
    return any(content in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["memory", "blob"])
async def test_erased_bytes_are_gone_from_disk(tmp_path: Path, kind: str) -> None:
    secret, kept = b"forget-me-" * 5, b"keep-me-" * 5
    async with serve(tmp_path) as server, connect(server.url, token=server.token) as connection:
        await ensure(connection, "t")
        journal = JetStreamJournal(connection)
        subject = f"ctx.{kind}.t.scope.record"
        for name, content in (("record", secret), ("other", kept)):
            await journal.put(f"ctx.{kind}.t.scope.{name}", content, headers={"Ctx-Command": name})
        sequences = await journal.sequences(subject)
        assert sequences == (1,)
        assert await anyio.to_thread.run_sync(holds, tmp_path, secret)
        assert await journal.erase(subject, 1) is True
        assert not await anyio.to_thread.run_sync(holds, tmp_path, secret)
        assert await anyio.to_thread.run_sync(holds, tmp_path, kept)
    assert not await anyio.to_thread.run_sync(holds, tmp_path, secret)


async def test_acknowledged_appends_outlive_a_killed_server(tmp_path: Path, eventually: Eventually) -> None:
    """Retried as the append algorithm does, all are stored once, whenever the server is killed."""
    subject = "ctx.log.t.run.run"
    async with (
        serve(tmp_path) as server,
        connect(server.url, token=server.token, locate=server.locate) as connection,
    ):
        await ensure(connection, "t")
        journal = JetStreamJournal(connection, answer_seconds=2)
        unanswered = last = 0
        settled = True
        killer = asyncio.ensure_future(kill_now_and_then(server, connection, eventually))
        number = 0
        while not (settled and killer.done()):
            settled = False
            outcome = await journal.append(subject, b"x", expected=last, message_id=str(number), command=str(number))
            if isinstance(outcome, Unanswered):
                unanswered += 1
                await asyncio.sleep(0.02)
                continue
            if isinstance(outcome, Refused):
                assert outcome.code == Code.WRONG_LAST_SEQUENCE
                stored = await journal.last(subject)
                if isinstance(stored, Unanswered):
                    continue
                assert isinstance(stored, Record)
                assert stored.command == str(number)
                last = stored.sequence
            else:
                last = outcome.sequence
            number += 1
            settled = True
        await killer
        assert unanswered
        commands: list[str] = []
        after = 0
        while True:
            page = await journal.read(subject, after=after)
            assert isinstance(page, Page)
            commands += [record.command for record in page.records]
            if not page.more:
                break
            after = page.records[-1].sequence
        assert commands == [str(done) for done in range(number)]


async def kill_now_and_then(server: Server, connection: Connection, eventually: Eventually) -> None:
    """Kill the server three times, each time after it was back for a while."""
    for _ in range(3):
        await asyncio.sleep(0.15)
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: server.pid != pid and connection.connected)  # noqa: B023 - awaited here


async def test_a_cancelled_append_may_have_happened_and_is_settled_by_its_retry(
    journal: JetStreamJournal, tenant: str
) -> None:
    subject = f"ctx.log.{tenant}.run.run"
    append = asyncio.ensure_future(journal.append(subject, b"x", expected=0, message_id="m", command="c"))
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    again = await journal.append(subject, b"x", expected=0, message_id="m", command="c")
    assert isinstance(again, Refused)
    last = await journal.last(subject)
    assert isinstance(last, Record)
    assert (last.command, last.message_id) == ("c", "m")


async def test_an_answer_that_does_not_come_is_a_timeout(tmp_path: Path, eventually: Eventually) -> None:
    async with serve(tmp_path) as server, connect(server.url, token=server.token) as connection:
        await ensure(connection, "t")
        journal = JetStreamJournal(connection, answer_seconds=0.3)
        os.kill(server.pid, signal.SIGSTOP)
        started = time.monotonic()
        try:
            outcomes = await asyncio.gather(
                journal.append("ctx.log.t.r.run", b"", expected=0, message_id="m", command="c"),
                journal.read("ctx.log.t.r.run", after=0),
                journal.get("ctx.blob.t.r.digest"),
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert set(outcomes) == {Unanswered("timeout")}
        assert time.monotonic() - started > 0.25
        # The late answers are dropped, and what was asked for has happened.
        patient = JetStreamJournal(connection)
        async with asyncio.timeout(30):  # the server takes what waited for it in an order of its own
            while await patient.last_sequence("CTX_LOG_t") != 1:
                await asyncio.sleep(0.02)
        assert await patient.sequences("ctx.log.t.r.run") == (1,)


async def test_a_lost_connection_leaves_all_questions_unanswered_at_once(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as server, connect(server.url, token=server.token) as connection:
        await ensure(connection, "t")
        journal = JetStreamJournal(connection, answer_seconds=60)
        os.kill(server.pid, signal.SIGSTOP)
        append = journal.append("ctx.log.t.r.run", b"", expected=0, message_id="m", command="c")
        await asyncio.sleep(0.05)
        os.kill(server.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            assert await append == Unanswered("disconnected")
        again = await journal.append("ctx.log.t.r.run", b"", expected=0, message_id="m", command="c")
        assert again in (Unanswered("disconnected"), Appended(1))


async def test_a_stream_that_is_not_there_is_nobody(connection: Connection, tenant: str) -> None:
    journal = JetStreamJournal(connection)
    subject = f"ctx.log.{tenant}.r.run"
    nobody = Unanswered("no-responders")
    append = journal.append(subject, b"", expected=0, message_id="m", command="c")
    assert await append == nobody
    assert await journal.put(f"ctx.blob.{tenant}.r.d", b"", headers={}) == nobody
    assert await journal.read(subject, after=0) == nobody
    assert await journal.sequences(subject) == nobody
    assert await journal.get(f"ctx.blob.{tenant}.r.d") == nobody
    refused = Unanswered("refused")
    assert await journal.last(subject) == refused
    assert await journal.last_sequence(f"CTX_LOG_{tenant}") == refused
    assert await journal.subjects(f"ctx.log.{tenant}.>") == refused
    assert await journal.erase(subject, 1) == refused
    purged = await journal.purge(subject)
    assert isinstance(purged, Refused)
    assert purged.code == Code.STREAM_NOT_FOUND
    journal.close()


async def test_a_commit_beyond_the_largest_message_is_refused_before_it_is_sent(
    journal: JetStreamJournal, connection: Connection, tenant: str
) -> None:
    with pytest.raises(PayloadTooLargeError):
        await journal.put(f"ctx.blob.{tenant}.r.d", b"x" * connection.max_payload, headers={"A": ""})


class Lossy:
    """Hands on what comes, but for the messages of a batch that are to be lost."""

    def __init__(self, handler: Handler, lost: frozenset[int]) -> None:
        self.handler = handler
        self.lost = lost
        self.count = 0

    def __call__(self, subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> None:
        """Count a message, and lose it or hand it on."""
        self.count += 1
        if self.count not in self.lost:
            self.handler(subject, reply, headers, data)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ({1}, "gap"),
        ({3}, "gap"),
        ({2, 3}, "gap"),
        ({5}, "gap"),
        ({1, 2, 3, 4, 5}, "gap"),
        ({6}, "timeout"),
    ],
)
async def test_a_page_is_never_silently_short(
    connection: Connection,
    tenant: str,
    monkeypatch: pytest.MonkeyPatch,
    lost: set[int],
    reason: str,
) -> None:
    await ensure(connection, tenant)
    opened = connection.open_inbox
    lossy: list[Lossy] = []

    def open_lossy(handler: Handler) -> str:
        lossy.append(Lossy(handler, frozenset()))
        return opened(lossy[0])

    monkeypatch.setattr(connection, "open_inbox", open_lossy)
    journal = JetStreamJournal(connection, answer_seconds=0.3)
    subject = f"ctx.log.{tenant}.run.run"
    for number in range(5):
        await journal.append(subject, b"x", expected=number, message_id=str(number), command=str(number))
    lossy[0].lost, lossy[0].count = frozenset(lost), 0
    outcome = await journal.read(subject, after=0)
    assert isinstance(outcome, Unanswered)
    assert outcome.reason == reason
    lossy[0].lost = frozenset()
    whole = await journal.read(subject, after=0)
    assert isinstance(whole, Page)
    assert len(whole.records) == 5


async def test_commits_are_republished_live(
    journal: JetStreamJournal, connection: Connection, tenant: str, eventually: Eventually
) -> None:
    seen: list[tuple[str, str, bytes]] = []
    await connection.subscribe(
        f"ctx.live.{tenant}.>",
        lambda subject, _r, headers, data: seen.append((subject, headers["Nats-Sequence"], data)),
    )
    await journal.append(f"ctx.log.{tenant}.run.run", b"commit", expected=0, message_id="m", command="c")
    await eventually(lambda: bool(seen))
    assert seen == [(f"ctx.live.{tenant}.run.run", "1", b"commit")]


async def test_many_subjects_are_listed_in_pages(journal: JetStreamJournal, tenant: str) -> None:
    names = tuple(sorted(f"ctx.blob.{tenant}.run.{number}" for number in range(1500)))
    stored = [journal.put(name, b"", headers={}) for name in names]
    assert all([await one is True for one in stored])
    assert await journal.subjects(f"ctx.blob.{tenant}.run.>") == names


async def test_streams_are_made_once(connection: Connection, tenant: str) -> None:
    made = await asyncio.gather(*(ensure(connection, tenant, durability="fsync") for _ in range(4)))
    assert {one.durability for one in made} == {"fsync"}
    assert made[0].log == name_stream("log", tenant) == find_stream(f"ctx.log.{tenant}.r.run")
    # More is allowed: a limit that the operator set is his.
    config = msgspec.structs.replace(configure("memory", tenant, 1), max_bytes=10_000_000)
    await change(connection, config)
    await ensure(connection, tenant)


async def test_a_stream_that_would_lose_messages_is_refused(connection: Connection, tenant: str) -> None:
    await ensure(connection, tenant)
    await change(connection, msgspec.structs.replace(configure("log", tenant, 1), discard="old"))
    with pytest.raises(StreamError, match="discard = 'old'"):
        await ensure(connection, tenant)


async def test_a_server_without_jetstream_is_an_error_with_the_fix(tmp_path: Path) -> None:
    binary = await anyio.to_thread.run_sync(find_server)
    command = [str(binary.path), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(tmp_path)]
    process = await anyio.open_process(command, stdout=None, stderr=None)
    try:
        ports = anyio.Path(tmp_path / f"nats-server_{process.pid}.ports")
        with anyio.fail_after(10):
            for _ in range(500):
                await anyio.sleep(0.02)
                if await ports.exists() and (content := await ports.read_bytes()):
                    break
            else:
                pytest.fail("the server did not start")
        async with connect(msgspec.json.decode(content)["nats"][0]) as connection:
            with pytest.raises(StreamError, match="start it with JetStream"):
                await ensure(connection, "t")
    finally:
        process.terminate()
        await process.wait()


async def change(connection: Connection, config: StreamConfig) -> None:
    """Change the settings of a stream."""
    reply = await connection.request(f"$JS.API.STREAM.UPDATE.{config.name}", msgspec.json.encode(config), 5)
    assert b'"error"' not in reply.data


def test_a_subject_of_no_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="not a subject"):
        find_stream("ctx.query.t.docs")


@pytest.mark.broker
async def test_headings_of_a_stream_that_is_not_there_are_refused(connection: Connection, tenant: str) -> None:
    journal = JetStreamJournal(connection)
    assert await journal.headings(f"ctx.blob.{tenant}.>", after=0) == Unanswered("refused")
    journal.close()


@pytest.mark.broker
async def test_headings_leave_no_consumer_behind(connection: Connection, tenant: str) -> None:
    await ensure(connection, tenant)
    journal = JetStreamJournal(connection)
    await journal.put(f"ctx.blob.{tenant}.run.1", b"x", headers={})
    for _ in range(3):
        await journal.headings(f"ctx.blob.{tenant}.>", after=0)
    await connection.flush()
    with anyio.fail_after(10):  # the server takes a moment to end them
        while True:
            answer = await connection.request(f"$JS.API.CONSUMER.NAMES.CTX_BLOB_{tenant}", b"", 5.0)
            if msgspec.json.decode(answer.data)["consumers"] == []:
                break
            await anyio.sleep(0.01)
    journal.close()


@pytest.mark.broker
async def test_headings_over_a_closed_connection_are_unanswered(broker: Server, tenant: str) -> None:
    async with connect(broker.url, token=broker.token, tenant=tenant) as made:
        journal = JetStreamJournal(made)
    assert await journal.headings(f"ctx.blob.{tenant}.>", after=0) == Unanswered("disconnected")

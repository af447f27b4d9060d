"""The hazards of the NATS client, each against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import nats.errors
import pytest

from contextbus.runtime.clock import format_moment
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.connection_errors import (
    DisconnectedError,
    InvalidMessageError,
    NoRespondersError,
    OverloadedError,
    PayloadTooLargeError,
)
from contextbus.runtime.discovery import Endpoint, Service
from contextbus.runtime.embedded import Server, find_server, serve
from contextbus.runtime.nats_client import Client

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

pytestmark = pytest.mark.broker


class Received:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []

    def __call__(self, _subject: str, _reply: str, headers: Mapping[str, str], data: bytes) -> None:
        """Keep a message."""
        self.data.append(data)
        self.headers.append(headers)


async def echo(connection: Connection, subject: str, queue: str = "") -> None:
    """Answer every question on a subject with itself."""

    def answer(_subject: str, reply: str, _headers: Mapping[str, str], data: bytes) -> None:
        connection.send(reply, data)

    await connection.subscribe(subject, answer, queue)


def client_of(connection: Connection) -> Client:
    """Look at the client that is used now."""
    assert connection.client is not None
    return connection.client


@asynccontextmanager
async def second(broker: Server, tenant: str) -> AsyncGenerator[Connection]:
    """Open another connection to the same server."""
    async with connect(broker.url, token=broker.token, tenant=tenant, name="second") as made:
        yield made


async def test_a_request_is_answered(connection: Connection, tenant: str) -> None:
    await echo(connection, f"ask.{tenant}")
    reply = await connection.request(f"ask.{tenant}", b"hello", 2)
    assert reply.data == b"hello"


async def test_headers_arrive(connection: Connection, tenant: str, eventually: Eventually) -> None:
    got = Received()
    await connection.subscribe(f"s.{tenant}", got)
    await connection.publish(f"s.{tenant}", b"x", headers={"Ctx-Command": "größer"})
    await eventually(lambda: bool(got.data))
    assert got.headers == [{"Ctx-Command": "größer"}]


async def test_reply_addresses_are_the_tenants_own(connection: Connection, tenant: str) -> None:
    addresses: list[str] = []
    await connection.subscribe(f"ask.{tenant}", lambda _s, reply, _h, _d: addresses.append(reply))
    with pytest.raises(TimeoutError):
        await connection.request(f"ask.{tenant}", b"", 0.05)
    assert addresses[0].startswith(f"ctx.inbox.{tenant}.{connection.client_id}.")
    assert connection.open_inbox(Received()).startswith(connection.inbox)


async def test_nobody_there_is_known_at_once(connection: Connection, tenant: str) -> None:
    with pytest.raises(NoRespondersError):
        await connection.request(f"nobody.{tenant}", b"", 5)


async def test_an_inbox_sees_that_nobody_is_there(connection: Connection, tenant: str, eventually: Eventually) -> None:
    got = Received()
    inbox = connection.open_inbox(got)
    connection.send(f"nobody.{tenant}", b"", f"{inbox}.1")
    await eventually(lambda: bool(got.headers))
    assert got.headers[0]["Status"] == "503"
    connection.close_inbox(inbox)
    connection.send(f"nobody.{tenant}", b"", f"{inbox}.2")
    await connection.flush()
    assert len(got.headers) == 1


async def test_a_queue_group_shares_the_work(
    broker: Server, connection: Connection, tenant: str, eventually: Eventually
) -> None:
    ours, theirs = Received(), Received()
    async with second(broker, tenant) as other:
        await connection.subscribe(f"work.{tenant}", ours, "workers")
        await other.subscribe(f"work.{tenant}", theirs, "workers")
        await other.flush()
        for number in range(100):
            connection.send(f"work.{tenant}", b"%d" % number)
        await eventually(lambda: len(ours.data) + len(theirs.data) == 100)
        assert ours.data
        assert theirs.data


async def test_a_handler_that_raises_does_not_end_the_read_loop(
    connection: Connection, tenant: str, eventually: Eventually
) -> None:
    got = Received()

    def fail(subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> None:
        got(subject, reply, headers, data)
        raise RuntimeError("a fault of the handler")

    await connection.subscribe(f"s.{tenant}", fail)
    before = client_of(connection)
    await connection.publish(f"s.{tenant}", b"1")
    await connection.publish(f"s.{tenant}", b"2")
    await eventually(lambda: got.data == [b"1", b"2"])
    assert client_of(connection) is before


async def test_a_callback_that_raises_does_not_end_the_watch(
    connection: Connection, tenant: str, eventually: Eventually
) -> None:
    calls: list[str] = []

    def fail() -> None:
        calls.append("called")
        raise RuntimeError("a fault of the callback")

    connection.on_disconnect(fail)
    connection.on_reconnect(fail)
    await echo(connection, f"ask.{tenant}")
    for times in (2, 4):
        client_of(connection).abort()
        await eventually(lambda: len(calls) == times and connection.connected)  # noqa: B023 - awaited in the loop
        assert (await connection.request(f"ask.{tenant}", b"x", 2)).data == b"x"


async def test_a_dead_read_loop_is_noticed(connection: Connection, tenant: str, eventually: Eventually) -> None:
    await echo(connection, f"ask.{tenant}")
    deaf = client_of(connection)
    for task in asyncio.all_tasks():
        if "Client._read_loop" in repr(task.get_coro()):
            task.cancel()
    await eventually(lambda: connection.connected and client_of(connection) is not deaf)
    assert (await connection.request(f"ask.{tenant}", b"x", 2)).data == b"x"


async def test_an_error_of_the_server_closes_a_client_and_a_new_one_takes_over(
    connection: Connection, tenant: str, eventually: Eventually
) -> None:
    await echo(connection, f"ask.{tenant}")
    closed = client_of(connection)
    # What `send` refuses: nats-py looks at the payload alone, and the server at the headers too.
    await closed.publish("s", b"x" * (closed.max_payload - 10), headers={"Name": "value" * 10})
    await eventually(lambda: connection.connected and client_of(connection) is not closed)
    assert closed.is_closed
    assert (await connection.request(f"ask.{tenant}", b"x", 2)).data == b"x"


async def test_a_message_too_large_with_its_headers_is_refused(
    connection: Connection, tenant: str, eventually: Eventually
) -> None:
    got = Received()
    await connection.subscribe(f"s.{tenant}", got)
    before, headers = client_of(connection), {"Name": "é" * 50}
    room = connection.max_payload - len(b"NATS/1.0\r\nName: \r\n\r\n") - 100
    with pytest.raises(PayloadTooLargeError, match="store it as a blob"):
        connection.send(f"s.{tenant}", b"x" * (room + 1), headers=headers)
    await connection.publish(f"s.{tenant}", b"x" * room, headers=headers)
    await eventually(lambda: len(got.data) == 1)
    assert client_of(connection) is before


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "a" * 4000])
async def test_a_malformed_message_is_refused(connection: Connection, subject: str) -> None:
    with pytest.raises(InvalidMessageError):
        connection.send(subject, b"")
    with pytest.raises(InvalidMessageError):
        connection.send("subject", b"", f"{subject} ")
    with pytest.raises(InvalidMessageError):
        connection.send("subject", b"", headers={"bad name": "x"})
    await connection.flush()


async def test_a_malformed_subscription_is_refused(connection: Connection) -> None:
    with pytest.raises(InvalidMessageError):
        await connection.subscribe("a..b", Received())
    client_of(connection).abort()
    await asyncio.sleep(0.3)
    await connection.flush()


async def test_a_loop_that_only_publishes_can_be_cancelled(connection: Connection, tenant: str) -> None:
    published = 0
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        while True:
            await connection.publish(f"s.{tenant}", b"x" * 100)
            published += 1
    assert scope.cancelled_caught
    assert published < 10


@pytest.fixture
async def fragile(tmp_path: Path) -> AsyncGenerator[tuple[Server, Connection]]:
    """Run a server that may be killed or stopped, and connect."""
    async with (
        serve(tmp_path, durability="interval") as server,
        connect(
            server.url,
            token=server.token,
            locate=server.locate,
            buffer_bytes=200_000,
            watch_seconds=0.7,
        ) as made,
    ):
        yield server, made


async def test_a_frozen_server_blocks_nobody_and_is_mended(
    fragile: tuple[Server, Connection], eventually: Eventually
) -> None:
    server, connection = fragile
    await echo(connection, "ask")
    await connection.flush()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with anyio.move_on_after(0.5) as scope:
            while True:
                await connection.publish("s", b"x" * 50_000)
        assert scope.cancelled_caught
        with pytest.raises(OverloadedError):
            connection.send("s", b"x" * 190_000)
        with pytest.raises(DisconnectedError):
            # Two signs of life are missing: the watch gives the client up.
            await connection.request("ask", b"x", 10)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: connection.connected)
    assert (await connection.request("ask", b"x", 2)).data == b"x"


async def test_a_late_sign_of_life_does_not_end_the_read_loop(
    fragile: tuple[Server, Connection],
) -> None:
    server, connection = fragile
    await echo(connection, "ask")
    before = client_of(connection)
    os.kill(server.pid, signal.SIGSTOP)

    async def flush_until_it_is_stopped() -> None:
        for _ in range(50):  # the signal takes a moment
            await connection.flush(0.2)

    with pytest.raises(TimeoutError):
        await flush_until_it_is_stopped()
    with anyio.move_on_after(0.2):
        await connection.flush()
    os.kill(server.pid, signal.SIGCONT)
    await connection.flush()
    assert (await connection.request("ask", b"x", 2)).data == b"x"
    assert client_of(connection) is before


async def test_nothing_is_sent_while_disconnected(fragile: tuple[Server, Connection], eventually: Eventually) -> None:
    server, connection = fragile
    got, changes = Received(), list[str]()
    connection.on_disconnect(lambda: changes.append("lost"))
    connection.on_reconnect(lambda: changes.append("back"))
    await connection.subscribe("s", got)
    await connection.subscribe("silent", Received())
    waiting = asyncio.ensure_future(connection.request("silent", b"", 30))
    await connection.flush()
    os.kill(server.pid, signal.SIGKILL)
    await eventually(lambda: not connection.connected)
    with pytest.raises(DisconnectedError):
        connection.send("s", b"lost")
    with pytest.raises(DisconnectedError):
        await connection.publish("s", b"lost")
    with pytest.raises(DisconnectedError):
        await connection.request("s", b"lost", 1)
    with pytest.raises(DisconnectedError):
        await connection.flush()
    late = await connection.subscribe("late", got)
    with pytest.raises(DisconnectedError):
        # Its answer may never come, so it does not wait out its time.
        await waiting
    await eventually(lambda: connection.connected and "back" in changes)
    await connection.publish("s", b"kept")
    await connection.publish("late", b"kept too")
    await eventually(lambda: len(got.data) == 2)
    assert got.data == [b"kept", b"kept too"]
    assert changes == ["lost", "back"]
    await connection.unsubscribe(late)


async def test_a_flush_waits_for_what_was_sent_before(broker: Server, connection: Connection, tenant: str) -> None:
    got = Received()
    async with second(broker, tenant) as sender:
        await connection.subscribe(f"s.{tenant}", got)
        await connection.flush()
        for _ in range(70):
            sender.send(f"s.{tenant}", b"x" * 100_000)
        await sender.flush()
        await connection.flush()
        assert len(got.data) == 70


async def test_a_slow_handler_loses_nothing(
    broker: Server, connection: Connection, tenant: str, eventually: Eventually
) -> None:
    got = Received()

    def dawdle(subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> None:
        got(subject, reply, headers, data)
        if len(got.data) % 500 == 0:
            time.sleep(0.05)

    async with second(broker, tenant) as sender:
        await connection.subscribe(f"s.{tenant}", dawdle)
        await connection.flush()
        for number in range(5_000):
            await sender.publish(f"s.{tenant}", b"%d" % number)
        await eventually(lambda: len(got.data) == 5_000)
    assert got.data == [b"%d" % number for number in range(5_000)]


async def test_a_drain_answers_what_was_taken(broker: Server, connection: Connection, tenant: str) -> None:
    """A message taken before the drain is answered, though its work asks others meanwhile."""
    await echo(connection, f"helper.{tenant}")
    async with connect(broker.url, token=broker.token, tenant=tenant) as service:
        work: set[asyncio.Task[None]] = set()

        async def serve_one(reply: str) -> None:
            await asyncio.sleep(0.2)
            helped = await service.request(f"helper.{tenant}", b"help", 2)
            service.send(reply, helped.data)

        def take(_subject: str, reply: str, _headers: Mapping[str, str], _data: bytes) -> None:
            work.add(asyncio.ensure_future(serve_one(reply)))

        async def finish_work() -> None:
            await asyncio.gather(*work)

        await service.subscribe(f"work.{tenant}", take)
        await service.flush()
        asked = [asyncio.ensure_future(connection.request(f"work.{tenant}", b"", 5)) for _ in range(50)]
        await connection.flush()
        await service.drain(finish_work)
        assert not service.connected
        assert [reply.data for reply in await asyncio.gather(*asked)] == [b"help"] * 50
        with pytest.raises(NoRespondersError):
            await connection.request(f"work.{tenant}", b"", 5)


async def test_an_unsubscribe_delivers_what_the_server_gave_out(
    broker: Server, connection: Connection, tenant: str
) -> None:
    async with second(broker, tenant) as sender:
        for left in reversed(range(10)):
            got = Received()
            subscription = await connection.subscribe(f"s.{tenant}", got)
            await connection.flush()
            for _ in range(70):
                sender.send(f"s.{tenant}", b"x" * 100_000)
            await sender.flush()
            was_read = len(got.data) == 70  # then it shows nothing: once more
            await connection.unsubscribe(subscription)
            assert len(got.data) == 70
            await sender.publish(f"s.{tenant}", b"x")
            await sender.flush()
            await connection.flush()
            assert len(got.data) == 70
            if not was_read:
                return
            assert left, "all was read already, each time: send more"


def make_certificate(folder: Path) -> None:
    """Make a certificate that nobody trusts."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
            *("-days", "1", "-subj", "/CN=localhost"),
        ],
        check=True,
        capture_output=True,
    )


@asynccontextmanager
async def run_server(folder: Path, settings: str) -> AsyncGenerator[str]:
    """Run a nats-server with settings of our own."""
    config = folder / "test.conf"
    await anyio.Path(config).write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n{settings}\n', encoding="utf-8"
    )
    binary = await anyio.to_thread.run_sync(find_server)
    process = await anyio.open_process([binary.path, "-c", config], stdout=None, stderr=None)
    try:
        url = ""
        for _ in range(500):
            await anyio.sleep(0.01)
            ports = anyio.Path(folder / f"nats-server_{process.pid}.ports")
            if await ports.exists() and (content := await ports.read_bytes()):
                url = str(msgspec.json.decode(content)["nats"][0])
                break
        yield url
    finally:
        process.terminate()
        await process.wait()


async def test_a_certificate_that_is_not_trusted_is_an_error_in_time(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(make_certificate, tmp_path)
    settings = f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}'
    async with run_server(tmp_path, settings) as url:
        with pytest.raises(DisconnectedError, match="CERTIFICATE_VERIFY_FAILED"):
            async with connect(url, tls=ssl.create_default_context(), timeout=1):
                pass
        trusting = await anyio.to_thread.run_sync(lambda: ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        trusting.check_hostname = False
        async with connect(url, tls=trusting) as connection:
            await connection.flush()


async def test_a_forbidden_subject_is_no_end_of_the_connection(tmp_path: Path) -> None:
    users = (
        "authorization { users: [ { user: a, password: b, permissions: {"
        ' publish: ["ask", "ctx.inbox.>"], subscribe: ["ask", "ctx.inbox.>"] } } ] }'
    )
    async with (
        run_server(tmp_path, users) as url,
        connect(url.replace("nats://", "nats://a:b@")) as connection,
    ):
        before = client_of(connection)
        await echo(connection, "ask")
        await connection.publish("forbidden", b"")
        await connection.subscribe("forbidden", Received())
        await connection.flush()
        assert (await connection.request("ask", b"x", 2)).data == b"x"
        assert client_of(connection) is before
        assert isinstance(before.failure, nats.errors.Error)


async def test_no_server_is_an_error_that_names_it() -> None:
    with pytest.raises(DisconnectedError, match=r"nats://127\.0\.0\.1:9"):
        async with connect("nats://127.0.0.1:9", timeout=0.3):
            pass


async def test_a_server_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    async with serve(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        async with connect(server.url, token=server.token, timeout=30.0) as connection:  # a busy machine starts it late
            await connection.flush()


async def test_a_closed_connection_says_so(broker: Server) -> None:
    async with connect(broker.url, token=broker.token) as connection:
        pass
    with pytest.raises(DisconnectedError, match="closed"):
        connection.send("s", b"")
    await connection.close()


async def test_discovery_shows_a_service(broker: Server, connection: Connection) -> None:
    endpoint = Endpoint(name="query", subject="ctx.v1.query.t.docs", queue_group="docs")
    service = Service("docs-worker", "1.2.3", description="documents", endpoints=(endpoint,))
    await service.register(connection)
    endpoint.record(1500)
    endpoint.record(2500, "busy")
    async with second(broker, "other") as asking:
        answers = {
            verb: msgspec.json.decode((await asking.request(subject, b"", 2)).data)
            for verb, subject in (
                ("PING", "$SRV.PING"),
                ("INFO", "$SRV.INFO.docs-worker"),
                ("STATS", f"$SRV.STATS.docs-worker.{service.id}"),
            )
        }
        identity: dict[str, object] = {
            "name": "docs-worker",
            "id": service.id,
            "version": "1.2.3",
            "metadata": {},
        }
        assert answers["PING"] == {**identity, "type": "io.nats.micro.v1.ping_response"}
        assert answers["INFO"]["endpoints"][0]["subject"] == "ctx.v1.query.t.docs"
        stats = answers["STATS"]["endpoints"][0]
        assert (stats["num_requests"], stats["num_errors"]) == (2, 1)
        assert (stats["average_processing_time"], stats["last_error"]) == (2000, "busy")
        # It is there again after the client was replaced.
        client_of(connection).abort()
        await asyncio.sleep(0.3)
        await asking.request("$SRV.PING.docs-worker", b"", 2)
        await service.withdraw(connection)
        with pytest.raises(NoRespondersError):
            await asking.request("$SRV.PING.docs-worker", b"", 2)


def test_a_moment_is_written_in_utc() -> None:
    assert format_moment(1_700_000_000.25) == "2023-11-14T22:13:20.250000Z"

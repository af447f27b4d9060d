"""The cluster in compose/: its files are valid, and its users reach their own tenant and nothing else."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats import micro
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from contextbus.runtime.streams import name_stream
from contextbus_protocol import subjects

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
SECRETS = {
    "CTX_ROUTE": "s-route",
    "CTX_DEFAULT_ACTORS": "s-default-actors",
    "CTX_DEFAULT_CLIENT": "s-default-client",
    "CTX_ACME_ACTORS": "s-acme-actors",
    "CTX_ACME_CLIENT": "s-acme-client",
}
ANSWER_SECONDS = 0.3


def nats_server() -> str:
    path = shutil.which("nats-server")
    if path is None:
        pytest.skip("nats-server is not on PATH")
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real server with the accounts of the cluster; gives host and port."""
    folder = tmp_path_factory.mktemp("nats")
    shutil.copy(COMPOSE / "tenants.conf", folder)
    (folder / "one.conf").write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\nlog_file: "{folder}/log"\n'
        f'jetstream {{ store_dir: "{folder}/js" }}\ninclude "tenants.conf"\n',
        encoding="utf-8",
    )
    process = subprocess.Popen([nats_server(), "--config", str(folder / "one.conf")], env={**os.environ, **SECRETS})
    ports = folder / f"nats-server_{process.pid}.ports"
    try:
        deadline = time.monotonic() + 10
        while not (ports.exists() and ports.stat().st_size):
            assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        yield json.loads(ports.read_text(encoding="utf-8"))["nats"][0].removeprefix("nats://")
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def connect(server: str, user: str, refusals: list[str] | None = None) -> AsyncGenerator[Client]:
    """A connection of one of the users; what the server refuses is added to ``refusals``."""
    heard = refusals if refusals is not None else []

    async def hear(error: Exception) -> None:
        heard.append(str(error).lower())

    tenant = user.split("-", maxsplit=1)[0]
    secret = SECRETS[f"CTX_{user.upper().replace('-', '_')}"]
    connection = Client()
    await connection.connect(
        f"nats://{user}:{secret}@{server}",
        inbox_prefix=subjects.inbox(tenant, "test").encode(),
        allow_reconnect=False,
        error_cb=hear,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def settle(connection: Client) -> None:
    """Wait until the server has judged all that was sent."""
    for _ in range(2):  # the first ping of nats-py overtakes what is still in its buffer
        await connection.flush()


async def refused(connection: Client, subject: str, refusals: list[str]) -> bool:
    """Publish, and say whether the server refused it."""
    refusals.clear()
    await connection.publish(subject, b"{}")
    await settle(connection)
    return any(f'publish to "{subject.lower()}"' in refusal for refusal in refusals)


async def subscribe(connection: Client, subject: str) -> Subscription:
    """Subscribe, and wait until the server has taken or refused it."""
    untyped: Any = connection  # nats-py leaves a type parameter of subscribe open
    subscription: Subscription = await untyped.subscribe(subject)
    await settle(connection)
    return subscription


async def create_stream(connection: Client, name: str, subject: str) -> None:
    """Create a stream over one filter, or find it as it is."""
    untyped: Any = JetStreamContext(connection)  # nats-py leaves the keywords of add_stream open
    await untyped.add_stream(StreamConfig(name=name, subjects=[subject]))


async def create_log(connection: Client, tenant: str) -> None:
    """Create the log stream of a tenant, or find it as it is."""
    await create_stream(connection, name_stream("log", tenant), subjects.log_of_tenant(tenant))


def test_the_server_accepts_the_configuration() -> None:
    check = subprocess.run(
        [nats_server(), "-t", "--config", str(COMPOSE / "nats.conf"), "--name", "nats-1"],
        env={**os.environ, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("missing", SECRETS)
def test_the_server_does_not_start_without_a_secret(missing: str) -> None:
    env = {key: value for key, value in {**os.environ, **SECRETS}.items() if key != missing}
    check = subprocess.run(
        [nats_server(), "-t", "--config", str(COMPOSE / "nats.conf"), "--name", "nats-1"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode != 0
    assert missing in check.stderr


def test_compose_refuses_empty_secrets_and_publishes_loopback_ports_only() -> None:
    text = (COMPOSE / "compose.yml").read_text(encoding="utf-8")
    for secret in SECRETS:
        assert f"{secret}: ${{{secret}:-}}" in text
        assert f"$${{{secret}:?" in text
    published = [line for line in text.splitlines() if line.strip().startswith("ports:")]
    assert len(published) == 3
    assert all('["127.0.0.1:' in line for line in published)


def test_docker_accepts_the_compose_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker with its compose plugin is not on this machine")
    config = subprocess.run(
        [docker, "compose", "--file", str(COMPOSE / "compose.yml"), "config", "--format", "json"],
        env={**os.environ, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert config.returncode == 0, config.stderr
    services = json.loads(config.stdout)["services"]
    for actor in ("selection", "working-memory", "placement", "compaction"):
        assert services[actor]["deploy"]["replicas"] == 2
        assert services[actor]["command"][:2] == ["actor", actor]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert "test" in service["healthcheck"], name


@pytest.mark.broker
async def test_actors_write_and_read_the_log_of_their_tenant(server: str) -> None:
    refusals: list[str] = []
    async with connect(server, "default-actors", refusals) as actors:
        await create_log(actors, "default")
        stored = await JetStreamContext(actors).publish(subjects.log("default", "run-1", "run"), b"commit")
        message = await JetStreamContext(actors).get_msg(name_stream("log", "default"), stored.seq)
        assert message.data == b"commit"
        for subject in (
            subjects.query("default", "docs"),
            subjects.command("placement", "default"),
            subjects.blob("default", "run-1", "0" * 64),
            subjects.memory("default", "memory", "record-1"),
            subjects.inbox("default", "client-1") + ".1",
        ):
            assert not await refused(actors, subject, refusals), subject


@pytest.mark.broker
@pytest.mark.parametrize("user", ["default-actors", "default-client"])
async def test_no_user_publishes_on_subjects_of_another_tenant(server: str, user: str) -> None:
    refusals: list[str] = []
    async with connect(server, user, refusals) as connection:
        for subject in (
            subjects.log("acme", "run-1", "run"),
            subjects.blob("acme", "run-1", "0" * 64),
            subjects.memory("acme", "memory", "record-1"),
            subjects.command("selection", "acme"),
            subjects.query("acme", "default"),
            subjects.inbox("acme", "client-1") + ".1",
        ):
            assert await refused(connection, subject, refusals), subject


@pytest.mark.broker
async def test_a_tenant_does_not_see_the_streams_of_another(server: str) -> None:
    async with connect(server, "acme-actors") as acme, connect(server, "default-actors") as default:
        await create_log(acme, "acme")
        await JetStreamContext(acme).publish(subjects.log("acme", "run-1", "run"), b"of acme")
        with pytest.raises(NotFoundError):
            await JetStreamContext(default).stream_info(name_stream("log", "acme"))
        # a stream of one's own over the neighbour's subjects stays empty: the account is the boundary
        await create_stream(default, "CTX_BLOB_default", subjects.log_of_tenant("acme"))
        await JetStreamContext(acme).publish(subjects.log("acme", "run-1", "run"), b"of acme")
        info = await JetStreamContext(default).stream_info("CTX_BLOB_default")
        assert info.state.messages == 0
        await JetStreamContext(default).delete_stream("CTX_BLOB_default")


@pytest.mark.broker
async def test_a_client_commands_and_reads_but_cannot_write_or_erase_the_log(server: str) -> None:
    refusals: list[str] = []
    async with connect(server, "default-actors") as actors:
        await create_log(actors, "default")
        stored = await JetStreamContext(actors).publish(subjects.log("default", "run-2", "run"), b"commit")
        async with connect(server, "default-client", refusals) as client:
            stream = name_stream("log", "default")
            assert (await JetStreamContext(client).get_msg(stream, stored.seq)).data == b"commit"
            assert not await refused(client, subjects.command("selection", "default"), refusals)
            assert not await refused(client, subjects.query("default", "docs"), refusals)
            for subject in (
                subjects.log("default", "run-2", "run"),
                subjects.erasures("default"),
                f"$JS.API.STREAM.MSG.DELETE.{stream}",
                f"$JS.API.STREAM.PURGE.{stream}",
                f"$JS.API.STREAM.DELETE.{stream}",
                f"$JS.API.CONSUMER.CREATE.{stream}",
                subjects.inbox("default", "another") + ".1",
            ):
                assert await refused(client, subject, refusals), subject


@pytest.mark.broker
async def test_a_client_is_answered_in_its_own_inbox_and_hears_no_commands(server: str) -> None:
    refusals: list[str] = []
    async with connect(server, "default-actors") as actors, connect(server, "default-client", refusals) as client:
        command = subjects.command("selection", "default")
        with pytest.raises(NoRespondersError):
            await client.request(command, b"{}", timeout=ANSWER_SECONDS)
        await subscribe(client, command)
        assert any("subscription" in refusal for refusal in refusals)
        served = await subscribe(actors, command)
        reply = subjects.inbox("default", "test") + ".answer"
        answers = await subscribe(client, reply)
        await client.publish(command, b"{}", reply=reply)
        asked = await served.next_msg(timeout=2)
        await actors.publish(asked.reply, b"answer")
        assert (await answers.next_msg(timeout=2)).data == b"answer"


@pytest.mark.broker
@pytest.mark.parametrize("secret", ["guess", "", SECRETS["CTX_ACME_ACTORS"]])
def test_a_wrong_password_is_refused(server: str, secret: str) -> None:
    # over a bare socket: a connect of nats-py that fails leaves its own socket to the garbage collector
    host, port = server.split(":")
    login = json.dumps({"verbose": False, "user": "default-actors", "pass": secret})
    with socket.create_connection((host, int(port)), timeout=2) as raw, raw.makefile("rb") as lines:
        assert lines.readline().startswith(b"INFO ")
        raw.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
        assert lines.readline() == b"-ERR 'Authorization Violation'\r\n"


async def check_health(server: str, service: str) -> tuple[int, str]:
    """Run the health check of the image; gives its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(COMPOSE / "healthcheck.py"),
        service,
        env={**os.environ, "CTX_NATS": f"nats://default-actors:{SECRETS['CTX_DEFAULT_ACTORS']}@{server}"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.broker
async def test_the_health_check_finds_a_registered_service_and_misses_an_absent_one(server: str) -> None:
    async with connect(server, "default-actors") as actors:
        discovery: Any = micro  # nats-py leaves the keywords of add_service open
        service = await discovery.add_service(actors, name="selection", version="0.1.0")
        await settle(actors)
        assert await check_health(server, "selection") == (0, "")
        code, said = await check_health(server, "placement")
        assert (code, said.strip()) == (1, "placement does not answer: NoRespondersError")
        await service.stop()


async def test_the_health_check_says_so_when_no_server_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, said = await check_health(f"127.0.0.1:{port}", "selection")
    assert code == 1
    assert said.splitlines()[-1].startswith("selection does not answer: ")

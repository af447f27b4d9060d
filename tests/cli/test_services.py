"""``contextbus up``, ``actor`` and ``worker``: real processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.command import EXAMPLES, ROOT, Command, eventually, is_alive
from tests.runtime.summing import Summing, compact

import contextbus
from contextbus.cli.failures import UNREACHABLE, NoServerError
from contextbus.cli.options import Place
from contextbus.cli.serving import ACTORS, find_actors, open_link, serve_actors, wait_until_served
from contextbus.runtime.datafolder import DataFolder
from contextbus.runtime.host import Host
from contextbus_protocol import subjects
from contextbus_protocol.chat import user
from contextbus_protocol.compaction import Summarised, SummaryFailed, SummaryPart

pytestmark = pytest.mark.broker


def is_unlocked(data: Path) -> bool:
    folder = DataFolder(data)
    descriptor = folder.acquire()
    if descriptor is None:
        return False
    folder.release(descriptor)
    return True


def server_pid(data: Path) -> int:
    endpoint = DataFolder(data).read_endpoint()
    assert endpoint is not None
    return endpoint.pid


@pytest.mark.timeout(120)
def test_every_actor_and_worker_as_a_process_of_its_own(command: Command) -> None:
    """They answer a compile of another process, come back when they die, and end with the first one."""
    url_file = command.folder / "up.json"
    with command.running(
        *("up", "--processes", "--docs", EXAMPLES / "runbooks", "--worker", EXAMPLES / "tickets.py"),
        *("--url-file", url_file),
    ) as (process, said):
        assert json.loads(url_file.read_bytes()) == said
        assert said["actors"] == list(ACTORS)
        assert said["sources"] == ["docs", "tickets", "memory", "transcript"]
        assert said["summarisers"] == ["extractive"]
        assert "token" not in json.dumps(said)
        pids: dict[str, int] = said["processes"]
        assert set(pids) == {*ACTORS, "docs", "tickets", "memory", "transcript"}
        server = server_pid(command.data)

        def compile_remotely(run: str) -> Any:
            return command.json(
                *("compile", EXAMPLES / "conversation.json", "--actors", "remote", "--run", run),
                *("--source", "docs", "--source", "tickets:rag", "--memories", EXAMPLES / "memories.jsonl"),
                *("--scope", "user_id=local", "-o", command.folder / f"{run}.json"),
            )

        first = compile_remotely("r1")
        assert not first["warnings"]
        assert {s["source"]: s["status"] for s in first["manifest"]["sources"]} == {
            "memory": "ok",
            "docs": "ok",
            "tickets": "ok",
        }
        assert first["durability"] == "fsync"

        os.kill(pids["placement"], signal.SIGKILL)
        assert eventually(lambda: not is_alive(pids["placement"]))
        anyio.run(wait_for, command.data, ("placement",))
        assert not compile_remotely("r2")["warnings"]
        assert all(v["clean"] for v in command.lines("verify", "--all"))

        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert eventually(lambda: not any(is_alive(pid) for pid in (*pids.values(), server)))
    assert eventually(lambda: is_unlocked(command.data))


async def wait_for(data: Path, names: tuple[str, ...]) -> None:
    place = Place(data=data, nats=None, tenant="default")
    async with open_link(place, "test", start=False) as link:
        assert await wait_until_served(link.connection, names) == ()


@pytest.mark.timeout(120)
def test_children_end_with_a_parent_that_is_killed(command: Command) -> None:
    with command.running("up", "--processes", "--no-memory") as (process, said):
        pids = [*said["processes"].values(), server_pid(command.data)]
        process.kill()
        process.wait(10)
    assert eventually(lambda: not any(map(is_alive, pids)))
    assert eventually(lambda: is_unlocked(command.data))


def test_ctrl_c_ends_a_step_in_the_middle(command: Command) -> None:
    slow, begun = command.folder / "slow.py", command.folder / "begun"
    slow.write_text(
        "import asyncio, pathlib\nfrom contextbus.client import source\n"
        "@source(id='slow', kind='rag')\nasync def slow(query):\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n    await asyncio.sleep(4)\n",
        encoding="utf-8",
    )
    with command.started("compile", EXAMPLES / "conversation.json", "--worker", slow) as process:
        assert eventually(begun.exists)
        server = server_pid(command.data)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert eventually(lambda: not is_alive(server))
    assert is_unlocked(command.data)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_one_process_serves_all_and_leaves_nothing(command: Command, number: int, code: int) -> None:
    with command.running("up", "--worker", EXAMPLES / "tickets.py") as (process, said):
        assert said["processes"] == {}
        assert said["sources"] == ["tickets", "memory", "transcript"]
        assert said["summarisers"] == ["extractive"]
        command("remember", "Rolls back with care.", "--scope", "user_id=local")
        compiled = command.json(
            *("compile", EXAMPLES / "conversation.json", "--actors", "remote", "--source", "tickets:rag"),
            *("-o", command.folder / "p.json"),
        )
        assert not compiled["warnings"]
        server = server_pid(command.data)
        process.send_signal(number)
        assert process.wait(20) == code
    assert eventually(lambda: not is_alive(server))
    assert is_unlocked(command.data)


def test_actors_and_workers_join_a_server_that_runs(command: Command) -> None:
    """Each by a command of its own, as on several machines."""
    with command.running("up", "--no-memory"):
        with (
            command.running("actor", "working-memory") as (_, actor),
            command.running("worker", "--docs", EXAMPLES / "runbooks", "--id", "runbooks") as (_, docs),
            command.running("worker", "--memory") as (_, memory),
        ):
            assert actor["actors"] == ["working-memory"]
            assert docs["sources"] == ["runbooks"]
            assert memory["sources"] == ["memory"]
            compiled = command.json(
                *("compile", EXAMPLES / "conversation.json", "--actors", "remote", "--source", "runbooks:rag"),
                *("-o", command.folder / "p.json"),
            )
        assert not compiled["warnings"]
        assert compiled["tokens"]["rag"] > 0
        streams = {c["name"]: c["status"] for c in command.json("doctor")["checks"]}
        assert streams["stream CTX_LOG_default"] == streams["server"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("actor", "selection"), 3, "contextbus up"),
        (("worker", EXAMPLES / "tickets.py"), 3, "contextbus up"),
        (("actor", "king"), 2, "selection"),
        (("worker",), 2, "--docs"),
        (("worker", "nowhere.py"), 2, "nowhere.py"),
        (("worker", "--docs", "nowhere"), 2, "nowhere"),
        (("worker", "--memory", "--docs", "x", "--id", "y"), 2, "--id"),
        (("up", "--docs", "nowhere"), 2, "nowhere"),
        (("up", "--worker", "nowhere.py"), 2, "nowhere.py"),
        (("up", "--worker", EXAMPLES / "tickets.py", "--worker", EXAMPLES / "tickets.py"), 2, "'tickets'"),
    ],
)
def test_what_cannot_be_served_is_said(command: Command, arguments: tuple[object, ...], code: int, words: str) -> None:
    assert words in command(*arguments, code=code).stderr


def test_remote_actors_that_nobody_runs_are_exit_code_3(command: Command) -> None:
    asked = ("compile", EXAMPLES / "conversation.json", "--actors", "remote", "--no-memory")
    assert "no server runs" in command(*asked, code=3).stderr
    with command.running("up", "--no-memory", "--tenant", "acme") as (process, _):
        process.send_signal(signal.SIGSTOP)  # its server runs on; its actors do not answer
        try:
            assert "nobody runs the actor selection" in command(*asked, code=3).stderr
        finally:
            process.send_signal(signal.SIGCONT)


@pytest.mark.timeout(120)
def test_an_actor_that_is_missing_is_named_with_its_command(command: Command) -> None:
    """Only placement does not run."""
    place = Place(data=command.data, nats=None, tenant="default")

    async def look() -> str:
        async with open_link(place, "test", start=True) as link, serve_actors(link, ACTORS[:2]):
            with pytest.raises(NoServerError) as caught:
                await find_actors(place)
            return str(caught.value)

    said = anyio.run(look)
    assert f"actor placement --data {command.data}" in said
    assert f"up --data {command.data}" in said


@pytest.mark.timeout(120)
@pytest.mark.rule("D.W.2")
@pytest.mark.parametrize("debug", [True, False])
def test_a_developer_sees_what_a_source_raised_and_nobody_else_does(
    command: Command, capfd: pytest.CaptureFixture[str], *, debug: bool
) -> None:
    mine = command.folder / "mine.py"
    mine.write_text(
        "from contextbus.client import candidate, source\n"
        "@source(id='raises', kind='rag')\ndef raises(query):\n    raise ValueError('the cause')\n"
        "@source(id='wrong', kind='rag')\ndef wrong(query):\n"
        "    return [candidate('r', 'text', 1.0), candidate('r2', 'text', float('nan'))]\n",
        encoding="utf-8",
    )
    more = ["--debug"] if debug else []
    with command.running("up", "--no-memory"), command.running("worker", mine, *more):
        said = command.json(
            *("compile", EXAMPLES / "conversation.json", "--actors", "remote", "--no-memory"),
            *("--source", "raises:rag", "--source", "wrong:rag", "-o", command.folder / "p.json"),
        )
    assert {(w["source"], w["error"]) for w in said["warnings"]} == {("raises", "error"), ("wrong", "malformed")}
    shown = capfd.readouterr().err
    assert ("ValueError: the cause" in shown) is debug
    assert ("mine.py" in shown) is debug
    assert ("candidate 1: a candidate's score must be a finite number" in shown) is debug


MINE = """
from contextbus.client import candidate, source, summariser

@source(id="notes", kind="rag")
def notes(query):
    return [candidate("r", "a note", 1.0)]

@summariser(id="mine")
def mine(request):
    return f"{len(request.messages)} messages within {request.max_output_tokens} tokens"

@summariser(id="raises")
async def raises(request):
    raise ValueError("the cause")
"""


@pytest.mark.timeout(120)
@pytest.mark.rule("C.X.10", "D.W.4", "D.W.2")
def test_a_file_may_hold_sources_and_summarisers(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    mine = command.folder / "mine.py"
    mine.write_text(MINE, encoding="utf-8")
    place = Place(data=command.data, nats=None, tenant="default")

    async def ask(name: str) -> object:
        async with open_link(place, "test", start=False) as link:
            inbox = subjects.inbox("default", f"asker-{name}")
            rule = Summing("default", f"{inbox}.compaction")
            async with Host("default", f"asker-{name}", link.bus, link.journal, (rule,)) as host:
                address, answer = host.reply_address()
                request = compact("default", name, reply_to=address, messages=(user("The port is 4711."),))
                host.deliver(subjects.command("compaction", "default"), request)
                with anyio.fail_after(20):
                    return await answer

    with command.running("up", "--no-memory") as (_, up):
        assert up["summarisers"] == ["extractive"]
        with command.running("worker", mine, "--debug") as (_, own):
            assert (own["sources"], own["summarisers"]) == (["notes"], ["mine", "raises"])
            said = anyio.run(ask, "mine")
            extract = anyio.run(ask, "extractive")
            failed = anyio.run(ask, "raises")
            anyio.run(wait_for, command.data, ("notes", "mine", "raises", "extractive"))
        assert isinstance(said, Summarised)
        assert said.parts == (SummaryPart("text", "1 messages within 64 tokens"),)
        assert isinstance(extract, Summarised)
        assert "4711" in extract.parts[0].text
        assert isinstance(failed, SummaryFailed)
        assert (failed.code, failed.origin_type) == ("error", "ValueError")
        absent = anyio.run(ask, "mine")
        assert isinstance(absent, SummaryFailed)
        assert absent.code == "absent"
    shown = capfd.readouterr().err
    assert "summariser 'raises' failed" in shown
    assert "ValueError: the cause" in shown


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("x = 1\n", "@summariser"),
        (f"{MINE}\nalso = summariser(id='mine')(lambda request: '')\n", "two summarisers have the id 'mine'"),
    ],
)
def test_a_file_that_cannot_be_served_is_said(command: Command, written: str, words: str) -> None:
    mine = command.folder / "mine.py"
    mine.write_text(written, encoding="utf-8")
    assert words in command("up", "--worker", mine, code=2).stderr


@pytest.mark.broker
@pytest.mark.parametrize("more", [(), ("--tenant", "acme")])
def test_the_line_of_python_that_up_prints_opens_the_bus(command: Command, more: tuple[str, ...]) -> None:
    words = ("up", "--no-memory", "--no-transcript", "--data", str(command.data), *more)
    path = os.pathsep.join(str(ROOT / folder) for folder in ("actors", "protocol"))
    with subprocess.Popen(
        [sys.executable, "-m", "contextbus", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("Python:"))
            opened = eval(line.removeprefix("Python:").strip(), {"contextbus": contextbus})  # ours

            async def list_runs() -> object:
                async with opened as bus:
                    assert bus.tenant == (more[1] if more else "default")
                    return await bus.runs()

            assert anyio.run(list_runs) == ()
        finally:
            process.terminate()


async def test_a_folder_without_a_server_is_nothing_to_attach_to(tmp_path: Path) -> None:
    with pytest.raises(NoServerError):
        async with open_link(Place(data=tmp_path, nats=None, tenant="default"), "test", start=False):
            pass


@pytest.mark.timeout(120)
def test_a_second_up_ends_when_the_process_that_owned_the_server_was_killed(command: Command) -> None:
    with command.running("up", "--no-memory") as (owner, _), command.running("up", "--no-memory") as (second, _):
        owner.kill()
        owner.wait(10)
        assert second.wait(30) == UNREACHABLE

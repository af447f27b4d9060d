"""The examples do what they say, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.providers.scripts import long_operations, operations
from tests.providers.server import serve
from tests.providers.turns import Answer, Overflow, Provider, Refusal

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The environment of an example: the code of this tree, and no keys."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("actors", "protocol"))
    kept = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}
    return {**kept, "PYTHONPATH": path}


def run(example: str, *arguments: str) -> str:
    """What an example prints; it ends well."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.broker
@pytest.mark.rule("D.R.14")
def test_versioned_memory() -> None:
    printed = run("versioned_memory.py")
    sections = dict(re.findall(r"^== (.+?)\n(.*?)(?=^==|\Z)", printed, re.MULTILINE | re.DOTALL))
    first, again, later, forgotten, anew = sections.values()
    assert first.count("memory/m-") == 2
    assert first.count("in, ranked") == 2
    assert first == again
    assert "reused, pass 1" in later
    assert "memory/m-" not in later
    assert not forgotten.strip()
    assert "step 2: redacted, pass 2" in anew
    assert anew.count("memory/m-") == 1
    ends = re.findall(r"the request ends with: (.*)", printed)
    assert len(ends) == 4
    assert all(end.endswith("</working_memory>'}]}") for end in ends)  # the tail ends each request
    assert printed.rstrip().endswith("verify: 3 steps computed again, clean")


@pytest.mark.rule("C.X.9", "P.J.7")
def test_long_task() -> None:
    printed = run("long_task.py")
    facts = dict(re.findall(r"^(\S.*?) +((?:not )?in the request)$", printed, re.MULTILINE))
    kept = ("ledger_2019", "OPS-7311", "04:15 UTC")
    assert {fact: facts[fact] for fact in kept} == dict.fromkeys(kept, "in the request")
    assert facts["02:30 UTC"] == "not in the request"  # what the user said later stands in its place
    ends = re.findall(r"^compacted before step \d+: (\d+) -> (\d+) tokens, for \d+ messages$", printed, re.MULTILINE)
    completed = [(int(before), int(after)) for before, after in ends]
    assert completed
    assert all(after < before for before, after in completed)
    held, sent = re.findall(r"^(\d+) messages in the log, (\d+) in the request$", printed, re.MULTILINE)[0]
    assert int(held) == 80
    assert int(sent) < int(held)
    assert printed.rstrip().endswith("verify: 40 steps computed again, clean")


AGENTS = pytest.mark.parametrize("provider", ["anthropic", "openai"])
STEP = re.compile(r"^step (\d+): ([a-z-]+); ([\d,]+) tokens sent, (\d+) % from cache; (.+)$", re.MULTILINE)


async def start_agent(provider: Provider, *arguments: str) -> asyncio.subprocess.Process:
    """An agent in a process of its own."""
    program = str(ROOT / "examples" / f"agent_{provider}.py")
    return await asyncio.create_subprocess_exec(
        sys.executable, program, *arguments, env=environment(), stdout=PIPE, stderr=PIPE
    )


@AGENTS
@pytest.mark.broker
@pytest.mark.rule("D.I.1", "P.E.6")
def test_an_agent_needs_no_key(provider: Provider) -> None:
    """The local server answers, in strict mode: no request but the scripted ones is refused, or the agent would end."""
    printed = run(f"agent_{provider}.py")
    assert f"no {provider.upper()}_API_KEY: a scripted model answers" in printed
    steps = STEP.findall(printed)
    assert [(step, refresh) for step, refresh, *_ in steps][:2] == [("0", "overflow-retry"), ("2", "reused")]
    assert [outcome for *_, outcome in steps] == [
        "2 calls",
        "2 calls",
        "broken off, no call is made",
        "2 calls",
        "answered",
        "1 calls",
        "answered",
    ]
    assert "step 0: too long for the model; compiled again for less" in printed
    assert re.search(r"^step 1: failed \(\w+\); asked again$", printed, re.MULTILINE)
    assert re.search(r"^    runbooks: rollbacks\.md#\d", printed, re.MULTILINE)
    assert len(re.findall(r"^proposed: shipctl jobs pause billing-invoices", printed, re.MULTILINE)) == 1
    assert printed.rstrip().endswith(f"verify: {len(steps) + 2} steps computed again, clean")


@AGENTS
@pytest.mark.rule("P.E.1", "P.E.5", "P.E.6", "P.E.12", "D.I.1")
async def test_a_long_run_has_no_request_refused(provider: Provider) -> None:
    """Over twenty steps with parallel calls, an overflow, an error, and streams that break off, on a strict server."""
    script = long_operations()
    async with serve(provider, script) as server:
        process = await start_agent(provider, "--base-url", server.url, "--bus", "memory:")
        out, err = await asyncio.wait_for(process.communicate(), 100)
    printed = out.decode()
    assert process.returncode == 0, err.decode()
    assert [exchange.turn for exchange in server.exchanges] == list(script)
    refused = [
        (400 if isinstance(turn, Overflow) else turn.status if isinstance(turn, Refusal) else 200) for turn in script
    ]
    assert server.statuses == refused
    assert [exchange.found for exchange in server.exchanges] == [[]] * len(script)  # L rules are kept, too
    answers = [turn for turn in script if isinstance(turn, Answer)]
    assert len(answers) > 20
    assert len(STEP.findall(printed)) == len(answers)
    assert printed.count("proposed: ") == 1  # of three calls two broke off, and were not made
    for earlier, later in pairwise(server.exchanges):
        if isinstance(earlier.turn, Overflow):
            assert len(later.raw) < len(earlier.raw)
        if isinstance(earlier.turn, Answer) and earlier.turn.cut is not None:
            assert results_of(provider, later.body)[-1].startswith("{}: ")
    assert re.search(r"^verify: \d+ steps computed again, clean$", printed, re.MULTILINE)


def results_of(provider: Provider, body: dict[str, Any]) -> list[str]:
    """The tool results of a request, in order, each as the arguments of its call and its text."""
    calls: dict[str, str] = {}
    found: list[str] = []
    for message in body["messages"]:
        if provider == "openai":
            calls |= {call["id"]: call["function"]["arguments"] for call in message.get("tool_calls", ())}
            if message["role"] == "tool":
                found.append(f"{calls[message['tool_call_id']]}: {message['content']}")
            continue
        for block in message["content"]:
            if block["type"] == "tool_use":
                calls[block["id"]] = str(block["input"])
            if block["type"] == "tool_result":
                found.append(f"{calls[block['tool_use_id']]}: {block['content']}")
    return found


@pytest.mark.rule("D.F.12", "P.E.5")
async def test_thinking_that_is_bound_to_its_prefix_stays_valid() -> None:
    """On such a model the server refuses thinking behind which anything changed; there is no such request."""
    async with serve("anthropic", operations(), binds=True) as server:
        arguments = ("--base-url", server.url, "--bus", "memory:", "--model", "claude-opus-5-5")
        process = await start_agent("anthropic", *arguments)
        _, err = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, err.decode()
    assert [exchange.found for exchange in server.exchanges] == [[]] * len(operations())
    assert b'"signature":"sig-' in server.exchanges[-1].raw


def children_of(pid: int) -> list[str]:
    """The child processes of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def is_alive(pid: str) -> bool:
    """Whether a process still runs."""
    return Path(f"/proc/{pid}/exe").exists()


@AGENTS
@pytest.mark.broker
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="tells child processes from /proc")
async def test_ctrl_c_leaves_nothing_behind(provider: Provider) -> None:
    async with serve(provider, [Answer(text="Too late.", seconds=60)]) as server:
        process = await start_agent(provider, "--base-url", server.url)
        while not server.exchanges:
            assert process.returncode is None
            await asyncio.sleep(0.05)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130, err.decode()
    assert out.decode().endswith("stopped\n")
    assert b"Traceback" not in err
    assert len(children) == 1  # the nats-server
    assert not is_alive(children[0])


@AGENTS
def test_an_agent_outside_the_repository_says_what_to_set(provider: Provider, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("agent_tools.py", f"agent_{provider}.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    program = [sys.executable, str(folder / f"agent_{provider}.py")]
    done = subprocess.run(
        program, env=environment(), capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"Set {provider.upper()}_API_KEY" in done.stderr
    asked = subprocess.run(
        [*program, "--help"], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert "--base-url" in asked.stdout

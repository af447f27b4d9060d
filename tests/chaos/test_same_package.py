"""The same step gives the same package bytes: on every bus, in any order of answers, hash seed and time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from contextbus.runtime import embedded
from tests.chaos.fleet import ACTORS, ROOT, environment, fleet

VARIATIONS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("memory", "0", "0", {}),
    ("memory", "1", "86400000", {"CHAOS_DELAY_NOTES": "0.2", "CHAOS_DELAY_MANUAL": "0.1"}),
    ("local", "2", "-1000000", {"CHAOS_DELAY_TICKETS": "0.2", "CHAOS_DELAY_CHATS": "0.1"}),
    ("local", "3", "0", {}),
)

NO_DELAYS: dict[str, str] = {}


def run_scenario(mode: str, folder: Path, seed: str, clock: str, more: dict[str, str]) -> list[str]:
    """The packages of one run of the scenario in a process of its own."""
    command = [sys.executable, "-m", "tests.chaos.scenario", mode, "--data", str(folder), "--clock", clock]
    done = subprocess.run(
        command,
        env=environment(PYTHONHASHSEED=seed, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    texts: list[str] = json.loads(done.stdout.splitlines()[-1])
    return texts


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the in-memory bus gives."""
    mode, seed, clock, more = VARIATIONS[0]
    return run_scenario(mode, tmp_path_factory.mktemp("first"), seed, clock, more)


@pytest.mark.broker
@pytest.mark.rule("D.A.6", "D.G.25", "D.P.6")
@pytest.mark.parametrize(("mode", "seed", "clock", "more"), VARIATIONS[1:])
def test_same_bytes_on_every_bus(
    expected: list[str], tmp_path: Path, mode: str, seed: str, clock: str, more: dict[str, str]
) -> None:
    assert run_scenario(mode, tmp_path, seed, clock, more) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.broker
async def test_same_bytes_with_every_actor_in_a_process_of_its_own(expected: list[str], tmp_path: Path) -> None:
    async with embedded.serve(tmp_path):
        with fleet(tmp_path) as ships:
            ships.start_actors()
            for number, name in enumerate(("notes", "manual", "chats", "tickets")):
                ships.start_worker(name, (name,), PYTHONHASHSEED=str(number))
            await ships.wait_ready(*ACTORS, "notes", "manual", "chats", "tickets")

            texts = await anyio.to_thread.run_sync(run_scenario, "remote", tmp_path, "7", "5000", NO_DELAYS)
    assert texts == expected

"""``kill -9`` in the middle of 200 steps: what was acknowledged is in the log once, the rest can be asked for again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import contextbus.client as contextbus
from contextbus.runtime import embedded
from tests.chaos.fleet import ACTORS, Fleet, fleet
from tests.chaos.holding import Ledger, check, hold_a_run

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

RUNS = 8
STEPS = 25
SECONDS = 2.0


async def strike(ships: Fleet, server: embedded.Server, victim: str, ledger: Ledger) -> None:
    """Kill the victim twice while the steps run, and start it again."""
    for share in (0.25, 0.6):
        while ledger.steps < RUNS * STEPS * share:
            await anyio.sleep(0.005)
        if victim == "nats-server":
            os.kill(server.pid, signal.SIGKILL)
        else:
            await anyio.to_thread.run_sync(ships.kill, victim)
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(ships.restart, victim)


@pytest.mark.parametrize(
    "victim", ["selection-0", "placement-0", "working-memory-0", "compaction-0", "notes", "nats-server"]
)
async def test_acknowledged_steps_survive_a_kill(tmp_path: Path, victim: str) -> None:
    ledger = Ledger()
    async with embedded.serve(tmp_path) as server:
        with fleet(tmp_path) as ships:
            ships.start_actors()
            ships.start_worker("notes", ("notes",))
            ships.start_worker("manual", ("manual",))
            await ships.wait_ready(*ACTORS, "notes", "manual")
            async with contextbus.open(data=tmp_path, actors="remote") as bus:
                async with anyio.create_task_group() as tasks:
                    for number in range(RUNS):
                        tasks.start_soon(hold_a_run, bus, f"run-{number}", ledger, STEPS, SECONDS)
                    tasks.start_soon(strike, ships, server, victim, ledger)
                await check(bus, ledger, [f"run-{n}" for n in range(RUNS)], STEPS)

"""Many runs side by side over processes, two instances of each actor, and random kills.

``python -m tests.chaos.many_runs --runs 100 --steps 10 --seed 1``
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

import contextbus.client as contextbus
from contextbus.runtime import embedded
from tests.chaos.fleet import ACTORS, Fleet, fleet
from tests.chaos.holding import Ledger, check, hold_a_run

SECONDS = 4.0
"""How long an attempt of a step may take."""


class Outcome(msgspec.Struct, frozen=True):
    """What was done, and how often."""

    runs: int
    steps: int
    kills: int
    asked_again: int
    compactions: int


async def hold_many(folder: Path, *, runs: int, steps: int, kills: int, seed: int) -> Outcome:
    """Hold runs side by side while processes die; whatever is lost or doubled fails an assertion.

    Args:
        folder: the data folder.
        runs: how many runs.
        steps: how many steps each takes.
        kills: how many processes are killed meanwhile, the nats-server among them.
        seed: draws the victims.
    """
    ledger = Ledger()
    names = [f"run-{number}" for number in range(runs)]
    async with embedded.serve(folder) as server:
        with fleet(folder) as ships:
            ships.start_actors(instances=2)
            for worker in ("notes", "manual"):
                ships.start_worker(f"{worker}-0", (worker,))
                ships.start_worker(f"{worker}-1", (worker,))
            await ships.wait_ready(*ACTORS, *ACTORS, "notes", "notes", "manual", "manual")
            async with contextbus.open(data=folder, actors="remote") as bus:
                async with anyio.create_task_group() as tasks:
                    for name in names:
                        tasks.start_soon(hold_a_run, bus, name, ledger, steps, SECONDS)
                    tasks.start_soon(_strike, ships, server, ledger, runs * steps, kills, random.Random(seed))
                await check(bus, ledger, names, steps)
    return Outcome(runs, ledger.steps, kills, ledger.asked_again, ledger.compactions)


async def _strike(
    ships: Fleet, server: embedded.Server, ledger: Ledger, steps: int, kills: int, chance: random.Random
) -> None:
    """Kill at random, spread over the steps; what was killed comes back, the server by its own supervisor."""
    victims = [f"{actor}-{number}" for actor in (*ACTORS, "notes", "manual") for number in range(2)]
    for kill in range(kills):
        while ledger.steps < steps * (kill + 0.5) / kills:
            await anyio.sleep(0.005)
        victim = chance.choice([*victims, "nats-server"])
        if victim == "nats-server":
            os.kill(server.pid, signal.SIGKILL)
            continue
        await anyio.to_thread.run_sync(ships.kill, victim)
        await anyio.sleep(chance.random() * 0.3)
        await anyio.to_thread.run_sync(ships.restart, victim)


def main() -> None:
    """Hold many runs and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.many_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs side by side")
    parser.add_argument("--steps", type=int, default=10, help="steps of each run")
    parser.add_argument("--kills", type=int, default=20, help="processes killed meanwhile")
    parser.add_argument("--seed", type=int, default=1, help="draws the victims")
    given = parser.parse_args()

    async def hold() -> Outcome:
        with tempfile.TemporaryDirectory(prefix="contextbus-chaos-") as folder:
            return await hold_many(Path(folder), runs=given.runs, steps=given.steps, kills=given.kills, seed=given.seed)

    begin = time.perf_counter()
    outcome = anyio.run(hold)
    print(
        f"{outcome.runs} runs, {outcome.steps} steps acknowledged, each in the log once, {outcome.kills} kills, "
        f"asked again {outcome.asked_again} times, compacted {outcome.compactions} times, every run verifies; "
        f"{time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()

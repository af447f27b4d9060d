"""How steps are measured: ours and the yardstick in turn, run by run or batch by batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import contextbus.client as contextbus
from benchmarks.bare import TENANT
from benchmarks.workload import IN_FLIGHT, STEPS_OF_A_RUN, StepKind, begin_run, take_step
from contextbus.runtime import streams
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import Durability, Server, serve

SERIAL_STEPS: Final = 2_000
BATCHES: Final = 8
SETTINGS: Final[tuple[tuple[str, Durability], ...]] = (("always", "fsync"), ("interval", "interval"))

_now = time.perf_counter


class Plan:
    """How much is measured.

    Args:
        rounds: How many rounds.
        quick: Just enough to see that the benchmark works.
    """

    def __init__(self, rounds: int, *, quick: bool) -> None:
        self.rounds = rounds
        self.runs = 2 if quick else SERIAL_STEPS // STEPS_OF_A_RUN
        self.batches = 1 if quick else BATCHES
        self.settings = SETTINGS[:1] if quick else SETTINGS
        self.in_flight = 2 if quick else IN_FLIGHT


@asynccontextmanager
async def serve_streams(folder: Path, durability: Durability) -> AsyncGenerator[Server]:
    """A real nats-server, with the streams of the yardstick."""
    async with serve(folder, durability=durability) as server:
        async with connect(server.url, token=server.token, tenant=TENANT) as connection:
            await streams.ensure(connection, TENANT)
        yield server


async def time_runs(
    plan: Plan, kind: StepKind, name: str, ours: contextbus.ContextBus, bare: Callable[[str], Awaitable[list[float]]]
) -> tuple[list[float], list[float]]:
    """Seconds of each step, ours and bare, run by run in turn."""
    mine: list[float] = []
    theirs: list[float] = []
    for number in range(plan.runs):
        run = await begin_run(ours, f"{name}-{number}", kind)
        for step in range(1, STEPS_OF_A_RUN + 1):
            begin = _now()
            await take_step(run, kind, step)
            mine.append(_now() - begin)
        theirs += await bare(f"{name}-{number}")
    return mine, theirs


async def time_batches(
    plan: Plan, kind: StepKind, name: str, ours: contextbus.ContextBus, bare: Callable[[str], Awaitable[object]]
) -> tuple[float, float]:
    """Seconds that batches of runs in flight take, ours and bare in turn."""
    mine = theirs = 0.0

    async def take_steps(run: contextbus.Run) -> None:
        for step in range(1, STEPS_OF_A_RUN + 1):
            await take_step(run, kind, step)

    for batch in range(plan.batches):
        names = [f"{name}-{batch}-{number}" for number in range(plan.in_flight)]
        runs = [await begin_run(ours, n, kind) for n in names]
        begin = _now()
        await asyncio.gather(*map(take_steps, runs))
        middle = _now()
        await asyncio.gather(*map(bare, names))
        mine, theirs = mine + middle - begin, theirs + _now() - middle
    return mine, theirs

"""Steps in one process: the whole library against bare publishes of what it stores."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import nats

import contextbus.client as contextbus
from benchmarks.bare import TENANT, BareStore
from benchmarks.ratios import Ratio, summarise
from benchmarks.sizes import Stored, read_stored
from benchmarks.workload import IN_FLIGHT, STEP_KINDS, STEPS_OF_A_RUN, StepKind, begin_run, make_sources, take_step
from contextbus.runtime import streams
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import Durability, Server, serve

SERIAL_STEPS: Final = 2_000
BATCHES: Final = 8
GOALS: Final[dict[StepKind, float]] = {"refresh": 2.0, "reused": 1.2}
THROUGHPUT_GOAL: Final = 0.5
SETTINGS: Final[tuple[tuple[str, Durability], ...]] = (("always", "fsync"), ("interval", "interval"))

Clock = Callable[[], float]
_now: Clock = time.perf_counter


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


async def _measure_setting(
    plan: Plan, kind: StepKind, setting: str, ours: contextbus.ContextBus, rules: contextbus.ContextBus, store: BareStore
) -> list[Ratio]:
    steps = await read_stored(kind)
    figures: dict[str, list[float]] = {"p50": [], "throughput": [], "rules p50": [], "rules throughput": []}

    async def bare(run: str) -> list[float]:
        return await _time_bare(store, run, steps)

    async def nothing(run: str) -> list[float]:
        del run
        return []

    for number in range(plan.rounds):
        name = f"{kind}-{number}"
        mine, theirs = await time_runs(plan, kind, f"{name}-serial", ours, bare)
        alone, _ = await time_runs(plan, kind, f"{name}-serial-{setting}", rules, nothing)
        figures["p50"].append(statistics.median(mine) / statistics.median(theirs))
        figures["rules p50"].append(statistics.median(alone) / statistics.median(theirs))
        took, bare_took = await time_batches(plan, kind, f"{name}-flight", ours, bare)
        alone_took, _ = await time_batches(plan, kind, f"{name}-flight-{setting}", rules, nothing)
        figures["throughput"].append(bare_took / took)
        figures["rules throughput"].append(bare_took / alone_took)
    sync = f"sync {setting}"
    beside = "one process, rules alone"
    return [
        summarise(
            figures["p50"], where="one process", what=kind, setting=sync, measure="p50", goal=GOALS[kind]
        ),
        summarise(
            figures["throughput"],
            where="one process",
            what=kind,
            setting=sync,
            measure="throughput",
            goal=THROUGHPUT_GOAL,
            at_least=True,
        ),
        summarise(figures["rules p50"], where=beside, what=kind, setting=sync, measure="p50"),
        summarise(figures["rules throughput"], where=beside, what=kind, setting=sync, measure="throughput"),
    ]


async def _time_bare(store: BareStore, run: str, steps: tuple[Stored, ...]) -> list[float]:
    took: list[float] = []
    for step in steps:
        begin = _now()
        await store.store(run, step.blobs, step.commit)
        took.append(_now() - begin)
    return took


async def measure_one_process(plan: Plan, folder: Path) -> list[Ratio]:
    """The ratios of both kinds of step under both sync settings."""
    ratios: list[Ratio] = []
    for setting, durability in SETTINGS:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serve_streams(folder / setting, durability))
            ours = await stack.enter_async_context(
                contextbus.open(server.url, token=server.token, tenant="ours", sources=make_sources(), memory=False)
            )
            rules = await stack.enter_async_context(
                contextbus.open("memory:", tenant="rules", sources=make_sources(), memory=False)
            )
            client = await nats.connect(server.url, token=server.token)
            stack.push_async_callback(client.close)
            store = BareStore(client)
            for kind in STEP_KINDS:
                ratios += await _measure_setting(plan, kind, setting, ours, rules, store)
    return ratios

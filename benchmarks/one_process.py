"""Steps in one process: the whole library against bare publishes of what it stores."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import contextbus.client as contextbus
from benchmarks.bare import BareStore, connect_bare
from benchmarks.measuring import Plan, serve_streams, time_batches, time_runs
from benchmarks.ratios import Ratio, summarise
from benchmarks.sizes import Stored, read_stored
from benchmarks.workload import STEP_KINDS, StepKind, make_sources

GOALS: Final[dict[StepKind, float]] = {"refresh": 2.0, "reused": 1.2}
THROUGHPUT_GOAL: Final = 0.5


async def _measure_setting(
    plan: Plan,
    kind: StepKind,
    setting: str,
    ours: contextbus.ContextBus,
    rules: contextbus.ContextBus,
    store: BareStore,
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
        summarise(figures["p50"], where="one process", what=kind, setting=sync, measure="p50", goal=GOALS[kind]),
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
        begin = time.perf_counter()
        await store.store(run, step.blobs, step.commit)
        took.append(time.perf_counter() - begin)
    return took


async def measure_one_process(plan: Plan, folder: Path) -> list[Ratio]:
    """The ratios of both kinds of step under both sync settings."""
    ratios: list[Ratio] = []
    for setting, durability in plan.settings:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serve_streams(folder / setting, durability))
            ours = await stack.enter_async_context(
                contextbus.open(server.url, token=server.token, tenant="ours", sources=make_sources(), memory=False)
            )
            rules = await stack.enter_async_context(
                contextbus.open("memory:", tenant="rules", sources=make_sources(), memory=False)
            )
            client = await connect_bare(server.url, server.token)
            stack.push_async_callback(client.close)
            store = BareStore(client)
            for kind in STEP_KINDS:
                ratios += await _measure_setting(plan, kind, setting, ours, rules, store)
    return ratios

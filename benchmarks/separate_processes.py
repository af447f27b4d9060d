"""Steps over separate processes: our actors and sources against bare callbacks with the same hops and bytes."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.msg import Msg

import contextbus.client as contextbus
from benchmarks.actor_process import ActorSettings
from benchmarks.bare import BareClient, connect_bare
from benchmarks.bare_process import INBOX, BareSettings, fill, key_of
from benchmarks.measuring import Plan, serve_streams, time_batches, time_runs
from benchmarks.processes import spawn
from benchmarks.ratios import Ratio, summarise
from benchmarks.sizes import Hops, Stored, read_hops, read_stored
from benchmarks.workload import SOURCES, STEP_KINDS, STEPS_OF_A_RUN, StepKind
from contextbus.runtime import streams
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import Server

P50_GOAL: Final = 1.5
THROUGHPUT_GOAL: Final = 0.6
TENANT: Final = "apart"
ROLES: Final = ("selection", "working-memory", "placement", *(name for name, _ in SOURCES))


class BareCaller:
    """Asks the bare actors for steps.

    Args:
        client: The connection.
        hops: The bytes of each hop.
    """

    def __init__(self, client: BareClient, hops: dict[StepKind, Hops]) -> None:
        self._client = client
        self._hops = hops
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._counter = itertools.count(1)

    async def start(self) -> None:
        """Take answers."""
        await self._client.subscribe(f"{INBOX}.client", cb=self._take)

    async def _take(self, message: Msg) -> None:
        self._waiting.pop(key_of(message)).set_result(None)

    async def take_steps(self, kind: StepKind, run: str) -> list[float]:
        """Take the steps of a run; the seconds of each."""
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for _ in range(STEPS_OF_A_RUN):
            key = f"{kind}.{run}.{next(self._counter)}"
            begin = loop.time()
            answer = self._waiting[key] = loop.create_future()
            await self._client.publish("bare.selection", fill(key, self._hops[kind].compile), reply=f"{INBOX}.client")
            await answer
            took.append(loop.time() - begin)
        return took


async def _measure_setting(
    plan: Plan, kind: StepKind, setting: str, ours: contextbus.ContextBus, caller: BareCaller
) -> list[Ratio]:
    async def bare(run: str) -> list[float]:
        return await caller.take_steps(kind, run)

    latencies: list[float] = []
    throughputs: list[float] = []
    for number in range(plan.rounds):
        name = f"{kind}-{number}"
        mine, theirs = await time_runs(plan, kind, f"{name}-serial", ours, bare)
        latencies.append(statistics.median(mine) / statistics.median(theirs))
        took, bare_took = await time_batches(plan, kind, f"{name}-flight", ours, bare)
        throughputs.append(bare_took / took)
    where, sync = "separate processes", f"sync {setting}"
    return [
        summarise(latencies, where=where, what=kind, setting=sync, measure="p50", goal=P50_GOAL),
        summarise(
            throughputs,
            where=where,
            what=kind,
            setting=sync,
            measure="throughput",
            goal=THROUGHPUT_GOAL,
            at_least=True,
        ),
    ]


def _describe(
    server: Server, hops: dict[StepKind, Hops], stored: dict[StepKind, tuple[Stored, ...]], *, uvloop: bool
) -> tuple[list[bytes], list[bytes]]:
    """What the children are told, ours and bare; a bare step stores what the middle step of a run stores."""
    middle: dict[StepKind, Stored] = {kind: steps[len(steps) // 2] for kind, steps in stored.items()}
    blobs: dict[StepKind, tuple[int, ...]] = {kind: tuple(map(len, step.blobs)) for kind, step in middle.items()}
    commits: dict[StepKind, int] = {kind: len(step.commit) for kind, step in middle.items()}
    ours = [
        ActorSettings(url=server.url, token=server.token, tenant=TENANT, role=role, uvloop=uvloop) for role in ROLES
    ]
    bare = [
        BareSettings(
            url=server.url,
            token=server.token,
            role=role,
            hops=hops,
            blobs=blobs,
            commits=commits,
            uvloop=uvloop,
        )
        for role in ROLES
    ]
    return [msgspec.json.encode(s) for s in ours], [msgspec.json.encode(s) for s in bare]


async def measure_separate_processes(plan: Plan, folder: Path, *, uvloop: bool) -> list[Ratio]:
    """The ratios of both kinds of step under both sync settings."""
    ratios: list[Ratio] = []
    hops: dict[StepKind, Hops] = {kind: await read_hops(kind) for kind in STEP_KINDS}
    stored: dict[StepKind, tuple[Stored, ...]] = {kind: await read_stored(kind) for kind in STEP_KINDS}
    for setting, durability in plan.settings:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serve_streams(folder / setting, durability))
            async with connect(server.url, token=server.token, tenant=TENANT) as connection:
                await streams.ensure(connection, TENANT)
            mine, theirs = _describe(server, hops, stored, uvloop=uvloop)
            await stack.enter_async_context(spawn("benchmarks.actor_process", mine))
            await stack.enter_async_context(spawn("benchmarks.bare_process", theirs))
            ours = await stack.enter_async_context(
                contextbus.open(server.url, token=server.token, tenant=TENANT, actors="remote", memory=False)
            )
            client = await connect_bare(server.url, server.token)
            stack.push_async_callback(client.close)
            caller = BareCaller(client, hops)
            await caller.start()
            for kind in STEP_KINDS:
                ratios += await _measure_setting(plan, kind, setting, ours, caller)
    return ratios

"""Source workers as processes of their own: a new one is asked within a second, a killed one costs nothing."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import contextbus.client as contextbus
from contextbus.runtime import embedded
from contextbus_protocol.package import ContextManifest
from tests.chaos.fleet import ACTORS, Fleet, fleet
from tests.chaos.scenario import MODEL, SOURCES

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

IDS = tuple(s.id for s in SOURCES)


async def one_step(bus: contextbus.ContextBus, name: str, seconds: float = 4.0) -> ContextManifest:
    """Compile one step of a new run over all four sources."""
    run = await bus.run(name, scope=contextbus.Scope(user_id="ada"), sources=SOURCES)
    run.append(contextbus.user(f"What of {name}?"))
    step = await run.before_model_call(model=MODEL, seconds=seconds)
    assert (await bus.verify(name)).is_clean
    return step.manifest


def failed(manifest: ContextManifest) -> dict[str, str | None]:
    """The sources that failed, with why."""
    return {s.source: s.error for s in manifest.sources if s.status.value == "failed"}


async def start_all(ships: Fleet) -> None:
    """Every actor and four workers, each in a process of its own."""
    ships.start_actors()
    for name in IDS:
        ships.start_worker(name, (name,))
    await ships.wait_ready(*ACTORS, *IDS)


async def wait_for(folder: Path, pattern: str, seconds: float = 20.0) -> float:
    """Wait until a file of a pattern is there; gives how long it took."""
    begun = time.monotonic()
    with anyio.fail_after(seconds):
        while not [p async for p in anyio.Path(folder).glob(pattern)]:
            await anyio.sleep(0.01)
    return time.monotonic() - begun


async def test_four_workers_answer_and_a_new_one_is_asked_within_a_second(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    async with embedded.serve(tmp_path / "data"):
        with fleet(tmp_path / "data") as ships:
            await start_all(ships)
            async with contextbus.open(data=tmp_path / "data", actors="remote") as bus:
                manifest = await one_step(bus, "first")
                assert failed(manifest) == {}
                assert {e.source for e in manifest.entries} == set(IDS)

                ships.start_worker("second", ("manual",), CHAOS_SEEN=str(seen))
                await ships.wait_ready("manual", "manual")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(keep_asking, bus)
                    assert await wait_for(seen, "manual.*") < 1.0
                    tasks.cancel_scope.cancel()


async def keep_asking(bus: contextbus.ContextBus) -> None:
    """One step after the other."""
    for number in range(10_000):
        await one_step(bus, f"more-{number}")


async def test_a_worker_killed_with_a_query_costs_neither_step_nor_candidates(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    async with embedded.serve(tmp_path / "data"):
        with fleet(tmp_path / "data") as ships:
            await start_all(ships)
            ships.kill("manual")
            ships.start_worker("hanging", ("manual",), CHAOS_HANG="manual", CHAOS_SEEN=str(seen))
            await ships.wait_ready("manual")
            async with contextbus.open(data=tmp_path / "data", actors="remote") as bus:
                # the only worker of its source takes the query and dies: the step goes on without
                manifest = await step_while_killing(bus, ships, seen, "alone")
                # asked again at half the time: nobody is there, or if it died only then, nothing comes
                assert failed(manifest) in ({"manual": "absent"}, {"manual": "timeout"})
                assert manifest.fallback == "source-failed"
                assert {e.source for e in manifest.entries} == set(IDS) - {"manual"}

                # another of its source lives: it is asked in its place
                for mark in seen.iterdir():
                    mark.unlink()
                ships.restart("hanging")
                await ships.wait_ready("manual")
                ships.start_worker("living", ("manual",), CHAOS_DELAY_MANUAL="0")
                manifest = await until_the_hanging_one_was_asked(bus, ships, seen)
                assert failed(manifest) == {}
                assert "manual" in {e.source for e in manifest.entries}


async def step_while_killing(bus: contextbus.ContextBus, ships: Fleet, seen: Path, name: str) -> ContextManifest:
    """A step during which the hanging worker is killed as soon as it has the query."""

    async def kill() -> None:
        await wait_for(seen, "manual.*")
        await anyio.to_thread.run_sync(ships.kill, "hanging")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        return await one_step(bus, name)
    raise AssertionError


async def until_the_hanging_one_was_asked(bus: contextbus.ContextBus, ships: Fleet, seen: Path) -> ContextManifest:
    """Steps until one was given to the hanging worker first, which is then killed."""
    await ships.wait_ready("manual", "manual")
    for number in range(60):
        manifests: list[ContextManifest] = []

        async def run_step(number: int = number, manifests: list[ContextManifest] = manifests) -> None:
            manifests.append(await one_step(bus, f"shared-{number}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_step)
            while not manifests:
                if [p async for p in anyio.Path(seen).glob("manual.*")]:
                    await anyio.to_thread.run_sync(ships.kill, "hanging")
                    break
                await anyio.sleep(0.005)
        if [p async for p in anyio.Path(seen).glob("manual.*")]:
            return manifests[0]
    raise AssertionError("the hanging worker was never asked")

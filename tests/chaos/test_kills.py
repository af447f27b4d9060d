"""``kill -9`` in the middle of 200 steps: what was acknowledged is in the log once, the rest can be asked for again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest

import contextbus.client as contextbus
from contextbus.runtime import embedded
from contextbus_protocol.errors import ConflictError, ContextBusError
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.values import SourceSpec
from tests.chaos.fleet import ACTORS, Fleet, fleet
from tests.chaos.scenario import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

RUNS = 8
STEPS = 25
SECONDS = 2.0
SOURCES = (SourceSpec("notes", "memory"), SourceSpec("manual", "rag"))


T = TypeVar("T")


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}
        self.asked_again = 0
        self.steps = 0


async def hold_a_run(bus: contextbus.ContextBus, name: str, ledger: Ledger) -> None:
    """One client's steps; each is asked for with the same id until it is acknowledged."""
    run = await bus.run(name, scope=contextbus.Scope(user_id="ada"), sources=SOURCES)
    await again(ledger, lambda: run.working_memory.create(goal="Go on."))
    for number in range(STEPS):
        run.append(contextbus.user(f"Step {number} of {name}?"))
        command = f"{name}-{number}"
        compile_step = partial(
            run.before_model_call, model=MODEL, refresh=number % 3 == 0, seconds=SECONDS, command=command
        )
        step = await again(ledger, compile_step)
        ledger.acknowledged[command] = step.reference
        ledger.steps += 1
        answer = contextbus.assistant(f"Answer {number}.")
        await report(run, ledger, contextbus.Report(status="succeeded", messages=(answer,)))


async def again(ledger: Ledger, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer."""
    for _ in range(20):
        try:
            return await ask()
        except ContextBusError:
            ledger.asked_again += 1
            await anyio.sleep(0.2)
    raise AssertionError("no answer after twenty times")


async def report(run: contextbus.Run, ledger: Ledger, outcome: contextbus.Report) -> None:
    """Report until it is recorded; a report that was recorded without an answer is found in the log."""
    for _ in range(20):
        try:
            await run.after_model_call(outcome, seconds=SECONDS)
        except ConflictError:
            await run.load()
        except ContextBusError as error:
            ledger.asked_again += 1
            if error.code == "stale_step":
                await run.load()
                return
            await anyio.sleep(0.2)
        else:
            return
    raise AssertionError("no report is recorded")


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


@pytest.mark.parametrize("victim", ["selection-0", "placement-0", "working-memory-0", "notes", "nats-server"])
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
                        tasks.start_soon(hold_a_run, bus, f"run-{number}", ledger)
                    tasks.start_soon(strike, ships, server, victim, ledger)
                await check(bus, ledger)


async def check(bus: contextbus.ContextBus, ledger: Ledger) -> None:
    """Every acknowledged step is in the log once, with the package that its client got; every run verifies."""
    assert len(ledger.acknowledged) == RUNS * STEPS
    found: Counter[str] = Counter()
    for number in range(RUNS):
        log = await bus.log(f"run-{number}")
        for logged in log.commits:
            for event in logged.commit.events:
                if isinstance(event, StepCompiled):
                    found[logged.commit.command] += 1
                    assert ledger.acknowledged[logged.commit.command] == event.package
        verdict = await bus.verify(f"run-{number}")
        assert verdict.is_clean, verdict
        assert verdict.steps == STEPS
    assert found == Counter(ledger.acknowledged.keys())

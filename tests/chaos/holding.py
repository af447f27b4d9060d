"""Clients that hold runs while processes are killed, and what must be true of the log afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio

import contextbus.client as contextbus
from contextbus_protocol.errors import ConflictError, ContextBusError
from contextbus_protocol.events import CompactionCompleted, StepCompiled
from contextbus_protocol.values import SourceSpec
from tests.chaos.scenario import MODEL

SOURCES: Final = (SourceSpec("notes", "memory"), SourceSpec("manual", "rag"))
TRIES: Final = 40
COMPACTION: Final = contextbus.Compaction(
    triggers=[contextbus.messages_exceed(4)], target_tokens=20_000, keep_last_messages=2, on_failure="continue"
)
"""Every run compacts its history as soon as it has a few messages, and goes on where that fails."""

T = TypeVar("T")


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}
        self.asked_again = 0
        self.steps = 0
        self.compactions = 0


async def hold_a_run(bus: contextbus.ContextBus, name: str, ledger: Ledger, steps: int, seconds: float) -> None:
    """One client's steps; each is asked for with the same id until it is acknowledged."""
    run = await bus.run(name, scope=contextbus.Scope(user_id="ada"), sources=SOURCES, compaction=COMPACTION)
    await again(ledger, lambda: run.working_memory.create(goal="Go on."))
    for number in range(steps):
        run.append(contextbus.user(f"Step {number} of {name}?"))
        command = f"{name}-{number}"
        compile_step = partial(
            run.before_model_call, model=MODEL, refresh=number % 3 == 0, seconds=seconds, command=command
        )
        step = await again(ledger, compile_step)
        ledger.acknowledged[command] = step.reference
        ledger.steps += 1
        answer = contextbus.assistant(f"Answer {number}: the port is {4000 + number}. " + "It was looked up. " * 30)
        await report(run, ledger, contextbus.Report(status="succeeded", messages=(answer,)), seconds)


async def again(ledger: Ledger, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer."""
    for _ in range(TRIES):
        try:
            return await ask()
        except ContextBusError:
            ledger.asked_again += 1
            await anyio.sleep(0.2)
    raise AssertionError("no answer after forty times")


async def report(run: contextbus.Run, ledger: Ledger, outcome: contextbus.Report, seconds: float) -> None:
    """Report until it is recorded; a report that was recorded without an answer is found in the log."""
    for _ in range(TRIES):
        try:
            await run.after_model_call(outcome, seconds=seconds)
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


async def check(bus: contextbus.ContextBus, ledger: Ledger, runs: Sequence[str], steps: int) -> None:
    """Every acknowledged step is in the log once, with the package that its client got; every run verifies.

    Each run was compacted at least once on the average.
    """
    assert len(ledger.acknowledged) == len(runs) * steps
    found: Counter[str] = Counter()
    for name in runs:
        log = await bus.log(name)
        for logged in log.commits:
            for event in logged.commit.events:
                ledger.compactions += isinstance(event, CompactionCompleted)
                if isinstance(event, StepCompiled):
                    found[logged.commit.command] += 1
                    assert ledger.acknowledged[logged.commit.command] == event.package
        verdict = await bus.verify(name)
        assert verdict.is_clean, verdict
        assert verdict.steps == steps
    assert found == Counter(ledger.acknowledged.keys())
    assert ledger.compactions >= len(runs)

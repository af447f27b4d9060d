"""The whole of a step by length of the history: bus, log and store included, on the embedded server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import contextbus.client as contextbus
from benchmarks.compile_lines import Figures, Line, step_line
from benchmarks.conversations import CONVERSATION_KINDS, ConversationKind, read_dicts, write_dicts
from benchmarks.rules import MODEL
from benchmarks.workload import SCOPE, STEP_KINDS, StepKind, make_sources, source_specs

_STEPS: Final = 2
"""Steps of a round; their histories grow by two messages each."""


class _WholeRun:
    """One run on the bus, with how many messages it has."""

    def __init__(self, run: contextbus.Run, kind: ConversationKind, count: int) -> None:
        self._run = run
        self._kind: ConversationKind = kind
        self._count = count

    async def step(self, how: StepKind) -> float:
        """Seconds of one step: the new message, the package, the payload in pieces; the report follows untimed."""
        message, answer = read_dicts(write_dicts(self._kind, self._count, self._count + 2))
        begin = time.perf_counter()
        self._run.append(message)
        step = await self._run.before_model_call(model=MODEL, refresh=how == "refresh")
        step.payload("anthropic").chunks()
        took = time.perf_counter() - begin
        await self._run.after_model_call(contextbus.Report(status="succeeded", messages=[answer]))
        self._count += 2
        return took


async def _begin_run(bus: contextbus.ContextBus, kind: ConversationKind, length: int, how: StepKind) -> _WholeRun:
    run = await bus.run(f"{kind}-{length}-{how}", scope=SCOPE, sources=source_specs())
    run.append(*read_dicts(write_dicts(kind, 0, length)))
    await run.flush()
    whole = _WholeRun(run, kind, length)
    await whole.step(how)  # the first of a run retrieves and renders the history
    return whole


async def measure_whole_steps(folder: Path, rounds: int, lengths: Sequence[int], figures: Figures) -> list[Line]:
    """The second block: steps that ask four sources, and steps that ask none, length by length within each round.

    Args:
        folder: where the server stores.
        rounds: how many.
        lengths: of the histories, in messages.
        figures: those of the compiles, for the yardstick beside.
    """
    lines: list[Line] = []
    async with contextbus.open(None, data=folder, sources=make_sources(), memory=False) as bus:
        for kind in CONVERSATION_KINDS:
            for how in STEP_KINDS:
                runs = [await _begin_run(bus, kind, length, how) for length in lengths]
                seconds: list[list[float]] = [[] for _ in lengths]
                for _ in range(rounds):
                    for run, took in zip(runs, seconds, strict=True):
                        took.append(sum([await run.step(how) for _ in range(_STEPS)]) / _STEPS)
                lines += [
                    step_line(figures, kind, f"{how} step, whole", length, took)
                    for length, took in zip(lengths, seconds, strict=True)
                ]
    return lines

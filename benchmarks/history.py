"""What a step costs after 100, 1,000 and 10,000 messages: ``python -m benchmarks.history``."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import contextbus.client as contextbus
from benchmarks.loops import loop_factory
from benchmarks.ratios import Ratio, Report, count_cores, show, summarise

LENGTHS: Final = (100, 1_000, 10_000)
GROWTH_GOAL: Final = 1.5
"""How much dearer a step may be than after 100 messages (design: section 10)."""

MODELS: Final = (
    ("plain", contextbus.Model("anthropic", "claude-opus-4-6", 2_000_000, 8_000)),
    ("tails kept", contextbus.Model("anthropic", "claude-opus-5-5", 2_000_000, 8_000)),
)
SCOPE: Final = contextbus.Scope(user_id="ada")
_STEPS_OF_A_ROUND: Final = 20
_TAILS: Final = 500
"""Steps with a tail that stays, before a run of kept tails is measured: one in twenty messages at the most."""


async def begin_run(bus: contextbus.ContextBus, name: str, length: int, model: contextbus.Model) -> contextbus.Run:
    """A run with so many messages, a working memory, and on a model that keeps tails some hundred of those."""
    run = await bus.run(name, scope=SCOPE)
    await run.working_memory.create(goal="Make the nightly build green.", constraints=["Leave the release branch."])
    steps = min(length // 20, _TAILS) if model is MODELS[1][1] else 1
    each = length // steps
    for step in range(steps):
        for index in range(each // 2):
            run.append(contextbus.user(f"Question {step}.{index}: what failed?"))
            run.append(contextbus.assistant(f"Answer {step}.{index}: the build failed at the second stage."))
        await take_step(run, model)
    return run


async def take_step(run: contextbus.Run, model: contextbus.Model) -> None:
    """One more message, its step, the payload in pieces, and the report."""
    run.append(contextbus.user("And what now?"))
    step = await run.before_model_call(model=model)
    step.payload("anthropic").chunks()
    await run.after_model_call(contextbus.Report(status="succeeded", messages=[contextbus.assistant("Look again.")]))


async def measure(url: str | None, folder: Path, where: str, rounds: int, lengths: Sequence[int]) -> list[Ratio]:
    """The ratios of one bus, each length in turn within a round."""
    ratios: list[Ratio] = []
    async with contextbus.open(url, data=folder, memory=False, durability="interval") as bus:
        for what, model in MODELS:
            runs = [await begin_run(bus, f"{what[:4]}-{length}", length, model) for length in lengths]
            figures: list[list[float]] = []
            for _ in range(rounds):
                took: list[float] = []
                for run in runs:
                    begin = time.perf_counter()
                    for _ in range(_STEPS_OF_A_ROUND):
                        await take_step(run, model)
                    took.append(time.perf_counter() - begin)
                figures.append(took)
            ratios += [
                summarise(
                    [took[index] / took[0] for took in figures],
                    where=where,
                    what=f"{length:,} messages, {what}",
                    setting=f"against {lengths[0]:,}",
                    measure="growth",
                    goal=GROWTH_GOAL,
                )
                for index, length in enumerate(lengths)
                if index
            ]
    return ratios


async def _measure_all(rounds: int, lengths: Sequence[int], *, server: bool) -> list[Ratio]:
    with tempfile.TemporaryDirectory(prefix="contextbus-benchmark-") as folder:
        ratios = await measure("memory:", Path(folder), "rules alone", rounds, lengths)
        if server:
            ratios += await measure(None, Path(folder) / "server", "one process", rounds, lengths)
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--quick", action="store_true", help="short histories and one round, to see that it works")
    parser.add_argument("--rules", action="store_true", help="the rules alone, on the bus in memory")
    parser.add_argument("--uvloop", action="store_true", help="on uvloop")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    lengths = (40, 80) if given.quick else LENGTHS
    with asyncio.Runner(loop_factory=loop_factory(uvloop=given.uvloop)) as runner:
        ratios = runner.run(_measure_all(rounds, lengths, server=not given.rules))
    report = Report(
        benchmark="cost of a step by length of the history",
        cores=count_cores(),
        loop="uvloop" if given.uvloop else "asyncio",
        rounds=rounds,
        quick=given.quick,
        ratios=tuple(ratios),
    )
    show(report, as_json=given.json)


if __name__ == "__main__":
    main()

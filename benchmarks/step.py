"""Steps against bare nats-py: ``python -m benchmarks.step``."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loops import loop_factory
from benchmarks.measuring import Plan
from benchmarks.one_process import measure_one_process
from benchmarks.ratios import Ratio, Report, count_cores, show
from benchmarks.separate_processes import measure_separate_processes

WHERE = ("one", "separate", "both")


async def measure(plan: Plan, where: str, *, uvloop: bool) -> list[Ratio]:
    """All ratios that are asked for, on servers of their own in a folder that is removed."""
    ratios: list[Ratio] = []
    with tempfile.TemporaryDirectory(prefix="contextbus-benchmark-") as folder:
        if where != "separate":
            ratios += await measure_one_process(plan, Path(folder) / "one")
        if where != "one":
            ratios += await measure_separate_processes(plan, Path(folder) / "separate", uvloop=uvloop)
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--where", choices=WHERE, default="both", help="in one process, in separate ones, or both")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it works")
    parser.add_argument("--uvloop", action="store_true", help="ours and the yardstick on uvloop")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    plan = Plan(rounds, quick=given.quick)
    with asyncio.Runner(loop_factory=loop_factory(uvloop=given.uvloop)) as runner:
        ratios = runner.run(measure(plan, given.where, uvloop=given.uvloop))
    report = Report(
        benchmark="steps",
        cores=count_cores(),
        loop="uvloop" if given.uvloop else "asyncio",
        rounds=rounds,
        quick=given.quick,
        ratios=tuple(ratios),
    )
    show(report, as_json=given.json)


if __name__ == "__main__":
    main()

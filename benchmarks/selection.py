"""Selection over 100, 1,000 and 10,000 candidates: ``python -m benchmarks.selection``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

import contextbus.client as contextbus
from benchmarks.ratios import Report, count_cores, show, summarise
from benchmarks.workload import make_candidate
from contextbus_protocol.values import SOURCE_KINDS, SourceResult

COUNTS: Final = (100, 1_000, 10_000)
GROWTH_GOAL: Final = 1.5
"""How much dearer each candidate may be than among a tenth as many: sorting alone costs a third more."""

_STEPS_OF_A_ROUND: Final = 20_000


def make_input(count: int) -> contextbus.ContextInput:
    """A step with so many candidates, spread over one source of each kind."""
    share = count // len(SOURCE_KINDS)
    results = tuple(
        SourceResult(kind, kind, candidates=tuple(make_candidate(kind, index * share + n) for n in range(share)))
        for index, kind in enumerate(SOURCE_KINDS)
    )
    return contextbus.ContextInput(
        run_id="run", step=0, input_tokens=192_000, used_tokens=1_000, results=results, query="what failed"
    )


def time_candidates(given: contextbus.ContextInput, count: int, candidates: int) -> float:
    """Seconds that a candidate takes, over enough compiles to look at ``candidates`` of them."""
    times = max(1, candidates // count)
    begin = time.perf_counter()
    for _ in range(times):
        contextbus.compile_context(given)
    return (time.perf_counter() - begin) / times / count


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    inputs = [(count, make_input(count)) for count in COUNTS]
    each = COUNTS[0] if given.quick else _STEPS_OF_A_ROUND
    figures = [[time_candidates(context, count, each) for count, context in inputs] for _ in range(rounds)]
    ratios = tuple(
        summarise(
            [took[index + 1] / took[index] for took in figures],
            where="pure compile",
            what=f"{COUNTS[index + 1]:,} candidates",
            setting=f"against {COUNTS[index]:,}",
            measure="growth",
            goal=GROWTH_GOAL,
        )
        for index in range(len(COUNTS) - 1)
    )
    report = Report(
        benchmark="cost of a candidate",
        cores=count_cores(),
        loop="no event loop",
        rounds=rounds,
        quick=given.quick,
        ratios=ratios,
    )
    show(report, as_json=given.json)


if __name__ == "__main__":
    main()

"""``python -m tests.payloads``: all payloads of all conversations, counted by target and shape, with the time."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.payloads.conversations import read_all
from tests.payloads.runs import check_runs
from tests.payloads.shapes import TARGETS
from tests.payloads.sweep import Tally, sweep_conversation


def describe(tally: Tally, seconds: float) -> list[str]:
    """The counts as lines: in all, then one line for each form and shape."""
    by_target = Counter[str]()
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for (target, form, when, shape), count in sorted(tally.checked.items()):
        by_target[target] += count
        rows.setdefault((form, when, shape), Counter())[target] += count
    total = sum(by_target.values())
    lines = [
        f"{total} payloads in {seconds:.0f} s, each past three layers; {len(tally.faults)} faults",
        ", ".join(f"{target} {by_target[target]}" for target in TARGETS),
        "repairs: " + ", ".join(f"{code} {count}" for code, count in sorted(tally.repairs.items())),
    ]
    for (form, when, shape), counts in rows.items():
        lines.append(f"  {form:18} {when:6} {shape:24} " + " ".join(f"{counts[target]:7}" for target in TARGETS))
    return lines


def main(arguments: Iterable[str]) -> int:
    """Check everything, or a part; 1 if a layer refused a payload."""
    parser = argparse.ArgumentParser(prog="python -m tests.payloads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use")
    parser.add_argument("--conversations", type=int, default=None, help="how many of the conversations")
    parser.add_argument("--every", type=int, default=1, help="check each so many-th cut only")
    parser.add_argument("--runs", type=int, default=20, help="how many conversations are run over the bus as well")
    given = parser.parse_args([*arguments])
    count = len(read_all()) if given.conversations is None else given.conversations
    tally, started = Tally(), time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        asked = [pool.submit(partial(sweep_conversation, every=given.every), number) for number in range(count)]
        asked += [pool.submit(check_runs, number) for number in range(min(given.runs, count))]
        for number, done in enumerate(asked, start=1):
            found = done.result()
            for fault in found.faults:
                print(fault, file=sys.stderr, flush=True)
            tally.add(found)
            if number % 10 == 0:
                print(f"{number} of {len(asked)} parts", file=sys.stderr, flush=True)
    for line in describe(tally, time.perf_counter() - started):
        print(line)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

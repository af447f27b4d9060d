"""Run simulations from the command line: ``python -m tests.simulation --steps 20000 --seed 0``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.run import simulate


def main() -> int:
    """Simulate until enough steps are in logs; a failing seed is printed and reproduces exactly."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="steps in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--only", action="store_true", help="run that one seed and print its error in full")
    parser.add_argument("--compacts", action="store_true", help="runs compact their history")
    options = parser.parse_args()
    compactions: dict[str, int] = {}
    summaries = 0
    steps = seeds = kills = conflicts = 0
    started = time.perf_counter()
    failed: list[int] = []
    seed = options.seed
    while steps < options.steps:
        try:
            result = simulate(seed, compacts=options.compacts)
        except Exception as exc:  # any error of any seed is a finding
            failed.append(seed)
            print(f"seed {seed}: {type(exc).__name__}: {str(exc)[:300]}", file=sys.stderr)
            if options.only:
                traceback.print_exc()
            if len(failed) > 4:
                break
        else:
            steps += result.steps
            kills += result.kills
            conflicts += result.conflicts
            summaries += result.summaries
            for status, count in result.compactions.items():
                compactions[status] = compactions.get(status, 0) + count
        seeds += 1
        seed += 1
        if options.only:
            break
    seconds = time.perf_counter() - started
    print(
        f"{seeds} seeds, {steps} steps, {kills} kills, {conflicts} conflicts, "
        f"{steps / seconds:.0f} steps/s, failed seeds: {failed or 'none'}"
    )
    if options.compacts:
        print(f"{summaries} summaries asked for, {dict(sorted(compactions.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

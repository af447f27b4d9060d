"""Mutants of the core: ``python -m tests.mutation --count 1000 --seed 1 --jobs 2``.

A seeded sample of single changes of the modules of ``contextbus.core``, each run against exactly the tests that cover
its line.  A change that no test notices is a survivor, and is listed with its place; so is one that no test runs.  The
first run measures which test runs which line and keeps that in ``.mutation/``, for as long as sources and tests stay.

- ``--only core/budget.py`` (again for more) takes these modules or folders alone; ``--skip`` leaves some out.
- ``--report FILE`` writes the tables as Markdown, ``--list-survivors FILE`` the survivors as JSON.
- ``--jobs 2`` runs two mutants at a time.

``tests/mutation/survivors.md`` names changes that make no difference, with the reason; they are counted apart.  The
exit code is 0 if nothing else survived.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from tests.mutation.covering import find_covering
from tests.mutation.project import CONTEXTBUS, preload
from tests.mutation.report import is_survivor, read_equivalent, write_report
from tests.mutation.running import SURVIVAL, Sources, Verdict, run_mutants


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample, run and report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="how many mutants (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a module or folder to take")
    parser.add_argument("--skip", action="append", default=[], metavar="PATH", help="a module or folder to leave out")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables there, as Markdown")
    parser.add_argument("--list-survivors", type=Path, metavar="FILE", help="write the survivors there, as JSON")
    given = parser.parse_args(arguments)

    started = time.monotonic()
    covering = find_covering(CONTEXTBUS)
    preload(covering.imports)
    gc.freeze()
    sources = Sources(CONTEXTBUS, given.only, given.skip)
    chosen = sources.sample(given.count, given.seed)
    print(f"{len(chosen)} of {len(sources.edits)} mutants, {len(covering.tests)} tests", file=sys.stderr)
    verdicts: list[Verdict] = []

    def seen(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if verdict.outcome in SURVIVAL:
            mutant = verdict.mutant
            print(f"{mutant.path}:{mutant.line}: {mutant.old}  =>  {mutant.new}", file=sys.stderr)
        if len(verdicts) % 50 == 0:
            print(f"{len(verdicts)} in {time.monotonic() - started:.0f} s", file=sys.stderr)

    controls = (sources.control(module, covering) for module in dict.fromkeys(module for module, _ in chosen))
    works = (sources.prepare(module, edit, covering) for module, edit in chosen)
    run_mutants(CONTEXTBUS, chain(controls, works), covering, given.jobs, seen)
    equivalent = read_equivalent()
    report = write_report(verdicts, equivalent, given.seed, len(sources.edits))
    print(report)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    survivors = [verdict for verdict in verdicts if is_survivor(verdict, equivalent)]
    if given.report is not None:
        given.report.write_text(report, encoding="utf-8")
    if given.list_survivors is not None:
        given.list_survivors.write_bytes(msgspec.json.format(msgspec.json.encode(survivors), indent=2) + b"\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())

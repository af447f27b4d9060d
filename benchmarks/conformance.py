"""What the built-in summariser keeps, by compaction-conformance-kit and by probes of our own.

Run ``python -m benchmarks.conformance``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from tests.summarisers.kit import measure_kit
from tests.summarisers.probes import Row, measure_all

_QUICK_SEEDS: Final = (1,)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables: shares that are left after five rounds, by budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="one seed of the kit, to see that it works")
    given = parser.parse_args(arguments)
    rows = (*(measure_kit(_QUICK_SEEDS) if given.quick else measure_kit()), *measure_all())
    console = Console(soft_wrap=given.json, highlight=False)
    if given.json:
        console.out(msgspec.json.encode(rows).decode())
    else:
        console.print(_make_table(rows))


def _make_table(rows: Sequence[Row]) -> Table:
    table = Table(title="compaction-conformance-kit 0.8.0, and probes of our own by language")
    for heading in ("set", "budget", "survival", "latest values", "stale", "distinct pairs", "budget kept"):
        table.add_column(heading)
    for row in rows:
        shares = (f"{row.survival:.1%}", f"{row.resolved:.1%}", str(row.stale), f"{row.pairs:.1%}")
        table.add_row(row.language, f"{row.budget:.0%}", *shares, "yes" if row.budget_kept else "NO")
    return table


if __name__ == "__main__":
    main()

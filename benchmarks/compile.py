"""A compile after one new message against ``@context-chef/core`` on Node: ``python -m benchmarks.compile``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.chef.process import Chef, ChefError, start_chef
from benchmarks.compile_lines import Figures, Line, list_lines
from benchmarks.compile_ours import TURNS, Ours, load_counter, turns_of
from benchmarks.conversations import CONVERSATION_KINDS, SYSTEM, write_dict, write_dicts
from benchmarks.ratios import count_cores
from benchmarks.whole_step import measure_whole_steps

LENGTHS: Final = (100, 1_000, 10_000)
SUMMARY: Final = "The builds of the release branch were looked at one by one; the cache of the second stage was stale."
_RARE: Final = 3
"""A compaction, a cold start and a call with dicts are measured in so many rounds only: each takes long."""


class Plan(msgspec.Struct, frozen=True):
    """How much is measured: rounds, lengths of histories in messages, and turns of a measurement."""

    rounds: int
    lengths: tuple[int, ...] = LENGTHS
    turns: int = TURNS


QUICK: Final = Plan(1, (16, 32, 64), 2)


def load(chef: Chef | None, mine: Ours) -> None:
    """Hand the process the history of ours, and see that both count the same.

    Raises:
        ChefError: the process failed, or counts other tokens.
    """
    if chef is None:
        return
    messages = write_dicts(mine.kind, 0, mine.length)
    found = chef.ask("load", run=mine.name, system=SYSTEM, messages=messages)["tokens"]
    if found != mine.tokens:
        raise ChefError(f"the yardstick counts {found} tokens where ours counts {mine.tokens}")


def measure_ours(mine: Ours, figures: Figures, turns: int, *, longest: bool, rare: bool) -> None:
    """One round of ours on one history."""
    forms = ["chunks", "chunks, three breakpoints", "json", "body", "list", "dicts"]
    forms += ["copy", "sdk, bytes", "edit"] if longest else []
    forms += ["sdk, dicts", "compaction", "cold"] if longest and rare else []
    for form in forms:
        gc.collect()
        figures.add("ours", form, mine.kind, mine.length, mine.time(form, turns))


def measure_chef(chef: Chef, mine: Ours, figures: Figures, turns: int, *, longest: bool, rare: bool) -> None:
    """One round of the yardstick on the same history."""

    def note(form: str, seconds: Sequence[float]) -> None:
        figures.add("chef", form, mine.kind, mine.length, statistics.median(seconds))

    count = max(2, turns // 4) if longest else turns
    new = turns_of(mine.kind, mine.length, count)
    for form in ("object", "bytes", *(("sdk",) if longest else ())):
        note(form, chef.time("appended", run=mine.name, form=form, turns=new))
    if not longest:
        return
    edited = write_dict(mine.kind, mine.length + 8 + mine.edited % 8)
    note("edit", chef.time("edit", run=mine.name, index=mine.edited, message=edited))
    if rare:
        message = write_dict(mine.kind, mine.length)
        note("compaction", chef.time("compaction", run=mine.name, message=message, summary=SUMMARY))
        note("cold", chef.time("cold", run=mine.name, message=message))


def measure(plan: Plan, chef: Chef | None) -> Figures:
    """All figures of compiles; ours and the yardstick in turn, history by history, within each round."""
    figures = Figures(plan.lengths)
    counter = load_counter()
    runs = [Ours(kind, length, counter, SUMMARY) for kind in CONVERSATION_KINDS for length in plan.lengths]
    for mine in runs:
        load(chef, mine)
    warm = Figures(plan.lengths)
    for number in range(-1, plan.rounds):
        into = warm if number < 0 else figures
        for mine in runs:
            longest, rare = mine.length == plan.lengths[-1], number < _RARE
            measure_ours(mine, into, plan.turns, longest=longest, rare=rare)
            if chef is not None:
                measure_chef(chef, mine, into, plan.turns, longest=longest, rare=rare)
    return figures


def show(
    lines: Sequence[Line], steps: Sequence[Line], plan: Plan, notes: Sequence[str], *, quick: bool, as_json: bool
) -> None:
    """Print both blocks, as tables or as JSON."""
    console = Console(soft_wrap=as_json, highlight=False, width=None if as_json or sys.stdout.isatty() else 150)
    load = os.getloadavg()[1] if hasattr(os, "getloadavg") else 0.0  # under load long compiles are stretched the most
    if as_json:
        ratios = [{**msgspec.to_builtins(line), "met": line.met} for line in (*lines, *steps)]
        report = {"benchmark": "compiles", "cores": count_cores(), "rounds": plan.rounds, "quick": quick}
        console.out(msgspec.json.encode({**report, "load": load, "notes": notes, "ratios": ratios}).decode())
        return
    console.print(
        make_table(f"a compile after one new message, rules only: {count_cores()} cores, {plan.rounds} rounds", lines)
    )
    console.print(make_table("the whole of a step, bus and commit included, beside it", steps))
    asked = [line for line in lines if line.met is not None]
    console.print(f"{sum(1 for line in asked if line.met)} of {len(asked)} goals met.")
    console.print(f"Load of the machine over the last minutes: {load:.1f} on {count_cores()} cores.")
    for note in notes:
        console.print(note)
    if quick:
        console.print("A quick run shows that the benchmark works; its figures mean nothing.")


def make_table(title: str, lines: Sequence[Line]) -> Table:
    """One block of lines as a table."""
    table = Table(title=title)
    for heading in ("what", "history", "ours, us", "against", "it, us", "result", "lowest-highest", "goal", "met"):
        table.add_column(heading, justify="right" if heading.endswith("us") else "left")
    for line in lines:
        table.add_row(*line.cells())
    return table


def run(plan: Plan, *, steps: bool) -> tuple[list[Line], list[Line], list[str]]:
    """The lines of both blocks, and what is to be known of them, such as why the yardstick did not run."""
    missing: list[str] = []
    with ExitStack() as stack:
        chef: Chef | None = None
        try:
            chef = stack.enter_context(start_chef())
        except ChefError as exc:
            missing.append(f"The yardstick did not run: {exc}.")
        figures = measure(plan, chef)
    lines = list_lines(figures)
    whole: list[Line] = []
    if steps:
        with tempfile.TemporaryDirectory(prefix="contextbus-benchmark-") as folder:
            whole = asyncio.run(measure_whole_steps(Path(folder), plan.rounds, plan.lengths, figures))
    return lines, whole, [*missing, *figures.notes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--quick", action="store_true", help="short histories and one round, to see that it works")
    parser.add_argument("--rules", action="store_true", help="compiles alone, without the whole steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan(given.rounds)
    lines, whole, notes = run(plan, steps=not given.rules)
    show(lines, whole, plan, notes, quick=given.quick, as_json=given.json)


if __name__ == "__main__":
    main()

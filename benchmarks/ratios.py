"""Ratios of ours to a yardstick, round by round, and how they are shown."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One measured ratio: the median of the rounds, with the lowest and the highest beside it.

    ``goal`` is a bound from above or, with ``at_least``, from below; None where there is none.
    """

    where: str
    what: str
    setting: str
    measure: Literal["p50", "throughput", "rate", "growth"]
    ratio: float
    lowest: float
    highest: float
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without one."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a benchmark found, and on what."""

    benchmark: str
    cores: int
    loop: str
    rounds: int
    quick: bool
    ratios: tuple[Ratio, ...]


def count_cores() -> int:
    """How many cores this process may use: all that is said of a machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def summarise(
    rounds: Sequence[float],
    *,
    where: str,
    what: str,
    setting: str,
    measure: Literal["p50", "throughput", "rate", "growth"],
    goal: float | None = None,
    at_least: bool = False,
) -> Ratio:
    """The median of the ratios of all rounds."""
    return Ratio(
        where=where,
        what=what,
        setting=setting,
        measure=measure,
        ratio=round(statistics.median(rounds), 3),
        lowest=round(min(rounds), 3),
        highest=round(max(rounds), 3),
        goal=goal,
        at_least=at_least,
    )


def show(report: Report, *, as_json: bool) -> None:
    """Print a report, as a table or as JSON."""
    console = Console(soft_wrap=as_json, highlight=False)
    if as_json:
        judged = [{**msgspec.to_builtins(r), "met": r.met} for r in report.ratios]
        console.out(msgspec.json.encode({**msgspec.to_builtins(report), "ratios": judged}).decode())
        return
    table = Table(
        title=f"{report.benchmark}: {report.cores} cores, {report.loop}, {report.rounds} rounds, ours / yardstick"
    )
    for heading in ("where", "what", "setting", "measure", "ratio", "lowest-highest", "goal", "met"):
        table.add_column(heading)
    for r in report.ratios:
        goal = "" if r.goal is None else f"{'>=' if r.at_least else '<='} {r.goal:g}"
        met = {None: "", True: "yes", False: "NO"}[r.met]
        table.add_row(
            r.where, r.what, r.setting, r.measure, f"{r.ratio:.2f}", f"{r.lowest:.2f}-{r.highest:.2f}", goal, met
        )
    console.print(table)
    missed = [r for r in report.ratios if r.met is False]
    asked = [r for r in report.ratios if r.goal is not None]
    console.print(f"{len(asked) - len(missed)} of {len(asked)} goals met.")
    if report.quick:
        console.print("A quick run shows that the benchmark works; its figures mean nothing.")

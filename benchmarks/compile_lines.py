"""What the figures of ``benchmarks.compile`` come to: lines with both medians, the ratio and the goal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from benchmarks.conversations import CONVERSATION_KINDS

Measure = Literal["as fast", "growth", "ns a message"]

GROWTH: Final = 1.5
CHUNKS_AND_DICTS: Final = (
    # form of ours, form of the yardstick, how it reads, at least so many times as fast, at most so many ns a message
    ("json", "bytes", "appended, json()", 20.0, None),
    ("body", "object", "appended, body", 20.0, 15.0),
    ("list", "object", "list of ours, chunks()", 20.0, 2.0),
    ("dicts", "object", "list of dicts, body", 5.0, 150.0),
)
"""The goals of the design, section 10."""
WITHOUT_GOAL: Final = (
    ("copy", "object", "appended, copy()"),
    ("sdk, bytes", "sdk", "appended, json(), SDK"),
    ("sdk, dicts", "sdk", "appended, body, SDK"),
    ("edit", "edit", "edit, chunks()"),
    ("compaction", "compaction", "compaction, chunks()"),
    ("cold", "cold", "cold start, chunks()"),
)
AGAINST: Final = {
    "object": "Chef, compile",
    "bytes": "Chef, compile, JSON",
    "sdk": "Chef, compile, SDK",
    "edit": "Chef, compile",
    "compaction": "Chef, compress",
    "cold": "Chef, compile",
}


_UNITS: Final[dict[Measure, str]] = {"as fast": "x as fast", "growth": "x growth", "ns a message": " ns a message"}
_TENTHS: Final = 10


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line: medians in microseconds, and the median of the rounds' results with the lowest and the highest.

    ``ratio`` is None where the yardstick did not run.  ``goal`` bounds it from above or, with ``at_least``, from below.
    """

    what: str
    history: str
    measure: Measure
    ours: float
    against: str = ""
    yardstick: float | None = None
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without one, or without a yardstick."""
        if self.goal is None or self.ratio is None:
            return None
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal

    def cells(self) -> tuple[str, ...]:
        """The line as a table shows it."""
        result = "" if self.ratio is None else f"{_short(self.ratio)}{_UNITS[self.measure]}"
        span = "" if self.lowest is None or self.highest is None else f"{_short(self.lowest)}-{_short(self.highest)}"
        goal = "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        yardstick = "" if self.yardstick is None else f"{self.yardstick:,.0f}"
        return (self.what, self.history, f"{self.ours:,.0f}", self.against, yardstick, result, span, goal, met)


class Figures:
    """Seconds by side, form, kind of history and length, one for each round; ``notes`` tell what to know of them.

    Args:
        lengths: the lengths of the histories in messages, the shortest first.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.notes: list[str] = []
        self._seconds: dict[tuple[str, str, str, int], list[float]] = {}

    def add(self, side: str, form: str, kind: str, length: int, seconds: float) -> None:
        """Note one round's figure."""
        self._seconds.setdefault((side, form, kind, length), []).append(seconds)

    def note(self, text: str) -> None:
        """Note once what is to be known of the figures."""
        if text not in self.notes:
            self.notes.append(text)

    def of(self, side: str, form: str, kind: str, length: int) -> list[float]:
        """The figures of all rounds; none where nothing was measured."""
        return self._seconds.get((side, form, kind, length), [])


def list_lines(figures: Figures) -> list[Line]:
    """Every line of the first block."""
    lines: list[Line] = []
    for kind in CONVERSATION_KINDS:
        lines += _growth_lines(figures, kind, "chunks", "appended, chunks()", GROWTH)
        lines += _growth_lines(figures, kind, "chunks, three breakpoints", "with three breakpoints", GROWTH)
        for form, other, what, faster, slope in CHUNKS_AND_DICTS:
            lines += [
                _faster_line(
                    figures, kind, length, form, other, what, faster if length == figures.lengths[-1] else None
                )
                for length in figures.lengths
            ]
            if slope is not None:
                lines.append(_slope_line(figures, kind, form, what, slope))
            if form == "dicts":
                lines.append(_linear_line(figures, kind))
        longest = figures.lengths[-1]
        lines += [
            _faster_line(figures, kind, longest, form, other, what, None)
            for form, other, what in WITHOUT_GOAL
            if figures.of("ours", form, kind, longest)
        ]
    return lines


def _growth_lines(figures: Figures, kind: str, form: str, what: str, goal: float) -> list[Line]:
    """How much dearer a compile is at each longer length than at the shortest."""
    shortest = figures.of("ours", form, kind, figures.lengths[0])
    return [
        _line(
            [a / b for a, b in zip(figures.of("ours", form, kind, length), shortest, strict=True)],
            what=what,
            history=_name(kind, length),
            measure="growth",
            ours=_median(figures.of("ours", form, kind, length)),
            against=f"ours, {figures.lengths[0]:,}",
            yardstick=_median(shortest),
            goal=goal if length == figures.lengths[-1] else None,
        )
        for length in figures.lengths[1:]
    ]


def _faster_line(
    figures: Figures, kind: str, length: int, form: str, other: str, what: str, goal: float | None
) -> Line:
    """How many times as long the yardstick takes; what was measured in fewer rounds is compared in those."""
    ours, theirs = figures.of("ours", form, kind, length), figures.of("chef", other, kind, length)
    return _line(
        [b / a for a, b in zip(ours, theirs, strict=False)],
        what=what,
        history=_name(kind, length),
        measure="as fast",
        ours=_median(ours),
        against=AGAINST[other],
        yardstick=_median(theirs) if theirs else None,
        goal=goal,
        at_least=True,
    )


def _slope_line(figures: Figures, kind: str, form: str, what: str, goal: float) -> Line:
    """What each further message costs between the shortest history and the longest."""
    short, long = figures.lengths[0], figures.lengths[-1]
    fewer, more = figures.of("ours", form, kind, short), figures.of("ours", form, kind, long)
    return _line(
        [(b - a) * 1e9 / (long - short) for a, b in zip(fewer, more, strict=True)],
        what=what,
        history=_name(kind, long),
        measure="ns a message",
        ours=_median(more),
        against=f"ours, {short:,}",
        yardstick=_median(fewer),
        goal=goal,
    )


def _linear_line(figures: Figures, kind: str) -> Line:
    """What a message of the longest list of dicts costs, against one of the length before."""
    middle, long = figures.lengths[-2:]
    fewer, more = figures.of("ours", "dicts", kind, middle), figures.of("ours", "dicts", kind, long)
    return _line(
        [b / a * middle / long for a, b in zip(fewer, more, strict=True)],
        what="the same, a message",
        history=_name(kind, long),
        measure="growth",
        ours=_median(more),
        against=f"ours, {middle:,}",
        yardstick=_median(fewer),
    )


def _line(
    results: Sequence[float],
    *,
    what: str,
    history: str,
    measure: Measure,
    ours: float,
    against: str,
    yardstick: float | None,
    goal: float | None = None,
    at_least: bool = False,
) -> Line:
    return Line(
        what=what,
        history=history,
        measure=measure,
        ours=ours,
        against=against,
        yardstick=yardstick,
        ratio=round(statistics.median(results), 3) if results else None,
        lowest=round(min(results), 3) if results else None,
        highest=round(max(results), 3) if results else None,
        goal=goal,
        at_least=at_least,
    )


def step_line(figures: Figures, kind: str, what: str, length: int, seconds: Sequence[float]) -> Line:
    """A whole step beside the yardstick's compile of a history as long."""
    theirs = figures.of("chef", "object", kind, length)
    return _line(
        [b / a for a, b in zip(seconds, theirs, strict=False)],
        what=what,
        history=_name(kind, length),
        measure="as fast",
        ours=_median(seconds),
        against=AGAINST["object"],
        yardstick=_median(theirs) if theirs else None,
    )


def _name(kind: str, length: int) -> str:
    return f"{kind}, {length:,}"


def _median(seconds: Sequence[float]) -> float:
    """In microseconds."""
    return statistics.median(seconds) * 1e6


def _short(number: float) -> str:
    return (
        f"{number:,.0f}"
        if abs(number) >= 10 * _TENTHS
        else f"{number:.1f}"
        if abs(number) >= _TENTHS
        else f"{number:.2f}"
    )

"""Packing: the most useful facts that fit an exact budget, as labelled lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from contextbus.summarisers.extractive.segments import SECTIONS, Section

Count = Callable[[str], int]

_FRUITLESS_TRIES: Final = 48
_LENGTH_BASE: Final = 30


class Line(msgspec.Struct, frozen=True, gc=False):
    """A candidate line: its label, its text, its weight, and its place in time."""

    section: Section
    text: str
    score: float
    order: int


def render(lines: Sequence[Line]) -> str:
    """The text of a summary: labels in their order, below each its lines in order of time; references on one line."""
    parts: list[str] = []
    for section in SECTIONS:
        below = sorted((line for line in lines if line.section == section), key=lambda line: line.order)
        if not below:
            continue
        parts.append(f"{section}:")
        if section == "References":
            parts.append("- " + ", ".join(line.text for line in below))
        else:
            parts += [f"- {line.text}" for line in below]
    return "\n".join(parts)


def pack(lines: Sequence[Line], references: Sequence[str], max_tokens: int, count: Count) -> str:
    """Take lines by weight for their length while the whole text counts at most ``max_tokens``.

    What is left goes to the references that no line holds, the latest first.  Each line is counted once on its own;
    from there the whole text is counted, so any counter holds, also one that is not additive.  Where no labelled line
    fits, the first line that fits without its label is the text.
    """
    ranked = sorted(lines, key=lambda line: (-line.score / (len(line.text) + _LENGTH_BASE), line.order))
    chosen: list[Line] = []
    left: list[Line] = []
    spent = 0
    labels: set[Section] = set()
    for line in ranked:
        cost = count(f"- {line.text}\n") + (0 if line.section in labels else count(f"{line.section}:\n"))
        if spent + cost <= max_tokens:
            chosen.append(line)
            labels.add(line.section)
            spent += cost
        else:
            left.append(line)
    while chosen and count(render(chosen)) > max_tokens:
        left.insert(0, chosen.pop())
    tries = 0
    for line in left:
        if tries >= _FRUITLESS_TRIES:
            break
        if count(render([*chosen, line])) <= max_tokens:
            chosen.append(line)
            tries = 0
        else:
            tries += 1
    text = render(chosen).lower()
    names: list[Line] = []
    for number, name in reversed([*enumerate(references)]):
        if tries >= _FRUITLESS_TRIES:
            break
        line = Line("References", name, 0, number)
        if name.lower() in text:
            continue
        if count(render([*chosen, line, *names])) <= max_tokens:
            names.append(line)
        else:
            tries += 1
    chosen += names
    if chosen:
        return render(chosen)
    return next((line.text for line in ranked[:_FRUITLESS_TRIES] if count(line.text) <= max_tokens), "")

"""What became of the mutants, as tables in Markdown."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutation.running import SURVIVAL, Mutant, Verdict

EQUIVALENT: Final = Path(__file__).parent / "survivors.md"
_ENTRY: Final = re.compile(r"^- `([^`]+)`: ``(.+?)`` => ``(.+?)``: \S", re.MULTILINE)

Key = tuple[str, str, str]


def read_equivalent(page: Path = EQUIVALENT) -> frozenset[Key]:
    """The changes that make no difference: file, line of code before, line of code after."""
    if not page.exists():
        return frozenset()
    found: list[tuple[str, str, str]] = _ENTRY.findall(page.read_text(encoding="utf-8"))
    return frozenset((path, old.strip(), new.strip()) for path, old, new in found)


def key_of(mutant: Mutant) -> Key:
    """How a page of equivalent changes names one."""
    return mutant.path, mutant.old.strip(), mutant.new.strip()


def is_survivor(verdict: Verdict, equivalent: frozenset[Key]) -> bool:
    """Whether a mutant lived though it makes a difference."""
    return verdict.outcome in SURVIVAL and key_of(verdict.mutant) not in equivalent


def write_report(verdicts: Sequence[Verdict], equivalent: frozenset[Key], seed: int, all_mutants: int) -> str:
    """The tables: outcomes by module, then the survivors, each with its line."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    survivors = [verdict for verdict in verdicts if is_survivor(verdict, equivalent)]
    for verdict in verdicts:
        lives = verdict.outcome in SURVIVAL
        rows[verdict.mutant.path]["equivalent" if lives and verdict not in survivors else verdict.outcome] += 1
    columns = ("killed", "timeout", "equivalent", "survived", "uncovered")
    total = sum(rows.values(), Counter[str]())
    lines = [
        f"{len(verdicts)} of {all_mutants} mutants (seed {seed}): "
        + ", ".join(f"{total[column]} {column}" for column in columns),
        "",
        "| module | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
        *(f"| {path} | " + " | ".join(str(rows[path][column]) for column in columns) + " |" for path in sorted(rows)),
    ]
    if survivors:
        lines += ["", "Survivors:", ""]
        lines += [
            f"- `{m.path}:{m.line}`: ``{m.old}`` => ``{m.new}``" + ("" if v.tests else " (no test runs it)")
            for v in sorted(survivors, key=lambda verdict: (verdict.mutant.path, verdict.mutant.line))
            for m in (v.mutant,)
        ]
    return "\n".join(lines) + "\n"

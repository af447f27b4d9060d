"""Mutants in children: each is forked from a process that has everything but the package, and runs its tests."""

from __future__ import annotations

import ast
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Final, Literal

import msgspec

from tests.mutation.covering import Covering, lines_naming
from tests.mutation.edits import Edit, describe, list_edits
from tests.mutation.project import Chosen, Loader, Project, fork, run_tests

Outcome = Literal["killed", "timeout", "survived", "uncovered"]
SURVIVAL: Final = frozenset(("survived", "uncovered"))
FIRST: Final = 40
"""How many tests a mutant meets first, the fastest; the others only if it survives these."""
LEAST: Final = 8.0
"""Seconds of processor time that every child has, beside four times what its tests take."""
FOREIGN: Final = 0.15
"""Seconds that a test of another file than the module's own counts more: that file must be imported."""


class Mutant(msgspec.Struct, frozen=True):
    """One changed place: ``old`` and ``new`` are the line of code before and after."""

    module: str
    path: str
    line: int
    old: str
    new: str


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant, and how many tests cover it."""

    mutant: Mutant
    outcome: Outcome
    tests: int


class Work(msgspec.Struct):
    """A mutant on its way: its code, the tests it has still to meet, and when its child must have ended."""

    mutant: Mutant
    path: Path
    code: CodeType
    batches: list[list[int]]
    tests: int
    deadline: float = 0.0


class Sources:
    """The modules of a project, with all changes of each."""

    def __init__(self, project: Project, only: Sequence[str] = (), skip: Sequence[str] = ()) -> None:
        self.project = project
        paths = project.modules()
        self._texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
        self._paths = paths
        self._trees: dict[str, ast.Module] = {}
        self.edits: list[tuple[str, Edit]] = []
        for name, path in paths.items():
            if only and not any(_is_named(path, part) for part in only):
                continue
            if any(_is_named(path, part) for part in skip):
                continue
            self._trees[name] = ast.parse(self._texts[name])
            self.edits += [(name, edit) for edit in list_edits(self._trees[name])]

    def sample(self, count: int, seed: int) -> list[tuple[str, Edit]]:
        """As many changes as asked for, or all if there are fewer, in the order of the text."""
        places = range(len(self.edits))
        chosen = places if count >= len(places) else sorted(random.Random(seed).sample(places, count))
        return [self.edits[place] for place in chosen]

    def prepare(self, module: str, edit: Edit, covering: Covering) -> Work:
        """Make the code of a mutant and find its tests."""
        path = self._paths[module]
        old, new = describe(edit)
        before = edit.apply()
        try:
            code = compile(self._trees[module], str(path), "exec")
        finally:
            edit.put(before)
        tests = self._tests(module, edit, covering)
        own = f"test_{path.stem}.py"

        def cost(test: int) -> float:
            return covering.seconds[test] + (0.0 if own in covering.tests[test] else FOREIGN)

        ranked = sorted(tests, key=lambda test: (cost(test), test))
        shown = Mutant(module, str(path.relative_to(self.project.root)), edit.first, old, new)
        batches = [batch for batch in (ranked[:FIRST], ranked[FIRST:]) if batch]
        return Work(shown, path, code, batches, len(tests))

    def control(self, module: str, covering: Covering) -> Work:
        """A module as it is, with the fastest of its tests: where it does not survive, no verdict is worth anything."""
        path = self._paths[module]
        shown = Mutant(module, str(path.relative_to(self.project.root)), 0, "", "")
        tests = sorted(covering.of_module(module), key=lambda test: (covering.seconds[test], test))[:FIRST]
        return Work(shown, path, compile(self._trees[module], str(path), "exec"), [tests] if tests else [], len(tests))

    def _tests(self, module: str, edit: Edit, covering: Covering) -> set[int]:
        if edit.name is None:
            tests = covering.of_lines(module, edit.first, edit.last)
            return tests or covering.of_lines(module, edit.statement.lineno, edit.statement.lineno)
        # what runs at import counts for every test of the module, and for those of lines that name it
        tests = covering.of_module(module)
        for other, line in lines_naming(edit.name, self._texts):
            tests |= covering.of_lines(other, line, line)
        return tests


def run_mutants(
    project: Project,
    works: Iterator[Work],
    covering: Covering,
    jobs: int,
    seen: Callable[[Verdict], None],
    *,
    least: float = LEAST,
) -> None:
    """Run mutants, as many at a time as there are jobs; ``seen`` is told each outcome as it comes.

    Raises:
        RuntimeError: A module without any change does not pass its tests.
    """
    running: dict[int, Work] = {}
    more = True
    while more or running:
        while more and len(running) < jobs:
            work = next(works, None)
            if work is None:
                more = False
            elif not work.batches and not work.mutant.line:
                continue
            elif not work.batches:
                seen(Verdict(work.mutant, "uncovered", 0))
            else:
                running[_start(project, work, covering, least)] = work
        for child, outcome in _ended(running):
            work = running.pop(child)
            if outcome == "survived" and work.batches:
                running[_start(project, work, covering, least)] = work
            elif work.mutant.line:
                seen(Verdict(work.mutant, outcome, work.tests))
            elif outcome != "survived":
                raise RuntimeError(f"{work.mutant.path} without any change: {outcome}")


def _start(project: Project, work: Work, covering: Covering, least: float) -> int:
    batch = work.batches.pop(0)
    tests = [covering.tests[test] for test in batch]
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    # processor time: a busy machine does not end a child; the clock is for those that wait for ever
    seconds = least + 4.0 * sum(covering.seconds[test] for test in batch)
    work.deadline = time.monotonic() + 3 * seconds

    def run() -> int:
        sys.meta_path.insert(0, Loader({work.mutant.module: (work.path, work.code)}))
        return run_tests(project, files, (Chosen(tests),), "-x")

    return fork(run, seconds=seconds)


def _ended(running: dict[int, Work]) -> list[tuple[int, Outcome]]:
    """The children that have ended, after a wait for at least one; those past their time are ended."""
    while running:
        ended: list[tuple[int, Outcome]] = []
        for child, work in running.items():
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                ended.append((child, _outcome(status)))
            elif time.monotonic() > work.deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                ended.append((child, "timeout"))
        if ended:
            return ended
        time.sleep(0.005)
    return []


def _outcome(status: int) -> Outcome:
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL} else "killed"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def _is_named(path: Path, part: str) -> bool:
    """Whether a path ends with the parts of another, or lies in the folder that it names."""
    wanted = tuple(part.strip("/").split("/"))
    parts = path.parts
    return any(parts[start : start + len(wanted)] == wanted for start in range(len(parts)))

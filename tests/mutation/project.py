"""What is mutated and what is run: modules, tests, and the way a child process imports and runs them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import resource
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple, NoReturn

import pytest
from hypothesis import Phase, settings

MEMORY: Final = 3 * 1024**3
"""Bytes of address space of a child: a mutant that never stops allocating ends itself."""
CACHE: Final = ".mutation"
"""The folder of what is kept from one sample to the next."""
KILLED: Final = 1
"""The exit code of a child whose tests failed."""


class Project(NamedTuple):
    """The package whose modules are mutated, below ``root / sources``, and the tests, as pytest is given them."""

    root: Path
    sources: str
    package: str
    tests: tuple[str, ...]

    def modules(self) -> dict[str, Path]:
        """The files of the package by the names of their modules."""
        base = self.root / self.sources
        found: dict[str, Path] = {}
        for path in sorted((base / self.package.replace(".", "/")).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    def own(self, name: str) -> bool:
        """Whether a module is of the package, or may import it: it must be new in each child."""
        top = name.partition(".")[0]
        if top in {self.package.partition(".")[0], "tests", "conftest", "__main__"}:
            return True
        return top == name and name.startswith("test_")


CONTEXTBUS: Final = Project(
    root=Path(__file__).parents[2],
    sources="actors",
    package="contextbus.core",
    tests=("tests/core", "tests/actors", "tests/client", "tests/replay", "tests/protocol", "tests/simulation"),
)


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from code that is at hand, under the names of the files they stand for."""

    def __init__(self, modules: Mapping[str, tuple[Path, CodeType]]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that is ours; others are not found here."""
        if fullname not in self._modules:
            return None
        path = self._modules[fullname][0]
        is_package = path.name == "__init__.py"
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(path), is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(path.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(self._modules[module.__name__][1], module.__dict__)


class Chosen:
    """The plugin of a child: these tests in this order, and properties with the same examples, none made smaller."""

    def __init__(self, tests: Sequence[str] | None) -> None:
        self._rank = None if tests is None else {test: rank for rank, test in enumerate(tests)}

    def pytest_sessionstart(self) -> None:
        """Set hypothesis up, after the project's own profile and before a test module is imported."""
        settings.register_profile(
            "mutation",
            settings.get_profile("default"),
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was chosen; a test whose name is made of what is mutated stands for all of its function."""
        if self._rank is None:
            return
        rank = self._rank
        functions = {test.partition("[")[0]: place for test, place in rank.items()}
        named = {item.nodeid for item in items}
        lost = {test.partition("[")[0] for test in rank if test not in named}
        ranked = [
            (rank.get(item.nodeid, functions.get(item.nodeid.partition("[")[0], 0)), item)
            for item in items
            if item.nodeid in rank or item.nodeid.partition("[")[0] in lost
        ]
        items[:] = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def run_tests(project: Project, paths: Sequence[str], plugins: Sequence[object], *extra: str) -> int:
    """Run pytest in this process; only ever in a child."""
    os.chdir(project.root)
    os.environ["CI"] = "1"
    # what the first child compiles, the others read
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(project.root / CACHE / "bytecode")
    quiet = ("-qq", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist")
    marks = ("-m", "not broker and not data", "--timeout=0")
    known = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # plugins were imported for all children at once
    return int(pytest.main([*paths, *quiet, *marks, *known, *extra], plugins=list(plugins)))


def fork(work: Callable[[], int], *, seconds: float, silent: bool = True) -> int:
    """Do something in a child with a process group of its own; gives back its process id.

    Args:
        work: what the child does; its result is the exit code.
        seconds: of processor time, after which the child ends itself.
        silent: whether what the child writes is thrown away.
    """
    child = os.fork()
    if child == 0:
        _become(work, seconds, silent)
    return child


def _become(work: Callable[[], int], seconds: float, silent: bool) -> NoReturn:
    code = KILLED
    try:
        os.setpgid(0, 0)
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if silent:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
        code = work()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def preload(names: Sequence[str]) -> None:
    """Import what children will need and what is not mutated, so that each has it from the start."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # a module that cannot be imported alone is left to the children
            continue


def loaded(project: Project) -> Generator[str]:
    """The names of what is imported now and is not of the package."""
    # the accelerators of the standard library, ``_asyncio`` and its like, only work when imported by their modules
    yield from (name for name in sys.modules if not name.startswith("_") and not project.own(name))

"""Which tests run which lines, measured once for each state of sources and tests."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Final

import coverage
import msgspec
import pytest

from tests.mutation.project import CACHE, Chosen, Loader, Project, fork, loaded, run_tests

SLOWEST: Final = 5.0
"""Seconds of processor time; slower tests are left out."""
COLLECTING: Final = 1800.0
"""Seconds of processor time that the measuring may take."""


class Covering(msgspec.Struct):
    """For each module and line, the places in ``tests`` of the tests that run it.

    ``seconds`` are of processor time, test by test.  ``imports`` is what the tests import beside the package.
    """

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[int, list[int]]]
    imports: list[str]
    failed: list[str] = []

    def of_lines(self, module: str, first: int, last: int) -> set[int]:
        """The tests that run any of these lines."""
        lines = self.lines.get(module, {})
        return {test for line in range(first, last + 1) for test in lines.get(line, ())}

    def of_module(self, module: str) -> set[int]:
        """The tests that run any line of a module."""
        return {test for tests in self.lines.get(module, {}).values() for test in tests}


class _Recorder:
    """The plugin that tells the measurement which test runs, and notes how long it took."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._measured.switch_context(item.nodeid)
        started = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - started
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.skipped:
            self.seconds.pop(report.nodeid, None)


def compile_modules(project: Project) -> dict[str, tuple[Path, CodeType]]:
    """The code of all modules as they are, made as that of mutants is."""
    return {
        name: (path, compile(ast.parse(path.read_bytes()), str(path), "exec"))
        for name, path in project.modules().items()
    }


def find_covering(project: Project) -> Covering:
    """Measure, or read what was measured of the same sources and tests.

    Raises:
        RuntimeError: Tests fail without any mutant.
    """
    cache = project.root / CACHE / f"{_digest(project)}.json"
    if cache.exists():
        return msgspec.json.decode(cache.read_bytes(), type=Covering)
    cache.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache.parent, suffix=".part") as part:
        child = fork(lambda: _measure(project, Path(part.name)), seconds=COLLECTING, silent=False)
        _, status = os.waitpid(child, 0)
        data = Path(part.name).read_bytes()
    if not data:
        raise RuntimeError(f"measuring the tests ended with status {status}")
    covering = msgspec.json.decode(data, type=Covering)
    if covering.failed:
        raise RuntimeError("these fail without a mutant: " + ", ".join(covering.failed))
    cache.write_bytes(data)
    return covering


def _measure(project: Project, result: Path) -> int:
    """Run all tests with the unchanged modules, imported as mutants are; writes a ``Covering``."""
    modules = compile_modules(project)
    sys.meta_path.insert(0, Loader(modules))
    files = {str(path): name for name, (path, _) in modules.items()}
    measured = coverage.Coverage(data_file=None, config_file=False, include=list(files))
    recorder = _Recorder(measured)
    measured.start()
    run_tests(project, project.tests, (Chosen(None), recorder))
    measured.stop()
    tests = sorted(test for test, seconds in recorder.seconds.items() if seconds < SLOWEST)
    places = {test: place for place, test in enumerate(tests)}
    data = measured.get_data()
    lines = {
        files[file]: {
            line: sorted(places[test] for test in contexts if test in places)
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    seconds = [recorder.seconds[test] for test in tests]
    imports = sorted(loaded(project))
    result.write_bytes(msgspec.json.encode(Covering(tests, seconds, lines, imports, recorder.failed)))
    return 0


def _digest(project: Project) -> str:
    """The digest of all that the measurement depends on."""
    digest = hashlib.sha256(repr((sys.version, project.package, project.tests)).encode())
    for path in sorted(_files(project)):
        digest.update(f"{path.relative_to(project.root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _files(project: Project) -> Iterable[Path]:
    for folder in {project.sources, "protocol", *(test.partition("/")[0] for test in project.tests)}:
        for pattern in ("*.py", "*.json", "*.jsonl"):
            yield from (
                path for path in (project.root / folder).rglob(pattern) if Path(__file__).parent not in path.parents
            )


def lines_naming(name: str, sources: Mapping[str, str]) -> Iterable[tuple[str, int]]:
    """The modules and lines where a name occurs."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    for module, source in sources.items():
        for number, line in enumerate(source.splitlines(), 1):
            if pattern.search(line):
                yield module, number

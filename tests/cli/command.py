"""Runs the command line in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from contextbus.cli.commands import app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
READY_SECONDS = 60.0


class Command:
    """``contextbus`` with a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"

    def __call__(self, *arguments: object, code: int = 0) -> Result:
        """Run it here; the exit code must be the expected one."""
        words = [str(a) for a in arguments]
        if not {"--data", "--nats", "--help"} & set(words):
            words += ["--data", str(self.data)]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: object, code: int = 0) -> Any:
        """Run it here with ``--json``; gives what it printed."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def lines(self, *arguments: object) -> list[Any]:
        """Run it here with ``--json``; gives what each line says."""
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]

    def validate(self, payload: Path, *arguments: object) -> Any:
        """Run ``validate``, which uses no data; there must be no error.  Gives what it printed with ``--json``."""
        words = ["validate", str(payload), *map(str, arguments), "--json"]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    @contextmanager
    def started(self, *arguments: object) -> Generator[subprocess.Popen[str]]:
        """Run it as a process of its own for as long as the block lasts."""
        words = [str(a) for a in (*arguments, "--json", "--data", self.data)]
        process = subprocess.Popen(
            [sys.executable, "-m", "contextbus", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'actors'}{os.pathsep}{ROOT / 'protocol'}"},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @contextmanager
    def running(self, *arguments: object) -> Generator[tuple[subprocess.Popen[str], Any]]:
        """Run a service for as long as the block lasts; gives what it says when it is ready."""
        with self.started(*arguments) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"it ended with exit code {process.wait()}"
            yield process, json.loads(line)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(condition: Callable[[], bool], seconds: float = READY_SECONDS) -> bool:
    """Wait for something to happen; gives whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False

"""A Node process that compiles with ``@context-chef/core``: made ready, started, asked and ended."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import msgspec

FOLDER: Final = Path(__file__).parent
_INSTALLED: Final = FOLDER / "node_modules" / ".package-lock.json"
_SECONDS: Final = 300


class ChefError(Exception):
    """The yardstick cannot be run, or failed; the text says why."""


class Chef:
    """The running process; made by ``start_chef``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, request: str, **given: object) -> dict[str, object]:
        """Send one request and wait for its answer.

        Raises:
            ChefError: the process ended, or what was asked failed.
        """
        entrance, exit_ = self._process.stdin, self._process.stdout
        assert entrance is not None
        assert exit_ is not None
        entrance.write(msgspec.json.encode({"request": request, **given}) + b"\n")
        entrance.flush()
        line = exit_.readline()
        if not line:
            raise ChefError(f"the yardstick's process ended while it was asked to {request}")
        answer = msgspec.json.decode(line, type=dict[str, object])
        if "error" in answer:
            raise ChefError(f"the yardstick failed at {request}: {answer['error']}")
        return answer

    def time(self, request: str, **given: object) -> list[float]:
        """Send one request; the seconds that each of its compiles took, as the process measured them."""
        nanoseconds = cast("list[float]", self.ask(request, **given)["nanoseconds"])
        return [each / 1e9 for each in nanoseconds]


def find_trouble() -> str:
    """What keeps the yardstick from running, with the remedy; nothing if it runs, or runs once it is installed."""
    if shutil.which("node") is None:
        return "there is no node on the PATH: install Node.js 20 or newer"
    if not is_installed() and shutil.which("npm") is None:
        return "there is no npm on the PATH, and @context-chef/core is not installed: install Node.js with npm"
    return ""


def is_installed() -> bool:
    """Whether the packages are there, as the lock has them."""
    lock = FOLDER / "package-lock.json"
    return _INSTALLED.exists() and _INSTALLED.stat().st_mtime >= lock.stat().st_mtime


def install() -> None:
    """Install the packages of the lock into this folder's ``node_modules``, and say so.

    Raises:
        ChefError: npm failed; the text is what it said last.
    """
    sys.stderr.write(f"npm ci: installing @context-chef/core into {_INSTALLED.parent}\n")
    npm = cast("str", shutil.which("npm"))
    try:
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts"], cwd=FOLDER, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise ChefError(f"npm ci took more than {_SECONDS} seconds; is the package registry reachable?") from exc
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ChefError(f"npm ci failed: {lines[-1] if lines else done.returncode}")


@contextmanager
def start_chef() -> Generator[Chef]:
    """A running process, its packages installed where they are not; ended when the context is left.

    Raises:
        ChefError: it cannot be run here.
    """
    trouble = find_trouble()
    if trouble:
        raise ChefError(trouble)
    if not is_installed():
        install()
    node = cast("str", shutil.which("node"))
    command = [node, "--expose-gc", "worker.mjs"]
    process = subprocess.Popen(command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Chef(process)
    finally:
        process.communicate(timeout=60)

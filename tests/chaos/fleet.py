"""Actors and workers as processes of their own, over the nats-server of one data folder."""

# pyright: reportUnknownMemberType=false
# nats-py is only partly annotated.

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from contextbus.runtime import embedded
from contextbus_protocol import subjects

ROOT = Path(__file__).resolve().parents[2]
ACTORS = ("selection", "working-memory", "placement", "compaction")


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that runs this checkout."""
    paths = [str(ROOT / "actors"), str(ROOT / "protocol"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


class Fleet:
    """Processes by name; each may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, **more: str) -> None:
        """Start ``contextbus ARGUMENTS --data FOLDER`` under a name."""
        command = [sys.executable, "-m", "contextbus", *arguments, "--data", str(self.folder)]
        self._commands[name] = (command, environment(**more))
        self.restart(name)

    def restart(self, name: str) -> None:
        """Start a process again."""
        command, env = self._commands[name]
        log = (self.folder / f"{name}.log").open("ab")
        self._running[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=self.folder)
        log.close()

    def start_actors(self, instances: int = 1) -> None:
        """Start every actor, each instance in a process of its own."""
        for actor in ACTORS:
            for number in range(instances):
                self.start(f"{actor}-{number}", "actor", actor)

    def start_worker(self, name: str, sources: Sequence[str], **more: str) -> None:
        """Start a worker of some of the test's sources."""
        file = self.folder / f"{name}.py"
        file.write_text(f"from tests.chaos.workers import {', '.join(sources)}\n")
        self.start(name, "worker", str(file), **more)

    async def wait_ready(self, *names: str, seconds: float = 90) -> None:
        """Wait until services of these names answer, each at least as often as it is named.

        Raises:
            TimeoutError: one does not.
        """
        endpoint = await embedded.attach(self.folder)
        assert endpoint is not None
        prefix = subjects.inbox("default", f"fleet-{uuid.uuid4().hex}").encode()
        client = await nats.connect(endpoint.url, token=endpoint.token, inbox_prefix=prefix)
        try:
            with anyio.fail_after(seconds):
                while await _missing(client, Counter(names)):
                    await anyio.sleep(0.05)
        finally:
            await client.close()

    def kill(self, name: str) -> None:
        """End a process at once, as ``kill -9`` does."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pid(self, name: str) -> int:
        """The process id."""
        return self._running[name].pid

    def stop(self) -> None:
        """End all processes."""
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + 10
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


async def _missing(client: Client, wanted: Counter[str]) -> Counter[str]:
    """The names that do not answer often enough."""
    inbox = client.new_inbox()
    found: Counter[str] = Counter()

    async def note(message: Msg) -> None:
        if message.data:  # nobody there yet is an answer without a body
            found[json.loads(message.data)["name"]] += 1

    subscription = await client.subscribe(inbox, cb=note)
    await client.publish("$SRV.PING", reply=inbox)
    await client.flush()
    await anyio.sleep(0.1)
    await subscription.unsubscribe()
    return wanted - found


@contextmanager
def fleet(folder: Path) -> Generator[Fleet]:
    """A fleet that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    ships = Fleet(folder)
    try:
        yield ships
    finally:
        ships.stop()

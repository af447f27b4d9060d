"""Processes of our own: started again when they die, ended with this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import msgspec

from contextbus.cli.output import warn
from contextbus.runtime.server_process import GUARD

FIRST_WAIT_SECONDS: Final = 0.1
LONGEST_WAIT_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 10.0
STOP_SECONDS: Final = 15.0


class Program(msgspec.Struct, frozen=True):
    """What one process runs: a name for people, and the arguments of ``contextbus``."""

    name: str
    arguments: tuple[str, ...]


class Supervisor:
    """Keeps programs running; ``run`` each in a task of its own.

    Args:
        environment: What the programs get beside this process's environment: secrets do not belong in arguments,
            which other users can see.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._running: dict[str, Process] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    async def run(self, program: Program) -> None:
        """Start a program, and again whenever it ends, with a wait that doubles; cancelling ends it politely."""
        wait = FIRST_WAIT_SECONDS
        while True:
            begun = time.monotonic()
            process = await self._spawn(program)
            self._running[program.name] = process
            try:
                code = await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                del self._running[program.name]
            if time.monotonic() - begun > STEADY_SECONDS:
                wait = FIRST_WAIT_SECONDS
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            warn(f"{program.name} {ended}; it starts again in {wait:.1f} s")
            await anyio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_SECONDS)

    async def _spawn(self, program: Program) -> Process:
        linux = sys.platform == "linux"
        guarded: Sequence[str] = (
            *(sys.executable, "-I", "-S", str(GUARD), "signal" if linux else "pipe", str(os.getpid())),
            *(sys.executable, "-m", "contextbus", *program.arguments),
        )
        return await asyncio.create_subprocess_exec(
            *guarded,
            stdin=DEVNULL if linux else PIPE,
            stdout=DEVNULL,
            env=self._environment,
            # Ctrl-C reaches this process first, which ends the others in order.
            start_new_session=True,
        )


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(STOP_SECONDS):
        await process.wait()
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()

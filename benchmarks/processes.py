"""Child processes of a benchmark: started, waited for until they are ready, and ended with their parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

READY = b"ready\n"
START_SECONDS = 30.0


@asynccontextmanager
async def spawn(module: str, settings: Sequence[bytes]) -> AsyncGenerator[None]:
    """Run a module once for each of the settings, which it gets as its argument, until the block ends.

    Raises:
        TimeoutError: a process was not ready in time.
    """
    children = [_start(module, setting) for setting in settings]
    try:
        with anyio.fail_after(START_SECONDS):
            for child in children:
                await anyio.to_thread.run_sync(_await_ready, child, abandon_on_cancel=True)
        yield
    finally:
        for child in children:
            if child.stdin is not None:
                child.stdin.close()  # a child ends when its input does
        with anyio.CancelScope(shield=True):
            for child in children:
                await anyio.to_thread.run_sync(_end, child)


def _start(module: str, setting: bytes) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, setting.decode()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _await_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    if child.stdout.readline() != READY:
        raise RuntimeError("a process of the benchmark ended before it was ready")


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


async def serve_until_parent_ends() -> None:
    """Say that this process is ready, and wait until its input ends."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)


def run_child(work: Callable[[], Awaitable[None]], factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """Run what a child does on the event loop that its parent has."""

    async def run() -> None:
        await work()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())

"""Runs the work of a command: event loop, signals, logs, and the way out."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Never

import structlog
import typer

from contextbus.cli.failures import INTERRUPTED, OK, TERMINATED, report

Work = Callable[[], Coroutine[Any, Any, int | None]]


class _StoppedError(Exception):
    """A signal asked us to end; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(work: Work, *, as_json: bool = False, serves: bool = False) -> Never:
    """Run the work of a command, and leave with its exit code.

    Args:
        work: gives the exit code, None for 0.
        as_json: errors are printed as JSON too.
        serves: being asked to end (SIGTERM) is how it ends well.

    Raises:
        typer.Exit: always.
    """
    _send_logs_to_stderr(logging.WARNING if serves else logging.ERROR)
    try:
        with asyncio.Runner(loop_factory=find_loop()) as runner:
            code = runner.run(_until_stopped(work)) or OK
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = INTERRUPTED
    except _StoppedError as stop:
        code = INTERRUPTED if stop.number == signal.SIGINT else OK if serves else TERMINATED
    except BrokenPipeError:
        # Whoever read our output, as `head` does, has seen enough.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    except (Exception, BaseExceptionGroup) as error:
        code = report(error, as_json=as_json)
    raise typer.Exit(code)


def find_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes uvloop's event loop, where it is installed; None for asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return made


async def _until_stopped(work: Work) -> int | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    stopped: list[int] = []

    def stop(number: signal.Signals) -> None:
        stopped.append(number)
        # The second one does not wait for us to tidy up.
        loop.remove_signal_handler(number)
        if task is not None:
            task.cancel()

    # A shell starts background jobs with Ctrl-C ignored; they must end when asked to all the same.
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, stop, number)
    try:
        return await work()
    except asyncio.CancelledError:
        if stopped:
            raise _StoppedError(stopped[0]) from None
        raise


def _send_logs_to_stderr(usual: int) -> None:
    level = logging.getLevelNamesMapping().get(os.environ.get("CONTEXTBUS_LOG", "").upper(), usual)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )

"""The sweep of a package store, again and again beside whatever else a process does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from contextbus.runtime.clock import Clock, SystemClock
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import UNCOMMITTED_SECONDS, PackageStore
from contextbus_protocol.errors import ContextBusError

SWEEP_SECONDS: Final = 3600.0
"""From the end of one sweep to the next, in seconds."""

_log = get_logger(__name__)


@asynccontextmanager
async def sweeping(
    store: PackageStore,
    *,
    first: float = UNCOMMITTED_SECONDS,
    interval: float = SWEEP_SECONDS,
    clock: Clock | None = None,
) -> AsyncGenerator[None]:
    """Sweep a store in the background for as long as the block lasts.

    Args:
        store: The store.
        first: Seconds until the first sweep; before ten minutes no blob is old enough.
        interval: Seconds from the end of one sweep to the next.
        clock: Tells the age of blobs.
    """
    task = asyncio.create_task(_sweep_again(store, first, interval, clock or SystemClock()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _sweep_again(store: PackageStore, first: float, interval: float, clock: Clock) -> None:
    seconds = first
    while True:
        await asyncio.sleep(seconds)
        seconds = interval
        try:
            outcome = await store.sweep(clock.now())
        except ContextBusError as exc:  # a subject that is not ours must not end it
            _log.warning("sweep_failed", code=exc.code)
            continue
        if isinstance(outcome, int):
            _log.info("swept", blobs=outcome)
        else:
            _log.warning("sweep_failed", outcome=type(outcome).__name__)

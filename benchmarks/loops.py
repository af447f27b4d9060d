"""The event loop of a benchmark: ours and the yardstick always run on the same kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(*, uvloop: bool) -> LoopFactory | None:
    """What makes the event loop: uvloop's, or the default for None."""
    if not uvloop:
        return None
    import uvloop as fast  # noqa: PLC0415  # an extra that need not be installed

    return fast.new_event_loop

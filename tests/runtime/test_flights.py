"""A flight starts at once, and is then an ordinary task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from contextbus.runtime import flights

Work = Callable[[list[str]], Coroutine[Any, Any, None]]


async def wait_twice(seen: list[str]) -> None:
    seen.append("started")
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        seen.append("awake")
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen.append("cancelled")
        await asyncio.sleep(0.001)
        seen.append("cleaned")
        raise


async def fail_while_waiting(seen: list[str]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, KeyError("gone"))
    try:
        await future
    except KeyError:
        seen.append("failed")
    await asyncio.sleep(0)
    seen.append("went on")


def start(work: Work, seen: list[str]) -> asyncio.Task[None]:
    coroutine = work(seen)
    awaited: object = coroutine.send(None)
    return asyncio.get_running_loop().create_task(flights.go_on(coroutine, awaited))


async def cancel(task: asyncio.Task[None]) -> bool:
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_it_starts_at_once_and_waits_as_a_task() -> None:
    seen: list[str] = []
    task = start(wait_twice, seen)
    assert seen == ["started"]
    while "awake" not in seen:
        await asyncio.sleep(0.001)
    assert await cancel(task)
    assert seen == ["started", "awake", "cancelled", "cleaned"]


async def test_it_can_be_cancelled_where_it_first_waits() -> None:
    seen: list[str] = []
    assert await cancel(start(wait_twice, seen))
    await asyncio.sleep(0.01)
    assert seen[0] == "started"
    assert "awake" not in seen


async def test_what_it_waits_for_may_fail() -> None:
    seen: list[str] = []
    await start(fail_while_waiting, seen)
    assert seen == ["failed", "went on"]

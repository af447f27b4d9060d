"""The sweep in the background: when it runs, what it outlives, and that it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs
from tests.runtime.conftest import Eventually

from contextbus.runtime.journal import Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.package_store import UNCOMMITTED_SECONDS, PackageStore
from contextbus.runtime.sweeping import SWEEP_SECONDS, sweeping
from contextbus_protocol import subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import InvalidTypeError

ORPHAN = (digest_bytes(b"orphan"), b"orphan")


class Later:
    """A clock that is eleven minutes ahead: what was stored just now is old."""

    def now(self) -> float:
        return time.time() + UNCOMMITTED_SECONDS + 60

    def elapsed(self) -> float:
        return time.monotonic()


async def test_orphans_go_and_the_log_says_how_many(eventually: Eventually) -> None:
    store = PackageStore(MemoryJournal(), "t")
    await store.put("run", (ORPHAN,), "given up")
    with capture_logs() as logs:
        async with sweeping(store, first=0, interval=0.001, clock=Later()):
            await eventually(lambda: len(logs) > 1)
    assert await store.get("run", (ORPHAN[0],)) == ()
    assert [(line["event"], line["blobs"]) for line in logs[:2]] == [("swept", 1), ("swept", 0)]
    assert "orphan" not in str(logs)


async def test_nothing_is_swept_before_its_time() -> None:
    assert (UNCOMMITTED_SECONDS, SWEEP_SECONDS) == (600, 3600)
    store = PackageStore(MemoryJournal(), "t")
    await store.put("run", (ORPHAN,), "given up")
    async with sweeping(store, clock=Later()):
        for _ in range(10):
            await asyncio.sleep(0)
    assert await store.get("run", (ORPHAN[0],)) == (ORPHAN,)


class _Fails(MemoryJournal):
    """A journal that fails in one way, then finds nothing."""

    def __init__(self, failure: Callable[[], Unanswered]) -> None:
        super().__init__()
        self._failure: Callable[[], Unanswered] | None = failure

    async def subjects(self, pattern: str) -> tuple[str, ...] | Unanswered:
        failure, self._failure = self._failure, None
        return await super().subjects(pattern) if failure is None else failure()


def raise_invalid() -> Unanswered:
    raise InvalidTypeError("not ours")


@pytest.mark.parametrize("failure", [lambda: Unanswered("timeout"), raise_invalid], ids=["silence", "error"])
async def test_a_failed_sweep_is_not_the_last(failure: Callable[[], Unanswered], eventually: Eventually) -> None:
    with capture_logs() as logs:
        async with sweeping(PackageStore(_Fails(failure), "t"), first=0, interval=0, clock=Later()):
            await eventually(lambda: len(logs) > 1)
    assert [line["event"] for line in logs[:2]] == ["sweep_failed", "swept"]


async def test_it_ends_with_the_block_whatever_ends_that() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(InvalidTypeError, match="inside"):
        async with sweeping(PackageStore(MemoryJournal(), subjects.encode_name("t"))):
            raise InvalidTypeError("inside")
    assert asyncio.all_tasks() == before

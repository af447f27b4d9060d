"""The client's retry machine over a real host."""

from __future__ import annotations

import asyncio

import pytest
from tests.runtime.acting import Asker, Items, Storer, step

from contextbus.client.asking import ask
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.host import Host
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus_protocol.commands import StepCompiled
from contextbus_protocol.errors import DeadlineExceededError


async def test_nobody_serves_the_actor() -> None:
    async with Host("t", "client", MemoryBroker().bus(), MemoryJournal()) as host:
        with pytest.raises(DeadlineExceededError, match="contextbus up"):
            await ask(host, "selection", step("t", "hello", seconds=-0.9))


async def test_an_actor_that_starts_late_is_found() -> None:
    broker, journal = MemoryBroker(), MemoryJournal()
    async with Host("t", "client", broker.bus(), journal) as host:
        answer = asyncio.ensure_future(ask(host, "selection", step("t", "count", seconds=2.0)))
        await asyncio.sleep(0.02)
        rules = (Asker("t", "ctx.inbox.t.late.selection"), Items(), Storer())
        async with Host("t", "late", broker.bus(), journal, rules):
            assert isinstance(await answer, StepCompiled)

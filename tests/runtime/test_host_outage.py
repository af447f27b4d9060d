"""A host through the death of its server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.runtime.acting import Asker, Items, Storer, step

from contextbus.client.asking import ask
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import serve
from contextbus.runtime.host import Host
from contextbus.runtime.journal import Page
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.streams import ensure
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import StepCompiled

STEPS = 60
RUN = "run"


@pytest.mark.broker
async def test_every_answered_step_is_in_the_log_after_kill_9(tmp_path: Path) -> None:
    async with (
        serve(tmp_path / "data") as server,
        connect(server.url, token=server.token, tenant="t", locate=server.locate) as connection,
    ):
        await ensure(connection, "t")
        bus, journal = NatsBus(connection), JetStreamJournal(connection, answer_seconds=0.3)
        rules = (Asker("t", f"{subjects.inbox('t', 'one')}.selection"), Items(), Storer())
        answered: list[tuple[str, int]] = []
        async with Host("t", "one", bus, journal, rules) as host:
            for number in range(STEPS):
                if number in {15, 40}:
                    os.kill(server.pid, signal.SIGKILL)
                command = step("t", "hello", run=RUN, seen=answered[-1][1] if answered else 0)
                answer = await asyncio.wait_for(ask(host, "selection", command), 20)
                assert isinstance(answer, StepCompiled)
                answered.append((command.command, answer.sequence))
        page = await journal.read(subjects.log("t", RUN, "run"), after=0)
        assert isinstance(page, Page)
        stored = [(codec.decode_commit(record.data).command, record.sequence) for record in page.records]
        assert stored == answered

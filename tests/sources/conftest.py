"""Journals and buses for the tests of sources; the event loop is watched for blocking calls."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from blockbuster import BlockBuster, blockbuster_ctx

from contextbus.runtime.bus import Bus
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.embedded import Server, serve
from contextbus.runtime.journal import Journal
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.streams import ensure
from contextbus_protocol.questions import Accounting, Query
from contextbus_protocol.values import Scope

_tenants = itertools.count(1)
Ask = Callable[..., Query]
ADA = Scope(user_id="ada")


@pytest.fixture(autouse=True)
def no_blocking() -> Generator[BlockBuster]:
    """Fail a test whose event loop is blocked by a file, a database or a sleep."""
    with blockbuster_ctx() as blockbuster:
        yield blockbuster


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    folder = tmp_path_factory.mktemp("broker") / "data"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(folder, durability="interval")) as server,
    ):
        yield server


@pytest.fixture
def tenant() -> str:
    return f"s{next(_tenants)}"


@pytest.fixture
async def connection(broker: Server, tenant: str) -> AsyncGenerator[Connection]:
    async with connect(broker.url, token=broker.token, tenant=tenant, name="test") as made:
        yield made


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.broker)])
def journal(request: pytest.FixtureRequest) -> Journal:
    """One contract, two journals."""
    if request.param == "memory":
        return MemoryJournal()
    found: Journal = request.getfixturevalue("stream")
    return found


@pytest.fixture
async def stream(connection: Connection, tenant: str) -> AsyncGenerator[Journal]:
    await ensure(connection, tenant)
    made = JetStreamJournal(connection)
    yield made
    made.close()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.broker)])
def bus(request: pytest.FixtureRequest) -> Bus:
    """One contract, two buses."""
    if request.param == "memory":
        return MemoryBroker().bus()
    return NatsBus(request.getfixturevalue("connection"))


@pytest.fixture
def ask(tenant: str) -> Ask:
    """Makes queries."""
    tokens = itertools.count(1)

    def make(
        text: str = "tea",
        *,
        source: str = "docs",
        scope: Scope = ADA,
        limit: int = 16,
        seconds_left: float = 5.0,
        seen: int = 0,
        reply_to: str | None = None,
        accounting: Accounting | None = None,
    ) -> Query:
        return Query(
            run="run-1",
            tenant=tenant,
            command="c",
            token=str(next(tokens)),
            reply_to=reply_to or f"ctx.inbox.{tenant}.me.answers",
            source=source,
            step=1,
            text=text,
            scope=scope,
            limit=limit,
            budget_tokens=1000,
            seconds_left=seconds_left,
            seen=seen,
            accounting=accounting,
        )

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real documents, where there is one."""
    named = os.environ.get("CONTEXTBUS_SHARED")
    places = [Path(named)] if named else [p / "shared" for p in Path(__file__).resolve().parents]
    for place in places:
        if (place / "data" / "banking").is_dir():
            return place / "data"
    pytest.skip("no shared data beside the project")

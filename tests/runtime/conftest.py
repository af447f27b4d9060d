"""A real nats-server for the tests of the runtime, and a tenant of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.embedded import Server, serve

_tenants = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One server for all tests that do not kill it."""
    folder = tmp_path_factory.mktemp("broker") / "data"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(folder, durability="interval")) as server,
    ):
        yield server


Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def eventually() -> Eventually:
    """Wait for something to happen, for ten seconds at most."""

    async def wait(condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            await anyio.sleep(0.01)
        pytest.fail("it did not happen in time")

    return wait


@pytest.fixture
def tenant() -> str:
    return f"t{next(_tenants)}"


@pytest.fixture
async def connection(broker: Server, tenant: str) -> AsyncGenerator[Connection]:
    async with connect(broker.url, token=broker.token, tenant=tenant, name="test") as made:
        yield made

"""An endpoint of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.summarisers.endpoint import Endpoint, serve_endpoint


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with serve_endpoint() as served:
        yield served

"""What every test of the client leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import structlog


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Generator[None]:
    """Capturing logs configures structlog for good; other tests read what the library itself would print."""
    yield
    structlog.reset_defaults()

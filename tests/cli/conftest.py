"""The command line for tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from tests.cli.command import Command


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No settings of whoever runs the tests, and none of ours for other tests."""
    for name in ("CONTEXTBUS_DATA", "CONTEXTBUS_NATS", "CONTEXTBUS_TENANT", "CONTEXTBUS_LOG", "CONTEXTBUS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    yield
    structlog.reset_defaults()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command with a data folder of the test's own."""
    return Command(tmp_path)

"""How every property is searched (no time limit; in CI always the same examples), and what no test leaves behind."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("local", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many payloads were checked."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "payloads":
                terminalreporter.write_line(f"payloads: {value}")


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Generator[None]:
    """Leave structlog as it was: a test that captures logs configures it for the whole process."""
    yield
    structlog.reset_defaults()

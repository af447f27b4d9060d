"""The library writes to standard error, or where the application's structlog sends it; never to standard output."""

from __future__ import annotations

import subprocess
import sys

SPEAK = (
    "from contextbus.runtime.logs import get_logger; log = get_logger('x'); log.info('quiet'); log.warning('loud', n=1)"
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_without_configuration_warnings_go_to_standard_error() -> None:
    done = run(SPEAK)
    assert done.stdout == ""
    assert "loud" in done.stderr
    assert "n=1" in done.stderr
    assert "quiet" not in done.stderr


def test_an_application_that_configured_structlog_decides() -> None:
    done = run("import structlog; structlog.configure(); " + SPEAK)
    assert done.stderr == ""
    assert "quiet" in done.stdout
    assert "loud" in done.stdout

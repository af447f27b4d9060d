"""The library's log lines: codes, counts and names, never content.

They go where the application's structlog sends them.  An application that did not configure structlog gets warnings and
worse on standard error: its standard output is its own.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, cast

import structlog

_PROCESSORS: Final = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
)


class LibraryLogger:
    """A logger that asks at every line whether the application has configured structlog."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def tells(self) -> bool:
        """Whether anybody gets to see lines below a warning."""
        return structlog.is_configured()

    def debug(self, event: str, **fields: object) -> None:
        """What helps to find a fault."""
        if self.tells:
            self._bind().debug(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """What happened."""
        if self.tells:
            self._bind().info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """What somebody should look at."""
        self._bind().warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """What failed."""
        self._bind().error(event, **fields)

    def _bind(self) -> structlog.typing.FilteringBoundLogger:
        if structlog.is_configured():
            return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(self._name))
        logger = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),
            processors=_PROCESSORS,
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        )
        return cast("structlog.typing.FilteringBoundLogger", logger)


def get_logger(name: str) -> LibraryLogger:
    """The logger of a module."""
    return LibraryLogger(name)

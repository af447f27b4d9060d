"""The clock: the one place that reads it, so that everything else takes the time as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the host asks for the time."""

    def now(self) -> float:
        """Read the wall clock, in seconds since 1970 (UTC); it may jump."""
        ...

    def elapsed(self) -> float:
        """Read a clock that never goes back, in seconds since an unnamed moment."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Read the wall clock, in seconds since 1970 (UTC); it may jump."""
        return time.time()

    def elapsed(self) -> float:
        """Read a clock that never goes back, in seconds since an unnamed moment."""
        return time.monotonic()


def read_milliseconds() -> int:
    """The clock reading that commands carry, in milliseconds since 1970 (UTC) (D.W.6)."""
    return int(time.time() * 1000)


def format_moment(seconds: float) -> str:
    """Write a wall clock reading as RFC 3339 in UTC, to the microsecond.

    Args:
        seconds: Seconds since 1970 (UTC).
    """
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

"""What the host asks of a bus: frames to subjects, and handlers that only hand over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from contextbus_protocol.codec import MSGPACK

NOBODY_SERVES = 503


class Frame(msgspec.Struct, frozen=True):
    """What arrives: ``status`` is 503 when nobody serves the subject that a request went to."""

    subject: str
    data: bytes
    reply: str = ""
    content_type: str = MSGPACK
    status: int | None = None


Handler = Callable[[Frame], None]


class Subscription(Protocol):
    """A subscription that can be ended."""

    async def unsubscribe(self) -> None:
        """Take no further frames; those taken are still handled."""
        ...


class Announcement(Protocol):
    """An entry of service discovery."""

    def count(self) -> None:
        """Count one request."""
        ...

    async def withdraw(self) -> None:
        """Take the entry out."""
        ...


class Bus(Protocol):
    """Publish frames and subscribe to subjects; a queue group shares what arrives among its members."""

    @property
    def longest(self) -> int:
        """The most bytes that one frame may hold."""
        ...

    def publish(self, subject: str, data: bytes, *, reply: str = "", content_type: str = MSGPACK) -> None:
        """Hand a frame over without waiting: frames of one turn of the event loop leave in one flush.

        Raises:
            BusUnavailableError: the bus is not connected or its buffer is full; nothing was sent.
            PayloadTooLargeError: the frame is larger than ``longest``.
        """
        ...

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Take frames of a subject or of a filter ending in ``>``; handlers must not block or raise."""
        ...

    async def announce(self, name: str, subject: str, queue: str) -> Announcement:
        """Show in service discovery that a subject is served, where the bus has such a thing."""
        ...

    async def flush(self) -> None:
        """Wait until all that was published and subscribed is known to the bus.

        Raises:
            BusUnavailableError: the bus is not connected.
        """
        ...


class BusUnavailableError(ConnectionError):
    """The bus is not connected; what was to be sent was not sent and may be tried again."""

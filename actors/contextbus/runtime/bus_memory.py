"""A bus in memory: for tests, for the simulation, and for use without a server."""

from __future__ import annotations

import asyncio
from collections import deque

from contextbus.runtime.bus import NOBODY_SERVES, BusUnavailableError, Frame, Handler
from contextbus.runtime.logs import get_logger
from contextbus_protocol.codec import MSGPACK
from contextbus_protocol.errors import PayloadTooLargeError

LONGEST_FRAME = 1024 * 1024
MOST_WAITING = 65_536

_log = get_logger(__name__)


class MemorySubscription:
    """Interest of one member in a subject or a filter."""

    def __init__(self, bus: MemoryBus, subject: str, queue: str, handler: Handler) -> None:
        self.bus = bus
        self.subject = subject
        self.queue = queue
        self.handler = handler

    async def unsubscribe(self) -> None:
        """Take no further frames."""
        self.bus.broker.drop(self)


class MemoryAnnouncement:
    """An entry in the list of a broker's services.

    Attributes:
        name: What is served.
        requests: How many requests came.
    """

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name = name
        self.requests = 0
        self._broker = broker

    def count(self) -> None:
        """Count one request."""
        self.requests += 1

    async def withdraw(self) -> None:
        """Take the entry out."""
        self._broker.services.remove(self)


class MemoryBroker:
    """Passes frames between the buses of one event loop, in the order in which they were published.

    Args:
        most_waiting: How many frames may wait to be delivered; more are refused, as a full send buffer does.

    Attributes:
        services: What its members announced.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self.services: list[MemoryAnnouncement] = []
        self._subscriptions: dict[str, list[MemorySubscription]] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._waiting: deque[Frame] = deque()
        self._most_waiting = most_waiting
        self._scheduled = False

    def bus(self) -> MemoryBus:
        """Make one member's connection."""
        return MemoryBus(self)

    def add(self, subscription: MemorySubscription) -> None:
        """Register interest."""
        self._subscriptions.setdefault(subscription.subject, []).append(subscription)

    def drop(self, subscription: MemorySubscription) -> None:
        """End interest; ending it twice is no fault."""
        held = self._subscriptions.get(subscription.subject, [])
        if subscription in held:
            held.remove(subscription)
        if not held:
            self._subscriptions.pop(subscription.subject, None)

    def publish(self, frame: Frame) -> None:
        """Queue a frame; it is delivered when the event loop runs next.

        Raises:
            BusUnavailableError: too many frames wait.
        """
        if len(self._waiting) >= self._most_waiting:
            raise BusUnavailableError(f"not sent: {self._most_waiting} frames already wait to be delivered")
        self._waiting.append(frame)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver_waiting)

    def _deliver_waiting(self) -> None:
        # Only what waits now: what the handlers publish comes in the next turn, so others run in between.
        self._scheduled = False
        for _ in range(len(self._waiting)):
            self._deliver(self._waiting.popleft())
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver_waiting)

    def _deliver(self, frame: Frame) -> None:
        found = self._members(frame.subject)
        if not found and frame.reply:
            found = self._members(frame.reply)
            frame = Frame(frame.reply, b"", status=NOBODY_SERVES)
        for subscription in found:
            try:
                subscription.handler(frame)
            except Exception as error:  # a handler's fault must not keep frames from others
                _log.error("memory_handler_failed", error=type(error).__name__)

    def _members(self, subject: str) -> list[MemorySubscription]:
        """Find who gets a frame: every plain subscription, and one member of each queue group."""
        plain: list[MemorySubscription] = []
        groups: dict[str, list[MemorySubscription]] = {}
        for filter_ in _filters(subject):
            for subscription in self._subscriptions.get(filter_, ()):
                if not subscription.bus.connected:
                    continue
                if subscription.queue:
                    groups.setdefault(subscription.queue, []).append(subscription)
                else:
                    plain.append(subscription)
        for queue, members in groups.items():
            turn = self._turns.get((subject, queue), 0)
            self._turns[subject, queue] = turn + 1
            plain.append(members[turn % len(members)])
        return plain


class MemoryBus:
    """One member of a broker.

    Attributes:
        connected: Set to False to play a lost connection: nothing is sent and nothing arrives.
    """

    def __init__(self, broker: MemoryBroker, *, longest: int = LONGEST_FRAME) -> None:
        self.broker = broker
        self.connected = True
        self._longest = longest

    @property
    def longest(self) -> int:
        """The most bytes that one frame may hold."""
        return self._longest

    def publish(self, subject: str, data: bytes, *, reply: str = "", content_type: str = MSGPACK) -> None:
        """Hand a frame over.

        Raises:
            BusUnavailableError: the bus is not connected, or too many frames wait.
            PayloadTooLargeError: the frame is larger than ``longest``.
        """
        if not self.connected:
            raise BusUnavailableError("not sent: the bus is not connected")
        if len(data) > self._longest:
            raise PayloadTooLargeError(f"a frame of {len(data)} bytes exceeds the {self._longest} that the bus takes")
        self.broker.publish(Frame(subject, data, reply, content_type))

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> MemorySubscription:
        """Take frames of a subject or of a filter ending in ``>``."""
        subscription = MemorySubscription(self, subject, queue, handler)
        self.broker.add(subscription)
        return subscription

    async def announce(self, name: str, subject: str, queue: str) -> MemoryAnnouncement:
        """Keep an entry for the broker's `services`."""
        entry = MemoryAnnouncement(self.broker, name)
        self.broker.services.append(entry)
        return entry

    async def flush(self) -> None:
        """Everything is known at once.

        Raises:
            BusUnavailableError: the bus is not connected.
        """
        if not self.connected:
            raise BusUnavailableError("the bus is not connected")


def _filters(subject: str) -> list[str]:
    """List all filters that match a subject: itself, and each prefix with ``>``."""
    tokens = subject.split(".")
    return [subject, *(".".join([*tokens[:count], ">"]) for count in range(len(tokens)))]

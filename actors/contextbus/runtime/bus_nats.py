"""The bus over a connection to NATS."""

from __future__ import annotations

from collections.abc import Mapping

from contextbus import __version__
from contextbus.runtime import connection_errors
from contextbus.runtime.bus import NOBODY_SERVES, BusUnavailableError, Frame, Handler
from contextbus.runtime.connection import Connection
from contextbus.runtime.discovery import Endpoint, Service, service_name
from contextbus.runtime.subscription import Subscription
from contextbus_protocol.codec import JSON, MSGPACK
from contextbus_protocol.errors import InvalidTypeError, PayloadTooLargeError

CONTENT_TYPE = "Content-Type"
HEADER_ROOM = 4096

_JSON_HEADERS: Mapping[str, str] = {CONTENT_TYPE: JSON}


class NatsSubscription:
    """A subscription that survives reconnects."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        """Take no further frames; those that the server has given out still come."""
        await self._connection.unsubscribe(self._subscription)


class NatsAnnouncement:
    """An entry that `nats micro ls` shows."""

    def __init__(self, connection: Connection, service: Service, endpoint: Endpoint) -> None:
        self._connection = connection
        self._service = service
        self._endpoint = endpoint

    def count(self) -> None:
        """Count one request."""
        self._endpoint.num_requests += 1

    async def withdraw(self) -> None:
        """Take the entry out."""
        await self._service.withdraw(self._connection)


class NatsBus:
    """Frames over NATS; the connection belongs to whoever made it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def longest(self) -> int:
        """The most bytes that one frame may hold: what the server takes, less room for headers."""
        return max(0, self._connection.max_payload - HEADER_ROOM)

    def publish(self, subject: str, data: bytes, *, reply: str = "", content_type: str = MSGPACK) -> None:
        """Hand a frame over; it leaves when the event loop runs next.

        Raises:
            BusUnavailableError: there is no connection now, or its buffer is full; nothing was sent.
            PayloadTooLargeError: the frame is larger than the server takes.
            InvalidTypeError: subject or reply address are no subjects.
        """
        headers = _JSON_HEADERS if content_type == JSON else None
        try:
            self._connection.send(subject, data, reply, headers)
        except (connection_errors.DisconnectedError, connection_errors.OverloadedError) as error:
            raise BusUnavailableError(str(error)) from error
        except connection_errors.PayloadTooLargeError as error:
            raise PayloadTooLargeError(str(error)) from error
        except connection_errors.InvalidMessageError as error:
            raise InvalidTypeError(str(error)) from error

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> NatsSubscription:
        """Take frames of a subject or of a filter ending in ``>``."""

        def take(subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> None:
            if not headers:
                handler(Frame(subject, data, reply))
                return
            if headers.get("Status") == str(NOBODY_SERVES) and not data:
                handler(Frame(subject, data, reply, status=NOBODY_SERVES))
                return
            handler(Frame(subject, data, reply, _content_type(headers)))

        return NatsSubscription(self._connection, await self._connection.subscribe(subject, take, queue))

    async def announce(self, name: str, subject: str, queue: str) -> NatsAnnouncement:
        """Answer service discovery for a subject."""
        plain = service_name(name)
        endpoint = Endpoint(name=plain, subject=subject, queue_group=queue)
        service = Service(plain, __version__, endpoints=(endpoint,))
        await service.register(self._connection)
        return NatsAnnouncement(self._connection, service, endpoint)

    async def flush(self) -> None:
        """Wait until the server knows of all that was published and subscribed.

        Raises:
            BusUnavailableError: the bus is not connected, or the server does not answer.
        """
        try:
            await self._connection.flush()
        except (connection_errors.DisconnectedError, TimeoutError) as error:
            raise BusUnavailableError(str(error)) from error


def _content_type(headers: Mapping[str, str]) -> str:
    """Read the content type; parameters and case do not matter, and without one it is msgpack."""
    for name, value in headers.items():
        if name.lower() == "content-type":
            return value.partition(";")[0].strip().lower()
    return MSGPACK

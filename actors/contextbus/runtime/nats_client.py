"""The nats-py client with what its hazards ask for: it says when it is gone and delivers directly.

A client is used until it is gone and then replaced by a new one.  nats-py's own reconnecting is
off: it dies with a callback that raises, never comes after an error sent by the server, and sends
what was buffered, and given up by its caller, when the server is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import nats.aio.client
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from contextbus.runtime.connection_errors import (
    DisconnectedError,
    InvalidMessageError,
    OverloadedError,
    PayloadTooLargeError,
)
from contextbus.runtime.logs import get_logger

Handler = Callable[[str, str, Mapping[str, str], bytes], None]
"""Takes subject, reply address ("" for none), headers, payload; hands over and never blocks."""

LONGEST_CONTROL_LINE = 3_800
NO_HEADERS: Mapping[str, str] = {}
PING_SECONDS = 5
CLOSE_SECONDS = 1.0


_log = get_logger(__name__)


class Address(Protocol):
    """Where a server is and the secret that it asks for."""

    @property
    def url(self) -> str:
        """One URL, or several with commas between."""
        ...

    @property
    def token(self) -> str:
        """The secret."""
        ...


class Delivery(asyncio.Future[Msg]):
    """Calls a handler inside the client's read loop.

    nats-py gives a message to a subscription's future at once, with no queue that could overflow
    and no task to wake.  An exception in here would end the read loop, hence none leaves it.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def cancelled(self) -> bool:
        """Stay open for the next message."""
        return False

    def set_result(self, result: Msg, /) -> None:
        """Deliver one message."""
        try:
            self._handler(result.subject, result.reply, result.headers or NO_HEADERS, result.data)
        except Exception as error:  # a handler's fault must not end the read loop
            _log.error("nats_handler_failed", error=type(error).__name__)


class Client(nats.aio.client.Client):
    """One connection to a server, from connect to the first failure.

    Attributes:
        gone: Done as soon as the connection has failed or was closed.
        failure: The last error that nats-py reported.
    """

    if TYPE_CHECKING:  # what nats-py leaves open in its annotations
        _reading_task: asyncio.Task[None] | None
        _flusher_task: asyncio.Task[None] | None
        _ping_interval_task: asyncio.Task[None] | None

        async def subscribe(
            self,
            subject: str,
            queue: str = "",
            cb: Callable[[Msg], Awaitable[None]] | None = None,
            future: asyncio.Future[Msg] | None = None,
            max_msgs: int = 0,
            pending_msgs_limit: int = 0,
            pending_bytes_limit: int = 0,
        ) -> Subscription:
            """Subscribe."""
            ...

    def __init__(self) -> None:
        super().__init__()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: Exception | None = None
        self._pings: set[asyncio.Task[None]] = set()

    @property
    def usable(self) -> bool:
        """Whether a message would be sent now."""
        return not self.gone.done() and self.is_connected

    async def open(
        self,
        servers: list[str],
        *,
        token: str | None,
        name: str,
        tls: ssl.SSLContext | None,
        buffer_bytes: int,
        seconds: float,
    ) -> None:
        """Connect, or fail within `seconds`; nats-py alone can hang on a refused certificate.

        Raises:
            ConnectionError: No server could be reached, or it refused.
        """
        attempt = asyncio.ensure_future(
            self.connect(
                servers=servers,
                token=token,
                name=name,
                tls=tls,
                error_cb=self._note,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, int(seconds)),
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                pending_size=buffer_bytes,
            )
        )
        try:
            await asyncio.wait({attempt}, timeout=seconds)
        finally:
            if not attempt.done():
                attempt.cancel()
        if attempt.done() and attempt.exception() is None:
            for loop_task in (self._reading_task, self._flusher_task, self._ping_interval_task):
                if loop_task is not None:
                    loop_task.add_done_callback(self._lose)
            return
        cause = self.failure or (attempt.exception() if attempt.done() else None)
        self.abort()
        text = f"{type(cause).__name__}: {cause}" if cause else f"no answer in {seconds:g} seconds"
        raise ConnectionError(text) from cause

    def push(
        self,
        subject: str,
        data: bytes,
        reply: str,
        headers: Mapping[str, str] | None,
        buffer_bytes: int,
    ) -> None:
        """Send a message without waiting, or say why not; see `Connection.send`."""
        size = len(data)
        if headers:
            size += 12 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        # nats-py looks at the payload alone, and the server cuts off who sends more.
        if size > self.max_payload:
            raise PayloadTooLargeError(
                f"a message of {size} bytes, headers included, exceeds the {self.max_payload} "
                "bytes that the server takes: store it as a blob and send its digest"
            )
        if len(subject) + len(reply) > LONGEST_CONTROL_LINE:
            raise InvalidMessageError(f"subject and reply address exceed {LONGEST_CONTROL_LINE} characters")
        # A publish into a full buffer would wait, and could not be cancelled.
        if self.pending_data_size + size > buffer_bytes:
            raise OverloadedError(f"not sent: {buffer_bytes} bytes already wait to be sent")
        try:
            sent = _step(self.publish(subject, data, reply, dict(headers) if headers else None))
        except nats.errors.ConnectionClosedError:
            sent = False
        except nats.errors.Error as error:
            raise InvalidMessageError(f"malformed message: {type(error).__name__}") from error
        if not sent:
            raise DisconnectedError("not sent: the connection is closing")

    async def answers(self, seconds: float) -> bool:
        """Ask the server for a sign of life; also proves that it has all that was sent before.

        nats-py ends its read loop when the answer to a ping comes after its caller gave up, so the
        ping is never given up: it is left to itself until it is answered or the client is gone.
        """
        ping = asyncio.ensure_future(self._confirm())
        self._pings.add(ping)
        ping.add_done_callback(self._forget_ping)
        signs: set[asyncio.Future[Any]] = {ping, self.gone}
        await asyncio.wait(signs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return ping.done() and not ping.cancelled() and ping.exception() is None

    async def unlisten(self, subscription: Subscription, seconds: float) -> None:
        """End a subscription; what the server gave out before it knew is still delivered.

        nats-py's own drain takes the subscription away when its ping, which overtakes what waits
        to be sent, is answered, and drops what the server gives out until it knows.
        """
        number = next((n for n, held in self._subs.items() if held is subscription), None)
        if number is None or not self.usable:
            return
        await self._send_unsubscribe(number)
        await self.answers(seconds)
        self._remove_sub(number)

    async def finish(self) -> None:
        """Close, sending what is still buffered if the server takes it within a second."""
        if not self.is_closed:
            closing = asyncio.ensure_future(self.close())
            closing.add_done_callback(_retrieve)
            await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
            closing.cancel()
        self.abort()

    def abort(self) -> None:
        """Close the socket now, whatever is still buffered."""
        self._lose()
        self._status = self.CLOSED
        for task in (
            self._reading_task,
            self._flusher_task,
            self._ping_interval_task,
            *self._pings,
        ):
            if task is not None:
                task.cancel()
        if self._transport is not None:
            close: Callable[[], object] = self._transport.close
            with contextlib.suppress(Exception):
                close()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Read headers as nats-py does, but for its look at every single character: half the time of a log's replay."""
        headers: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            name = name.strip()
            if not colon or not name.isascii():
                continue
            key = name.decode()
            if key.split() == [key]:  # a name with blanks in it is none
                headers[key] = value.strip().decode("utf-8", "replace")
        return headers

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # Every failure that ends a client comes through here; nats-py may call back much later.
        self._lose()
        await super()._close(status, do_cbs)

    async def _confirm(self) -> None:
        # nats-py writes a ping at once, in front of what waits to be sent: let that go first.
        if self._pending_data_size > 0 and self._flush_queue is not None:
            flushed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(flushed)
            await flushed
        await self.rtt(3600)

    async def _note(self, error: Exception) -> None:
        self.failure = error
        if self.usable:
            _log.warning("nats_error", error=type(error).__name__)

    def _lose(self, _task: object = None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _forget_ping(self, ping: asyncio.Task[None]) -> None:
        self._pings.discard(ping)
        _retrieve(ping)


def _step(sending: Coroutine[Any, Any, object]) -> bool:
    """Run a publish in one step, as it does while there is room; False if it wanted to wait."""
    try:
        sending.send(None)
    except StopIteration:
        return True
    sending.close()
    return False


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()

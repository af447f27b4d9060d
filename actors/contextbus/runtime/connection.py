"""The connection to NATS: the one place that handles the hazards of the client.

A connection outlives its clients.  When a client is gone, closed for good by the server, cut off, or deaf, a new one
is built, and the subscriptions are made again.  Nothing is sent while disconnected: the caller is told, and decides.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import anyio.to_thread
import nats.errors

from contextbus.runtime.answers import Answers, Reply
from contextbus.runtime.connection_errors import (
    DisconnectedError,
    InvalidMessageError,
    NoRespondersError,
    OverloadedError,
)
from contextbus.runtime.logs import get_logger
from contextbus.runtime.nats_client import Address, Client, Delivery, Handler
from contextbus.runtime.subscription import Subscription

BUFFER_BYTES = 8 * 1024 * 1024
CONNECT_SECONDS = 5.0
RECONNECT_SECONDS = (0.1, 0.25)
WATCH_SECONDS = 2.0

_log = get_logger(__name__)


class Connection:
    """A connection that mends itself; made by `connect`.

    Attributes:
        tenant: The tenant, as it stands in subjects.
        name: What the server's monitoring calls this connection.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        tenant: str,
        name: str,
        tls: ssl.SSLContext | None,
        locate: Callable[[], Address] | None,
        lost: Callable[[], str | None] | None,
        watch_seconds: float,
        buffer_bytes: int,
    ) -> None:
        self.tenant = tenant
        self.name = name
        self.client_id = secrets.token_hex(8)
        self._url = url
        self._token = token
        self._tls = tls
        self._locate = locate
        self._lost = lost
        self._watch_seconds = watch_seconds
        self._buffer_bytes = buffer_bytes
        self._client: Client | None = None
        self._reason = "the connection is closed"
        self._subscriptions: list[Subscription] = []
        self._answers = Answers(f"ctx.inbox.{tenant}.{self.client_id}")
        self._reconnected: list[Callable[[], None]] = []
        self._disconnected: list[Callable[[], None]] = []
        self._watch: asyncio.Task[None] | None = None

    @property
    def inbox(self) -> str:
        """The prefix of all reply addresses of this connection."""
        return self._answers.prefix

    @property
    def connected(self) -> bool:
        """Whether a message would be sent now."""
        return self._client is not None and self._client.usable

    @property
    def client(self) -> Client | None:
        """The client in use, to look at; the next one replaces it when it is gone."""
        return self._client

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, payload and headers, in bytes."""
        return self._client.max_payload if self._client is not None else 0

    def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Send a message without waiting; it leaves when the event loop runs next.

        Raises:
            DisconnectedError: There is no connection now; nothing is kept for later.
            OverloadedError: The send buffer is full.
            PayloadTooLargeError: Payload and headers exceed what the server takes.
            InvalidMessageError: Subject, reply address or a header is malformed.
        """
        client = self._usable()
        client.push(subject, data, reply, headers, self._buffer_bytes)

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a message, waiting for room in the send buffer; it can be cancelled.

        Raises:
            DisconnectedError: There is no connection now; nothing is kept for later.
            PayloadTooLargeError: Payload and headers exceed what the server takes.
            InvalidMessageError: Subject, reply address or a header is malformed.
        """
        while True:
            try:
                self.send(subject, data, reply, headers)
            except OverloadedError:
                await asyncio.sleep(0.005)
            else:
                # Without it a loop that only publishes would never end, nor let the buffer be sent.
                await anyio.lowlevel.checkpoint()
                return

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Call a handler for each message on a subject, from now on and over reconnects.

        The handler is called in the read loop: it hands over and returns.  If it raises, that is logged.

        Raises:
            InvalidMessageError: The subject is malformed.
        """
        subscription = Subscription(subject, queue, handler)
        self._subscriptions.append(subscription)
        client = self._client
        if client is not None and client.usable:
            try:
                await subscription.bind(client)
            except nats.errors.BadSubjectError as error:
                self._subscriptions.remove(subscription)
                raise InvalidMessageError("malformed subject") from error
            except nats.errors.Error:
                pass  # the next client makes it
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End the interest; messages that the server has already given out are still delivered."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            await subscription.drain()

    def open_inbox(self, handler: Handler) -> str:
        """Make reply addresses: what is sent to `<returned prefix>.<anything>` goes to the handler.

        Where nobody listens on the subject that was asked, the server itself answers, with the
        header `Status: 503`.
        """
        return self._answers.open(handler)

    def close_inbox(self, prefix: str) -> None:
        """Drop what still comes to the reply addresses of an inbox."""
        self._answers.close(prefix)

    async def request(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Ask, and wait for the first answer.

        Args:
            subject: Whom to ask.
            data: The question.
            timeout: How long to wait, in seconds.
            headers: Headers of the question.

        Raises:
            NoRespondersError: Nobody listens there.
            DisconnectedError: There is no connection, or it broke before the answer came.
            TimeoutError: No answer came in time.
        """
        address, answer = self._answers.expect()
        try:
            self.send(subject, data, address, headers)
            async with asyncio.timeout(timeout):
                reply = await answer
        finally:
            self._answers.forget(address)
        if reply.headers.get("Status") == "503" and not reply.data:
            raise NoRespondersError(f"nobody listens on {subject}")
        return reply

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call back each time the connection is there again, with the subscriptions made."""
        self._reconnected.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back each time the connection is gone; answers to what was sent may never come."""
        self._disconnected.append(callback)

    async def flush(self, seconds: float = 10.0) -> None:
        """Wait until the server has all that was sent.

        Raises:
            DisconnectedError: The connection is gone.
            TimeoutError: The server did not confirm in time.
        """
        client = self._usable()
        if not await client.answers(seconds):
            if client.usable:
                raise TimeoutError("the server did not confirm in time")
            raise DisconnectedError("the connection broke before the server confirmed")

    async def drain(self, in_flight: Callable[[], Awaitable[object]] | None = None, seconds: float = 30.0) -> None:
        """Stop taking messages, let the work in flight end, send what it sent, and close.

        Replies still come in while work is in flight, so it may ask others to the end.

        Args:
            in_flight: Waits until the work in flight has ended.
            seconds: How long all this may take at most.
        """
        with anyio.move_on_after(seconds):
            for subscription in tuple(self._subscriptions):
                await self.unsubscribe(subscription)
            if in_flight is not None:
                await in_flight()
            if self.connected:
                await self.flush(seconds)
        await self.close()

    async def start(self, seconds: float) -> None:
        """Connect for the first time, trying until it works or the time is up."""
        with anyio.move_on_after(seconds):
            while self._client is None:
                try:
                    self._client = await self._build(seconds)
                except ConnectionError as error:
                    shown = re.sub(r"[^/,]*@", "", self._url)  # without user and password
                    self._reason = f"no connection to {shown}: {error}"
                    if "uthorization" in str(error):
                        break
                    await asyncio.sleep(random.uniform(*RECONNECT_SECONDS))
        if self._client is None:
            raise DisconnectedError(self._reason)
        self._watch = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Close now; what was sent is given a second to leave."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait({watch})
        client, self._client = self._client, None
        self._reason = "the connection is closed"
        self._answers.abandon()
        if client is not None:
            await client.finish()

    async def _build(self, seconds: float) -> Client:
        """Make a client and its subscriptions."""
        client = Client()
        try:
            await client.open(
                [server.strip() for server in self._url.split(",")],
                token=self._token,
                name=self.name,
                tls=self._tls,
                buffer_bytes=2 * self._buffer_bytes,
                seconds=seconds,
            )
            await client.subscribe(f"{self.inbox}.>", future=Delivery(self._answers.receive))
            for subscription in tuple(self._subscriptions):
                await subscription.bind(client)
        except nats.errors.Error as error:
            client.abort()
            raise ConnectionError(type(error).__name__) from error
        except BaseException:
            client.abort()
            raise
        return client

    async def _keep(self) -> None:
        """Watch the client, and replace it when it is gone or deaf; never raises."""
        while self._client is not None:
            client = self._client
            await asyncio.wait({client.gone}, timeout=self._watch_seconds)
            # Two signs of life must be missing: a blocked event loop makes the first one late.
            for _strike in range(2):
                if client.usable and await client.answers(self._watch_seconds):
                    break
            else:
                await self._replace(client)

    async def _replace(self, client: Client) -> None:
        self._reason = "the connection to the server was lost and is being made again"
        _log.warning("nats_disconnected", name=self.name)
        await client.finish()
        self._answers.abandon()
        self._call(self._disconnected)
        while True:
            try:
                if self._locate is not None:
                    address = await anyio.to_thread.run_sync(self._locate)
                    self._url, self._token = address.url, address.token
                self._client = await self._build(CONNECT_SECONDS)
            except Exception as error:  # whatever it is, the next attempt may do better
                _log.info("nats_reconnect_failed", name=self.name, error=type(error).__name__)
                await self._explain()
                await asyncio.sleep(random.uniform(*RECONNECT_SECONDS))
            else:
                break
        _log.info("nats_reconnected", name=self.name)
        self._call(self._reconnected)

    async def _explain(self) -> None:
        """Ask whether the server is gone for good."""
        if self._lost is None:
            return
        try:
            reason: str | None = await anyio.to_thread.run_sync(self._lost)
            self._reason = reason or self._reason
        except Exception as error:  # the next attempt asks again
            _log.info("nats_reconnect_unexplained", name=self.name, error=type(error).__name__)

    def _usable(self) -> Client:
        if self._client is None or not self._client.usable:
            raise DisconnectedError(f"not sent: {self._reason}")
        return self._client

    def _call(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # a callback's fault must not end the watch
                _log.error("nats_callback_failed", error=type(error).__name__)


@asynccontextmanager
async def connect(
    url: str,
    *,
    token: str | None = None,
    tenant: str = "default",
    name: str = "contextbus",
    tls: ssl.SSLContext | None = None,
    locate: Callable[[], Address] | None = None,
    lost: Callable[[], str | None] | None = None,
    timeout: float = CONNECT_SECONDS,
    watch_seconds: float = WATCH_SECONDS,
    buffer_bytes: int = BUFFER_BYTES,
) -> AsyncGenerator[Connection]:
    """Connect to NATS.

    Args:
        url: The URL of the server, or several with commas between.
        token: The secret that the server asks for.
        tenant: The tenant, encoded as it stands in subjects.
        name: What the server's monitoring calls this connection.
        tls: For a server that asks for TLS.
        locate: Where the server is now; asked, in a worker thread, before each reconnect.
        lost: Why the server is gone for good; asked, in a worker thread, while it is away.
        timeout: How long the first connection may take, in seconds.
        watch_seconds: How often the server is asked for a sign of life, in seconds.
        buffer_bytes: How many bytes may wait to be sent.

    Yields:
        The connection, closed on leaving.

    Raises:
        DisconnectedError: The server cannot be reached, or refuses.
    """
    connection = Connection(
        url,
        token=token,
        tenant=tenant,
        name=name,
        tls=tls,
        locate=locate,
        lost=lost,
        watch_seconds=watch_seconds,
        buffer_bytes=buffer_bytes,
    )
    try:
        await connection.start(timeout)
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()

"""Workers: sources behind a bus.

A worker takes the queries of its source from the queue group, answers each once and lives on whatever comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol, runtime_checkable

import anyio

from contextbus.runtime.bus import Bus, BusUnavailableError, Frame, Subscription
from contextbus.runtime.logs import get_logger
from contextbus.sources.answers import DEFAULT_CONCURRENCY, Handler, OnError
from contextbus.sources.interface import Kept, Source
from contextbus_protocol import codec, subjects
from contextbus_protocol.commands import ErrorReply, refuse
from contextbus_protocol.errors import ContextBusError, InternalError, PayloadTooLargeError
from contextbus_protocol.memory_records import (
    AllowRecords,
    Forget,
    Forgotten,
    ListRecords,
    RecordsAllowed,
    RecordsListed,
    Remember,
    Remembered,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query

DRAIN_SECONDS: Final = 10.0
CANCEL_SECONDS: Final = 1.0
"""How long what was left is waited for, once it is cancelled, in seconds."""
FIRST_BACKOFF_SECONDS: Final = 0.1
LONGEST_BACKOFF_SECONDS: Final = 30.0
MAX_WAITING: Final = 1024

AdminRequest = Remember | Forget | ListRecords | AllowRecords
AdminReply = Remembered | Forgotten | RecordsListed | RecordsAllowed

_log = get_logger(__name__)


@runtime_checkable
class Administered(Protocol):
    """A source that takes requests beside queries: it remembers, forgets, lists and allows."""

    async def administer(self, request: AdminRequest) -> AdminReply:
        """Serve a request.

        Raises:
            ContextBusError: it cannot be served; the client gets its code.
        """
        ...


class Worker:
    """Serves one source of a tenant; ``serve`` runs it.

    Args:
        bus: The bus.
        tenant: The tenant whose queries it takes.
        source: The source.
        concurrency: How many queries run at once; more are answered ``busy``.
        drain_seconds: How long a stopping worker waits for what it took.
        on_error: Told the exception that a source raised; its text is in no log (D.W.2).

    Raises:
        InvalidTypeError: it is no usable source (D.K.20).
    """

    def __init__(
        self,
        bus: Bus,
        tenant: str,
        source: Source,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        drain_seconds: float = DRAIN_SECONDS,
        on_error: OnError | None = None,
    ) -> None:
        self._bus = bus
        self._tenant = tenant
        self._handler = Handler(source, concurrency=concurrency, on_error=on_error)
        self._source = source
        self._drain_seconds = drain_seconds
        self._waiting = 0
        self._idle = anyio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The source's id."""
        return self._source.id

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[Worker]:
        """Take queries inside of the block; at its end take no more and answer those taken.

        Raises:
            BusUnavailableError: the bus is not connected.
        """
        async with anyio.create_task_group() as background:
            if isinstance(self._source, Kept):
                background.start_soon(keep_running, self.name, self._source.keep)
            taken: list[Subscription] = []
            try:
                await self._subscribe(taken)
                yield self
            finally:
                with anyio.CancelScope(shield=True):
                    await self._drain(taken)
                background.cancel_scope.cancel()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self.serve():
            await anyio.sleep_forever()

    async def _subscribe(self, taken: list[Subscription]) -> None:
        queue = subjects.encode_name(self.name)
        queries = subjects.query(self._tenant, self.name)
        taken.append(await self._bus.subscribe(queries, self._take_query, queue=queue))
        if isinstance(self._source, Administered):
            admin = subjects.source_admin(self._tenant, self.name)
            taken.append(await self._bus.subscribe(admin, self._take_request, queue=queue))

    async def _drain(self, taken: list[Subscription]) -> None:
        with anyio.move_on_after(self._drain_seconds):
            for subscription in taken:
                await subscription.unsubscribe()
            while self._waiting:
                self._idle = anyio.Event()
                await self._idle.wait()
        if self._waiting:
            _log.warning("worker_left_queries", source=self.name, count=self._waiting)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_SECONDS)

    def _take_query(self, frame: Frame) -> None:
        message = self._decode(frame)
        if not isinstance(message, Query):
            self._refuse(frame, message)
        elif self._is_ours(message.tenant, message.source, message.reply_to):
            self._start(self._answer_query, message, frame.content_type)

    def _take_request(self, frame: Frame) -> None:
        message = self._decode(frame)
        if not isinstance(message, Remember | Forget | ListRecords | AllowRecords):
            self._refuse(frame, message)
        elif self._is_ours(message.tenant, message.source, message.reply_to):
            self._start(self._answer_request, message, codec.JSON if message.reply_as == "json" else codec.MSGPACK)

    def _decode(self, frame: Frame) -> AnyMessage | ContextBusError:
        try:
            return codec.decode_message(frame.data, frame.content_type)
        except ContextBusError as exc:
            return exc

    def _is_ours(self, tenant: str, source: str, reply_to: str) -> bool:
        """Whether a request may be served: a wrong reply address would make us write where its sender may not."""
        if tenant == self._tenant and source == self.name and subjects.is_reply_address(reply_to, self._tenant):
            return True
        _log.warning("worker_dropped", source=self.name, reason="tenant, source or reply address is not ours")
        return False

    def _refuse(self, frame: Frame, message: AnyMessage | ContextBusError) -> None:
        _log.warning("worker_dropped", source=self.name, reason="not a request of this subject", size=len(frame.data))
        if not subjects.is_reply_address(frame.reply, self._tenant):
            return
        text = message.message if isinstance(message, ContextBusError) else "not a request that this subject takes"
        reply = ErrorReply(run="", command="", code="invalid_request", message=text)
        self._reply(frame.reply, reply, frame.content_type)

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._waiting >= MAX_WAITING:
            # Whoever asked treats silence as a late answer, and asks again.
            _log.warning("worker_dropped", source=self.name, reason="too many requests wait")
            return
        self._waiting += 1
        # A task of the loop, in no group: a cancellation of the worker lets what was taken be answered first.  And a
        # bus may call us outside of any task, where anyio cannot tell the loop once sniffio is installed.
        task = asyncio.get_running_loop().create_task(self._guard(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as exc:  # one request must not end the worker
            _log.error("worker_request_failed", source=self.name, error=type(exc).__name__)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle.set()

    async def _answer_query(self, query: Query, content_type: str) -> None:
        answer = await self._handler(query)
        if isinstance(answer, Failed):
            _log.warning(
                "source_failed",
                source=self.name,
                code=answer.code,
                origin_code=answer.origin_code,
                origin_type=answer.origin_type,
            )
        try:
            self._reply(query.reply_to, answer, content_type)
        except PayloadTooLargeError:
            refused = Failed(
                run=query.run, token=query.token, source=self.name, code="error", origin_code="payload_too_large"
            )
            _log.warning("source_failed", source=self.name, code="error", origin_code="payload_too_large")
            self._reply(query.reply_to, refused, content_type)

    async def _answer_request(self, request: AdminRequest, content_type: str) -> None:
        source = self._source
        if not isinstance(source, Administered):
            return
        try:
            reply: AdminReply | ErrorReply = await source.administer(request)
        except ContextBusError as exc:
            reply = refuse(request.run, request.message_id, exc)
        except Exception as exc:  # the client learns that it failed, not what was in it
            _log.error("source_request_failed", source=self.name, error=type(exc).__name__)
            reply = refuse(request.run, request.message_id, InternalError(f"source {self.name!r} failed; see its log"))
        try:
            self._reply(request.reply_to, reply, content_type)
        except PayloadTooLargeError as exc:
            self._reply(request.reply_to, refuse(request.run, request.message_id, exc), content_type)

    def _reply(self, to: str, message: Offered | Failed | AdminReply | ErrorReply, content_type: str) -> None:
        data = codec.encode_message(message, content_type)
        if len(data) > self._bus.longest:
            raise PayloadTooLargeError(
                f"an answer of {len(data)} bytes is larger than the bus takes ({self._bus.longest}); ask for less"
            )
        try:
            self._bus.publish(to, data, content_type=content_type)
        except BusUnavailableError:
            # Nothing is sent while disconnected; the deadline of whoever asked covers it.
            _log.warning("worker_answer_unsent", source=self.name)


async def keep_running(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    first: float = FIRST_BACKOFF_SECONDS,
    longest: float = LONGEST_BACKOFF_SECONDS,
) -> None:
    """Run work again whenever it fails or ends, after a wait that doubles up to ``longest`` seconds.

    After work that lasted longer than ``longest`` the first wait applies again.
    """
    wait = first
    while True:
        begun = anyio.current_time()
        try:
            await work()
        except Exception as exc:  # it may fail in any way, and is started again
            _log.warning("worker_restarts", source=name, error=type(exc).__name__, seconds=round(wait, 3))
        if anyio.current_time() - begun > longest:
            wait = first
        await anyio.sleep(wait)
        wait = min(wait * 2, longest)

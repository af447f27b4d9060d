"""What leaves a process: aged, encoded, and by reference where it is too large for the bus."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from contextbus.actors.append import BlobsPut
from contextbus.runtime.bus import Bus, BusUnavailableError
from contextbus.runtime.clock import Clock
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import PackageStore
from contextbus.runtime.worker_answers import Question
from contextbus_protocol import codec
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.compaction import Compact, Summarise
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.envelope import Command, ReplyEncoding
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.messages import AnyMessage, ByReference
from contextbus_protocol.questions import Query

LONGEST_MESSAGE: Final = 256 * 1024
TRANSIT: Final = ""

_CONTENT_TYPES: Final[dict[ReplyEncoding, str]] = {"msgpack": codec.MSGPACK, "json": codec.JSON}

_log = get_logger(__name__)


class Arrivals:
    """When the commands of runs arrived, so that what they cause can say how much of their time is left.

    Args:
        clock: Read when a command arrives and when a message leaves.
        limit: How many commands are remembered.
    """

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._moments: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, message: AnyMessage) -> None:
        """Remember when a command, or what stands for one, arrived; a later attempt brings its own time."""
        if isinstance(message, Command):
            self._put(message.run, message.command)
        elif isinstance(message, Place | Record | Compact):
            self._put(message.run, message.head.command)

    def age(self, message: AnyMessage) -> AnyMessage:
        """Take from the time left what was spent since the command arrived."""
        if isinstance(message, Query | Summarise):
            return self.age_question(message)
        if isinstance(message, Place | Record | Compact):
            left = self._left(message.run, message.head.command, message.head.seconds_left)
            return msgspec.structs.replace(message, head=msgspec.structs.replace(message.head, seconds_left=left))
        return message

    def age_question(self, question: Question) -> Question:
        """Take from the time left of a question to a worker what was spent since the command arrived."""
        left = self._left(question.run, question.command, question.seconds_left)
        return msgspec.structs.replace(question, seconds_left=left)

    def _put(self, run: str, command: str) -> None:
        self._moments[run, command] = self._clock.elapsed()
        if len(self._moments) > self._limit:
            self._moments.popitem(last=False)

    def _left(self, run: str, command: str, seconds: float) -> float:
        arrived = self._moments.get((run, command))
        return seconds if arrived is None else max(0.0, seconds - (self._clock.elapsed() - arrived))


class Outbox:
    """Sends messages over the bus.

    Args:
        bus: The bus.
        packages: Where the bytes of large messages are put.
        tenant: Whose messages they are.
        arrivals: Tells how much time is left.
        stats: Counts what could not be sent.
        lost: Told the reply address of a message that was to be stored first and could not be sent then.
        spawn: Starts a task of the host.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        packages: PackageStore,
        tenant: str,
        arrivals: Arrivals,
        stats: HostStats,
        lost: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._bus = bus
        self._packages = packages
        self._tenant = tenant
        self._arrivals = arrivals
        self._stats = stats
        self._lost = lost
        self._spawn = spawn

    def send(self, to: str, message: AnyMessage, encoding: ReplyEncoding = "msgpack", reply: str = "") -> bool:
        """Send a message, or start to store it and then send its reference.

        Returns:
            Whether it was handed over; nothing is kept for later.
        """
        content_type = _CONTENT_TYPES[encoding]
        try:
            data = codec.encode_message(self._arrivals.age(message), content_type)
            if len(data) > min(LONGEST_MESSAGE, self._bus.longest or LONGEST_MESSAGE):
                self._spawn(self._send_reference(to, message.run, data, content_type, reply))
            else:
                self._bus.publish(to, data, reply=reply, content_type=content_type)
        except (BusUnavailableError, ContextBusError) as error:
            self._fail(message.run, error)
            return False
        return True

    async def _send_reference(self, to: str, run: str, data: bytes, content_type: str, reply: str) -> None:
        digest = digest_bytes(data)
        # No commit names it: the sweep erases it when whoever gets the reference has long read it.
        stored = await self._packages.put(run, ((digest, data),), TRANSIT)
        if not isinstance(stored, BlobsPut):
            self._fail(run, BusUnavailableError(type(stored).__name__))
            self._lost(reply)
            return
        reference = ByReference(run=run, tenant=self._tenant, digest=digest, size=len(data), content_type=content_type)
        try:
            self._bus.publish(to, codec.encode_message(reference, content_type), reply=reply, content_type=content_type)
        except (BusUnavailableError, ContextBusError) as error:
            self._fail(run, error)
            self._lost(reply)

    def _fail(self, run: str, error: Exception) -> None:
        self._stats.unsent += 1
        _log.warning("message_not_sent", run=run, error=type(error).__name__)

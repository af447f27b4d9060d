"""Service discovery: actors and workers answer `$SRV`, so that `nats micro ls` shows them.

On subscriptions of the connection, which outlive a client, where nats-py's own services do not.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from contextbus.runtime.clock import Clock, SystemClock, format_moment
from contextbus.runtime.connection import Connection
from contextbus.runtime.connection_errors import DisconnectedError, OverloadedError
from contextbus.runtime.subscription import Subscription


class Endpoint(msgspec.Struct, kw_only=True):
    """A subject that a service answers, and what it did so far.

    Attributes:
        num_requests: How many messages it took.
        num_errors: How many of them ended in an error.
        processing_time: How long it worked, in nanoseconds.
        last_error: The code of the last error; no content.
    """

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    processing_time: int = 0
    last_error: str = ""

    def record(self, nanoseconds: int, error: str = "") -> None:
        """Count a message, how long it took and the code of its error, if any."""
        self.num_requests += 1
        self.processing_time += nanoseconds
        if error:
            self.num_errors += 1
            self.last_error = error


Verb = Literal["PING", "INFO", "STATS"]
VERBS: Final[tuple[Verb, ...]] = ("PING", "INFO", "STATS")


def service_name(name: str) -> str:
    """The name of an actor or source for service discovery, which knows fewer characters than our names have."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)


class Service:
    """An actor or a worker, as `nats micro` sees it.

    Args:
        name: Its name, of `[A-Za-z0-9_-]`.
        version: Its version, of three numbers.
        description: What it does.
        endpoints: The subjects that it answers.
        metadata: More to be shown.
        clock: Dates its start.
    """

    def __init__(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        endpoints: tuple[Endpoint, ...] = (),
        metadata: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.id = secrets.token_hex(11)
        self.endpoints = endpoints
        self._identity: dict[str, object] = {
            "name": name,
            "id": self.id,
            "version": version,
            "metadata": dict(metadata or {}),
        }
        self._description = description
        self._started = format_moment((clock or SystemClock()).now())
        self._subscriptions: list[Subscription] = []

    async def register(self, connection: Connection, verbs: Sequence[Verb] = VERBS) -> None:
        """Answer discovery from now on; who is not ready to work yet answers ``INFO`` alone."""

        def answer(subject: str, reply: str, _headers: Mapping[str, str], _data: bytes) -> None:
            # Who asked can ask again; discovery is no reason to fail.
            with suppress(DisconnectedError, OverloadedError):
                if reply:
                    connection.send(reply, self._describe(subject.split(".")[1]))

        for verb in verbs:
            for suffix in ("", f".{self.name}", f".{self.name}.{self.id}"):
                subscription = await connection.subscribe(f"$SRV.{verb}{suffix}", answer)
                self._subscriptions.append(subscription)

    async def withdraw(self, connection: Connection) -> None:
        """Answer no more."""
        while self._subscriptions:
            await connection.unsubscribe(self._subscriptions.pop())

    def _describe(self, verb: str) -> bytes:
        described: dict[str, object] = {
            **self._identity,
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
        }
        if verb == "INFO":
            described["description"] = self._description
            described["endpoints"] = [
                {"name": e.name, "subject": e.subject, "queue_group": e.queue_group, "metadata": {}}
                for e in self.endpoints
            ]
        if verb == "STATS":
            described["started"] = self._started
            described["endpoints"] = [
                {
                    **msgspec.structs.asdict(e),
                    "average_processing_time": e.processing_time // max(1, e.num_requests),
                }
                for e in self.endpoints
            ]
        return msgspec.json.encode(described)

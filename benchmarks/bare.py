"""The yardstick: bare nats-py, which stores and sends the same bytes and knows no rule."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import nats
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from benchmarks.sizes import Stored
from contextbus_protocol.digests import digest_bytes

TENANT = "bare"


class BareClient(Protocol):
    """What is used of nats-py's client, with the types that it leaves open."""

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send a message."""
        ...

    async def subscribe(
        self, subject: str, queue: str = "", cb: Callable[[Msg], Awaitable[None]] | None = None
    ) -> object:
        """Take messages."""
        ...

    async def flush(self) -> None:
        """Wait until the server has what was sent."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...

    def jetstream(self) -> JetStreamContext:
        """The API of streams."""
        ...

    def new_inbox(self) -> str:
        """A reply address."""
        ...


async def connect_bare(url: str, token: str) -> BareClient:
    """Connect with nats-py itself."""
    return cast("BareClient", await cast("Any", nats).connect(url, token=token))


class BareStore:
    """Stores a step: its blobs at once, then its commit.

    Args:
        client: The connection to the server.
    """

    def __init__(self, client: BareClient) -> None:
        self._jetstream: JetStreamContext = client.jetstream()
        self._last: dict[str, int] = {}
        self._counter = itertools.count(1)

    async def store(self, run: str, blobs: Sequence[bytes], commit: bytes) -> None:
        """Store the blobs, gathered, and then the commit, with the headers that ours have."""
        command = f"{next(self._counter):032x}"
        publish = self._jetstream.publish
        headers = {"Ctx-Command": command, "Ctx-Run": run}
        prefix = f"ctx.blob.{TENANT}.{run}.{command}"
        await asyncio.gather(
            *(publish(f"{prefix}{index:032x}", blob, headers=headers) for index, blob in enumerate(blobs))
        )
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(self._last.get(run, 0)),
            "Nats-Msg-Id": digest_bytes(command.encode()),
            "Ctx-Command": command,
        }
        stored = await publish(f"ctx.log.{TENANT}.{run}.run", commit, headers=headers)
        self._last[run] = stored.seq


async def take_bare_steps(store: BareStore, run: str, steps: Sequence[Stored]) -> None:
    """Store the steps of a run, one after the other."""
    for step in steps:
        await store.store(run, step.blobs, step.commit)

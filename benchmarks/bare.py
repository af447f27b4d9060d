"""The yardstick: bare nats-py, which stores and sends the same bytes and knows no rule."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from nats.aio.client import Client
from nats.js.client import JetStreamContext

from benchmarks.sizes import Stored
from contextbus_protocol.digests import digest_bytes

TENANT = "bare"


class BareStore:
    """Stores a step: its blobs at once, then its commit.

    Args:
        client: The connection to the server.
    """

    def __init__(self, client: Client) -> None:
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

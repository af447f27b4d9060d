"""One bare actor or source as a process of its own: nats-py callbacks with our hops and bytes, and no rule.

A message is its key and filler.  A key is ``<kind>.<run>.<step>``, with the number of the command before it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import msgspec
from nats.aio.msg import Msg

from benchmarks.bare import BareClient, BareStore, connect_bare
from benchmarks.loops import loop_factory
from benchmarks.processes import run_child, serve_until_parent_ends
from benchmarks.sizes import Hops
from benchmarks.workload import SOURCES, StepKind

INBOX: Final = "bare.inbox"


class BareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: the server, its part, the bytes of each hop, and the bytes that a step stores."""

    url: str
    token: str
    role: str
    hops: dict[StepKind, Hops]
    blobs: dict[StepKind, tuple[int, ...]]
    commits: dict[StepKind, int]
    uvloop: bool = False


def fill(key: str, size: int) -> bytes:
    """A message of a size that begins with its key."""
    return f"{key} ".encode().ljust(size, b".")


def key_of(message: Msg) -> str:
    """The key of a message."""
    return message.data[: message.data.index(b" ")].decode()


def kind_of(key: str) -> StepKind:
    """The kind of step that a key is of."""
    return "refresh" if key.startswith("refresh") else "reused"


class BareActor:
    """The callbacks of one part.

    Args:
        client: The connection.
        given: What the child was told.
    """

    def __init__(self, client: BareClient, given: BareSettings) -> None:
        self._client = client
        self._given = given
        self._replies: dict[str, str] = {}
        self._missing: dict[str, int] = {}
        self._store = BareStore(client)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribe to what the part takes."""
        role, subscribe = self._given.role, self._client.subscribe
        if role == "selection":
            await subscribe("bare.selection", queue=role, cb=self._compile)
            await subscribe(f"{INBOX}.selection.items", cb=self._items)
            await subscribe(f"{INBOX}.selection.offer", cb=self._offer)
            await subscribe(f"{INBOX}.selection.committed", cb=self._committed)
        elif role == "working-memory":
            await subscribe("bare.working-memory", queue=role, cb=self._ask)
        elif role == "placement":
            await subscribe("bare.placement", queue=role, cb=self._place)
        else:
            await subscribe(f"bare.query.{role}", queue=role, cb=self._query)
        await self._client.flush()

    def _hops(self, key: str) -> Hops:
        return self._given.hops[kind_of(key)]

    async def _compile(self, message: Msg) -> None:
        key = key_of(message)
        self._replies[key] = message.reply
        ask = fill(key, self._hops(key).ask)
        await self._client.publish("bare.working-memory", ask, reply=f"{INBOX}.selection.items")

    async def _ask(self, message: Msg) -> None:
        key = key_of(message)
        await self._client.publish(message.reply, fill(key, self._hops(key).items))

    async def _items(self, message: Msg) -> None:
        key = key_of(message)
        hops = self._hops(key)
        self._missing[key] = hops.sources
        for name, _ in SOURCES[: hops.sources]:
            await self._client.publish(f"bare.query.{name}", fill(key, hops.query), reply=f"{INBOX}.selection.offer")
        if not hops.sources:
            await self._decide(key)

    async def _query(self, message: Msg) -> None:
        key = key_of(message)
        await self._client.publish(message.reply, fill(key, self._hops(key).offer))

    async def _offer(self, message: Msg) -> None:
        key = key_of(message)
        self._missing[key] -= 1
        if not self._missing[key]:
            await self._decide(key)

    async def _decide(self, key: str) -> None:
        del self._missing[key]
        await self._client.publish("bare.placement", fill(key, self._hops(key).place), reply=self._replies.pop(key))

    async def _place(self, message: Msg) -> None:
        # A task each, so that the steps of other runs need not wait for the log.
        task = asyncio.ensure_future(self._commit(key_of(message), message.reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _commit(self, key: str, reply: str) -> None:
        kind = kind_of(key)
        blobs = [bytes(size) for size in self._given.blobs[kind]]
        await self._store.store(key.split(".")[1], blobs, bytes(self._given.commits[kind]))
        await self._client.publish(f"{INBOX}.selection.committed", fill(key, self._hops(key).committed))
        await self._client.publish(reply, fill(key, self._hops(key).compiled))

    async def _committed(self, message: Msg) -> None:
        key_of(message)


async def serve_bare(given: BareSettings) -> None:
    """Serve until the parent ends."""
    client = await connect_bare(given.url, given.token)
    try:
        await BareActor(client, given).start()
        await serve_until_parent_ends()
    finally:
        await client.close()


def main() -> None:
    """Run the child that the argument describes."""
    given = msgspec.json.decode(sys.argv[1], type=BareSettings)
    run_child(lambda: serve_bare(given), loop_factory(uvloop=given.uvloop))


if __name__ == "__main__":
    main()

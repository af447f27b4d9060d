"""What comes back to a connection: reply addresses, and who waits for an answer at them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

import msgspec

from contextbus.runtime.connection_errors import DisconnectedError
from contextbus.runtime.nats_client import Handler

_REQUEST = "r"


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    headers: Mapping[str, str]
    data: bytes


class Answers:
    """The reply addresses of one connection, told apart by counters.

    Args:
        prefix: What all addresses begin with.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._counter = itertools.count(1)
        self._inboxes: dict[str, Handler] = {}
        self._expected: dict[str, asyncio.Future[Reply]] = {}

    def open(self, handler: Handler) -> str:
        """Make a prefix whose addresses all belong to one handler."""
        key = str(next(self._counter))
        self._inboxes[key] = handler
        return f"{self.prefix}.{key}"

    def close(self, prefix: str) -> None:
        """Drop what still comes to a prefix."""
        self._inboxes.pop(prefix.rpartition(".")[2], None)

    def expect(self) -> tuple[str, asyncio.Future[Reply]]:
        """Make an address for one answer, and what will hold it."""
        token = str(next(self._counter))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._expected[token] = future
        return f"{self.prefix}.{_REQUEST}.{token}", future

    def forget(self, address: str) -> None:
        """Drop an answer that comes too late."""
        self._expected.pop(address.rpartition(".")[2], None)

    def receive(self, subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> None:
        """Give what came to whom it belongs; what nobody waits for is dropped."""
        key, _, token = subject[len(self.prefix) + 1 :].partition(".")
        if key == _REQUEST:
            future = self._expected.get(token)
            if future is not None and not future.done():
                future.set_result(Reply(headers, data))
            return
        handler = self._inboxes.get(key)
        if handler is not None:
            handler(subject, reply, headers, data)

    def abandon(self) -> None:
        """Tell all who wait that their connection is gone: the answer may never come."""
        for future in self._expected.values():
            if not future.done():
                future.set_exception(DisconnectedError("the connection broke before the answer"))

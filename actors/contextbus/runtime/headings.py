"""Headings of a stream: a consumer that gives no bodies, pulled page by page and gone after each page."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Mapping

import msgspec

from contextbus.runtime.connection import Connection
from contextbus.runtime.connection_errors import DisconnectedError, NoRespondersError, OverloadedError
from contextbus.runtime.jetstream_api import Failure
from contextbus.runtime.journal import COMMAND_HEADER, Heading, Headings, Unanswered

IDLE_SECONDS = 30.0
"""After so long the server ends a consumer that nobody pulls from."""

_NANOSECONDS = 1e9
_PLAIN_TOKENS = 9
"""Tokens of a delivery's reply address; a newer server puts domain and account before the stream."""

_walks = itertools.count(1)


class _Created(msgspec.Struct, frozen=True):
    error: Failure | None = None


class _Place(msgspec.Struct, frozen=True):
    """What a delivery's reply address says of its message."""

    sequence: int
    delivery: int
    stored_at: float
    pending: int


async def read_headings(
    connection: Connection, stream: str, pattern: str, *, after: int, limit: int, seconds: float
) -> Headings | Unanswered:
    """Read one page of headings.

    Args:
        connection: The connection.
        stream: The stream of the pattern.
        pattern: Which subjects.
        after: The sequence behind which to begin.
        limit: How many at most.
        seconds: How long each answer is waited for.
    """
    name = f"headings-{secrets.token_hex(8)}"
    config = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "filter_subject": pattern,
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(IDLE_SECONDS * _NANOSECONDS),
    }
    body = msgspec.json.encode({"stream_name": stream, "config": config})
    try:
        created = await connection.request(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body, seconds)
        if msgspec.json.decode(created.data, type=_Created).error is not None:
            return Unanswered("refused")
        outcome = await _pull(connection, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", limit, seconds)
        # Only to be tidy: left alone it ends by itself.
        connection.send(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"")
    except NoRespondersError:
        return Unanswered("no-responders")
    except DisconnectedError:
        return Unanswered("disconnected")
    except OverloadedError:
        return Unanswered("overloaded")
    except TimeoutError:
        return Unanswered("timeout")
    except msgspec.DecodeError:
        return Unanswered("malformed")
    return outcome


async def _pull(connection: Connection, subject: str, limit: int, seconds: float) -> Headings | Unanswered:
    # What a consumer gives out keeps its own subject, so that only a subscription of its own knows whose it is.
    address = f"ctx.inbox.{connection.tenant}.{connection.client_id}-headings.{next(_walks)}"
    page = _HeadingPage(limit)
    subscription = await connection.subscribe(address, page.receive)
    try:
        connection.send(subject, msgspec.json.encode({"batch": limit, "no_wait": True}), address)
        return await page.read(seconds)
    finally:
        await connection.unsubscribe(subscription)


class _HeadingPage:
    """The headings of one pull, checked to be all that the server sent."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: list[Heading] = []
        self._came = asyncio.Event()
        self._outcome: Headings | Unanswered | None = None

    async def read(self, seconds: float) -> Headings | Unanswered:
        """Wait until the page is whole, at most some seconds from one message to the next."""
        while self._outcome is None:
            self._came.clear()
            async with asyncio.timeout(seconds):
                await self._came.wait()
        return self._outcome

    def receive(self, subject: str, reply: str, headers: Mapping[str, str], _data: bytes) -> None:
        """Take what the consumer gives out."""
        if self._outcome is None:
            try:
                self._outcome = self._take(subject, reply, headers)
            except (ValueError, IndexError):
                self._outcome = Unanswered("malformed")
        self._came.set()

    def _take(self, subject: str, reply: str, headers: Mapping[str, str]) -> Headings | Unanswered | None:
        status = headers.get("Status")
        if status == "503":
            return Unanswered("no-responders")
        if status is not None:
            # Nothing, or nothing more: the place of the last message told whether that is all.
            return Unanswered("gap") if self._found else Headings((), more=False)
        place = _place_of(reply)
        if place.delivery != len(self._found) + 1:
            return Unanswered("gap")
        size = int(headers["Nats-Msg-Size"]) if "Nats-Msg-Size" in headers else 0
        command = headers.get(COMMAND_HEADER, "")
        self._found.append(Heading(place.sequence, subject, command, size, place.stored_at))
        if place.pending == 0 or len(self._found) == self._limit:
            return Headings(tuple(self._found), more=place.pending > 0)
        return None


def _place_of(reply: str) -> _Place:
    """Read `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<tries>.<stream seq>.<seq>.<time>.<pending>[.<token>]`."""
    tokens = reply.split(".")
    start = 5 if len(tokens) == _PLAIN_TOKENS else 7
    sequence, delivery, moment, pending = (int(token) for token in tokens[start : start + 4])
    return _Place(sequence, delivery, moment / _NANOSECONDS, pending)

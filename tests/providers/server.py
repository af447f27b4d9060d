"""An HTTP server on a free port of this machine that plays one provider by a script, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, cast

import msgspec

from tests.core.checkers import errors
from tests.providers.anthropic_wire import AnthropicWire
from tests.providers.openai_wire import OpenAIWire
from tests.providers.prompt_cache import CacheUse
from tests.providers.turns import Answer, Found, Overflow, Provider, Refusal, Turn

PIECE: Final = 61
"""Bytes of one chunk of a stream: lines, events and characters are torn apart, as on a real connection."""

SCRIPT_OVER: Final = Refusal(400, "script_over", "the script has no further turn")


class Wire(Protocol):
    """What the providers differ in."""

    path: str
    prefix: str
    kind: str

    def unauthorised(self, headers: Mapping[str, str]) -> Refusal | None: ...
    def check(self, body: Mapping[str, Any]) -> Found: ...
    def overflow(self, body: Mapping[str, Any]) -> Refusal: ...
    def error(self, refusal: Refusal, number: int) -> dict[str, Any]: ...
    def reply(self, body: Mapping[str, Any], answer: Answer, number: int) -> tuple[dict[str, Any], CacheUse]: ...
    def events(self, body: Mapping[str, Any], answer: Answer, message: Mapping[str, Any]) -> Iterator[bytes]: ...


class Exchange(msgspec.Struct, kw_only=True):
    """A request and what became of it: ``found`` are broken rules, L rules too, ``message`` is the whole answer."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    status: int = 0
    found: Found = msgspec.field(default_factory=list[tuple[str, str]])
    turn: Turn | None = None
    used: CacheUse | None = None
    message: dict[str, Any] | None = None


class ProviderServer:
    """A provider on a port: ``url`` is the ``base_url`` for its SDK, ``exchanges`` what it was asked, in order.

    Args:
        wire: the provider.
        script: what it answers; a request that breaks a rule takes no turn.
        strict: whether L rules are refused too, as strict endpoints do.
    """

    def __init__(self, wire: Wire, script: Iterable[Turn], *, strict: bool) -> None:
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._wire = wire
        self._script = iter(script)
        self._strict = strict
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def statuses(self) -> list[int]:
        """How each request was answered."""
        return [exchange.status for exchange in self.exchanges]

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every connection."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while (exchange := await _read(reader)) is not None and await self._answer(exchange, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, which is its right
        finally:
            writer.close()

    async def _answer(self, exchange: Exchange, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; whether the connection stays open."""
        self.exchanges.append(exchange)
        number = len(self.exchanges)
        turn = self._refuse(exchange) or next(self._script, SCRIPT_OVER)
        exchange.turn = turn
        if isinstance(turn, Overflow):
            turn = self._wire.overflow(exchange.body)
        if isinstance(turn, Refusal):
            exchange.status = turn.status
            await _send(writer, turn.status, json.dumps(self._wire.error(turn, number)).encode())
            return True
        exchange.status = 200
        exchange.message, exchange.used = self._wire.reply(exchange.body, turn, number)
        await asyncio.sleep(turn.seconds)
        if exchange.body.get("stream"):
            await _stream(writer, b"".join(self._wire.events(exchange.body, turn, exchange.message)))
            if turn.cut is not None and turn.ending == "broken":
                return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        else:
            await _send(writer, 200, json.dumps(exchange.message).encode())
        return True

    def _refuse(self, exchange: Exchange) -> Refusal | None:
        """Why a request is refused before any turn is taken."""
        if exchange.path != self._wire.path:
            return Refusal(404, "not_found_error", f"there is only {self._wire.path} here")
        if (refusal := self._wire.unauthorised(exchange.headers)) is not None:
            return refusal
        if not exchange.headers.get("content-type", "").startswith("application/json"):
            return Refusal(400, self._wire.kind, "content-type: must be application/json")
        if not exchange.body:
            return Refusal(400, self._wire.kind, "the body is no JSON object")
        exchange.found = self._wire.check(exchange.body)
        broken = exchange.found if self._strict else errors(exchange.found)
        if not broken:
            return None
        return Refusal(400, self._wire.kind, "; ".join(f"{code} at {place}" for code, place in broken))


@asynccontextmanager
async def serve(
    provider: Provider, script: Iterable[Turn], *, strict: bool = True, binds: bool = False, port: int = 0
) -> AsyncGenerator[ProviderServer]:
    """Serve a provider for as long as the block lasts.

    Args:
        provider: which one.
        script: what it answers, one turn a request.
        strict: whether L rules are refused too.
        binds: whether Anthropic's thinking holds only behind the messages it was written behind.
        port: a port; 0 is a free one.
    """
    wire: Wire = AnthropicWire(binds=binds) if provider == "anthropic" else OpenAIWire()
    played = ProviderServer(wire, script, strict=strict)
    server = await asyncio.start_server(played.connect, "127.0.0.1", port, limit=2**20)
    played.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{wire.prefix}"
    try:
        yield played
    finally:
        server.close()
        await played.close()


async def _read(reader: asyncio.StreamReader) -> Exchange | None:
    """The next request of a connection; None when there is no further one."""
    first = (await reader.readline()).decode("latin-1").split()
    if len(first) < 2:
        return None
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    body: Any = None
    with suppress(ValueError):
        body = json.loads(raw)
    if not isinstance(body, dict):
        body = {}
    return Exchange(path=first[1].partition("?")[0], headers=headers, raw=raw, body=cast("dict[str, Any]", body))


async def _send(writer: asyncio.StreamWriter, status: int, data: bytes) -> None:
    head = f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()

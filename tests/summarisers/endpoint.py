"""An endpoint on a real socket that says what a test has it say, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Server Error"}


class Asked:
    """One request."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.path = path
        self.headers = headers
        self.body = body


class Endpoint:
    """What it answers next, what it was asked, and whether a caller that waited has gone."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.status = 200
        self.answer: object = {}
        self.content_type = "application/json"
        self.silent = False
        self.waits = asyncio.Event()
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while (first := await reader.readline()) not in {b"", b"\r\n"}:
                headers: dict[str, str] = {}
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append(Asked(first.decode().split()[1], headers, json.loads(body)))
                if self.silent:
                    self.waits.set()
                    assert await reader.read() == b""
                    self.gone.set()
                    return
                data = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
                head = (
                    f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\ncontent-type: {self.content_type}\r\n"
                    f"retry-after: 0\r\ncontent-length: {len(data)}\r\n\r\n"
                )
                writer.write(head.encode() + data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def serve_endpoint() -> AsyncGenerator[Endpoint]:
    """Serve an endpoint on a free port of this machine."""
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    endpoint.url = f"http://{host}:{port}"
    async with server:
        yield endpoint

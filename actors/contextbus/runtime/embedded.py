"""The embedded nats-server: one per data folder, started by the first process that needs it.

The first process that opens a folder takes its lock and becomes the *owner*: it starts the server,
and again, on the same port, if it dies.  Later processes *attach*: they read where the server
answers and connect.  The server ends with its owner.  A process that was attached then gets
`DisconnectedError` from its connection, `Server.lost` says why, and opening the folder again takes
over: the next to get the lock owns the server, and who is still attached finds it through
`Server.locate`.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from contextbus.runtime.datafolder import DataFolder, DataFolderError, Endpoint
from contextbus.runtime.server_binary import find_server
from contextbus.runtime.server_process import GuardMode, ServerFailedError, ServerProcess

Durability = Literal["fsync", "interval"]

DEFAULT_FOLDER = Path(".contextbus")
START_SECONDS = 10.0


class Server:
    """A running nats-server and how to reach it.

    Attributes:
        folder: The data folder.
        owned: Whether this process started the server, and ends it.
    """

    def __init__(self, folder: DataFolder, endpoint: Endpoint, process: ServerProcess | None) -> None:
        self.folder = folder.path
        self.owned = process is not None
        self._folder = folder
        self._endpoint = endpoint
        self._process = process

    def __repr__(self) -> str:
        return f"Server(url={self.url!r}, owned={self.owned}, pid={self.pid})"

    @property
    def endpoint(self) -> Endpoint:
        """Where the server answers now."""
        if self._process is not None:
            return self._process.endpoint or self._endpoint
        return self._endpoint

    @property
    def url(self) -> str:
        """The URL of the server, on the loopback interface."""
        return self.endpoint.url

    @property
    def token(self) -> str:
        """The secret that the server asks for."""
        return self.endpoint.token

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self.endpoint.pid

    @property
    def durability(self) -> str:
        """When a message is on disk: `fsync`, when acknowledged; `interval`, in two minutes.

        An attached process gets what the owner chose.
        """
        return self.endpoint.durability

    def locate(self) -> Endpoint:
        """Find the server again after a disconnect: a new owner has a new port and secret.

        It may read a file, so call it from a worker thread.
        """
        if self._process is None:
            self._endpoint = self._folder.read_endpoint() or self._endpoint
        return self.endpoint

    def lost(self) -> str | None:
        """Say why the server is gone for good, with the fix; None while it runs or restarts.

        It touches the file system, so call it from a worker thread.
        """
        if self._process is not None:
            return self._process.failure
        descriptor = self._folder.acquire() if self.folder.is_dir() else None
        if descriptor is None and self.folder.is_dir():
            return None
        if descriptor is not None:
            self._folder.release(descriptor)
        return (
            f"the process that owned the nats-server of {self.folder} has ended, and its server "
            "with it: open the bus again, which starts the server anew"
        )


@asynccontextmanager
async def serve(
    folder: Path = DEFAULT_FOLDER,
    *,
    durability: Durability = "fsync",
    guard: GuardMode | None = None,
) -> AsyncGenerator[Server]:
    """Run the nats-server of a data folder, or attach to the one that runs already.

    Args:
        folder: The data folder; made where it is missing, private to the user.
        durability: `fsync`: a message is on disk before it is acknowledged; `interval`: within two
            minutes, which a crash of the process survives and a loss of power may not.
        guard: How the server is made to end with this process; by default `signal` on Linux (the
            kernel does it), elsewhere `pipe` (a watching process).

    Yields:
        The server.

    Raises:
        ServerNotFoundError: No nats-server is at hand.
        DataFolderError: The folder cannot be used, or is locked and its server does not answer.
        ServerFailedError: The server ended while it started.
    """
    place = DataFolder(folder)
    await anyio.to_thread.run_sync(place.prepare)
    found = await _own_or_attach(place)
    if isinstance(found, Endpoint):
        yield Server(place, found, None)
        return
    try:
        binary = await anyio.to_thread.run_sync(find_server)
        process = ServerProcess(
            binary.path,
            place,
            found,
            token=f"ctx{secrets.token_hex(24)}",
            durability=durability,
            guard=guard or ("signal" if sys.platform == "linux" else "pipe"),
        )
        try:
            endpoint = await process.begin(START_SECONDS)
            yield Server(place, endpoint, process)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.end)
    finally:
        place.release(found)


async def attach(folder: Path = DEFAULT_FOLDER) -> Endpoint | None:
    """Find the running server of a data folder without starting one; None if none answers."""
    place = DataFolder(folder)
    endpoint = await anyio.to_thread.run_sync(place.read_endpoint)
    if endpoint is not None and await _answers(endpoint):
        return endpoint
    return None


async def _own_or_attach(place: DataFolder) -> int | Endpoint:
    """Take the lock, or find the server of who has it; whichever comes first."""
    with anyio.move_on_after(START_SECONDS):
        while True:
            # A worker thread is waited for even when cancelled, so a lock it took is not lost.
            descriptor = await anyio.to_thread.run_sync(place.acquire)
            if descriptor is not None:
                return descriptor
            endpoint = await attach(place.path)
            if endpoint is not None:
                return endpoint
            await anyio.sleep(0.02)
    raise DataFolderError(
        f"another process holds the lock of {place.path}, but no nats-server answered there within "
        f"{START_SECONDS:.0f} seconds: wait for it or end it, or name another data folder"
    )


async def _answers(endpoint: Endpoint) -> bool:
    host, _, port = endpoint.url.removeprefix("nats://").rpartition(":")
    try:
        with anyio.fail_after(1):
            stream = await anyio.connect_tcp(host, int(port))
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True


__all__ = [
    "DEFAULT_FOLDER",
    "DataFolderError",
    "Durability",
    "Endpoint",
    "Server",
    "ServerFailedError",
    "attach",
    "find_server",
    "serve",
]

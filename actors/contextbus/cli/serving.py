"""Actors and workers on a server, each visible to service discovery."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

import contextbus
from contextbus.actors.compaction import Compaction
from contextbus.actors.effects import Rule
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus.cli.failures import NoServerError
from contextbus.cli.options import Place, hide_credentials
from contextbus.cli.output import called
from contextbus.runtime import embedded, streams
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.connection_errors import DisconnectedError, NoRespondersError
from contextbus.runtime.datafolder import DataFolder
from contextbus.runtime.discovery import service_name
from contextbus.runtime.embedded import Durability, Server
from contextbus.runtime.host import Host
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.tokenizers import load_tokenizers
from contextbus.sources.announcements import announce
from contextbus.sources.answers import OnError
from contextbus.sources.interface import Source
from contextbus.sources.worker import Worker
from contextbus.summarisers.answers import DEFAULT_CONCURRENCY, Handler
from contextbus.summarisers.answers import OnError as OnSummariserError
from contextbus.summarisers.built_in import EXTRACTIVE_ID, extractive_summariser
from contextbus.summarisers.interface import Summariser
from contextbus_protocol import subjects
from contextbus_protocol.subjects import ActorName

ACTORS: Final[tuple[ActorName, ...]] = ("selection", "working-memory", "placement", "compaction")
READY_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 1.0
LOOKS_FOR_OWNER: Final = 3
FIND_SECONDS: Final = 3.0


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A connection with what actors and workers need of it.

    ``server`` is the embedded one, if it is that; ``starts`` tells that this process would have started it.
    """

    connection: Connection
    journal: JetStreamJournal
    tenant: str
    url: str
    durability: str
    server: Server | None = None
    starts: bool = False

    @property
    def bus(self) -> NatsBus:
        """The bus over the connection."""
        return NatsBus(self.connection)


@asynccontextmanager
async def open_link(
    place: Place,
    name: str,
    *,
    start: bool,
    durability: Durability = "fsync",
    label: str | None = None,
    kinds: Sequence[streams.Kind] = streams.KINDS,
) -> AsyncGenerator[Link]:
    """Connect to the server of a place, and make the tenant's streams where they are missing.

    Args:
        place: where the server is.
        name: what the server's monitoring calls this connection.
        start: start the embedded server if none runs on the data folder; else one must run.
        durability: for an embedded server that is started.
        label: what an acknowledgement rests on, where the server is not ours to know.
        kinds: which streams are needed.

    Raises:
        NoServerError: no server runs on the data folder.
        DisconnectedError: the server cannot be reached, or refuses.
        StreamError: the server has no JetStream, or a stream does not fit.
    """
    tenant = subjects.encode_name(place.tenant)
    async with AsyncExitStack() as stack:
        server: Server | None = None
        if place.nats is not None:
            url, kept = place.nats, "unknown"
            connection = await stack.enter_async_context(connect(url, tenant=tenant, name=name))
        else:
            if start:
                server = await stack.enter_async_context(embedded.serve(place.data, durability=durability))
            else:
                server = await find_server(place)
            url, kept = server.url, server.durability
            connection = await stack.enter_async_context(
                connect(url, token=server.token, tenant=tenant, name=name, locate=server.locate, lost=server.lost)
            )
        made = await streams.ensure(connection, tenant, replicas=place.replicas, durability=kept, kinds=kinds)
        journal = JetStreamJournal(connection)
        stack.callback(journal.close)
        yield Link(
            connection=connection,
            journal=journal,
            tenant=place.tenant,
            url=hide_credentials(url),
            durability=label or made.durability,
            server=server,
            starts=start,
        )


async def find_server(place: Place) -> Server:
    """The server that runs on a data folder.

    Raises:
        NoServerError: none does.
    """
    endpoint = await embedded.attach(place.data)
    if endpoint is None:
        raise NoServerError(
            f"no server runs on the data folder {place.data}: start one with `{called()} up {place.options}`, "
            "or name a running one with --nats URL"
        )
    return Server(DataFolder(place.data), endpoint, None)


@asynccontextmanager
async def serve_actors(link: Link, names: Sequence[ActorName]) -> AsyncGenerator[Host]:
    """Run actors until the block ends; then they take no more, and answer what they took."""
    at_hand = await anyio.to_thread.run_sync(load_tokenizers)
    instance = f"{names[0] if len(names) == 1 else 'actors'}-{secrets.token_hex(8)}"
    inbox = subjects.inbox(link.tenant, instance)
    rules: dict[ActorName, Rule[Any]] = {
        "selection": Selection(link.tenant, f"{inbox}.selection", at_hand.tokenizers, link.durability),
        "working-memory": WorkingMemory(link.tenant, instance),
        "placement": Placement(at_hand.tokenizers, link.durability),
        "compaction": Compaction(link.tenant, f"{inbox}.compaction", at_hand.tokenizers),
    }
    host = Host(link.tenant, instance, link.bus, link.journal, [rules[name] for name in names])
    if "compaction" in names:  # the default summariser is wherever the actor is: no worker needs to run (C.X.9)
        host.add_summariser(EXTRACTIVE_ID, Handler(extractive_summariser()), serve=True)
    async with host:
        yield host


@asynccontextmanager
async def open_asker(link: Link, name: str) -> AsyncGenerator[Host]:
    """A host that runs no actor and asks those of others, until the block ends."""
    async with Host(link.tenant, f"{name}-{secrets.token_hex(8)}", link.bus, link.journal) as host:
        yield host


@asynccontextmanager
async def serve_sources(
    link: Link, sources: Sequence[Source], *, on_error: OnError | None = None
) -> AsyncGenerator[None]:
    """Take the queries of sources until the block ends; ``on_error`` is told what one of them raised.

    Raises:
        InvalidRequestError: a running worker of the same source is of another kind or options (D.K.23).
    """
    async with AsyncExitStack() as stack:
        for source in sources:
            shown = announce(link.connection, link.tenant, source, version=contextbus.__version__)
            service = await stack.enter_async_context(shown)
            await stack.enter_async_context(Worker(link.bus, link.tenant, source, on_error=on_error).serve())
            await service.register(link.connection, ("PING", "STATS"))  # it is ready only now
        yield


@asynccontextmanager
async def serve_summarisers(
    link: Link, summarisers: Sequence[Summariser], *, on_error: OnSummariserError | None = None
) -> AsyncGenerator[None]:
    """Take the requests to summarisers until the block ends; ``on_error`` is told what one of them raised."""
    host = Host(link.tenant, f"summarisers-{secrets.token_hex(8)}", link.bus, link.journal)
    for summariser in summarisers:
        handler = Handler(summariser, on_error=on_error)
        host.add_summariser(summariser.id, handler, concurrency=DEFAULT_CONCURRENCY, serve=True)
    async with AsyncExitStack() as stack:
        if summarisers:
            await stack.enter_async_context(host)
        yield


async def wait_until_served(
    connection: Connection, names: Sequence[str], seconds: float = READY_SECONDS
) -> tuple[str, ...]:
    """Wait until each name answers service discovery; gives those that do not within some seconds."""
    missing = list(names)
    with anyio.move_on_after(seconds):
        while missing:
            try:
                await connection.request(f"$SRV.PING.{service_name(missing[0])}", b"", 1.0)
                missing.pop(0)
            except (NoRespondersError, TimeoutError, DisconnectedError):
                await anyio.sleep(0.05)
    return tuple(missing)


async def find_actors(place: Place) -> None:
    """Make sure that somebody runs the actors: a command would wait for them as long as it may take.

    Raises:
        NoServerError: no server runs on the data folder, or nobody runs one of the actors.
        DisconnectedError: the server cannot be reached.
    """
    tenant, name = subjects.encode_name(place.tenant), "contextbus-find"
    if place.nats is not None:
        made = connect(place.nats, tenant=tenant, name=name)
    else:
        server = await find_server(place)
        made = connect(server.url, token=server.token, tenant=tenant, name=name)
    async with made as connection:
        missing = await wait_until_served(connection, ACTORS, FIND_SECONDS)
    if missing:
        up = f"{called()} up {place.options}"
        one = f"it with `{called()} actor {missing[0]} {place.options}`, all" if len(missing) < len(ACTORS) else "all"
        raise NoServerError(
            f"nobody runs the actor {missing[0]} at the {place.shown}: start {one} with `{up}`, or leave out "
            "--actors remote"
        )


async def wait_for_end(link: Link) -> str:
    """Wait until the embedded server is gone for good; gives why.  A server elsewhere may always come back.

    Who would have started the server does not wait for ever for another owner of it: begun anew, it is the owner.
    """
    server = link.server
    looks = 0
    while True:
        await anyio.sleep(LOOK_SECONDS)
        if server is None or not (server.owned or link.starts):
            continue
        reason = await anyio.to_thread.run_sync(server.lost)
        looks = 0 if reason is None else looks + 1
        if reason is not None and (server.owned or looks >= LOOKS_FOR_OWNER):
            return reason

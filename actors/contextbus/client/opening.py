"""Open a bus: in memory, on an embedded nats-server, or on one that runs already."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread

from contextbus.actors.compaction import Compaction
from contextbus.actors.effects import Rule
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus.client.context_bus import ContextBus
from contextbus.client.memories import Memories
from contextbus.client.redacting import redact_over
from contextbus.core.observer import Observer
from contextbus.runtime import connection, embedded, streams
from contextbus.runtime.bus import Bus
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.embedded import DEFAULT_FOLDER, Durability
from contextbus.runtime.host import Host
from contextbus.runtime.journal import Journal
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.tokenizers import load_tokenizers
from contextbus.sources.answers import handler
from contextbus.sources.interface import Source
from contextbus.sources.memory import MemorySource, memory_source
from contextbus.sources.skills import SkillsSource, skills_source
from contextbus.sources.transcript import DEFAULT_ID as TRANSCRIPT_ID
from contextbus.sources.transcript import TranscriptSource, transcript_source
from contextbus.sources.worker import keep_running
from contextbus.summarisers import answers as summary_answers
from contextbus.summarisers.built_in import EXTRACTIVE_ID, extractive_summariser
from contextbus.summarisers.interface import Summariser, SummaryRequest, summariser_of
from contextbus_protocol import subjects
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Query
from contextbus_protocol.values import SourceSpec

DEFAULT_TENANT: Final = "default"


@asynccontextmanager
async def open_bus(
    url: str | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    data: Path | str = DEFAULT_FOLDER,
    actors: Literal["local", "remote"] = "local",
    sources: Sequence[Source] = (),
    summarisers: Sequence[Summariser | Callable[[SummaryRequest], object]] = (),
    memory: bool = True,
    transcript: bool = False,
    skills: Path | str | None = None,
    tokenizers: Sequence[str] = (),
    durability: Durability = "fsync",
    token: str | None = None,
    replicas: int = 1,
    observer: Observer | None = None,
) -> AsyncGenerator[ContextBus]:
    """Open a bus for as long as the block lasts.

    Args:
        url: ``None`` for an embedded nats-server on ``data``, ``memory:`` for none at all, else a server's URL.
        tenant: whose runs these are.
        data: the data folder of the embedded server and of indexes.
        actors: ``local`` runs selection, working_memory, placement and compaction in this process; ``remote`` asks
            those of others.
        sources: sources that run in this process.
        summarisers: what writes summaries of a compacted history in this process, beside the extractive one that is
            there with local actors (C.X.10).
        memory: run the memory source in this process too (with local actors).
        transcript: run the source of what was said in earlier runs in this process too (with local actors).
        skills: run the source of a folder of skills in this process too.
        tokenizers: names of the tokenizers that steps may count with.
        durability: ``fsync`` or ``interval``, for an embedded server that this process starts.
        token: the secret of the server at ``url``.
        replicas: on how many servers of a cluster each message is stored.
        observer: is told of each compile, for example ``otel_observer()`` (D.S.1).

    Raises:
        ServerNotFoundError: no nats-server is at hand to embed; the message says how to get one.
        DataFolderError: the data folder cannot be used.
        DisconnectedError: the server cannot be reached.
        StreamError: the server has no JetStream, or a stream does not fit.
        InvalidTypeError: two sources or summarisers have one id, or a tokenizer is not at hand.
        NotADirectoryError: there is no folder of skills.
    """
    async with AsyncExitStack() as stack:
        bus: Bus
        journal: Journal
        if url == "memory:":
            bus, journal, rests_on = MemoryBroker().bus(), MemoryJournal(), "memory"
        else:
            bus, journal, rests_on, url = await _connect(
                stack,
                url,
                tenant,
                Path(data),
                durability=durability,
                token=token,
                replicas=replicas,
                kinds=streams.KINDS if actors == "local" else ("log", "blob"),
            )
        counters = await anyio.to_thread.run_sync(load_tokenizers, tuple(tokenizers))
        for name, reason in counters.absent.items():
            raise InvalidTypeError(f"tokenizer {name!r} is not at hand: {reason}")
        instance = f"client-{secrets.token_hex(8)}"
        inbox = subjects.inbox(tenant, instance)
        rules: tuple[Rule[Any], ...] = ()
        if actors == "local":
            rules = (
                Selection(tenant, f"{inbox}.selection", counters.tokenizers, rests_on),
                WorkingMemory(tenant, instance),
                Placement(counters.tokenizers, rests_on),
                Compaction(tenant, f"{inbox}.compaction", counters.tokenizers),
            )
        host = Host(tenant, instance, bus, journal, rules, encode_local=url == "memory:")
        running: list[Source] = list(sources)
        if skills is not None:
            running.append(await _own_skills(stack, skills))
        own = _own_memory(stack, host, journal, data, url) if memory and actors == "local" else None
        if own is not None and all(s.id != own.id for s in running):
            running.append(own)
        if transcript and actors == "local" and all(s.id != TRANSCRIPT_ID for s in running):
            running.append(_own_transcript(stack, journal, tenant, data, url))
        context_bus = ContextBus(
            host,
            journal,
            memories=Memories(host, own),
            local=running,
            tokenizers=counters.tokenizers,
            durability=rests_on,
            url=url or "",
            observer=observer,
        )
        _add_sources(host, context_bus, running)
        _add_summarisers(host, context_bus, summarisers, built_in=actors == "local")
        await stack.enter_async_context(host)
        if own is not None and own in running:
            await stack.enter_async_context(_keep(own))
        yield context_bus


@asynccontextmanager
async def _keep(source: MemorySource) -> AsyncGenerator[None]:
    """Let a source follow what others commit and forget for as long as the block lasts."""
    task = asyncio.create_task(keep_running(source.id, source.keep))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _add_sources(host: Host, context_bus: ContextBus, running: Sequence[Source]) -> None:
    ids: set[str] = set()
    for source in running:
        if source.id in ids:
            raise InvalidTypeError(f"two sources have the id {source.id!r}; give each its own")
        ids.add(source.id)

        def note(query: Query, error: BaseException) -> None:
            context_bus.note_failure(query.run, query.source, error)

        host.add_source(SourceSpec(source.id, source.kind, source.required), handler(source, on_error=note))


def _add_summarisers(
    host: Host,
    context_bus: ContextBus,
    given: Sequence[Summariser | Callable[[SummaryRequest], object]],
    *,
    built_in: bool,
) -> None:
    own = [summariser_of(one) for one in given]
    ids = [one.id for one in own]
    if len(set(ids)) < len(ids):
        raise InvalidTypeError("two summarisers have one id; give each its own")
    if built_in and EXTRACTIVE_ID not in ids:
        own.append(extractive_summariser())

    def note(question: Summarise, error: BaseException) -> None:
        context_bus.note_failure(question.run, question.summariser, error)

    for one in own:
        host.add_summariser(one.id, summary_answers.Handler(one, on_error=note))


def _own_memory(
    stack: AsyncExitStack, host: Host, journal: Journal, folder: Path | str, url: str | None
) -> MemorySource:
    data = None if url == "memory:" else Path(folder)
    source = memory_source(journal, host.tenant, data=data, redact=redact_over(host))
    stack.push_async_callback(source.aclose)
    return source


async def _own_skills(stack: AsyncExitStack, folder: Path | str) -> SkillsSource:
    source = skills_source(folder)
    stack.push_async_callback(source.aclose)
    await source.refresh()
    return source


def _own_transcript(
    stack: AsyncExitStack, journal: Journal, tenant: str, folder: Path | str, url: str | None
) -> TranscriptSource:
    source = transcript_source(journal, tenant, data=None if url == "memory:" else Path(folder))
    stack.push_async_callback(source.aclose)
    return source


async def _connect(
    stack: AsyncExitStack,
    url: str | None,
    tenant: str,
    folder: Path,
    *,
    durability: Durability,
    token: str | None,
    replicas: int,
    kinds: Sequence[streams.Kind],
) -> tuple[Bus, Journal, str, str]:
    """Connect to a server, embedded where no URL is given; make the tenant's streams where they are missing."""
    encoded = subjects.encode_name(tenant)
    if url is None:
        server = await stack.enter_async_context(embedded.serve(folder, durability=durability))
        url, token, kept = server.url, server.token, server.durability
        client = await stack.enter_async_context(
            connection.connect(url, token=token, tenant=encoded, locate=server.locate, lost=server.lost)
        )
    else:
        kept = "unknown"
        client = await stack.enter_async_context(connection.connect(url, token=token, tenant=encoded))
    made = await streams.ensure(client, encoded, replicas=replicas, durability=kept, kinds=kinds)
    journal = JetStreamJournal(client)
    stack.callback(journal.close)
    return NatsBus(client), journal, made.durability, url

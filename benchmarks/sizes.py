"""What a step puts on the bus and into the log, so that the yardstick sends and stores the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

import contextbus.client as contextbus
from benchmarks.workload import STEPS_OF_A_RUN, StepKind, begin_run, make_sources, take_step
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus.client.memories import Memories
from contextbus.runtime.bus import Frame
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.host import Host
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.answers import handler
from contextbus_protocol import codec, subjects
from contextbus_protocol.events import MessagesAppended, StepCompiled
from contextbus_protocol.values import SourceSpec


class Stored(msgspec.Struct, frozen=True):
    """What one step stores: bytes of its blobs and of its commit."""

    blobs: tuple[bytes, ...]
    commit: bytes


class Hops(msgspec.Struct, frozen=True):
    """The bytes of each message of a step between processes; ``sources`` is how many are asked."""

    compile: int = 0
    ask: int = 0
    items: int = 0
    sources: int = 0
    query: int = 0
    offer: int = 0
    place: int = 0
    committed: int = 0
    compiled: int = 0


async def read_stored(kind: StepKind) -> tuple[Stored, ...]:
    """The bytes that the steps of one run store, step by step."""
    async with contextbus.open("memory:", sources=make_sources(), memory=False) as bus:
        run = await begin_run(bus, "bytes", kind)
        for step in range(1, STEPS_OF_A_RUN + 1):
            await take_step(run, kind, step)
        log = await bus.log("bytes")
        blobs = await bus.blobs(log)
        stored: list[Stored] = []
        for logged in log.commits[-STEPS_OF_A_RUN:]:
            events = logged.commit.events
            names = [e.inputs for e in events if isinstance(e, MessagesAppended)]
            names += [e.package for e in events if isinstance(e, StepCompiled)]
            stored.append(Stored(tuple(blobs[n] for n in names), codec.encode_commit(logged.commit)))
        return tuple(stored)


async def read_hops(kind: StepKind) -> Hops:
    """The bytes that one step of a run puts on the bus when every actor and source is a process of its own."""
    broker, journal, tenant = MemoryBroker(), MemoryJournal(), "hops"
    seen: list[tuple[str, int]] = []

    def note(frame: Frame) -> None:
        seen.append((frame.subject, len(frame.data)))

    def host(name: str, *rules: Selection | WorkingMemory | Placement) -> Host:
        return Host(tenant, name, broker.bus(), journal, rules)

    async with AsyncExitStack() as stack:
        await broker.bus().subscribe(">", note)
        inbox = subjects.inbox(tenant, "selection")
        await stack.enter_async_context(host("selection", Selection(tenant, f"{inbox}.selection")))
        await stack.enter_async_context(host("memory", WorkingMemory(tenant, "memory")))
        await stack.enter_async_context(host("placement", Placement()))
        for source in make_sources():
            worker = host(f"source-{source.id}")
            worker.add_source(SourceSpec(source.id, source.kind), handler(source), serve=True)
            await stack.enter_async_context(worker)
        client = await stack.enter_async_context(host("client"))
        bus = contextbus.ContextBus(client, journal, memories=Memories(client, None))
        run = await begin_run(bus, "hops", kind)
        await take_step(run, kind, 1)  # the first of a run reads the log, the next is like all others
        seen.clear()
        await take_step(run, kind, 2)
    return _tell_apart(tenant, seen)


def _tell_apart(tenant: str, seen: list[tuple[str, int]]) -> Hops:
    def sizes(matches: Callable[[str], bool]) -> list[int]:
        return [size for subject, size in seen if matches(subject)]

    inbox = f"{subjects.inbox(tenant, 'selection')}."
    queries = sizes(lambda s: s.startswith("ctx.v1.query."))
    offers = sizes(lambda s: s.startswith(f"{inbox}worker."))
    items, committed = sizes(lambda s: s == f"{inbox}selection")
    return Hops(
        compile=sum(sizes(lambda s: s == subjects.command("selection", tenant))),
        ask=sum(sizes(lambda s: s == subjects.command("working-memory", tenant))),
        items=items,
        sources=len(queries),
        query=max(queries, default=0),
        offer=max(offers, default=0),
        place=sum(sizes(lambda s: s == subjects.command("placement", tenant))),
        committed=committed,
        compiled=sum(sizes(lambda s: s.startswith(f"{subjects.inbox(tenant, 'client')}.client."))),
    )

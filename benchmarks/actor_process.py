"""One of our actors, or one source, as a process of its own: a child of ``benchmarks.separate_processes``."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from benchmarks.loops import loop_factory
from benchmarks.processes import run_child, serve_until_parent_ends
from benchmarks.workload import make_sources
from contextbus.actors.effects import Rule
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.connection import connect
from contextbus.runtime.host import Host
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.sources.answers import handler
from contextbus_protocol import subjects
from contextbus_protocol.values import SourceSpec


class ActorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: the server, the tenant, and which actor or source it is."""

    url: str
    token: str
    tenant: str
    role: str
    uvloop: bool = False


def make_rule(role: str, tenant: str) -> Rule[Any] | None:
    """The rule of an actor; None for a source."""
    match role:
        case "selection":
            return Selection(tenant, f"{subjects.inbox(tenant, role)}.selection")
        case "working-memory":
            return WorkingMemory(tenant, role)
        case "placement":
            return Placement()
        case _:
            return None


async def serve_actor(given: ActorSettings) -> None:
    """Serve until the parent ends."""
    async with connect(given.url, token=given.token, tenant=given.tenant) as connection:
        rule = make_rule(given.role, given.tenant)
        rules = () if rule is None else (rule,)
        host = Host(given.tenant, given.role, NatsBus(connection), JetStreamJournal(connection), rules)
        for source in make_sources():
            if source.id == given.role:
                host.add_source(SourceSpec(source.id, source.kind), handler(source, concurrency=64), serve=True)
        async with host:
            await connection.flush()
            await serve_until_parent_ends()


def main() -> None:
    """Run the child that the argument describes."""
    given = msgspec.json.decode(sys.argv[1], type=ActorSettings)
    run_child(lambda: serve_actor(given), loop_factory(uvloop=given.uvloop))


if __name__ == "__main__":
    main()

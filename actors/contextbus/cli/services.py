"""``contextbus up``, ``actor`` and ``worker``: what runs until it is told to stop."""

from __future__ import annotations

import enum
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import anyio
import anyio.to_thread
import msgspec
import typer
from rich.table import Table
from rich.text import Text

from contextbus.cli import debugging, inputs, options
from contextbus.cli.failures import UNREACHABLE, UsageFault
from contextbus.cli.output import called, print_json, stderr, stdout, warn
from contextbus.cli.processes import Program, Supervisor
from contextbus.cli.running import run
from contextbus.cli.serving import (
    ACTORS,
    Link,
    open_link,
    serve_actors,
    serve_sources,
    serve_summarisers,
    wait_for_end,
    wait_until_served,
)
from contextbus.cli.sources import Names, Served, open_workers, plan, stop_first
from contextbus.runtime.embedded import Durability
from contextbus.runtime.package_store import PackageStore
from contextbus.runtime.sweeping import sweeping
from contextbus_protocol.subjects import ActorName


class Kept(enum.StrEnum):
    """When the embedded server has a message on disk."""

    fsync = "fsync"
    interval = "interval"


class Actor(enum.StrEnum):
    """The actors."""

    selection = "selection"
    working_memory = "working-memory"
    placement = "placement"
    compaction = "compaction"


_UP: Final = """Examples:

contextbus up --docs ./runbooks --skills ./skills

contextbus up --processes --worker tickets.py

contextbus up --nats nats://host:4222 --memory
"""
_ACTOR: Final = """Examples:

contextbus actor selection --data .contextbus

contextbus actor placement --nats nats://user:secret@a:4222,nats://user:secret@b:4222 --replicas 3
"""
_WORKER: Final = """Examples:

contextbus worker tickets.py

contextbus worker --docs ./runbooks --nats nats://host:4222

contextbus worker --memory --data .contextbus

contextbus worker --skills ./skills --nats nats://host:4222
"""

UrlFile = Annotated[
    Path | None,
    typer.Option("--url-file", metavar="FILE", help="Write how to connect to this file, as JSON, once all is ready."),
]
Label = Annotated[
    str | None,
    typer.Option("--durability-label", metavar="TEXT", help="What acknowledgements of a server of yours rest on."),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help=f"Print what your own sources raise; so does {debugging.VARIABLE}=1."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up", epilog=_UP)(up)
    app.command("actor", epilog=_ACTOR)(run_actor)
    app.command("worker", epilog=_WORKER)(run_worker)


def up(
    docs: options.Docs = None,
    worker: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.py", help="Sources and summarisers of your own.")
    ] = None,
    skills: options.Skills = None,
    memory: Annotated[bool, typer.Option(help="Serve memory records.")] = True,
    transcript: Annotated[bool, typer.Option(help="Serve what was said in earlier runs.")] = True,
    processes: Annotated[
        bool, typer.Option("--processes", help="Every actor and worker as a process of its own, restarted if it dies.")
    ] = False,
    durability: Annotated[Kept, typer.Option(help="When the embedded server has a message on disk.")] = Kept.fsync,
    label: Label = None,
    url_file: UrlFile = None,
    debug: Debug = False,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    replicas: options.Replicas = 1,
    as_json: options.Json = False,
) -> None:
    """Run the server, the actors, the sources and the summarisers until Ctrl-C.

    Without --nats a nats-server is started on the data folder, or the one that runs there is used. --json prints one
    line with how to connect, once all is ready.
    """

    async def work() -> int:
        place = options.find_place(data, nats, tenant, replicas)
        served = Served(
            docs=tuple(docs or ()),
            files=tuple(worker or ()),
            skills=skills,
            memory=memory,
            transcript=transcript,
        )
        await inputs.check_docs(served.docs)
        await anyio.to_thread.run_sync(inputs.check_skills, skills)
        names, programs = await anyio.to_thread.run_sync(plan, place, served, label)
        kept: Durability = durability.value
        async with (
            open_link(place, "contextbus-up", start=True, durability=kept, label=label) as link,
            sweeping(PackageStore(link.journal, link.tenant)),
        ):
            if processes:
                return await _supervise(place, link, programs, names, url_file, debug=debug, as_json=as_json)
            async with _serve_here(place, link, served, debug=debug):
                _tell(place, link, names, {}, url_file, as_json=as_json)
                return _lost(await wait_for_end(link))

    run(work, as_json=as_json, serves=True)


def run_actor(
    name: Annotated[Actor, typer.Argument(help="Which one.")],
    label: Label = None,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    replicas: options.Replicas = 1,
    as_json: options.Json = False,
) -> None:
    """Run one actor in a process of its own, until Ctrl-C or SIGTERM; it answers what it took first.

    Any number of processes may run the same actor. Service discovery (`nats micro ls`) shows it under its name.
    """

    async def work() -> int:
        place = options.find_place(data, nats, tenant, replicas)
        actor: ActorName = name.value
        async with (
            open_link(place, f"contextbus-{actor}", start=False, label=label) as link,
            serve_actors(link, [actor]),
        ):
            _tell(place, link, Names(actors=(actor,)), {}, None, as_json=as_json)
            return _lost(await wait_for_end(link))

    run(work, as_json=as_json, serves=True)


def run_worker(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.py]", help="Serve every @source and @summariser of this file.")
    ] = None,
    docs: options.Docs = None,
    skills: options.Skills = None,
    memory: Annotated[bool, typer.Option("--memory", help="Serve memory records.")] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="Serve what was said in earlier runs.")] = False,
    source_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="The id of the built-in source; docs, skills, memory or transcript without it."
        ),
    ] = None,
    debug: Debug = False,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    replicas: options.Replicas = 1,
    as_json: options.Json = False,
) -> None:
    """Serve sources and summarisers in a process of their own: your own from a file, or those that are built in.

    Any number of processes may serve the same one; they share what is asked of it.
    """

    async def work() -> int:
        place = options.find_place(data, nats, tenant, replicas)
        built_in = [bool(docs), skills is not None, memory, transcript].count(True)
        if file is None and not built_in:
            raise UsageFault(
                "what is to be served? give a FILE.py, --docs FOLDER, --skills FOLDER, --memory or --transcript"
            )
        if source_id is not None and (file is not None or built_in != 1):
            raise UsageFault("--id names one built-in source: give it with --docs, --skills, --memory or --transcript")
        served = Served(
            docs=tuple(docs or ()),
            files=() if file is None else (file,),
            skills=skills,
            memory=memory,
            transcript=transcript,
            source_id=source_id,
        )
        if file is not None and not await anyio.Path(file).is_file():
            raise UsageFault(f"there is no file {file}; check the path")
        await inputs.check_docs(served.docs)
        await anyio.to_thread.run_sync(inputs.check_skills, skills)
        async with (
            open_link(place, "contextbus-worker", start=False) as link,
            open_workers(place, link, served) as workers,
            serve_sources(link, workers.sources, on_error=debugging.find_listener(asked=debug)),
            serve_summarisers(link, workers.summarisers, on_error=debugging.find_listener(asked=debug)),
            stop_first(workers.sources),
        ):
            names = Names(
                sources=tuple(s.id for s in workers.sources), summarisers=tuple(s.id for s in workers.summarisers)
            )
            _tell(place, link, names, {}, None, as_json=as_json)
            return _lost(await wait_for_end(link))

    run(work, as_json=as_json, serves=True)


@asynccontextmanager
async def _serve_here(place: options.Place, link: Link, served: Served, *, debug: bool) -> AsyncGenerator[None]:
    async with (
        open_workers(place, link, served) as workers,
        serve_sources(link, workers.sources, on_error=debugging.find_listener(asked=debug)),
        serve_summarisers(link, workers.summarisers, on_error=debugging.find_listener(asked=debug)),
        serve_actors(link, ACTORS),
        stop_first(workers.sources),
    ):
        yield


async def _supervise(
    place: options.Place,
    link: Link,
    programs: Sequence[Program],
    names: Names,
    url_file: Path | None,
    *,
    debug: bool,
    as_json: bool,
) -> int:
    environment = {"CONTEXTBUS_DATA": str(place.data), "CONTEXTBUS_NATS": place.nats or ""}
    if debug:
        environment[debugging.VARIABLE] = "1"
    supervisor = Supervisor(environment)
    reason = ""
    async with anyio.create_task_group() as tasks:
        for program in programs:
            tasks.start_soon(supervisor.run, program)
        missing = await wait_until_served(link.connection, names.all)
        if missing:
            warn(f"not ready yet: {', '.join(missing)}; their messages are above")
        _tell(place, link, names, supervisor.pids, url_file, as_json=as_json)
        reason = await wait_for_end(link)
        tasks.cancel_scope.cancel()
    return _lost(reason)


def _lost(reason: str) -> int:
    stderr().print(Text.assemble(("error: ", "bold red"), reason), soft_wrap=True)
    return UNREACHABLE


def _tell(
    place: options.Place,
    link: Link,
    names: Names,
    pids: dict[str, int],
    url_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Say that all is ready, and how to connect; the secret stays in the data folder."""
    facts: dict[str, object] = {
        "url": link.url,
        "data": str(place.data.absolute()) if place.nats is None else None,
        "tenant": place.tenant,
        "durability": link.durability,
        "pid": os.getpid(),
        "actors": names.actors,
        "sources": names.sources,
        "summarisers": names.summarisers,
        "processes": pids,
    }
    if url_file is not None:
        try:
            draft = url_file.with_name(f".{url_file.name}.{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(facts))
            draft.replace(url_file)
        except OSError as exc:
            raise UsageFault(f"{url_file} cannot be written: {exc.strerror}; name another with --url-file") from None
    if as_json:
        print_json(facts)
        return
    console = stdout()
    grid = Table.grid(padding=(0, 2))
    owner = "" if link.server is None or link.server.owned else " (started by another process)"
    rows = [
        ("server", f"{link.url}{owner}"),
        ("tenant", place.tenant),
        ("durability", link.durability),
        ("actors", ", ".join(names.actors)),
        ("sources", ", ".join(names.sources)),
        ("summarisers", ", ".join(names.summarisers)),
        ("processes", ", ".join(f"{name} {pid}" for name, pid in pids.items())),
    ]
    if place.nats is None:
        rows.insert(1, ("data folder", f"{place.data} (holds the secret)"))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, "bold"), Text(value, overflow="fold"))
    console.print(grid)
    if len(names.actors) == len(ACTORS):
        where, opened = f"--data {place.data}", f"data={str(place.data)!r}"
        if place.nats is not None:
            where, opened = f"--nats {link.url}", repr(link.url)
        if place.tenant != "default":
            where, opened = f"{where} --tenant {place.tenant}", f"{opened}, tenant={place.tenant!r}"
        console.print()
        console.print(Text(f"shell:   {called()} compile FILE --actors remote {where}"), soft_wrap=True)
        console.print(Text(f'Python:  contextbus.client.open({opened}, actors="remote")'), soft_wrap=True)
    console.print(Text("Ctrl-C ends it.", "dim"))
    console.file.flush()

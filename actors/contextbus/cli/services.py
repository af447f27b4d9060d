"""``contextbus up``, ``actor`` and ``worker``: what runs until it is told to stop."""

from __future__ import annotations

import enum
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
from contextbus.cli.indexing import Announcer
from contextbus.cli.loading import load_sources
from contextbus.cli.output import called, print_json, stderr, stdout, warn
from contextbus.cli.processes import Program, Supervisor
from contextbus.cli.running import run
from contextbus.cli.serving import (
    ACTORS,
    Link,
    open_asker,
    open_link,
    serve_actors,
    serve_sources,
    wait_for_end,
    wait_until_served,
)
from contextbus.client.redacting import redact_over
from contextbus.runtime.datafolder import DataFolder
from contextbus.runtime.embedded import Durability
from contextbus.runtime.package_store import PackageStore
from contextbus.runtime.sweeping import sweeping
from contextbus.sources.interface import Source
from contextbus.sources.memory import DEFAULT_ID as MEMORY_ID
from contextbus.sources.memory import memory_source
from contextbus.sources.rag import FolderSource
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


_UP: Final = """Examples:

contextbus up --docs ./runbooks

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
    worker: Annotated[list[Path] | None, typer.Option(metavar="FILE.py", help="Sources of your own.")] = None,
    memory: Annotated[bool, typer.Option(help="Serve memory records.")] = True,
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
    """Run the server, the actors and the sources until Ctrl-C.

    Without --nats a nats-server is started on the data folder, or the one that runs there is used. --json prints one
    line with how to connect, once all is ready.
    """

    async def work() -> int:
        place = options.find_place(data, nats, tenant, replicas)
        await inputs.check_docs(docs or ())
        sources, programs = await anyio.to_thread.run_sync(_plan, place, docs, worker, memory, label)
        kept: Durability = durability.value
        async with open_link(place, "contextbus-up", start=True, durability=kept, label=label) as link:
            names = (*ACTORS, *sources)
            async with sweeping(PackageStore(link.journal, link.tenant)):
                if processes:
                    return await _supervise(place, link, programs, names, url_file, debug=debug, as_json=as_json)
                async with _serve_here(place, link, docs, worker, memory=memory, debug=debug):
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
            _tell(place, link, (actor,), {}, None, as_json=as_json)
            return _lost(await wait_for_end(link))

    run(work, as_json=as_json, serves=True)


def run_worker(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.py]", help="Serve every @source of this file.")] = None,
    docs: options.Docs = None,
    memory: Annotated[bool, typer.Option("--memory", help="Serve memory records.")] = False,
    source_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the built-in source; docs or memory without it.")
    ] = None,
    debug: Debug = False,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    replicas: options.Replicas = 1,
    as_json: options.Json = False,
) -> None:
    """Serve sources in a process of their own: your own from a file, folders of documents, or memory records.

    Any number of processes may serve the same source; they share its queries.
    """

    async def work() -> int:
        place = options.find_place(data, nats, tenant, replicas)
        if file is None and not docs and not memory:
            raise UsageFault("what is to be served? give a FILE.py, --docs FOLDER, or --memory")
        if source_id is not None and (file is not None or bool(docs) == memory):
            raise UsageFault("--id names one built-in source: give it with --docs or with --memory")
        files = [] if file is None else [file]
        if file is not None and not await anyio.Path(file).is_file():
            raise UsageFault(f"there is no file {file}; check the path")
        await inputs.check_docs(docs or ())
        async with (
            open_link(place, "contextbus-worker", start=False) as link,
            _open_sources(place, link, docs, files, memory=memory, source_id=source_id) as sources,
            serve_sources(link, sources, on_error=debugging.find_listener(asked=debug)),
            _stop_first(sources),
        ):
            _tell(place, link, [s.id for s in sources], {}, None, as_json=as_json)
            return _lost(await wait_for_end(link))

    run(work, as_json=as_json, serves=True)


@asynccontextmanager
async def _serve_here(
    place: options.Place, link: Link, docs: list[Path] | None, files: list[Path] | None, *, memory: bool, debug: bool
) -> AsyncGenerator[None]:
    async with (
        _open_sources(place, link, docs, files, memory=memory) as sources,
        serve_sources(link, sources, on_error=debugging.find_listener(asked=debug)),
        serve_actors(link, ACTORS),
        _stop_first(sources),
    ):
        yield


@asynccontextmanager
async def _stop_first(sources: Sequence[Source]) -> AsyncGenerator[None]:
    """End indexing before the workers answer what they took: a query must not wait for a whole folder then."""
    try:
        yield
    finally:
        for source in sources:
            if isinstance(source, FolderSource):
                source.stop()


@asynccontextmanager
async def _open_sources(
    place: options.Place,
    link: Link,
    docs: list[Path] | None,
    files: list[Path] | None,
    *,
    memory: bool,
    source_id: str | None = None,
) -> AsyncGenerator[Sequence[Source]]:
    async with AsyncExitStack() as stack:
        sources: list[Source] = []
        await anyio.to_thread.run_sync(DataFolder(place.data).prepare)
        await anyio.to_thread.run_sync(lambda: place.folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        folders = docs or []
        for path, name in zip(folders, inputs.name_docs(len(folders), source_id or inputs.DOCS_ID), strict=True):
            folder = inputs.open_docs(path, source_id=name, data=place.folder, progress=Announcer(path))
            stack.push_async_callback(folder.aclose)
            sources.append(folder)
        for file in files or ():
            sources += await anyio.to_thread.run_sync(load_sources, file)
        if memory:
            asker = await stack.enter_async_context(open_asker(link, "memory"))
            records = memory_source(
                link.journal,
                place.tenant,
                data=place.folder,
                id=source_id or MEMORY_ID,
                redact=redact_over(asker),
            )
            stack.push_async_callback(records.aclose)
            sources.append(records)
        check_ids([s.id for s in sources])
        yield sources


def check_ids(ids: Sequence[str]) -> None:
    """Refuse two sources with one id.

    Raises:
        UsageFault: there are such.
    """
    twice = {name for name in ids if ids.count(name) > 1}
    if twice:
        raise UsageFault(f"two sources have the id {min(twice)!r}; give each its own")


def _plan(
    place: options.Place, docs: list[Path] | None, files: list[Path] | None, memory: bool, label: str | None
) -> tuple[tuple[str, ...], tuple[Program, ...]]:
    """The ids of all sources, and the processes that would run everything."""
    common: list[str] = [] if place.nats is not None else ["--data", str(place.data)]
    common += ["--tenant", place.tenant, "--replicas", str(place.replicas)]
    labelled = [] if label is None else ["--durability-label", label]
    programs = [Program(name, ("actor", name, *common, *labelled)) for name in ACTORS]
    ids: list[str] = []
    folders = docs or []
    for path, name in zip(folders, inputs.name_docs(len(folders)), strict=True):
        ids.append(name)
        programs.append(Program(name, ("worker", "--docs", str(path), "--id", name, *common)))
    for file in files or ():
        ids += [s.id for s in load_sources(file)]
        programs.append(Program(file.stem, ("worker", str(file), *common)))
    if memory:
        ids.append(MEMORY_ID)
        programs.append(Program(MEMORY_ID, ("worker", "--memory", *common)))
    check_ids(ids)
    return tuple(ids), tuple(programs)


async def _supervise(
    place: options.Place,
    link: Link,
    programs: Sequence[Program],
    names: Sequence[str],
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
        missing = await wait_until_served(link.connection, names)
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
    names: Sequence[str],
    pids: dict[str, int],
    url_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Say that all is ready, and how to connect; the secret stays in the data folder."""
    actors = [n for n in names if n in ACTORS]
    sources = [n for n in names if n not in ACTORS]
    facts: dict[str, object] = {
        "url": link.url,
        "data": str(place.data.absolute()) if place.nats is None else None,
        "tenant": place.tenant,
        "durability": link.durability,
        "pid": os.getpid(),
        "actors": actors,
        "sources": sources,
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
        ("actors", ", ".join(actors)),
        ("sources", ", ".join(sources)),
        ("processes", ", ".join(f"{name} {pid}" for name, pid in pids.items())),
    ]
    if place.nats is None:
        rows.insert(1, ("data folder", f"{place.data} (holds the secret)"))
    for name, value in rows:
        if value:
            grid.add_row(Text(name, "bold"), Text(value, overflow="fold"))
    console.print(grid)
    if len(actors) == len(ACTORS):
        where, opened = f"--data {place.data}", f'folder="{place.data}"'
        if place.nats is not None:
            where, opened = f"--nats {link.url}", f'"{link.url}"'
        console.print()
        console.print(Text(f"shell:   {called()} compile FILE --actors remote {where}"), soft_wrap=True)
        console.print(Text(f'Python:  contextbus.client.open({opened}, actors="remote")'), soft_wrap=True)
    console.print(Text("Ctrl-C ends it.", "dim"))
    console.file.flush()

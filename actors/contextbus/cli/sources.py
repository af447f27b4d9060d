"""The sources and summarisers that a service of the command line serves: built in, or a user's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from contextbus.cli import inputs, options
from contextbus.cli.failures import UsageFault
from contextbus.cli.indexing import Announcer
from contextbus.cli.loading import Loaded, load_workers
from contextbus.cli.output import warn
from contextbus.cli.processes import Program
from contextbus.cli.serving import ACTORS, Link, open_asker
from contextbus.client.redacting import redact_over
from contextbus.runtime.datafolder import DataFolder
from contextbus.sources.interface import Source
from contextbus.sources.memory import DEFAULT_ID as MEMORY_ID
from contextbus.sources.memory import memory_source
from contextbus.sources.rag import FolderSource
from contextbus.sources.skills import DEFAULT_ID as SKILLS_ID
from contextbus.sources.skills import SkillsSource
from contextbus.sources.transcript import DEFAULT_ID as TRANSCRIPT_ID
from contextbus.sources.transcript import transcript_source
from contextbus.summarisers.anthropic import AnthropicSummariser
from contextbus.summarisers.built_in import EXTRACTIVE_ID
from contextbus.summarisers.interface import Summariser
from contextbus.summarisers.openai import OpenAISummariser


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served; ``source_id`` is the id of the one that is built in, if it is not to have its own."""

    docs: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    skills: Path | None = None
    memory: bool = False
    transcript: bool = False
    source_id: str | None = None

    def name(self, usual: str) -> str:
        """The id of a source that is built in."""
        return self.source_id or usual


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of everybody who is run."""

    actors: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    summarisers: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All of them, actors first."""
        return (*self.actors, *self.sources, *self.summarisers)


@asynccontextmanager
async def open_workers(place: options.Place, link: Link, served: Served) -> AsyncGenerator[Loaded]:
    """The sources and summarisers, for as long as the block lasts.

    Raises:
        UsageFault: two of a kind have one id.
    """
    async with AsyncExitStack() as stack:
        sources: list[Source] = []
        summarisers: list[Summariser] = []
        await anyio.to_thread.run_sync(DataFolder(place.data).prepare)
        await anyio.to_thread.run_sync(lambda: place.folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        names = inputs.name_docs(len(served.docs), served.name(inputs.DOCS_ID))
        for path, name in zip(served.docs, names, strict=True):
            folder = inputs.open_docs(path, source_id=name, data=place.folder, progress=Announcer(path))
            stack.push_async_callback(folder.aclose)
            sources.append(folder)
        if served.skills is not None:
            skills = await open_skills(served.skills, served.name(SKILLS_ID))
            stack.push_async_callback(skills.aclose)
            sources.append(skills)
        for file in served.files:
            own = await anyio.to_thread.run_sync(load_workers, file)
            sources += own.sources
            summarisers += own.summarisers
        if served.memory:
            asker = await stack.enter_async_context(open_asker(link, "memory"))
            records = memory_source(
                link.journal,
                place.tenant,
                data=place.folder,
                id=served.name(MEMORY_ID),
                redact=redact_over(asker),
            )
            stack.push_async_callback(records.aclose)
            sources.append(records)
        if served.transcript:
            said = transcript_source(link.journal, place.tenant, data=place.folder, id=served.name(TRANSCRIPT_ID))
            stack.push_async_callback(said.aclose)
            sources.append(said)
        for summariser in summarisers:
            if isinstance(summariser, OpenAISummariser | AnthropicSummariser):
                stack.push_async_callback(summariser.aclose)
        check_ids("sources", [s.id for s in sources])
        check_ids("summarisers", [s.id for s in summarisers])
        yield Loaded(tuple(sources), tuple(summarisers))


async def open_skills(path: Path, name: str = SKILLS_ID) -> SkillsSource:
    """A source of a folder of skills; what is wrong with some of them is said."""
    skills = SkillsSource(path, id=name)
    await skills.refresh()
    for issue in skills.issues:
        warn(f"{path / issue.path} is no usable skill: {issue.problem}")
    return skills


@asynccontextmanager
async def stop_first(sources: Sequence[Source]) -> AsyncGenerator[None]:
    """End indexing before the workers answer what they took: a query must not wait for a whole folder then."""
    try:
        yield
    finally:
        for source in sources:
            if isinstance(source, FolderSource):
                source.stop()


def check_ids(kind: str, ids: Sequence[str]) -> None:
    """Refuse two sources, or two summarisers, with one id.

    Raises:
        UsageFault: there are such.
    """
    twice = {name for name in ids if ids.count(name) > 1}
    if twice:
        raise UsageFault(f"two {kind} have the id {min(twice)!r}; give each its own")


def plan(place: options.Place, served: Served, label: str | None) -> tuple[Names, tuple[Program, ...]]:
    """Who would be run, and the processes that would run everything.

    Raises:
        UsageFault: two of a kind have one id, or a file holds none.
    """
    common: list[str] = [] if place.nats is not None else ["--data", str(place.data)]
    common += ["--tenant", place.tenant, "--replicas", str(place.replicas)]
    labelled = [] if label is None else ["--durability-label", label]
    programs = [Program(name, ("actor", name, *common, *labelled)) for name in ACTORS]
    ids: list[str] = []
    summarisers: list[str] = []
    for path, name in zip(served.docs, inputs.name_docs(len(served.docs)), strict=True):
        ids.append(name)
        programs.append(Program(name, ("worker", "--docs", str(path), "--id", name, *common)))
    if served.skills is not None:
        ids.append(SKILLS_ID)
        programs.append(Program(SKILLS_ID, ("worker", "--skills", str(served.skills), *common)))
    for file in served.files:
        own = load_workers(file)
        ids += [s.id for s in own.sources]
        summarisers += [s.id for s in own.summarisers]
        programs.append(Program(file.stem, ("worker", str(file), *common)))
    for name, wanted in ((MEMORY_ID, served.memory), (TRANSCRIPT_ID, served.transcript)):
        if wanted:
            ids.append(name)
            programs.append(Program(name, ("worker", f"--{name}", *common)))
    check_ids("sources", ids)
    summarisers.append(EXTRACTIVE_ID)  # it is wherever the compaction actor runs
    check_ids("summarisers", summarisers)
    return Names(actors=ACTORS, sources=tuple(ids), summarisers=tuple(summarisers)), tuple(programs)

"""``contextbus compile``: one step through the actors, for a conversation in a file."""

from __future__ import annotations

import enum
import re
import shlex
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import anyio
import anyio.to_thread
import msgspec
import typer

from contextbus import client
from contextbus.cli import inputs, options, report
from contextbus.cli.failures import UsageFault
from contextbus.cli.loading import load_sources
from contextbus.cli.models import HEURISTICS, Target, choose_estimator, choose_model, target_of
from contextbus.cli.output import print_json, show_progress, stderr, stdout, warn
from contextbus.cli.running import run
from contextbus.cli.serving import find_actors
from contextbus.client import CompiledStep, ContextBus, Run
from contextbus.core.importers import Conversation
from contextbus.runtime.tokenizers import TOKENIZER_NAMES
from contextbus.sources.interface import Source
from contextbus.sources.rag import FolderSource
from contextbus_protocol.subjects import LONGEST_NAME
from contextbus_protocol.values import EstimatorSpec, Model, Scope, SourceSpec
from contextbus_protocol.working_memory import WorkingMemorySnapshot

STEP_SECONDS: Final = 15.0


class Actors(enum.StrEnum):
    """Where the actors run."""

    local = "local"
    remote = "remote"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations are compiled."""

    place: options.Place
    actors: Literal["local", "remote"]
    target: str
    model: Model
    scope: Scope
    budget: dict[str, object]
    estimator: EstimatorSpec
    docs: tuple[Path, ...]
    workers: tuple[Path, ...]
    memory: bool
    elsewhere: tuple[SourceSpec, ...]
    memories: tuple[inputs.MemoryLine, ...]
    working_memory: inputs.WorkingMemoryFile | WorkingMemorySnapshot | None


class Compiled(msgspec.Struct, frozen=True):
    """A step, its payload, and what the user should know about how it came to be."""

    step: CompiledStep
    payload: bytes
    notes: tuple[str, ...]
    durability: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile", epilog=_EPILOG)(compile_file)


_EPILOG: Final = """Examples:

contextbus compile conversation.json --docs ./runbooks --target anthropic

contextbus compile chats.jsonl --all --docs documents.jsonl --output payloads/

contextbus compile chat.json --memories facts.jsonl --scope user_id=ada --json
"""


def compile_file(
    file: Annotated[Path, typer.Argument(help="A conversation (OpenAI Chat or Anthropic Messages), or JSON Lines.")],
    docs: options.Docs = None,
    memories: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Memory records to remember first, each once: {text}.")
    ] = None,
    working_memory: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Goal, constraints and tasks, or a snapshot.")
    ] = None,
    target: Annotated[
        Target | None, typer.Option(help="Whose API the payload is for; by default the model's, else the file's.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER/ID", help="The model that will be called; by default the target's.")
    ] = None,
    context_window: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="What the model takes.")] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="What is kept free for the answer.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The most context that the step may add.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the payload goes: payload.json by default, - to print it; a folder with --all.",
        ),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="The run; a new one without it. With --all a prefix.")
    ] = None,
    scope: options.ScopeFields = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID|INDEX", help="Which conversation of a file with several, from 0.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Compile every conversation, each as a run of its own.")] = False,
    worker: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.py", help="Sources of your own that run in this process.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(metavar="ID[:KIND]", help="A source that other processes serve.")
    ] = None,
    memory: Annotated[bool, typer.Option(help="Ask the memory records of the scope.")] = True,
    estimator: Annotated[
        str, typer.Option(metavar="NAME", help=f"What counts tokens: {', '.join((*HEURISTICS, *TOKENIZER_NAMES))}.")
    ] = "classes",
    actors: Annotated[
        Actors, typer.Option(help="Run the actors here, or ask those of `contextbus up`.")
    ] = Actors.local,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    replicas: options.Replicas = 1,
    as_json: options.Json = False,
) -> None:
    """Compile the context of the next model call of a conversation, and write the request for the provider.

    The step goes through the same actors, event log and package store as in production. Without --scope it is
    compiled for user_id=local.
    """

    async def work() -> None:
        if every and conversation is not None:
            raise UsageFault("--all compiles every conversation; leave out --conversation")
        if str(output) == "-" and (as_json or every):
            raise UsageFault("--output - prints one payload; leave out --json and --all, or name a file")
        conversations, provider = await anyio.to_thread.run_sync(inputs.read_conversation_file, file)
        chosen = conversations if every else (inputs.choose_conversation(file, conversations, conversation),)
        called = choose_model(target, model, context_window, max_output_tokens, Target(provider))
        settings = Settings(
            place=options.find_place(data, nats, tenant, replicas),
            actors=actors.value,
            target=target.value if target is not None else target_of(called, Target(provider)),
            model=called,
            scope=options.parse_scope(scope, options.DEFAULT_SCOPE),
            budget={} if budget is None else {"max_tokens": budget},
            estimator=await anyio.to_thread.run_sync(choose_estimator, estimator),
            docs=tuple(docs or ()),
            workers=tuple(worker or ()),
            memory=memory,
            elsewhere=options.parse_sources(source),
            memories=inputs.read_memories(memories) if memories is not None else (),
            working_memory=inputs.read_working_memory(working_memory) if working_memory is not None else None,
        )
        if every:
            await _compile_all(chosen, settings, run_id, output, as_json=as_json)
        else:
            await _compile_one(chosen[0], settings, run_id, output or Path("payload.json"), as_json=as_json)

    run(work, as_json=as_json)


async def _compile_one(
    conversation: Conversation, settings: Settings, run_id: str | None, output: Path, *, as_json: bool
) -> None:
    async with _open(settings) as (bus, sources):
        compiled = await _compile(bus, sources, conversation, settings, run_id)
    to_stdout = str(output) == "-"
    if to_stdout:
        sys.stdout.write(compiled.payload.decode() + "\n")
    else:
        _write(output, compiled.payload)
    if as_json:
        print_json(_as_fields(compiled, settings, str(output)))
    else:
        step, where = compiled.step, _where(settings.place)
        shown = "standard output" if to_stdout else str(output)
        report.show_step(
            stderr() if to_stdout else stdout(),
            step,
            scope=settings.scope,
            estimator=settings.estimator,
            durability=compiled.durability,
            payload=f"{shown} ({len(compiled.payload):,} bytes, for {settings.target})",
            notes=(
                *compiled.notes,
                f"replay it:  contextbus replay {shlex.quote(step.run)}{where}",
                f"verify it:  contextbus verify {shlex.quote(step.run)}{where}",
            ),
        )
    _warn(compiled)


async def _compile_all(
    conversations: Sequence[Conversation], settings: Settings, prefix: str | None, output: Path | None, *, as_json: bool
) -> None:
    if output is not None:
        await anyio.to_thread.run_sync(_make_folder, output)
    prefix = prefix or _new_run()
    done = 0
    async with _open(settings) as (bus, sources):
        with show_progress() as progress:
            task = progress.add_task("compile", total=len(conversations))
            for index, conversation in enumerate(conversations):
                name = _name(prefix, conversation, index)
                compiled = await _compile(bus, sources, conversation, settings, name)
                path = None
                if output is not None:
                    path = output / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.json"
                    _write(path, compiled.payload)
                if as_json:
                    print_json(_as_fields(compiled, settings, None if path is None else str(path)))
                else:
                    progress.console.file.flush()
                    stdout().print(_line(compiled, len(conversation.messages)), soft_wrap=True)
                _warn(compiled)
                done += 1
                progress.advance(task)
    if not as_json:
        where = _where(settings.place)
        stdout().print(f"{done} runs compiled; check them:  contextbus verify --all{where}", soft_wrap=True)


@asynccontextmanager
async def _open(settings: Settings) -> AsyncGenerator[tuple[ContextBus, tuple[SourceSpec, ...]]]:
    """A bus with the sources of this process, and every source that a run asks."""
    place = settings.place
    if settings.actors == "remote":
        await find_actors(place)
    async with AsyncExitStack() as stack:
        own: list[Source] = []
        names = inputs.name_docs(len(settings.docs))
        for path, name in zip(settings.docs, names, strict=True):
            docs = await _index(path, name, place)
            stack.push_async_callback(docs.aclose)
            own.append(docs)
        for path in settings.workers:
            own += await anyio.to_thread.run_sync(load_sources, path)
        tokenizers = (settings.estimator.name,) if settings.estimator.kind == "tokenizer" else ()
        bus = await stack.enter_async_context(
            client.open(
                place.nats,
                tenant=place.tenant,
                folder=place.folder,
                actors=settings.actors,
                sources=own,
                tokenizers=tokenizers,
                replicas=place.replicas,
            )
        )
        specs = [SourceSpec(s.id, s.kind, s.required) for s in own]
        specs += [s for s in settings.elsewhere if all(s.id != o.id for o in own)]
        if settings.memory and all(s.id != "memory" for s in specs):
            specs.insert(0, SourceSpec("memory", "memory"))
        await _remember(bus, settings)
        yield bus, tuple(specs)


async def _index(path: Path, name: str, place: options.Place) -> FolderSource:
    with show_progress() as progress:
        task = progress.add_task(f"index {path}", total=None)

        def advance(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        docs = await anyio.to_thread.run_sync(
            lambda: inputs.open_docs(path, source_id=name, data=place.folder, progress=advance)
        )
        await docs.refresh()
    return docs


async def _remember(bus: ContextBus, settings: Settings) -> None:
    if not settings.memories:
        return
    with show_progress() as progress:
        for memory in progress.track(settings.memories, description="remember"):
            await bus.memories.remember(
                memory.text,
                scope=settings.scope,
                record_id=memory.id,
                origin=memory.origin,
                message_id=inputs.message_id(memory),
            )


async def _compile(
    bus: ContextBus,
    sources: tuple[SourceSpec, ...],
    conversation: Conversation,
    settings: Settings,
    run_id: str | None,
) -> Compiled:
    held = await bus.run(
        run_id or _new_run(),
        scope=settings.scope,
        sources=sources,
        budget=settings.budget,
        estimator=settings.estimator,
    )
    notes = await _set_working_memory(held, settings)
    step = await held.before_model_call(
        conversation.messages, model=settings.model, tools=conversation.tools, seconds=STEP_SECONDS
    )
    return Compiled(step, step.payload(settings.target).json(), notes, step.durability or bus.durability)


async def _set_working_memory(held: Run, settings: Settings) -> tuple[str, ...]:
    given = settings.working_memory
    if given is None:
        return ()
    if await held.working_memory.read() is not None:
        return ("the run has a working memory already; --working-memory changed nothing",)
    if isinstance(given, WorkingMemorySnapshot):
        await held.working_memory.create(snapshot=given)
    else:
        await held.working_memory.create(
            goal=given.goal, constraints=given.constraints, tasks=given.tasks, goal_ref=given.goal_ref
        )
    return ()


def _new_run() -> str:
    return f"run-{uuid.uuid4().hex[:12]}"


def _name(prefix: str, conversation: Conversation, index: int) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", conversation.id or str(index))
    whole = f"{prefix}-{name}"
    return whole if len(whole) <= LONGEST_NAME else f"{prefix}-{index}"


def _write(path: Path, payload: bytes) -> None:
    try:
        path.write_bytes(payload + b"\n")
    except OSError as exc:
        raise UsageFault(f"{path} cannot be written: {exc.strerror}; name another file with --output") from None


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageFault(f"{path} cannot be made: {exc.strerror}; name a folder with --output") from None


def _where(place: options.Place) -> str:
    where = ""
    if place.nats is not None:
        where += f" --nats {shlex.quote(options.hide_credentials(place.nats))}"
    elif place.data != options.DEFAULT_DATA:
        where += f" --data {shlex.quote(str(place.data))}"
    return where + ("" if place.tenant == "default" else f" --tenant {shlex.quote(place.tenant)}")


def _warn(compiled: Compiled) -> None:
    for warning in compiled.step.warnings:
        about = f" {warning.source}" if warning.source else ""
        warn(f"{warning.code}{about}" + (f": {warning.error}" if warning.error else ""))


def _line(compiled: Compiled, messages: int) -> str:
    step, manifest = compiled.step, compiled.step.manifest
    chosen = sum(e.selected for e in manifest.entries)
    tokens = sum(report.tokens_by_kind(manifest).values())
    return (
        f"{step.run}  step {step.step}  sequence {step.sequence}  {messages} messages  "
        f"{chosen}/{len(manifest.entries)} entries  {tokens:,} of {manifest.budget.context_tokens:,} tokens  "
        f"{len(compiled.payload):,} bytes"
    )


def _as_fields(compiled: Compiled, settings: Settings, path: str | None) -> dict[str, object]:
    step = compiled.step
    return {
        "run": step.run,
        "step": step.step,
        "sequence": step.sequence,
        "commit": step.commit,
        "package": step.reference,
        "durability": compiled.durability,
        "stored": step.stored,
        "target": settings.target,
        "model": inputs.as_fields(step.model),
        "scope": inputs.as_fields(settings.scope),
        "tokens": report.tokens_by_kind(step.manifest),
        "blocks": report.count_blocks(step, settings.estimator),
        "manifest": inputs.as_fields(step.manifest),
        "warnings": [inputs.as_fields(w) for w in step.warnings],
        "notes": compiled.notes,
        "payload": path,
        "payloadBytes": len(compiled.payload),
    }

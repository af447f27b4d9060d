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
from typing import Annotated, Final

import anyio.to_thread
import typer

from contextbus import client
from contextbus.cli import inputs, options, report
from contextbus.cli.debugging import VARIABLE, is_debugging, print_failure
from contextbus.cli.failures import UsageFault
from contextbus.cli.indexing import index_docs
from contextbus.cli.loading import load_sources
from contextbus.cli.models import HEURISTICS, Target, choose_estimator, choose_model, target_of_form
from contextbus.cli.output import called, note, print_json, show_progress, stderr, stdout, warn
from contextbus.cli.running import run
from contextbus.cli.serving import find_actors
from contextbus.cli.sources import open_skills
from contextbus.cli.steps import Compiled, Documents, Job, Opened, Previous, Settings, compile_job, remember
from contextbus.core.importers import Conversation
from contextbus.runtime.tokenizers import TOKENIZER_NAMES
from contextbus.sources.interface import Source
from contextbus_protocol.subjects import LONGEST_NAME
from contextbus_protocol.values import SourceSpec


class Actors(enum.StrEnum):
    """Where the actors run."""

    local = "local"
    remote = "remote"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile", epilog=_EPILOG)(compile_file)


_EPILOG: Final = """Examples:

contextbus compile conversation.json --docs ./runbooks --target anthropic

contextbus compile chats.jsonl --all --docs documents.jsonl --output payloads/

contextbus compile chat.json --memories facts.jsonl --scope user_id=ada --json

contextbus compile chat.json --skills ./skills --transcript
"""


def compile_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="A conversation in a provider's form, JSON Lines of them, or a session of Claude Code or Codex."
        ),
    ],
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
        str | None,
        typer.Option(metavar="PROVIDER/ID", help="The model that will be called; by default the file's."),
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
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask the sources again with this step.")] = False,
    previous: Annotated[
        Previous | None,
        typer.Option(
            help="How the model call of the run's last step went; by default it succeeded if the file goes on with "
            "its answer."
        ),
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
    skills: options.Skills = None,
    memory: Annotated[bool, typer.Option(help="Ask the memory records of the scope.")] = True,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Ask what was said in earlier runs of the scope.")
    ] = False,
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
        read = await anyio.to_thread.run_sync(inputs.read_conversation_file, file)
        chosen: Sequence[int] = range(len(read.conversations))
        if not every:
            chosen = (inputs.choose_conversation(file, read.conversations, conversation),)
        provider = target_of_form(read.form)
        jobs = [
            Job(
                read.conversations[index],
                choose_model(target, model, context_window, max_output_tokens, provider, read.written[index]),
            )
            for index in chosen
        ]
        if not every:
            await anyio.to_thread.run_sync(_check_output, output)
        await inputs.check_docs(docs or ())
        await anyio.to_thread.run_sync(inputs.check_skills, skills)
        settings = Settings(
            place=options.find_place(data, nats, tenant, replicas),
            actors=actors.value,
            scope=options.parse_scope(scope, options.DEFAULT_SCOPE),
            budget={} if budget is None else {"max_tokens": budget},
            estimator=await anyio.to_thread.run_sync(choose_estimator, estimator),
            docs=tuple(docs or ()),
            workers=tuple(worker or ()),
            refresh=refresh,
            previous=previous,
            memory=memory,
            transcript=transcript,
            skills=skills,
            elsewhere=options.parse_sources(source),
            memories=inputs.read_memories(memories) if memories is not None else (),
            working_memory=inputs.read_working_memory(working_memory) if working_memory is not None else None,
        )
        if every:
            await _compile_all(jobs, settings, run_id, output, as_json=as_json)
        else:
            await _compile_one(jobs[0], settings, run_id, output or Path("payload.json"), as_json=as_json)

    run(work, as_json=as_json)


async def _compile_one(job: Job, settings: Settings, run_id: str | None, output: Path, *, as_json: bool) -> None:
    async with _open(settings) as opened:
        compiled = await compile_job(opened, job, settings, run_id or _new_run())
    to_stdout = str(output) == "-"
    if to_stdout:
        sys.stdout.write(compiled.payload.decode() + "\n")
    else:
        _write(output, compiled.payload)
    if as_json:
        print_json(_as_fields(compiled, opened, job, settings, str(output)))
    else:
        step, where = compiled.step, _where(settings.place)
        shown = "standard output" if to_stdout else str(output)
        report.show_step(
            stderr() if to_stdout else stdout(),
            step,
            scope=settings.scope,
            estimator=settings.estimator,
            durability=compiled.durability,
            payload=f"{shown} ({len(compiled.payload):,} bytes, for {job.choice.target})",
            query=compiled.query,
            repairs=compiled.repairs,
            documents=[d.line for d in opened.documents],
            notes=(
                *compiled.notes,
                f"replay it:  {called()} replay {shlex.quote(step.run)}{where}",
                f"verify it:  {called()} verify {shlex.quote(step.run)}{where}",
            ),
        )
    _warn(compiled)


async def _compile_all(
    jobs: Sequence[Job], settings: Settings, prefix: str | None, output: Path | None, *, as_json: bool
) -> None:
    if output is not None:
        await anyio.to_thread.run_sync(_make_folder, output)
    prefix = prefix or _new_run()
    done = 0
    async with _open(settings) as opened:
        with show_progress() as progress:
            task = progress.add_task("compile", total=len(jobs))
            for index, job in enumerate(jobs):
                name = _name(prefix, job.conversation, index)
                compiled = await compile_job(opened, job, settings, name)
                path = None
                if output is not None:
                    path = output / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.json"
                    _write(path, compiled.payload)
                if as_json:
                    print_json(_as_fields(compiled, opened, job, settings, None if path is None else str(path)))
                else:
                    progress.console.file.flush()
                    stdout().print(_line(compiled, len(job.conversation.messages)), soft_wrap=True)
                _warn(compiled)
                done += 1
                progress.advance(task)
    if not as_json:
        where = _where(settings.place)
        stdout().print(f"{done} runs compiled; check them:  {called()} verify --all{where}", soft_wrap=True)


@asynccontextmanager
async def _open(settings: Settings) -> AsyncGenerator[Opened]:
    """A bus with the sources of this process, and every source that a run asks."""
    place = settings.place
    if settings.actors == "remote":
        await find_actors(place)
    async with AsyncExitStack() as stack:
        own: list[Source] = []
        documents: list[Documents] = []
        names = inputs.name_docs(len(settings.docs))
        for path, name in zip(settings.docs, names, strict=True):
            docs, done = await index_docs(path, name, place)
            stack.push_async_callback(docs.aclose)
            own.append(docs)
            documents.append(Documents(name, path, done))
            if not done.chunks:
                warn(f"{path} holds documents, but no text in them: {documents[-1].line}")
        if settings.skills is not None:
            skills = await open_skills(settings.skills)
            stack.push_async_callback(skills.aclose)
            own.append(skills)
        for path in settings.workers:
            own += await anyio.to_thread.run_sync(load_sources, path)
        tokenizers = (settings.estimator.name,) if settings.estimator.kind == "tokenizer" else ()
        bus = await stack.enter_async_context(
            client.open(
                place.nats,
                tenant=place.tenant,
                data=place.folder,
                actors=settings.actors,
                sources=own,
                transcript=settings.transcript,
                tokenizers=tokenizers,
                replicas=place.replicas,
            )
        )
        specs = [SourceSpec(s.id, s.kind, s.required) for s in own]
        specs += [s for s in settings.elsewhere if all(s.id != o.id for o in own)]
        if settings.memory and all(s.id != "memory" for s in specs):
            specs.insert(0, SourceSpec("memory", "memory"))
        if settings.transcript and all(s.id != "transcript" for s in specs):
            specs.append(SourceSpec("transcript", "transcript"))
        await remember(bus, settings)
        yield Opened(bus, tuple(specs), tuple(documents))


def _new_run() -> str:
    return f"run-{uuid.uuid4().hex[:12]}"


def _name(prefix: str, conversation: Conversation, index: int) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", conversation.id or str(index))
    whole = f"{prefix}-{name}"
    return whole if len(whole) <= LONGEST_NAME else f"{prefix}-{index}"


def _check_output(path: Path | None) -> None:
    """Refuse what cannot be written before a step is stored for it."""
    if path is None or str(path) == "-":
        return
    if path.is_dir():
        raise UsageFault(f"{path} is a folder; name a file with --output, for example {path / 'payload.json'}")
    if not path.parent.is_dir():
        raise UsageFault(f"there is no folder {path.parent}; make it first, or name another file with --output")


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
    for warning in compiled.warnings:
        about = f" {warning.source}" if warning.source else ""
        warn(f"{warning.code}{about}" + (f": {warning.error}" if warning.error else ""))
    for source, error in compiled.failures:
        if is_debugging():
            print_failure(source, error)
        else:
            note(f"{VARIABLE}=1 shows what source {source} raised")


def _line(compiled: Compiled, messages: int) -> str:
    step, manifest = compiled.step, compiled.step.manifest
    chosen = sum(e.selected for e in manifest.entries)
    tokens = sum(report.tokens_by_kind(manifest).values())
    return (
        f"{step.run}  step {step.step}  sequence {step.sequence}  {messages} messages  "
        f"{chosen}/{len(manifest.entries)} entries  {tokens:,} of {manifest.budget.context_tokens:,} tokens  "
        f"{len(compiled.payload):,} bytes"
    )


def _as_fields(compiled: Compiled, opened: Opened, job: Job, settings: Settings, path: str | None) -> dict[str, object]:
    step = compiled.step
    return {
        "run": step.run,
        "step": step.step,
        "sequence": step.sequence,
        "commit": step.commit,
        "package": step.reference,
        "durability": compiled.durability,
        "stored": step.stored,
        "target": job.choice.target,
        "model": inputs.as_fields(step.model),
        "scope": inputs.as_fields(settings.scope),
        "tokens": report.tokens_by_kind(step.manifest),
        "blocks": report.count_blocks(step, settings.estimator),
        "manifest": inputs.as_fields(step.manifest),
        "query": compiled.query,
        "repairs": compiled.repairs,
        "documents": [d.as_fields() for d in opened.documents],
        "warnings": [inputs.as_fields(w) for w in compiled.warnings],
        "notes": compiled.notes,
        "payload": path,
        "payloadBytes": len(compiled.payload),
    }

"""``contextbus remember``, ``forget``, ``allow`` and ``memories``: the memory records of a scope."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from contextbus import client
from contextbus.cli import inputs, options
from contextbus.cli.failures import UsageFault
from contextbus.cli.output import called, note, print_json, show_progress, stdout
from contextbus.cli.running import run
from contextbus.client import ContextBus
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import ForbiddenError

_REMEMBER: Final = """Examples:

contextbus remember "Prefers an aisle seat." --scope user_id=ada

contextbus remember --file facts.jsonl --scope user_id=ada --scope agent_id=billing
"""
_FORGET: Final = """Example:

contextbus forget m-2f6c… --scope user_id=ada
"""
_ALLOW: Final = """Examples:

contextbus allow "Prefers an aisle seat."

contextbus allow --id m-2f6c…
"""
_MEMORIES: Final = """Example:

contextbus memories --scope user_id=ada --json
"""

SourceId = Annotated[str, typer.Option("--source", metavar="ID", help="The memory source.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("remember", epilog=_REMEMBER)(remember)
    app.command("forget", epilog=_FORGET)(forget)
    app.command("allow", epilog=_ALLOW)(allow)
    app.command("memories", epilog=_MEMORIES)(list_memories)


def remember(
    text: Annotated[str | None, typer.Argument(help="What is to be remembered.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Many records, one a line; each is stored once.")
    ] = None,
    scope: options.ScopeFields = None,
    record: Annotated[str | None, typer.Option("--id", metavar="ID", help="The record to change.")] = None,
    source: SourceId = "memory",
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Store a memory record, or a new revision of one. With --nats a memory worker must run.

    A text that is said twice of one scope is one record; with --id every call makes a new revision.
    """

    async def work() -> None:
        place = options.find_place(data, nats, tenant)
        whose = options.parse_scope(scope)
        if (text is None) == (file is None) or (file is not None and record is not None):
            raise UsageFault("give a TEXT (and --id to change a record), or --file FILE.jsonl")
        lines = (inputs.MemoryLine(text or "", record),) if file is None else inputs.read_memories(file)
        refused: list[ForbiddenError] = []
        async with _open(place) as bus:
            with show_progress() as progress:
                for line in progress.track(lines, description="remember"):
                    try:
                        stored = await bus.memories.remember(
                            line.text,
                            scope=whose,
                            record_id=line.id,
                            origin=line.origin,
                            source=source,
                            # Of a named record an old text may be said again after another one, and must count.
                            message_id=uuid.uuid4().hex if record is not None else inputs.message_id(line, whose),
                        )
                    except ForbiddenError as exc:
                        if file is None:
                            raise
                        refused.append(exc)
                        continue
                    if as_json:
                        print_json({"id": stored.record_id, "revision": stored.revision, "sequence": stored.sequence})
                    else:
                        stdout().print(f"{stored.record_id}  revision {stored.revision}", soft_wrap=True)
        if refused:
            note(inputs.explain_refused(refused))

    run(work, as_json=as_json)


def forget(
    record: Annotated[str, typer.Argument(metavar="ID", help="The record, as `contextbus memories` names it.")],
    scope: options.ScopeFields = None,
    source: SourceId = "memory",
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Erase every revision of a record and redact every package that holds it; its text is not learned again.

    Summaries of conversations in which it was placed are deleted, with the spans that were archived for them.

    The text is refused for all scopes of this memory store, not only for this one, until `contextbus allow`.

    With --nats a memory worker and the actors must run. Messages and working memory that quote it are counted and stay.
    """

    async def work() -> None:
        place = options.find_place(data, nats, tenant)
        whose = options.parse_scope(scope)
        async with _open(place) as bus:
            gone = await bus.memories.forget(record, scope=whose, source=source)
        if as_json:
            print_json(
                {
                    "id": gone.record_id,
                    "revisions": gone.revisions,
                    "sequence": gone.sequence,
                    "redacted": [{"run": one.run, "steps": list(one.steps)} for one in gone.redacted],
                    "summaries": [
                        {"run": one.run, "summary": one.summary, "archive": one.archive} for one in gone.summaries
                    ],
                    "blobsErased": gone.blobs,
                    "quotingMessages": gone.messages,
                    "quotingItems": gone.items,
                }
            )
            return
        steps = _count(sum(len(one.steps) for one in gone.redacted), "step")
        erased = f"{_count(gone.revisions, 'revision')} erased, {steps} redacted"
        if gone.summaries:
            spans = _count(sum(one.archive is not None for one in gone.summaries), "archived span")
            erased += f", {_count(len(gone.summaries), 'summary', 'summaries')} and {spans} deleted"
        stdout().print(f"{gone.record_id} is forgotten, {erased}", soft_wrap=True)
        for one in gone.redacted:
            numbers = ", ".join(str(step) for step in one.steps)
            stdout().print(Text(f"  {one.run}: step{'' if len(one.steps) == 1 else 's'} {numbers}"), soft_wrap=True)
        for deleted in gone.summaries:
            span = "" if deleted.archive is None else f", archived span {deleted.archive}"
            stdout().print(Text(f"  {deleted.run}: summary {deleted.summary}{span}"), soft_wrap=True)
        if gone.messages or gone.items:
            quoting = f"{_count(gone.messages or 0, 'message')} and {_count(gone.items or 0, 'item')} of working memory"
            note(f"{quoting} in these runs quote it and are not touched")

    run(work, as_json=as_json)


def allow(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="The forgotten texts.")] = None,
    record: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A forgotten record, all of whose texts are meant.")
    ] = None,
    digest: Annotated[
        list[str] | None, typer.Option(metavar="sha256:…", help="The digest of a forgotten text; may be repeated.")
    ] = None,
    source: SourceId = "memory",
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Let forgotten texts be remembered again; what was erased does not come back.

    With --nats a memory worker must run.
    """

    async def work() -> None:
        place = options.find_place(data, nats, tenant)
        if not texts and not digest and record is None:
            raise UsageFault("name what is allowed again: TEXT, --digest sha256:…, or --id ID of a forgotten record")
        async with _open(place) as bus:
            done = await bus.memories.allow(*(texts or ()), digests=digest or (), record_id=record, source=source)
        if as_json:
            print_json({"digests": list(done.digests), "sequence": done.sequence})
        else:
            stdout().print(f"{_count(len(done.digests), 'text')} may be remembered again", soft_wrap=True)
        named = {*(digest or ()), *(digest_text(clean_text(text)) for text in texts or ())}
        if others := len(named.difference(done.digests)):
            note(f"{_count(others, 'text')} named here {'was' if others == 1 else 'were'} never forgotten")

    run(work, as_json=as_json)


def _count(number: int, what: str, many: str | None = None) -> str:
    return f"{number} {what if number == 1 else many or what + 's'}"


def list_memories(
    scope: options.ScopeFields = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 1000,
    source: SourceId = "memory",
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """List the memory records of a scope."""

    async def work() -> None:
        place = options.find_place(data, nats, tenant)
        whose = options.parse_scope(scope)
        async with _open(place) as bus:
            listed = await bus.memories.list(scope=whose, limit=limit, source=source)
        if as_json:
            print_json([inputs.as_fields(r) for r in listed.records])
            return
        if not listed.records:
            note(f"no records of {options.show_scope(whose)}; store one with `{called()} remember`")
            return
        table = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("id", "revision", "since", "text"):
            table.add_column(title, overflow="fold")
        for record in listed.records:
            since = datetime.fromtimestamp(record.at / 1000, UTC).strftime("%Y-%m-%d %H:%M")
            table.add_row(Text(record.record_id), str(record.revision), since, Text(record.text))
        stdout().print(table)

    run(work, as_json=as_json)


@asynccontextmanager
async def _open(place: options.Place) -> AsyncGenerator[ContextBus]:
    """A bus whose records this process serves itself, or a worker where the server is elsewhere."""
    actors: Literal["local", "remote"] = "local" if place.nats is None else "remote"
    async with client.open(place.nats, tenant=place.tenant, data=place.folder, actors=actors) as bus:
        yield bus

"""``contextbus doctor``: what is at hand, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

import anyio.to_thread
import msgspec
import typer
from rich.table import Table
from rich.text import Text

import contextbus
from contextbus.cli import options
from contextbus.cli.failures import FAILED, OK, UNREACHABLE, describe
from contextbus.cli.output import print_json, stdout
from contextbus.cli.running import run
from contextbus.cli.serving import Link, open_link
from contextbus.runtime import embedded
from contextbus.runtime.connection_errors import DisconnectedError, NoRespondersError
from contextbus.runtime.server_binary import OLDEST, ServerNotFoundError, find_server
from contextbus.runtime.streams import KINDS, name_stream
from contextbus.runtime.tokenizers import TOKENIZER_NAMES, load_tokenizers
from contextbus_protocol import subjects

Status = Literal["ok", "note", "missing"]

LOOK_SECONDS: Final = 2.0
SDKS: Final = {
    "openai": ("openai", "for summaries by such a model, and to check payloads"),
    "anthropic": ("anthropic", "for summaries by such a model, and to check payloads"),
    "google-genai": ("gemini", "to check payloads for Gemini"),
}
"""Packages of providers: the extra that installs each, and what it is for."""
_OLDEST_PYTHON: Final = (3, 11)
_DOCTOR: Final = """Examples:

contextbus doctor

contextbus doctor --nats nats://host:4222 --json
"""
_MARKS: Final = {"ok": ("ok", "green"), "note": ("note", "yellow"), "missing": ("missing", "bold red")}


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at; ``note`` is something that can be done without."""

    name: str
    status: Status
    found: str
    fix: str = ""


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0


class _Config(msgspec.Struct):
    num_replicas: int = 1


class _Described(msgspec.Struct):
    state: _State | None = None
    config: _Config | None = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=_DOCTOR)(doctor)


def doctor(
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Look at everything that contextbus needs, and say how to get what is missing."""

    async def work() -> int:
        place = options.find_place(data, nats, tenant)
        checks = list(await anyio.to_thread.run_sync(_look_at_machine, place))
        served = await _look_at_server(place)
        checks += served
        if as_json:
            print_json({"version": contextbus.__version__, "checks": checks})
        else:
            _show(checks)
        if served[0].status == "missing":
            return UNREACHABLE
        return FAILED if any(c.status == "missing" for c in checks) else OK

    run(work, as_json=as_json)


def _look_at_machine(place: options.Place) -> tuple[Check, ...]:
    return (
        _python(),
        _full_text(),
        _uvloop(),
        *_tokenizers(),
        *map(_sdk, SDKS),
        _binary(needed=place.nats is None),
        _data(place),
    )


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Check("python", "missing", found, "install Python 3.11 or newer")
    return Check("python", "ok", found)


def _full_text() -> Check:
    try:
        with sqlite3.connect(":memory:") as connection:
            connection.execute("CREATE VIRTUAL TABLE words USING fts5(body)")
        connection.close()
    except sqlite3.Error:
        fix = "use a Python whose SQLite has FTS5, as those of python.org and of the distributions do"
        return Check("sqlite fts5", "missing", f"SQLite {sqlite3.sqlite_version} without FTS5", fix)
    return Check("sqlite fts5", "ok", f"SQLite {sqlite3.sqlite_version}")


def _uvloop() -> Check:
    if importlib.util.find_spec("uvloop") is None:
        return Check("uvloop", "note", "not installed; asyncio's own loop is used", "pip install 'contextbus[fast]'")
    return Check("uvloop", "ok", "installed and used")


def _tokenizers() -> tuple[Check, ...]:
    loaded = load_tokenizers(TOKENIZER_NAMES)
    return tuple(
        Check(f"tokenizer {name}", "ok", "at hand")
        if name in loaded.tokenizers
        else Check(f"tokenizer {name}", "note", "not at hand; the estimator counts instead", loaded.absent[name])
        for name in TOKENIZER_NAMES
    )


def _sdk(name: str) -> Check:
    extra, purpose = SDKS[name]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(f"SDK {name}", "note", "not installed", f"{purpose}: pip install 'contextbus[{extra}]'")
    return Check(f"SDK {name}", "ok", f"{version} is installed")


def _binary(*, needed: bool) -> Check:
    try:
        found = find_server()
    except ServerNotFoundError as exc:
        oldest = ".".join(map(str, OLDEST))
        return Check("nats-server", "missing" if needed else "note", f"none of {oldest} or newer", str(exc))
    return Check("nats-server", "ok", f"{'.'.join(map(str, found.version))} at {found.path}")


def _data(place: options.Place) -> Check:
    path = place.data
    if not path.exists():
        return Check("data folder", "ok", f"{path} is made when it is needed")
    if not path.is_dir():
        return Check("data folder", "missing", f"{path} is no folder", "name a folder with --data")
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink())
    return Check("data folder", "ok", f"{path.absolute()}, {size / 1024 / 1024:.1f} MiB")


async def _look_at_server(place: options.Place) -> list[Check]:
    """The server that is used; where none runs yet, one on a folder of its own shows that it would."""
    try:
        if place.nats is not None or await embedded.attach(place.data) is not None:
            # The users of a cluster that only ask have no right to look at the records.
            async with open_link(place, "contextbus-doctor", start=False, kinds=("log", "blob")) as link:
                return [Check("server", "ok", f"reached at {link.url}"), *await _look_at_streams(link)]
        with tempfile.TemporaryDirectory(prefix="contextbus-doctor-") as folder:
            trial = options.Place(data=Path(folder) / "data", nats=None, tenant=place.tenant)
            async with open_link(trial, "contextbus-doctor", start=True) as link:
                return [
                    Check("server", "ok", f"none runs on {place.data}; a trial one started, and ended again"),
                    Check("jetstream", "ok", "the trial server keeps streams"),
                    Check("durability", "ok", link.durability),
                ]
    except Exception as exc:  # whatever it is, it is the finding
        return [Check("server", "missing", "not reached", describe(exc).message)]


async def _look_at_streams(link: Link) -> list[Check]:
    checks = [Check("jetstream", "ok", "the server keeps streams")]
    for kind in KINDS:
        name = name_stream(kind, subjects.encode_name(link.tenant))
        try:
            reply = await link.connection.request(f"$JS.API.STREAM.INFO.{name}", b"", LOOK_SECONDS)
            described = msgspec.json.decode(reply.data, type=_Described)
        except (NoRespondersError, DisconnectedError, TimeoutError, msgspec.DecodeError) as exc:
            fix = f"to see it, allow this user the subject $JS.API.STREAM.INFO.{name}"
            checks.append(Check(f"stream {name}", "note", f"not described: {type(exc).__name__}", fix))
            continue
        state, config = described.state or _State(), described.config or _Config()
        found = f"{state.messages:,} messages, {state.bytes / 1024 / 1024:.1f} MiB, {config.num_replicas} replica(s)"
        checks.append(Check(f"stream {name}", "ok", found))
    if link.durability == "unknown":
        fix = "set sync_interval or replicas at the server, and say so with --durability-label"
        return [*checks, Check("durability", "note", "the server does not say", fix)]
    return [*checks, Check("durability", "ok", link.durability)]


def _show(checks: list[Check]) -> None:
    grid = Table.grid(padding=(0, 2))
    for check in checks:
        mark, style = _MARKS[check.status]
        grid.add_row(Text(check.name, "bold"), Text(mark, style), Text(check.found, overflow="fold"))
        if check.fix:
            grid.add_row("", "", Text(f"fix: {check.fix}", "yellow", overflow="fold"))
    stdout().print(grid)

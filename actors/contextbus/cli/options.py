"""Options that several commands share, and what they mean together."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from contextbus.cli.failures import UsageFault
from contextbus.core.scope import SCOPE_FIELDS
from contextbus_protocol import subjects
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import SOURCE_KINDS, Scope, SourceSpec, default_kind

DEFAULT_DATA: Final = Path(".contextbus")
DEFAULT_SCOPE: Final = Scope(user_id="local")

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="CONTEXTBUS_DATA",
        metavar="FOLDER",
        help="Data folder of the embedded server and of the indexes.",
    ),
]
Nats = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="CONTEXTBUS_NATS",
        metavar="URL[,URL]",
        help="A NATS server or cluster instead of the embedded one; credentials may stand in the URL.",
    ),
]
Tenant = Annotated[
    str, typer.Option("--tenant", envvar="CONTEXTBUS_TENANT", metavar="NAME", help="Whose runs and records these are.")
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas",
        envvar="CONTEXTBUS_REPLICAS",
        min=1,
        max=5,
        help="On how many servers of a cluster the streams are made to store each message.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ScopeFields = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="FIELD=VALUE",
        help="Whose data is meant, for example user_id=ada; may be given for several fields.",
    ),
]
Docs = Annotated[
    list[Path] | None,
    typer.Option(
        "--docs",
        metavar="FOLDER",
        help=(
            "A folder of documents (.md, .markdown, .txt, .rst, and .jsonl with lines of {id, title, text}), or one "
            "such file; other files are skipped and counted."
        ),
    ),
]

Skills = Annotated[
    Path | None,
    typer.Option("--skills", metavar="FOLDER", help="A folder of skills: every folder in it with a SKILL.md is one."),
]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is: the server at ``nats``, else the one of the data folder."""

    data: Path
    nats: str | None
    tenant: str
    replicas: int = 1

    @property
    def folder(self) -> Path:
        """The folder of the embedded server, or of the indexes that belong to the server at ``nats``."""
        if self.nats is None:
            return self.data
        servers = ",".join(re.sub(r"^.*@", "", url.split("://")[-1]) for url in self.nats.split(","))
        return self.data / "servers" / hashlib.sha256(servers.encode()).hexdigest()[:12]

    @property
    def options(self) -> str:
        """The options that name it, without credentials."""
        named = f"--data {shlex.quote(str(self.data))}"
        if self.nats is not None:
            named = f"--nats {shlex.quote(hide_credentials(self.nats))}"
        return named if self.tenant == "default" else f"{named} --tenant {shlex.quote(self.tenant)}"

    @property
    def shown(self) -> str:
        """Where it is, for people: without credentials."""
        return f"data folder {self.data}" if self.nats is None else f"server {hide_credentials(self.nats)}"


def find_place(data: Path, nats: str | None, tenant: str, replicas: int = 1) -> Place:
    """What the options say together.

    Raises:
        UsageFault: the tenant's name or a URL cannot be used.
    """
    try:
        subjects.encode_name(tenant)
    except InvalidTypeError as exc:
        raise UsageFault(f"--tenant: {exc.message}") from None
    urls = [url.strip() for url in (nats or "").split(",") if url.strip()]
    for url in urls:
        scheme, found, rest = url.partition("://")
        if (found and scheme not in ("nats", "tls", "ws", "wss")) or not (rest or scheme):
            raise UsageFault(f"--nats: {hide_credentials(url)!r} is no NATS URL; write nats://host:4222")
    return Place(data=data, nats=",".join(urls) or None, tenant=tenant, replicas=replicas)


def hide_credentials(urls: str) -> str:
    """URLs without user and password."""
    return ",".join(re.sub(r"^([a-z]+://)?.*@", r"\1", url) for url in urls.split(","))


def parse_scope(fields: list[str] | None, default: Scope | None = None) -> Scope:
    """A scope from ``field=value`` options.

    Raises:
        UsageFault: one is malformed or has no such field, or nobody is named and there is no default.
    """
    if not fields:
        if default is None:
            raise UsageFault("whose data is meant? give --scope user_id=NAME")
        return default
    values: dict[str, str] = {}
    for given in fields:
        field, found, value = given.partition("=")
        field = field.strip().replace("-", "_")
        if not found or not value or field not in SCOPE_FIELDS:
            raise UsageFault(f"--scope {given!r}: write FIELD=VALUE with a field of {', '.join(SCOPE_FIELDS)}")
        values[field] = value
    return Scope(**values)


def show_scope(scope: Scope) -> str:
    """A scope as its options are written."""
    pairs = ((field, getattr(scope, field)) for field in SCOPE_FIELDS)
    return " ".join(f"{field}={value}" for field, value in pairs if value is not None)


def parse_sources(given: list[str] | None) -> tuple[SourceSpec, ...]:
    """Sources of other processes, each ``id`` or ``id:kind``.

    Raises:
        UsageFault: a kind is missing or unknown.
    """
    specs: list[SourceSpec] = []
    for text in given or ():
        name, _, word = text.partition(":")
        kind = word or default_kind(name)
        if not name or kind not in SOURCE_KINDS:
            raise UsageFault(f"--source {text!r}: write ID:KIND with a kind of {', '.join(SOURCE_KINDS)}")
        specs.append(SourceSpec(name, kind))
    return tuple(specs)

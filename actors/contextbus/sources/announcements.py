"""What the workers of one source must agree on, told through service discovery (D.K.23)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from contextbus.runtime.connection import Connection
from contextbus.runtime.discovery import Endpoint, Service, service_name
from contextbus.sources.interface import Configured, Source
from contextbus_protocol import subjects
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.values import SourceKind

SCHEMA_VERSION: Final = 1
COLLECT_SECONDS: Final = 0.25
_SHARED: Final = ("kind", "required", "schema", "options")


class Announcement(msgspec.Struct, frozen=True):
    """What a worker says of its source; ``options`` is the digest of settings that change its answers."""

    tenant: str
    source: str
    kind: SourceKind
    required: bool
    schema: int
    options: str

    @property
    def metadata(self) -> dict[str, str]:
        """The announcement as metadata of a service."""
        return {
            "tenant": self.tenant,
            "source": self.source,
            "kind": self.kind,
            "required": "true" if self.required else "false",
            "schema": str(self.schema),
            "options": self.options,
        }


class _Info(msgspec.Struct):
    id: str = ""
    metadata: dict[str, str] | None = None


def announcement(tenant: str, source: Source) -> Announcement:
    """What a worker of a source announces."""
    options = source.options_digest if isinstance(source, Configured) else ""
    return Announcement(tenant, source.id, source.kind, source.required, SCHEMA_VERSION, options)


def check_peers(own: Announcement, others: Iterable[Mapping[str, str]]) -> None:
    """Compare an announcement with those of other workers; those of other sources or tenants do not matter.

    Raises:
        InvalidRequestError: a worker of the same source announces something else; the text names what (D.K.23).
    """
    mine = own.metadata
    for other in others:
        if other.get("tenant") != own.tenant or other.get("source") != own.source:
            continue
        for name in _SHARED:
            if other.get(name) != mine[name]:
                raise InvalidRequestError(
                    f"source {own.source!r}: another worker runs with {name} {other.get(name)!r}, this one has "
                    f"{mine[name]!r}: give all workers of a source the same settings, or this one another id"
                )


async def collect_metadata(
    connection: Connection, service: Service, *, seconds: float = COLLECT_SECONDS
) -> tuple[dict[str, str], ...]:
    """The metadata of all other services of the same name that answer in time."""
    found: list[dict[str, str]] = []

    def receive(_subject: str, _reply: str, _headers: Mapping[str, str], data: bytes) -> None:
        try:
            info = msgspec.json.decode(data, type=_Info)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if info.id != service.id and info.metadata:
            found.append(info.metadata)

    inbox = connection.open_inbox(receive)
    try:
        await connection.publish(f"$SRV.INFO.{service.name}", b"", reply=f"{inbox}.1")
        await anyio.sleep(seconds)
    finally:
        connection.close_inbox(inbox)
    return tuple(found)


@asynccontextmanager
async def announce(
    connection: Connection, tenant: str, source: Source, *, version: str, seconds: float = COLLECT_SECONDS
) -> AsyncGenerator[Service]:
    """Show a source's worker in service discovery inside of the block; the worker then serves and answers pings.

    Registered before the others are asked: of two that start at once and differ, at least one notices.

    Raises:
        InvalidRequestError: a worker of the same source announces something else (D.K.23).
    """
    own = announcement(tenant, source)
    queue = subjects.encode_name(source.id)
    endpoint = Endpoint(name="query", subject=subjects.query(tenant, source.id), queue_group=queue)
    service = Service(
        service_name(source.id),
        version,
        description=f"source of kind {source.kind}",
        endpoints=(endpoint,),
        metadata=own.metadata,
    )
    await service.register(connection, ("INFO",))
    try:
        check_peers(own, await collect_metadata(connection, service, seconds=seconds))
        yield service
    finally:
        await service.withdraw(connection)

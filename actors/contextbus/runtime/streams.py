"""The streams of a tenant: commits, blobs and memory records.

A stream per tenant and kind, because a read by sequence or batch names its subject in the body,
where the server's permissions cannot see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from contextbus.runtime.connection import Connection
from contextbus.runtime.connection_errors import DisconnectedError, NoRespondersError
from contextbus.runtime.jetstream_api import Failure
from contextbus.runtime.journal import DUPLICATE_WINDOW_SECONDS, Code

Kind = Literal["log", "blob", "memory"]
KINDS: tuple[Kind, ...] = ("log", "blob", "memory")

API_SECONDS = 5.0
SILENCE_SECONDS = 1.0

_NAMES: dict[str, str] = {"log": "CTX_LOG", "blob": "CTX_BLOB", "memory": "CTX_MEMORY"}
_TEMPORARY = (
    10008,  # JetStream is not available now
    10009,  # the peers of the cluster are not yet there
)
_NO_JETSTREAM = (
    10039,  # not enabled for the account
    10076,  # not enabled
)


class StreamError(RuntimeError):
    """A stream cannot be made or does not fit; the message says what to do."""


class Republish(msgspec.Struct, frozen=True):
    """Where the server sends a copy of each stored message."""

    src: str
    dest: str


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a stream that matter to us, under JetStream's names."""

    name: str
    subjects: tuple[str, ...]
    storage: str = "file"
    retention: str = "limits"
    discard: str = "new"
    discard_new_per_subject: bool = False
    max_msgs_per_subject: int = -1
    max_age: int = 0
    max_bytes: int = -1
    num_replicas: int = 1
    duplicate_window: int = int(DUPLICATE_WINDOW_SECONDS * 1e9)
    allow_direct: bool = True
    deny_delete: bool = False
    deny_purge: bool = False
    republish: Republish | None = None


class Streams(msgspec.Struct, frozen=True):
    """The streams of a tenant, and how durable an acknowledged message is.

    Attributes:
        log: The stream of commits.
        blob: The stream of blobs, one message a subject.
        memory: The stream of memory records, every revision kept.
        durability: `replicated`, or what the server does: `fsync`, `interval` or `unknown`.
    """

    log: str
    blob: str
    memory: str
    durability: str


class _Described(msgspec.Struct):
    config: StreamConfig | None = None
    error: Failure | None = None


def name_stream(kind: Kind, tenant: str) -> str:
    """Name the stream of a tenant."""
    return f"{_NAMES[kind]}_{tenant}"


@lru_cache(maxsize=4096)
def find_stream(subject: str) -> str:
    """Name the stream that a subject belongs to.

    Raises:
        ValueError: It is no subject of a log, a blob or a memory record.
    """
    match subject.split(".", 3):
        case ["ctx", kind, tenant, _] if kind in _NAMES:
            return f"{_NAMES[kind]}_{tenant}"
        case _:
            raise ValueError("not a subject of a log, a blob or a memory record")


def configure(kind: Kind, tenant: str, replicas: int) -> StreamConfig:
    """Settle how a stream of a tenant is set up."""
    config = StreamConfig(
        name=name_stream(kind, tenant),
        subjects=(f"ctx.{kind}.{tenant}.>",),
        num_replicas=replicas,
    )
    if kind == "log":
        live = Republish(src=f"ctx.log.{tenant}.>", dest=f"ctx.live.{tenant}.>")
        return msgspec.structs.replace(config, republish=live)
    if kind == "blob":
        return msgspec.structs.replace(config, max_msgs_per_subject=1, discard_new_per_subject=True)
    return config


async def ensure(
    connection: Connection,
    tenant: str,
    *,
    replicas: int = 1,
    durability: str = "unknown",
    kinds: Sequence[Kind] = KINDS,
    seconds: float = 30.0,
) -> Streams:
    """Make the streams of a tenant where they are missing; existing ones that fit are left alone.

    Args:
        connection: The connection.
        tenant: The tenant, encoded as it stands in subjects.
        replicas: On how many servers each message is stored.
        durability: What the server does before it acknowledges: `fsync`, `interval` or `unknown`.
        kinds: Which streams are needed; who only asks others has no right to look at the records.
        seconds: How long to wait for a cluster that has no leader yet.

    Raises:
        StreamError: JetStream is off, or a stream exists with settings that lose or hide messages.
    """
    copies = [await _ensure_one(connection, configure(kind, tenant, replicas), seconds) for kind in kinds]
    return Streams(
        log=name_stream("log", tenant),
        blob=name_stream("blob", tenant),
        memory=name_stream("memory", tenant),
        durability="replicated" if min(copies) > 1 else durability,
    )


async def _ensure_one(connection: Connection, wanted: StreamConfig, seconds: float) -> int:
    """Make a stream where it is missing; gives on how many servers it stores each message."""
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    # Nobody answers for JetStream where it is off, and in a cluster that elects its leader.
    silence = deadline if wanted.num_replicas > 1 else now() + min(seconds, SILENCE_SECONDS)
    while True:
        # Ask first: who may use a stream need not have the right to make one.
        found = await _ask(connection, f"$JS.API.STREAM.INFO.{wanted.name}", b"")
        if found.error is not None and found.error.err_code == Code.STREAM_NOT_FOUND:
            body = msgspec.json.encode(wanted)
            found = await _ask(connection, f"$JS.API.STREAM.CREATE.{wanted.name}", body)
        if found.error is None:
            return _check(found.config, wanted)
        code = found.error.err_code
        if code in _NO_JETSTREAM and now() > silence:
            raise StreamError("the nats-server keeps no streams: start it with JetStream (`nats-server -js`)")
        # A name in use means that another process was faster: look at what it made.
        passing = code in (*_TEMPORARY, *_NO_JETSTREAM, Code.STREAM_NAME_IN_USE)
        if not passing or now() > deadline:
            raise StreamError(f"the stream {wanted.name} cannot be made: {found.error.description} ({code})")
        await asyncio.sleep(0.1)


async def _ask(connection: Connection, subject: str, body: bytes) -> _Described:
    try:
        reply = await connection.request(subject, body, API_SECONDS)
        return msgspec.json.decode(reply.data, type=_Described)
    except NoRespondersError:
        return _Described(error=Failure(err_code=_NO_JETSTREAM[1]))
    except (DisconnectedError, TimeoutError):
        return _Described(error=Failure(err_code=_TEMPORARY[0], description="no answer"))
    except msgspec.DecodeError as error:
        raise StreamError("the nats-server answered what is not understood: is it 2.11?") from error


def _check(found: StreamConfig | None, wanted: StreamConfig) -> int:
    """Refuse a stream that would drop, overwrite or hide messages; gives its number of replicas."""
    if found is None:
        raise StreamError(f"the stream {wanted.name} is not described by the server")
    for field in (
        "subjects",
        "discard",
        "discard_new_per_subject",
        "max_msgs_per_subject",
        "allow_direct",
        "deny_delete",
        "deny_purge",
    ):
        if getattr(found, field) != getattr(wanted, field):
            raise StreamError(
                f"the stream {wanted.name} exists with {field} = {getattr(found, field)!r} where "
                f"{getattr(wanted, field)!r} is needed: change it with `nats stream edit`"
            )
    return found.num_replicas

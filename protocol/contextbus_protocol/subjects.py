"""Every subject and stream name, in one place (design: section 5).

A name becomes one token: ``[A-Za-z0-9_-]`` as it is, every other UTF-8 byte as ``=XX``; at most 128 characters.
"""

from __future__ import annotations

import re
from typing import Literal

from contextbus_protocol.errors import InvalidTypeError

ActorName = Literal["selection", "working-memory", "placement", "compaction"]
Part = Literal["run", "working-memory", "erasures"]
PARTS: tuple[Part, ...] = ("run", "working-memory")
"""The parts of a run's own log; ``erasures`` belongs to the tenant."""

LONGEST_NAME = 128
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}", re.ASCII)
LONGEST_ADDRESS = 1024
"""Characters of a reply address: a server closes the connection on a line of more than 4,096 bytes."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def encode_name(name: str) -> str:
    """Make one subject token of a name.

    Raises:
        InvalidTypeError: the name is empty, not encodable, or its token is longer than 128 characters.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise InvalidTypeError("a name must not hold lone surrogates") from None
    token = "".join(chr(b) if b in _PLAIN else f"={b:02X}" for b in raw)
    if not token:
        raise InvalidTypeError("a name must not be empty")
    if len(token) > LONGEST_NAME:
        raise InvalidTypeError(f"a name must fit {LONGEST_NAME} characters once encoded; this one takes {len(token)}")
    return token


def decode_name(token: str) -> str:
    """Give back the name of a token.

    Raises:
        InvalidTypeError: no name has this token.
    """
    out = bytearray()
    i = 0
    try:
        while i < len(token):
            if token[i] == "=":
                out += bytes.fromhex(token[i + 1 : i + 3])
                i += 3
            else:
                out += token[i].encode()
                i += 1
        name = out.decode()
    except ValueError:
        raise InvalidTypeError("not the token of a name") from None
    if not name or encode_name(name) != token:
        raise InvalidTypeError("not the token of a name")
    return name


def command(actor: ActorName, tenant: str) -> str:
    """Where an actor takes commands; its instances share the queue group of the same name."""
    return f"ctx.v1.{actor}.{encode_name(tenant)}"


def query(tenant: str, source: str) -> str:
    """Where the workers of a source take queries; they share one queue group."""
    return f"ctx.v1.query.{encode_name(tenant)}.{encode_name(source)}"


def summarise(tenant: str, summariser: str) -> str:
    """Where the workers of a summariser take requests; they share one queue group."""
    return f"ctx.v1.summarise.{encode_name(tenant)}.{encode_name(summariser)}"


def source_admin(tenant: str, source: str) -> str:
    """Where the workers of a source take requests that are no queries (remember, forget, list)."""
    return f"ctx.v1.source.{encode_name(tenant)}.{encode_name(source)}"


def inbox(tenant: str, instance: str) -> str:
    """The prefix of all reply addresses of one process."""
    return f"ctx.inbox.{encode_name(tenant)}.{encode_name(instance)}"


def is_reply_address(subject: str, tenant: str) -> bool:
    """Whether a subject is a reply address of the tenant: anything else is refused before work starts."""
    prefix = f"ctx.inbox.{encode_name(tenant)}."
    rest = subject.removeprefix(prefix)
    return (
        subject.startswith(prefix)
        and len(subject) <= LONGEST_ADDRESS
        and all("!" <= c <= "~" and c not in "*>" for c in rest)
        and all(rest.split("."))
    )


def log(tenant: str, run: str, part: Part) -> str:
    """The literal subject of one part of a run's log; the erasures are the tenant's, whatever the run."""
    if part == "erasures":
        return erasures(tenant)
    return f"ctx.log.{encode_name(tenant)}.{encode_name(run)}.{part}"


def log_of_tenant(tenant: str) -> str:
    """The filter over the log of a tenant."""
    return f"ctx.log.{encode_name(tenant)}.>"


def run_logs(tenant: str) -> str:
    """The filter over the ``run`` parts of all runs of a tenant."""
    return f"ctx.log.{encode_name(tenant)}.*.run"


def erasures(tenant: str) -> str:
    """The literal subject of a tenant's erasures."""
    return f"ctx.log.{encode_name(tenant)}.erasures"


def blob(tenant: str, run: str, digest: str) -> str:
    """The subject of one blob of a run; ``digest`` is ``sha256:`` and hex."""
    return f"ctx.blob.{encode_name(tenant)}.{encode_name(run)}.{digest.removeprefix('sha256:')}"


def blobs_of_run(tenant: str, run: str) -> str:
    """The filter over a run's blobs."""
    return f"ctx.blob.{encode_name(tenant)}.{encode_name(run)}.>"


def blobs_of_tenant(tenant: str) -> str:
    """The filter over the blobs of all runs of a tenant."""
    return f"ctx.blob.{encode_name(tenant)}.>"


def memory(tenant: str, source: str, record: str) -> str:
    """The literal subject of one memory record; every revision is a message on it."""
    return f"ctx.memory.{encode_name(tenant)}.{encode_name(source)}.{encode_name(record)}"


def memories(tenant: str, source: str) -> str:
    """The filter over the records of one memory store."""
    return f"ctx.memory.{encode_name(tenant)}.{encode_name(source)}.*"

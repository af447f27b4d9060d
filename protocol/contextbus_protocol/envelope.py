"""What every message and every command carries, whatever it says.

A command holds all that its step needs: tenant, run, command id, attempt, reply address, seconds left.  Time left is
relative; each host subtracts what it spent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ReplyEncoding = Literal["msgpack", "json"]


class Message(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """Base of all messages; ``run`` is the key of an actor's state."""

    run: str


class Command(Message, frozen=True, kw_only=True):
    """Base of what a client asks for.

    ``command`` is the idempotency key: the same id and body have one effect.  ``now`` is the client's clock in
    milliseconds since the epoch, recorded and never used to decide (D.G.32).  ``seen`` and ``seen_memory`` are the
    log sequences of the run's two parts that the client knows, so that it always sees its own writes.
    """

    tenant: str
    command: str
    attempt: int
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    seconds_left: float
    now: int
    seen: int = 0
    seen_memory: int = 0

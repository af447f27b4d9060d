"""Lift events that an older release wrote to the form of this one.  Pure; version by version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

# (commit version, event tag) -> the same event in the form of the next version
UPCASTERS: Mapping[tuple[int, str], Upcaster] = {}


def lift_event(raw: bytes, version: int, upcasters: Mapping[tuple[int, str], Upcaster] = UPCASTERS) -> bytes:
    """Give the bytes of an event in today's form; bytes that need no lifting come back as they are.

    Args:
        raw: JSON of one event.
        version: the version of its commit.
        upcasters: what to apply; each takes an event from its version to the next.
    """
    if not any(at >= version for at, _ in upcasters):
        return raw
    try:
        event = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return raw
    lifted = False
    for at in range(version, max(v for v, _ in upcasters) + 1):
        upcaster = upcasters.get((at, str(event.get("type", ""))))
        if upcaster is not None:
            event, lifted = upcaster(event), True
    return msgspec.json.encode(event, order="deterministic") if lifted else raw

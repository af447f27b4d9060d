"""What comes of a call (C.G)."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus.client.given import GivenMessage
from contextbus_protocol.events import CompactionReason, ReplacedRange, TokenChange


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """An older range is replaced by a summary (C.G.1).

    ``messages`` are the new list: leading system messages, the summary, the user's last message where it was in the
    range, and what stays, which are the caller's own objects (C.E.1, C.E.7).  ``replaced_range`` are half-open indices
    into the messages of this call: exactly ``messages[start:end]`` is what the summary stands for (C.G.9).  ``tokens``
    are the counts before and after.  ``usage`` is what the summariser reported, in its own shape, None if it reported
    none (C.G.4).

    ``own_blocks`` are the digests to hand to the next call: those that were given, and that of the summary, so that it
    is never taken for something that the user said (C.E.6).  ``requests`` is the number of requests to the summariser.
    ``dropped`` tells that the range went without a summary (``on_failure="drop"``); ``summary`` is empty then.
    """

    status: Literal["compacted"] = "compacted"
    messages: tuple[GivenMessage, ...]
    summary: str
    replaced_range: ReplacedRange
    tokens: TokenChange
    usage: object | None = None
    own_blocks: tuple[str, ...] = ()
    requests: int = 1
    dropped: bool = False


class CannotFit(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is replaced: ``messages`` are the caller's objects, all of them (C.G.2).

    ``reason`` is one of five (C.G.3): ``no-safe-boundary`` (nothing may be replaced), ``protected-history`` (what stays
    leaves no room), ``incomplete-summary``, ``empty-summary`` (the summariser's answer is none) and
    ``summary-too-large``.  ``replaced_range`` is the range that was tried, None where there is none;
    ``required_tokens`` is the smallest target that would have done, where that is known.
    """

    status: Literal["cannot-fit"] = "cannot-fit"
    reason: CompactionReason
    messages: tuple[GivenMessage, ...]
    tokens: TokenChange
    usage: object | None = None
    requests: int = 0
    replaced_range: ReplacedRange | None = None
    required_tokens: int | None = None

"""Which breakpoints a request sends, and how they come into it: as overlays over bytes that hold none (P.E.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, cast

import msgspec
from msgspec.structs import replace

from contextbus.core import json_text
from contextbus.core.persistent import Vector
from contextbus.core.wire import Mark, Piece, Target, Written, takes_breakpoints
from contextbus_protocol.chat import Cache, ChatMessage

MOST: Final = 4
"""The most breakpoints that a request may have, the automatic one included (anthropic.A15)."""
LONGEST: Final[Cache] = "1h"
CACHE_KEY: Final = "_cache_breakpoint"
"""The member of a message, part or tool that asks for a breakpoint behind it (P.E.11)."""

Marks = Mapping[int, Sequence[Mark]]
"""Breakpoints by the index of their message."""

Layer = Literal["tools", "system", "settled", "last"]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where one breakpoint stands: a member of the body, or a message by its index."""

    layer: Layer
    index: int
    mark: Mark


class Breakpoints(msgspec.Struct, frozen=True):
    """What one request sends, in the order of the request; ``repaired`` counts what was dropped or got a longer TTL."""

    places: tuple[Place, ...] = ()
    repaired: int = 0

    def of(self, layer: Layer) -> dict[int, list[Mark]]:
        """The breakpoints of one layer."""
        found: dict[int, list[Mark]] = {}
        for place in self.places:
            if place.layer == layer:
                found.setdefault(place.index, []).append(place.mark)
        return found


def choose_breakpoints(
    fields: Mapping[str, Written],
    settled: Vector[tuple[int, Mark]],
    last: Sequence[Written],
    automatic: Cache = False,
) -> Breakpoints:
    """At most four: the last one on tools, the last of the system layer, then the newest (P.E.4).

    An earlier one with a shorter TTL gets the longer one of a later (anthropic.A15).  The cost does not depend on how
    many are asked for in settled messages.

    Args:
        fields: members of the body by name.
        settled: what settled messages ask for, with their indexes.
        last: the messages behind them.
        automatic: the one that the provider sets behind the last block, where the caller asked for it.
    """
    tools = [Place("tools", 0, mark) for mark in fields["tools"].marks] if "tools" in fields else []
    system = [Place("system", 0, mark) for mark in fields["system"].marks] if "system" in fields else []
    older = [Place("settled", index, mark) for index, mark in islice(settled.backwards(), MOST)]
    newest = [Place("last", index, mark) for index, written in enumerate(last) for mark in written.marks]
    messages = [*reversed(older), *newest]
    ranked = [*tools[-1:], *system[-1:], *reversed(messages), *reversed(system[:-1]), *reversed(tools[:-1])]
    kept = ranked[: MOST - 1 if automatic else MOST]
    repaired = len(tools) + len(system) + len(settled) + len(newest) - len(kept)
    places: list[Place] = []
    longest = automatic
    for place in reversed([place for place in (*tools, *system, *messages) if place in kept]):
        raised = longest == LONGEST and place.mark.cache != LONGEST
        repaired += raised
        longest = longest if raised else place.mark.cache
        places.append(replace(place, mark=replace(place.mark, cache=longest)) if raised else place)
    return Breakpoints(tuple(reversed(places)), repaired)


def put_breakpoints(json: bytes, marks: Iterable[Mark], shift: int = 0) -> bytes:
    """JSON with breakpoints in it; ``shift`` is how many bytes stand before the text that the marks are of."""
    pieces: list[bytes] = []
    start = 0
    for mark in sorted(marks, key=lambda mark: mark.end):
        pieces += (json[start : mark.end + shift], b',"cache_control":', json_text.encode(write_control(mark.cache)))
        start = mark.end + shift
    return b"".join((*pieces, json[start:]))


def write_control(cache: Cache) -> dict[str, str]:
    """A breakpoint as Anthropic takes it; True leaves the TTL to the provider, whose default is five minutes."""
    return {"type": "ephemeral"} | ({"ttl": cache} if isinstance(cache, str) else {})


def write_list(pieces: Iterable[Piece], head: bytes = b"[", tail: bytes = b"]") -> Written:
    """Pieces as a list between two texts, marked where a breakpoint is asked for behind one."""
    written, marks, length = list[bytes](), list[Mark](), len(head)
    for piece in pieces:
        written.append(piece.json)
        if piece.cache:
            marks.append(Mark(length + len(piece.json) - 1, piece.cache))
        length += len(piece.json) + 1
    return Written(b"%b%b%b" % (head, b",".join(written), tail), tuple(marks))


def write_system(message: ChatMessage, target: Target) -> tuple[Written | None, int]:
    """A message of the system layer, and how many breakpoints it asks for that cannot be sent."""
    asking = [index for index, part in enumerate(message.content) if part.cache]
    asked = len(asking) + bool(message.cache)
    json = target.system(message)
    if json is None or not asked or not takes_breakpoints(target):
        return None if json is None else Written(json), asked
    ends: dict[int, Cache] = {}
    for index in asking:
        # The target writes part after part, so what it makes of the first parts tells where they end.
        before = target.system(replace(message, content=message.content[: index + 1]))
        if before is not None and target.system(replace(message, content=(message.content[index],))) is not None:
            ends[len(before) - 1] = message.content[index].cache
    if message.cache:
        asked -= len(json) - 1 in ends
        ends[len(json) - 1] = longer(ends.get(len(json) - 1, False), message.cache)
    return Written(json, tuple(Mark(end, cache) for end, cache in ends.items())), asked - len(ends)


def longer(first: Cache, second: Cache) -> Cache:
    """The one of two that asks for more; the first where they ask for the same."""
    return second if second == LONGEST or not first else first


def read_cache(value: Mapping[str, object], *, tool: bool = False) -> Cache:
    """What a message, part or tool asks for in ``cache_control`` or with ``_cache_breakpoint`` (P.E.11).

    Args:
        value: its members.
        tool: the member ``cache`` is ours as well.
    """
    asked = _read_control(value.get("cache_control"))
    if tool:
        asked = longer(asked, _read_word(value.get("cache")) or value.get("cache") is True)
    return asked or value.get(CACHE_KEY) is True


def automatic_cache(extra: Mapping[str, object]) -> Cache:
    """What the caller's members of a body ask for behind the last block."""
    return _read_control(extra.get("cache_control"))


def _read_control(control: object) -> Cache:
    if control is None:
        return False
    ttl = cast("Mapping[str, object]", control).get("ttl") if isinstance(control, Mapping) else None
    return _read_word(ttl) or True


def _read_word(word: object) -> Cache:
    match word:
        case "5m":
            return "5m"
        case "1h":
            return "1h"
        case _:
            return False

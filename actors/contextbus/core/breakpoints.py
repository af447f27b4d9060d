"""Which breakpoints a request sends, and how they come into it: as overlays over bytes that hold none (P.E.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from contextbus.core.cache_control import LONGEST, longer
from contextbus.core.persistent import Vector
from contextbus.core.wire import Mark, Piece, Target, Written
from contextbus_protocol.chat import Cache, ChatMessage

MOST: Final = 4
"""The most breakpoints that a request may have, the automatic one included (anthropic.A15)."""


class Overlay(msgspec.Struct, frozen=True, gc=False):
    """What is put into a written message: the index of the byte that it stands before, and the target's bytes."""

    end: int
    json: bytes


Overlays = Mapping[int, Sequence[Overlay]]
"""Breakpoints that are sent, by the index of their message."""

Layer = Literal["tools", "system", "settled", "last"]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where one breakpoint stands: a member of the body, or a message by its index."""

    layer: Layer
    index: int
    mark: Mark


class Breakpoints(msgspec.Struct, frozen=True):
    """What one request sends, in the order of the request; ``repaired`` counts those dropped or with another TTL."""

    places: tuple[Place, ...] = ()
    repaired: int = 0

    def of(self, layer: Layer, write: Callable[[Cache], bytes]) -> dict[int, list[Overlay]]:
        """The breakpoints of one layer, each as ``write`` gives it."""
        found: dict[int, list[Overlay]] = {}
        for place in self.places:
            if place.layer == layer:
                found.setdefault(place.index, []).append(Overlay(place.mark.end, write(place.mark.cache)))
        return found


class Foreign(msgspec.Struct, frozen=True):
    """Breakpoints of the caller's, in members that the payload does not write: they count, and stay as they are.

    ``tools`` and ``system`` stand in members with these names, ``automatic`` is what the provider sets behind the last
    block where the caller asks for it.
    """

    tools: tuple[Cache, ...] = ()
    system: tuple[Cache, ...] = ()
    automatic: Cache = False

    def __len__(self) -> int:
        return len(self.tools) + len(self.system) + bool(self.automatic)


def choose_breakpoints(
    fields: Mapping[str, Written],
    settled: Vector[tuple[int, Mark]],
    last: Sequence[Written],
    foreign: Foreign | None = None,
) -> Breakpoints:
    """At most four: the last one on tools, the last of the system layer, then the newest (P.E.4).

    An earlier one with a shorter TTL gets the longer one of a later; behind a shorter one of the caller's, which cannot
    be changed, ours are shortened (anthropic.A15).  The cost does not depend on how many settled messages ask.

    Args:
        fields: members of the body by name, without those that the caller replaces.
        settled: what settled messages ask for, with their indexes.
        last: the messages behind them.
        foreign: the caller's own, which are deducted.
    """
    others = Foreign() if foreign is None else foreign
    tools = [Place("tools", 0, mark) for mark in fields["tools"].marks] if "tools" in fields else []
    system = [Place("system", 0, mark) for mark in fields["system"].marks] if "system" in fields else []
    older = [Place("settled", index, mark) for index, mark in islice(settled.backwards(), MOST)]
    newest = [Place("last", index, mark) for index, written in enumerate(last) for mark in written.marks]
    messages = [*reversed(older), *newest]
    ranked = [*tools[-1:], *system[-1:], *reversed(messages), *reversed(system[:-1]), *reversed(tools[:-1])]
    kept = ranked[: max(0, MOST - len(others))]
    repaired = len(tools) + len(system) + len(settled) + len(newest) - len(kept)
    # In the request's order, the caller's among them.
    order: list[Place | Cache] = [*others.tools, *[place for place in tools if place in kept], *others.system]
    order += [place for place in (*system, *messages) if place in kept]
    is_long = others.automatic == LONGEST
    raised: list[Place | Cache] = []
    for item in reversed(order):
        is_long = is_long or (item.mark.cache if isinstance(item, Place) else item) == LONGEST
        raised.append(_with_cache(item, LONGEST) if is_long and isinstance(item, Place) else item)
    places: list[Place] = []
    short: Cache = False  # the first of the caller's with the shorter TTL
    for item in reversed(raised):
        if isinstance(item, Place):
            places.append(_with_cache(item, short) if short and item.mark.cache == LONGEST else item)
        elif item != LONGEST:
            short = short or item
    asked = [item for item in order if isinstance(item, Place)]
    repaired += sum(place.mark.cache != other.mark.cache for place, other in zip(places, asked, strict=True))
    return Breakpoints(tuple(places), repaired)


def _with_cache(place: Place, cache: Cache) -> Place:
    return replace(place, mark=replace(place.mark, cache=cache))


def put_breakpoints(json: bytes, overlays: Iterable[Overlay], shift: int = 0) -> bytes:
    """JSON with breakpoints in it; ``shift`` is how many bytes stand before the text that the places are of."""
    pieces: list[bytes] = []
    start = 0
    for overlay in sorted(overlays, key=lambda overlay: overlay.end):
        pieces += (json[start : overlay.end + shift], overlay.json)
        start = overlay.end + shift
    return b"".join((*pieces, json[start:]))


def write_list(pieces: Iterable[Piece], head: bytes = b"[", tail: bytes = b"]") -> Written:
    """Pieces as a list between two texts, marked where a breakpoint is asked for behind one."""
    written, marks, length = list[bytes](), list[Mark](), len(head)
    for piece in pieces:
        written.append(piece.json)
        if piece.cache:
            marks.append(Mark(length + len(piece.json) - 1, piece.cache))
        length += len(piece.json) + 1
    return Written(b"%b%b%b" % (head, b",".join(written), tail), tuple(marks))


def join_written(items: Iterable[Written], head: bytes = b"[", tail: bytes = b"]") -> Written:
    """Written messages as a list between two texts, with their marks."""
    written, marks, length = list[bytes](), list[Mark](), len(head)
    for item in items:
        written.append(item.json)
        marks += [Mark(length + mark.end, mark.cache) for mark in item.marks]
        length += len(item.json) + 1
    return Written(b"%b%b%b" % (head, b",".join(written), tail), tuple(marks))


def write_system(message: ChatMessage, target: Target) -> tuple[Written | None, int]:
    """A message of the system layer, and how many breakpoints it asks for that cannot be sent."""
    asking = sum(bool(part.cache) for part in message.content)
    written = target.system(message)
    if written is None or not target.takes_breakpoints:
        return written, asking + bool(message.cache)
    lost = asking - len(written.marks)
    if message.cache:
        end = len(written.json) - 1  # the message's own stands behind its last block, which ends the JSON
        ends: dict[int, Cache] = {mark.end: mark.cache for mark in written.marks}
        ends[end] = longer(ends.get(end, False), message.cache)
        written = replace(written, marks=tuple(Mark(place, cache) for place, cache in ends.items()))
    return written, lost

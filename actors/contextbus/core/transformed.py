"""A history that the host's ``transform_context`` changed for one request, with the run's blocks in it (P.D.4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from contextbus.core.history import digest_message
from contextbus_protocol.chat import ChatMessage


def place_blocks(
    request: Sequence[ChatMessage], own: Collection[str], given: Sequence[ChatMessage]
) -> tuple[ChatMessage, ...]:
    """The messages that the host gave, with the blocks of the request put among them.

    Each block stands behind the message that it stood behind or, where that is gone, behind the nearest earlier one
    that is left; where none is, behind the leading system messages.  Messages are told by digest, in first-in-first-out
    order where one occurs several times.

    Args:
        request: the request's history, blocks included.
        own: the digests of the blocks.
        given: what the host made of the history without them.
    """
    places: dict[str, list[int]] = {}
    for place, message in reversed([*enumerate(given)]):
        places.setdefault(digest_message(message), []).append(place)
    start = 0
    while start < len(given) and given[start].role == "system":
        start += 1
    behind: dict[int, list[ChatMessage]] = {}
    anchor = start - 1
    for message in request:
        digest = digest_message(message)
        if digest in own:
            behind.setdefault(anchor, []).append(message)
        elif places.get(digest):
            anchor = max(places[digest].pop(), start - 1)
    placed = [*given[:start], *behind.get(start - 1, ())]
    for place, message in enumerate(given[start:], start):
        placed.append(message)
        placed += behind.get(place, ())
    return tuple(placed)

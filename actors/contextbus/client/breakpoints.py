"""Where a rendered request asks for a cache: read once for each message, however often the history is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus.core.cache_retention import Body
from contextbus.core.payload import Payload

_CONTROL: Final = b'"cache_control"'
_LISTS: Final = ("system", "tools")


class _Known(msgspec.Struct, frozen=True):
    """What the first chunks of a history hold: how many they are, the JSON of the last, and the marked messages."""

    chunks: int = 0
    last: bytes = b""
    marked: tuple[object, ...] = ()


class Breakpoints:
    """The marked messages of a run's settled history, by target; a longer history is read from where this one ended.

    No message of ours gets a cache control; those that come from parts which only their provider knows keep theirs.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def controls_of(self, payload: Payload) -> Body:
        """A body with what of a payload's can tell a retention (C.N.7); nothing of ours beside sets one (C.N.6)."""
        fields: Mapping[str, object] = {
            key: msgspec.json.decode(json) for key, json in payload.fields if _CONTROL in json or key not in _LISTS
        }
        open_ones = (*payload.lead, *(message.json for message in payload.settled.rest), *payload.last)
        return {**fields, "messages": [*self._settled(payload), *_marked(open_ones)]}

    def _settled(self, payload: Payload) -> tuple[object, ...]:
        settled = payload.settled
        known = self._known.get(payload.target, _Known())
        # A chunk is made once, behind those before it: where it is the same object, so are they.
        if known.chunks > len(settled.json) or (known.chunks and settled.json[known.chunks - 1] is not known.last):
            known = _Known()
        marked = list(known.marked)
        for index in range(known.chunks, len(settled.json)):
            if _CONTROL in settled.json[index]:
                marked += _marked(message.json for message in settled.chunks[index].messages)
        if len(settled.json) > known.chunks:
            known = self._known[payload.target] = _Known(len(settled.json), settled.json[-1], tuple(marked))
        return known.marked


def _marked(messages: Iterable[bytes]) -> list[object]:
    return [msgspec.json.decode(json.removeprefix(b",")) for json in messages if _CONTROL in json]

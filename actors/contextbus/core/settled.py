"""Provider messages that nothing can change any more: JSON bytes in chunks, and read-only dicts on demand."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contextbus.core.frozen import freeze
from contextbus.core.persistent import CHUNK
from contextbus.core.wire import Written


class SettledMessage(msgspec.Struct, gc=False):
    """One provider message as JSON, comma in front of all but the first; ``memo`` is its dict once asked for."""

    json: bytes
    memo: object = None

    def dict(self) -> object:
        """The message as a read-only dict."""
        if self.memo is None:
            self.memo = freeze(msgspec.json.decode(self.json.removeprefix(b",")))
        return self.memo


class SettledChunk(msgspec.Struct, gc=False):
    """64 settled messages; ``memo`` is the list of their dicts once asked for, shared and only read."""

    messages: tuple[SettledMessage, ...]
    memo: list[object] | None = None

    def dicts(self) -> list[object]:
        """The messages as read-only dicts."""
        if self.memo is None:
            self.memo = [message.dict() for message in self.messages]
        return self.memo


class Settled(msgspec.Struct, frozen=True):
    """Settled messages: full chunks with their joined JSON beside them, and up to 63 more."""

    chunks: tuple[SettledChunk, ...] = ()
    json: tuple[bytes, ...] = ()
    rest: tuple[SettledMessage, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks) * CHUNK + len(self.rest)

    def extend(self, messages: Iterable[Written]) -> Settled:
        """These messages with more behind them."""
        chunks, json, rest = self.chunks, self.json, self.rest
        for message in messages:
            text = message.json
            rest = (*rest, SettledMessage(b"," + text if chunks or rest else text))
            if len(rest) == CHUNK:
                chunks = (*chunks, SettledChunk(rest))
                json = (*json, b"".join([item.json for item in rest]))
                rest = ()
        return Settled(chunks, json, rest)

    def pieces(self) -> tuple[bytes, ...]:
        """The JSON of all messages: one piece a full chunk, then one a message; joined they are the list's items."""
        return (*self.json, *[message.json for message in self.rest])

    def dicts(self) -> list[object]:
        """All messages as read-only dicts; the list is the caller's."""
        found: list[object] = []
        for chunk in self.chunks:
            found += chunk.dicts()
        found += [message.dict() for message in self.rest]
        return found

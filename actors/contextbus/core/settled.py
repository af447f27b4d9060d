"""Provider messages that nothing can change any more: JSON bytes in chunks, and read-only dicts on demand."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contextbus.core.frozen import freeze
from contextbus.core.persistent import CHUNK


class SettledMessage:
    """One provider message; its dict is made when it is first asked for and then shared."""

    __slots__ = ("_dict", "json")

    def __init__(self, json: bytes) -> None:
        self.json = json
        self._dict: object = None

    def dict(self) -> object:
        """The message as a read-only dict."""
        if self._dict is None:
            self._dict = freeze(msgspec.json.decode(self.json))
        return self._dict


class SettledChunk:
    """64 settled messages and their joined JSON."""

    __slots__ = ("_dicts", "json", "messages")

    def __init__(self, messages: tuple[SettledMessage, ...]) -> None:
        self.messages = messages
        self.json = b",".join([message.json for message in messages])
        self._dicts: list[object] | None = None

    def dicts(self) -> list[object]:
        """The messages as read-only dicts; the list is shared, so it is only read."""
        if self._dicts is None:
            self._dicts = [message.dict() for message in self.messages]
        return self._dicts


class Settled(msgspec.Struct, frozen=True):
    """Settled messages: full chunks, and up to 63 more."""

    chunks: tuple[SettledChunk, ...] = ()
    rest: tuple[SettledMessage, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks) * CHUNK + len(self.rest)

    def extend(self, messages: Iterable[bytes]) -> Settled:
        """These messages with more behind them."""
        rest = (*self.rest, *(SettledMessage(json) for json in messages))
        chunks = self.chunks
        while len(rest) >= CHUNK:
            chunks, rest = (*chunks, SettledChunk(rest[:CHUNK])), rest[CHUNK:]
        return Settled(chunks, rest)

    def pieces(self) -> list[bytes]:
        """The JSON of all messages: one piece a full chunk, messages in it joined by commas, then one a message."""
        return [chunk.json for chunk in self.chunks] + [message.json for message in self.rest]

    def dicts(self) -> list[object]:
        """All messages as read-only dicts; the list is the caller's."""
        found: list[object] = []
        for chunk in self.chunks:
            found += chunk.dicts()
        found += [message.dict() for message in self.rest]
        return found

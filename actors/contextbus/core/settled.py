"""Provider messages that nothing can change any more: JSON bytes in chunks, and read-only dicts on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus.core.breakpoints import Marks, put_breakpoints
from contextbus.core.frozen import freeze
from contextbus.core.persistent import CHUNK, Vector
from contextbus.core.wire import Mark, Written

_NONE: Final[Marks] = {}


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
    """Settled messages: full chunks with their joined JSON beside them, and up to 63 more.

    None of the JSON holds a breakpoint; ``marks`` are those that the messages ask for, with the index of the message.
    Which are sent is said again for each request, and only their chunks are written anew (P.E.4).
    """

    chunks: tuple[SettledChunk, ...] = ()
    json: tuple[bytes, ...] = ()
    rest: tuple[SettledMessage, ...] = ()
    marks: Vector[tuple[int, Mark]] = Vector()

    def __len__(self) -> int:
        return len(self.chunks) * CHUNK + len(self.rest)

    def extend(self, messages: Iterable[Written]) -> Settled:
        """These messages with more behind them."""
        chunks, json, rest = self.chunks, self.json, self.rest
        marks: list[tuple[int, Mark]] = []
        for message in messages:
            text = message.json
            marks += [(len(chunks) * CHUNK + len(rest), mark) for mark in message.marks]
            rest = (*rest, SettledMessage(b"," + text if chunks or rest else text))
            if len(rest) == CHUNK:
                chunks = (*chunks, SettledChunk(rest))
                json = (*json, b"".join([item.json for item in rest]))
                rest = ()
        return Settled(chunks, json, rest, self.marks.extend(marks) if marks else self.marks)

    def pieces(self, marks: Marks = _NONE) -> tuple[bytes, ...]:
        """The JSON of all messages: one piece a full chunk, then one a message; joined they are the list's items.

        Args:
            marks: the breakpoints that are sent, by message.
        """
        if not marks:
            return (*self.json, *[message.json for message in self.rest])
        new = self._write(marks)
        json = list(self.json)
        for number in {index // CHUNK: None for index in new if index < len(json) * CHUNK}:
            messages = enumerate(self.chunks[number].messages, number * CHUNK)
            json[number] = b"".join([new.get(index, message.json) for index, message in messages])
        rest = enumerate(self.rest, len(json) * CHUNK)
        return (*json, *[new.get(index, message.json) for index, message in rest])

    def dicts(self, marks: Marks = _NONE) -> list[object]:
        """All messages as read-only dicts; the list is the caller's.  ``marks`` as in ``pieces``."""
        found: list[object] = []
        for chunk in self.chunks:
            found += chunk.dicts()
        found += [message.dict() for message in self.rest]
        for index, json in self._write(marks).items():
            found[index] = freeze(msgspec.json.decode(json.removeprefix(b",")))
        return found

    def _write(self, marks: Marks) -> Mapping[int, bytes]:
        """The messages that have breakpoints, with them."""
        found: dict[int, bytes] = {}
        for index, asked in marks.items():
            chunk, place = divmod(index, CHUNK)
            message = (self.chunks[chunk].messages if chunk < len(self.chunks) else self.rest)[place]
            found[index] = put_breakpoints(message.json, asked, shift=1 if index else 0)
        return found

"""Provider messages that nothing can change any more: JSON bytes in chunks, and read-only dicts on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from contextbus.core.breakpoints import Overlays, put_breakpoints
from contextbus.core.frozen import freeze
from contextbus.core.persistent import CHUNK, Vector
from contextbus.core.wire import Mark, Written

_NONE: Final[Overlays] = {}


class SettledMessage(msgspec.Struct, gc=False):
    """One provider message as JSON, comma in front of all but the first; ``memo`` is its dict once asked for."""

    json: bytes
    memo: object = None

    def dict(self) -> object:
        """The message as a read-only dict."""
        if self.memo is None:
            self.memo = freeze(msgspec.json.decode(self.json.removeprefix(b",")))
        return self.memo


class SharedDicts:
    """The dicts of the full chunks of the version of a history that was asked for them last, in one list.

    All versions of a history share it, and branches; the list is never changed, only replaced by another one.  It is a
    memo: it takes no part in comparisons.
    """

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages: list[object] = []

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Settled(msgspec.Struct, frozen=True):
    """Settled messages: full chunks with their joined JSON beside them, and up to 63 more.

    None of the JSON holds a breakpoint; ``marks`` are those that the messages ask for, with the index of the message.
    Which are sent is said again for each request, and only their chunks are written anew (P.E.4).  ``memo`` holds no
    breakpoints either; None where there are no messages.
    """

    chunks: tuple[tuple[SettledMessage, ...], ...] = ()
    json: tuple[bytes, ...] = ()
    rest: tuple[SettledMessage, ...] = ()
    marks: Vector[tuple[int, Mark]] = Vector()
    memo: SharedDicts | None = None

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
                chunks = (*chunks, rest)
                json = (*json, b"".join([item.json for item in rest]))
                rest = ()
        memo = SharedDicts() if self.memo is None else self.memo
        return Settled(chunks, json, rest, self.marks.extend(marks) if marks else self.marks, memo)

    def pieces(self, overlays: Overlays = _NONE) -> tuple[bytes, ...]:
        """The JSON of all messages: one piece a full chunk, then one a message; joined they are the list's items.

        Args:
            overlays: the breakpoints that are sent, by message.
        """
        if not overlays:
            return (*self.json, *[message.json for message in self.rest])
        new = self._write(overlays)
        json = list(self.json)
        for number in {index // CHUNK: None for index in new if index < len(json) * CHUNK}:
            messages = enumerate(self.chunks[number], number * CHUNK)
            json[number] = b"".join([new.get(index, message.json) for index, message in messages])
        rest = enumerate(self.rest, len(json) * CHUNK)
        return (*json, *[new.get(index, message.json) for index, message in rest])

    def dicts(self, overlays: Overlays = _NONE) -> list[object]:
        """All messages as read-only dicts; the list is the caller's.  ``overlays`` as in ``pieces``.

        What is in ``memo`` is copied at once; only chunks that are not are looked at.
        """
        found = [] if self.memo is None else self.memo.messages[: len(self.chunks) * CHUNK]
        known = self._count_known(found)
        if known < len(self.chunks):
            del found[known * CHUNK :]
            for chunk in self.chunks[known:]:
                found += [message.dict() for message in chunk]
            if self.memo is not None:
                self.memo.messages = found[:]
        found += [message.dict() for message in self.rest]
        for index, json in self._write(overlays).items():
            found[index] = freeze(msgspec.json.decode(json.removeprefix(b",")))
        return found

    def _count_known(self, dicts: list[object]) -> int:
        """How many of the first chunks these dicts are of: a message makes its dict once, behind the same messages."""

        def is_other(number: int) -> bool:
            return dicts[number * CHUNK - 1] is not self.chunks[number - 1][-1].memo

        whole = len(dicts) // CHUNK
        if not whole or not is_other(whole):
            return whole
        return bisect_left(range(1, whole), True, key=is_other)

    def _write(self, overlays: Overlays) -> Mapping[int, bytes]:
        """The messages that have breakpoints, with them."""
        found: dict[int, bytes] = {}
        for index, asked in overlays.items():
            chunk, place = divmod(index, CHUNK)
            message = (self.chunks[chunk] if chunk < len(self.chunks) else self.rest)[place]
            found[index] = put_breakpoints(message.json, asked, shift=1 if index else 0)
        return found

"""A range too large for the summariser, cut into pieces that fit (C.X.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.policy import check_count, check_positive
from contextbus.core.compaction.ranges import Bounds
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalResponse,
    ChatMessage,
    Document,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from contextbus_protocol.digests import clean_text

CountMessages = Callable[[Sequence[ChatMessage]], int]
"""Counts messages, in tokens."""

_NOTE: Final = " [{} characters left out] "


class Piece(msgspec.Struct, frozen=True):
    """One request's part of a range: half-open indices, and its messages without append blocks and kept tails (C.E.9).

    ``tokens`` is the count of ``messages``; it is above the budget only where even the shortest form does not fit.
    ``left_out`` is the number of code points that were left out of texts.
    """

    start: int
    end: int
    messages: tuple[ChatMessage, ...]
    tokens: int
    left_out: int = 0


def cut_pieces(
    items: Sequence[Item], bounds: Bounds, start: int, end: int, *, budget: int, count: CountMessages
) -> tuple[Piece, ...]:
    """Cut a range into consecutive pieces that fit a budget, each message in exactly one of them (C.X.2).

    A piece is made as large as the counter lets it be: its end is searched by doubling and halving, so that counting
    looks at each message O(log n) times.  A piece that no cut makes smaller has the middle of its longest texts left
    out.

    Args:
        items: the history; media in the range is replaced already (``replace_media``).
        bounds: those of ``find_bounds`` for it.
        start: the first index of the range.
        end: the index behind its last message.
        budget: the most that a piece may count, in tokens.
        count: the counter; it is given messages without own blocks of kind ``block``.

    Raises:
        RangeError: the budget is no positive safe integer, or the counter gave none from 0 (C.C.5).
    """
    check_positive("summary_input_tokens", budget)
    cutter = _Cutter(items, budget, count)
    marks = [start, *_useful_cuts(items, bounds.between(start, end), end), end]
    pieces: list[Piece] = []
    at = 0
    while at < len(marks) - 1:
        piece, at = cutter.next_piece(marks, at)
        if piece.messages:
            pieces.append(piece)
    return tuple(pieces)


def shorten_text(text: str, size: int) -> tuple[str, int]:
    """Leave out the middle of a text so that it has at most ``size`` code points, its note of how much included.

    Returns:
        The text, and the number of code points left out.  The note itself always stays, and a text that the note would
        not shorten stays as it is.
    """
    if len(text) <= size:
        return text, 0
    kept = max(0, size - len(_NOTE.format(len(text))))
    left_out = len(text) - kept
    note = _NOTE.format(left_out)
    if kept + len(note) >= len(text):
        return text, 0
    tail = kept // 2
    return text[: kept - tail] + note + text[len(text) - tail :], left_out


class _Cutter:
    """Cuts one range; keeps what does not change from piece to piece."""

    def __init__(self, items: Sequence[Item], budget: int, count: CountMessages) -> None:
        self._items = items
        self._budget = budget
        self._count = count

    def next_piece(self, marks: Sequence[int], at: int) -> tuple[Piece, int]:
        """The largest piece from a mark on, and the place of the mark behind it."""
        last = len(marks) - 1
        fitting, step = None, 1
        # Doubling finds a stretch that does not fit, halving the last mark before it that does.
        low, high = at, min(at + step, last)
        while True:
            tried = self._piece(marks[at], marks[high])
            if tried.tokens > self._budget:
                break
            fitting, low = tried, high
            if high == last:
                return tried, last
            step *= 2
            high = min(at + step, last)
        while high - low > 1:
            middle = (low + high) // 2
            tried = self._piece(marks[at], marks[middle])
            if tried.tokens <= self._budget:
                fitting, low = tried, middle
            else:
                high = middle
        if fitting is not None:
            return fitting, low
        return self._shorten(self._piece(marks[at], marks[at + 1])), at + 1

    def _piece(self, start: int, end: int) -> Piece:
        kept = (item.message for item in self._items[start:end] if item.own != "block")
        messages = tuple(message for message in kept if message is not None)
        return Piece(start, end, messages, self._tokens(messages) if messages else 0)

    def _tokens(self, messages: Sequence[ChatMessage]) -> int:
        return check_count("count_tokens", self._count(messages))

    def _shorten(self, piece: Piece) -> Piece:
        """Cap all texts at the largest size with which the piece fits; at none where nothing fits."""
        low, high = 0, max((len(text) for message in piece.messages for text in _texts(message)), default=0)
        best = self._capped(piece, 0)
        while high - low > 1:
            middle = (low + high) // 2
            tried = self._capped(piece, middle)
            if tried.tokens <= self._budget:
                best, low = tried, middle
            else:
                high = middle
        return best

    def _capped(self, piece: Piece, size: int) -> Piece:
        left_out = 0

        def shorten(text: str) -> str:
            nonlocal left_out
            shorter, gone = shorten_text(text, size)
            left_out += gone
            return shorter

        messages = tuple(_shorten_message(message, shorten) for message in piece.messages)
        return Piece(piece.start, piece.end, messages, self._tokens(messages), left_out)


def _useful_cuts(items: Sequence[Item], cuts: Sequence[int], end: int) -> list[int]:
    """The cuts without those that would leave nothing but own blocks between them."""
    found: list[int] = []
    stop, ahead = end, False
    for cut in reversed(cuts):
        ahead = ahead or any(item.own != "block" for item in items[cut:stop])
        stop = cut
        if ahead:
            found.append(cut)
            ahead = False
    return found[::-1]


def _texts(message: ChatMessage) -> list[str]:
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _shorten_message(message, note)
    return found


def _shorten_message(message: ChatMessage, shorten: Callable[[str], str]) -> ChatMessage:
    return msgspec.structs.replace(message, content=tuple(_shorten_part(part, shorten) for part in message.content))


def _shorten_part(part: AnyPart, shorten: Callable[[str], str]) -> AnyPart:
    match part:
        case Text() | Reasoning():
            return msgspec.structs.replace(part, text=shorten(part.text))
        case ToolCall():
            arguments = shorten(part.arguments)
            # Half of a JSON text is none: what is left of it becomes a JSON string.
            cut = arguments if arguments == part.arguments else msgspec.json.encode(clean_text(arguments)).decode()
            return msgspec.structs.replace(part, arguments=cut)
        case ToolResult():
            items = tuple(
                msgspec.structs.replace(item, text=shorten(item.text))
                if isinstance(item, Text | Document) and item.text is not None
                else item
                for item in part.content
            )
            return msgspec.structs.replace(part, content=items)
        case Document():
            return part if part.text is None else msgspec.structs.replace(part, text=shorten(part.text))
        case ApprovalResponse():
            return part if part.reason is None else msgspec.structs.replace(part, reason=shorten(part.reason))
        case _:
            return part

"""The range of a history that a summary replaces (C.D, C.X.1).

What may be replaced follows from the messages alone (``find_bounds``).  How much of it is replaced may need counts
that are made elsewhere: planning is a state machine that asks for them one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.links import find_links, is_user_message, role_of
from contextbus.core.compaction.media import MediaMode, is_opaque
from contextbus.core.compaction.policy import check_count, last_messages, recent_tokens
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.values import RetentionPolicy


class Bounds(msgspec.Struct, frozen=True):
    """Where a range may begin and end.

    ``start`` is the number of leading system messages (C.D.2).  ``limit`` is the first index that protects all from it
    on, or the number of messages (C.D.4, C.D.6).  ``ends`` are all indices at which a range from ``start`` may end,
    ascending (C.D.4-C.D.8); each leaves at least one message in the range that is no append block or kept tail.
    """

    start: int
    limit: int
    ends: tuple[int, ...]

    def is_allowed(self, end: int) -> bool:
        """Whether a range may end before an index."""
        return self.largest_allowed(end) == end

    def largest_allowed(self, at_most: int) -> int | None:
        """The largest allowed end up to an index (C.D.9); None if there is none (C.D.10)."""
        place = bisect_right(self.ends, at_most)
        return self.ends[place - 1] if place else None

    def between(self, start: int, end: int) -> tuple[int, ...]:
        """The allowed ends above ``start`` and below ``end``, ascending."""
        return self.ends[bisect_right(self.ends, start) : bisect_left(self.ends, end)]


class CountSuffix(msgspec.Struct, frozen=True):
    """Please count the messages from ``start`` on, own blocks included, in tokens."""

    start: int


class Range(msgspec.Struct, frozen=True):
    """Half-open indices of the messages to replace (C.D.1)."""

    start: int
    end: int


class NoRange(msgspec.Struct, frozen=True):
    """Nothing can be replaced, or the policy keeps all of it (C.D.10)."""


RangeStep = CountSuffix | Range | NoRange


class RangeState(msgspec.Struct, frozen=True):
    """A range in the making: the wanted end is one of ``ends[low:high + 1]``.

    ``asked`` is the index whose suffix is being counted, None when planning is over; ``tokens`` is how much stays.
    """

    start: int
    ends: tuple[int, ...] = ()
    tokens: int = 0
    low: int = 0
    high: int = 0
    asked: int | None = None


def find_bounds(items: Sequence[Item], *, long_running: Collection[str] = (), media: MediaMode = "protect") -> Bounds:
    """Find where a range may begin and end (C.D.2, C.D.4-C.D.8); the work is linear.

    Append blocks and kept tails never protect (C.E.9).  A message whose text is not at hand, and that is no such block,
    protects: a summariser could not be given it.

    Args:
        items: the history.
        long_running: the names of tools whose calls stay open (C.D.16).
        media: whether media protects, or only that of the last user message and later (C.X.3).
    """
    size = len(items)
    start = next((index for index, item in enumerate(items) if not _is_leading(item)), size)
    limit = _protected_from(items, start, media)
    # Summed up to an index, these are the links that a boundary before it would cut (C.D.8).
    opened = [0] * (size + 2)
    for link in find_links(items, long_running):
        if link.open:
            limit = min(limit, link.first)
        opened[link.first + 1] += 1
        opened[link.last + 1] -= 1
    cut = tuple(accumulate(opened))
    first = next((index for index in range(start, size) if items[index].own != "block"), size)
    return Bounds(start, limit, tuple(end for end in range(first + 1, limit + 1) if not cut[end]))


def begin_range(
    items: Sequence[Item], bounds: Bounds, policies: RetentionPolicy, *, room_tokens: int | None = None
) -> tuple[RangeState, RangeStep]:
    """Plan the range that policies leave (C.D.3, C.D.9, C.D.10, C.X.1); ask for a count where one is needed.

    A token policy is searched by halving: first all from ``start`` on, then at most ceil(log2(n)) suffixes are counted.
    With a counter that never counts more for a shorter suffix the end is the smallest allowed one whose suffix fits,
    or the largest there is.  With any other counter it is an end whose suffix was counted and fits, or the largest
    there is; each index below it that was counted does not fit.

    Args:
        items: the history.
        bounds: those of ``find_bounds`` for it.
        policies: what is kept; with several the smallest index decides.
        room_tokens: for ``keep_ratio``: its share of the window less envelope and output reserve, in tokens.

    Raises:
        RangeError: there is a ratio and no room.
    """
    tokens = recent_tokens(policies, room_tokens)
    at_most = len(items) - 1
    last = last_messages(policies)
    if last is not None:
        kept = [index for index, item in enumerate(items) if item.own != "block"]
        at_most = min(at_most, _nth_last(kept, last))
    if policies.keep_last_turns is not None:
        turns = [index for index, item in enumerate(items) if is_user_message(item)]
        at_most = min(at_most, _nth_last(turns, policies.keep_last_turns))
    ends = bounds.ends[: bisect_right(bounds.ends, at_most)]
    state = RangeState(bounds.start)
    if not ends:
        return state, NoRange()
    if tokens is None:
        return state, Range(bounds.start, ends[-1])
    state = RangeState(bounds.start, ends, tokens, 0, len(ends) - 1, bounds.start)
    return state, CountSuffix(bounds.start)


def advance_range(state: RangeState, tokens: int) -> tuple[RangeState, RangeStep]:
    """Go on with a count that was asked for, in tokens.

    Raises:
        RangeError: the count is no safe integer from 0 (C.C.5).
        InvalidRequestError: none was asked for.
    """
    check_count("count_tokens", tokens)
    if state.asked is None:
        raise InvalidRequestError("no count was asked for")
    fits = tokens <= state.tokens
    low, high = state.low, state.high
    if state.asked == state.start:
        if fits:
            return msgspec.structs.replace(state, asked=None), NoRange()
    elif fits:
        high = (low + high) // 2
    else:
        low = (low + high) // 2 + 1
    asked = state.ends[(low + high) // 2] if low < high else None
    state = msgspec.structs.replace(state, low=low, high=high, asked=asked)
    return state, Range(state.start, state.ends[low]) if asked is None else CountSuffix(asked)


def last_user_message(items: Sequence[Item]) -> int | None:
    """The index of the last user message that is no own block, if there is one (C.E.6)."""
    return next((index for index in range(len(items) - 1, -1, -1) if is_user_message(items[index])), None)


def replayed_message(items: Sequence[Item], start: int, end: int) -> int | None:
    """The index of the last user message if it lies in the range: it is sent again (C.E.4, C.E.6)."""
    index = last_user_message(items)
    return index if index is not None and start <= index < end else None


def _is_leading(item: Item) -> bool:
    return item.message is not None and role_of(item) == "system"


def _protected_from(items: Sequence[Item], start: int, media: MediaMode) -> int:
    """The first index from ``start`` on that protects by itself: a later system message, opaque content (C.D.4)."""
    size = len(items)
    protects_media = 0
    if media == "placeholder":
        last = last_user_message(items)
        protects_media = size if last is None else last
    for index in range(start, size):
        item = items[index]
        if item.own == "block":
            continue
        if item.message is None or item.message.role == "system":
            return index
        if is_opaque(item.message, media="protect" if index >= protects_media else media):
            return index
    return size


def _nth_last(indices: Sequence[int], count: int) -> int:
    """The ``count``-th last of some indices; too few of them let nothing be replaced (C.X.1)."""
    return indices[-count] if count <= len(indices) else 0

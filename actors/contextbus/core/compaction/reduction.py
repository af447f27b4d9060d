"""One reduction as a state machine: what is counted, what is asked, and what comes of it (C.C.7, C.F, C.G).

Whoever drives it counts and asks: ``compact`` with the caller's functions, the compaction actor with a run's estimator
and workers.  Nothing of it waits, so both go the same way, and a replay too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.pieces import cut_pieces
from contextbus.core.compaction.ranges import (
    Bounds,
    CountSuffix,
    NoRange,
    Range,
    RangeState,
    advance_range,
    begin_range,
    find_bounds,
    replayed_message,
)
from contextbus.core.compaction.summariser_input import archived_span, summariser_items
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.events import CompactionReason
from contextbus_protocol.values import RetentionPolicy, Usage

MOST_OUTPUT_TOKENS: Final = 2048
"""The most that a summary may take, in tokens (C.F.3)."""

CountInput = Callable[[Sequence[ChatMessage]], int]
"""Tokens of what a summariser is given; its budget is another model's (C.X.2)."""

replace = msgspec.structs.replace


class ReductionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reduction is to keep to.

    ``target_tokens`` caps the messages, ``window_tokens`` is the room that ``keep_ratio`` is a share of (C.X.1).
    ``end`` fixes the range's end if it is a safe one: the summary of it is there already (C.K.9).  ``least_end`` is the
    least end if it is a safe one, whatever the policy keeps: a summary reached so far that a forget took (C.X.11).
    ``names_media`` has media in texts named too: a run never sends a summariser an image as text, which would be half a
    million tokens of a data URI in a tool's output.
    """

    target_tokens: int
    keep: RetentionPolicy = RetentionPolicy()
    window_tokens: int = 0
    long_running: tuple[str, ...] = ()
    summary_input_tokens: int | None = None
    media: Literal["protect", "placeholder"] = "protect"
    min_shrink: float = 0.0
    end: int | None = None
    least_end: int | None = None
    names_media: bool = False


class CountWhole(msgspec.Struct, frozen=True):
    """Count all messages as they are."""


class CountTail(msgspec.Struct, frozen=True):
    """Count the messages from an index on (C.X.1)."""

    start: int


class CountRange(msgspec.Struct, frozen=True):
    """Count the messages that are replaced (C.X.4)."""

    start: int
    end: int


class CountComposed(msgspec.Struct, frozen=True):
    """Count the composition: leading system messages, summary, the user's last message again, retained suffix (C.E.1).

    Without ``summary`` the range goes without one (C.X.5).
    """

    start: int
    end: int
    replayed: int | None
    summary: str | None


class Ask(msgspec.Struct, frozen=True):
    """Ask the summariser for a text of these messages (C.F.1)."""

    messages: tuple[ChatMessage, ...]
    max_output_tokens: int


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """The range [start, end) has a summary that passed its checks; token figures are of the messages (C.G.1).

    ``summary`` is None where the range goes without one; ``usages`` are what the summariser reported, one a request
    that said so.
    """

    start: int
    end: int
    replayed: int | None
    summary: str | None
    before: int
    after: int
    pieces: int = 0
    usages: tuple[object, ...] = ()


class CannotFit(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was replaced (C.G.2, C.G.3); with a range found, ``end`` is above ``start``.

    ``unshrunk`` tells that a summary was refused since it did not shrink the range (C.X.4); ``excess`` is by how many
    tokens one was too large for the target (C.G.8).
    """

    reason: CompactionReason
    before: int
    start: int = 0
    end: int = 0
    pieces: int = 0
    usages: tuple[object, ...] = ()
    unshrunk: bool = False
    excess: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a summariser gave: its text parts joined, or that it holds anything else (C.G.5, C.G.7).

    ``finish_reason`` is normalised (C.F.10); ``usage`` is in the summariser's own shape (C.G.4).
    """

    text: str
    only_text: bool = True
    finish_reason: str = "stop"
    usage: object | None = None


Count = CountWhole | CountTail | CountRange | CountComposed
Outcome = Reduced | CannotFit
Request = Count | Ask | Outcome
Phase = Literal["whole", "range", "empty", "size", "summary", "final", "dropped", "over"]


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """A reduction on its way: indices are into ``items``, token figures are of messages."""

    items: tuple[Item, ...]
    options: ReductionOptions
    phase: Phase = "whole"
    bounds: Bounds
    ranging: RangeState | None = None
    before: int = 0
    start: int = 0
    end: int = 0
    replayed: int | None = None
    room: int = 0
    size: int = 0
    pieces: tuple[tuple[ChatMessage, ...], ...] = ()
    summaries: tuple[str, ...] = ()
    summary: str = ""
    asked: int = 0
    usages: tuple[object, ...] = ()


def begin(items: Sequence[Item], options: ReductionOptions) -> tuple[Reduction, Request]:
    """Start a reduction; the first request counts all messages (C.C.7)."""
    given = tuple(items)
    bounds = find_bounds(given, long_running=options.long_running, media=options.media)
    return Reduction(items=given, options=options, bounds=bounds), CountWhole()


def advance(reduction: Reduction, answer: int | Answer, count_input: CountInput) -> tuple[Reduction, Request]:
    """Go on with what was counted or written.

    Args:
        reduction: as the last call gave it.
        answer: tokens for a request to count, else what the summariser gave.
        count_input: counts what a summariser is given.
    """
    match reduction.phase:
        case "summary":
            assert isinstance(answer, Answer)
            return _take_summary(reduction, answer, count_input)
        case _:
            assert isinstance(answer, int)
            return _take_count(reduction, answer, count_input)


def drop(reduction: Reduction) -> tuple[Reduction, Request]:
    """Let the range go without a summary (C.X.5); a range was found before."""
    composed = CountComposed(reduction.start, reduction.end, reduction.replayed, None)
    return replace(reduction, phase="dropped"), composed


def _take_count(reduction: Reduction, tokens: int, count_input: CountInput) -> tuple[Reduction, Request]:
    options = reduction.options
    match reduction.phase:
        case "whole":
            reduction = replace(reduction, before=tokens, phase="range")
            if options.end is not None and reduction.bounds.is_allowed(options.end):
                return _take_range(reduction, Range(reduction.bounds.start, options.end))
            ranging, step = begin_range(
                reduction.items, reduction.bounds, options.keep, room_tokens=options.window_tokens
            )
            return _take_range(replace(reduction, ranging=ranging), step)
        case "range":
            assert reduction.ranging is not None
            ranging, step = advance_range(reduction.ranging, tokens)
            return _take_range(replace(reduction, ranging=ranging), step)
        case "empty":
            room = options.target_tokens - tokens
            if room < 1:
                return _end(reduction, "protected-history")
            reduction = replace(reduction, room=room)
            if options.min_shrink > 0:
                return replace(reduction, phase="size"), CountRange(reduction.start, reduction.end)
            return _ask_first(reduction, count_input)
        case "size":
            return _ask_first(replace(reduction, size=tokens), count_input)
        case "dropped":
            return _finish(reduction, tokens, None)
        case _:
            return _take_final(reduction, tokens)


def _take_range(reduction: Reduction, step: object) -> tuple[Reduction, Request]:
    least = reduction.options.least_end
    if least is not None and reduction.bounds.is_allowed(least):
        match step:
            case NoRange():
                step = Range(reduction.bounds.start, least)
            case Range(start=start, end=end):
                step = Range(start, max(end, least))
            case _:
                pass
    match step:
        case CountSuffix(start=start):
            return reduction, CountTail(start)
        case Range(start=start, end=end):
            replayed = replayed_message(reduction.items, start, end)
            reduction = replace(reduction, phase="empty", start=start, end=end, replayed=replayed)
            return reduction, CountComposed(start, end, replayed, "")
        case _:
            return _end(reduction, "no-safe-boundary")


def _ask_first(reduction: Reduction, count_input: CountInput) -> tuple[Reduction, Request]:
    """Give the range to the summariser, whole or in pieces (C.F.4, C.X.2)."""
    options, start, end = reduction.options, reduction.start, reduction.end
    named = options.names_media or options.media == "placeholder"
    items = summariser_items(reduction.items, start, end, names_media=named)
    whole = archived_span(items, start, end)
    budget = options.summary_input_tokens
    pieces: tuple[tuple[ChatMessage, ...], ...] = (whole,)
    if budget is not None and count_input(whole) > budget:
        found = cut_pieces(items, reduction.bounds, start, end, budget=budget, count=count_input)
        pieces = tuple(piece.messages for piece in found)
    return _ask(replace(reduction, pieces=pieces, summaries=()))


def _ask(reduction: Reduction) -> tuple[Reduction, Request]:
    piece = reduction.pieces[len(reduction.summaries)]
    reduction = replace(reduction, phase="summary", asked=reduction.asked + 1)
    return reduction, Ask(piece, min(MOST_OUTPUT_TOKENS, reduction.room))


def _take_summary(reduction: Reduction, answer: Answer, count_input: CountInput) -> tuple[Reduction, Request]:
    if answer.usage is not None:
        reduction = replace(reduction, usages=(*reduction.usages, answer.usage))
    if answer.finish_reason != "stop" or not answer.only_text:
        return _end(reduction, "incomplete-summary")
    text = answer.text.strip()
    if not text:
        return _end(reduction, "empty-summary")
    summaries = (*reduction.summaries, text)
    if len(summaries) < len(reduction.pieces):
        return _ask(replace(reduction, summaries=summaries))
    if len(summaries) == 1:
        composed = CountComposed(reduction.start, reduction.end, reduction.replayed, text)
        return replace(reduction, phase="final", summary=text), composed
    return _ask(_join(reduction, summaries, count_input))


def _join(reduction: Reduction, summaries: tuple[str, ...], count_input: CountInput) -> Reduction:
    """The summaries of the pieces as the next input, again in pieces where they are too long (C.X.2)."""
    items = tuple(Item(summary_message(text)) for text in summaries)
    size, budget = len(items), reduction.options.summary_input_tokens
    assert budget is not None
    found = cut_pieces(items, Bounds(0, size, tuple(range(1, size + 1))), 0, size, budget=budget, count=count_input)
    if len(found) >= size:  # no two fit together: all in one request with their middles left out, so that it ends
        found = cut_pieces(items, Bounds(0, size, (size,)), 0, size, budget=budget, count=count_input)
    return replace(reduction, pieces=tuple(piece.messages for piece in found), summaries=())


def _take_final(reduction: Reduction, tokens: int) -> tuple[Reduction, Request]:
    options = reduction.options
    if tokens > options.target_tokens:
        return _end(reduction, "summary-too-large", excess=tokens - options.target_tokens)
    if options.min_shrink > 0 and reduction.before - tokens < options.min_shrink * reduction.size:
        return _end(reduction, "summary-too-large", unshrunk=True)
    return _finish(reduction, tokens, reduction.summary)


def _finish(reduction: Reduction, tokens: int, summary: str | None) -> tuple[Reduction, Request]:
    outcome = Reduced(
        start=reduction.start,
        end=reduction.end,
        replayed=reduction.replayed,
        summary=summary,
        before=reduction.before,
        after=tokens,
        pieces=reduction.asked,
        usages=reduction.usages,
    )
    return replace(reduction, phase="over"), outcome


def _end(
    reduction: Reduction, reason: CompactionReason, *, unshrunk: bool = False, excess: int = 0
) -> tuple[Reduction, Request]:
    outcome = CannotFit(
        reason=reason,
        before=reduction.before,
        start=reduction.start,
        end=reduction.end,
        pieces=reduction.asked,
        usages=reduction.usages,
        unshrunk=unshrunk,
        excess=excess,
    )
    return replace(reduction, phase="over"), outcome


def add_usages(usages: Sequence[object]) -> Usage | None:
    """The sum of what a summariser reported, where it is ours (C.X.2); None for none."""
    ours = [usage for usage in usages if isinstance(usage, Usage)]
    if not ours:
        return None
    return Usage(
        sum(u.input_tokens for u in ours),
        sum(u.output_tokens for u in ours),
        sum(u.cache_read_tokens for u in ours),
        sum(u.cache_write_tokens for u in ours),
    )

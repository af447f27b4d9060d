"""Pieces of a range: they fit, they hold each message once, they cut no exchange, and they say what they leave out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.compaction.histories import HISTORIES, SUMMARY, A, B, S, U, call, called, res, returned, says

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.pieces import Piece, cut_pieces, shorten_text
from contextbus.core.compaction.ranges import find_bounds
from contextbus_protocol.chat import (
    ApprovalResponse,
    ChatMessage,
    Document,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    user,
)
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import RangeError


def characters(messages: Sequence[ChatMessage]) -> int:
    return sum(len(encode_json(message).decode()) for message in messages)


def cut(items: Sequence[Item], budget: int, *, start: int | None = None, end: int | None = None) -> tuple[Piece, ...]:
    bounds = find_bounds(items)
    return cut_pieces(
        items,
        bounds,
        bounds.start if start is None else start,
        len(items) if end is None else end,
        budget=budget,
        count=characters,
    )


def shapes(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


def size(item: Item) -> int:
    assert item.message is not None
    return characters([item.message])


@pytest.mark.rule("C.X.2", "C.E.8")
def test_what_fits_is_one_piece_of_the_messages_themselves() -> None:
    items = [S, U, A, U, A]
    (piece,) = cut(items, 10_000)
    assert shapes([piece]) == [(1, 5)]
    assert all(one is item.message for one, item in zip(piece.messages, items[1:], strict=True))
    assert piece.tokens == characters(piece.messages)
    assert piece.left_out == 0


@pytest.mark.rule("C.X.2")
def test_pieces_are_as_large_as_the_budget_lets_them_be() -> None:
    items = [U] * 7
    assert shapes(cut(items, 3 * size(U))) == [(0, 3), (3, 6), (6, 7)]
    assert shapes(cut(items, 3 * size(U) - 1)) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert shapes(cut(items, 7 * size(U))) == [(0, 7)]
    assert shapes(cut(items, 7 * size(U) - 1)) == [(0, 6), (6, 7)]


@pytest.mark.rule("C.X.2", "C.D.8")
def test_an_exchange_is_never_cut() -> None:
    items = [U, call("a", "b"), res("b"), res("a"), A]
    assert shapes(cut(items, 1)) == [(0, 1), (1, 4), (4, 5)]


@pytest.mark.rule("C.X.2", "C.E.9")
def test_own_blocks_are_in_no_piece_and_an_earlier_summary_is() -> None:
    items = [B, SUMMARY, B, B, U, B]
    pieces = cut(items, 1)
    assert shapes(pieces) == [(0, 4), (4, 6)]
    (piece,) = cut(items, 10_000)
    assert piece.messages == (SUMMARY.message, U.message)
    assert cut([B, B], 10) == ()


@pytest.mark.rule("C.X.2")
def test_the_longest_texts_of_a_piece_that_cannot_be_cut_lose_their_middle() -> None:
    long, longer = "ab" * 300, "cd" * 500
    items = [says("assistant", Text(text="short"), Text(text=long), called("a")), says("tool", returned("a", longer))]
    (piece,) = cut(items, 1500)
    assert piece.tokens <= 1500
    assert piece.tokens > 1450, "no more is left out than has to be"
    text = piece.messages[1].content[0]
    assert isinstance(text, ToolResult)
    inner = text.content[0]
    assert isinstance(inner, Text)
    found = re.fullmatch(r"((?:cd)+c?) \[(\d+) characters left out\] (d?(?:cd)+)", inner.text)
    assert found is not None
    assert len(found[1]) + int(found[2]) + len(found[3]) == len(longer)
    assert abs(len(found[1]) - len(found[3])) <= 1
    assert piece.left_out == int(found[2])
    assert piece.messages[0] == items[0].message, "the shorter ones stay whole while a longer one can give"


@pytest.mark.rule("C.X.2")
def test_a_budget_below_the_frame_gives_the_shortest_form_and_its_count() -> None:
    (piece,) = cut([Item(user("x" * 500))], 3)
    assert piece.tokens == characters(piece.messages) > 3
    assert piece.messages == (user(" [500 characters left out] "),)
    assert piece.left_out == 500


@pytest.mark.rule("C.X.2")
def test_texts_of_every_kind_can_be_shortened_and_arguments_stay_json() -> None:
    long = "\u00e9" * 400
    parts = (
        Reasoning(text=long, signature="sig"),
        ToolCall(id="a", name="t", arguments=json.dumps({"q": long}, ensure_ascii=False)),
        ToolResult(id="a", content=(Document(text=long),)),
        Document(title="t", text=long),
        ApprovalResponse(id="p", approved=True, reason=long),
    )
    message = ChatMessage(role="assistant", content=parts)
    pieces = cut_pieces([Item(message)], find_bounds([]), 0, 1, budget=900, count=characters)
    (short,) = pieces[0].messages
    assert characters([short]) <= 900
    assert long not in encode_json(short).decode()
    arguments = getattr(short.content[1], "arguments", "")
    assert "characters left out" in json.loads(arguments)


@pytest.mark.rule("C.X.2")
@given(st.text(st.characters(codec=None), max_size=200), st.integers(0, 220))
def test_a_shortened_text_is_no_longer_than_asked_unless_the_note_is(text: str, size: int) -> None:
    short, left_out = shorten_text(text, size)
    assert len(short) <= max(size, min(len(text), 28))
    if left_out == 0:
        assert short == text
        return
    note = f" [{left_out} characters left out] "
    head, tail = short.split(note, 1) if short.count(note) == 1 else (short[: short.index(note)], "")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(short) < len(text)


@pytest.mark.rule("C.X.2")
def test_a_text_is_cut_between_code_points() -> None:
    text = "\U0001f600" * 100
    short, left_out = shorten_text(text, 60)
    assert len(short) <= 60
    assert short.encode().decode() == short
    assert short.count("\U0001f600") == 100 - left_out


@pytest.mark.rule("C.X.2", "C.A.3")
@pytest.mark.parametrize("budget", [0, -1, 1.5, math.inf, True])
def test_a_budget_is_a_positive_safe_integer(budget: Any) -> None:
    with pytest.raises(RangeError, match="summary_input_tokens"):
        cut([U], budget)


@pytest.mark.rule("C.C.5")
def test_a_count_is_a_safe_integer() -> None:
    with pytest.raises(RangeError, match="count_tokens"):
        cut_pieces([U], find_bounds([U]), 0, 1, budget=5, count=lambda _: -1)


@pytest.mark.rule("C.X.2", "C.D.8", "C.E.9", "C.F.4")
@given(HISTORIES, st.integers(1, 1200))
def test_each_message_is_in_exactly_one_piece_and_pieces_fit_or_cannot_be_cut(items: list[Item], budget: int) -> None:
    bounds = find_bounds(items)
    end = bounds.largest_allowed(len(items))
    if end is None:
        return
    pieces = cut(items, budget, end=end)
    assert [piece.start for piece in pieces][:1] == [bounds.start]
    assert pieces[-1].end == end
    assert all(one.end == other.start for one, other in pairwise(pieces))
    for piece in pieces:
        kept = [item.message for item in items[piece.start : piece.end] if item.own != "block"]
        assert piece.messages
        assert len(piece.messages) == len(kept)
        assert piece.end == end or bounds.is_allowed(piece.end)
        assert piece.tokens == characters(piece.messages)
        if piece.left_out == 0 and piece.tokens <= budget:
            assert list(piece.messages) == kept
        else:
            inner = bounds.between(piece.start, piece.end)
            # What could still be cut off is own blocks alone.
            assert all(
                all(item.own == "block" for item in items[piece.start : cut_at])
                or all(item.own == "block" for item in items[cut_at : piece.end])
                for cut_at in inner
            )


@pytest.mark.rule("C.X.2")
def test_counting_looks_at_each_message_a_few_times_only() -> None:
    for size_, budget in ((64, 7), (1024, 7), (1024, 300), (4096, 4096)):
        looked = 0

        def count(messages: Sequence[ChatMessage]) -> int:
            nonlocal looked
            looked += len(messages)
            return len(messages)

        items = [U] * size_
        pieces = cut_pieces(items, find_bounds(items), 0, size_, budget=budget, count=count)
        assert sum(len(piece.messages) for piece in pieces) == size_
        assert looked <= size_ * 2 * (math.log2(budget) + 2)

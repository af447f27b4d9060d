"""Reported faults of others' compaction, each as a kind: named after its number in our list of reports.

B35 is about what a summary says; here only that exact words of a range are counted as lost.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.compaction.histories import (
    HISTORIES,
    A,
    B,
    S,
    U,
    answers,
    asks,
    call,
    called,
    end_of,
    ends_of,
    res,
    returned,
    says,
)
from tests.core.payloads import TARGETS, codes, results_of, sent

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.links import find_links
from contextbus.core.compaction.media import replace_media
from contextbus.core.compaction.pieces import cut_pieces
from contextbus.core.compaction.ranges import (
    CountSuffix,
    NoRange,
    Range,
    advance_range,
    begin_range,
    find_bounds,
    replayed_message,
)
from contextbus.core.compaction.survival import count_survivors
from contextbus.core.payload import render
from contextbus_protocol.chat import ChatMessage, Document, Image, Text, ToolCall, ToolResult, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.values import RetentionPolicy


def compacted(items: list[Item], end: int, start: int = 0) -> list[Item]:
    """What is sent behind a compaction: the summary, the replayed message, the rest (C.E.1)."""
    again = replayed_message(items, start, end)
    summary = Item(user("Previous conversation summary:\nshort"), own="summary")
    return [*items[:start], summary, *([] if again is None else [items[again]]), *items[end:]]


def messages_of(items: list[Item]) -> list[ChatMessage]:
    return [item.message for item in items if item.message is not None]


def results_without_call(items: list[Item]) -> list[str]:
    """Ids of results that come before any call of theirs."""
    calls: list[str] = []
    lost: list[str] = []
    for message in messages_of(items):
        calls += [part.id for part in message.content if isinstance(part, ToolCall)]
        lost += [part.id for part in message.content if isinstance(part, ToolResult) and part.id not in calls]
    return lost


@pytest.mark.rule("C.D.8", "C.D.12")
@pytest.mark.parametrize("target", TARGETS)
def test_b1_one_matching_result_does_not_keep_the_others_as_orphans(target: str) -> None:
    items = [U, call("A"), res("A"), call("B"), res("B"), res("Z"), U]
    assert end_of(items, 3) == 3
    kept = compacted(items, 3)
    assert results_without_call(kept) == ["Z"], "its call was gone before"
    payload = render(messages_of(kept), target)
    assert [name for name, _ in results_of(sent(payload))] == ["B"]
    assert "orphan-result" in codes(payload)


@pytest.mark.rule("C.D.8")
def test_b2_a_suffix_never_begins_with_a_result_whose_call_is_in_the_range() -> None:
    items = [U, call("A", "B"), res("A"), res("B"), U, A]
    assert ends_of(items) == [5, 4, 1, 1, 1, None]


@pytest.mark.rule("C.D.8")
@pytest.mark.parametrize("keep", range(1, 11))
def test_b3_parallel_calls_and_all_their_results_are_one_group(keep: int) -> None:
    names = [f"c{number}" for number in range(10)]
    items = [U, A, call(*names), *(res(name) for name in names)]
    assert end_of(items, keep) == 2
    assert end_of([*items, A], 1) == 13


@pytest.mark.rule("C.D.5", "C.D.8", "C.E.4")
@pytest.mark.parametrize("target", TARGETS)
def test_b5_a_user_message_of_text_and_result_is_paired_by_part(target: str) -> None:
    both = says("user", returned("A"), Text(text="and go on"))
    items = [U, call("A"), both, A, call("B"), res("B")]
    assert ends_of(items) == [4, 4, 3, 1, 1, None], "no boundary comes between the call and the mixed message"
    # Summarised with its call it is replayed as it is; its part without a call is not sent.
    kept = compacted(items, 4)
    assert kept[1] is both
    assert not any(link.open for link in find_links(kept))
    payload = render(messages_of(kept), target)
    assert [name for name, _ in results_of(sent(payload))] == ["B"]
    assert "orphan-result" in codes(payload)
    assert "and go on" in payload.json().decode()


@pytest.mark.rule("C.D.8", "C.X.1")
def test_b6_no_fall_back_goes_past_the_pairs() -> None:
    items = [U, A, call("A"), res("A")]
    bounds = find_bounds(items)
    # Less than is kept: nothing is replaced, and surely not all but the last message.
    for policy in (
        RetentionPolicy(keep_recent_tokens=1000),
        RetentionPolicy(keep_last_turns=9),
        RetentionPolicy(keep_last_messages=9),
    ):
        state, step = begin_range(items, bounds, policy)
        while isinstance(step, CountSuffix):
            state, step = advance_range(state, 10 * (len(items) - step.start))
        assert step == NoRange()
    # Nothing fits: the largest end there is, before the call.
    state, step = begin_range(items, bounds, RetentionPolicy(keep_recent_tokens=1))
    while isinstance(step, CountSuffix):
        state, step = advance_range(state, 10 * (len(items) - step.start))
    assert step == Range(0, 2)


@pytest.mark.rule("C.D.6", "C.D.12")
def test_b9_calls_without_results_and_results_without_calls() -> None:
    assert ends_of([U, res("x"), A, U])[:3] == [3, 2, 1]
    assert ends_of([U, call("x"), A, A])[:3] == [1, 1, 1]
    assert ends_of([U, call("x"), res("y"), A])[:3] == [3, 2, 1]
    assert ends_of([U, res("x"), call("x"), A])[:2] == [2, 2]


@given(HISTORIES, st.integers(1, 8))
@pytest.mark.rule("C.D.6", "C.D.8")
def test_b9_no_compaction_parts_what_was_together(items: list[Item], keep: int) -> None:
    end = end_of(items, keep)
    if end is None:
        return
    start = find_bounds(items).start
    before = find_links(items)
    after = find_links([Item(user("s"), own="summary"), *items[end:]])
    kept = [link for link in before if link.first >= end]
    assert sorted((link.first - end + 1, link.last - end + 1, link.open) for link in kept) == sorted(
        (link.first, link.last, link.open) for link in after
    )
    assert all(link.last < end and not link.open for link in before if link.first < end)
    assert start < end


@pytest.mark.rule("C.D.6", "C.D.7", "C.D.16")
@pytest.mark.parametrize("waiting", ["approval", "long-running"])
def test_b10_a_call_that_waits_is_never_summarised_however_long_it_takes(waiting: str) -> None:
    asked = says("assistant", called("A"), asks("A")) if waiting == "approval" else call("A", tool="deploy")
    slow = () if waiting == "approval" else ("deploy",)
    turns = [U, A] * 10
    items = [S, U, asked, *turns]
    assert ends_of(items, slow)[:5] == [2] * 5
    answered = [*items, says("tool", answers(), returned("A")), U, A]
    assert ends_of(answered, slow)[:3] == [len(answered) - 1, len(answered) - 2, 2]


@pytest.mark.rule("C.D.16")
def test_b10_one_call_that_nobody_will_answer_does_not_block_for_ever() -> None:
    items = [U, call("A"), *([U, A] * 10)]
    assert end_of(items, 4) == len(items) - 4


@pytest.mark.rule("C.D.13")
def test_b14_a_result_belongs_to_its_own_occurrence_of_an_id() -> None:
    items = [
        U,
        says("assistant", called("X", arguments='{"n": 1}')),
        res("X"),
        says("assistant", called("X", arguments='{"n": 2}')),
        res("X"),
        U,
    ]
    assert [(link.first, link.last) for link in find_links(items)] == [(1, 2), (3, 4)]
    assert ends_of(items) == [5, 3, 3, 1, 1, None], "the boundary between two occurrences stays"


@given(HISTORIES, st.integers(1, 6))
@pytest.mark.rule("C.D.6")
def test_b15_what_waits_is_read_from_the_messages_and_is_the_same_behind_a_compaction(
    items: list[Item], keep: int
) -> None:
    end = end_of(items, keep)
    if end is None:
        return
    start = find_bounds(items).start
    before = sorted((link.id, link.kind) for link in find_links(items) if link.open)
    after = sorted((link.id, link.kind) for link in find_links(compacted(items, end, start)) if link.open)
    again = replayed_message(items, start, end)
    if again is None or all(isinstance(part, Text) for part in messages_of([items[again]])[0].content):
        assert after == before


@pytest.mark.rule("C.X.7")
def test_b35_an_exact_value_that_the_summary_lost_is_counted() -> None:
    replaced = [user('the vault code is "7Q-193", case INV-2025-08-44719')]
    assert count_survivors(replaced, "There is a vault code.", (), ()) == (3, 0)
    assert count_survivors(replaced, "The vault code is 7Q-193.", ("INV-2025-08-44719",), ()) == (3, 3)


@pytest.mark.rule("C.D.4", "C.X.3")
def test_b37_media_of_the_latest_user_turn_is_never_summarised() -> None:
    pasted = says("user", Text(text="what is this?"), Image(media_type="image/png", data="AAAA"))
    shown = says("tool", ToolResult(id="a", content=(Document(data="AAAA"),)))
    for media in ("protect", "placeholder"):
        assert find_bounds([pasted, A, A, A], media=media).ends == ()
        assert find_bounds([U, A, U, call("a"), shown, A], media=media).limit == 4


@pytest.mark.rule("C.X.3", "C.X.2")
def test_b38_no_base64_reaches_a_summariser() -> None:
    data = base64.b64encode(bytes(range(256)) * 6000).decode()
    uri = f"data:image/png;base64,{data}"
    items = [
        says("user", Image(media_type="image/png", data=data)),
        says("user", Image(url=uri)),
        says("user", Text(text=f"![shot]({uri})")),
        says("tool", ToolResult(id="a", content=(Image(data=data), Text(text=f'{{"image": "{uri}"}}')))),
        B,
        A,
        U,
    ]
    clean = [Item(replace_media(item.message), item.own) if item.message else item for item in items]
    bounds = find_bounds(items, media="placeholder")
    pieces = cut_pieces(
        clean, bounds, 0, 6, budget=100_000, count=lambda given: sum(len(encode_json(message)) for message in given)
    )
    (piece,) = pieces
    assert piece.left_out == 0
    assert piece.tokens < 2000
    assert data[:32] not in "".join(encode_json(message).decode() for message in piece.messages)

"""The replaced range: the vectors, the policies, and a comparison with the rules written without care for cost."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.compaction import oracle
from tests.core.compaction.histories import (
    HISTORIES,
    SUMMARY,
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

from contextbus.core.compaction.items import Item
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
from contextbus_protocol.chat import Document, Image, Reasoning, Text, ToolResult, Unknown, user
from contextbus_protocol.errors import InvalidRequestError, RangeError
from contextbus_protocol.values import RetentionPolicy

FILE = says("user", Document(data="AAAA"))


def plan(
    items: Sequence[Item], policy: RetentionPolicy, count: Callable[[int], int], *, room: int | None = None, **more: Any
) -> tuple[Range | NoRange, list[int]]:
    """The range that comes out, and the suffixes that were counted."""
    state, step = begin_range(items, find_bounds(items, **more), policy, room_tokens=room)
    counted: list[int] = []
    while isinstance(step, CountSuffix):
        counted.append(step.start)
        state, step = advance_range(state, count(step.start))
    return step, counted


def no_count(start: int) -> int:
    raise AssertionError(f"nothing is to be counted, and surely not from {start}")


@pytest.mark.rule("C.D.1", "C.D.2", "C.D.3", "C.D.9", "C.D.10", "C.D.11")
def test_vector_g1_plain_conversation() -> None:
    assert ends_of([U, A, U, A, U]) == [4, 3, 2, 1, None]
    assert end_of([S, U, A, U, A, U], 4) == 2
    bounds = find_bounds([S, U, A, U, A, U])
    assert begin_range([S, U, A, U, A, U], bounds, RetentionPolicy())[1] == Range(1, 2)
    assert end_of([S, S], 1) is None


@pytest.mark.rule("C.D.4")
def test_vector_g2_later_system_messages_and_media_protect() -> None:
    assert end_of([U, A, S, U, A, U], 1) == 2
    assert end_of([U, A, FILE, U, A, U], 1) == 2
    assert end_of([FILE, A, U, A, U], 1) is None


@pytest.mark.rule("C.D.8", "C.D.7")
def test_vector_g3_overlapping_links() -> None:
    items = [
        U,
        A,
        call("a"),
        says("assistant", called("b"), asks("b")),
        res("a"),
        says("tool", answers(approved=False), returned("b")),
        U,
    ]
    assert ends_of(items) == [6, 2, 2, 2, 2, 1, None]


@pytest.mark.rule("C.D.6", "C.D.10")
def test_vector_g4_an_open_approval_protects_all_behind_it() -> None:
    asked = says("assistant", called("p"), asks("p"))
    assert end_of([U, A, asked, U], 1) == 2
    assert ends_of([asked, U, A, U, A]) == [None] * 5


@pytest.mark.rule("C.D.11", "C.E.4")
def test_vector_g5_exchanges_of_the_current_turn_are_replaced_and_the_request_is_replayed() -> None:
    items = [U]
    for cycle in range(6):
        items += [call(f"c{cycle}"), res(f"c{cycle}")]
    assert ends_of(items)[:4] == [11, 11, 9, 9]
    assert replayed_message(items, 0, 11) == 0


@pytest.mark.rule("C.D.6", "C.D.7", "C.D.8")
def test_vector_g6_an_approved_call_without_and_with_its_result() -> None:
    asked, approved = says("assistant", called("c"), asks("c")), says("tool", answers())
    assert end_of([U, asked, approved, U, A, U], 1) == 1
    assert ends_of([U, asked, approved, res("c"), U, A, U]) == [6, 5, 4, 1, 1, 1, None]


@pytest.mark.rule("C.D.13")
def test_vector_g7_an_id_that_is_used_again() -> None:
    assert ends_of([U, call("d"), res("d"), A, call("d"), res("d"), U, A]) == [7, 6, 4, 4, 3, 1, 1, None]


@pytest.mark.rule("C.D.12", "C.D.14")
def test_vector_g8_orphans_and_provider_executed_calls() -> None:
    assert end_of([U, res("x"), U, A], 1) == 3
    assert end_of([U, says("assistant", called("e"), returned("e")), U, A], 1) == 3


@pytest.mark.rule("C.D.16")
def test_vector_g9_dead_calls() -> None:
    items = [U, call("a"), U, A, U, A]
    assert ends_of(items) == [5, 4, 3, 2, 1, None]
    assert ends_of(items, ["t"])[:5] == [1] * 5
    asked = [U, says("assistant", called("a"), asks("a")), U, A, U, A]
    assert ends_of(asked)[:5] == [1] * 5


@pytest.mark.rule("C.E.9", "C.E.6", "C.D.3")
@pytest.mark.parametrize("block", [B, says("user", Text(text="context"), own="block")])
def test_vector_g10_own_blocks(block: Item) -> None:
    items = [U, A, U, block, A]
    assert ends_of(items)[:3] == [4, 2, 1]
    assert replayed_message(items, 0, 4) == 2
    assert replayed_message(items, 0, 2) is None


@pytest.mark.rule("C.D.13", "C.D.16")
def test_vector_g11_dead_then_used_again() -> None:
    assert ends_of([U, call("d"), U, call("d"), res("d"), U, A])[:5] == [6, 5, 3, 3, 2]


@pytest.mark.rule("C.D.13", "C.D.16")
def test_vector_g12_dead_and_used_again_with_no_user_between() -> None:
    assert ends_of([U, call("d", "b"), res("b"), call("d"), res("d"), A, U])[:6] == [6, 5, 3, 3, 1, 1]


def _ai_sdk(item: Item) -> dict[str, Any]:
    """The form that the default counter of compact() sees (C.B)."""
    assert item.message is not None
    parts: list[Any] = []
    for part in item.message.content:
        if isinstance(part, Text):
            return {"role": item.message.role, "content": part.text}
        if isinstance(part, ToolResult):
            text = part.content[0]
            assert isinstance(text, Text)
            output = {"type": "text", "value": text.text}
            parts.append({"type": "tool-result", "toolCallId": part.id, "toolName": "t", "output": output})
        else:
            parts.append({"type": "tool-call", "toolCallId": getattr(part, "id", ""), "toolName": "t", "input": {}})
    return {"role": item.message.role, "content": parts}


@pytest.mark.rule("C.X.1")
def test_vector_b3_recent_tokens() -> None:
    items = [
        Item(user("find it")),
        call("k"),
        says("tool", returned("k", "x" * 200)),
        call("l"),
        says("tool", returned("l", "y" * 10)),
    ]

    def count(start: int) -> int:
        return -(-len(json.dumps([_ai_sdk(item) for item in items[start:]], separators=(",", ":"))) // 4)

    assert [count(0), count(1), count(3)] == [170, 161, 57]
    for tokens in range(1, 400):
        step, _ = plan(items, RetentionPolicy(keep_recent_tokens=tokens), count)
        if tokens >= 170:
            assert step == NoRange()
        else:
            assert step == Range(0, 1 if tokens >= 161 else 3), tokens


@pytest.mark.rule("C.D.4", "C.B.5")
@pytest.mark.parametrize(
    "part",
    [
        Image(url="https://a/b.png"),
        Document(text="page"),
        Unknown(data="{}"),
        ToolResult(id="a", content=(Text(text="x"), Image(data="AAAA"))),
        ToolResult(id="a", content=(Unknown(data="{}"),)),
    ],
)
def test_opaque_parts_protect(part: Any) -> None:
    assert find_bounds([U, A, says("user", part), U]).limit == 2


@pytest.mark.rule("C.B.4")
@pytest.mark.parametrize(
    "part", [Text(text="x"), Reasoning(redacted="zip"), called("a"), returned("a"), asks("a"), answers()]
)
def test_plain_parts_do_not_protect_by_themselves(part: Any) -> None:
    items = [U, A, says("assistant", part), says("tool", returned("a"), answers()), U]
    assert find_bounds(items).limit == len(items)


@pytest.mark.rule("C.X.3", "C.D.4")
def test_media_as_placeholder_protects_from_the_last_user_message_on() -> None:
    image = says("user", Image(data="AAAA"))
    shown = says("tool", ToolResult(id="a", content=(Image(data="AAAA"),)))
    unknown = says("user", Unknown(data="{}"))
    items = [image, A, call("a"), shown, U, A]
    assert find_bounds(items).limit == 0
    assert find_bounds(items, media="placeholder").limit == len(items)
    assert find_bounds([U, A, image, A], media="placeholder").limit == 2
    assert find_bounds([U, call("a"), shown, A], media="placeholder").limit == 2
    assert find_bounds([image, A, B], media="placeholder").limit == 0
    assert find_bounds([A, shown, A], media="placeholder").limit == 3
    assert find_bounds([U, unknown, U], media="placeholder").limit == 1
    assert find_bounds([S, U, S, U], media="placeholder").limit == 2


@pytest.mark.rule("C.E.9", "C.D.10")
def test_a_range_of_own_blocks_alone_is_none() -> None:
    assert find_bounds([S, B, B, U, A]) == Bounds(start=1, limit=5, ends=(4, 5))
    assert end_of([S, B, U], 1) is None
    assert end_of([SUMMARY, U], 1) == 1


@pytest.mark.rule("C.E.9", "C.D.4")
def test_own_blocks_never_protect_and_a_message_that_is_not_at_hand_does() -> None:
    shown = says("user", Image(data="AAAA"), own="block")
    assert find_bounds([U, shown, says("system", own="block"), A]).limit == 4
    assert find_bounds([U, Item(None), A]).limit == 1
    assert find_bounds([U, Item(None, "summary"), A]).limit == 1


@pytest.mark.rule("C.E.9")
def test_a_boundary_may_lie_before_and_behind_a_block_but_not_in_an_exchange() -> None:
    assert find_bounds([U, B, A]).ends == (1, 2, 3)
    assert find_bounds([U, call("a"), B, res("a"), A]).ends == (1, 4, 5)


@pytest.mark.rule("C.D.9", "C.D.15")
def test_the_largest_allowed_end_up_to_an_index() -> None:
    bounds = find_bounds([U, call("a"), res("a"), U])
    assert bounds.ends == (1, 3, 4)
    assert [bounds.largest_allowed(index) for index in range(6)] == [None, 1, 1, 3, 4, 4]
    assert [bounds.is_allowed(index) for index in range(6)] == [False, True, False, True, True, False]
    assert bounds.between(1, 4) == (3,)
    assert bounds.between(0, 3) == (1,)


@pytest.mark.rule("C.E.4", "C.E.6")
def test_the_replayed_message_is_the_last_of_the_user_and_no_own_block() -> None:
    bare = says("user", returned("x"))
    items = [U, SUMMARY, U, bare, B, SUMMARY, A]
    assert replayed_message(items, 0, 6) == 2
    assert replayed_message(items, 0, 3) == 2
    assert replayed_message(items, 0, 2) is None
    assert replayed_message([*items, U], 0, 6) is None
    assert replayed_message([A, B, SUMMARY], 0, 2) is None


@pytest.mark.rule("C.X.1")
def test_last_turns_count_user_messages_that_are_no_own_block() -> None:
    items = [U, A, SUMMARY, B, U, A, U, says("user", returned("x")), A]
    ends = [plan(items, RetentionPolicy(keep_last_turns=turns), no_count)[0] for turns in (1, 2, 3, 4)]
    assert ends == [Range(0, 6), Range(0, 4), NoRange(), NoRange()]


@pytest.mark.rule("C.X.1")
def test_with_several_policies_the_smallest_index_is_taken() -> None:
    items = [U, A, U, A, U, A]

    def end(**policy: int) -> int:
        step, _ = plan(items, RetentionPolicy(**policy), lambda start: len(items) - start)
        assert isinstance(step, Range)
        return step.end

    assert end(keep_last_messages=1) == 5
    assert end(keep_last_turns=1) == 4
    assert end(keep_recent_tokens=3) == 3
    assert end(keep_last_messages=1, keep_last_turns=1) == 4
    assert end(keep_last_messages=1, keep_last_turns=1, keep_recent_tokens=3) == 3
    assert end(keep_last_messages=5, keep_recent_tokens=3) == 1


@pytest.mark.rule("C.X.1")
def test_a_ratio_keeps_the_room_less_the_summarys_allowance() -> None:
    items = [U] * 100

    def end(room: int, **policy: int) -> int:
        step, _ = plan(items, RetentionPolicy(keep_ratio=0.5, **policy), lambda start: 100 * (100 - start), room=room)
        assert isinstance(step, Range)
        return step.end

    assert end(1000) == 95  # 500 is kept
    assert end(8000) == 41  # 5952 is kept
    assert end(1001) == 95  # floor(1001 / 2) is taken off
    assert end(1000, keep_recent_tokens=700) == 93
    assert end(1000, keep_recent_tokens=300) == 95
    assert end(0) == end(-7) == 99
    with pytest.raises(RangeError, match="room_tokens"):
        plan(items, RetentionPolicy(keep_ratio=0.5), no_count)


@pytest.mark.rule("C.X.1", "C.C.7")
def test_nothing_is_counted_where_nothing_can_be_replaced_or_no_policy_asks() -> None:
    assert plan([S, FILE, A, U], RetentionPolicy(keep_recent_tokens=1), no_count) == (NoRange(), [])
    assert plan([U, A], RetentionPolicy(keep_last_messages=2, keep_recent_tokens=1), no_count) == (NoRange(), [])
    assert plan([U, A], RetentionPolicy(keep_last_messages=1), no_count) == (Range(0, 1), [])
    assert plan([], RetentionPolicy(), no_count) == (NoRange(), [])


@pytest.mark.rule("C.X.1")
@given(st.lists(st.integers(0, 9), min_size=2, max_size=200), st.integers(1, 900))
def test_a_search_counts_few_suffixes(costs: list[int], tokens: int) -> None:
    items = [U] * len(costs)
    step, counted = plan(items, RetentionPolicy(keep_recent_tokens=tokens), lambda start: sum(costs[start:]))
    assert len(counted) <= 1 + math.ceil(math.log2(len(costs)))
    assert len(set(counted)) == len(counted)
    end = oracle.wanted_end(
        items, range(1, len(costs) + 1), start=0, tokens=tokens, count=lambda kept: sum(costs[len(costs) - len(kept) :])
    )
    assert step == (NoRange() if end is None else Range(0, end))


@pytest.mark.rule("C.X.1", "C.C.4")
@given(st.lists(st.integers(0, 20), min_size=2, max_size=60), st.integers(1, 20))
def test_a_counter_that_is_not_monotone_gives_an_end_that_fits_or_the_largest(counts: list[int], tokens: int) -> None:
    items = [U] * len(counts)
    step, counted = plan(items, RetentionPolicy(keep_recent_tokens=tokens), lambda start: counts[start])
    if isinstance(step, NoRange):
        assert counts[0] <= tokens
        return
    assert isinstance(step, Range)
    assert step.end == len(counts) - 1 or (step.end in counted and counts[step.end] <= tokens)
    assert all(counts[index] > tokens for index in counted if index < step.end)


@pytest.mark.rule("C.C.5")
@pytest.mark.parametrize("wrong", [-1, 0.5, math.nan, math.inf, True, 2**53])
def test_a_count_is_a_safe_integer(wrong: Any) -> None:
    state, _ = begin_range([U, A], find_bounds([U, A]), RetentionPolicy(keep_recent_tokens=1))
    with pytest.raises(RangeError, match="count_tokens"):
        advance_range(state, wrong)


def test_a_count_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        advance_range(RangeState(0), 5)


@given(HISTORIES, st.sampled_from(["protect", "placeholder"]))
@pytest.mark.rule("C.D.2", "C.D.4", "C.D.6", "C.D.8", "C.D.10", "C.D.16", "C.E.9", "C.X.3")
def test_allowed_ends_are_those_of_the_rules(items: list[Item], media: Any) -> None:
    for slow in ((), ("slow",)):
        bounds = find_bounds(items, long_running=slow, media=media)
        assert list(bounds.ends) == oracle.allowed_ends(items, slow, media)


_KEEP = st.one_of(st.none(), st.integers(1, 8))


@given(HISTORIES, _KEEP, _KEEP, st.one_of(st.none(), st.integers(1, 60)), st.data())
@pytest.mark.rule("C.D.3", "C.D.9", "C.X.1")
def test_the_range_is_that_of_the_rules(
    items: list[Item], messages: int | None, turns: int | None, tokens: int | None, data: st.DataObject
) -> None:
    items = [Item(item.message, item.own, data.draw(st.integers(0, 9))) for item in items]
    bounds = find_bounds(items)

    def count(kept: Sequence[Item]) -> int:
        return sum(item.cost for item in kept)

    policy = RetentionPolicy(keep_last_messages=messages, keep_last_turns=turns, keep_recent_tokens=tokens)
    step, _ = plan(items, policy, lambda start: count(items[start:]))
    default = 4 if messages is turns is tokens is None else messages
    end = oracle.wanted_end(
        items,
        oracle.allowed_ends(items),
        start=bounds.start,
        messages=default,
        turns=turns,
        tokens=tokens,
        count=count,
    )
    assert step == (NoRange() if end is None else Range(bounds.start, end))


@given(HISTORIES)
@pytest.mark.rule("C.D.9")
def test_keeping_more_never_replaces_more(items: list[Item]) -> None:
    ends = [0 if end is None else end for end in ends_of(items)]
    assert all(one >= next_one for one, next_one in pairwise(ends))
    bare = [index for index, item in enumerate(items) if item.own != "block"]
    for keep, end in enumerate(ends, 1):
        assert end == 0 or sum(index >= end for index in bare) >= keep


@pytest.mark.rule("C.A.7")
@given(HISTORIES)
def test_planning_leaves_the_history_as_it_is(items: list[Item]) -> None:
    before = list(items)
    end_of(items, 1)
    assert len(items) == len(before)
    assert all(one is other for one, other in zip(items, before, strict=True))


def test_every_pair_of_plain_messages_can_be_replaced_up_to_the_last() -> None:
    for pair in combinations([U, A, SUMMARY], 2):
        assert end_of([*pair, U], 1) == 2

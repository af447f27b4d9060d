"""Links: which messages a call, its requests and its result stand in, by occurrence."""

from __future__ import annotations

import pytest
from hypothesis import given
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
    res,
    returned,
    says,
)

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.links import Link, find_links
from contextbus_protocol.chat import Text


def shape(items: list[Item], *long_running: str) -> list[tuple[int, int, bool]]:
    return [(link.first, link.last, link.open) for link in find_links(items, long_running)]


@pytest.mark.rule("C.D.5", "C.D.7")
def test_a_link_spans_call_request_and_result_and_an_approval_request_and_response() -> None:
    items = [U, says("assistant", called("a"), asks("a")), says("tool", answers()), res("a")]
    assert find_links(items) == (
        Link(1, 3, open=False, kind="tool", id="a"),
        Link(1, 2, open=False, kind="approval", id="p"),
    )


@pytest.mark.rule("C.D.6", "C.D.7")
def test_a_denied_call_stays_open_until_its_result() -> None:
    asked = says("assistant", called("a"), asks("a"))
    denied = says("tool", answers(approved=False))
    assert shape([asked]) == [(0, 0, True), (0, 0, True)]
    assert shape([asked, denied, U, A, U]) == [(0, 0, True), (0, 1, False)]
    assert shape([asked, denied, res("a")]) == [(0, 2, False), (0, 1, False)]


@pytest.mark.rule("C.D.12")
def test_orphans_are_closed_links_of_one_message() -> None:
    assert shape([U, res("x"), res("x")]) == [(1, 1, False), (2, 2, False)]
    assert find_links([says("tool", answers("p"))]) == (Link(0, 0, open=False, kind="approval", id="p"),)


@pytest.mark.rule("C.D.12")
def test_a_request_without_call_leaves_its_approval_open_until_answered() -> None:
    asked = says("assistant", asks("gone"))
    assert find_links([asked]) == (
        Link(0, 0, open=False, kind="tool", id="gone"),
        Link(0, 0, open=True, kind="approval", id="p"),
    )
    assert shape([asked, U, says("tool", answers())]) == [(0, 0, False), (0, 2, False)]


@pytest.mark.rule("C.D.13")
def test_results_answer_the_calls_of_an_id_first_in_first_out() -> None:
    assert shape([call("a"), call("a"), res("a"), res("a")]) == [(0, 2, False), (1, 3, False)]
    assert shape([call("a", "a"), res("a")]) == [(0, 1, False), (0, 0, True)]


@pytest.mark.rule("C.D.13", "C.D.16")
def test_a_result_answers_an_open_call_before_a_dead_one_and_a_dead_one_before_none() -> None:
    assert shape([call("a"), U, call("a"), res("a")]) == [(0, 0, False), (2, 3, False)]
    assert shape([call("a"), U, call("a"), res("a"), res("a")]) == [(0, 4, False), (2, 3, False)]
    # Among dead ones the first is answered first.
    assert shape([call("a"), U, call("a"), U, res("a")]) == [(0, 4, False), (2, 2, False)]


@pytest.mark.rule("C.D.13")
def test_an_approval_request_belongs_to_the_latest_open_call_of_its_id() -> None:
    items = [call("a"), says("assistant", called("a")), says("assistant", asks("a"))]
    assert shape([*items, U]) == [(0, 0, False), (1, 2, True), (2, 2, True)]
    # The latest one was answered: the request is that of the one before.
    items = [call("a"), res("a"), says("tool", asks("a"))]
    assert find_links(items)[1] == Link(2, 2, open=False, kind="tool", id="a")


@pytest.mark.rule("C.D.14")
def test_call_and_result_in_one_message_are_a_closed_link_of_one_message() -> None:
    assert shape([U, says("assistant", called("e"), returned("e"))]) == [(1, 1, False)]


@pytest.mark.rule("C.D.16")
def test_a_call_is_dead_once_the_user_or_the_assistant_has_gone_on() -> None:
    dead = Link(0, 0, open=False, kind="tool", id="a", dead=True)
    waits = Link(0, 0, open=True, kind="tool", id="a")
    assert find_links([call("a"), U]) == (dead,)
    assert find_links([call("a"), res("b"), A])[0] == dead
    assert find_links([call("a"), S, A]) == (dead,)
    assert find_links([call("a"), A]) == (waits,)
    assert find_links([call("a"), res("b")])[0] == waits
    assert find_links([call("a"), A, A, res("b")])[0] == waits
    assert find_links([says("tool", called("a")), A]) == (waits,)


@pytest.mark.rule("C.D.16", "C.D.12")
def test_a_dead_call_that_gets_its_result_after_all_is_a_closed_link_up_to_it() -> None:
    assert find_links([call("a"), U, A, res("a")]) == (Link(0, 3, open=False, kind="tool", id="a"),)


@pytest.mark.rule("C.D.16")
def test_an_approval_request_or_a_long_running_tool_keeps_a_call_open() -> None:
    assert shape([call("a", tool="slow"), U, A, U], "slow") == [(0, 0, True)]
    assert shape([call("a", tool="fast"), U, A, U], "slow") == [(0, 0, False)]
    assert shape([says("assistant", called("a"), asks("a")), U, A, U])[0] == (0, 0, True)


@pytest.mark.rule("C.D.16", "C.E.6")
def test_own_blocks_and_bare_tool_results_are_no_user_message() -> None:
    assert shape([call("a"), B]) == shape([call("a"), SUMMARY]) == [(0, 0, True)]
    assert shape([call("a", "b"), says("user", returned("b"))]) == [(0, 0, True), (0, 1, False)]
    assert shape([call("a", "b"), says("user", returned("b"), Text(text="stop"))]) == [(0, 0, False), (0, 1, False)]


@pytest.mark.rule("C.D.13", "C.D.16")
def test_the_message_that_holds_a_result_counts_only_if_it_is_the_assistants() -> None:
    # The user's own message does not make the call dead before its result is read.
    answer = says("user", Text(text="and"), returned("a"))
    assert shape([call("a"), U, call("a"), answer]) == [(0, 0, False), (2, 3, False)]
    # The assistant has spoken again: its own call of the same id is the one that its result answers.
    assert shape([call("a"), res("b"), says("assistant", called("a"), returned("a"))])[::2] == [
        (0, 0, False),
        (2, 2, False),
    ]


@pytest.mark.rule("C.E.9")
def test_own_blocks_hold_no_part_of_a_link() -> None:
    assert find_links([says("assistant", called("a"), own="block"), Item(None, "block")]) == ()


@given(HISTORIES)
@pytest.mark.rule("C.D.5", "C.D.6", "C.D.7", "C.D.12", "C.D.13", "C.D.14", "C.D.16")
def test_links_are_those_of_the_rules(items: list[Item]) -> None:
    for slow in ((), ("slow",)):
        assert sorted(shape(items, *slow)) == sorted(oracle.links(items, slow))

"""The messages of a compiler's requests: own blocks, loaded skills, the prefix (D.F.15-D.F.22, D.H.6, D.K.26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus.core.request_history import RequestHistory, make_prefix, prefix_cause, take_request
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, system, user
from contextbus_protocol.values import Model

ESTIMATOR = make_estimator()
MODEL = Model("openai", "gpt-5", 128_000, 8_000)
MESSAGES = (
    system("Be brief."),
    user("How?"),
    assistant("So."),
    ChatMessage(role="assistant", content=(ToolCall("c1", "load_skill", '{"skill":"deploy"}'),)),
    ChatMessage(role="tool", content=(ToolResult("c1", (Text("loaded"),)),)),
    user("a block"),
)
LISTS = st.lists(st.sampled_from(MESSAGES), max_size=8)
BLOCK = digest_message(MESSAGES[-1])


@pytest.mark.rule("D.H.6", "D.G.18", "D.K.26", "D.M.4")
@given(st.lists(LISTS, max_size=4), LISTS)
def test_what_is_known_of_earlier_requests_changes_nothing(
    earlier: list[list[ChatMessage]], messages: list[ChatMessage]
) -> None:
    known = RequestHistory()
    for before in earlier:
        known = take_request(known, before, {BLOCK}, ESTIMATOR)
    taken = take_request(known, messages, {BLOCK}, ESTIMATOR)
    fresh = take_request(RequestHistory(), messages, {BLOCK}, ESTIMATOR)
    assert (taken.history.chain, taken.history.eighteenths) == (fresh.history.chain, fresh.history.eighteenths)
    assert (taken.present, taken.calls, taken.loads) == (fresh.present, fresh.calls, fresh.loads)
    assert (BLOCK in taken.present) == (MESSAGES[-1] in messages)
    assert ESTIMATOR.tokens(taken.history.eighteenths) == ESTIMATOR.estimate(messages)


@pytest.mark.rule("D.K.26")
def test_a_result_answers_the_calls_of_the_assistants_last_message() -> None:
    call, result = MESSAGES[3:5]
    for messages, loaded in (
        ([call, result], ["deploy"]),
        ([call, user("Wait."), result], ["deploy"]),
        ([call, assistant("So."), result], []),
        ([result, call], []),
    ):
        assert [load.skill for load in take_request(RequestHistory(), messages, (), ESTIMATOR).loads] == loaded


@pytest.mark.rule("D.K.26", "D.H.8")
def test_a_later_load_is_another_and_an_earlier_one_stays_the_same() -> None:
    call, result = MESSAGES[3:5]
    first = take_request(RequestHistory(), [call, result], (), ESTIMATOR)
    later = take_request(first, [call, result, user("How?"), assistant("So.")], (), ESTIMATOR)
    again = take_request(later, [call, result, call, result], (), ESTIMATOR)
    assert later.loads == first.loads
    assert [load.skill for load in again.loads] == ["deploy"]
    assert again.loads != first.loads


@pytest.mark.rule("D.F.15", "D.F.17", "D.F.18", "D.F.22")
@given(LISTS, LISTS, st.booleans())
def test_the_prefix_is_the_messages_and_their_block(
    before: list[ChatMessage], after: list[ChatMessage], placed: bool
) -> None:
    blocks = [MESSAGES[-1]] if placed else []
    first = take_request(RequestHistory(), before, (), ESTIMATOR)
    prefix = make_prefix(first.history, MODEL, None, map(digest_message, blocks))
    second = take_request(first, after, (), ESTIMATOR)
    cause = prefix_cause(prefix, second.history, MODEL, None)
    begins = after[: len(before) + len(blocks)] == before + blocks
    if leading_systems(before) == leading_systems(after):
        assert cause == (None if begins else "history")
        assert prefix_cause(prefix, second.history, MODEL, None, redacted=True) == (None if begins else "redacted")
    else:
        assert cause == "system"
    assert prefix_cause(prefix, second.history, MODEL, "sha256:") == "tools"
    assert prefix_cause(prefix, second.history, Model("openai", "o", 1, 1), "sha256:") == "model"
    assert prefix_cause(None, second.history, MODEL, None) is None


def leading_systems(messages: list[ChatMessage]) -> int:
    return next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))

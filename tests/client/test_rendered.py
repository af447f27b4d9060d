"""The renderings of a run's history are grown from earlier ones, and are what rendering everything gives (P.E.1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contextbus.client as contextbus
from contextbus.client.rendered import BlocksInPlace, RenderedHistory
from contextbus.core.history import SourceHistory, digest_message
from contextbus.core.targets import find_target
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, ToolCall, ToolResult

TARGETS = [find_target(name, None) for name in ("anthropic", "openai")]
TURNS = st.sampled_from(
    [
        contextbus.user("a"),
        contextbus.user("b"),
        contextbus.system("late"),
        contextbus.assistant("c"),
        ChatMessage(role="assistant", content=(Reasoning(text="hm", signature="s"), Text(text="d"))),
        ChatMessage(role="assistant", content=(ToolCall(id="1", name="f"), ToolCall(id="2", name="g"))),
        ChatMessage(role="tool", content=(ToolResult(id="1", content=(Text(text="e"),)),)),
    ]
)


def costless(history: SourceHistory, messages: list[ChatMessage]) -> SourceHistory:
    return history.append(messages, [0] * len(messages))


@pytest.mark.rule("D.F.14")
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_history_that_was_edited_renders_as_one_that_never_was(data: st.DataObject) -> None:
    history, blocks, rendered = SourceHistory(), BlocksInPlace(), RenderedHistory(SourceHistory(), BlocksInPlace())
    for number in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, history.count))
            history, blocks = history.keep(count), blocks.keep(count)
        history = costless(history, data.draw(st.lists(TURNS, max_size=9)))
        if data.draw(st.booleans()):
            block = contextbus.user(f"block {data.draw(st.integers(0, 1))} {number}")
            blocks = blocks.add(history.count, {digest_message(block): block})
        bounds = st.integers(0, history.count)
        stale = tuple((data.draw(bounds), data.draw(bounds)) for _ in range(data.draw(st.integers(0, 1))))
        rendered = RenderedHistory(history, blocks, rendered, stale)
        fresh = RenderedHistory(history, blocks, None, stale)
        for target in data.draw(st.lists(st.sampled_from(TARGETS), max_size=2)):
            assert rendered[target] == fresh[target]


def test_an_edit_of_the_last_messages_leaves_what_was_rendered_before_them() -> None:
    target, none = TARGETS[1], BlocksInPlace()
    history = costless(SourceHistory(), [contextbus.user(str(n)) for n in range(1_000)])
    whole = RenderedHistory(history, none)
    known = whole[target].settled.chunks
    for keep in (999, 990, 960):
        edited = costless(history.keep(keep), [contextbus.user("other")])
        chunks = RenderedHistory(edited, none, whole)[target].settled.chunks
        assert all(a is b for a, b in zip(known[: (keep - 3 * (1_000 - keep)) // 64], chunks, strict=False))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_what_two_histories_have_in_common_is_counted(both: int, one: int, other: int) -> None:
    common = costless(SourceHistory(), [contextbus.user(str(n)) for n in range(both)])
    first = costless(common, [contextbus.user(f"one {n}") for n in range(one)])
    second = costless(common, [contextbus.user(f"other {n}") for n in range(other)])
    assert first.count_common(second) == both == second.count_common(first)

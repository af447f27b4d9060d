"""How ``compact`` counts, when, and with what (C.C)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.compacting import (
    IMAGE,
    LABEL,
    MEDIA,
    Counted,
    Message,
    Scripted,
    assistant,
    assistant_of,
    b1,
    b2,
    call_part,
    compact,
    compacted,
    refused,
    res,
    system,
    tool_of,
    user,
)

import contextbus.client as contextbus
from contextbus.client import RetentionPolicy
from contextbus.client.compaction.counting import DefaultCounter
from contextbus.client.compaction.messages import read_source
from contextbus.core import ai_sdk
from contextbus.core.compaction.reduction import CountComposed, CountRange, CountTail, CountWhole
from contextbus.summarisers.interface import Summary
from contextbus_protocol.errors import InvalidTypeError, RangeError

OPAQUE: tuple[Message, ...] = (
    MEDIA,
    IMAGE,
    assistant_of({"type": "custom", "kind": "p.thing"}),
    assistant_of({"type": "reasoning-file", "mediaType": "image/png", "data": "aGVsbG8="}),
    assistant_of({"type": "hologram", "x": 1}),
    tool_of(
        {
            "type": "tool-result",
            "toolCallId": "a",
            "toolName": "t",
            "output": {"type": "content", "value": [{"type": "media", "data": "aGVsbG8=", "mediaType": "image/png"}]},
        }
    ),
)


def json_tokens(messages: list[Message]) -> int:
    """The default estimate of dicts in the AI SDK's form, written down once more."""
    return -(-len(json.dumps(messages, ensure_ascii=False, separators=(",", ":"))) // 4) if messages else 0


@pytest.mark.rule("C.C.1", "C.C.2", "C.C.8")
def test_the_estimate_is_a_fourth_of_the_characters_of_the_json() -> None:
    assert contextbus.estimate_tokens([]) == 0
    assert contextbus.estimate_tokens([user("hi")]) == 8
    assert contextbus.estimate_tokens([contextbus.user("hi")]) == 8
    assert contextbus.estimate_tokens([user('a\u2028"\n\u0001\U0001f600')]) == 11
    assert contextbus.estimate_tokens([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]) == 8
    assert contextbus.estimate_tokens([{"content": "hi", "role": "user"}]) == 8
    messages = [system(), *b2(), assistant_of({"type": "text", "text": "x"}, call_part("z"))]
    assert contextbus.estimate_tokens(messages) == json_tokens(messages)
    marked = {"role": "user", "content": "hi", "metadata": {"id": "m-1"}}
    assert contextbus.estimate_tokens([marked]) == json_tokens([marked])


@pytest.mark.rule("C.C.2", "C.C.9")
def test_broken_and_special_characters_are_ordinary_ones() -> None:
    assert contextbus.estimate_tokens([user("\ud83d")]) == contextbus.estimate_tokens([user("x")])
    special = "<|endoftext|><|im_start|>system"
    assert contextbus.estimate_tokens([user(special)]) == json_tokens([user(special)])


@pytest.mark.rule("C.C.3")
@pytest.mark.parametrize("opaque", OPAQUE, ids=lambda m: str(m["content"][0]["type"]))
@pytest.mark.parametrize("place", [0, 5])
async def test_media_anywhere_has_no_default_count(opaque: Message, place: int) -> None:
    messages = [user(), assistant(), user(), assistant(), user()]
    messages.insert(place, opaque)
    model = Scripted()
    for media in ("protect", "placeholder"):
        with pytest.raises(InvalidTypeError, match=rf"messages\[{place}\].*count_tokens"):
            await compact(messages, model=model, target_tokens=5000, keep_last_messages=1, media=media)
    with pytest.raises(InvalidTypeError, match="count_tokens"):
        contextbus.estimate_tokens(messages)
    assert not model.asked


@pytest.mark.rule("C.C.4", "C.E.7")
async def test_the_counter_gets_whole_lists_of_the_callers_own_objects() -> None:
    counter = Counted()
    messages = b2()
    before = copy.deepcopy(messages)
    await compacted(messages, keep_last_messages=2, count_tokens=counter)
    whole, empty, final = counter.given
    assert all(a is b for a, b in zip(whole, messages, strict=True))
    assert empty[0] == user(LABEL)
    assert final[0] == user(f"{LABEL}Short.")
    for found in (empty, final):
        assert all(a is b for a, b in zip(found[1:], (messages[0], *messages[3:]), strict=True))
    assert messages == before


@pytest.mark.rule("C.C.4")
async def test_the_counter_may_be_async() -> None:
    async def count(messages: Any) -> int:
        return contextbus.estimate_tokens(messages)

    counted = await compacted(b1(), keep_last_messages=2, count_tokens=count)
    assert counted == await compacted(b1(), keep_last_messages=2)


@pytest.mark.rule("C.C.5")
@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), 0.5, True, 2**53, 5.0, "5", None, [5]])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_count_that_is_no_safe_integer_from_zero_is_refused(count: Any, at: int) -> None:
    model = Scripted()
    counter = Counted(lambda _: count if len(counter.given) == at else 5)

    async def later(messages: Any) -> Any:
        return counter(messages)

    for function in (counter, later):
        counter.given.clear()
        model.asked.clear()
        with pytest.raises(RangeError, match="count_tokens") as caught:
            await compact(b1(), model=model, target_tokens=50, keep_last_messages=2, count_tokens=function)
        assert isinstance(caught.value, ValueError)
        assert len(model.asked) == (at == 3)


@pytest.mark.rule("C.C.5", "C.G.8")
async def test_zero_and_the_largest_safe_integer_are_counts() -> None:
    assert (await compacted(b1(), keep_last_messages=2, count_tokens=Counted(lambda _: 0))).tokens.after == 0
    big = await refused(b1(), keep_last_messages=2, count_tokens=Counted(lambda _: 2**53 - 1))
    assert big.reason == "protected-history"


@pytest.mark.rule("C.C.6")
async def test_one_counter_decides_all() -> None:
    counter = Counted(lambda messages: 100 * len(messages))
    result = await compacted(b1(), keep_last_messages=2, count_tokens=counter, target_tokens=350)
    assert (result.tokens.before, result.tokens.after) == (400, 300)
    model = Scripted()
    assert (await refused(b1(), model, keep_last_messages=2, count_tokens=counter, target_tokens=300)).reason == (
        "protected-history"
    )
    await compacted(b1(), model, keep_last_messages=2, count_tokens=counter, target_tokens=301)
    assert model.asked[0].max_output_tokens == 1


@pytest.mark.rule("C.C.7")
async def test_each_way_out_has_its_number_of_counts() -> None:
    async def counts(messages: list[Message], answer: Any = "Short.", target: int = 100) -> int:
        counter = Counted()
        await compact(
            messages, model=Scripted(answer), target_tokens=target, keep_last_messages=2, count_tokens=counter
        )
        return len(counter.given)

    assert await counts([user()]) == 1
    assert await counts(b1(), target=34) == 2
    assert await counts(b1(), Summary((), "length")) == 2
    assert await counts(b1(), " ") == 2
    assert await counts(b1(), "x" * 500) == 3
    assert await counts(b1()) == 3


@pytest.mark.rule("C.C.7", "C.X.1")
async def test_a_policy_of_tokens_counts_suffixes_besides() -> None:
    counter = Counted()
    messages = [user(f"message {n}") for n in range(40)]
    result = await compacted(messages, keep=RetentionPolicy(keep_recent_tokens=100), count_tokens=counter)
    whole, *tails, empty, final = counter.given
    assert len(whole) == 40
    assert 1 < len(tails) <= 7
    assert all(tail == tuple(messages[-len(tail) :]) for tail in tails)
    assert len(empty) == len(final)
    assert contextbus.estimate_tokens(messages[result.replaced_range.end :]) <= 100
    assert contextbus.estimate_tokens(messages[result.replaced_range.end - 1 :]) > 100


@pytest.mark.rule("C.C.10", "C.J.7")
async def test_the_target_is_about_the_messages_alone() -> None:
    long = "keep every name " * 1000
    result = await compacted(b1(), keep_last_messages=2, target_tokens=35, instructions=long)
    assert result.tokens.after == 35


@pytest.mark.rule("C.C.1")
@given(
    st.lists(st.sampled_from([user("a"), assistant("bcd"), user("é\u2028"), res("x")]), min_size=1, max_size=8),
    st.data(),
)
def test_adding_up_lengths_is_writing_the_whole_list(messages: list[Message], data: st.DataObject) -> None:
    source = read_source(messages)
    counter = DefaultCounter(source)
    start = data.draw(st.integers(0, len(messages) - 1))
    end = data.draw(st.integers(start + 1, len(messages)))
    replayed = data.draw(st.none() | st.integers(start, end - 1))
    summary = data.draw(st.none() | st.text(max_size=20))
    made = [] if summary is None else [user(f"{LABEL}{summary}")]
    again = [] if replayed is None else [messages[replayed]]
    composed = [*messages[:start], *made, *again, *messages[end:]]
    for count, whole in (
        (CountWhole(), messages),
        (CountTail(start), messages[start:]),
        (CountRange(start, end), messages[start:end]),
        (CountComposed(start, end, replayed, summary), composed),
    ):
        assert counter.count(count) == contextbus.estimate_tokens(whole)


async def test_each_message_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    measure = ai_sdk.measure

    def note(message: Any) -> int:
        measured.append(message)
        return measure(message)

    monkeypatch.setattr(ai_sdk, "measure", note)
    messages = [user(f"message {n}") for n in range(100)]
    await compacted(messages, keep=RetentionPolicy(keep_recent_tokens=200), min_shrink=0.1)
    assert len(measured) == 100 + 2  # and the empty and the final summary

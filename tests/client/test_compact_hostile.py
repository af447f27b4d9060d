"""Lists that nobody would write by hand: huge, deep, circular, and everything that generators make."""

from __future__ import annotations

import copy
import time
from types import MappingProxyType
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.compacting import (
    LABEL,
    Counted,
    Message,
    Scripted,
    assistant,
    assistant_of,
    b1,
    call_part,
    compact,
    compacted,
    request_part,
    response_part,
    result_part,
    system,
    tool_of,
    user,
)

import contextbus.client as contextbus
from contextbus.client import CannotFit, Compacted, RetentionPolicy
from contextbus_protocol.errors import InvalidTypeError

MANY = 100_000
ids = st.sampled_from(["a", "b", "c"])
texts = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
more = st.fixed_dictionaries({}, optional={"providerOptions": st.fixed_dictionaries({"p": json_values})})


@st.composite
def messages_of(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(["system", "user", "assistant", "parts", "calls", "tool"]))
    rest = draw(more)
    match kind:
        case "system":
            return {**system(draw(texts)), **rest}
        case "user":
            return {**user(draw(texts)), **rest}
        case "assistant":
            return {**assistant(draw(texts)), **rest}
        case "parts":
            text = {"type": "text", "text": draw(texts), **draw(more)}
            return {**assistant_of(text, {"type": "reasoning", "text": draw(texts)}), **rest}
        case "calls":
            parts = draw(st.lists(ids.map(call_part) | ids.map(request_part), min_size=1, max_size=3))
            return {**assistant_of(*parts), **rest}
        case _:
            parts = draw(st.lists(ids.map(result_part) | ids.map(response_part), min_size=1, max_size=2))
            return {**tool_of(*parts), **rest}


lists = st.lists(messages_of(), max_size=12)


@pytest.mark.rule("C.A.6", "C.A.7", "C.E.7", "C.G.2", "C.D.3", "C.E.1", "C.A.10")
@settings(max_examples=200)
@given(lists, st.integers(1, 6), st.integers(1, 400), st.sampled_from(["", "S", "x" * 300]))
async def test_nothing_is_changed_and_what_stays_is_the_same(
    messages: list[Message], keep: int, target: int, answer: str
) -> None:
    before = copy.deepcopy(messages)
    first = await compact(messages, model=Scripted(answer), target_tokens=target, keep_last_messages=keep)
    assert messages == before
    assert first == await compact(messages, model=Scripted(answer), target_tokens=target, keep_last_messages=keep)
    assert messages == before
    if isinstance(first, CannotFit):
        assert all(a is b for a, b in zip(first.messages, messages, strict=True))
        return
    assert isinstance(first, Compacted)
    start, end = first.replaced_range.start, first.replaced_range.end
    assert 0 <= start < end <= len(messages) - keep
    assert all(m["role"] == "system" for m in messages[:start])
    users = [index for index, m in enumerate(messages) if m["role"] == "user"]
    again = [messages[users[-1]]] if users and start <= users[-1] < end else []
    kept = [*messages[:start], *again, *messages[end:]]
    there = [*first.messages[:start], *first.messages[start + 1 :]]
    assert all(a is b for a, b in zip(there, kept, strict=True))
    assert first.tokens.after == contextbus.estimate_tokens(first.messages) <= target


def freeze(value: Any) -> Any:
    match value:
        case dict():
            return MappingProxyType({key: freeze(item) for key, item in cast("dict[str, Any]", value).items()})
        case [*items]:
            return tuple(map(freeze, items))
        case _:
            return value


@pytest.mark.rule("C.A.7", "C.A.10")
@given(lists, st.integers(1, 4))
async def test_frozen_messages_give_the_same(messages: list[Message], keep: int) -> None:
    models = Scripted("S"), Scripted("S")
    options: dict[str, Any] = {"target_tokens": 10_000, "keep_last_messages": keep}
    plain = await compact(messages, model=models[0], **options)
    frozen = await compact(freeze(messages), model=models[1], **options)
    assert (frozen.status, frozen.tokens) == (plain.status, plain.tokens)
    assert frozen.messages == tuple(m if m == user(f"{LABEL}S") else freeze(m) for m in plain.messages)
    assert models[0].asked == models[1].asked


@pytest.mark.rule("C.A.2", "C.G.14")
@given(lists, st.integers(1, 4))
async def test_what_comes_out_can_go_in_again(messages: list[Message], keep: int) -> None:
    first = await compact(messages, model=Scripted("S"), target_tokens=10_000, keep_last_messages=keep)
    again = await compact(first.messages, model=Scripted("S"), target_tokens=10_000, keep_last_messages=keep)
    assert again.tokens.before == first.tokens.after
    if first.status == "cannot-fit":
        assert again == first


@pytest.mark.timeout(120)
@pytest.mark.rule("C.C.2", "C.D.9")
async def test_a_hundred_thousand_messages_take_seconds() -> None:
    messages: list[Any] = [user("begin")]
    while len(messages) < MANY:
        number = len(messages)
        messages += [
            assistant_of(call_part(f"c{number}")),
            tool_of(result_part(f"c{number}", "row " * 10)),
            user(f"next {number}"),
        ]
    started = time.process_time()
    model = Scripted()
    result = await compacted(
        messages,
        model,
        target_tokens=50_000,
        keep=RetentionPolicy(keep_recent_tokens=20_000, keep_last_turns=3),
    )
    assert time.process_time() - started < 40
    assert result.tokens.before > 1_000_000
    assert result.tokens.after < 20_100
    assert len(model.asked[0].messages) == result.replaced_range.end
    assert all(a is b for a, b in zip(reversed(result.messages[1:]), reversed(messages), strict=False))


@pytest.mark.timeout(60)
@pytest.mark.rule("C.D.13")
async def test_one_id_for_every_call_takes_no_square_time() -> None:
    messages = [user("begin"), *(assistant_of(call_part("same")) for _ in range(20_000)), user("end")]
    messages += [tool_of(result_part("same"), result_part("same")) for _ in range(10_000)]
    started = time.process_time()
    result = await compact(messages, model=Scripted(), target_tokens=10**7, keep_last_messages=1)
    assert time.process_time() - started < 20
    assert result.status == "compacted"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.rule("C.A.5")
async def test_what_json_has_not_is_refused_by_its_place() -> None:
    circular: dict[str, Any] = {"type": "tool-call", "toolCallId": "a", "toolName": "t"}
    circular["input"] = circular
    for broken in (
        {**call_part("a"), "input": nested(5_000)},
        {**call_part("a"), "input": float("nan")},
        {**call_part("a"), "input": {"x": {1, 2}}},
        {**call_part("a"), "input": {5: "x"}},
        {"type": "text", "text": "x", "providerOptions": {"p": float("inf")}},
        {"type": "text", "text": b"x"},
        {"type": "text", "text": float("nan")},
        circular,
        None,
        5,
    ):
        message: Any = {"role": "assistant", "content": [broken]}
        with pytest.raises(InvalidTypeError, match=r"^messages\[1\]\.content\[0\]"):
            await compact([user(), message, user()], model=Scripted(), target_tokens=500, keep_last_messages=1)


async def test_half_a_character_does_no_harm() -> None:
    messages = [user("\ud83d half"), assistant_of({**call_part("\udc00"), "input": {"\ud800": "\ud83d"}}), user("ok")]
    before = copy.deepcopy(messages)
    model = Scripted("a \ud83d b")
    result = await compacted(messages, model, keep_last_messages=1)
    model.asked[0].prompt.encode()
    assert result.summary == "a \ufffd b"
    assert messages == before


async def test_lists_that_a_counter_or_model_changes_are_their_own() -> None:
    messages = b1()

    def grow(given: Any) -> int:
        messages.append(user("meanwhile"))
        return contextbus.estimate_tokens(given)

    counter = Counted(grow)
    result = await compacted(messages, keep_last_messages=2, count_tokens=counter)
    assert [len(given) for given in counter.given] == [4, 3, 3]
    assert len(result.messages) == 3


@pytest.mark.rule("C.A.10")
async def test_calls_at_the_same_time_do_not_meet() -> None:
    results: dict[int, Any] = {}

    async def one(number: int) -> None:
        messages = [user(f"q{number}" * 50), assistant("a"), user("b"), assistant("c")]
        results[number] = await compacted(messages, Scripted(f"S{number}"), keep_last_messages=2)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)
    assert [results[n].summary for n in range(50)] == [f"S{n}" for n in range(50)]

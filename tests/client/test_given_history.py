"""A list that is handed over again and again reads as if it were read whole each time (P.E.9)."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted import MODEL, SCOPE, bus_with

import contextbus.client as contextbus
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.given_history import GivenHistory
from contextbus.core.handle import RunHandle
from contextbus.core.history import digest_message
from contextbus.core.importers.detect import detect, form_of, sign_of
from contextbus.core.importers.neighbours import has_role
from contextbus_protocol.chat import ChatMessage, Text, ToolResult
from contextbus_protocol.errors import InvalidTypeError

Given = list[Any]


class Block(pydantic.BaseModel):
    """A part as an SDK has it."""

    model_config = pydantic.ConfigDict(extra="allow")
    type: str = "text"
    text: str = ""


class Answer(pydantic.BaseModel):
    """A message as an SDK has it."""

    role: str = "assistant"
    content: list[Block] | str | None = None


class Word(str):
    """A text of a type of its own."""

    __slots__ = ()


class Role(enum.StrEnum):
    """A role as a word of an enumeration."""

    USER = "user"


MESSAGES: list[Callable[[], object]] = [
    lambda: {"role": "user", "content": "hi"},
    lambda: {"role": "user", "content": ""},
    lambda: {"content": "other order", "role": "user"},
    lambda: {"role": "system", "content": "Be brief."},
    lambda: {"role": "developer", "content": "Be brief.", "x": 1},
    lambda: {"role": "user", "content": [{"type": "text", "text": "parts"}]},
    lambda: {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y", "detail": "low"}}]},
    lambda: {"role": "assistant", "content": "hello", "refusal": None},
    lambda: {"role": "assistant", "content": None, "tool_calls": [_call("a"), _call("b")]},
    lambda: {"role": "assistant", "content": None, "tool_calls": [_call(None)]},
    lambda: {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    lambda: {"role": "tool", "tool_call_id": "a", "content": "done"},
    lambda: {"role": "tool", "content": "done"},
    lambda: {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"n": 1, "m": [2]}}],
    },
    lambda: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": False}],
    },
    lambda: {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": ""}}],
    },
    lambda: {"role": "user", "content": [{"type": "image", "source": {"type": "other", "a": "1", "b": "2"}}]},
    lambda: {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "s", "toolName": "f", "input": {"n": 1}}],
    },
    lambda: {"role": "tool", "content": [_sdk_result()]},
    lambda: {"role": "user", "content": "x", "providerOptions": {"p": {"a": 1, "b": 2}}},
    lambda: {"role": "model", "parts": [{"text": "hm"}, {"functionCall": {"name": "f", "args": {"n": 1}}}]},
    lambda: {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"r": 1}}}]},
    lambda: {"parts": [{"text": "no role"}]},
    lambda: {"type": "function_call", "call_id": "r", "name": "f", "arguments": "{}"},
    lambda: {"type": "function_call_output", "call_id": "r", "output": "done"},
    lambda: {"type": "message", "role": "user", "content": "an item"},
    lambda: {"type": "user", "uuid": "1", "sessionId": "s", "message": {"role": "user", "content": "of a session"}},
    lambda: {"role": "user", "content": "x", "messages": []},
    lambda: {"role": "nobody", "content": "x"},
    lambda: {"role": "user", "content": 7},
    lambda: {"role": Role.USER, "content": "of an enum"},
    lambda: MappingProxyType({"role": "user", "content": "a mapping"}),
    lambda: OrderedDict[str, str](role="user", content="ordered"),
    lambda: Answer(content="of an SDK"),
    lambda: Answer(content=[Block(type="text", text="block")]),
    lambda: {"role": "assistant", "content": [Block(type="text", text="block of an SDK")]},
    lambda: {
        "role": "assistant",
        "content": None,
        "tool_calls": [Block.model_validate({"type": "function", **_call("z")})],
    },
    lambda: contextbus.user("ours"),
    lambda: contextbus.assistant("ours"),
    lambda: ToolResult(id="a", content=(Text(text="ours"),)),
    lambda: 5,
]


def _call(name: str | None) -> dict[str, object]:
    call: dict[str, object] = {"type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}
    return call if name is None else {"id": name, **call}


def _sdk_result() -> dict[str, object]:
    return {"type": "tool-result", "toolCallId": "s", "toolName": "f", "output": {"type": "json", "value": {"a": 1}}}


def _read(read: Callable[[], object]) -> object:
    try:
        return read()
    except InvalidTypeError as exc:
        return exc.message


def _mutate(value: object, at: int) -> None:
    """Change something within, in place."""
    if isinstance(value, OrderedDict | dict):
        members = cast("dict[str, object]", value)
        name = sorted(members, key=str)[at % len(members)] if members else "more"
        inner = members.get(name)
        if isinstance(inner, dict | list):
            _mutate(cast("object", inner), at // 3)
        elif at % 4 == 0:
            members[name] = 1 if inner is True else float(inner) if type(inner) is int else "changed"
        elif at % 4 == 1:
            members["more"] = at % 3
        elif at % 4 == 2:
            members[name] = members.pop(name)  # last now
        else:
            members.pop(name)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        if items and at % 2:
            _mutate(items[at % len(items)], at // 2)
        else:
            items.append({"type": "text", "text": "more"})
    elif isinstance(value, Answer):
        value.content = f"changed {at}"


CHANGE = st.tuples(
    st.sampled_from(
        ("append", "append", "append", "append", "replace", "insert", "delete", "mutate", "mutate", "copy", "cut")
    ),
    st.integers(0, 40),
    st.sampled_from(MESSAGES),
)


@pytest.mark.rule("P.E.9")
@given(st.lists(st.sampled_from(MESSAGES[:20]), max_size=6), st.lists(CHANGE, min_size=1, max_size=12))
@settings(max_examples=400, deadline=None)
def test_reading_on_gives_what_reading_the_whole_list_gives(
    start: list[Callable[[], object]], changes: list[tuple[str, int, Callable[[], object]]]
) -> None:
    history = GivenHistory()
    listed: Given = [make() for make in start]
    for kind, at, make in [("none", 0, MESSAGES[0]), *changes]:
        place = at % (len(listed) + 1)
        match kind:
            case "append":
                listed.append(make())
            case "insert":
                listed.insert(place, make())
            case "replace":
                listed[place : place + 1] = [make()]
            case "delete":
                del listed[place : place + 1]
            case "cut":
                del listed[place:]
            case "mutate":
                _mutate(listed[place - 1] if listed else None, at)
            case "copy":
                listed = [copy.deepcopy(cast("object", m)) if isinstance(m, dict) else m for m in listed]
            case _:
                pass
        before = list(history.messages)
        found = _read(partial(history.read, listed))
        expected = _read(partial(read_given, listed))
        if isinstance(found, int):
            assert tuple(history.messages) == expected
            assert all(a is b for a, b in zip(before[:found], history.messages[:found], strict=True))
        else:
            assert found == expected
            assert history.messages == before


@pytest.mark.rule("P.E.9")
@given(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=6))
@settings(max_examples=400, deadline=None)
def test_the_form_of_a_list_is_told_by_what_each_message_tells(makes: list[Callable[[], object]]) -> None:
    made = [cast("dict[str, object]", message) for message in (make() for make in makes) if isinstance(message, dict)]
    members = [message for message in made if has_role(message)]
    if members:
        assert form_of(map(sign_of, members)) == detect(members)


NAN = float("nan")
TOOL_USE: dict[str, object] = {"type": "tool_use", "id": "t", "name": "f"}
SEEN: list[tuple[object, object]] = [
    ({"n": 1}, {"n": True}),
    ({"n": 1}, {"n": 1.0}),
    ({"n": 0}, {"n": False}),
    ({"n": 0.0}, {"n": -0.0}),
    ({"n": None}, {"n": 0}),
    ({"n": None}, {"n": "null"}),
    ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}),
    ({"a": {"x": "1", "y": "2"}}, {"a": {"y": "2", "x": "1"}}),
    ({"a": ["1"]}, {"a": ["1", "2"]}),
    ({"a": []}, {"a": {}}),
    ({"n": 2**70}, {"n": 2**70 + 1}),
    ({}, {"more": None}),
    ("[]", {}),
]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("before", "after"), [*SEEN, *((b, a) for a, b in SEEN)])
def test_equal_arguments_of_another_kind_or_order_are_seen(before: object, after: object) -> None:
    history, listed = GivenHistory(), list[Any]([{"role": "assistant", "content": [{**TOOL_USE, "input": before}]}])
    history.read(listed)
    first = history.messages[0]
    listed[0]["content"][0]["input"] = after
    assert history.read(listed) == 0
    assert tuple(history.messages) == read_given(listed)
    assert history.messages[0] != first


@pytest.mark.rule("P.E.9")
def test_what_reads_the_same_is_not_read_again() -> None:
    nan: dict[str, object] = {"role": "user", "content": [{**TOOL_USE, "input": {"n": NAN, "m": [1, -0.0, None, "é"]}}]}
    listed: Given = [make() for make in MESSAGES[:9]] + [nan, Answer(content=[Block(type="text", text="block")])]
    listed += [
        {"role": "assistant", "content": [Block(type="text", text="block")]},
        {"role": Role.USER, "content": Word("word")},
    ]
    history = GivenHistory()
    history.read(listed)
    before = list(history.messages)
    again: Given = copy.deepcopy(listed)
    again[0]["role"] = Word("user")  # equal, and reads the same
    assert history.read(again) == len(listed)
    assert all(a is b for a, b in zip(before, history.messages, strict=True))


@pytest.mark.rule("P.E.9")
def test_a_change_within_an_object_of_an_sdk_is_seen() -> None:
    block = Block(type="text", text="a")
    answer = Answer(content=[block])
    for listed in cast("list[Given]", [[answer], [{"role": "assistant", "content": [block]}]]):
        history = GivenHistory()
        history.read(listed)
        before = history.messages[0]
        cast("list[Block]", answer.content)[0].text += "b"
        block.text += "b"
        assert history.read(listed) == 0
        assert tuple(history.messages) == read_given(listed)
        assert history.messages[0] != before


def test_an_object_that_cannot_be_compared_is_read_again() -> None:
    class Refusing(dict[str, object]):  # noqa: PLW1641  # a dict has no hash either
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of it is ambiguous")

    history, listed = (
        GivenHistory(),
        list[Any]([{"role": "user", "content": "hi"}, {"role": "user", "content": "a"}]),
    )
    history.read(listed)
    listed[1] = Refusing(role="user", content="b")
    assert history.read(listed) == 1
    assert tuple(history.messages) == read_given(listed)


@pytest.mark.rule("P.E.9")
def test_a_list_that_cannot_be_read_changes_nothing_and_names_the_place_of_what_is_wrong() -> None:
    history, listed = GivenHistory(), list[Any]([{"role": "user", "content": str(n)} for n in range(70)])
    history.read(listed)
    with pytest.raises(InvalidTypeError, match=r"messages\[70\].role"):
        history.read([*listed, {"role": "nobody", "content": "x"}])
    assert tuple(history.messages) == read_given(listed)
    assert history.read([*listed, {"role": "user", "content": "more"}]) == 70


@pytest.mark.rule("D.F.19")
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_list_with_blocks_of_ours_gives_the_history_that_reading_it_whole_gives(data: st.DataObject) -> None:
    blocks = [contextbus.user(f"block {n}") for n in range(3)]
    own = frozenset(map(digest_message, blocks))
    texts = [contextbus.user(""), *(contextbus.user(f"text {n}") for n in range(4))]
    one = st.one_of(
        st.sampled_from(blocks),
        st.sampled_from(texts),
        st.integers(0, 3).map(lambda n: {"role": "user", "content": f"dict {n}"}),
    )
    history, handle, plain = GivenHistory(), RunHandle(), RunHandle()
    listed: Given = []
    for _ in range(data.draw(st.integers(1, 6))):
        del listed[data.draw(st.integers(0, len(listed))) if data.draw(st.booleans()) else len(listed) :]
        listed += data.draw(st.lists(one, max_size=4))
        handle = history.hand_over(handle, listed, own)
        plain = plain.hand_over(read_given(listed), own)
        assert (handle.history.chain, handle.kept) == (plain.history.chain, plain.kept)
        match data.draw(st.integers(0, 3)):
            case 0:  # the answer is recorded, and the host has it in its list as a dict of its own
                answer: dict[str, object] = {"role": "user", "content": "dict 0"}
                handle, plain = handle.append(read_given([answer])), plain.append(read_given([answer]))
                listed.append(answer)
            case 1:  # the answer could not be recorded
                count = data.draw(st.integers(0, handle.history.count))
                handle, plain = handle.replace(count, ()), plain.replace(count, ())
            case 2:  # the run is read again
                stored = [m for m in plain.history.messages() if m is not None][: data.draw(st.integers(0, 9))]
                handle, plain = handle.rebase(stored, handle.seen + 1), plain.rebase(stored, plain.seen + 1)
            case _:
                pass
        assert handle.history.chain == plain.history.chain


async def test_a_host_changes_its_own_dicts_between_steps() -> None:
    listed: Given = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}]}]
    async with bus_with() as bus:
        run = await bus.run("one", scope=SCOPE)
        await run.before_model_call(listed, model=MODEL)
        listed[0]["content"][0]["text"] = "Which one is it?"
        listed.append({"role": "assistant", "content": "This one."})
        step = await run.before_model_call(listed, model=MODEL)
        assert run.messages == read_given(listed)
        sent = cast("Any", step.payload("openai").copy())["messages"]
        assert [m["content"] for m in sent[:2]] == ["Which one is it?", "This one."]


def test_bare_results_are_read_once() -> None:
    result = ToolResult(id="c1", content=(Text(text="x"),))
    listed: list[GivenMessage] = [{"role": "user", "content": "hi"}, result]
    history = GivenHistory()
    history.read(listed)
    assert history.messages[1] == ChatMessage(role="tool", content=(result,))
    assert history.read([*listed, contextbus.user("more")]) == 2

"""Breakpoints: where they stand, which of many are sent, and that nothing else of a body depends on them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.conversations import WILD_HISTORIES
from tests.core.payloads import call, codes, result, said, sent

from contextbus.core.breakpoints import put_breakpoints
from contextbus.core.importers import from_anthropic, from_openai
from contextbus.core.payload import Payload, Request, assemble, render, start_rendering
from contextbus.core.persistent import CHUNK
from contextbus_protocol.chat import (
    Cache,
    ChatMessage,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    system,
    user,
)

CONTROL = re.compile(rb',"cache_control":\{[^}]*\}')
CACHES: tuple[Cache, ...] = (True, "5m", "1h")
Body = dict[str, Any]


def marked(message: ChatMessage, cache: Cache = True) -> ChatMessage:
    return msgspec.structs.replace(message, cache=cache)


def control(cache: Cache) -> Body:
    return {"type": "ephemeral"} | ({"ttl": cache} if isinstance(cache, str) else {})


def controls(body: Body) -> list[tuple[str, str | None]]:
    """Every breakpoint of a body in the order of the request: what it stands behind, and its TTL."""
    found: list[tuple[str, str | None]] = []

    def look(value: Any, place: str) -> None:
        if isinstance(value, list):
            for index, item in enumerate(cast("Sequence[Any]", value)):
                look(item, f"{place}.{index}")
        elif isinstance(value, dict):
            members = cast("Body", value)
            for key, item in members.items():
                if key == "cache_control":
                    found.append((place, item.get("ttl")))
                else:
                    look(item, place if key == "content" else f"{place}.{key}".strip("."))

    for key in ("tools", "system", "messages"):
        look(body.get(key), key)
    return found


def asked_of(payload: Payload) -> list[tuple[str, str | None]]:
    body = json.loads(payload.json())
    assert payload.json() == b"".join(payload.chunks())
    assert payload.body == payload.copy() == body
    return controls(body)


def tool(name: str, **more: object) -> Body:
    return {"name": name, "input_schema": {"type": "object"}, **more}


@pytest.mark.rule("P.E.4", "P.E.11")
@pytest.mark.parametrize(
    ("asking", "ttl"),
    [
        ({"cache_control": {"type": "ephemeral"}}, None),
        ({"cache_control": {"type": "ephemeral", "ttl": "5m"}}, "5m"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "1h"),
        ({"_cache_breakpoint": True}, None),
    ],
)
def test_what_is_asked_for_is_sent_where_it_was_asked_for(asking: Body, ttl: str | None) -> None:
    request: Body = {
        "tools": [tool("f", **asking)],
        "system": [{"type": "text", "text": "s", **asking}, {"type": "text", "text": "t"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q", **asking}, {"type": "text", "text": "r"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1", **asking},
                    {"type": "text", "text": "go"},
                ],
            },
        ],
    }
    conversation = from_anthropic(request)
    payload = render(conversation.messages, "anthropic", tools=conversation.tools)
    assert asked_of(payload) == [(p, ttl) for p in ("tools.0", "system.0", "messages.0.0", "messages.2.0")]
    assert codes(payload) == []
    for read in (from_openai, from_anthropic):
        (message,) = read([{"role": "user", "content": [{"type": "text", "text": "q", **asking}]}]).messages
        assert message.content[0].cache == (ttl or True)
        assert message.content[0].provider_data is None
        (message,) = read([{"role": "user", "content": "q", **asking}]).messages
        assert message.cache == (ttl or True)


@pytest.mark.rule("P.E.4")
@pytest.mark.parametrize("cache", CACHES)
def test_a_tool_asks_in_three_ways_and_the_word_itself_is_not_sent(cache: Cache) -> None:
    ttl = cache if isinstance(cache, str) else None
    for more in ({"cache": cache}, {"cache_control": control(cache)}, {"cache": cache, "_cache_breakpoint": True}):
        native = {"type": "web_search_20250305", "name": "web_search", **more}
        for definition in (tool("f", **more), native):
            payload = render([user("q")], "anthropic", tools=[definition])
            assert asked_of(payload) == [("tools.0", ttl)]
            (written,) = json.loads(payload.json())["tools"]
            assert not {"cache", "_cache_breakpoint"} & written.keys()
    assert asked_of(render([user("q")], "anthropic", tools=[tool("f", cache=False), tool("g", cache="2h")])) == []


@pytest.mark.rule("P.E.4")
def test_a_message_that_asks_is_marked_behind_its_last_block_that_may_be() -> None:
    thought = Reasoning(text="hm", signature="s")
    history = [
        marked(said("user", Text(text="q"), Image(url="u"))),
        marked(said("assistant", thought, Text(text="so"), call("a"))),
        marked(said("tool", result("a"))),
        marked(said("assistant", thought, Text(text="so"))),
        user("go"),
    ]
    assert [place for place, _ in asked_of(render(history, "anthropic"))] == [
        "messages.0.1",
        "messages.1.2",
        "messages.2.0",
        "messages.3.1",
    ]
    late = [user("q"), assistant("a"), marked(system("now")), user("go")]
    assert asked_of(render(late, "anthropic")) == [("messages.2.0", None)]
    inside = said("tool", ToolResult(id="a", content=(Text(text="1", cache="1h"), Text(text="2"))))
    answered = render([user("q"), said("assistant", call("a")), inside, user("go")], "anthropic")
    assert asked_of(answered) == [("messages.2.0", "1h")]


@pytest.mark.rule("P.E.4", "anthropic.A15")
def test_no_breakpoint_stands_behind_thinking_or_what_is_not_sent() -> None:
    thought = Reasoning(text="hm", signature="s", cache=True)
    for message in (
        said("assistant", thought, Text(text="so")),
        marked(said("assistant", Reasoning(text="hm", signature="s"))),
        said("assistant", Reasoning(redacted="zip", cache=True), Text(text="so")),
        said("user", Text(text=" ", cache=True), Text(text="so")),
        marked(said("user", Text(text=""))),
        marked(said("user", result("lost"))),
        said("system", Text(text=" ", cache=True), Text(text="t")),
    ):
        payload = render([message, user("q"), assistant("x"), message, user("go")], "anthropic")
        assert asked_of(payload) == []
        assert codes(payload).count("breakpoint") == 2


@pytest.mark.rule("P.E.4", "anthropic.A15")
def test_b52_of_more_than_four_those_of_tools_and_system_and_the_newest_are_sent() -> None:
    turns = [message for n in range(4) for message in (marked(user(f"q{n}")), assistant("a"))]
    layer = marked(said("system", Text(text="s", cache=True), Text(text="t")))
    tools = [tool("f", cache=True), tool("g", cache=True), tool("h")]
    payload = render([layer, *turns, user("go")], "anthropic", tools=tools)
    assert [place for place, _ in asked_of(payload)] == ["tools.1", "system.1", "messages.4.0", "messages.6.0"]
    assert codes(payload) == ["breakpoint"] * 4
    few = render([layer, turns[0]], "anthropic", tools=tools[1:])
    assert [place for place, _ in asked_of(few)] == ["tools.0", "system.0", "system.1", "messages.0.0"]
    assert codes(few) == []
    only = render([*turns, *turns, user("go")], "anthropic")
    assert [place for place, _ in asked_of(only)] == [f"messages.{n}.0" for n in (8, 10, 12, 14)]


@pytest.mark.rule("P.E.4", "anthropic.A15")
def test_b54_an_earlier_one_gets_the_longer_time_of_a_later() -> None:
    history = [
        marked(system("s")),
        marked(user("q"), "5m"),
        marked(assistant("a"), "1h"),
        marked(user("go"), "5m"),
    ]
    payload = render(history, "anthropic")
    assert asked_of(payload) == [
        ("system.0", "1h"),
        ("messages.0.0", "1h"),
        ("messages.1.0", "1h"),
        ("messages.2.0", "5m"),
    ]
    assert codes(payload) == ["breakpoint"] * 2


@pytest.mark.rule("P.E.4", "anthropic.A15")
def test_one_that_is_not_sent_raises_none() -> None:
    turns = [m for n in range(4) for m in (marked(user(f"q{n}"), "5m"), assistant("a"))]
    payload = render([marked(user("first"), "1h"), assistant("a"), *turns, user("go")], "anthropic")
    assert {ttl for _, ttl in asked_of(payload)} == {"5m"}
    assert codes(payload) == ["breakpoint"]


@pytest.mark.rule("anthropic.A15")
def test_the_automatic_one_counts_and_is_the_last() -> None:
    turns = [m for n in range(4) for m in (marked(user(f"q{n}"), "5m"), assistant("a"))]
    payload = render([*turns, user("go")], "anthropic")
    assert len(controls(json.loads(payload.json()))) == 4
    body = json.loads(payload.json(cache_control={"type": "ephemeral"}))
    assert [place for place, _ in controls(body)] == ["messages.2.0", "messages.4.0", "messages.6.0"]
    longest = json.loads(payload.json(cache_control={"type": "ephemeral", "ttl": "1h"}))
    assert {ttl for _, ttl in controls(longest)} == {"1h"}
    of_the_caller = json.loads(payload.json(system="s", cache_control=None))
    assert len(controls(of_the_caller)) == 4


@pytest.mark.rule("P.E.4", "anthropic.A15")
@pytest.mark.parametrize(("ttl", "expected"), [("1h", "1h"), ("5m", "5m")])
def test_those_of_members_that_the_caller_replaces_are_deducted(ttl: str, expected: str) -> None:
    asking: Cache = "5m" if ttl == "1h" else "1h"
    turns = [m for n in range(4) for m in (marked(user(f"q{n}"), asking), assistant("a"))]
    payload = render([marked(system("s")), *turns, user("go")], "anthropic", tools=[tool("f", cache=asking)])
    layer = [{"type": "text", "text": "s", "cache_control": control("1h" if ttl == "1h" else "5m")}]
    tools = [tool("x", cache_control=control(True), cache=3), tool("y", cache_control=control("5m"))]
    found = controls(json.loads(payload.json(system=layer)))
    assert [place for place, _ in found] == ["tools.0", "system.0", "messages.4.0", "messages.6.0"]
    # one before a longer of the caller's is raised, one behind a shorter of the caller's is shortened
    assert found[0][1] == "1h"
    assert {time for _, time in found[2:]} == {"5m"}
    assert found[1][1] == expected
    both = json.loads(payload.json(system=layer[:1], tools=tools))
    assert [place for place, _ in controls(both)] == ["tools.0", "tools.1", "system.0", "messages.6.0"]
    assert controls(both)[-1][1] in (None, "5m")
    full = json.loads(payload.json(system=layer * 2, tools=tools, cache_control=None))
    assert len(controls(full)) == 4
    property_of_a_tool = {"name": "x", "input_schema": {"properties": {"cache_control": {"type": "object"}}}}
    sent_ = payload.breakpoints(tools=[property_of_a_tool])
    assert len(sent_.places) == 4


@pytest.mark.rule("P.E.4")
def test_other_targets_drop_them_all_and_say_so() -> None:
    history = [
        marked(system("s")),
        said("user", Text(text="q", cache=True)),
        marked(said("assistant", call("a"))),
        said("tool", ToolResult(id="a", content=(Text(text="r"),), cache="1h")),
        marked(said("assistant", Text(text="so"))),
    ]
    payload = assemble(
        Request(
            history=start_rendering("openai").extend(history),
            system=(marked(system("t")),),
            tools=json.dumps([tool("f", cache=True)]),
        )
    )
    assert b"cache" not in payload.json()
    assert codes(payload) == ["breakpoint"] * 7
    assert sent(payload)


@pytest.mark.rule("P.E.4", "P.A.5")
def test_what_only_its_provider_knows_holds_none_itself() -> None:
    block = {
        "type": "search_result",
        "source": "s",
        "title": "t",
        "content": [{"type": "text", "text": "x", "cache_control": control("1h")}],
        "cache_control": control("5m"),
    }
    plain = {**block, "content": [{"type": "text", "text": "x"}]}
    del plain["cache_control"]
    (message,) = from_anthropic([{"role": "user", "content": [block]}]).messages
    (part,) = message.content
    assert isinstance(part, Unknown)
    assert (json.loads(part.data), part.cache) == (plain, "5m")
    stored = Unknown(data=json.dumps(block), provider_data=ProviderData("anthropic", "{}"), cache=True)
    assert sent(render([said("user", stored)], "anthropic")) == [
        {"role": "user", "content": [{**plain, "cache_control": control(True)}]}
    ]
    arguments: Body = {
        "type": "server_tool_use",
        "id": "t",
        "name": "n",
        "input": {"cache_control": 1, "content": [{}]},
    }
    answer = from_anthropic([{"role": "user", "content": "q"}, {"role": "assistant", "content": [arguments]}])
    assert sent(render([*answer.messages, user("go")], "anthropic"))[1]["content"] == [arguments]


ASKING = st.sampled_from([False, False, True, "5m", "1h"])


@pytest.mark.rule("P.E.4", "P.K.1", "P.A.4")
@given(
    messages=st.lists(st.tuples(WILD_HISTORIES, ASKING, ASKING), min_size=1, max_size=4),
    long=st.sampled_from([0, CHUNK, 3 * CHUNK]),
)
def test_where_only_breakpoints_differ_a_growing_body_is_byte_identical(
    messages: list[tuple[list[ChatMessage], Cache, Cache]], long: int
) -> None:
    plain, asking = start_rendering("anthropic"), start_rendering("anthropic")
    turns = [user("q"), assistant("a")] * (long // 2)
    plain, asking = plain.extend(turns), asking.extend(marked(turn, "5m") for turn in turns)
    for history, message_cache, part_cache in messages:
        plain = plain.extend(history)
        asking = asking.extend(
            msgspec.structs.replace(
                message,
                cache=message_cache,
                content=tuple(msgspec.structs.replace(part, cache=part_cache) for part in message.content),
            )
            for message in history
        )
        if plain.empty:
            assert asking.empty
            continue
        one, other = assemble(Request(history=plain)), assemble(Request(history=asking))
        assert CONTROL.sub(b"", other.json()) == one.json()
        assert CONTROL.search(b"".join(other.settled.pieces())) is None
        found = asked_of(other)
        assert len(found) <= 4
        assert sorted((ttl == "1h" for _, ttl in found), reverse=True) == [ttl == "1h" for _, ttl in found]
        assert sum(code != "breakpoint" for code in codes(other)) == len(codes(one))


@pytest.mark.rule("P.E.4", "P.K.1")
def test_of_ten_thousand_that_ask_only_the_chunks_of_those_sent_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def count(json: bytes, *args: Any, **kwargs: Any) -> bytes:
        looked.append(json)
        return put_breakpoints(json, *args, **kwargs)

    monkeypatch.setattr("contextbus.core.settled.put_breakpoints", count)
    rendering = start_rendering("anthropic").extend(
        marked(message) for _ in range(5_000) for message in (user("q"), assistant("a"))
    )
    before = rendering.settled.json
    payload = assemble(Request(history=rendering))
    for _ in range(3):
        looked.clear()
        rendering = rendering.extend([marked(user("q")), marked(assistant("a"))])
        payload = assemble(Request(history=rendering, tail=(user("t"),)))
        pieces = payload.chunks()
        assert len(looked) <= 4
        # every chunk but those of the four is the very bytes of the step before
        assert sum(piece is not old for piece, old in zip(pieces[1:], before, strict=False)) <= 1
        assert b"".join(pieces).count(b"cache_control") == 4
    assert len(payload.repairs) - sum(code != "breakpoint" for code in codes(payload)) == 10_006 - 4


@pytest.mark.rule("P.E.4", "P.A.4")
def test_a_breakpoint_behind_all_that_stays_stands_before_the_tail_and_moves_with_the_history() -> None:
    tail = (user("tail"),)
    call = ChatMessage(role="assistant", content=(ToolCall(id="a", name="f"),))
    answer = ChatMessage(role="tool", content=(ToolResult(id="a", content=(Text(text="r"),)),))
    ends = {
        "user": [user("q")],
        "block": [user("q"), user("<retrieved_context/>")],
        "result": [user("q"), call, answer],
        "answer": [user("q"), assistant("a")],
        "unanswered": [user("q"), call],
    }
    for name, messages in ends.items():
        for kept, blocks in ((messages, ()), (messages[:-1], tuple(messages[-1:]))):
            history = start_rendering("anthropic", "claude-opus-4-6").extend(kept)
            plain = assemble(Request(history=history, blocks=blocks, tail=tail)).copy()
            marked = assemble(Request(history=history, blocks=blocks, tail=tail, cache="1h")).copy()
            found = [
                block for m in cast("Any", marked["messages"]) for block in m["content"] if "cache_control" in block
            ]
            control = {"type": "ephemeral", "ttl": "1h"}
            assert [block.pop("cache_control") for block in found] == [control], name
            assert found[0].get("text") != "tail"
            assert (
                found[0]
                == [b for m in cast("Any", plain["messages"]) for b in m["content"] if b.get("text") != "tail"][-1]
            )
            assert marked == plain
            other = start_rendering("openai").extend(kept)
            assert "cache" not in assemble(Request(history=other, blocks=blocks, tail=tail, cache=True)).json().decode()

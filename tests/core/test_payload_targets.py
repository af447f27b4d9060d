"""What the targets make of single messages and tools, and what never leaves."""

from __future__ import annotations

import json
from typing import cast

import pytest
from tests.core.payloads import IN_MESSAGES, TARGETS, call, codes, result, said, sent

from contextbus.core.importers import from_anthropic, from_openai
from contextbus.core.payload import Request, assemble, interleave, render, start_rendering
from contextbus.core.persistent import CHUNK
from contextbus_protocol.chat import (
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    Unknown,
    assistant,
    system,
    user,
)
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError


@pytest.mark.rule("P.A.3")
def test_the_system_layer_goes_first() -> None:
    history = start_rendering("anthropic").extend([system("one"), user("q")])
    payload = assemble(Request(history=history, system=(system("two"), system(""))))
    assert [block["text"] for block in json.loads(payload.json())["system"]] == ["one", "two"]
    history = start_rendering("openai").extend([system("one"), user("q")])
    payload = assemble(Request(history=history, system=(system("two"),), blocks=(user("b"),), tail=(user("t"),)))
    assert [message["content"] for message in sent(payload)] == ["one", "two", "q", "b", "t"]


@pytest.mark.rule("P.A.2", "P.E.3")
@pytest.mark.parametrize("target", TARGETS)
def test_b83_internal_fields_never_leak(target: str) -> None:
    extra: dict[str, object] = {"metadata": {"k": 1}, "timestamp": 5, "_cache_breakpoint": True}
    openai: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": "q", **extra}], **extra},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}, **extra}],
            **extra,
        },
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "r", **extra},
    ]
    anthropic: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": "q", **extra}], **extra},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}, **extra}], **extra},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r", **extra}], **extra},
    ]
    tools: list[dict[str, object]] = [{"name": "f", "parameters": {"type": "object"}, "tags": ["x"], **extra}]
    for conversation in (from_openai(openai), from_anthropic(anthropic)):
        payload = render(conversation.messages, target, tools=tools)
        assert sent(payload)
        for word in (b"metadata", b"timestamp", b"_cache", b"tags"):
            assert word not in payload.json()
        assert (b"cache_control" in payload.json()) is (target == "anthropic")


@pytest.mark.rule("P.E.5")
def test_b22_thinking_goes_back_to_its_issuer_only() -> None:
    blocks: list[dict[str, object]] = [
        {"type": "thinking", "thinking": "hm", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "zip"},
        {"type": "text", "text": "so"},
    ]
    messages = from_anthropic([{"role": "user", "content": "q"}, {"role": "assistant", "content": blocks}]).messages
    assert sent(render([*messages, user("go")], "anthropic"))[1]["content"] == blocks
    payload = render([*messages, user("go")], "openai")
    assert b"hm" not in payload.json()
    assert codes(payload) == ["thinking", "thinking"]
    foreign = Reasoning(text="hm", signature="x", provider_data=ProviderData("gemini", "{}"))
    payload = render([user("q"), said("assistant", foreign, Text(text="so")), user("go")], "anthropic")
    assert codes(payload) == ["thinking"]


@pytest.mark.rule("P.E.8")
@pytest.mark.parametrize("target", TARGETS)
def test_images_and_documents(target: str) -> None:
    parts = (
        Image(media_type="image/png", data="AAAA"),
        Image(url="https://example.org/i.png"),
        Document(media_type="application/pdf", data="BBBB", title="terms.pdf"),
        Document(text="page"),
    )
    messages = sent(render([said("user", *parts)], target))
    wired = json.dumps(messages)
    for expected in ("AAAA", "https://example.org/i.png", "BBBB", "terms.pdf", "page"):
        assert expected in wired
    payload = render([user("q"), said("assistant", parts[0]), user("go")], target)
    assert "AAAA" not in json.dumps(sent(payload))
    assert codes(payload) == ["misplaced"]


@pytest.mark.parametrize("target", IN_MESSAGES)
def test_parts_of_another_provider_are_named_not_sent(target: str) -> None:
    part = Unknown(data='{"type":"input_audio","data":"AAAA"}', provider_data=ProviderData("gemini", "{}"))
    payload = render([said("user", part)], target)
    assert b"AAAA" not in payload.json()
    assert b"input_audio left out" in payload.json()
    assert codes(payload) == ["unknown-part"]
    own = Unknown(data='{"type":"x","data":1}', provider_data=ProviderData(target, "{}"))
    assert json.loads(render([said("user", own)], target).json())["messages"][0]["content"] == [
        {"type": "x", "data": 1}
    ]


@pytest.mark.rule("P.E.3")
def test_tools_are_converted() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"q": {"type": "string"}}}
    shapes: list[dict[str, object]] = [
        {"name": "f", "description": "d", "input_schema": schema},
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "name": "f", "description": "d", "parameters": schema},
        {"name": "f", "description": "d", "inputSchema": schema},
    ]
    for shape in shapes:
        anthropic = json.loads(render([user("q")], "anthropic", tools=[shape]).json())
        assert anthropic["tools"] == [shapes[0]]
        openai = json.loads(render([user("q")], "openai", tools=json.dumps([shape])).json())
        assert openai["tools"] == [shapes[1]]
    native: dict[str, object] = {"type": "web_search_20250305", "name": "web_search"}
    assert json.loads(render([user("q")], "anthropic", tools=[native]).json())["tools"] == [native]
    assert "tools" not in json.loads(render([user("q")], "openai", tools=[native]).json())
    with pytest.raises(InvalidTypeError, match=r"tools\[0\].name"):
        render([user("q")], "openai", tools=[{"description": "d"}])


@pytest.mark.rule("P.E.1")
def test_tools_that_only_the_history_knows_are_defined_for_anthropic() -> None:
    history = [user("q"), said("assistant", call("a", name="look up")), said("tool", result("a"))]
    payload = render(history, "anthropic")
    body = json.loads(payload.json())
    assert [tool["name"] for tool in body["tools"]] == [body["messages"][1]["content"][0]["name"]]
    assert [repair.code for repair in payload.repairs] == ["missing-tools"]
    assert json.loads(payload.json(tools=[]))["tools"] == []


@pytest.mark.rule("P.A.7", "P.E.10")
def test_an_unknown_target_lists_those_there_are() -> None:
    with pytest.raises(TypeError, match="anthropic, gemini, openai"):
        render([user("q")], "mistral")
    with pytest.raises(InvalidTypeError):
        render([user("q")], None)


@pytest.mark.rule("P.A.2")
def test_extra_members_are_the_callers() -> None:
    payload = render([user("q")], "openai")
    assert json.loads(payload.json(model="m", max_tokens=5))["model"] == "m"
    assert list(json.loads(payload.json())) == ["messages"]
    with pytest.raises(InvalidRequestError, match="messages"):
        payload.json(messages=[])


@pytest.mark.rule("P.A.3")
def test_blocks_stand_where_they_were_placed() -> None:
    blocks = [(0, user("b0")), (2, user("b2")), (9, user("end"))]
    placed = interleave([user("a"), assistant("b"), user("c")], blocks)
    assert [cast("Text", message.content[0]).text for message in placed] == ["b0", "a", "b", "b2", "c", "end"]
    assert sent(render(placed, "anthropic"))


@pytest.mark.rule("P.K.1")
@pytest.mark.parametrize("target", IN_MESSAGES)
def test_a_step_shares_everything_settled(target: str) -> None:
    rendering = start_rendering(target)
    for index in range(10 * CHUNK):
        rendering = rendering.extend(
            [user(f"q{index}"), said("assistant", call("same")), said("tool", result("same")), assistant("a")]
        )
    before = assemble(Request(history=rendering, tail=(user("t"),)))
    after = assemble(Request(history=rendering.append(user("new")), tail=(user("t"),)))
    assert json.loads(after.json()) == after.body == after.copy()
    assert len(sent(after)) == len(after.settled) + len(after.last)
    known = {id(piece) for piece in before.chunks()}
    fresh = [piece for piece in after.chunks() if id(piece) not in known]
    assert len(fresh) <= 4
    assert sum(map(len, fresh)) < 2000
    shared = {id(message) for message in cast("list[object]", before.body["messages"])}
    assert sum(id(m) not in shared for m in cast("list[object]", after.body["messages"])) <= 4

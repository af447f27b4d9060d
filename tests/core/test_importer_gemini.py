"""Gemini's importer: what goes in comes out again, in every shape that requests and responses have."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any, cast

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from tests.core.gemini_checker import check_gemini
from tests.core.gemini_requests import Body, valid_requests
from tests.core.sdk_types import check_types

from contextbus.core.importers import Conversation, detect, from_anthropic, from_gemini, from_openai, read_conversations
from contextbus.core.payload import Payload, render
from contextbus.core.targets.gemini import NO_SIGNATURE
from contextbus_protocol.chat import (
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    user,
)
from contextbus_protocol.errors import InvalidTypeError

REQUEST: Body = {
    "systemInstruction": {"parts": [{"text": "be kind"}]},
    "tools": [{"functionDeclarations": [{"name": "f", "description": "d"}, {"name": "g"}]}],
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "look"},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.org/d.pdf"}},
                {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/i.png"}},
                {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"text": "so", "thoughtSignature": "c2ln"},
                {"functionCall": {"name": "f", "args": {"q": "ü"}}, "thoughtSignature": "c2lnMg=="},
                {"functionCall": {"name": "g", "args": {}}},
                {"functionCall": {"name": "f", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"result": "1"}}},
                {"functionResponse": {"name": "g", "response": {"rows": [1, None]}}},
                {"functionResponse": {"name": "f", "response": {"error": "no"}}},
            ],
        },
    ],
}


def parts_of(*parts: Body) -> tuple[object, ...]:
    return from_gemini({"role": "model", "parts": list(parts)}).messages[0].content


def contents_of(payload: Payload) -> list[Body]:
    return cast("list[Body]", payload.copy()["contents"])


def there_and_back(body: Body) -> Body:
    conversation = from_gemini(body)
    payload = render(conversation.messages, "gemini", tools=conversation.tools)
    assert payload.repairs == ()
    return payload.copy()


@pytest.mark.rule("P.E.9", "P.A.5", "P.E.5")
@given(body=valid_requests())
def test_every_valid_request_comes_back(body: Body) -> None:
    assert check_gemini(body) == []
    assert check_types(body, "gemini") == []
    given_body = copy.deepcopy(body)
    assert there_and_back(body) == body == given_body
    assert there_and_back(json.loads(json.dumps(body))) == body


@pytest.mark.rule("P.E.9")
@given(body=valid_requests())
def test_the_names_of_the_python_sdk_are_read_as_well(body: Body) -> None:
    contents = [types.Content.model_validate(content) for content in body["contents"]]
    dumped = [content.model_dump(mode="json", exclude_unset=True) for content in contents]
    snake = {"contents": dumped, "config": {"system_instruction": body.get("systemInstruction")}}
    messages = from_gemini(snake).messages
    assert messages == from_gemini({**snake, "contents": contents}).messages
    sent = render(messages, "gemini")
    assert [types.Content.model_validate(content) for content in contents_of(sent)] == contents
    assert sent.copy().get("systemInstruction") == body.get("systemInstruction")


@pytest.mark.rule("P.E.9", "gemini.G8")
@given(body=valid_requests())
def test_a_missing_signature_is_the_sentinel(body: Body) -> None:
    bare = copy.deepcopy(body)
    for content in bare["contents"]:
        for part in content["parts"]:
            if part.get("thoughtSignature") == NO_SIGNATURE:
                del part["thoughtSignature"]
    assert there_and_back(bare) == body
    assert from_gemini(bare).messages == from_gemini(body).messages


@pytest.mark.rule("P.E.9")
def test_what_each_part_becomes() -> None:
    messages = from_gemini(REQUEST).messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    none = ProviderData("gemini", "{}")
    assert messages[1].content[:4] == (
        Text(text="look"),
        Image(media_type="image/png", data="AAAA", provider_data=none),
        Document(media_type="application/pdf", url="https://example.org/d.pdf", provider_data=none),
        Image(media_type="image/png", file_id="gs://b/i.png", provider_data=none),
    )
    assert isinstance(messages[1].content[4], Unknown)
    thought, said, *calls = messages[2].content
    assert thought == Reasoning(text="hm", provider_data=none)
    assert said == Text(text="so", provider_data=ProviderData("gemini", '{"thoughtSignature":"c2ln"}'))
    ids = [call.id for call in calls if isinstance(call, ToolCall)]
    assert len(set(ids)) == 3
    results = messages[3].content
    assert [(part.id, part.error) for part in results if isinstance(part, ToolResult)] == [
        (ids[0], False),
        (ids[1], False),
        (ids[2], True),
    ]
    assert [part.content[0] for part in results if isinstance(part, ToolResult)] == [
        Text(text="1"),
        Text(text='{"rows":[1,null]}'),
        Text(text="no"),
    ]
    assert from_gemini(REQUEST) == from_gemini(json.dumps(REQUEST)) == from_gemini(json.dumps(REQUEST).encode())


@pytest.mark.rule("P.E.9")
def test_what_a_caller_may_hand_over() -> None:
    content = {"role": "user", "parts": [{"text": "q"}]}
    expected = (user("q"),)
    for data in ("q", '"q"', ["q"], [content], content, {"contents": "q"}, {"contents": content}, [{"text": "q"}]):
        assert from_gemini(data).messages == expected
    assert from_gemini(types.Content.model_validate(content)).messages == expected
    assert from_gemini({"contents": [{"parts": [{"text": "q"}]}]}).messages == expected
    assert from_gemini(["a", {"text": "b"}, content, "c"]).messages == (
        ChatMessage(role="user", content=(Text(text="a"), Text(text="b"))),
        user("q"),
        user("c"),
    )
    for instruction in ("s", {"text": "s"}, {"parts": [{"text": "s"}]}, ["s"], {"role": "system", "parts": ["s"]}):
        assert from_gemini({"contents": [], "system_instruction": instruction}).messages[0].content == (Text(text="s"),)
    raw = {"inline_data": {"mime_type": "image/png", "data": b"\xfb\xff"}}
    assert from_gemini([raw]).messages[0].content[0] == Image(
        media_type="image/png", data="+/8=", provider_data=ProviderData("gemini", "{}")
    )
    marked = from_gemini({"contents": [{"role": "user", "parts": [{"text": "q", "_cache_breakpoint": True}]}]})
    assert marked.messages[0].content == (Text(text="q", cache=True),)


@pytest.mark.rule("P.E.5", "P.E.9")
def test_b20_a_response_names_the_model_that_signed() -> None:
    response: Body = {
        "candidates": [{"content": REQUEST["contents"][1], "finishReason": "STOP"}, {"content": {}}],
        "modelVersion": "models/gemini-3-pro-preview",
        "responseId": "r",
    }
    read = from_gemini(response)
    assert read.id == "r"
    models = [part.provider_data.model if part.provider_data else None for part in read.messages[0].content]
    assert models == ["gemini-3-pro-preview"] * 3 + [None, None]
    assert from_gemini(types.GenerateContentResponse.model_validate(response)).messages == read.messages
    assert (
        from_gemini({"candidates": []}).messages
        == from_gemini({"candidates": [{"finishReason": "SAFETY"}]}).messages
        == ()
    )
    request = [user("q"), *read.messages, *from_gemini(REQUEST).messages[3:]]
    again = render([*request, user("go")], "gemini", "gemini-3-pro-preview")
    assert contents_of(again)[1] == REQUEST["contents"][1]
    elsewhere = render([*request, user("go")], "gemini", "gemini-2.5-flash")
    assert [repair.code for repair in elsewhere.repairs].count("thinking") == 3
    assert b"c2ln" not in elsewhere.json()
    assert elsewhere.json().count(NO_SIGNATURE.encode()) == 1


@pytest.mark.rule("P.E.9", "gemini.G7")
def test_results_are_paired_by_id_and_else_by_name_in_order() -> None:
    def call(name: str, **more: str) -> Body:
        return {"functionCall": {"name": name, **more}}

    def result(name: str, text: str, **more: str) -> Body:
        return {"functionResponse": {"name": name, "response": {"result": text}, **more}}

    calls = {"role": "model", "parts": [call("f"), call("g"), call("f"), call("f", id="x"), call("f", id="y")]}
    answers = [result("f", "y", id="y"), result("f", "1"), result("f", "2"), result("g", "g"), result("f", "x", id="x")]
    read = from_gemini([calls, {"role": "user", "parts": answers}])
    made = [part.id for part in read.messages[0].content if isinstance(part, ToolCall)]
    given_ids = [part.id for part in read.messages[1].content if isinstance(part, ToolResult)]
    assert given_ids == [made[4], made[0], made[2], made[1], made[3]]
    assert made[3:] == ["x", "y"]
    sent = contents_of(render([user("q"), *read.messages], "gemini"))[2]["parts"]
    assert [part["functionResponse"]["response"]["result"] for part in sent] == ["1", "g", "2", "x", "y"]
    orphan = from_gemini([{"role": "user", "parts": [result("f", "lost"), {"text": "q"}]}])
    payload = render(orphan.messages, "gemini")
    assert [repair.code for repair in payload.repairs] == ["orphan-result"]
    assert check_gemini(payload.copy()) == []


@pytest.mark.rule("P.E.9")
def test_one_step_at_a_time_reads_like_all_at_once() -> None:
    steps = [from_gemini([content]).messages[0] for content in REQUEST["contents"]]
    calls = [part.id for part in steps[1].content if isinstance(part, ToolCall)]
    assert len(set(calls)) == 3
    assert (
        render(from_gemini(REQUEST).messages[:3], "gemini").copy()["contents"]
        == render([from_gemini(REQUEST).messages[0], *steps[:2]], "gemini").copy()["contents"]
    )


@pytest.mark.rule("P.E.20", "gemini.G3")
def test_parts_without_data_are_dropped() -> None:
    assert parts_of({"text": ""}, {}, {"text": None}, {"thoughtSignature": "c2ln"}, {"text": "", "thought": True}) == ()
    assert parts_of({"text": "a", "inlineData": None, "thought": False}) == (Text(text="a"),)


@pytest.mark.rule("P.E.8")
def test_media_go_on_to_the_others() -> None:
    messages = from_gemini(REQUEST).messages
    anthropic = render(messages, "anthropic").json()
    assert anthropic.count(b"AAAA") == 1
    assert b"https://example.org/d.pdf" in anthropic
    assert b"gs://b/i.png" not in anthropic
    assert b"inlineData left out" in anthropic
    for body, read in ((anthropic, from_anthropic), (render(messages, "openai").json(), from_openai)):
        assert b"c2ln" not in body
        assert b"be kind" in body
        back = render(read(body).messages, "gemini")
        assert check_gemini(back.copy()) == []
        assert b"AAAA" in back.json()


UNUSABLE: list[tuple[Any, str]] = [
    ("{", "line 1"),
    (5, "conversation"),
    ({"id": "x"}, "contents"),
    ([5], "contents[0]"),
    ([{"role": "robot", "parts": []}], "contents[0].role"),
    ([{"role": "user", "parts": 5}], "contents[0].parts"),
    ([{"role": "user", "parts": [5]}], "contents[0].parts[0]"),
    ([{"role": "user", "parts": [{"text": 5}]}], "contents[0].parts[0].text"),
    ([{"role": "user", "parts": [{"timestamp": 5}]}], "contents[0].parts[0]"),
    ([{"role": "user", "parts": [{"text": "a", "inlineData": {}}]}], "contents[0].parts[0]"),
    ([{"role": "model", "parts": [{"functionCall": {}}]}], "contents[0].parts[0].functionCall.name"),
    ([{"role": "user", "parts": [{"functionResponse": {"response": 5}}]}], "functionResponse.response"),
    ([{"parts": [{"inlineData": {"mimeType": "image/png"}}]}], "contents[0].parts[0].inlineData.data"),
    ([{"parts": [{"fileData": {"mimeType": "image/png"}}]}], "contents[0].parts[0].fileData.fileUri"),
    ({"contents": [], "systemInstruction": {"parts": [{"inlineData": {}}]}}, "systemInstruction.parts[0].text"),
]


@pytest.mark.parametrize(("data", "place"), UNUSABLE)
def test_what_cannot_be_used_is_named(data: object, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_gemini(data)
    assert place in caught.value.message


_KEYS = (
    "role",
    "parts",
    "text",
    "functionCall",
    "functionResponse",
    "name",
    "response",
    "inlineData",
    "data",
    "thought",
)
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["user", "model", "image/png", "x", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(data=_JUNK, parts=_JUNK)
def test_anything_is_read_or_refused_with_a_reason(data: object, parts: object) -> None:
    for value in (data, [{"role": "user", "parts": parts}], [{"role": "model", "parts": [parts]}]):
        for read in (from_gemini, read_conversations):
            with contextlib.suppress(InvalidTypeError):
                assert isinstance(read(value), Conversation | tuple)


RESPONSES: Body = {
    "instructions": "be kind",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "ok"},
    ],
}


FORMS: list[tuple[Any, str]] = [
    (REQUEST, "gemini"),
    (REQUEST["contents"], "gemini"),
    (REQUEST["contents"][1], "gemini"),
    ({"candidates": [{"content": REQUEST["contents"][1]}]}, "gemini"),
    ({"contents": "q"}, "gemini"),
    ({"system_instruction": "s", "contents": [{"parts": [{"text": "q"}]}]}, "gemini"),
    ([{"parts": [{"text": "q"}]}], "gemini"),
    ([REQUEST, REQUEST], "gemini"),
    (RESPONSES, "openai-responses"),
    (RESPONSES["input"], "openai-responses"),
    (RESPONSES["input"][1:], "openai-responses"),
    ({"input": "q", "model": "m"}, "openai-responses"),
    (
        {"object": "response", "output": [{"type": "message", "role": "assistant", "content": []}]},
        "openai-responses",
    ),
    ([{"type": "message", "role": "user", "content": "q"}], "openai-responses"),
    ([{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]}], "openai"),
    ({"messages": [{"role": "user", "parts": [{"type": "text", "text": "q"}], "content": "q"}]}, "openai"),
]


@pytest.mark.parametrize(("data", "provider"), FORMS)
def test_both_new_forms_are_told_apart(data: Any, provider: str) -> None:
    for form in (data, json.dumps(data), json.dumps(data, indent=1).encode()):
        assert detect(form) == provider


def test_files_of_gemini_hold_one_conversation_or_one_a_line() -> None:
    assert read_conversations(REQUEST) == (from_gemini(REQUEST),)
    assert read_conversations(REQUEST["contents"]) == (from_gemini(REQUEST["contents"]),)
    lines = "\n".join(json.dumps(REQUEST) for _ in range(3))
    assert read_conversations(lines) == (from_gemini(REQUEST),) * 3
    contents = "\n".join(json.dumps(content) for content in REQUEST["contents"])
    assert read_conversations(contents) == (from_gemini(REQUEST["contents"]),)

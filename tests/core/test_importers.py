"""Importers: what goes in comes out again, whatever real files hold is read, and what cannot be is named."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.checkers import CHECKERS
from tests.core.conversations import airline, shared_data

from contextbus.core.importers import Conversation, detect, from_anthropic, from_openai, read_conversations
from contextbus.core.payload import render
from contextbus_protocol.chat import Document, Image, Reasoning, Text, ToolCall, ToolResult, Unknown
from contextbus_protocol.errors import InvalidTypeError

Message = dict[str, Any]

PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
ANTHROPIC: Message = {
    "system": [{"type": "text", "text": "be kind"}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": PNG},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/i.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "page"},
                    "title": "t",
                    "context": "c",
                    "citations": {"enabled": True},
                },
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}},
                {"type": "document", "source": {"type": "url", "url": "https://example.org/d.pdf"}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig=="},
                {"type": "redacted_thinking", "data": "zip"},
                {"type": "text", "text": "so", "citations": [{"type": "char_location", "cited_text": "p"}]},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"q": "ü", "n": [1, 2.5, None]}},
                {"type": "tool_use", "id": "b", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": PNG}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "go"},
            ],
        },
    ],
}
OPENAI: Message = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "messages": [
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/i.png"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"filename": "d.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
            "name": "ada",
        },
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"q": "ü"}'}},
                {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{ }"}},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": [{"type": "text", "text": "well"}, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
        {"role": "user", "content": "go"},
    ],
}


@pytest.mark.rule("P.E.9")
def test_an_anthropic_request_comes_back() -> None:
    conversation = from_anthropic(ANTHROPIC)
    payload = render(conversation.messages, "anthropic", tools=conversation.tools)
    assert payload.copy() == ANTHROPIC
    assert payload.repairs == ()


@pytest.mark.rule("P.E.9")
def test_an_openai_request_comes_back() -> None:
    conversation = from_openai(json.dumps(OPENAI))
    payload = render(conversation.messages, "openai", tools=conversation.tools)
    assert payload.copy() == OPENAI
    assert payload.repairs == ()


@pytest.mark.rule("P.E.8", "P.E.1")
def test_each_goes_to_the_other_provider() -> None:
    anthropic = render(from_openai(OPENAI).messages, "anthropic")
    assert CHECKERS["anthropic"](json.loads(anthropic.json())) == []
    for text in (b"be kind", b"AAAA", b"BBBB", b"no", b"well"):
        assert text in anthropic.json()
    openai = render(from_anthropic(ANTHROPIC).messages, "openai")
    assert CHECKERS["openai"](json.loads(openai.json())) == []
    for text in (b"be kind", b"AAAA", b"BBBB", b"page"):
        assert text in openai.json()


@pytest.mark.rule("P.E.9")
def test_custom_and_former_function_calls() -> None:
    custom: list[Message] = [
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "c", "input": "raw {"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    sent = json.loads(render(from_openai(custom).messages, "openai").json())["messages"]
    assert sent[0]["tool_calls"] == custom[0]["tool_calls"]
    former: list[Message] = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "ok"},
    ]
    messages = from_openai(former).messages
    assert messages[1].content == (ToolResult(id="call_0_function", name="f", content=(Text(text="ok"),)),)
    assert messages[0].content == (ToolCall(id="call_0_function", name="f", arguments="{}"),)


def test_calls_and_results_without_ids_are_paired_in_order() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("f", "g")]
    messages: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "g", "content": {"rows": [1]}},
        {"role": "tool", "content": 5},
    ]
    read = from_openai(messages).messages
    assert [cast("ToolCall", part).id for part in read[0].content] == ["call_0_0", "call_0_1"]
    assert [cast("ToolCall", part).arguments for part in read[0].content] == ['{"n":1}', '{"n":1}']
    assert read[1].content == (ToolResult(id="call_0_1", name="g", content=(Text(text='{"rows":[1]}'),)),)
    assert read[2].content == (ToolResult(id="call_0_0", content=(Text(text="5"),)),)


@pytest.mark.rule("P.A.5", "P.E.11")
def test_normalised_on_the_way_in() -> None:
    text = (
        '[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"\\ud83d","x":1}],"y":"\\ud83d"}]'
    )
    for read, provider in ((from_openai, "openai"), (from_anthropic, "anthropic")):
        message = read(text).messages[0]
        part = cast("Text", message.content[0])
        assert (len(message.content), part.text) == (1, "\ufffd")
        assert part.provider_data is not None
        assert (part.provider_data.provider, part.provider_data.data) == (provider, '{"x":1}')
        assert message.provider_data is not None
        assert message.provider_data.data == '{"y":"\ufffd"}'
        marked = read([{"role": "user", "content": "q", "_cache_breakpoint": True}]).messages[0]
        assert (marked.cache, marked.provider_data) == (True, None)
    cached = {"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}
    assert from_anthropic([{"role": "user", "content": [cached]}]).messages[0].content[0].cache


@pytest.mark.rule("P.E.6")
def test_broken_arguments_stay_as_the_model_wrote_them() -> None:
    message: Message = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"q": "hel'}}],
    }
    assert cast("ToolCall", from_openai([message]).messages[0].content[0]).arguments == '{"q": "hel'
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": '{"q": "hel'}]}
    assert cast("ToolCall", from_anthropic([message]).messages[0].content[0]).arguments == '{"q": "hel'


def test_parts_by_their_kind() -> None:
    content = from_anthropic(ANTHROPIC).messages[1].content
    assert content[1:4] == (
        Image(media_type="image/png", data="AAAA"),
        Image(url="https://example.org/i.png"),
        Image(file_id="file_1", provider_data=cast("Image", content[3]).provider_data),
    )
    assert isinstance(content[4], Document)
    assert isinstance(content[7], Unknown)
    assert json.loads(content[7].data) == ANTHROPIC["messages"][0]["content"][7]
    thinking = from_anthropic(ANTHROPIC).messages[2].content
    assert isinstance(thinking[0], Reasoning)
    assert (thinking[0].text, thinking[0].signature) == ("hm", "sig==")


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ("{", "line 1"),
        (5, "conversation"),
        ({"id": "x"}, "messages"),
        ([{"content": "q"}], "messages[0].role"),
        ([{"role": "user", "content": "q"}, {"role": "robot", "content": "q"}], "messages[1].role"),
        (["text"], "messages[0]"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "q"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
    ],
)
def test_what_cannot_be_used_is_named(data: object, place: str) -> None:
    for read in (from_openai, from_anthropic):
        with pytest.raises(InvalidTypeError) as caught:
            read(data)
        assert place in caught.value.message


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}, "messages[0].tool_calls[0].id"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
    ],
)
def test_what_openai_never_writes_is_named(message: Message, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_openai([message])
    assert caught.value.data.field == place


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "tool_use", "name": "f", "input": {}}, "id"),
        ({"type": "tool_result", "content": "x"}, "tool_use_id"),
        ({"type": "image"}, "source"),
        ({"type": "document", "source": {"type": "base64"}}, "source.data"),
        ({"type": "thinking"}, "thinking"),
    ],
)
def test_what_anthropic_never_writes_is_named(block: Message, field: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_anthropic([{"role": "user", "content": [block]}])
    assert caught.value.message.startswith(f"messages[0].content[0].{field}:")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.sampled_from(["user", "assistant", "tool", "text", "x", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "function", "name", "id", "source", "input"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(data=JSON_VALUES, content=JSON_VALUES)
def test_anything_is_read_or_refused_with_a_reason(data: object, content: object) -> None:
    for value in (data, [{"role": "user", "content": content}], [{"role": "assistant", "content": [content]}]):
        for read in (from_openai, from_anthropic, read_conversations):
            with contextlib.suppress(InvalidTypeError):
                assert isinstance(read(value), Conversation | tuple)


def test_an_sdks_own_objects_are_read() -> None:
    class Reply:
        def model_dump(self, **options: object) -> Message:
            assert options == {"mode": "json", "exclude_unset": True}
            return {"id": "msg_1", "role": "assistant", "content": [{"type": "text", "text": "hi"}]}

    assert from_anthropic([Reply()]).messages == from_anthropic(Reply()).messages
    response = {"id": "r", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
    assert from_openai(response).messages[0].content == (Text(text="hi"),)


@pytest.mark.parametrize(
    ("data", "provider", "counts"),
    [
        (OPENAI, "openai", [10]),
        (ANTHROPIC, "anthropic", [4]),
        (OPENAI["messages"], "openai", [10]),
        (ANTHROPIC["messages"], "anthropic", [3]),
        ({"id": "c", "messages": OPENAI["messages"]}, "openai", [10]),
        ([{"id": "c", "messages": OPENAI["messages"]}, {"messages": ANTHROPIC["messages"]}], "openai", [10, 3]),
        ([ANTHROPIC["messages"], OPENAI["messages"]], "anthropic", [3, 10]),
        ({"role": "user", "content": "q"}, "openai", [1]),
    ],
)
def test_files_are_told_apart(data: object, provider: str, counts: list[int]) -> None:
    for form in (
        data,
        json.dumps(data),
        json.dumps(data, indent=1).encode(),
        b"\xef\xbb\xbf" + json.dumps(data).encode(),
    ):
        assert detect(form) == provider
        assert [len(conversation.messages) for conversation in read_conversations(form)] == counts


def test_lines_are_conversations_or_messages() -> None:
    lines = "\n".join(json.dumps({"id": str(n), "messages": OPENAI["messages"]}) for n in range(3)) + "\n\n"
    assert [conversation.id for conversation in read_conversations(lines)] == ["0", "1", "2"]
    messages = "\r\n".join(json.dumps(message) for message in OPENAI["messages"])
    assert len(read_conversations(messages)[0].messages) == 10
    with pytest.raises(InvalidTypeError, match="line 2"):
        read_conversations(lines.replace('{"id": "1"', '{"id": 1"'))
    with pytest.raises(InvalidTypeError, match="messages"):
        detect('{"id": 1}')
    with pytest.raises(InvalidTypeError, match=r"^not JSON: .* in line 1, column 3$"):
        detect(" {x}\n")


@pytest.mark.data
def test_the_real_file_is_read() -> None:
    conversations = airline()
    folder = shared_data()
    assert folder is not None
    data = (folder / "airline" / "conversations.jsonl").read_bytes()
    read = read_conversations(data)
    assert detect(data) == "openai"
    assert [len(conversation.messages) for conversation in read] == [len(messages) for messages in conversations]

"""AI SDK messages: written as they were read, counted by characters (C.B, C.C, P.E.9)."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from tests.core.ai_sdk_messages import CONVERSATIONS, JSON, Object, with_defaults
from tests.core.conversations import WILD_HISTORIES, airline

from contextbus.core.ai_sdk import (
    estimate_tokens,
    has_opaque,
    is_opaque,
    measure,
    serialise,
    tokens_of,
    write_ai_sdk,
)
from contextbus.core.importers import from_ai_sdk, from_anthropic, from_openai
from contextbus.core.json_text import clean_value
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
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
from contextbus_protocol.errors import InvalidTypeError

LABEL = "Previous conversation summary:\n"


def call(name: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=(ToolCall(id=name, name="t"),))


def result(name: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=(ToolResult(id=name, name="t", content=(Text(text=text),)),))


def back(message: Object) -> Object:
    (read,) = from_ai_sdk([message]).messages
    return write_ai_sdk(read)


def exact(value: object) -> str:
    """JSON in which 1, 1.0 and true differ and the order of members does not count."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.rule("P.E.9", "P.A.5", "C.A.6", "C.B.1", "C.B.2", "C.B.3")
@given(CONVERSATIONS)
def test_every_valid_conversation_comes_back(messages: list[Object]) -> None:
    given_ = copy.deepcopy(messages)
    read = from_ai_sdk(messages).messages
    assert messages == given_
    written = [write_ai_sdk(message) for message in read]
    assert exact(written) == exact([with_defaults(message) for message in messages])
    assert from_ai_sdk(json.dumps(written)).messages == from_ai_sdk(written).messages


DEFAULTS: list[tuple[Object, Object]] = [
    ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "user", "content": "hi"}),
    ({"role": "user", "content": []}, {"role": "user", "content": ""}),
    (
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "hi", "x": None}]},
        {"role": "user", "content": "hi"},
    ),
    (
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "a", "toolName": "t"}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "a", "toolName": "t", "input": {}}]},
    ),
    (
        {"role": "user", "content": [{"type": "file", "data": b"\x00", "mediaType": "a/b"}]},
        {"role": "user", "content": [{"type": "file", "data": "AA==", "mediaType": "a/b"}]},
    ),
    (
        {"role": "user", "content": [{"type": "image", "image": {"type": "data", "data": bytearray(b"\x00")}}]},
        {"role": "user", "content": [{"type": "image", "image": {"type": "data", "data": "AA=="}}]},
    ),
    ({"role": "user", "content": "hi", "_cache_breakpoint": True, "x": None}, {"role": "user", "content": "hi"}),
    ({"role": "user", "content": "half \ud83d"}, {"role": "user", "content": "half \ufffd"}),
]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("given_", "written"), DEFAULTS)
def test_what_comes_back_otherwise_is_the_documented_defaults(given_: Object, written: Object) -> None:
    assert back(given_) == written


@pytest.mark.rule("P.A.5", "P.E.9")
def test_provider_data_of_others_and_signatures_are_not_written() -> None:
    other = ProviderData("anthropic", '{"x":1}')
    message = ChatMessage(
        role="assistant",
        content=(
            Text(text="t", provider_data=other, cache=True),
            Reasoning(text="r", signature="s", redacted="z", provider_data=other),
            ToolCall(id="a", name="t", arguments="{broken", provider_data=other),
        ),
        name="ada",
        cache=True,
        provider_data=other,
    )
    assert write_ai_sdk(message) == {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "t"},
            {"type": "reasoning", "text": "r"},
            {"type": "tool-call", "toolCallId": "a", "toolName": "t", "input": "{broken"},
        ],
    }
    alone = ChatMessage(role="user", content=(Text(text="t", provider_data=other),), provider_data=other)
    assert write_ai_sdk(alone) == {"role": "user", "content": "t"}
    own = ChatMessage(role="user", content=(Text(text="t", provider_data=ProviderData("ai-sdk", '{"x":1}')),))
    assert write_ai_sdk(own) == {"role": "user", "content": [{"type": "text", "text": "t", "x": 1}]}


@pytest.mark.rule("C.B.1", "C.B.2")
def test_parts_of_other_origin_have_the_nearest_form() -> None:
    def written(*content: Text | Image | Document | Unknown, error: bool = False) -> object:
        message = ChatMessage(role="tool", content=(ToolResult(id="a", content=content, error=error),))
        (part,) = cast("list[Object]", write_ai_sdk(message)["content"])
        return part["output"]

    one, two = Text(text="1"), Text(text="2")
    assert written() == {"type": "text", "value": ""}
    assert written(one) == {"type": "text", "value": "1"}
    assert written(one, error=True) == {"type": "error-text", "value": "1"}
    assert written(one, two, error=True) == {"type": "error-text", "value": "1\n2"}
    assert written(one, two) == {
        "type": "content",
        "value": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
    }
    assert written(Image(media_type="image/png", data="AA")) == {
        "type": "content",
        "value": [{"type": "file", "mediaType": "image/png", "data": {"type": "data", "data": "AA"}}],
    }
    spoken = ChatMessage(
        role="user",
        content=(
            Image(url="u"),
            Document(text="t", title="n"),
            Document(url="u"),
            Document(file_id="f", provider_data=ProviderData("openai", "{}")),
            Unknown(data='{"type":"input_audio"}'),
            Unknown(data="{"),
        ),
    )
    assert write_ai_sdk(spoken)["content"] == [
        {"type": "file", "mediaType": "image", "data": "u"},
        {"type": "file", "mediaType": "text/plain", "data": {"type": "text", "text": "t"}, "filename": "n"},
        {"type": "file", "mediaType": "application/octet-stream", "data": "u"},
        {
            "type": "file",
            "mediaType": "application/octet-stream",
            "data": {"type": "reference", "reference": {"openai": "f"}},
        },
        {"type": "input_audio"},
        {"type": "unknown", "data": "{"},
    ]
    many = ChatMessage(role="system", content=(one, two))
    assert write_ai_sdk(many) == {"role": "system", "content": "1\n2"}


@pytest.mark.rule("P.E.9")
def test_a_result_whose_content_was_replaced_is_written_as_text() -> None:
    part: Object = {
        "type": "tool-result",
        "toolCallId": "a",
        "toolName": "t",
        "output": {"type": "json", "value": {"rows": [1, 2]}},
        "providerOptions": {"x": {}},
    }
    (message,) = from_ai_sdk([{"role": "tool", "content": [part]}]).messages
    (read,) = message.content
    changed = msgspec.structs.replace(read, content=(Text(text="stub of it"),))
    written = write_ai_sdk(ChatMessage(role="tool", content=(changed,)))
    assert written["content"] == [{**part, "output": {"type": "text", "value": "stub of it"}}]


@pytest.mark.rule("P.E.9", "C.C.2")
@given(WILD_HISTORIES)
def test_any_message_is_written_and_measured(messages: list[ChatMessage]) -> None:
    text = serialise(messages)
    assert json.loads(text) == clean_value([write_ai_sdk(message) for message in messages])
    assert tokens_of([measure(message) for message in messages]) == (-(-len(text) // 4) if messages else 0)


@pytest.mark.rule("C.B.4", "C.B.5")
@pytest.mark.parametrize(
    ("part", "opaque"),
    [
        (Text(text="t"), False),
        (Reasoning(text="t"), False),
        (Reasoning(redacted="t"), False),
        (ToolCall(id="a", name="t"), False),
        (ApprovalRequest(id="p", call_id="a"), False),
        (ApprovalResponse(id="p", approved=False), False),
        (ToolResult(id="a"), False),
        (ToolResult(id="a", content=(Text(text="1"), Text(text="2"))), False),
        (ToolResult(id="a", content=(Text(text="1"), Image(data="AA"))), True),
        (ToolResult(id="a", content=(Document(text="t"),)), True),
        (ToolResult(id="a", content=(Unknown(data='{"type":"custom"}'),)), True),
        (Image(data="AA"), True),
        (Document(text="t"), True),
        (Unknown(data='{"type":"custom"}'), True),
    ],
)
def test_what_is_plain_and_what_is_opaque(part: AnyPart, opaque: bool) -> None:
    assert is_opaque(part) is opaque
    message = ChatMessage(role="assistant", content=(Text(text="t"), part))
    assert has_opaque(message) is opaque
    if opaque:
        with pytest.raises(TypeError, match=r"messages\[1\].content: .*pass count_tokens") as caught:
            estimate_tokens([user("q"), message])
        assert isinstance(caught.value, InvalidTypeError)
        assert caught.value.data.field == "messages[1].content"
    else:
        assert estimate_tokens([message]) > 0


@pytest.mark.rule("C.B.4", "C.B.5", "C.C.3")
@pytest.mark.parametrize(
    ("role", "part", "opaque"),
    [
        ("user", {"type": "image", "image": "AA=="}, True),
        ("user", {"type": "file", "data": "AA==", "mediaType": "text/plain"}, True),
        ("assistant", {"type": "reasoning-file", "data": "AA==", "mediaType": "text/plain"}, True),
        ("assistant", {"type": "custom", "kind": "openai.compaction"}, True),
        ("assistant", {"type": "soon-there"}, True),
        ("assistant", {"type": "reasoning", "text": "hm"}, False),
        ("assistant", {"type": "tool-approval-request", "approvalId": "p", "toolCallId": "a"}, False),
        ("tool", {"type": "tool-approval-response", "approvalId": "p", "approved": True}, False),
    ],
)
def test_parts_of_the_ai_sdk_are_plain_or_opaque(role: str, part: Object, opaque: bool) -> None:
    (message,) = from_ai_sdk([{"role": role, "content": [part]}]).messages
    assert has_opaque(message) is opaque


@pytest.mark.rule("C.B.4", "C.B.2")
@pytest.mark.parametrize(
    ("output", "opaque"),
    [
        ({"type": "text", "value": "t"}, False),
        ({"type": "json", "value": {"a": [1]}}, False),
        ({"type": "json", "value": None}, False),
        ({"type": "execution-denied"}, False),
        ({"type": "error-text", "value": "t"}, False),
        ({"type": "error-json", "value": 5}, False),
        ({"type": "content", "value": []}, False),
        ({"type": "content", "value": [{"type": "text", "text": "t"}]}, False),
        ({"type": "content", "value": [{"type": "text", "text": "t"}, {"type": "custom"}]}, True),
        ({"type": "content", "value": [{"type": "media", "data": "AA", "mediaType": "text/plain"}]}, True),
        ({"type": "content", "value": [{"type": "file-id", "fileId": "f"}]}, True),
    ],
)
def test_outputs_are_plain_or_opaque_and_come_back(output: Object, opaque: bool) -> None:
    part = {"type": "tool-result", "toolCallId": "a", "toolName": "t", "output": output}
    message: Object = {"role": "tool", "content": [part]}
    (read,) = from_ai_sdk([message]).messages
    assert has_opaque(read) is opaque
    assert isinstance(read.content[0], ToolResult)
    assert read.content[0].error is (output["type"] in ("execution-denied", "error-text", "error-json"))
    assert write_ai_sdk(read) == message


@pytest.mark.rule("C.C.1", "C.C.2", "C.C.8")
def test_vectors_of_the_estimate() -> None:
    assert estimate_tokens([]) == 0
    assert serialise([]) == "[]"
    assert serialise([user("hi")]) == '[{"role":"user","content":"hi"}]'
    assert estimate_tokens([user("hi")]) == 8
    odd = [user('a\u2028"\n\x01\U0001f600')]
    assert serialise(odd) == '[{"role":"user","content":"a\u2028\\"\\n\\u0001\U0001f600"}]'
    assert len(serialise(odd)) == 43
    assert estimate_tokens(odd) == 11


@pytest.mark.rule("C.C.1", "C.C.2")
def test_vectors_of_the_budget() -> None:
    first = [user("R" * 400), assistant("S" * 400), user("keep me"), assistant("ok")]
    assert estimate_tokens(first) == 234
    empty = [user(LABEL), *first[2:]]
    assert len(serialise(empty)) == 134
    assert estimate_tokens(empty) == 34
    assert estimate_tokens([user(LABEL + "Short."), *first[2:]]) == 35
    second = [user("find it"), call("k"), result("k", "x" * 200), call("l"), result("l", "y" * 10)]
    assert estimate_tokens(second) == 170
    assert estimate_tokens([user(LABEL), second[0], *second[3:]]) == 81
    assert [estimate_tokens(second[1:]), estimate_tokens(second[3:])] == [161, 57]
    assert estimate_tokens(from_ai_sdk([write_ai_sdk(message) for message in second]).messages) == 170


@pytest.mark.rule("C.C.2")
def test_the_form_that_counts() -> None:
    half = user("\ud83d")
    assert serialise([half]) == '[{"role":"user","content":"\ufffd"}]'
    pair = user("\ud83d\ude00")
    assert measure(pair) == measure(half)
    listed = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert serialise(from_ai_sdk([listed]).messages) == '[{"role":"user","content":"hi"}]'
    asked = '[{"role":"assistant","content":[{"type":"tool-call","toolCallId":"a","toolName":"t","input":{"é":1}}]}]'
    written = ChatMessage(role="assistant", content=(ToolCall(id="a", name="t", arguments='{ "\\u00e9" : 1 }'),))
    assert serialise([written]) == asked
    response = ChatMessage(role="tool", content=(ApprovalResponse(id="p", approved=True),))
    assert serialise([response]) == (
        '[{"role":"tool","content":[{"type":"tool-approval-response","approvalId":"p","approved":true}]}]'
    )
    assert serialise([system("a/b\x7f")]) == '[{"role":"system","content":"a/b\x7f"}]'


@pytest.mark.rule("C.C.2")
@given(JSON)
def test_json_is_as_long_as_the_compact_form_of_it(value: Any) -> None:
    message: Object = {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "a", "toolName": "t", "input": value}],
    }
    text = serialise(from_ai_sdk([message]).messages)
    assert json.loads(text) == [message]
    around = {**message, "content": [{**message["content"][0], "input": 0}]}
    inner = msgspec.json.encode(value).decode()
    assert len(text) == len(serialise(from_ai_sdk([around]).messages)) - 1 + len(inner)


@pytest.mark.rule("C.C.9")
@pytest.mark.parametrize("word", ["<|endoftext|>", "<|im_start|>", "<|fim_prefix|>", "[INST]", "</s>"])
def test_control_strings_of_tokenizers_are_ordinary_characters(word: str) -> None:
    plain = "x" * len(word)
    assert estimate_tokens([user(word)]) == estimate_tokens([user(plain)])
    assert estimate_tokens([call(word), result(word, word)]) == estimate_tokens([call(plain), result(plain, plain)])


@pytest.mark.rule("C.C.1")
def test_lengths_kept_by_the_caller_give_the_same_count() -> None:
    messages = [user("one"), assistant("two"), user("three \U0001f600")]
    lengths = [measure(message) for message in messages]
    for count in range(4):
        assert tokens_of(lengths[:count]) == estimate_tokens(messages[:count])


@pytest.mark.data
@pytest.mark.rule("C.C.1", "P.E.9")
def test_real_conversations_are_counted_and_come_back() -> None:
    for conversation in airline()[:20]:
        messages = from_openai(conversation).messages
        text = serialise(messages)
        assert estimate_tokens(messages) == -(-len(text) // 4)
        again = from_ai_sdk(text).messages
        assert serialise(again) == text


@pytest.mark.rule("C.B.1", "C.C.2")
def test_results_of_anthropic_are_a_tools_message() -> None:
    block = {"type": "tool_result", "tool_use_id": "a", "content": "r", "is_error": True}
    (message,) = from_anthropic([{"role": "user", "content": [block]}]).messages
    assert serialise([message]) == (
        '[{"role":"tool","content":[{"type":"tool-result","toolCallId":"a","toolName":"",'
        '"output":{"type":"error-text","value":"r"}}]}]'
    )

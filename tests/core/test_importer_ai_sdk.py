"""Reading AI SDK messages: what parts become, what is refused and how, and what tells the form (C.B, C.A.5, C.A.6)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from tests.core.ai_sdk_messages import CALL, CONVERSATIONS, TOOL_RESULT, Object

from contextbus.client.given import read_given
from contextbus.core.importers import detect, from_ai_sdk, read_conversations
from contextbus.core.wire import DENIED
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
    system,
    user,
)
from contextbus_protocol.errors import InvalidTypeError

NOTHING = ProviderData("ai-sdk", "{}")


def read_part(role: str, part: object) -> AnyPart:
    (message,) = from_ai_sdk([{"role": role, "content": [part]}]).messages
    return message.content[0]


def without_origin(part: AnyPart) -> object:
    return {name: getattr(part, name) for name in part.__struct_fields__ if name != "provider_data"}


@pytest.mark.rule("P.E.9", "C.B.1", "C.B.3", "C.A.6")
@pytest.mark.parametrize(
    ("role", "part", "read"),
    [
        ("user", {"type": "text", "text": "t"}, Text(text="t")),
        ("assistant", {"type": "reasoning", "text": ""}, Reasoning(provider_data=NOTHING)),
        ("assistant", CALL, ToolCall(id="a", name="t", arguments='{"q":1}')),
        ("assistant", {**CALL, "input": "raw"}, ToolCall(id="a", name="t", arguments='"raw"')),
        ("assistant", {**CALL, "input": None}, ToolCall(id="a", name="t", arguments="null")),
        ("tool", TOOL_RESULT, ToolResult(id="a", name="t", content=(Text(text="r"),))),
        ("assistant", TOOL_RESULT, ToolResult(id="a", name="t", content=(Text(text="r"),))),
        (
            "assistant",
            {"type": "tool-approval-request", "approvalId": "p", "toolCallId": "a"},
            ApprovalRequest(id="p", call_id="a"),
        ),
        (
            "tool",
            {"type": "tool-approval-response", "approvalId": "p", "approved": False, "reason": "no"},
            ApprovalResponse(id="p", approved=False, reason="no"),
        ),
        (
            "user",
            {"type": "file", "data": "AA", "mediaType": "image/png"},
            Image(media_type="image/png", data="AA"),
        ),
        (
            "user",
            {"type": "file", "data": "AA", "mediaType": "application/pdf", "filename": "f"},
            Document(media_type="application/pdf", data="AA", title="f"),
        ),
    ],
)
def test_a_part_is_read_with_every_member(role: str, part: Object, read: AnyPart) -> None:
    assert read_part(role, part) == read
    more = read_part(role, {**part, "providerOptions": {"x": {"y": 1}}, "z": None})
    assert more.provider_data == ProviderData("ai-sdk", '{"providerOptions":{"x":{"y":1}}}')
    assert without_origin(more) == without_origin(read)


@pytest.mark.rule("P.E.9", "C.B.1")
@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"type": "image", "image": "AA"}, Image(data="AA")),
        ({"type": "image", "image": "AA", "mediaType": "image/png"}, Image(data="AA", media_type="image/png")),
        ({"type": "image", "image": "https://u"}, Image(url="https://u")),
        ({"type": "image", "image": "data:image/png;base64,AA"}, Image(data="AA", media_type="image/png")),
        (
            {"type": "file", "mediaType": "image", "data": {"type": "url", "url": "https://u"}},
            Image(url="https://u", media_type="image"),
        ),
        (
            {"type": "file", "mediaType": "text/plain", "data": {"type": "text", "text": "t"}},
            Document(text="t", media_type="text/plain"),
        ),
        (
            {"type": "file", "mediaType": "a/b", "filename": "f", "data": {"type": "data", "data": "AA"}},
            Document(data="AA", media_type="a/b", title="f"),
        ),
    ],
)
def test_media_are_images_and_documents_in_whatever_form(part: Object, read: AnyPart) -> None:
    found = read_part("user", part)
    assert without_origin(found) == without_origin(read)
    assert found.provider_data is not None
    assert "AA" not in found.provider_data.data  # data are kept once


@pytest.mark.rule("P.E.9", "C.B.5", "C.A.6")
@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("assistant", {"type": "custom", "kind": "openai.compaction", "providerOptions": {"openai": {"id": "x"}}}),
        ("assistant", {"type": "reasoning-file", "data": "AA", "mediaType": "image/png"}),
        ("assistant", {"type": "soon-there", "x": [1, None]}),
        ("user", {"type": "soon-there"}),
        ("tool", {"type": "soon-there", "data": {"type": "data"}}),
        ("user", {"type": "image", "image": {"openai": "file-1"}}),
        ("user", {"type": "file", "mediaType": "a/b", "data": {"type": "reference", "reference": {"openai": "f"}}}),
    ],
)
def test_what_we_do_not_look_into_is_kept_whole(role: str, part: Object) -> None:
    read = read_part(role, part)
    assert isinstance(read, Unknown)
    assert json.loads(read.data) == part
    assert read.provider_data == NOTHING


@pytest.mark.rule("C.B.2", "P.E.9")
@pytest.mark.parametrize(
    ("output", "content", "error"),
    [
        ({"type": "text", "value": ""}, (), False),
        ({"type": "json", "value": {"a": None}}, (Text(text='{"a":null}'),), False),
        ({"type": "error-text", "value": "e"}, (Text(text="e"),), True),
        ({"type": "error-json", "value": ""}, (Text(text='""'),), True),
        ({"type": "execution-denied"}, (Text(text=DENIED),), True),
        ({"type": "execution-denied", "reason": "no"}, (Text(text="no"),), True),
        ({"type": "content", "value": [{"type": "text", "text": "c"}]}, (Text(text="c"),), False),
    ],
)
def test_outputs_become_content(output: Object, content: tuple[AnyPart, ...], error: bool) -> None:
    read = read_part("tool", {**TOOL_RESULT, "output": output})
    assert isinstance(read, ToolResult)
    assert (read.content, read.error) == (content, error)


@pytest.mark.rule("P.E.11", "P.E.4")
def test_breakpoints_are_read() -> None:
    part: Object = {"type": "text", "text": "t"}
    for asked in (
        {"_cache_breakpoint": True},
        {"providerOptions": {"anthropic": {"cacheControl": {"type": "ephemeral"}}}},
        {"providerOptions": {"anthropic": {"cache_control": {"type": "ephemeral"}}}},
    ):
        assert read_part("user", {**part, **asked}).cache
        assert from_ai_sdk([{"role": "user", "content": "t", **asked}]).messages[0].cache
    assert not read_part("user", {**part, "providerOptions": {"anthropic": {}, "openai": {"cacheControl": {}}}}).cache
    assert not read_part("user", {**part, "providerOptions": 5}).cache


@pytest.mark.rule("P.E.9")
def test_an_object_with_messages_and_more() -> None:
    read = from_ai_sdk(
        {
            "id": "c",
            "system": "be brief",
            "instructions": [{"role": "system", "content": "be kind"}],
            "messages": [{"role": "user", "content": "q"}],
            "tools": {"t": {"description": "d", "inputSchema": {"type": "object"}}},
        }
    )
    assert read.messages == (system("be brief"), system("be kind"), user("q"))
    assert read.id == "c"
    assert json.loads(read.tools or "") == [{"description": "d", "inputSchema": {"type": "object"}, "name": "t"}]
    assert from_ai_sdk({"messages": [], "tools": [{"name": "t"}]}).tools == '[{"name":"t"}]'
    assert from_ai_sdk({"role": "user", "content": "q"}).messages == (user("q"),)
    assert from_ai_sdk('[{"role":"user","content":"q"}]') == from_ai_sdk(b'[{"role":"user","content":"q"}]')


ONLY_AI_SDK: list[Object] = [
    {"role": "assistant", "content": [CALL]},
    {"role": "tool", "content": [TOOL_RESULT]},
    {"role": "tool", "content": [{"type": "tool-approval-response", "approvalId": "p", "approved": True}]},
    {"role": "assistant", "content": [{"type": "tool-approval-request", "approvalId": "p", "toolCallId": "a"}]},
    {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}]},
    {"role": "assistant", "content": [{"type": "custom", "kind": "a.b"}]},
    {"role": "user", "content": [{"type": "file", "data": "AA", "mediaType": "a/b"}]},
    {"role": "user", "content": [{"type": "image", "image": "AA"}]},
    {"role": "user", "content": "q", "providerOptions": {}},
    {"role": "user", "content": [{"type": "text", "text": "q", "providerOptions": {}}]},
]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("message", ONLY_AI_SDK)
def test_what_only_the_ai_sdk_writes_tells_it(message: Object) -> None:
    before: Object = {"role": "user", "content": [{"type": "text", "text": "q"}]}
    for form in (
        [before, message],
        {"messages": [before, message]},
        {"messages": [message], "system": "s"},
        json.dumps([message]),
    ):
        assert detect(form) == "ai-sdk"
        assert read_conversations(form) == (from_ai_sdk(form),)
    read = read_given([before, message])
    assert read == from_ai_sdk([before, message]).messages


OTHERS: list[tuple[Object, str]] = [
    ({"role": "user", "content": [{"type": "image", "source": {}}]}, "anthropic"),
    ({"role": "user", "content": [{"type": "image"}]}, "anthropic"),
    ({"role": "user", "content": [{"type": "thinking", "thinking": "t", "providerOptions": {}}]}, "anthropic"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}, "mediaType": "a/b"}]}, "openai"),
    ({"role": "assistant", "content": [{"type": "reasoning", "summary": [], "text": "t"}]}, "openai"),
    ({"role": "assistant", "content": [{"type": "custom", "custom": {}}]}, "openai"),
    ({"role": "assistant", "content": [{"type": "tool-call"}], "tool_calls": []}, "openai"),
    ({"role": "tool", "content": [{"type": "tool-result"}], "tool_call_id": "a"}, "openai"),
    ({"role": "tool", "content": []}, "openai"),
    ({"role": "user", "content": "q"}, "openai"),
]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("message", "provider"), OTHERS)
def test_what_others_write_stays_theirs(message: Object, provider: str) -> None:
    assert detect([message]) == provider


@pytest.mark.rule("P.E.9")
@given(CONVERSATIONS)
def test_no_conversation_of_the_ai_sdk_is_taken_for_anthropics(messages: list[Object]) -> None:
    assert detect(messages) != "anthropic"


@pytest.mark.rule("P.E.9")
def test_given_messages_mix_with_ours() -> None:
    own = ChatMessage(role="user", content=(Text(text="q"),))
    read = read_given([own, {"role": "assistant", "content": [CALL]}, {"role": "tool", "content": [TOOL_RESULT]}, own])
    assert read[0] is own
    assert read[1].content == (ToolCall(id="a", name="t", arguments='{"q":1}'),)
    assert read[2].content == (ToolResult(id="a", name="t", content=(Text(text="r"),)),)
    with pytest.raises(InvalidTypeError, match=r"messages\[0\].content\[0\].toolName"):
        read_given([own, {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "a"}]}])

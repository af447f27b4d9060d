"""Reading AI SDK messages: what parts become, what is refused and how, and what tells the form (C.B, C.A.5, C.A.6)."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ai_sdk_messages import CONVERSATIONS, Object

from contextbus.client.given import read_given
from contextbus.core.ai_sdk import write_ai_sdk
from contextbus.core.importers import Conversation, detect, from_ai_sdk, read_conversations
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
CALL: Object = {"type": "tool-call", "toolCallId": "a", "toolName": "t", "input": {"q": 1}}
TOOL_RESULT: Object = {
    "type": "tool-result",
    "toolCallId": "a",
    "toolName": "t",
    "output": {"type": "text", "value": "r"},
}


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


def part_in(role: str, part: object) -> list[object]:
    return [{"role": "user", "content": "q"}, {"role": role, "content": [{"type": "soon-there"}, part]}]


AT = "messages[1].content[1]"
MALFORMED: list[tuple[object, str]] = [
    (5, "input:"),
    ({}, "messages:"),
    ([5], "messages[0]:"),
    ([{"content": "q"}], "messages[0].role:"),
    ([{"role": "developer", "content": "q"}], "messages[0].role:"),
    ([{"role": "user"}], "messages[0].content:"),
    ([{"role": "user", "content": {"type": "text"}}], "messages[0].content:"),
    ([{"role": "system", "content": [{"type": "text", "text": "t"}]}], "messages[0].content:"),
    ([{"role": "tool", "content": "r"}], "messages[0].content:"),
    ({"messages": [], "system": {"role": "user", "content": "q"}}, "system.role:"),
    ({"messages": [], "tools": 5}, "tools:"),
    (part_in("user", 5), f"{AT}:"),
    (part_in("user", "t"), f"{AT}:"),
    (part_in("user", {}), f"{AT}.type:"),
    (part_in("user", {"type": 5}), f"{AT}.type:"),
    (part_in("user", {"type": "text"}), f"{AT}.text:"),
    (part_in("user", {"type": "text", "text": ["t"]}), f"{AT}.text:"),
    (part_in("user", {"type": "image"}), f"{AT}.image:"),
    (part_in("user", {"type": "image", "image": 5}), f"{AT}.image:"),
    (part_in("user", {"type": "image", "image": "AA", "mediaType": 5}), f"{AT}.mediaType:"),
    (part_in("user", {"type": "image", "image": {"openai": 5}}), f"{AT}.image:"),
    (part_in("user", {"type": "file", "data": "AA"}), f"{AT}.mediaType:"),
    (part_in("user", {"type": "file", "mediaType": "a/b"}), f"{AT}.data:"),
    (part_in("user", {"type": "file", "mediaType": "a/b", "data": "AA", "filename": 5}), f"{AT}.filename:"),
    (part_in("user", {"type": "file", "mediaType": "a/b", "data": {"type": "data"}}), f"{AT}.data.data:"),
    (part_in("user", {"type": "file", "mediaType": "a/b", "data": {"type": "url"}}), f"{AT}.data.url:"),
    (part_in("user", {"type": "file", "mediaType": "a/b", "data": {"type": "text"}}), f"{AT}.data.text:"),
    (part_in("user", {"type": "file", "mediaType": "a/b", "data": {"type": "reference"}}), f"{AT}.data.reference:"),
    (part_in("assistant", {"type": "reasoning"}), f"{AT}.text:"),
    (part_in("assistant", {"type": "reasoning-file", "data": "AA"}), f"{AT}.mediaType:"),
    (part_in("assistant", {"type": "reasoning-file", "mediaType": "a/b"}), f"{AT}.data:"),
    (part_in("assistant", {"type": "custom"}), f"{AT}.kind:"),
    *((part_in("assistant", {**CALL, name: 5}), f"{AT}.{name}:") for name in ("toolCallId", "toolName")),
    *((part_in("assistant", {**CALL, name: None}), f"{AT}.{name}:") for name in ("toolCallId", "toolName")),
    *((part_in("tool", {**TOOL_RESULT, name: None}), f"{AT}.{name}:") for name in ("toolCallId", "toolName", "output")),
    (part_in("tool", {**TOOL_RESULT, "output": "r"}), f"{AT}.output:"),
    (part_in("tool", {**TOOL_RESULT, "output": {}}), f"{AT}.output.type:"),
    (part_in("tool", {**TOOL_RESULT, "output": {"type": "new", "value": 1}}), f"{AT}.output.type:"),
    *(
        (part_in("tool", {**TOOL_RESULT, "output": {"type": kind}}), f"{AT}.output.value:")
        for kind in ("text", "json", "error-text", "error-json", "content")
    ),
    (part_in("tool", {**TOOL_RESULT, "output": {"type": "text", "value": 5}}), f"{AT}.output.value:"),
    (part_in("tool", {**TOOL_RESULT, "output": {"type": "execution-denied", "reason": 5}}), f"{AT}.output.reason:"),
    *(
        (part_in("tool", {**TOOL_RESULT, "output": {"type": "content", "value": [item]}}), f"{AT}.output.value[0]{at}:")
        for item, at in (
            (5, ""),
            ({}, ".type"),
            ({"type": "text"}, ".text"),
            ({"type": "media", "data": "AA"}, ".mediaType"),
            ({"type": "image-data", "mediaType": "image/png"}, ".data"),
            ({"type": "file-url"}, ".url"),
            ({"type": "file", "mediaType": "a/b"}, ".data"),
        )
    ),
    (part_in("assistant", {"type": "tool-approval-request", "toolCallId": "a"}), f"{AT}.approvalId:"),
    (part_in("assistant", {"type": "tool-approval-request", "approvalId": "p"}), f"{AT}.toolCallId:"),
    (part_in("tool", {"type": "tool-approval-response", "approved": True}), f"{AT}.approvalId:"),
    (part_in("tool", {"type": "tool-approval-response", "approvalId": "p"}), f"{AT}.approved:"),
    (part_in("tool", {"type": "tool-approval-response", "approvalId": "p", "approved": 1}), f"{AT}.approved:"),
    (
        part_in("tool", {"type": "tool-approval-response", "approvalId": "p", "approved": True, "reason": 5}),
        f"{AT}.reason:",
    ),
]


@pytest.mark.rule("C.A.5", "C.B.1", "C.B.2", "C.B.3")
@pytest.mark.parametrize(("data", "place"), MALFORMED)
def test_what_is_malformed_is_refused_with_its_place(data: object, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_ai_sdk(data)
    assert caught.value.message.startswith(place)
    assert caught.value.data.field == place[:-1]


WHOLE: dict[str, Object] = {
    "text": {"text": "t"},
    "image": {"image": "AA"},
    "file": {"data": "AA", "mediaType": "a/b"},
    "reasoning": {"text": "t"},
    "reasoning-file": {"data": "AA", "mediaType": "a/b"},
    "custom": {"kind": "a.b"},
    "tool-call": CALL,
    "tool-result": TOOL_RESULT,
    "tool-approval-request": {"approvalId": "p", "toolCallId": "a"},
    "tool-approval-response": {"approvalId": "p", "approved": True},
}
ALLOWED = {
    "user": ("text", "image", "file"),
    "assistant": (
        *("text", "reasoning", "file", "reasoning-file", "custom"),
        *("tool-call", "tool-result", "tool-approval-request"),
    ),
    "tool": ("tool-result", "tool-approval-response"),
}


@pytest.mark.rule("C.B.1", "C.A.5")
@pytest.mark.parametrize("role", ALLOWED)
@pytest.mark.parametrize("kind", WHOLE)
def test_each_role_has_its_parts(role: str, kind: str) -> None:
    part = {**WHOLE[kind], "type": kind}
    if kind in ALLOWED[role]:
        read_part(role, part)
        return
    with pytest.raises(InvalidTypeError) as caught:
        read_part(role, part)
    assert caught.value.message.startswith("messages[0].content[0].type: expected one of ")
    assert f"found {kind[:20]!r}"[:-1] in caught.value.message


def nested(depth: int, *, mapping: bool = False) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": value} if mapping else [value]
    return value


@pytest.mark.rule("C.A.5")
@pytest.mark.parametrize(
    "value",
    [
        nested(200),
        nested(100_000),
        nested(200, mapping=True),
        float("nan"),
        float("inf"),
        -float("inf"),
        [float("nan")],
        [10**5000],
        b"bytes",
        {"a": bytearray(b"bytes")},
        {1: "a"},
        {"a": {None: 1}},
        {("a", "b"): 1},
        {"a"},
        object(),
        1j,
    ],
)
def test_what_json_has_not_is_refused(value: object) -> None:
    cases: list[tuple[list[object], str]] = [
        (part_in("assistant", {**CALL, "input": value}), f"{AT}.input:"),
        (part_in("assistant", {"type": "soon-there", "x": value}), f"{AT}"),
        (part_in("user", {"type": "text", "text": "t", "providerOptions": value}), ""),
        (part_in("tool", {**TOOL_RESULT, "output": {"type": "json", "value": value}}), f"{AT}.output.value:"),
        ([{"role": "user", "content": "q", "x": value}], ""),
    ]
    for messages, place in cases:
        with pytest.raises(InvalidTypeError) as caught:
            from_ai_sdk(messages)
        assert caught.value.message.startswith(place)
        assert "bytes" not in caught.value.message.partition("found")[0]
        assert len(caught.value.message) < 200


@pytest.mark.rule("C.A.5")
def test_a_value_that_holds_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(InvalidTypeError, match="nested at most"):
        from_ai_sdk(part_in("assistant", {**CALL, "input": circle}))


@pytest.mark.rule("C.A.5")
@pytest.mark.parametrize("item", [{1: 2}, {"role": "user", "content": "q", 5: 1}, {"role": "user", b"content": "q"}])
def test_names_that_are_no_texts_are_refused(item: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"messages\[0\]: expected an object with texts as names"):
        from_ai_sdk([item])


@pytest.mark.rule("P.E.9", "C.A.6")
@pytest.mark.parametrize("value", [2**63, -(2**64), 10**300, 1e300, -0.0, 5e-324, True, "\ud83d\ude00", nested(80)])
def test_numbers_and_depth_that_json_has_come_back(value: object) -> None:
    for part in ({**CALL, "input": value}, {**CALL, "x": value}, {"type": "soon-there", "x": value}):
        (message,) = from_ai_sdk([{"role": "assistant", "content": [part]}]).messages
        (written,) = cast("list[Object]", write_ai_sdk(message)["content"])
        assert json.dumps(written, sort_keys=True) == json.dumps(part, sort_keys=True)


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.floats()
    | st.binary(max_size=2)
    | st.sampled_from(
        ["user", "assistant", "tool", "system", "\ud83d", "AA", "data:a;base64,", "u:", *WHOLE, "content", "json"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("role", "content", "type", "text", "toolCallId", "toolName", "input", "output", "value", "data"),
                    *("image", "mediaType", "approvalId", "approved", "kind", "providerOptions", "_form", "reference"),
                ]
            )
            | st.integers(0, 2),
            inner,
            max_size=5,
        )
    ),
    max_leaves=16,
)


@pytest.mark.rule("C.A.5")
@given(HOSTILE, HOSTILE, st.sampled_from(sorted(WHOLE)))
def test_anything_is_read_or_refused_with_a_reason(data: Any, more: Any, kind: str) -> None:
    members = cast("Object", data) if isinstance(data, dict) else {"output": data, "data": more}
    part: Object = {**WHOLE[kind], **members, "type": kind}
    values: list[object] = [data, [{"role": "user", "content": data}]]
    values += [[{"role": role, "content": [part]}] for role in ALLOWED]
    for value in values:
        for read in (from_ai_sdk, read_conversations):
            with contextlib.suppress(InvalidTypeError):
                assert isinstance(read(value), Conversation | tuple)
        with contextlib.suppress(InvalidTypeError):
            messages = from_ai_sdk(value).messages
            written = [write_ai_sdk(message) for message in messages]
            assert [write_ai_sdk(message) for message in from_ai_sdk(written).messages] == written


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

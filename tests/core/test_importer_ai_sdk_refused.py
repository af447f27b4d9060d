"""What is no AI SDK message is refused with its place, and whatever comes is read or refused (C.A.5)."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ai_sdk_messages import CALL, TOOL_RESULT, Object

from contextbus.core.ai_sdk import write_ai_sdk
from contextbus.core.importers import Conversation, from_ai_sdk, read_conversations
from contextbus_protocol.errors import InvalidTypeError


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
        from_ai_sdk([{"role": role, "content": [part]}])
        return
    with pytest.raises(InvalidTypeError) as caught:
        from_ai_sdk([{"role": role, "content": [part]}])
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

"""Requests and responses of OpenAI Responses are read, and come back as they were (P.E.9)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai.types.responses import Response, ResponseOutputMessage
from tests.core.responses_checker import check_responses
from tests.core.responses_requests import normal, requests
from tests.core.sdk_types import check_types

from contextbus.core.importers import from_responses
from contextbus.core.importers.responses import read_item
from contextbus.core.payload import Payload, render
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
)
from contextbus_protocol.errors import InvalidTypeError

Body = dict[str, Any]
TARGET = "openai-responses"


def back(data: object, model: str | None = None) -> Payload:
    read = from_responses(data)
    return render(read.messages, TARGET, model, tools=read.tools)


def body_of(payload: Payload) -> Body:
    body: Body = json.loads(payload.json())
    assert payload.body == body
    return body


@pytest.mark.rule("P.E.9", "P.E.1", "P.A.5", "P.E.3", "responses.R8")
@given(body=requests())
def test_a_valid_request_comes_back(body: Body) -> None:
    assert check_responses(body) == []
    listed: Body = body if isinstance(body["input"], list) else {**body, "input": []}
    assert check_types(listed, "openai-responses") == []
    payload = back(body)
    assert body_of(payload) == normal(body)
    assert {repair.code for repair in payload.repairs} <= {"late-system"}
    assert back(json.dumps(body)).json() == payload.json()


@pytest.mark.rule("P.E.9")
def test_every_form_of_a_conversation_is_read() -> None:
    item = {"role": "user", "content": "q"}
    asked = (ChatMessage(role="user", content=(Text(text="q"),)),)
    numbered: Body = {"input": [item], "id": 5}
    forms: tuple[object, ...] = ({"input": "q"}, {"input": [item]}, [item], item, '"q"', json.dumps([item]), numbered)
    for data in forms:
        assert from_responses(data).messages == asked
    nothing: Body = {}
    wrong: tuple[object, ...] = ("q", "{", 5, nothing, {"input": 5}, [5], [nothing], [{"type": "message"}])
    for data in (*wrong, [{"role": "tool"}]):
        with pytest.raises(InvalidTypeError):
            from_responses(data)


@pytest.mark.rule("P.E.9", "P.E.5")
def test_a_response_is_one_message_of_its_model() -> None:
    output: list[Body] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "z",
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "so", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "a",
            "name": "f",
            "arguments": '{"q":1}',
            "status": "completed",
        },
    ]
    response = {"id": "resp_1", "model": "gpt-5.4", "output": output, "instructions": "be kind", "object": "response"}
    read = from_responses(response)
    (message,) = read.messages
    assert (read.id, message.role, [type(part) for part in message.content]) == (
        "resp_1",
        "assistant",
        [Reasoning, Text, ToolCall],
    )
    thought = message.content[0]
    assert isinstance(thought, Reasoning)
    assert (thought.text, thought.redacted) == ("hm", "z")
    assert thought.provider_data is not None
    assert (thought.provider_data.provider, thought.provider_data.model) == (TARGET, "gpt-5.4")
    objects = Response.model_validate(
        {**response, "created_at": 0.0, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    )
    for data in (objects, objects.output):
        assert body_of(render(from_responses(data).messages, TARGET))["input"][: len(output)] == output
    history = [
        {"role": "user", "content": "q"},
        *output,
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    assert body_of(back(history))["input"] == history


@pytest.mark.rule("P.E.9")
def test_one_item_is_one_message() -> None:
    given: Body = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    assert read_item(given, "x") == ChatMessage(role="assistant", content=(ToolCall(id="a", name="f", arguments="{}"),))
    output: Body = {"type": "function_call_output", "call_id": "a", "output": "1"}
    assert read_item(output, "x") == ChatMessage(role="tool", content=(ToolResult(id="a", content=(Text(text="1"),)),))
    search: Body = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}}
    part = Unknown(data=json.dumps(search, separators=(",", ":")), provider_data=ProviderData(TARGET, "{}"))
    assert read_item(search, "x") == ChatMessage(role="assistant", content=(part,))
    with pytest.raises(InvalidTypeError, match=r"line 3\.call_id"):
        read_item({"type": "function_call", "name": "f"}, "line 3")
    message = ResponseOutputMessage.model_validate(
        {"id": "m", "content": [], "role": "assistant", "status": "completed", "type": "message"}
    )
    assert from_responses([message]).messages == ()


@pytest.mark.rule("P.E.9", "P.A.5")
def test_custom_calls_are_calls_and_what_the_provider_runs_is_kept() -> None:
    items: list[Body] = [
        {"role": "user", "content": "q"},
        {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "raw {"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
    ]
    messages = from_responses(items).messages
    assert messages[1].content[0] == ToolCall(
        id="a",
        name="patch",
        arguments='{"input":"raw {"}',
        provider_data=ProviderData(TARGET, '{"type":"custom_tool_call"}'),
    )
    assert body_of(back(items))["input"] == items
    elsewhere = render(messages, "openai")
    assert json.loads(elsewhere.json())["messages"][1]["tool_calls"][0]["function"]["name"] == "patch"
    assert b"web_search_call left out" in elsewhere.json()
    assert [repair.code for repair in elsewhere.repairs] == ["unknown-part"]


@pytest.mark.rule("P.E.8", "P.E.9")
def test_images_and_files_are_read_as_such() -> None:
    content = [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,BBBB", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
    ]
    read = from_responses([{"role": "user", "content": content}]).messages
    parts = read[0].content
    assert isinstance(parts[0], Image)
    assert (parts[0].media_type, parts[0].data) == ("image/png", "AAAA")
    assert isinstance(parts[2], Document)
    assert (parts[2].media_type, parts[2].data, parts[2].title) == ("application/pdf", "BBBB", "a.pdf")
    anthropic = render(read, "anthropic")
    for text in (b"AAAA", b"BBBB", b"https://example.org/a.pdf", b"left out"):
        assert text in anthropic.json()
    assert b"file-1" not in anthropic.json()


@pytest.mark.rule("P.E.11")
def test_a_breakpoint_asked_for_is_noted_and_never_sent() -> None:
    items: list[Body] = [
        {"role": "user", "content": "q", "_cache_breakpoint": True},
        {"type": "web_search_call", "id": "ws", "_cache_breakpoint": True},
    ]
    read = from_responses(items).messages
    assert (read[0].cache, read[1].content[0].cache) == (True, True)
    assert b"_cache" not in back(items).json()


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"type": "custom_tool_call", "call_id": "a", "name": "f"}, r"input\[0\]\.input"),
        ({"type": "function_call_output", "output": "x"}, r"input\[0\]\.call_id"),
        ({"type": "reasoning", "summary": "x"}, r"input\[0\]\.summary"),
        ({"role": "user", "content": [{"type": "input_image"}]}, r"input\[0\]\.content\[0\]\.image_url"),
        ({"role": "user", "content": [{"type": "input_file"}]}, r"input\[0\]\.content\[0\]\.file_id"),
        ({"role": "user", "content": [{"text": "x"}]}, r"input\[0\]\.content\[0\]\.type"),
        ({"type": "shell_call", "call_id": "a", "action": "x"}, r"input\[0\]\.action"),
        ({"type": "computer_call_output", "call_id": "a", "output": "x"}, r"input\[0\]\.output"),
    ],
)
def test_what_cannot_be_read_is_named(item: Body, place: str) -> None:
    with pytest.raises(InvalidTypeError, match=place):
        from_responses([item])

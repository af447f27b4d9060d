"""What is read and rendered again is what it was: for requests that are valid, and for whatever was rendered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from tests.core.checkers import CHECKERS
from tests.core.conversations import WILD_HISTORIES
from tests.core.sdk_types import check_types
from tests.core.valid_requests import Body, anthropic_requests, openai_requests

from contextbus.core.importers import from_anthropic, from_openai
from contextbus.core.payload import Request, assemble, render, start_rendering
from contextbus_protocol.chat import ChatMessage

READERS = {"anthropic": from_anthropic, "openai": from_openai}


def test_the_types_of_the_sdks_refuse_what_the_providers_refuse() -> None:
    message: Body = {"role": "user", "content": [{"type": "text", "text": "q"}]}
    for target in READERS:
        assert check_types({"messages": [message]}, target) == []
        assert check_types({"messages": [{**message, "metadata": 1}]}, target)
        assert check_types({"messages": [{**message, "content": [{"type": "text", "text": "q", "x": 1}]}]}, target)
        assert check_types({"messages": [{**message, "content": [{"type": "text"}]}]}, target)


@pytest.mark.rule("P.E.9", "P.A.2", "anthropic.A19", "anthropic.L2", "anthropic.L3", "anthropic.A17")
@given(request=anthropic_requests())
def test_every_valid_anthropic_request_comes_back(request: Body) -> None:
    assert CHECKERS["anthropic"](request) == []
    assert check_types(request, "anthropic") == []
    conversation = from_anthropic(json.dumps(request))
    payload = render(conversation.messages, "anthropic", tools=conversation.tools)
    assert payload.copy() == request
    assert payload.repairs == ()


@pytest.mark.rule("P.E.9", "P.A.2")
@given(request=openai_requests())
def test_every_valid_openai_request_comes_back(request: Body) -> None:
    assert CHECKERS["openai"](request) == []
    assert check_types(request, "openai") == []
    conversation = from_openai(json.dumps(request))
    payload = render(conversation.messages, "openai", tools=conversation.tools)
    assert payload.copy() == request
    assert payload.repairs == ()


@pytest.mark.rule("P.E.9")
def test_the_defaults_of_anthropic() -> None:
    tool: Body = {"name": "f", "input_schema": {"type": "object"}}
    result: Body = {"type": "tool_result", "tool_use_id": "a"}
    call: Body = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    given_one: Body = {
        "model": "m",
        "max_tokens": 5,
        "system": "s",
        "tools": [{**tool, "type": "custom", "description": ""}],
        "messages": [
            {"role": "user", "content": [{"type": "compaction", "content": None}, {"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [call, {**call, "id": "b"}]},
            {
                "role": "user",
                "content": [
                    {**result, "tool_use_id": "b", "content": [{"type": "text", "text": "1"}], "is_error": False},
                    {**result, "content": ""},
                ],
            },
            {"role": "assistant", "content": "so"},
            {"role": "user", "content": [{"type": "text", "text": "go", "citations": None}]},
        ],
    }
    conversation = from_anthropic(given_one)
    payload = render(conversation.messages, "anthropic", tools=conversation.tools)
    assert payload.copy() == {
        "system": [{"type": "text", "text": "s"}],
        "tools": [tool],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [call, {**call, "id": "b"}]},
            {"role": "user", "content": [result, {**result, "tool_use_id": "b", "content": "1"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
        ],
    }


@pytest.mark.rule("P.E.9")
def test_the_defaults_of_openai() -> None:
    def call(call_id: str) -> Body:
        return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    function: Body = {"name": "f", "description": "", "strict": None}
    given_one: Body = {
        "model": "m",
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}], "name": None},
            {"role": "assistant", "content": "", "refusal": None, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:application/pdf;base64,AA"}}]},
        ],
    }
    conversation = from_openai(given_one)
    file = {"filename": "document", "file_data": "data:application/pdf;base64,AA"}
    empty: Body = {"type": "object", "properties": {}}
    assert render(conversation.messages, "openai", tools=conversation.tools).copy() == {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": empty}}],
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "user", "content": [{"type": "file", "file": file}]},
        ],
    }


@pytest.mark.rule("P.E.2")
@pytest.mark.parametrize("target", READERS)
@given(messages=WILD_HISTORIES)
def test_what_was_rendered_is_rendered_the_same_again(target: str, messages: list[ChatMessage]) -> None:
    rendering = start_rendering(target).extend(messages)
    assume(not rendering.empty)
    first: dict[str, Any] = assemble(Request(history=rendering)).copy()
    again = READERS[target](first)
    second = render(again.messages, target, tools=again.tools)
    assert second.copy() == first
    assert {repair.code for repair in second.repairs} <= {"late-system"}

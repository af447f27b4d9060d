"""Summaries through the SDK of Anthropic, against an endpoint on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import anyio
import pytest
from tests.summarisers.endpoint import Endpoint

from contextbus.summarisers.anthropic import AnthropicSummariser, anthropic_summariser
from contextbus.summarisers.interface import MalformedSummaryError, Summary, SummaryRequest, read_answer
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Usage

REQUEST = SummaryRequest(
    messages=(user("Find the café."), assistant("It is at 12 Rue X.")), instructions="Sum up.", max_output_tokens=321
)


def message(stop_reason: str | None, *content: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": stop_reason,
        "usage": {
            "input_tokens": 30,
            "output_tokens": 7,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 10,
        },
    }


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.fixture
async def summariser(endpoint: Endpoint) -> AsyncGenerator[AnthropicSummariser]:
    made = anthropic_summariser(model="m", base_url=endpoint.url, api_key="k")
    yield made
    await made.aclose()


@pytest.mark.rule("C.X.10", "C.F.1", "C.F.3", "C.F.4", "C.F.6")
async def test_one_request_with_the_instructions_the_messages_and_the_allowance(
    endpoint: Endpoint, summariser: AnthropicSummariser
) -> None:
    endpoint.answer = message("end_turn", text("A summary."))
    summary = read_answer(await summariser.summarise(REQUEST))
    assert summary == Summary((SummaryPart("text", "A summary."),), "stop", Usage(30, 7, 60, 10))
    (asked,) = endpoint.asked
    assert asked.path == "/v1/messages"
    assert {"k", "Bearer k"} & set(asked.headers.values())  # which header it is depends on the SDK's version
    assert asked.body == {
        "model": "m",
        "system": "Sum up.",
        "messages": [{"role": "user", "content": REQUEST.prompt}],
        "max_tokens": 321,
    }


@pytest.mark.rule("C.F.10", "C.G.5")
@pytest.mark.parametrize(
    ("answer", "parts", "finish"),
    [
        (message("max_tokens", text("Half of")), [("text", "Half of")], "length"),
        (message("stop_sequence", text("x")), [("text", "x")], "stop"),
        (message("tool_use", text("x"), {"type": "tool_use", "id": "1", "name": "f", "input": {}}), None, "tool_use"),
        (message("refusal"), [], "refusal"),
        (message("end_turn"), [], "stop"),
        (message("end_turn", text("")), [("text", "")], "stop"),
        (message("pause_turn", {"type": "server_tool_use", "id": "1"}), [("server_tool_use", "")], "pause_turn"),
        (
            message("end_turn", {"type": "thinking", "thinking": "hm", "signature": "s"}, text("x")),
            [("reasoning", "hm"), ("text", "x")],
            "stop",
        ),
        (message("end_turn", {"type": "redacted_thinking", "data": "d"}), [("reasoning", "")], "stop"),
        (message(None, text("x")), [("text", "x")], "unknown"),
        ({}, [], "unknown"),
    ],
)
async def test_what_came_is_told_as_parts_and_a_reason(
    endpoint: Endpoint,
    summariser: AnthropicSummariser,
    answer: object,
    parts: list[tuple[str, str]] | None,
    finish: str,
) -> None:
    endpoint.answer = answer
    summary = read_answer(await summariser.summarise(REQUEST))
    came = [(part.type, part.text) for part in summary.parts]
    assert came == ([("text", "x"), ("tool-call", "")] if parts is None else parts)
    assert summary.finish_reason == finish


@pytest.mark.rule("C.F.1", "C.F.8")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
    ],
)
async def test_the_providers_error_is_raised_as_it_is_and_nothing_is_tried_again(
    endpoint: Endpoint, summariser: AnthropicSummariser, status: int, kind: type[anthropic.APIStatusError]
) -> None:
    endpoint.status, endpoint.answer = status, {"type": "error", "error": {"type": "no", "message": "no"}}
    with pytest.raises(kind) as raised:
        await summariser.summarise(REQUEST)
    assert raised.type is kind
    assert len(endpoint.asked) == 1


@pytest.mark.rule("C.F.1")
async def test_a_given_client_keeps_its_settings_but_does_not_retry(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.answer = 500, {}
    async with anthropic.AsyncAnthropic(api_key="given", base_url=endpoint.url, max_retries=5) as client:
        summariser = anthropic_summariser(model="m", client=client, extra_body={"temperature": 0})
        with pytest.raises(anthropic.InternalServerError):
            await summariser.summarise(REQUEST)
        (asked,) = endpoint.asked
        assert {"given", "Bearer given"} & set(asked.headers.values())
        assert asked.body["temperature"] == 0
        await summariser.aclose()
        assert not client.is_closed()


@pytest.mark.parametrize(
    ("content_type", "answer"), [("text/html", b"<html>hello</html>"), ("application/json", {"content": "none"})]
)
async def test_what_is_no_message_is_malformed(
    endpoint: Endpoint, summariser: AnthropicSummariser, content_type: str, answer: object
) -> None:
    endpoint.content_type, endpoint.answer = content_type, answer
    with pytest.raises(MalformedSummaryError):
        await summariser.summarise(REQUEST)


@pytest.mark.rule("C.F.9", "D.W.5")
async def test_a_cancellation_and_the_end_of_the_time_reach_the_call(
    endpoint: Endpoint, summariser: AnthropicSummariser
) -> None:
    endpoint.silent = True
    task = asyncio.create_task(summariser.summarise(REQUEST))
    with anyio.fail_after(5):
        await endpoint.waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.gone.wait()
        endpoint.gone.clear()
        with anyio.move_on_after(0.3) as scope:
            await summariser.summarise(REQUEST)
        assert scope.cancelled_caught
        await endpoint.gone.wait()
    assert len(endpoint.asked) == 2


@pytest.mark.rule("C.F.6")
@pytest.mark.parametrize("field", ["tools", "tool_choice", "mcp_servers", "system", "messages", "max_tokens", "stream"])
def test_the_request_is_not_the_callers_to_change(field: str) -> None:
    with pytest.raises(InvalidTypeError, match=field):
        anthropic_summariser(model="m", api_key="k", extra_body={field: 1})


def test_a_client_that_blocks_is_refused() -> None:
    with anthropic.Anthropic(api_key="k") as client, pytest.raises(InvalidTypeError, match="asynchronous"):
        anthropic_summariser(model="m", client=client)  # type: ignore[arg-type]  # that is the point

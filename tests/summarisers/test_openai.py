"""Summaries through the SDK of OpenAI, against an endpoint on a real socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import openai
import pytest
from tests.summarisers.endpoint import Endpoint

from contextbus.core.compaction.instructions import write_instructions
from contextbus.summarisers.interface import MalformedSummaryError, Summary, SummaryRequest, read_answer
from contextbus.summarisers.openai import OpenAISummariser, openai_summariser
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Usage

REQUEST = SummaryRequest(
    messages=(user("Find the café."), assistant("It is at 12 Rue X.")),
    instructions=write_instructions("Keep addresses."),
    max_output_tokens=321,
)


def completion(finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "total_tokens": 107,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        },
    }


@pytest.fixture
async def summariser(endpoint: Endpoint) -> AsyncGenerator[OpenAISummariser]:
    made = openai_summariser(model="m", base_url=f"{endpoint.url}/v1", api_key="k")
    yield made
    await made.aclose()


def types(summary: Summary) -> list[str]:
    return [part.type for part in summary.parts]


@pytest.mark.rule("C.X.10", "C.F.1", "C.F.3", "C.F.4", "C.F.6")
async def test_one_request_with_the_instructions_the_messages_and_the_allowance(
    endpoint: Endpoint, summariser: OpenAISummariser
) -> None:
    endpoint.answer = completion(content="A summary.")
    summary = await summariser.summarise(REQUEST)
    assert summary == Summary((SummaryPart("text", "A summary."),), "stop", Usage(30, 7, 60, 10))
    (asked,) = endpoint.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer k"
    assert asked.body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": write_instructions("Keep addresses.")},
            {"role": "user", "content": REQUEST.prompt},
        ],
        "max_tokens": 321,
    }
    said = json.loads(asked.body["messages"][1]["content"])
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert "Find the café." in asked.body["messages"][1]["content"]


@pytest.mark.rule("C.F.10", "C.G.5")
@pytest.mark.parametrize(
    ("answer", "kinds", "finish"),
    [
        (completion("length", content="Half of"), ["text"], "length"),
        (completion("stop", content=None, refusal="I will not."), ["refusal"], "stop"),
        (
            completion("tool_calls", content=None, tool_calls=[{"id": "1", "type": "function"}]),
            ["tool-call"],
            "tool_calls",
        ),
        (
            completion("stop", content="x", function_call={"name": "f", "arguments": "{}"}),
            ["text", "tool-call"],
            "stop",
        ),
        (completion("stop", content="x", reasoning_content="hm"), ["reasoning", "text"], "stop"),
        (
            completion("stop", content=[{"type": "thinking", "thinking": []}, {"type": "text", "text": "x"}]),
            ["reasoning", "text"],
            "stop",
        ),
        (completion("content_filter", content=""), ["text"], "content_filter"),
        (completion(None, content="x"), ["text"], "unknown"),
        (completion("I am sorry to say", content="x"), ["text"], "other"),
        ({"error": {"message": "upstream"}, "choices": None}, [], "error"),
        ({"choices": []}, [], "error"),
    ],
)
async def test_what_came_is_told_as_parts_and_a_reason(
    endpoint: Endpoint, summariser: OpenAISummariser, answer: object, kinds: list[str], finish: str
) -> None:
    endpoint.answer = answer
    summary = read_answer(await summariser.summarise(REQUEST))
    assert types(summary) == kinds
    assert summary.finish_reason == finish


@pytest.mark.rule("C.G.4")
@pytest.mark.parametrize(
    ("usage", "read"),
    [
        (None, None),
        ({"prompt_tokens": 5}, Usage(5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(0, 0, 9)),
        ({"prompt_tokens": "5", "completion_tokens": -1}, Usage()),
    ],
)
async def test_usage_is_as_reported(
    endpoint: Endpoint, summariser: OpenAISummariser, usage: object, read: Usage | None
) -> None:
    endpoint.answer = {**completion(content="x"), "usage": usage}
    assert (await summariser.summarise(REQUEST)).usage == read


@pytest.mark.rule("C.F.1", "C.F.8")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
async def test_the_providers_error_is_raised_as_it_is_and_nothing_is_tried_again(
    endpoint: Endpoint, summariser: OpenAISummariser, status: int, kind: type[openai.APIStatusError]
) -> None:
    endpoint.status, endpoint.answer = status, {"error": {"message": "no", "code": "why"}}
    with pytest.raises(kind) as raised:
        await summariser.summarise(REQUEST)
    assert raised.type is kind
    assert len(endpoint.asked) == 1


@pytest.mark.rule("C.F.1")
async def test_a_given_client_keeps_its_settings_but_does_not_retry(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.answer = 500, {}
    async with openai.AsyncOpenAI(
        api_key="given", base_url=f"{endpoint.url}/v9", max_retries=5, default_headers={"x-mine": "1"}
    ) as client:
        summariser = openai_summariser(model="m", client=client, extra_body={"reasoning_effort": "low"})
        with pytest.raises(openai.InternalServerError):
            await summariser.summarise(REQUEST)
        (asked,) = endpoint.asked
        assert (asked.path, asked.headers["x-mine"]) == ("/v9/chat/completions", "1")
        assert asked.headers["authorization"] == "Bearer given"
        assert asked.body["reasoning_effort"] == "low"
        await summariser.aclose()
        assert not client.is_closed()


@pytest.mark.parametrize(
    ("content_type", "answer"), [("text/html", b"<html>hello</html>"), ("application/json", {"choices": "none"})]
)
async def test_what_is_no_completion_is_malformed(
    endpoint: Endpoint, summariser: OpenAISummariser, content_type: str, answer: object
) -> None:
    endpoint.content_type, endpoint.answer = content_type, answer
    with pytest.raises(MalformedSummaryError):
        await summariser.summarise(REQUEST)


@pytest.mark.rule("C.F.9", "D.W.5")
async def test_a_cancellation_reaches_the_call(endpoint: Endpoint, summariser: OpenAISummariser) -> None:
    endpoint.silent = True
    task = asyncio.create_task(summariser.summarise(REQUEST))
    with anyio.fail_after(5):
        await endpoint.waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.gone.wait()
    assert len(endpoint.asked) == 1


@pytest.mark.rule("C.F.9")
async def test_a_call_takes_no_longer_than_there_is_time(endpoint: Endpoint, summariser: OpenAISummariser) -> None:
    endpoint.silent = True
    begun = time.monotonic()
    with anyio.move_on_after(0.3) as scope:
        await summariser.summarise(REQUEST)
    assert scope.cancelled_caught
    assert time.monotonic() - begun < 3
    with anyio.fail_after(5):
        await endpoint.gone.wait()


@pytest.mark.rule("C.F.6")
@pytest.mark.parametrize("field", ["tools", "functions", "tool_choice", "messages", "model", "max_tokens", "stream"])
def test_the_request_is_not_the_callers_to_change(field: str) -> None:
    with pytest.raises(InvalidTypeError, match=field):
        openai_summariser(model="m", api_key="k", extra_body={field: 1})


def test_a_client_that_blocks_is_refused() -> None:
    with openai.OpenAI(api_key="k") as client, pytest.raises(InvalidTypeError, match="asynchronous"):
        openai_summariser(model="m", client=client)  # type: ignore[arg-type]  # that is the point


@pytest.mark.rule("C.F.3")
@pytest.mark.parametrize(
    ("base_url", "field"),
    [
        ("http://api.openai.com/v1", "max_completion_tokens"),
        ("http://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("http://127.0.0.1:11434/v1", "max_tokens"),
    ],
)
async def test_the_allowance_goes_where_the_endpoint_takes_it(endpoint: Endpoint, base_url: str, field: str) -> None:
    endpoint.answer = completion(content="x")
    # Through a proxy the endpoint is asked for any host.
    through = openai.DefaultAsyncHttpxClient(proxy=endpoint.url)
    async with openai.AsyncOpenAI(api_key="k", base_url=base_url, http_client=through) as client:
        await openai_summariser(model="m", client=client).summarise(REQUEST)
        await openai_summariser(model="m", client=client, limit_field="max_tokens").summarise(REQUEST)
    first, second = endpoint.asked
    assert first.path == f"{base_url}/chat/completions"
    assert {name for name in first.body if name.startswith("max")} == {field}
    assert first.body[field] == 321
    assert {name for name in second.body if name.startswith("max")} == {"max_tokens"}

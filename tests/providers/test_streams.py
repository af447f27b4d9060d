"""The SDKs read the servers' streams as they read the APIs'; usage adds up; what they read goes into a report."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from httpx2 import TransportError
from openai.lib.streaming.chat import ChatCompletionStreamState

import contextbus.client as contextbus
from contextbus.client import Model, Report, Scope, user
from contextbus_protocol.chat import ChatMessage, Reasoning, ToolCall, ToolResult
from tests.providers.endpoints import ANTHROPIC_TOOL, CLAUDE, GPT, OPENAI_TOOL, anthropic_body, claude, gpt, openai_body
from tests.providers.turns import Answer, Call

ARGUMENTS = {"path": "/srv/größe/🎉", "limit": 3, "deep": {"list": [1, "two", None]}}
ANSWER = Answer(
    thinking="First grüßen 🎉, then look.\nBoth at once.",
    text="Grüße 🎉\n\ndata: is text here",
    calls=(Call("look", ARGUMENTS), Call("look")),
)
CUT = Answer(text="I look.", calls=(Call("look"), Call("look", ARGUMENTS)), cut=20)
RAW = Call("look", ARGUMENTS).text[:20]


async def test_anthropic_streams_what_it_answers_whole() -> None:
    async with claude([ANSWER, ANSWER]) as (server, client):
        whole = await client.messages.create(**anthropic_body(), stream=False)
        async with client.messages.stream(**anthropic_body()) as stream:
            streamed = await stream.get_final_message()
        blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in streamed.content]
        assert blocks == [block.model_dump(exclude={"id", "parsed_output"}) for block in whole.content]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
        assert blocks[0]["thinking"] == ANSWER.thinking
        assert blocks[0]["signature"]
        assert blocks[2]["input"] == ARGUMENTS
        assert streamed.stop_reason == whole.stop_reason == "tool_use"
        assert streamed.usage == whole.usage
        assert [exchange.message is not None for exchange in server.exchanges] == [True, True]


async def test_openai_streams_what_it_answers_whole() -> None:
    async with gpt([ANSWER] * 3) as (_, client):
        whole = await client.chat.completions.create(**openai_body(), stream=False)
        counted = openai_body(stream_options={"include_usage": True})
        async with client.chat.completions.stream(**counted) as stream:
            streamed = await stream.get_final_completion()
        read, first = streamed.choices[0].message, whole.choices[0].message
        assert (read.content, read.role) == (first.content, first.role) == (ANSWER.text, "assistant")
        assert read.tool_calls is not None
        assert [json.loads(call.function.arguments) for call in read.tool_calls] == [ARGUMENTS, {}]
        assert streamed.choices[0].finish_reason == "tool_calls"
        assert streamed.usage is not None
        assert whole.usage is not None
        assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens
        async with client.chat.completions.stream(**openai_body()) as stream:
            assert (await stream.get_final_completion()).usage is None  # nobody asked for it


@pytest.mark.parametrize("ending", ["broken", "early"])
async def test_anthropic_cuts_a_stream(ending: Literal["broken", "early"]) -> None:
    script = [Answer(text=CUT.text, calls=CUT.calls, cut=CUT.cut, ending=ending)]
    parts: list[str] = []
    stopped: list[int] = []
    async with claude(script) as (_, client):
        stream = await client.messages.create(**anthropic_body(), stream=True)
        try:
            async for event in stream:
                assert event.type not in ("message_delta", "message_stop")
                if event.type == "content_block_stop":
                    stopped.append(event.index)
                if event.type == "content_block_delta" and event.index == 2 and event.delta.type == "input_json_delta":
                    parts.append(event.delta.partial_json)
        except TransportError:
            assert ending == "broken"
        else:
            assert ending == "early"
        await stream.close()
    assert "".join(parts) == RAW
    assert stopped == [0, 1]


@pytest.mark.parametrize("ending", ["broken", "early"])
async def test_openai_cuts_a_stream(ending: Literal["broken", "early"]) -> None:
    script = [Answer(text=CUT.text, calls=CUT.calls, cut=CUT.cut, ending=ending)]
    state = ChatCompletionStreamState()
    async with gpt(script) as (_, client):
        stream = await client.chat.completions.create(**openai_body(), stream=True)
        try:
            async for chunk in stream:
                state.handle_chunk(chunk)
        except openai.APIConnectionError:
            assert ending == "broken"
        else:
            assert ending == "early"
        await stream.close()
    choice: Any = state.current_completion_snapshot.choices[0]
    assert choice.finish_reason is None
    assert [call.function.arguments for call in choice.message.tool_calls] == ["{}", RAW]


@pytest.mark.rule("P.E.5", "P.A.5")
async def test_anthropics_message_is_a_report() -> None:
    """Thinking with its signature, text and parallel calls, as the SDK's object, and back to a strict server."""
    async with claude([ANSWER, Answer(text="Done.")]) as (server, client), contextbus.open("memory:") as bus:
        run = await bus.run(scope=Scope(user_id="ada"))
        model = Model("anthropic", CLAUDE, 200_000, 8_000)
        step = await run.before_model_call([user("Look.")], model=model, tools=[ANTHROPIC_TOOL])
        for number in range(2):
            body: dict[str, Any] = step.payload("anthropic").body
            async with client.messages.stream(model=CLAUDE, max_tokens=2_000, **body) as stream:
                reply = await stream.get_final_message()
            await run.after_model_call(Report(status="succeeded", messages=[reply], usage=reply.usage))
            if number:
                continue
            kept = run.messages[-1]
            assert isinstance(kept, ChatMessage)
            assert [type(part) for part in kept.content[::2]] == [Reasoning, ToolCall]
            run.append(*(ToolResult(id=part.id) for part in kept.content if isinstance(part, ToolCall)))
            step = await run.before_model_call(model=model, tools=[ANTHROPIC_TOOL])
        assert server.statuses == [200, 200]
        assert server.exchanges[1].found == []
        blocks = server.exchanges[1].body["messages"][1]["content"]
        assert blocks[0]["thinking"] == ANSWER.thinking
        assert (await bus.verify(run.id)).is_clean


async def test_openais_message_is_a_report() -> None:
    async with gpt([ANSWER, Answer(text="Done.")]) as (server, client), contextbus.open("memory:") as bus:
        run = await bus.run(scope=Scope(user_id="ada"))
        model = Model("openai", GPT, 200_000, 8_000)
        step = await run.before_model_call([user("Look.")], model=model, tools=[OPENAI_TOOL])
        for number in range(2):
            body: dict[str, Any] = step.payload("openai").body
            async with client.chat.completions.stream(model=GPT, **body) as stream:
                reply = (await stream.get_final_completion()).choices[0].message
            await run.after_model_call(Report(status="succeeded", messages=[reply]))
            if number:
                continue
            assert reply.tool_calls is not None
            run.append(*({"role": "tool", "tool_call_id": c.id, "content": "seen"} for c in reply.tool_calls))
            step = await run.before_model_call(model=model, tools=[OPENAI_TOOL])
        assert server.statuses == [200, 200]
        assert server.exchanges[1].found == []
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.E.6", "P.E.22")
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_a_call_that_broke_off_keeps_its_text_and_is_answered_with_an_error(
    provider: Literal["anthropic", "openai"],
) -> None:
    """B68: the log has what came, the wire an empty object and an error, and a strict server takes it."""
    use = {"type": "tool_use", "id": "t-1", "name": "look", "input": RAW}
    call = {"id": "t-1", "type": "function", "function": {"name": "look", "arguments": RAW}}
    replies: dict[str, dict[str, Any]] = {
        "anthropic": {"role": "assistant", "content": [use]},
        "openai": {"role": "assistant", "content": None, "tool_calls": [call]},
    }
    tool = {"anthropic": ANTHROPIC_TOOL, "openai": OPENAI_TOOL}[provider]
    async with contextbus.open("memory:") as bus:
        run = await bus.run(scope=Scope(user_id="ada"))
        model = Model(provider, {"anthropic": CLAUDE, "openai": GPT}[provider], 200_000, 8_000)
        await run.before_model_call([user("Look.")], model=model, tools=[tool])
        await run.after_model_call(Report(status="succeeded", messages=[replies[provider]], finish_reason="broken-off"))
        kept = run.messages[-1]
        assert isinstance(kept, ChatMessage)
        assert isinstance(kept.content[0], ToolCall)
        assert kept.content[0].arguments == RAW
        step = await run.before_model_call(model=model, tools=[tool])
        payload = step.payload(provider)
        body: dict[str, Any] = payload.body
        assert RAW not in payload.json().decode()
        assert "bad-arguments" in {repair.code for repair in payload.repairs}
        if provider == "anthropic":
            async with claude([Answer(text="Again.")]) as (server, client):
                assert await client.messages.create(model=CLAUDE, max_tokens=2_000, **body)
            assert server.exchanges[0].body["messages"][2]["content"][0]["is_error"] is True
        else:
            async with gpt([Answer(text="Again.")]) as (server, chat):
                assert await chat.chat.completions.create(model=GPT, **body)
            assert server.exchanges[0].body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"
        assert server.statuses == [200]

"""The servers refuse what the APIs refuse: one bad request for each family of rules, and the right one is taken."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.providers.anthropic_wire import AnthropicWire
from tests.providers.endpoints import anthropic_body, claude, gpt, openai_body
from tests.providers.openai_wire import OpenAIWire
from tests.providers.turns import OVERLOADED, RATE_LIMIT, SERVER_ERROR, Answer, Overflow, Refusal, Turn

HELLO: dict[str, Any] = {"role": "user", "content": "Hello."}
SAID: dict[str, Any] = {"role": "assistant", "content": "Hello, you."}
USE: dict[str, Any] = {"type": "tool_use", "id": "t-1", "name": "look", "input": {}}
CALLED: dict[str, Any] = {"role": "assistant", "content": [USE]}
RESULT = {"type": "tool_result", "tool_use_id": "t-1", "content": "seen"}
RESULTS: dict[str, Any] = {"role": "user", "content": [RESULT]}
MARK = {"cache_control": {"type": "ephemeral"}}
LONG_MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def thinks(signature: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": signature}, USE]}


ANTHROPIC_BAD: list[tuple[str, dict[str, Any]]] = [
    ("anthropic.types", anthropic_body(HELLO, max_tokens="many")),
    ("anthropic.types", anthropic_body(HELLO, temprature=1)),  # a key that is not known (A19)
    ("anthropic.types", anthropic_body({"role": "user", "content": [text("Hi.", note="ours")]})),
    ("anthropic.types", anthropic_body({"role": "tool", "content": "seen"})),
    ("anthropic.A1", {**anthropic_body(HELLO), "messages": []}),
    ("anthropic.A2", anthropic_body(SAID, HELLO)),
    ("anthropic.A4", anthropic_body({"role": "user", "content": " \n"})),
    ("anthropic.A5", anthropic_body(HELLO, SAID)),
    ("anthropic.A6", anthropic_body(HELLO, CALLED, HELLO)),
    ("anthropic.A7", anthropic_body(HELLO, CALLED, {"role": "user", "content": [text("Here:"), RESULT]})),
    ("anthropic.A8", anthropic_body(RESULTS)),
    ("anthropic.A9", anthropic_body(HELLO, CALLED, RESULTS, CALLED, RESULTS)),
    ("anthropic.A12", {**anthropic_body(HELLO, CALLED, RESULTS), "tools": []}),
    ("anthropic.A13", anthropic_body(HELLO, thinks("sig-of-another"), RESULTS)),
    ("anthropic.A15", anthropic_body({"role": "user", "content": [text("Hi.", **MARK)] * 4}, **MARK)),
    ("anthropic.A15", anthropic_body({"role": "user", "content": [text("a", **MARK), text("b", **LONG_MARK)]})),
    ("anthropic.A18", anthropic_body(HELLO, thinking={"type": "enabled", "budget_tokens": 2_000})),
    ("anthropic.A18", anthropic_body(HELLO, thinking={"type": "enabled", "budget_tokens": 100})),
]
OPENAI_CALL: dict[str, Any] = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OPENAI_CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]}
SEEN = {"role": "tool", "tool_call_id": "c-1", "content": "seen"}


def calls(*changed: dict[str, Any]) -> dict[str, Any]:
    return {**OPENAI_CALLED, "tool_calls": [{**OPENAI_CALL, **change} for change in changed]}


OPENAI_BAD: list[tuple[str, dict[str, Any]]] = [
    ("openai.types", openai_body(HELLO, temperature="hot")),
    ("openai.types", openai_body(HELLO, temprature=1)),
    ("openai.types", openai_body({**HELLO, "note": "ours"})),
    ("openai.types", openai_body({"role": "model", "content": "Hello."})),
    ("openai.C1", {**openai_body(HELLO), "messages": []}),
    ("openai.C3", openai_body(HELLO, OPENAI_CALLED, HELLO)),
    ("openai.C4", openai_body(HELLO, OPENAI_CALLED, SEEN, SEEN)),
    ("openai.C5", openai_body(HELLO, {"role": "assistant", "content": None}, HELLO)),
    ("openai.C6", openai_body(HELLO, {**OPENAI_CALLED, "content": "Hm.", "tool_calls": []}, HELLO)),
    ("openai.C7", openai_body(HELLO, calls({"id": "c" * 41}), {**SEEN, "tool_call_id": "c" * 41})),
    ("openai.C8", openai_body(HELLO, calls({"function": {"name": "a b", "arguments": "{}"}}), SEEN)),
    ("openai.C9", openai_body(HELLO, calls({"function": {"name": "look", "arguments": '{"q": "hello wor'}}), SEEN)),
]


@pytest.mark.parametrize(("code", "body"), ANTHROPIC_BAD, ids=[f"{n}-{bad[0]}" for n, bad in enumerate(ANTHROPIC_BAD)])
async def test_anthropic_refuses(code: str, body: dict[str, Any]) -> None:
    async with claude([], strict=False) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match=code) as refused:
            await client.post("/v1/messages", cast_to=object, body=body)
        assert refused.value.type == "invalid_request_error"
        assert server.statuses == [400]


@pytest.mark.parametrize(("code", "body"), OPENAI_BAD, ids=[f"{n}-{bad[0]}" for n, bad in enumerate(OPENAI_BAD)])
async def test_openai_refuses(code: str, body: dict[str, Any]) -> None:
    async with gpt([], strict=False) as (server, client):
        with pytest.raises(openai.BadRequestError, match=code) as refused:
            await client.post("/chat/completions", cast_to=object, body=body)
        assert refused.value.type == "invalid_request_error"
        assert server.statuses == [400]


@pytest.mark.parametrize("missing", ["model", "max_tokens", "messages"])
async def test_anthropic_requires_members(missing: str) -> None:
    body = {key: value for key, value in anthropic_body().items() if key != missing}
    async with claude([]) as (_, client):
        with pytest.raises(anthropic.BadRequestError, match=f"{missing}: Field required"):
            await client.post("/v1/messages", cast_to=object, body=body)


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_openai_requires_members(missing: str) -> None:
    body = {key: value for key, value in openai_body().items() if key != missing}
    async with gpt([]) as (_, client):
        with pytest.raises(openai.BadRequestError, match=f"{missing}: Field required"):
            await client.post("/chat/completions", cast_to=object, body=body)


async def test_lone_surrogates_are_refused() -> None:
    spoilt = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\\ud83d"}]}'
    headers: Any = {"headers": {"content-type": "application/json"}}
    async with claude([]) as (server, client):
        with pytest.raises(anthropic.BadRequestError):
            await client.post("/v1/messages", cast_to=object, content=spoilt, options=headers)
        assert server.exchanges[0].found


LENIENT: list[tuple[str, dict[str, Any]]] = [
    ("anthropic.L1", anthropic_body(HELLO, HELLO)),
    ("anthropic.L3", anthropic_body(HELLO, {"role": "assistant", "content": [USE, text("And?")]}, RESULTS)),
]


@pytest.mark.parametrize(("code", "body"), LENIENT)
async def test_l_rules_are_refused_by_strict_servers_alone(code: str, body: dict[str, Any]) -> None:
    async with claude([Answer(text="Fine.")], strict=False) as (server, client):
        assert await client.post("/v1/messages", cast_to=object, body=body)
        assert [found for found, _ in server.exchanges[0].found] == [code]
    async with claude([Answer(text="Fine.")], strict=True) as (_, client):
        with pytest.raises(anthropic.BadRequestError, match=code):
            await client.post("/v1/messages", cast_to=object, body=body)


async def test_a_late_system_message_is_refused_by_a_strict_openai_alone() -> None:
    body = openai_body(HELLO, SAID, {"role": "system", "content": "Be brief."}, HELLO)
    async with gpt([Answer(text="Fine.")], strict=False) as (_, client):
        assert await client.post("/chat/completions", cast_to=object, body=body)
    async with gpt([Answer(text="Fine.")], strict=True) as (_, client):
        with pytest.raises(openai.BadRequestError, match=r"openai\.L4"):
            await client.post("/chat/completions", cast_to=object, body=body)


async def test_a_refused_request_takes_no_turn() -> None:
    async with claude([Answer(text="Fine.")]) as (server, client):
        with pytest.raises(anthropic.BadRequestError):
            await client.post("/v1/messages", cast_to=object, body=anthropic_body(SAID))
        await client.post("/v1/messages", cast_to=object, body=anthropic_body())
        assert server.statuses == [400, 200]
        with pytest.raises(anthropic.BadRequestError, match="no further turn"):
            await client.post("/v1/messages", cast_to=object, body=anthropic_body())


async def test_thinking_goes_back_unchanged_behind_what_it_was_written_behind() -> None:
    script = [Answer(thinking="Look first.", calls=()), *[Answer(text="Good.")] * 2]
    async with claude(script, binds=True) as (server, client):
        reply: Any = await client.post("/v1/messages", cast_to=object, body=anthropic_body(HELLO))
        answered = {"role": "assistant", "content": reply["content"]}
        await client.post("/v1/messages", cast_to=object, body=anthropic_body(HELLO, answered, HELLO))
        marked = {"role": "user", "content": [text("Hello.", **MARK)]}  # marks and the shape of a text do not count
        await client.post("/v1/messages", cast_to=object, body=anthropic_body(marked, answered, HELLO))
        edited = {"role": "assistant", "content": [{**reply["content"][0], "thinking": "Look at it first."}]}
        other = {"role": "user", "content": "Hallo."}
        for bad in ((HELLO, edited, HELLO), (other, answered, HELLO)):
            with pytest.raises(anthropic.BadRequestError, match=r"anthropic\.A13"):
                await client.post("/v1/messages", cast_to=object, body=anthropic_body(*bad))
        assert server.statuses == [200, 200, 200, 400, 400]


async def test_errors_are_those_of_the_sdk() -> None:
    script: list[Turn] = [OVERLOADED, RATE_LIMIT, Refusal(500, "api_error", "Internal server error"), Overflow()]
    kinds = [
        anthropic.InternalServerError,
        anthropic.RateLimitError,
        anthropic.InternalServerError,
        anthropic.BadRequestError,
    ]
    async with claude(script) as (server, client):
        for kind, words in zip(kinds, ("Overloaded", "Rate limit", "Internal", "prompt is too long"), strict=True):
            with pytest.raises(kind, match=words):
                await client.post("/v1/messages", cast_to=object, body=anthropic_body())
        assert server.statuses == [529, 429, 500, 400]
    async with gpt([RATE_LIMIT, SERVER_ERROR, Overflow()]) as (server, client):
        with pytest.raises(openai.RateLimitError):
            await client.post("/chat/completions", cast_to=object, body=openai_body())
        with pytest.raises(openai.InternalServerError):
            await client.post("/chat/completions", cast_to=object, body=openai_body())
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post("/chat/completions", cast_to=object, body=openai_body())
        assert refused.value.code == "context_length_exceeded"


async def test_what_every_request_carries() -> None:
    headers: Any = {"headers": {"content-type": "text/plain"}}
    async with claude([]) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match="content-type"):
            await client.post("/v1/messages", cast_to=object, content=b"{}", options=headers)
        with pytest.raises(anthropic.NotFoundError):
            await client.post("/v1/complete", cast_to=object, body=anthropic_body())
        assert server.statuses == [400, 404]
    for wire in (AnthropicWire(), OpenAIWire()):
        unsigned = wire.unauthorised({})
        assert unsigned is not None
        assert unsigned.status == 401

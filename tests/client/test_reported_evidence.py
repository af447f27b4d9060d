"""What a report shows of the measured input and of the cache, as the run's log has it."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest
from tests.client.scripted import MODEL, SCOPE, bus_with

import contextbus.client as contextbus
from contextbus.core.cache_retention import HOUR_MS, MINUTE_MS
from contextbus.core.payload import Payload
from contextbus.core.wire import Mark
from contextbus_protocol import codec
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import CallFailed, CallSucceeded
from contextbus_protocol.values import Model, Usage

CLAUDE = Model("anthropic", "claude-opus-4-6", 128_000, 8_000)
GPT = Model("openai", "gpt-5.6", 128_000, 8_000)
CACHED = {"prompt_tokens": 600, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 500}}
WRITTEN = {
    "input_tokens": 1,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 7, "ephemeral_1h_input_tokens": 0},
}
QUESTION = user("How?")
LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


async def outcome(
    model: Model = MODEL, *, question: ChatMessage = QUESTION, target: str | None = "", **fields: Any
) -> CallSucceeded:
    """The event of a reported call; ``target`` is what its step renders before, nothing if it is empty."""
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        step = await run.before_model_call([question], model=model)
        if target != "":
            step.payload(target)
        given: dict[str, Any] = {"messages": [assistant("So.")], **fields}
        await run.after_model_call(contextbus.Report(status="succeeded", **given))
        log = await bus.log("r")
        assert (await bus.verify("r")).is_clean
        event = log.commits[-1].commit.events[-1]
        assert isinstance(event, CallSucceeded)
        return event


@pytest.mark.rule("C.M.4", "C.M.13", "C.N.1")
@pytest.mark.parametrize(
    ("usage", "recorded"),
    [
        (CACHED, Usage(100, 9, 500)),
        ({"input_tokens": 100, "output_tokens": 9, "cache_read_input_tokens": 500}, Usage(100, 9, 500)),
        ({"promptTokenCount": 600, "candidatesTokenCount": 9, "cachedContentTokenCount": 500}, Usage(100, 9, 500)),
        (Usage(100, 9, 300, 200), Usage(100, 9, 300, 200)),
    ],
)
async def test_the_log_has_the_whole_input_and_the_counters_of_the_cache(usage: Any, recorded: Usage) -> None:
    event = await outcome(usage=usage)
    assert (event.measured, event.usage) == (600, recorded)


@pytest.mark.rule("C.M.8", "C.M.9")
@pytest.mark.parametrize(
    "fields",
    [
        {"usage": None},
        {"usage": Usage()},
        {"usage": {"input_tokens": -1, "output_tokens": 9}},
        {"usage": {"input_tokens": 1.5}},
        {"usage": {"input_tokens": float("nan")}},
        {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": True}}},
        {"usage": {"input_tokens": 5, "iterations": [{"type": "compaction"}, {"type": "message"}]}},
        {
            "usage": {"input_tokens": 5},
            "messages": [{"role": "assistant", "content": [{"type": "compaction", "content": "So far."}]}],
        },
        {
            "usage": {"prompt_tokens": 5},
            "messages": [{"role": "assistant", "content": [{"type": "custom", "kind": "openai.compaction"}]}],
        },
        {
            "usage": {"input_tokens": 5},
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "x", "providerOptions": {"anthropic": {"type": "compaction"}}}
                    ],
                }
            ],
        },
    ],
)
async def test_usage_that_is_no_sound_count_of_one_request_measures_nothing(fields: dict[str, Any]) -> None:
    assert (await outcome(**fields)).measured is None


@pytest.mark.rule("C.M.9")
async def test_one_iteration_measures_as_ever() -> None:
    assert (await outcome(usage={"input_tokens": 5, "iterations": [{"type": "message"}]})).measured == 5


@pytest.mark.rule("C.M.12", "D.W.8")
@pytest.mark.parametrize("status", ["failed", "cancelled", "overflow"])
async def test_a_call_that_did_not_succeed_leaves_no_evidence(status: Any) -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.before_model_call([QUESTION], model=GPT)
        await run.after_model_call(contextbus.Report(status=status, usage=CACHED, request_body="{}"))
        assert (await bus.log("r")).commits[-1].commit.events[-1] == CallFailed(step=0, status=status)


def as_text(body: object) -> str:
    return json.dumps(body)


def as_bytes(body: object) -> bytes:
    return json.dumps(body).encode()


def as_given(body: object) -> object:
    return body


@pytest.mark.rule("C.N.13", "C.N.5", "D.W.8")
@pytest.mark.parametrize("write", [as_text, as_bytes, as_given])
async def test_the_reported_body_tells_the_retention_and_not_the_rendered_one(write: Any) -> None:
    body: dict[str, object] = {"messages": (), **LONG}
    event = await outcome(CLAUDE, target=None, request_body=write(body), usage=Usage(1, 1, 5))
    assert event.retention_ms == HOUR_MS
    event = await outcome(CLAUDE, target=None, request_body=write({"messages": ()}), usage=Usage(1, 1, 5))
    assert event.retention_ms is None


@pytest.mark.rule("C.N.13", "C.N.5", "C.N.8")
async def test_without_a_reported_body_what_the_step_rendered_tells_it() -> None:
    assert (await outcome(CLAUDE, usage=WRITTEN)).retention_ms is None
    assert (await outcome(CLAUDE, usage=WRITTEN, target=None)).retention_ms == 5 * MINUTE_MS
    assert (await outcome(CLAUDE, usage=Usage(1, 1, 5), target=None)).retention_ms is None
    assert (await outcome(GPT, usage=CACHED)).retention_ms is None
    assert (await outcome(GPT, usage=CACHED, target=None)).retention_ms == 30 * MINUTE_MS


def mark(payload: Payload, ttl: Literal["5m", "1h"]) -> Payload:
    """The payload with a breakpoint asked for behind its last block."""
    (last,) = payload.last
    asked = Mark(last.json.rindex(b"}]}"), ttl)
    return msgspec.structs.replace(payload, last=(msgspec.structs.replace(last, marks=(asked,)),))


@pytest.mark.rule("C.N.13", "C.N.7")
async def test_a_payload_is_a_body_and_the_last_one_rendered_counts() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        reads = Usage(1, 1, 5)
        step = await run.before_model_call([QUESTION], model=CLAUDE)
        assert step.rendered.payload is None
        sent = mark(step.payload(), "1h")
        await run.after_model_call(contextbus.Report(status="succeeded", usage=reads, request_body=sent))
        step = await run.before_model_call([QUESTION, user("And?")], model=CLAUDE)
        other, last = step.payload("openai"), step.payload()
        assert step.rendered.payload is last is not other
        step.rendered.payload = mark(last, "5m")
        await run.after_model_call(contextbus.Report(status="succeeded", usage=reads))
        step = await run.before_model_call([QUESTION, user("And?"), user("So?")], model=CLAUDE)
        assert step.rendered.payload is None
        await run.after_model_call(contextbus.Report(status="succeeded", usage=WRITTEN))
        events = [e for c in (await bus.log("r")).commits for e in c.commit.events if isinstance(e, CallSucceeded)]
        assert [e.retention_ms for e in events] == [HOUR_MS, 5 * MINUTE_MS, None]


@pytest.mark.rule("C.N.8")
async def test_reported_writes_tell_more_than_the_body() -> None:
    assert (await outcome(CLAUDE, usage=WRITTEN, request_body=LONG)).retention_ms == 5 * MINUTE_MS
    by_time = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 7}
    event = await outcome(CLAUDE, target=None, usage={**WRITTEN, "cache_creation": by_time})
    assert (event.usage, event.measured, event.retention_ms) == (Usage(1, 0, 0, 7), 8, HOUR_MS)


@pytest.mark.rule("C.N.3")
async def test_a_call_that_no_cache_served_has_no_retention() -> None:
    event = await outcome(GPT, target=None, usage={"prompt_tokens": 600, "completion_tokens": 9})
    assert (event.measured, event.retention_ms) == (600, None)


@pytest.mark.rule("C.N.9", "C.N.13")
@pytest.mark.parametrize(
    ("upstream", "answered", "retention"),
    [
        ({"name": "OpenAI"}, "openai/gpt-5.6", 30 * MINUTE_MS),
        ("OpenAI", "openai/gpt-5.6-2026-03-01", 30 * MINUTE_MS),
        ("OpenAI", "openai/gpt-4.1", None),
        ("OpenAI", None, None),
        ("Azure", "openai/gpt-5.6", None),
        ({"name": 7}, "openai/gpt-5.6", None),
        (None, "openai/gpt-5.6", None),
    ],
)
async def test_through_openrouter_upstream_and_answering_model_tell(
    upstream: Any, answered: str | None, retention: int | None
) -> None:
    router = Model("openrouter", "openai/gpt-5.6", 128_000, 8_000)
    fields: dict[str, Any] = {"upstream": upstream, "response_model": answered, "usage": CACHED}
    assert (await outcome(router, target="openai", **fields)).retention_ms == retention


@pytest.mark.rule("C.N.13", "D.W.1")
async def test_after_a_restart_the_model_is_the_logs_and_the_body_must_be_reported() -> None:
    async with bus_with() as bus:
        first = await bus.run("r", scope=SCOPE)
        (await first.before_model_call([QUESTION], model=GPT)).payload()
        second = await bus.run("r", scope=SCOPE)
        await second.load()
        report = contextbus.Report(status="succeeded", messages=[assistant("So.")], usage=CACHED, request_body="{}")
        await second.after_model_call(report)
        event = (await bus.log("r")).commits[-1].commit.events[-1]
        assert isinstance(event, CallSucceeded)
        assert (event.measured, event.retention_ms) == (600, 30 * MINUTE_MS)


@pytest.mark.rule("D.W.8", "D.T.4")
async def test_usage_of_a_wrong_type_is_refused_and_the_step_stays_open() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.before_model_call([QUESTION], model=GPT)
        with pytest.raises(InvalidTypeError):
            await run.after_model_call(contextbus.Report(status="succeeded", usage=600))
        await run.after_model_call(contextbus.Report(status="succeeded", usage=CACHED))
        assert (await bus.log("r")).commits[-1].commit.events[-1] == CallSucceeded(
            step=0, usage=Usage(100, 9, 500), measured=600
        )


@pytest.mark.rule("C.M.1", "C.N.1", "D.D.25")
def test_what_is_not_known_is_not_on_the_wire_and_older_events_are_read_as_they_are() -> None:
    bare = codec.encode_json(CallSucceeded(step=3, usage=Usage(5)))
    assert bare == b'{"type":"call-succeeded","step":3,"usage":{"inputTokens":5}}'
    full = CallSucceeded(step=3, usage=Usage(5), measured=5, retention_ms=300_000)
    written = codec.encode_json(full)
    assert codec.decode_json(bare, CallSucceeded) == msgspec.structs.replace(full, measured=None, retention_ms=None)
    assert b'"measured":5' in written
    assert b'"retentionMs":300000' in written
    assert codec.decode_json(written, CallSucceeded) == full

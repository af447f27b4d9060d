"""Thinking and summaries of a provider: they go back to their issuer as they came, and to nobody else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.payloads import call, codes, result, said, sent

from contextbus.core.importers import from_anthropic, from_openai
from contextbus.core.payload import render
from contextbus_protocol.chat import ChatMessage, ProviderData, Reasoning, Text, Unknown, assistant, system, user

Body = dict[str, Any]
OPUS, SONNET = "claude-opus-4-6", "claude-sonnet-4-6"
THOUGHT: Body = {"type": "thinking", "thinking": "hm ü\n", "signature": "sig=="}
SEALED: Body = {"type": "redacted_thinking", "data": "zip"}
SPOKEN: Body = {"type": "text", "text": "so"}


def response(model: str, *blocks: Body) -> Body:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": list(blocks), "usage": {}}


def answered(model: str, *blocks: Body) -> ChatMessage:
    (message,) = from_anthropic(response(model, *blocks)).messages
    return message


@pytest.mark.rule("P.E.5", "anthropic.A13")
def test_a_response_binds_its_thinking_to_the_model_that_it_names() -> None:
    parts = answered(OPUS, THOUGHT, SEALED, SPOKEN).content
    assert [part.provider_data for part in parts] == [*[ProviderData("anthropic", "{}", OPUS)] * 2, None]
    listed = from_anthropic([{"role": "user", "content": "q"}, response(SONNET, THOUGHT)]).messages[1]
    assert listed.content[0].provider_data == ProviderData("anthropic", "{}", SONNET)
    request = {"model": OPUS, "messages": [{"role": "assistant", "content": [THOUGHT]}]}
    (asked,) = from_anthropic(request).messages
    assert asked.content[0].provider_data == ProviderData("anthropic", "{}")


@pytest.mark.rule("P.E.5", "anthropic.A13", "P.E.2")
@given(models=st.lists(st.sampled_from([OPUS, OPUS + "-20260101", SONNET, None]), min_size=1, max_size=6))
def test_b22_a_history_that_switches_models_keeps_the_thinking_of_the_one_asked(models: list[str | None]) -> None:
    history: list[ChatMessage] = []
    for model in models:
        answer = answered(model or OPUS, THOUGHT, SEALED, SPOKEN)
        if model is None:  # nobody knows who issued it
            (answer,) = from_anthropic([{"role": "assistant", "content": [THOUGHT, SEALED, SPOKEN]}]).messages
        history += [user("q"), answer]
    history.append(user("go"))
    for asked in (OPUS, SONNET, "claude-opus-4-6-latest", None):
        payload = render(history, "anthropic", asked)
        dropped = 0
        for model, message in zip(models, sent(payload)[1::2], strict=True):
            same = None in (model, asked) or (model or "")[:13] == (asked or "")[:13]
            assert message["content"] == ([THOUGHT, SEALED, SPOKEN] if same else [SPOKEN])
            dropped += 0 if same else 2
        assert codes(payload) == ["thinking"] * dropped
    elsewhere = render(history, "openai", OPUS)
    assert b"hm" not in elsewhere.json()
    assert codes(elsewhere) == ["thinking"] * 2 * len(models)


@pytest.mark.rule("P.E.5", "anthropic.A13")
def test_b16_thinking_is_sent_to_the_byte_or_not_at_all() -> None:
    for text in ("", " lead and trail \n", 'quote " and \\ back', "\u2028 \x01 \U0001f600"):
        block = {"type": "thinking", "thinking": text, "signature": "a+/="}
        payload = render([user("q"), answered(OPUS, block, SPOKEN), user("go")], "anthropic", OPUS)
        assert sent(payload)[1]["content"] == [block, SPOKEN]
    unsigned = answered(OPUS, {"type": "thinking", "thinking": "hm"}, SPOKEN)
    payload = render([user("q"), unsigned, user("go")], "anthropic", OPUS)
    assert (sent(payload)[1]["content"], codes(payload)) == ([SPOKEN], ["thinking"])
    foreign = Reasoning(text="hm", signature="s", provider_data=ProviderData("openai", "{}", OPUS))
    payload = render([user("q"), said("assistant", foreign, Text(text="so")), user("go")], "anthropic", OPUS)
    assert codes(payload) == ["thinking"]


def summary(text: str | None = "what was said", **more: str) -> Unknown:
    data = {"type": "compaction", "content": text, **more}
    return Unknown(data=json.dumps(data), provider_data=ProviderData("anthropic", "{}"))


BLOCK: Body = {"type": "compaction", "content": "what was said", "signature": "s"}


@pytest.mark.rule("anthropic.A17", "anthropic.A2", "P.E.1")
def test_a_summary_of_the_provider_comes_first_and_nothing_stands_before_it() -> None:
    before = [system("s"), user("q"), said("assistant", call("a")), said("tool", result("a"))]
    whole = said("assistant", Text(text="old"), summary("what was said", signature="s"), Text(text="new"), call("b"))
    payload = render([*before, whole, said("tool", result("b")), user("go")], "anthropic")
    messages = sent(payload)
    assert messages[0] == {"role": "user", "content": [BLOCK]}
    assert [block["type"] for block in messages[1]["content"]] == ["text", "tool_use"]
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "text"]
    assert codes(payload) == ["compacted", "first-user"]
    assert b"old" not in payload.json()
    assert [block["text"] for block in json.loads(payload.json())["system"]] == ["s"]
    alone = render([user("q"), said("assistant", summary("what was said", signature="s")), user("go")], "anthropic")
    assert sent(alone) == [{"role": "user", "content": [BLOCK, {"type": "text", "text": "go"}]}]
    assert "empty" not in codes(alone)


@pytest.mark.rule("anthropic.A17")
def test_of_several_summaries_the_newest_with_content_is_sent() -> None:
    history = [
        said("user", summary("first"), Text(text="q")),
        assistant("a"),
        said("user", summary("second"), Text(text="r")),
        said("assistant", summary(None), Text(text="b")),
        said("user", summary(""), Text(text="go")),
    ]
    payload = render(history, "anthropic")
    assert [block.get("content") for block in sent(payload)[0]["content"]] == ["second", None]
    assert codes(payload) == ["compacted", "empty", "empty"]
    assert [message["role"] for message in sent(payload)] == ["user", "assistant", "user"]


@pytest.mark.rule("anthropic.A17", "P.E.13")
def test_a_result_whose_call_the_summary_replaced_is_dropped() -> None:
    history = [user("q"), said("assistant", call("a")), said("assistant", summary(), Text(text="b"))]
    payload = render([*history, said("tool", result("a")), user("go")], "anthropic")
    assert [message["role"] for message in sent(payload)] == ["user", "assistant", "user"]
    assert codes(payload) == ["compacted", "first-user", "orphan-result"]


@pytest.mark.rule("anthropic.A17", "P.A.5")
def test_a_summary_of_one_provider_says_nothing_to_another() -> None:
    payload = render([user("q"), said("assistant", summary(), Text(text="b")), user("go")], "openai")
    assert [message["role"] for message in sent(payload)] == ["user", "assistant", "user"]
    assert codes(payload) == ["unknown-part"]
    assert from_openai(payload.copy()).messages[0] == user("q")


@pytest.mark.rule("anthropic.A17", "P.E.4")
def test_a_breakpoint_behind_a_summary_stays_with_it() -> None:
    asked = {**BLOCK, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    spoken = from_anthropic([{"role": "user", "content": "q"}, {"role": "assistant", "content": [asked, SPOKEN]}])
    payload = render([*spoken.messages, user("go")], "anthropic")
    assert sent(payload)[0] == {"role": "user", "content": [asked]}

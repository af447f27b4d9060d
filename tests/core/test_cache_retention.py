"""How long a provider keeps a cache, as body, answer and usage tell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.cache_retention import HOUR_MS, MINUTE_MS, infer_retention, keeps_half_an_hour, read_body

FIVE, HALF_HOUR, HOUR, DAY = 5 * MINUTE_MS, 30 * MINUTE_MS, HOUR_MS, 24 * HOUR_MS
SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}
ODD = {"type": "ephemeral", "ttl": "2h"}


def infer(provider: str, body: Any, model_id: str = "m", **known: Any) -> int | None:
    fields: dict[str, Any] = {
        "response_model": None,
        "upstream": None,
        "writes_5m": None,
        "writes_1h": None,
        "reads": 1,
    }
    return infer_retention(provider=provider, model_id=model_id, body=body, **(fields | known))


def text(control: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": "x", "cache_control": control, **more}


@pytest.mark.rule("C.N.5")
@pytest.mark.parametrize("body", [None, "", "{", "[]", "null", '"gpt"', b"\xff", "[" * 100_000, '{"a": NaN}'])
def test_a_body_that_is_missing_or_no_json_object_says_nothing(body: Any) -> None:
    assert read_body(body) is None
    assert infer("openai", body, "gpt-5.6") is None
    assert infer("anthropic", body, writes_1h=10) is None
    assert infer("openrouter", body, upstream="OpenAI", response_model="openai/gpt-5.6") is None


def as_text(body: object) -> str:
    return json.dumps(body)


def as_bytes(body: object) -> bytes:
    return json.dumps(body).encode()


def as_given(body: object) -> object:
    return body


@pytest.mark.rule("C.N.5", "C.N.6", "C.N.7")
@pytest.mark.parametrize("write", [as_text, as_bytes, as_given])
def test_a_text_is_read_as_its_json(write: Any) -> None:
    assert infer("openai", write({"prompt_cache_retention": "24h"}), "gpt-5") == DAY
    assert infer("anthropic", write({"messages": [{"role": "user", "content": [text(LONG)]}]})) == HOUR
    assert infer("openai", write({}), "gpt-5.6") == HALF_HOUR


@pytest.mark.rule("C.N.6")
@pytest.mark.parametrize(
    ("model", "body", "retention"),
    [
        ("gpt-4o", {"prompt_cache_options": {"ttl": "30m"}}, HALF_HOUR),
        ("gpt-5.6", {"prompt_cache_options": {"ttl": "12h"}}, None),
        ("gpt-5", {"prompt_cache_options": {"ttl": "1h"}, "prompt_cache_retention": "24h"}, None),
        ("gpt-5", {"prompt_cache_options": {"ttl": 30}}, None),
        ("gpt-5", {"prompt_cache_options": {"ttl": ["30m"]}}, None),
        ("gpt-5", {"prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h"}, DAY),
        ("gpt-5.6", {"prompt_cache_options": {"mode": "implicit", "ttl": None}}, HALF_HOUR),
        ("gpt-5.6", {"prompt_cache_retention": "24h"}, HALF_HOUR),
        ("gpt-5.5", {"prompt_cache_retention": "in_memory"}, HOUR),
        ("gpt-5.5", {"prompt_cache_retention": "in-memory"}, HOUR),
        ("gpt-5.5", {"prompt_cache_retention": "24h"}, DAY),
        ("gpt-5.5", {"prompt_cache_retention": "48h"}, None),
        ("gpt-5.5", {"prompt_cache_retention": ["24h"]}, None),
        ("gpt-5.5", {"prompt_cache_retention": None}, None),
        ("gpt-5.5", {}, None),
        ("o3", {}, None),
    ],
)
def test_openai_keeps_what_ttl_model_and_setting_say_in_this_order(
    model: str, body: dict[str, Any], retention: int | None
) -> None:
    assert infer("openai", body, model) == retention
    assert infer("openai.responses", body, model) == retention
    assert infer("openai", body, "gpt-5.6", response_model=model) == retention


@pytest.mark.rule("C.N.6")
@pytest.mark.parametrize(
    "model",
    [
        "gpt-5.6",
        "gpt-5.10",
        "gpt-6",
        "gpt-6.0-mini",
        "gpt-7-2027-01-31",
        "gpt-5.6-2026-03-01",
        "GPT-5.6-codex",
        "openai/gpt-5.6-pro",
        "~openai/gpt-6:nitro",
        "ft:gpt-5.6-2026-03-01:acme::7p4lURel",
    ],
)
def test_models_from_5_6_on_are_known_by_their_version(model: str) -> None:
    assert keeps_half_an_hour(model)


@pytest.mark.rule("C.N.6")
@pytest.mark.parametrize(
    "model",
    [
        "",
        "gpt-5",
        "gpt-5.5",
        "gpt-5-2026-06-06",
        "gpt-5.5-2026-08-08",
        "gpt-4o",
        "gpt-4.1-2025-04-14",
        "gpt-4-32k",
        "gpt-4-0613",
        "gpt-35-turbo",
        "gpt-3.5-turbo-16k",
        "gpt-oss-120b",
        "gpt-image-1",
        "gpt-20260101",
        "ft:gpt-4o-2024-08-06:acme:gpt-6",
        "chatgpt-6",
        "o6",
        "claude-opus-5-6",
        "gpt-٦",
    ],
)
def test_dates_sizes_and_other_names_are_no_version(model: str) -> None:
    assert not keeps_half_an_hour(model)


@pytest.mark.rule("C.N.6")
@given(major=st.integers(0, 34), minor=st.integers(0, 99), tail=st.sampled_from(["", "-mini", "-2026-11-30", ":x"]))
def test_a_version_counts_as_a_pair_of_numbers(major: int, minor: int, tail: str) -> None:
    assert keeps_half_an_hour(f"gpt-{major}.{minor}{tail}") == (major >= 6 or (major == 5 and minor >= 6))


NESTED = {"type": "tool_result", "tool_use_id": "a", "content": [text(LONG)]}


@pytest.mark.rule("C.N.7")
@pytest.mark.parametrize(
    "body",
    [
        {"cache_control": LONG},
        {"system": [text(LONG)]},
        {"tools": [{"name": "f", "input_schema": {}, "cache_control": LONG}]},
        {"messages": [{"role": "user", "content": "x", "cache_control": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "y"}, text(LONG)]}]},
        {"messages": [{"role": "user", "content": [NESTED]}]},
    ],
)
@pytest.mark.parametrize("provider", ["anthropic", "anthropic.messages", "Anthropic", "claude", "claude-code"])
def test_a_cache_control_is_found_wherever_one_may_stand(provider: str, body: dict[str, Any]) -> None:
    assert infer(provider, body) == HOUR
    assert infer(provider, {**body, "system": [text(SHORT), text(LONG)]}) is None


@pytest.mark.rule("C.N.7")
def test_schemas_and_arguments_are_not_looked_into() -> None:
    schema = {"type": "object", "properties": {"cache_control": LONG}, "cache_control": LONG}
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"cache_control": LONG, "content": [text(LONG)]}}
    body = {
        "system": '{"cache_control": {"ttl": "1h"}}',
        "tools": [{"name": "f", "input_schema": schema}],
        "messages": [{"role": "assistant", "content": [call]}],
    }
    assert infer("anthropic", body) is None
    assert infer("anthropic", {**body, "cache_control": SHORT}) == FIVE


@pytest.mark.rule("C.N.7")
@pytest.mark.parametrize(
    ("control", "retention"),
    [
        (SHORT, FIVE),
        ({"type": "ephemeral", "ttl": None}, FIVE),
        ({"type": "ephemeral", "ttl": "5m"}, FIVE),
        (LONG, HOUR),
        (ODD, None),
        ({"ttl": 5}, None),
        ({"ttl": {}}, None),
        (True, None),
        (None, None),
    ],
)
def test_the_ttl_of_a_control_is_its_window(control: Any, retention: int | None) -> None:
    assert infer("anthropic", {"system": [text(control)]}) == retention


@pytest.mark.rule("C.N.8")
@pytest.mark.parametrize(
    ("controls", "writes_5m", "writes_1h", "reads", "retention"),
    [
        ([SHORT], 0, 10, 50, HOUR),
        ([SHORT], 10, 10, 0, HOUR),
        ([], 0, 10, 0, HOUR),
        ([LONG], 10, 0, 0, FIVE),
        ([LONG], 10, None, 0, FIVE),
        ([SHORT, LONG], 10, 0, 0, FIVE),
        ([LONG], 10, 0, 50, HOUR),
        ([SHORT, LONG], 10, 0, 50, None),
        ([LONG, LONG], 0, 0, 50, HOUR),
        ([SHORT, SHORT], None, None, 50, FIVE),
        ([SHORT, ODD], 0, 0, 50, None),
        ([ODD, ODD], 0, 0, 50, None),
        ([], 0, 0, 50, None),
    ],
)
def test_what_was_written_comes_before_what_was_asked_for(
    controls: list[Any], writes_5m: int | None, writes_1h: int | None, reads: int, retention: int | None
) -> None:
    body = {"messages": [{"role": "user", "content": [text(control) for control in controls]}]}
    assert infer("anthropic", body, writes_5m=writes_5m, writes_1h=writes_1h, reads=reads) == retention


@pytest.mark.rule("C.N.9")
def test_openrouter_goes_by_who_served_the_call_and_what_answered() -> None:
    controls = {"messages": [{"role": "user", "content": [text(LONG)]}]}
    six = "openai/gpt-5.6"
    assert infer("openrouter", {}, upstream="OpenAI", response_model=six) == HALF_HOUR
    assert infer("openrouter", {}, six, upstream="OpenAI") is None
    assert infer("openrouter", {}, six, upstream="OpenAI", response_model="openai/gpt-5.5") is None
    assert infer("openrouter", {"prompt_cache_retention": "24h"}, upstream="openai") == DAY
    assert infer("openrouter", controls, "anthropic/claude-opus-5", upstream="Anthropic") == HOUR
    for upstream in (None, "", "Azure", "Amazon Bedrock", "Google"):
        assert infer("openrouter", controls, six, upstream=upstream, response_model=six, writes_1h=9) is None


@pytest.mark.rule("C.N.10")
@pytest.mark.parametrize("provider", ["google", "gemini", "vertex.anthropic", "azure", "bedrock", "mistral", ""])
def test_other_providers_are_unknown_whatever_the_request_says(provider: str) -> None:
    body = {"prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h", "cache_control": LONG}
    assert infer(provider, body, "gpt-5.6", upstream="OpenAI", response_model="gpt-5.6", writes_1h=9) is None


MEMBERS = st.sampled_from(
    [
        "cache_control",
        "content",
        "messages",
        "prompt_cache_options",
        "prompt_cache_retention",
        "system",
        "tools",
        "ttl",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["30m", "5m", "1h", "24h", "in_memory", ""])
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(MEMBERS, v, max_size=3), max_leaves=20
)


@pytest.mark.rule("C.N.5", "C.N.11")
@given(body=st.dictionaries(MEMBERS, VALUES, max_size=4), provider=st.sampled_from(["openai", "anthropic"]))
def test_no_body_makes_it_fail_and_its_text_says_the_same(body: dict[str, object], provider: str) -> None:
    found = infer(provider, body)
    assert found in {None, FIVE, HALF_HOUR, HOUR, DAY}
    assert infer(provider, json.dumps(body)) == found

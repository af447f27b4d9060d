"""What reported usage says of the input and the cache, for each provider's way of counting."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from anthropic.types.beta import BetaUsage
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.responses import ResponseUsage

from contextbus.client.given import read_usage
from contextbus.core.usage_facts import UsageFacts, is_aggregate, read_usage_facts
from contextbus_protocol.chat import ChatMessage, ProviderData, Text, Unknown, assistant
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Usage

counts = st.integers(0, 2**40)


@pytest.mark.rule("C.M.13", "C.M.4")
@pytest.mark.parametrize(
    ("usage", "facts"),
    [
        (Usage(100, 9, 300, 200), UsageFacts(Usage(100, 9, 300, 200), 600)),
        (
            {"input_tokens": 100, "output_tokens": 9, "cache_read_tokens": 300, "cache_write_tokens": 200},
            UsageFacts(Usage(100, 9, 300, 200), 600),
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 9,
                "cache_read_input_tokens": 300,
                "cache_creation_input_tokens": 200,
                "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50},
            },
            UsageFacts(Usage(100, 9, 300, 200), 600, 150, 50),
        ),
        ({"input_tokens": 100, "cache_read_input_tokens": None}, UsageFacts(Usage(100), 100)),
        ({"prompt_tokens": 600, "completion_tokens": 9}, UsageFacts(Usage(600, 9), 600)),
        (
            {
                "prompt_tokens": 600,
                "completion_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 200},
            },
            UsageFacts(Usage(100, 9, 300, 200), 600),
        ),
        (
            {"prompt_tokens": 600, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 200},
            UsageFacts(Usage(100, 0, 300, 200), 600),
        ),
        (
            {"input_tokens": 600, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 500}},
            UsageFacts(Usage(100, 9, 500), 600),
        ),
        (
            {"prompt_tokens": 600, "completion_tokens": 9, "input_tokens": 0, "output_tokens": 0},
            UsageFacts(Usage(600, 9), 600),
        ),
        (
            {
                "promptTokenCount": 600,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 5,
                "cachedContentTokenCount": 500,
            },
            UsageFacts(Usage(100, 9, 500), 600),
        ),
        (
            {"prompt_token_count": 600, "candidates_token_count": 9, "cached_content_token_count": 500},
            UsageFacts(Usage(100, 9, 500), 600),
        ),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 30}}, UsageFacts(Usage(0, 0, 10), 10)),
        ({}, UsageFacts(Usage(), None)),
    ],
)
def test_cached_tokens_are_counted_once_and_are_part_of_the_measure(usage: Any, facts: UsageFacts) -> None:
    assert read_usage_facts(usage) == facts
    assert read_usage(usage) == facts.usage


@pytest.mark.rule("C.M.13", "C.N.8")
def test_objects_of_the_sdks_are_read_as_their_fields() -> None:
    chat = {
        "prompt_tokens": 600,
        "completion_tokens": 9,
        "total_tokens": 609,
        "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 200},
    }
    response = {
        "input_tokens": 600,
        "output_tokens": 9,
        "total_tokens": 609,
        "input_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 200},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    beta = {
        "input_tokens": 100,
        "output_tokens": 9,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 200,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200},
    }
    message = BetaUsage.model_validate(beta)
    for sdk in (CompletionUsage.model_validate(chat), ResponseUsage.model_validate(response), message):
        assert read_usage(sdk) == Usage(100, 9, 300, 200)
        assert read_usage_facts(sdk.model_dump()).measured == 600
    assert read_usage_facts(message.model_dump()).writes_1h == 200
    assert not is_aggregate(message.model_dump(), ())
    with pytest.raises(InvalidTypeError):
        read_usage(600)


INVALID: list[object] = [-1, True, 1.0, math.nan, math.inf, "600", 2**53, [6], {"n": 6}]


@pytest.mark.rule("C.M.8")
@pytest.mark.parametrize("wrong", INVALID)
@pytest.mark.parametrize("name", ["input_tokens", "prompt_tokens", "promptTokenCount", "prompt_token_count"])
def test_an_input_count_that_is_none_is_no_measure(name: str, wrong: Any) -> None:
    facts = read_usage_facts({name: wrong, "output_tokens": 9})
    assert facts == UsageFacts(Usage(0, 9), None)
    assert read_usage_facts({name: 600, "output_tokens": 9}).measured == 600


@pytest.mark.rule("C.M.8")
@pytest.mark.parametrize("wrong", INVALID)
def test_a_cached_count_that_is_none_is_no_measure_either(wrong: Any) -> None:
    for usage in (
        {"input_tokens": 600, "cache_read_input_tokens": wrong},
        {"input_tokens": 600, "cache_creation_input_tokens": wrong},
        {"prompt_tokens": 600, "prompt_tokens_details": {"cached_tokens": wrong}},
        {"input_tokens": 600, "input_tokens_details": {"cached_tokens": wrong}},
        {"promptTokenCount": 600, "cachedContentTokenCount": wrong},
    ):
        assert read_usage_facts(usage) == UsageFacts(Usage(600), None)


@pytest.mark.rule("C.M.8")
@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(),
        Usage(-1, 0, 5),
        Usage(5, 0, -1),
        Usage(2**52, 0, 2**52),
        {"input_tokens": 0},
        {"output_tokens": 9},
        {"total_tokens": 600},
        {"input_tokens": None},
        {"input_tokens": 2**52, "cache_read_input_tokens": 2**52},
    ],
)
def test_usage_without_a_sound_input_is_no_measure(usage: Any) -> None:
    assert read_usage_facts(usage or {}).measured is None


@pytest.mark.rule("C.N.8")
@pytest.mark.parametrize("wrong", INVALID)
def test_writes_that_are_no_counts_are_not_told_apart(wrong: Any) -> None:
    facts = read_usage_facts(
        {
            "input_tokens": 1,
            "cache_creation": {"ephemeral_5m_input_tokens": wrong, "ephemeral_1h_input_tokens": 7},
        }
    )
    assert (facts.writes_5m, facts.writes_1h) == (None, 7)
    assert read_usage_facts({"input_tokens": 1, "cache_creation": wrong}).writes_1h is None


@pytest.mark.rule("C.M.13")
@given(fresh=counts, reads=counts, writes=counts)
def test_what_is_measured_is_the_same_in_each_providers_words(fresh: int, reads: int, writes: int) -> None:
    total = fresh + reads + writes
    inside = {"cached_tokens": reads, "cache_write_tokens": writes}
    for usage in (
        {"input_tokens": fresh, "cache_read_input_tokens": reads, "cache_creation_input_tokens": writes},
        {"prompt_tokens": total, "prompt_tokens_details": inside},
        {"input_tokens": total, "input_tokens_details": inside},
    ):
        assert read_usage_facts(usage) == UsageFacts(Usage(fresh, 0, reads, writes), total or None)


@pytest.mark.rule("C.M.13", "C.N.1")
@given(total=st.integers(1, 99), reads=counts, writes=counts)
def test_the_parts_of_a_total_never_exceed_it_and_a_cached_part_is_never_lost(
    total: int, reads: int, writes: int
) -> None:
    details = {"cached_tokens": reads, "cache_write_tokens": writes}
    usage = read_usage_facts({"prompt_tokens": total, "prompt_tokens_details": details}).usage
    assert usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens == total
    assert min(usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) >= 0
    assert (usage.cache_read_tokens + usage.cache_write_tokens > 0) == (reads + writes > 0)


MESSAGE = {"type": "message", "input_tokens": 5}
NOTHING: dict[str, object] = {}


@pytest.mark.rule("C.M.9")
@pytest.mark.parametrize(
    ("iterations", "aggregate"),
    [
        (None, False),
        ([MESSAGE], False),
        ((MESSAGE,), False),
        ([], True),
        ([MESSAGE, MESSAGE], True),
        ([{"type": "compaction"}], True),
        ([{"type": "compaction"}, MESSAGE], True),
        ([NOTHING], True),
        (["message"], True),
        ("message", True),
        (1, True),
    ],
)
def test_usage_of_anything_but_one_message_is_an_aggregate(iterations: Any, aggregate: bool) -> None:
    assert is_aggregate({"input_tokens": 5, "iterations": iterations}, ()) is aggregate
    assert is_aggregate({"input_tokens": 5, "raw": {"iterations": iterations}}, ()) is aggregate


def part(data: Any, provider: str = "openai") -> ChatMessage:
    return ChatMessage(
        role="assistant",
        content=(Text(text="So."), Unknown(data=json.dumps(data), provider_data=ProviderData(provider, "{}"))),
    )


def marked(data: Any, provider: str = "anthropic") -> ChatMessage:
    return ChatMessage(
        role="assistant", content=(Text(text="So.", provider_data=ProviderData(provider, json.dumps(data))),)
    )


NATIVE = {"anthropic": {"type": "compaction"}}


@pytest.mark.rule("C.M.9")
@pytest.mark.parametrize(
    "message",
    [
        part({"type": "custom", "kind": "openai.compaction"}),
        part({"type": "compaction", "content": "So far."}, "anthropic"),
        marked({"type": "compaction"}),
        marked({"providerOptions": NATIVE}),
        marked({"provider_metadata": NATIVE}, "openai"),
        Unknown(data='{"type": "custom", "kind": "openai.compaction"}'),
        {"role": "assistant", "content": [{"type": "custom", "kind": "openai.compaction"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "x", "providerOptions": NATIVE}]},
        {"type": "text", "text": "x", "providerMetadata": NATIVE},
        {"type": "compaction", "encrypted_content": "x"},
    ],
)
def test_what_a_providers_own_compaction_leaves_makes_an_aggregate(message: Any) -> None:
    for usage in (None, Usage(5), {"input_tokens": 5}, {"iterations": [MESSAGE]}):
        assert is_aggregate(usage, [assistant("Well."), message])
        assert not is_aggregate(usage, [assistant("Well.")])


@pytest.mark.rule("C.M.9")
@pytest.mark.parametrize(
    "message",
    [
        assistant('{"type": "compaction"}'),
        part({"type": "custom", "kind": "openai.reasoning"}),
        part(["compaction"]),
        marked({"type": "compaction"}, "openai"),
        marked({"providerOptions": {"openai": {"type": "compaction"}}}),
        marked({"providerOptions": {"anthropic": "compaction"}}),
        marked([1]),
        Unknown(data="{"),
        {"role": "assistant", "content": "openai.compaction"},
        {"role": "assistant", "content": ["compaction", {"type": "text", "text": "openai.compaction"}]},
    ],
)
def test_words_about_compaction_are_none(message: Any) -> None:
    assert not is_aggregate({"input_tokens": 5}, [message])

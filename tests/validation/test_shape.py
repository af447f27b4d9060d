"""Bodies that have not the form that the rules speak of: findings, never an exception, and nothing of the content."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.validation.bodies import RIGHT, Body, anthropic, anything, asks, changed, gemini, rules, says, text, user

from contextbus.core.frozen import freeze
from contextbus.core.json_text import as_list, as_object
from contextbus.validation import TARGETS, check_types, tell_target, validate
from contextbus_protocol.errors import InvalidTypeError

LIST = {"anthropic": "messages", "openai": "messages", "openai-responses": "input", "gemini": "contents"}
EMPTY = {"anthropic": "A1", "openai": "C1", "openai-responses": "R1", "gemini": "G1"}
WORDS = (
    *("type", "role", "content", "text", "messages", "input", "contents", "parts", "tools", "system", "id", "name"),
    *("user", "assistant", "model", "tool", "tool_use", "tool_result", "thinking", "function_call", "functionCall"),
    *("functionResponse", "tool_calls", "tool_use_id", "call_id", "cache_control", "ttl", "1h", "reasoning", "message"),
    *("compaction", "function", "arguments", "args", "response", "cachedContent", "config", "thoughtSignature", ""),
)
# Lone surrogates too: what is checked need not be text that can be written.
TEXTS = st.sampled_from(WORDS) | st.text(st.characters(codec=None), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a value but itself."""
    members, items = as_object(value), as_list(value)
    inner: list[tuple[Any, object]] = [*(members or {}).items(), *enumerate(items or ())]
    return [found for key, item in inner for found in ((*path, key), *places(item, (*path, key)))]


@pytest.mark.parametrize("target", TARGETS)
def test_right_payloads_have_no_findings_and_pass_the_types(target: str) -> None:
    assert validate(RIGHT[target], target) == ()
    assert check_types(RIGHT[target], target) == ()
    assert validate(freeze(RIGHT[target]), target) == ()
    assert check_types(freeze(RIGHT[target]), target) == ()


@pytest.mark.parametrize("target", TARGETS)
def test_a_body_that_is_no_object_is_a_finding(target: str) -> None:
    for body in anything(None, [], [RIGHT[target]], "words", 1, True):
        assert rules(body, target) == {"shape"}
        assert {finding.rule for finding in check_types(body, target) or ()} == {"types"}


@pytest.mark.parametrize("target", TARGETS)
def test_messages_that_are_no_list_or_no_objects_are_findings(target: str) -> None:
    code = f"{'responses' if target == 'openai-responses' else target}.{EMPTY[target]}"
    for value in anything({}, 1, True, None):
        assert rules({LIST[target]: value}, target) == {code}
    for value in anything(None, 1, "words", []):
        right = RIGHT[target][LIST[target]]
        assert [f.place for f in validate({**RIGHT[target], LIST[target]: [*right, value]}, target)] == [
            f"{LIST[target]}[{len(right)}]"
        ]


def test_blocks_parts_and_tools_that_are_none_are_findings() -> None:
    for value in anything(None, 1, "words", [], dict[str, object](), {"type": "unheard_of"}, {"type": 1}):
        assert rules(anthropic({"role": "user", "content": [text(), value]}), "anthropic") == {"shape"}
    for value in anything(None, 1, "words", [], dict[str, object](), {"type": 1}, {"type": "text"}):
        assert rules({"messages": [says("user", [value])]}, "openai") == {"shape"}
    for value in anything(None, 1, "words", []):
        assert rules(gemini({"role": "user", "parts": [{"text": "x"}, value]}), "gemini") == {"shape"}
        assert rules({"input": [says("user", [value])]}, "openai-responses") == {"shape"}
        for target in ("anthropic", "openai"):
            assert rules(changed(RIGHT[target], "tools", 0, to=value), target) == {"shape"}
    assert rules({"input": [dict[str, object]()]}, "openai-responses") == {"shape"}
    assert rules(anthropic({"role": "user", "content": 5}), "anthropic") == {"shape"}
    assert rules(gemini({"role": "user", "parts": "words"}), "gemini") == {"shape"}
    assert rules(gemini(asks({"text": 1})), "gemini") == {"shape"}


@pytest.mark.parametrize("target", TARGETS)
@given(body=JSON)
@settings(max_examples=200, deadline=None)
def test_no_json_raises(target: str, body: object) -> None:
    for value in (body, {LIST[target]: body}, {LIST[target]: [body, body]}):
        validate(value, target)
        assert check_types(value, target) is not None
        tell_target(value)


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_change_of_a_right_payload_raises_or_shows_content(target: str, data: st.DataObject) -> None:
    body = copy.deepcopy(RIGHT[target])
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(body)))
        body = changed(body, *path, to=data.draw(JSON | st.just("secret words") | st.just({"secret words": [1]})))
    findings = (*validate(body, target), *(check_types(body, target) or ()))
    for finding in findings:
        assert "secret" not in finding.place + finding.message
        assert finding.message.endswith(".")
        assert finding.message.isascii()
        json.dumps([finding.place, finding.message]).encode()


def test_depth_is_no_trouble() -> None:
    deep: object = "\ud800"
    for _ in range(3_000):
        deep = [deep]
    for target in TARGETS:
        assert "all.S1" in rules({LIST[target]: [{"role": "user", "content": deep, "parts": deep}]}, target)
        assert check_types({LIST[target]: [{"role": "user", "content": deep, "parts": deep}]}, target)
    [found] = [f for f in validate(anthropic(user(), metadata={"x": deep}), "anthropic") if f.rule == "all.S1"]
    assert found.place == "metadata"


def test_an_unknown_target_is_refused() -> None:
    for check in (validate, check_types):
        with pytest.raises(InvalidTypeError, match="the targets are anthropic, openai"):
            check({}, "cohere")


@pytest.mark.parametrize("target", TARGETS)
def test_the_cost_is_linear(target: str) -> None:
    def steps(times: int) -> int:
        items = RIGHT[target][LIST[target]] * times  # ids repeat and neighbours break rules, so findings grow as well
        body: Body = {**RIGHT[target], LIST[target]: items}
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            validate(body, target)
        finally:
            sys.setprofile(before)
        return counted

    assert steps(160) < 10 * steps(20)


def test_whose_api_a_body_is_for() -> None:
    for target in TARGETS:
        assert tell_target(RIGHT[target]) == target
    plain = {"messages": [{"role": "user", "content": "x"}]}
    assert tell_target(plain) is None
    assert tell_target(plain, "claude-opus-5") == tell_target({**plain, "model": "claude-opus-5"}) == "anthropic"
    assert tell_target(plain, "gpt-5") == tell_target({**plain, "model": "o3-mini"}) == "openai"
    assert tell_target(plain, "llama") is None
    assert tell_target({**plain, "system": "s"}, "gpt-5") == "anthropic"
    assert tell_target({**plain, "system": "s", "stop": []}) is None
    assert tell_target({**plain, "input": "x"}) is None
    assert tell_target({"input": "x"}) == "openai-responses"
    assert tell_target({"input": "x", "contents": []}) is None
    for body in anything({}, [], None, "x"):
        assert tell_target(body) is None

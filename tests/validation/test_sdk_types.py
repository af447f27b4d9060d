"""The SDKs' types as second layer; each measure against their traps is needed."""

from __future__ import annotations

import sys
from typing import Any

import pydantic
import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as AnthropicRequest
from tests.validation.bodies import RIGHT, Body, anthropic, assistant, changed, gemini, openai, says, text, user

from contextbus.validation import TARGETS, Finding, check_types, sdk_types

PLAIN: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(AnthropicRequest)
CALLER: Body = {"model": "claude-opus-5", "max_tokens": 1}
SUMMARY: Body = {"type": "compaction", "content": "s"}


def found(body: object, target: str) -> list[tuple[str, str]]:
    findings = check_types(body, target)
    assert findings is not None
    assert {(finding.rule, finding.severity) for finding in findings} <= {("types", "error")}
    return [(finding.place, finding.message.split(";")[0]) for finding in findings]


def test_trap_1_an_iterable_is_looked_at() -> None:
    wrong = anthropic({"role": "user", "content": [{"type": "text", "text": 5}]}, {"role": 1})
    PLAIN.validate_python({**CALLER, **wrong})  # nothing is noticed
    assert [place for place, _ in found(wrong, "anthropic")] == ["messages[0].content[0].text", "messages[1]"]
    assert found(openai({"role": "user"}), "openai") == [("messages[0].content", "The SDK's type requires this member")]


@pytest.mark.parametrize("target", TARGETS)
def test_trap_2_unknown_members_are_findings(target: str) -> None:
    wrong = {**RIGHT[target], "ours": 1}
    if target == "anthropic":
        PLAIN.validate_python({**CALLER, **wrong})  # nothing is noticed
    assert found(wrong, target) == [("ours", "The SDK's type has no such member")]
    inner = changed(RIGHT[target], "tools", 0, "tags", to=["t"])
    assert len(found(inner, target)) == 1
    assert found(inner, target)[0][0].startswith("tools[0]")


@pytest.mark.rule("P.E.3")
@pytest.mark.parametrize("block", [text(), SUMMARY])
def test_every_keyword_of_json_schema_may_stand_in_a_tool(block: Body) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False, "$defs": {"a": {"type": "string"}}}
    tools = [{"name": "f", "input_schema": schema}]
    assert found(anthropic(user(block, text()), tools=tools), "anthropic") == []
    assert found(anthropic(user(block, text()), tools=[{"name": "f", "input_schema": 5}]), "anthropic")


def test_trap_3_a_union_gives_one_error_where_the_fault_is() -> None:
    body = anthropic(user(text(index=1)), assistant(text()), user())
    with pytest.raises(pydantic.ValidationError) as plain:
        # pydantic's own union says what each of its members wants.
        pydantic.TypeAdapter(list[ContentBlockParam]).validate_python([{"type": "text", "text": 5}])
    assert plain.value.error_count() > 10
    assert found(anthropic(user({"type": "text", "text": 5})), "anthropic") == [
        ("messages[0].content[0].text", "The SDK's type wants string here")
    ]
    assert found(body, "anthropic") == [("messages[0].content[0].index", "The SDK's type has no such member")]
    no_form = "This fits none of the forms that the SDK's types have here"
    assert found(anthropic(user({"type": "unheard_of"})), "anthropic") == [("messages[0].content[0]", no_form)]
    assert found(openai(says("robot")), "openai") == [("messages[0]", no_form)]
    lost = {"input": [{"type": "function_call_output", "call_id": "c"}]}
    assert found(lost, "openai-responses") == [("input[0].output", "The SDK's type requires this member")]
    assert found({"input": [{"type": "message", "role": "user", "content": 5}]}, "openai-responses") == [
        ("input[0]", no_form)
    ]


@pytest.mark.rule("P.A.2")
def test_what_the_caller_adds_is_filled_in_and_may_be_there() -> None:
    for target, more in (
        ("anthropic", CALLER),
        ("openai", {"model": "gpt-5", "max_completion_tokens": 5, "stream": True}),
        ("openai-responses", {"model": "gpt-5", "max_output_tokens": 5}),
        ("gemini", {"model": "gemini-3", "generationConfig": {"maxOutputTokens": 5}}),
    ):
        assert found(RIGHT[target], target) == []
        assert found({**RIGHT[target], **more}, target) == []
    assert found({**RIGHT["anthropic"], "max_tokens": "5"}, "anthropic") == [
        ("max_tokens", "The SDK's type wants int here")
    ]
    assert found({**RIGHT["anthropic"], "temperature": 0.5, "stream": True}, "anthropic") == []


def test_what_only_beta_knows_is_taken() -> None:
    assert found(anthropic(user(SUMMARY, text())), "anthropic") == []
    assert found(anthropic(user(SUMMARY, text(index=1))), "anthropic") == [
        ("messages[0].content[1].index", "The SDK's type has no such member")
    ]


def test_gemini_is_taken_in_both_spellings() -> None:
    body = gemini({"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}]})
    assert found({**body, "system_instruction": {"parts": [{"text": "s"}]}}, "gemini") == []
    assert found(gemini({"role": "user", "parts": [{"txt": "s"}]}), "gemini") == [
        ("contents[0].parts[0].txt", "The SDK's type has no such member")
    ]


def test_messages_hold_nothing_of_the_body() -> None:
    secret = anthropic({"role": "user", "content": [{"type": "secret", "secret words": 1}]}, {"secret words": "secret"})
    for finding in check_types(secret, "anthropic") or ():
        assert "secret" not in finding.message + finding.place


def test_findings_are_limited() -> None:
    assert len(check_types(openai(*({"role": "robot"} for _ in range(500))), "openai") or ()) == sdk_types.MOST


@pytest.mark.parametrize("target", TARGETS)
def test_without_the_sdk_the_layer_does_not_run(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    validators = (sdk_types.typed_dict_validator, sdk_types.gemini_validator)
    for validator in validators:
        validator.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("anthropic", "openai", "google")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("anthropic", "openai", "google", "google.genai"):
        monkeypatch.setitem(sys.modules, name, None)
    try:
        assert check_types(RIGHT[target], target) is None
    finally:
        for validator in validators:
            validator.cache_clear()


def test_each_validator_is_made_once_and_only_when_asked_for() -> None:
    sdk_types.typed_dict_validator.cache_clear()
    check_types(RIGHT["openai"], "openai")
    assert sdk_types.typed_dict_validator.cache_info().currsize == 1
    check_types(RIGHT["openai"], "openai")
    assert sdk_types.typed_dict_validator.cache_info().misses == 1


def test_a_finding_is_a_value() -> None:
    assert Finding("types", "error", "body", "m.") == Finding("types", "error", "body", "m.")
    assert len({Finding("types", "error", "body", "m."), Finding("types", "error", "body", "m.")}) == 1


@pytest.mark.rule("P.A.2", "anthropic.A19")
def test_a_tools_schema_may_hold_all_of_json_schema() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False, "$defs": {"a": {"type": "string"}}}
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"name": "f", "input_schema": schema}],
    }
    assert check_types(body, "anthropic") == ()
    body["tools"] = [{"name": "f", "input_schema": schema, "tags": ["a"]}]
    assert [found.place for found in check_types(body, "anthropic") or ()] == ["tools[0].tags"]

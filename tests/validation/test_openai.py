"""Each rule of OpenAI Chat Completions: payloads that break it and nothing else, and near misses that are allowed."""

from __future__ import annotations

import pytest
from tests.validation.bodies import Body, answer, anything, call, calls, openai, rules, says

from contextbus.validation import validate


def found(body: object) -> set[str]:
    return rules(body, "openai")


def only(body: object, rule: str, place: str, severity: str = "error") -> bool:
    """Whether one thing is found, of this rule, at this place."""
    return [(one.rule, one.place, one.severity) for one in validate(body, "openai")] == [(rule, place, severity)]


@pytest.mark.rule("all.S1")
def test_s1_no_lone_surrogate_anywhere() -> None:
    assert only(openai(says("user", "a\ud83d")), "all.S1", "messages[0].content")
    named = openai(says("user"), tools=[{"type": "function", "function": {"name": "f", "description": "\ude00"}}])
    assert only(named, "all.S1", "tools[0].function.description")
    assert found(openai(says("user", "a\U0001f600"))) == set()


@pytest.mark.rule("openai.C1")
def test_c1_messages_are_not_empty() -> None:
    for messages in anything([], None, "words", {}):
        assert only({"messages": messages}, "openai.C1", "messages")
    assert found({"messages": [says("user")]}) == set()


@pytest.mark.rule("openai.C2")
def test_c2_roles() -> None:
    for role in ("function", "model", "User", "", None, 1, ["user"]):
        assert only(openai(says("user"), {"role": role, "content": "x"}), "openai.C2", "messages[1]")
    assert only(openai({"content": "x"}), "openai.C2", "messages[0]")
    assert (
        found(openai(says("system"), says("developer"), says("user"), calls(call()), answer(), says("user"))) == set()
    )


@pytest.mark.rule("openai.C3")
def test_c3_all_calls_are_answered_before_another_role() -> None:
    assert only(openai(says("user"), calls(call())), "openai.C3", "messages[1].tool_calls[0]")
    half = openai(says("user"), calls(call("a"), call("b")), answer("a"), says("user"))
    assert only(half, "openai.C3", "messages[1].tool_calls[1]")
    late = openai(says("user"), calls(call()), says("user"), answer())
    assert found(late) == {"openai.C3", "openai.C4"}
    custom = {"id": "a", "type": "custom", "custom": {"name": "f", "input": "any"}}
    assert only(openai(says("user"), calls(custom)), "openai.C3", "messages[1].tool_calls[0]")
    assert found(openai(says("user"), calls(custom), answer())) == set()
    assert found(openai(says("user"), calls(call("a"), call("b")), answer("b"), answer("a"))) == set()


@pytest.mark.rule("openai.C4")
def test_c4_a_tool_message_answers_a_waiting_call_once() -> None:
    assert only(openai(says("user"), answer()), "openai.C4", "messages[1]")
    assert only(openai(says("user"), calls(call()), answer(), answer()), "openai.C4", "messages[3]")
    assert only(openai(says("user"), calls(call()), answer(), says("tool")), "openai.C4", "messages[3]")
    assert (
        found(openai(says("user"), calls(call()), answer(), says("assistant"), calls(call("b")), answer("b"))) == set()
    )


@pytest.mark.rule("openai.C5")
def test_c5_content_is_present() -> None:
    assert only(openai(says("system", None), says("user")), "openai.C5", "messages[0]")
    assert only(openai(says("user"), {"role": "assistant"}), "openai.C5", "messages[1]")
    assert only(openai(says("user"), says("assistant", [])), "openai.C5", "messages[1]")
    assert only(openai(says("user"), calls(call()), {"role": "tool", "tool_call_id": "a"}), "openai.C5", "messages[2]")
    for key in ("refusal", "audio"):
        assert (
            found(openai(says("user"), says("assistant", None, **{key: "no" if key == "refusal" else {"id": "x"}})))
            == set()
        )
    assert only(openai(says("user"), says("assistant", None, refusal=None)), "openai.C5", "messages[1]")
    assert (
        found(openai(says("user"), says("assistant", ""), calls(call()), says("tool", "", tool_call_id="a"))) == set()
    )


@pytest.mark.rule("openai.C6")
def test_c6_tool_calls_is_never_empty() -> None:
    for empty in anything([], None):
        body = openai(says("user"), says("assistant", tool_calls=empty))
        assert only(body, "openai.C6", "messages[1].tool_calls")
    assert found(openai(says("user"), says("assistant"))) == set()


@pytest.mark.rule("openai.C7")
def test_c7_ids_have_1_to_40_characters() -> None:
    for bad in ("", "x" * 41):
        body = openai(says("user"), calls(call(bad)), answer(bad))
        assert only(body, "openai.C7", "messages[1].tool_calls[0]")
    nameless = openai(says("user"), calls({"type": "function", "function": {"name": "f", "arguments": "{}"}}))
    assert only(nameless, "openai.C7", "messages[1].tool_calls[0]")
    for good in ("x", "x" * 40, "any thing: ä"):
        assert found(openai(says("user"), calls(call(good)), answer(good))) == set()


@pytest.mark.rule("openai.C8")
def test_c8_names() -> None:
    for bad in ("", "a b", "a.b", "x" * 65, "f\n"):
        assert only(
            openai(says("user"), calls(call(name=bad)), answer()), "openai.C8", "messages[1].tool_calls[0].function"
        )
        tools = [{"type": "function", "function": {"name": bad}}]
        assert only(openai(says("user"), tools=tools), "openai.C8", "tools[0].function")
    custom = {"id": "a", "type": "custom", "custom": {"name": "a b", "input": ""}}
    assert found(openai(says("user"), calls(custom), answer())) == {"openai.C8"}
    assert found(openai(says("user"), calls(call(name="x" * 64)), answer())) == set()


@pytest.mark.rule("openai.C9")
def test_c9_arguments_hold_a_json_object() -> None:
    for bad in ("", "[]", "1", "null", '{"x": NaN}', "{", "{}{}"):
        body = openai(says("user"), calls(call(arguments=bad)), answer())
        assert only(body, "openai.C9", "messages[1].tool_calls[0].function.arguments"), bad
    plain: Body = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert found(openai(says("user"), calls(plain), answer())) == {"openai.C9"}
    for good in ("{}", ' {"x": {"y": [1e5, null]}} ', '{"x": "\\ud83d\\ude00"}'):
        assert found(openai(says("user"), calls(call(arguments=good)), answer())) == set()


@pytest.mark.rule("openai.L4")
def test_l4_instructions_that_are_not_at_the_start() -> None:
    for role in ("system", "developer"):
        assert only(openai(says("user"), says(role)), "openai.L4", "messages[1]", "warning")
    assert found(openai(says("system"), says("developer"), says("system"), says("user"))) == set()


@pytest.mark.rule("openai.L5")
def test_l5_an_empty_user_message() -> None:
    for empty in ("", [{"type": "text", "text": ""}]):
        assert only(openai(says("user", empty)), "openai.L5", "messages[0]", "warning")
    assert found(openai(says("user", []))) == {"openai.C5", "openai.L5"}
    image = {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}
    assert found(openai(says("user", [image]), says("user", " "), says("assistant", ""))) == set()


@pytest.mark.rule("openai.L9")
def test_l9_repeated_ids() -> None:
    body = openai(says("user"), calls(call()), answer(), calls(call()), answer())
    assert only(body, "openai.L9", "messages[3].tool_calls[0]", "warning")
    twins = openai(says("user"), calls(call(), call()), answer(), answer())
    assert only(twins, "openai.L9", "messages[1].tool_calls[1]", "warning")
    assert found(openai(says("user"), calls(call("a"), call("A")), answer("A"), answer("a"))) == set()

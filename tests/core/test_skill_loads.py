"""Loads of skills are facts of the messages that ask for them and answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.skill_loads import LONGEST_SKILL_ID, body_record, is_skill_id, skill_facts
from contextbus_protocol.chat import ChatMessage, Role, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.events import MessageFact, SkillCall


def call(arguments: str, *, name: str = "load_skill", role: Role = "assistant", call_id: str = "c1") -> ChatMessage:
    return ChatMessage(role=role, content=(Text(text="Let me."), ToolCall(id=call_id, name=name, arguments=arguments)))


def result(*, name: str | None, error: bool = False, call_id: str = "c1") -> ChatMessage:
    content = (Text(text="done"),)
    return ChatMessage(role="tool", content=(ToolResult(id=call_id, content=content, name=name, error=error),))


@pytest.mark.rule("D.K.26")
def test_a_call_of_load_skill_names_the_skill() -> None:
    assert skill_facts(call('{"skill": "pdf/forms"}')) == ((SkillCall("c1", "pdf/forms"),), ())


@pytest.mark.rule("D.K.26")
def test_calls_and_results_of_one_message_keep_their_order() -> None:
    calls = tuple(ToolCall(id=f"c{n}", name="load_skill", arguments=json.dumps({"skill": f"s{n}"})) for n in (2, 1, 3))
    message = ChatMessage(role="assistant", content=calls)
    assert skill_facts(message)[0] == (SkillCall("c2", "s2"), SkillCall("c1", "s1"), SkillCall("c3", "s3"))
    results = tuple(ToolResult(id=f"c{n}") for n in (3, 1))
    assert skill_facts(ChatMessage(role="user", content=results)) == ((), ("c3", "c1"))


@pytest.mark.rule("D.K.26", "D.K.14")
@pytest.mark.parametrize(
    "message",
    [
        user("load_skill pdf"),
        assistant('{"skill": "pdf"}'),
        call('{"skill": "pdf"}', name="read_file"),
        call('{"skill": "pdf"}', role="user"),
        call("{}"),
        call('{"skill": 7}'),
        call('{"skill": null}'),
        call('{"skill": ["pdf"]}'),
        call('{"skill": ""}'),
        call('{"skill": "please tell me the secret"}'),
        call(json.dumps({"skill": "x" * (LONGEST_SKILL_ID + 1)})),
        call('{"skill": "pdf/body"}'),
        call('{"skill": "one\\u2028two"}'),
        call('["pdf"]'),
        call('"pdf"'),
        call("pdf"),
        call(""),
        call('{"skill": "pdf"'),
        call("[" * 5000),
    ],
)
def test_what_names_no_skill_is_no_call(message: ChatMessage) -> None:
    assert skill_facts(message) == ((), ())


@pytest.mark.rule("D.K.26")
@pytest.mark.parametrize(
    ("message", "succeeded"),
    [
        (result(name="load_skill"), ("c1",)),
        (result(name=None), ("c1",)),
        (result(name="read_file"), ()),
        (result(name="load_skill", error=True), ()),
        (result(name=None, error=True), ()),
    ],
)
def test_only_results_of_the_tool_that_are_no_error_succeed(message: ChatMessage, succeeded: tuple[str, ...]) -> None:
    assert skill_facts(message) == ((), succeeded)


@pytest.mark.rule("D.K.26", "D.D.25")
@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
def test_whatever_a_model_writes_the_facts_can_be_stored_and_hold_no_sentence(
    call_id: str, skill: str, arguments: str
) -> None:
    for text in (json.dumps({"skill": skill}), arguments):
        calls, _ = skill_facts(call(text, call_id=call_id))
        _, succeeded = skill_facts(result(name=None, call_id=call_id))
        encode_json(MessageFact("sha256:0", 18, "assistant", calls, succeeded))
        assert all(" " not in made.skill and len(made.skill) <= LONGEST_SKILL_ID for made in calls)
        assert all((made.call,) == succeeded for made in calls)


@pytest.mark.rule("D.K.26")
def test_the_record_of_a_body_is_no_skill_of_its_own() -> None:
    assert body_record("pdf") == "pdf/body"
    assert all(map(is_skill_id, ("pdf", "body", "a/b")))
    assert not is_skill_id(body_record("pdf"))

"""The tool ``load_skill``: definitions that providers take, and answers that are receipts."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.skill_loads import skill_facts
from contextbus.core.skill_tool import MAX_LISTED, PROVIDERS, answer_load_skill, load_skill_tool
from contextbus.core.targets.tools import read_tools
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult
from contextbus_protocol.events import SkillCall

SKILLS = ("pdf", "office/xlsx")


def text_of(result: ToolResult) -> str:
    (part,) = result.content
    assert isinstance(part, Text)
    return part.text


@pytest.mark.rule("D.K.26")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_gets_the_same_tool_in_its_own_shape(provider: str) -> None:
    definition = load_skill_tool(provider)
    (read,) = read_tools(json.dumps([definition]))
    assert read.name == "load_skill"
    schema = msgspec.json.decode(read.parameters)
    assert schema["required"] == ["skill"]
    assert schema["properties"]["skill"]["type"] == "string"
    where = {"anthropic": "input_schema", "openai": "function", "gemini": "parameters"}[provider]
    assert where in definition


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match="anthropic, openai, gemini"):
        load_skill_tool("acme")


@pytest.mark.rule("D.K.26")
@pytest.mark.parametrize("arguments", ['{"skill": "office/xlsx"}', {"skill": "office/xlsx"}])
def test_the_answer_is_a_receipt_without_the_text(arguments: str | dict[str, object]) -> None:
    answer = answer_load_skill(arguments, SKILLS, call="c1")
    assert (answer.id, answer.name, answer.error) == ("c1", "load_skill", False)
    assert text_of(answer) == "Skill office/xlsx is loaded; its instructions are part of the next request."


@pytest.mark.rule("D.K.26")
@pytest.mark.parametrize("arguments", ['{"skill": "xlsx"}', "{}", "", "[", '{"skill": 3}', '{"skill": "a b"}'])
def test_what_names_no_skill_is_an_error_that_lists_the_ids(arguments: str) -> None:
    answer = answer_load_skill(arguments, SKILLS, call="c1")
    assert answer.error
    assert "office/xlsx, pdf" in text_of(answer)


@pytest.mark.rule("D.K.26")
def test_an_error_says_what_is_wrong() -> None:
    assert "there is no skill xlsx; " in text_of(answer_load_skill({"skill": "xlsx"}, SKILLS))
    spaced = answer_load_skill({"skill": "a b"}, ["a b"])  # whatever a host lists, this is no id
    assert spaced.error
    assert "the argument must be" in text_of(spaced)


def test_an_error_lists_some_of_many_ids_and_says_where_there_are_none() -> None:
    many = [f"s{n:03}" for n in range(MAX_LISTED + 3)]
    said = text_of(answer_load_skill("{}", many))
    assert said.count(", s") == MAX_LISTED - 1
    assert "and 3 more" in said
    assert " more" not in text_of(answer_load_skill("{}", many[:MAX_LISTED]))
    assert "there are no skills" in text_of(answer_load_skill('{"skill": "x"}', ()))


@pytest.mark.rule("D.K.26")
@given(skill=st.sampled_from([*SKILLS, "other", "", "a b"]), named=st.booleans(), marked=st.booleans())
def test_facts_tell_a_receipt_from_an_error_also_where_a_provider_marks_neither(
    skill: str, named: bool, marked: bool
) -> None:
    arguments = json.dumps({"skill": skill})
    call = ChatMessage(role="assistant", content=(ToolCall(id="c1", name="load_skill", arguments=arguments),))
    answer = answer_load_skill(arguments, SKILLS, call="c1")
    sent = msgspec.structs.replace(answer, name=answer.name if named else None, error=answer.error if marked else False)
    loaded = skill in SKILLS
    _, succeeded = skill_facts(ChatMessage(role="tool", content=(sent,)))
    assert succeeded == (("c1",) if loaded else ())
    if loaded:
        assert skill_facts(call) == ((SkillCall("c1", skill),), ())

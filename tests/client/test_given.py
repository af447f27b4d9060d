"""What users hand over: tool results as they come, words that are none, and what a report may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.client.scripted import MODEL, SCOPE, bus_with

import contextbus.client as contextbus
from contextbus.client.given import read_given
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError

CALL = ChatMessage(role="assistant", content=(ToolCall(id="c1", name="working_memory_read"),))


@pytest.mark.rule("D.Q.1")
async def test_the_result_of_a_tool_is_appended_as_it_is() -> None:
    async with bus_with() as bus:
        run = await bus.run("one", scope=SCOPE)
        await run.working_memory.create(goal="Tea.")
        run.append(contextbus.user("What is the goal?"), CALL)
        result = await run.working_memory_tools().call("working_memory_read", {}, call_id="c1")
        run.append(result)
        step = await run.before_model_call(model=MODEL)
        assert run.messages[-1] == ChatMessage(role="tool", content=(result,))
        (sent,) = [m for m in cast("Any", step.payload("openai").copy())["messages"] if m["role"] == "tool"]
        assert sent["tool_call_id"] == "c1"


@pytest.mark.rule("P.E.9")
def test_each_result_in_a_row_is_a_message_of_its_own() -> None:
    one, two = (ToolResult(id=name, content=(Text(text=name),)) for name in ("c1", "c2"))
    read = read_given([{"role": "user", "content": "hi"}, CALL, one, two, {"role": "user", "content": "go on"}])
    assert [m.role for m in read] == ["user", "assistant", "tool", "tool", "user"]
    assert [m.content for m in read[2:4]] == [(one,), (two,)]


@pytest.mark.rule("P.E.9")
def test_a_result_without_the_id_of_its_call_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="id of the call"):
        read_given([contextbus.answer_load_skill({"id": "pdf"}, ["pdf"])])


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "usr", "content": "hi"}],
        [{"role": "usr", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]}],
    ],
)
def test_a_role_that_is_none_is_named(messages: list[dict[str, object]]) -> None:
    with pytest.raises(InvalidTypeError, match=r"messages\[0\].role: expected one of .*user.*, found 'usr'"):
        read_given(messages)


@pytest.mark.rule("P.E.9")
def test_what_is_no_word_is_named_cut_short() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        read_given([{"role": "a text that was written into the wrong field", "content": "hi"}])
    assert "wrong field" not in str(caught.value)


@pytest.mark.rule("D.W.8")
@pytest.mark.parametrize("status", ["ok", "", None, []])
def test_a_report_of_an_unknown_outcome_names_the_known_ones(status: object) -> None:
    with pytest.raises(InvalidTypeError, match="succeeded, failed, cancelled, overflow"):
        contextbus.Report(status=cast("Any", status))


async def test_a_tokenizer_that_was_not_opened_is_named_with_the_way_to_it() -> None:
    async with bus_with() as bus:
        spec = contextbus.EstimatorSpec(kind="tokenizer", name="o200k_base")
        run = await bus.run("one", scope=SCOPE, estimator=spec)
        with pytest.raises(InvalidRequestError, match=r"tokenizers=\['o200k_base'\]"):
            await run.before_model_call([contextbus.user("hi")], model=MODEL)


@pytest.mark.rule("D.K.26")
async def test_the_bus_has_the_skills_of_its_sources(tmp_path: Path) -> None:
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "SKILL.md").write_text("---\nname: PDF\ndescription: Fill in forms.\n---\nUse pypdf.\n")
    async with contextbus.open("memory:", skills=tmp_path) as bus:
        assert list(bus.skills) == ["pdf"]
        assert not contextbus.answer_load_skill({"skill": "pdf"}, bus.skills, call="c1").error

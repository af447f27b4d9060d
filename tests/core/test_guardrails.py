"""Guardrails: fixed texts, and when a prefill is an instruction."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.checkers import check_anthropic
from tests.core.payloads import said, sent

from contextbus.core.bound_models import BOUND_MODELS
from contextbus.core.guardrails import (
    GUARDRAILS_VERSION,
    output_tag_message,
    prefill_degrades,
    prefill_message,
)
from contextbus.core.payload import Request, assemble, start_rendering
from contextbus_protocol.chat import ChatMessage, Image, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.errors import EmptyHistoryError, InvalidRequestError, InvalidTypeError
from contextbus_protocol.values import Model, ModelPrefix

OLD = "claude-opus-4-5-20251101"
NEW = "claude-opus-4-6"


def text_of(message: ChatMessage) -> str:
    (part,) = message.content
    assert message.role == "user"
    assert isinstance(part, Text)
    return part.text


@pytest.mark.rule("P.C.1", "P.C.4")
def test_the_texts_byte_for_byte() -> None:
    """Changing one changes every request: then ``GUARDRAILS_VERSION`` has to change."""
    assert GUARDRAILS_VERSION == 1
    assert text_of(output_tag_message("final_code")) == (
        "<output_format>\n"
        "Give the whole answer inside one element, with nothing before it and nothing after it:\n"
        "<final_code>the answer</final_code>\n"
        "</output_format>"
    )
    assert text_of(prefill_message("<thinking>\n1. \n")) == (
        "<answer_start>\n"
        "The answer begins with exactly the text of this element, XML escapes undone, and goes on from there:\n"
        "<text>&lt;thinking&gt;\n1.</text>\n"
        "</answer_start>"
    )


@pytest.mark.rule("P.C.1")
@pytest.mark.parametrize("tag", ["a", "_", "Answer-1.b", "a" * 200])
def test_a_tag_is_the_name_of_an_element(tag: str) -> None:
    assert [child.tag for child in ET.fromstring(text_of(output_tag_message(tag)))] == [tag]


@pytest.mark.rule("P.C.1")
@pytest.mark.parametrize("tag", ["", "1a", "-a", "a b", "a>", "a\n", "ä", "{tag}", "a:b", None, 3])
def test_what_is_no_name_is_refused(tag: Any) -> None:
    with pytest.raises(InvalidTypeError, match="output_tag"):
        output_tag_message(tag)


@pytest.mark.rule("P.C.4", "D.E.7")
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")))
def test_a_degraded_prefill_is_its_text_stripped_at_the_end(text: str) -> None:
    (inner,) = ET.fromstring(text_of(prefill_message(text)))
    assert (inner.text or "") == text.rstrip()


def model(model_id: str, provider: str = "anthropic") -> Model:
    return Model(provider, model_id, 200_000, 8_000)


@pytest.mark.rule("P.C.2", "P.C.4", "D.F.8")
def test_when_a_prefill_degrades() -> None:
    assert not prefill_degrades(model(OLD), thinking=False)
    assert prefill_degrades(model(OLD), thinking=True)
    assert prefill_degrades(model(NEW), thinking=False)
    assert prefill_degrades(model(OLD, "openai"), thinking=False)
    assert prefill_degrades(model("gpt-4o", "openai"), thinking=False)
    assert prefill_degrades(None, thinking=False)
    assert prefill_degrades(model(OLD), False, (ModelPrefix("anthropic", "claude-opus-4-5"),))
    for row in BOUND_MODELS:
        assert prefill_degrades(model(row.model_id), thinking=False)


def payload_of(prefill: str | None, target: str, model_id: str | None, *history: ChatMessage) -> Any:
    rendering = start_rendering(target, model_id).extend(history)
    return assemble(Request(history=rendering, tail=(user("tail"),), prefill=prefill))


@pytest.mark.rule("P.C.2", "P.C.4")
def test_a_prefill_is_the_last_message_where_the_model_takes_one() -> None:
    body = payload_of("so: \n", "anthropic", OLD, user("q")).body
    assert body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "so:"}]}
    assert check_anthropic(body, prefill=True) == []
    assert len(body["messages"]) == 2


@pytest.mark.rule("P.C.2", "P.C.4")
@pytest.mark.parametrize(("target", "model_id"), [("anthropic", NEW), ("anthropic", None), ("openai", "gpt-4o")])
def test_elsewhere_it_is_an_instruction_at_the_end_of_the_tail(target: str, model_id: str | None) -> None:
    messages = sent(payload_of("so: ", target, model_id, user("q")))
    said_last = messages[-1]["content"]
    last = said_last if isinstance(said_last, str) else said_last[-1]["text"]
    assert messages[-1]["role"] == "user"
    assert last == text_of(prefill_message("so:"))


HISTORY = (
    user("q"),
    said("assistant", ToolCall(id="a", name="f")),
    said("tool", ToolResult(id="a", content=(Text(text="r"),))),
    said("user", Text(text="look"), Image(media_type="image/png", data="aGk=")),
    assistant("finished"),
)


@pytest.mark.rule("P.C.3")
@pytest.mark.parametrize(("target", "model_id"), [("anthropic", OLD), ("anthropic", NEW), ("openai", None)])
@pytest.mark.parametrize("prefill", [None, "", " \n", "so:"])
def test_a_finished_answer_and_all_attachments_stay(target: str, model_id: str | None, prefill: str | None) -> None:
    """No text of the history is taken for a prefill, whatever is asked for."""
    rendering = start_rendering(target, model_id).extend(HISTORY)
    payload = assemble(Request(history=rendering, prefill=prefill))
    text = payload.json().decode()
    for kept in ("finished", "aGk=", "look", '"q"'):
        assert kept in text
    assert ("so:" in text) is (prefill == "so:")
    if target == "anthropic":
        assert check_anthropic(json.loads(text), prefill=model_id == OLD) == []
    else:
        sent(payload)


@pytest.mark.rule("P.C.3", "P.E.15")
@pytest.mark.parametrize(("target", "model_id"), [("anthropic", OLD), ("openai", None)])
def test_a_prefill_alone_is_no_request(target: str, model_id: str | None) -> None:
    with pytest.raises(EmptyHistoryError):
        assemble(Request(history=start_rendering(target, model_id), prefill="so:"))


@pytest.mark.rule("P.A.4")
def test_a_blank_prefill_is_none() -> None:
    assert payload_of(" \n", "openai", None, user("q")).json() == payload_of(None, "openai", None, user("q")).json()


@pytest.mark.rule("P.C.2", "P.E.2")
@pytest.mark.parametrize(("target", "model_id"), [("anthropic", NEW), ("openai", None), ("gemini", None)])
def test_a_prefill_that_becomes_an_instruction_is_listed(target: str, model_id: str | None) -> None:
    payload = payload_of("so:", target, model_id, user("q"))
    assert [(repair.code, repair.message) for repair in payload.repairs if repair.code == "prefill"] == [("prefill", 2)]
    assert "prefill" not in [repair.code for repair in payload_of(None, target, model_id, user("q")).repairs]
    assert "prefill" not in [repair.code for repair in payload_of("so:", "anthropic", OLD, user("q")).repairs]
    rendering = start_rendering("anthropic", OLD).extend([user("q")])
    told = assemble(Request(history=rendering, prefill="so:", takes_prefill=False))
    assert ([repair.code for repair in told.repairs], told.prefilled) == (["prefill", "merged"], False)


@pytest.mark.rule("P.C.4")
def test_a_payload_with_a_prefill_refuses_members_that_make_the_model_think() -> None:
    payload = payload_of("so:", "anthropic", OLD, user("q"))
    for thinking in ({"type": "enabled", "budget_tokens": 2_000}, {"type": "adaptive"}):
        for write in (payload.json, payload.chunks):
            with pytest.raises(InvalidRequestError, match="thinking=True on the guardrails"):
                write(thinking=thinking)
        assert b'"thinking"' in payload_of(None, "anthropic", OLD, user("q")).json(thinking=thinking)
    for silent in ({"type": "disabled"}, None):
        assert json.loads(payload.json(thinking=silent))["thinking"] == silent


@pytest.mark.rule("P.E.2", "anthropic.A5")
def test_an_answer_stripped_at_the_end_stays_last_and_is_listed() -> None:
    for said_last, expected in (("so", []), ("so \n", ["last-assistant"])):
        payload = assemble(Request(history=start_rendering("anthropic", OLD).extend([user("q"), assistant(said_last)])))
        assert json.loads(payload.json())["messages"][-1]["content"] == [{"type": "text", "text": "so"}]
        assert [repair.code for repair in payload.repairs] == expected

"""Each rule of Gemini's generateContent: payloads that break it and nothing else, and near misses that are allowed."""

from __future__ import annotations

import pytest
from tests.validation.bodies import Body, anything, asks, gcall, gemini, gresponse, gtext, replies, rules

from contextbus.validation import validate

OLD = "gemini-2.5-pro"


def found(body: object, model: str | None = None) -> set[str]:
    return rules(body, "gemini", model)


def only(body: object, rule: str, place: str, severity: str = "error") -> bool:
    """Whether one thing is found, of this rule, at this place."""
    return [(one.rule, one.place, one.severity) for one in validate(body, "gemini")] == [(rule, place, severity)]


@pytest.mark.rule("gemini.G1")
def test_g1_contents_are_not_empty_and_begin_with_user() -> None:
    for contents in anything([], None, "words", {}):
        assert only({"contents": contents}, "gemini.G1", "contents")
    assert only(gemini(replies(), asks()), "gemini.G1", "contents[0]")
    assert found(gemini(asks())) == set()


@pytest.mark.rule("gemini.G2")
def test_g2_roles_and_what_stands_in_each() -> None:
    for role in ("assistant", "function", "", None, 1, ["user"]):
        body = gemini(asks(), {"role": role, "parts": [gtext()]})
        assert only(body, "gemini.G2", "contents[1]")
    assert only(gemini(asks(), {"parts": [gtext()]}), "gemini.G2", "contents[1]")
    assert only(gemini(asks(gcall())), "gemini.G2", "contents[0].parts[0]")
    assert only(gemini(asks(), replies(gresponse()), asks()), "gemini.G2", "contents[1].parts[0]")
    assert found(gemini(asks(), replies(gcall()), asks(gresponse()))) == set()


@pytest.mark.rule("gemini.G3")
def test_g3_no_empty_parts_or_text() -> None:
    for parts in anything([], None):
        assert only(gemini({"role": "user", "parts": parts}), "gemini.G3", "contents[0].parts")
    for part in (gtext(""), {}, {"thought": True}, {"text": None}):
        assert only(gemini(asks(part)), "gemini.G3", "contents[0].parts[0]")
    signed = {"text": "", "thoughtSignature": "c2ln"}
    assert found(gemini(asks(), replies(gtext(), signed), asks(gtext(" ")))) == set()
    assert found(gemini(asks(), replies(gtext(), {"thought_signature": "c2ln"}), asks())) == set()


@pytest.mark.rule("gemini.G4")
def test_g4_roles_alternate() -> None:
    assert only(gemini(asks(), asks()), "gemini.G4", "contents[1]")
    assert only(gemini(asks(), replies(), replies(), asks()), "gemini.G4", "contents[2]")
    assert found(gemini(asks(gtext(), gtext()), replies(), asks())) == set()


@pytest.mark.rule("gemini.G5")
def test_g5_one_data_field_a_part() -> None:
    assert only(gemini(asks({"text": "x", "fileData": {"fileUri": "f"}})), "gemini.G5", "contents[0].parts[0]")
    snake = {"inline_data": {"mime_type": "image/png", "data": ""}, "file_data": {"file_uri": "f"}}
    assert only(gemini(asks(snake)), "gemini.G5", "contents[0].parts[0]")
    told: Body = {"text": "x", "thought": True, "thoughtSignature": "s", "inlineData": None, "videoMetadata": {}}
    assert found(gemini(asks(), replies(told), asks())) == set()


@pytest.mark.rule("gemini.G6")
def test_g6_args_and_response_are_objects() -> None:
    for bad in anything("{}", [], 1):
        body = gemini(asks(), replies(gcall(args=bad)), asks(gresponse()))
        assert only(body, "gemini.G6", "contents[1].parts[0].functionCall.args")
    for bad in anything("ok", [], None):
        body = gemini(asks(), replies(gcall()), asks(gresponse(response=bad)))
        assert only(body, "gemini.G6", "contents[2].parts[0].functionResponse.response")
    assert found(gemini(asks(), replies(gcall(args=None)), asks(gresponse(response={})))) == set()


@pytest.mark.rule("gemini.G7")
def test_g7_the_next_content_answers_each_call_in_order() -> None:
    two = replies(gcall("f"), gcall("g"))
    assert only(gemini(asks(), two, asks(gresponse("f"))), "gemini.G7", "contents[1]")
    assert only(gemini(asks(), two, asks()), "gemini.G7", "contents[1]")
    assert only(gemini(asks(), replies(gcall())), "gemini.G7", "contents[1]")
    more = gemini(asks(), replies(gcall()), asks(gresponse(), gresponse()))
    assert only(more, "gemini.G7", "contents[1]")
    swapped = gemini(asks(), two, asks(gresponse("g"), gresponse("f")))
    assert found(swapped) == {"gemini.G7"}
    assert only(gemini(asks(), replies(gcall("f")), asks(gresponse("g"))), "gemini.G7", "contents[2].parts[0]")
    assert only(gemini(asks(gresponse())), "gemini.G7", "contents[0].parts[0]")
    again = gemini(asks(), replies(gcall()), asks(gresponse()), replies(), asks(gresponse()))
    assert only(again, "gemini.G7", "contents[4].parts[0]")
    assert found(gemini(asks(), two, asks(gresponse("f"), gresponse("g")))) == set()
    assert (
        found(gemini(asks(), replies(gcall(id="1"), gcall(id="2")), asks(gresponse(id="1"), gresponse(id="2"))))
        == set()
    )


@pytest.mark.rule("gemini.G8")
def test_g8_the_first_call_of_each_step_of_the_current_turn_is_signed() -> None:
    unsigned = gcall(signature=None)
    step = gemini(asks(), replies(gcall()), asks(gresponse()), replies(unsigned), asks(gresponse()))
    assert only(step, "gemini.G8", "contents[3].parts[0]")
    first = gemini(asks(), replies(unsigned, gcall()), asks(gresponse(), gresponse()))
    assert only(first, "gemini.G8", "contents[1].parts[0]")
    assert only(gemini(asks(), replies(gcall(signature="")), asks(gresponse())), "gemini.G8", "contents[1].parts[0]")
    for model in ("gemini-3-pro-preview", "models/gemini-3.1-flash", "gemini-4", "gemini-flash-latest"):
        assert found(step, model) == {"gemini.G8"}
    for model in (OLD, "gemini-2.0-flash", "gemini-3-pro-image-preview"):
        assert found(step, model) == set()
    parallel = gemini(asks(), replies(gtext(), gcall(), unsigned), asks(gresponse(), gresponse()))
    assert found(parallel) == set()
    earlier = gemini(asks(), replies(unsigned), asks(gresponse()), replies(), asks())
    assert found(earlier) == set()
    assert (
        found(gemini(asks(), replies(gcall(signature="skip_thought_signature_validator")), asks(gresponse()))) == set()
    )


@pytest.mark.rule("gemini.G9")
def test_g9_a_cache_excludes_what_it_holds() -> None:
    values: Body = {"systemInstruction": {"parts": [gtext()]}, "tools": [{"googleSearch": {}}], "toolConfig": {}}
    for key, value in values.items():
        assert only(gemini(asks(), cachedContent="cachedContents/x", **{key: value}), "gemini.G9", key)
        assert found(gemini(asks(), **{key: value})) == set()
    nested = gemini(asks(), config={"cached_content": "cachedContents/x", "system_instruction": "s"})
    assert only(nested, "gemini.G9", "config.systemInstruction")
    assert found(gemini(asks(), cachedContent="cachedContents/x", generationConfig={})) == set()


@pytest.mark.rule("gemini.L8", "P.E.23")
def test_l8_text_beside_a_response() -> None:
    body = gemini(asks(), replies(gcall()), asks(gresponse(), gtext()))
    assert only(body, "gemini.L8", "contents[2].parts[1]", "warning")
    assert found(gemini(asks(), replies(gcall()), asks(gresponse()), replies(), asks(gtext()))) == set()


def test_both_spellings_are_read() -> None:
    call: Body = {"function_call": {"name": "f", "args": {}}, "thought_signature": "s"}
    response: Body = {"function_response": {"name": "f", "response": {}}}
    assert found(gemini(asks(), replies(call), asks(response))) == set()
    assert found(gemini(asks(), replies(call), asks())) == {"gemini.G7"}

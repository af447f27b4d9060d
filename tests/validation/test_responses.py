"""Each rule of OpenAI Responses: payloads that break it and nothing else, and near misses that are allowed."""

from __future__ import annotations

import pytest
from tests.validation.bodies import Body, anything, compaction, fcall, output, reasoning, responses, rules, says, spoken

from contextbus.validation import validate

REFERENCE = {"type": "item_reference", "id": "fc_9"}


def found(body: object, model: str | None = None) -> set[str]:
    return rules(body, "openai-responses", model)


def only(body: object, rule: str, place: str, severity: str = "error") -> bool:
    """Whether one thing is found, of this rule, at this place."""
    findings = validate(body, "openai-responses")
    return [(one.rule, one.place, one.severity) for one in findings] == [(rule, place, severity)]


@pytest.mark.rule("responses.R1")
def test_r1_input_is_not_empty() -> None:
    for given in anything([], "", None, {}, 1):
        assert only({"input": given}, "responses.R1", "input")
    assert only({}, "responses.R1", "input")
    assert only({"input": [], "previous_response_id": "resp_1"}, "responses.R1", "input")
    assert found({"input": "words"}) == set()
    assert found({"prompt": {"id": "pmpt_1"}}) == set()


@pytest.mark.rule("responses.R2")
def test_r2_call_ids_have_1_to_64_characters_and_are_unique() -> None:
    for bad in ("", "x" * 65):
        assert only(responses(says("user"), fcall(bad), output(bad)), "responses.R2", "input[1]")
    twice = responses(says("user"), fcall(), output(), fcall())
    assert only(twice, "responses.R2", "input[3]")
    nameless = {"type": "function_call", "name": "f", "arguments": "{}"}
    assert only(responses(says("user"), nameless), "responses.R2", "input[1]")
    assert found(responses(says("user"), fcall("x" * 64), output("x" * 64))) == set()
    # Where the provider searched, there is no call id.
    searched: Body = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}}
    assert (
        found(responses(says("user"), searched, {"type": "tool_search_output", "call_id": None, "tools": []})) == set()
    )


@pytest.mark.rule("responses.R3")
def test_r3_arguments_are_json() -> None:
    for bad in anything("", "{", "words", "NaN", None, {}):
        body = responses(says("user"), fcall(arguments=bad), output())
        assert only(body, "responses.R3", "input[1].arguments"), bad
    remote = {"type": "mcp_call", "id": "mcp_1", "name": "f", "server_label": "s", "arguments": "{"}
    assert only(responses(says("user"), remote), "responses.R3", "input[1].arguments")
    for good in ("{}", "[]", "null"):
        assert found(responses(says("user"), fcall(arguments=good), output())) == set()
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "any {"}
    assert (
        found(responses(says("user"), custom, {"type": "custom_tool_call_output", "call_id": "c", "output": ""}))
        == set()
    )


@pytest.mark.rule("responses.R4")
def test_r4_outputs_match_a_call_once() -> None:
    assert only(responses(says("user"), output()), "responses.R4", "input[1]")
    assert only(responses(says("user"), fcall(), output(), output()), "responses.R4", "input[3]")
    assert only(responses(says("user"), {"type": "function_call_output", "output": ""}), "responses.R4", "input[1]")
    other_kind = {"type": "custom_tool_call_output", "call_id": "c", "output": ""}
    assert only(responses(says("user"), fcall(), output(), other_kind), "responses.R4", "input[3]")
    early = responses(says("user"), output(), fcall())
    assert "responses.R4" in found(early)
    # The call may be among what the API holds.
    assert found(responses(output(), previous_response_id="resp_1")) == set()
    assert found(responses(REFERENCE, output())) == set()
    assert only(responses(output(), output(), previous_response_id="r"), "responses.R4", "input[1]")


@pytest.mark.rule("responses.R5")
def test_r5_reasoning_is_followed_by_its_item() -> None:
    assert only(responses(says("user"), reasoning()), "responses.R5", "input[1]")
    assert only(responses(says("user"), reasoning(), says("user")), "responses.R5", "input[1]")
    lost = responses(says("user"), fcall(), reasoning(), output())
    assert only(lost, "responses.R5", "input[2]")
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    for item in (spoken(), searched, REFERENCE):
        assert found(responses(says("user"), reasoning(), item, says("user"))) == set()
    assert found(responses(says("user"), reasoning(), reasoning(id="rs_2"), fcall(), output())) == set()


@pytest.mark.rule("responses.R6")
def test_r6_store_false_needs_encrypted_content() -> None:
    for lost in (reasoning(), reasoning(encrypted_content=None), reasoning(encrypted_content="")):
        assert only(responses(says("user"), lost, spoken(), store=False), "responses.R6", "input[1]")
        assert found(responses(says("user"), lost, spoken(), store=True)) == set()
        assert found(responses(says("user"), lost, spoken())) == set()
    assert found(responses(says("user"), reasoning(encrypted_content="x"), spoken(), store=False)) == set()


@pytest.mark.rule("responses.R7")
def test_r7_content_types_go_by_role() -> None:
    said, heard = {"type": "output_text", "text": "x"}, {"type": "input_text", "text": "x"}
    for role in ("user", "system", "developer"):
        assert only(responses(says(role, [said])), "responses.R7", "input[0].content[0]")
        assert found(responses(says(role, [heard]))) == set()
    assert only(responses(says("user"), says("assistant", [heard])), "responses.R7", "input[1].content[0]")
    for bad in ({"type": "text", "text": "x"}, {"text": "x"}):
        assert only(responses(says("user", [heard, bad])), "responses.R7", "input[0].content[1]")
    refusal = {"type": "refusal", "refusal": "no"}
    assert found(responses(says("user"), says("assistant", [said, refusal]), says("assistant", "x"))) == set()


@pytest.mark.rule("responses.R8")
def test_r8_a_compaction_item_goes_back_verbatim() -> None:
    for lost in (compaction(encrypted_content=""), compaction(encrypted_content=None), {"type": "compaction"}):
        assert only(responses(lost, says("user")), "responses.R8", "input[0]")
    assert only(responses(compaction(summary="x"), says("user")), "responses.R8", "input[0].summary")
    assert found(responses(compaction(), says("user"))) == set()


@pytest.mark.rule("responses.R9")
def test_r9_every_call_has_an_output() -> None:
    assert only(responses(says("user"), fcall()), "responses.R9", "input[1]")
    half = responses(says("user"), fcall("c"), fcall("d"), output("c"))
    assert only(half, "responses.R9", "input[2]")
    shell: Body = {"type": "local_shell_call", "call_id": "c", "action": {}, "status": "completed"}
    assert only(responses(says("user"), shell), "responses.R9", "input[1]")
    assert (
        found(responses(says("user"), shell, {"type": "local_shell_call_output", "id": "c", "output": "{}"})) == set()
    )
    ran = {"type": "code_interpreter_call", "id": "ci_1", "status": "completed"}
    assert found(responses(says("user"), fcall("c"), fcall("d"), output("d"), says("user"), output("c"), ran)) == set()


@pytest.mark.rule("responses.L6")
def test_l6_an_id_without_its_reasoning() -> None:
    for item in (spoken(id="msg_1"), fcall(id="fc_1")):
        items = (says("user"), item, output()) if item["type"] == "function_call" else (says("user"), item)
        assert only(responses(*items), "responses.L6", "input[1]", "warning")
        assert found(responses(*items), "gpt-4.1") == set()
        assert found(responses(*items, model="gpt-4o")) == set()
    assert found(responses(says("user"), spoken(), says("user"), fcall(), output())) == set()
    turn = (reasoning(), fcall(id="fc_1"), output(), spoken(id="msg_1"))
    assert found(responses(says("user"), *turn)) == set()
    assert found(responses(says("user"), *turn, says("user"), spoken(id="msg_2"))) == {"responses.L6"}


@pytest.mark.rule("responses.L7")
def test_l7_items_before_the_newest_compaction_item() -> None:
    assert only(responses(says("user"), compaction(), says("user")), "responses.L7", "input[0]", "warning")
    assert only(responses(compaction(), compaction(), says("user")), "responses.L7", "input[0]", "warning")
    host = [says("system"), says("developer")]
    assert rules(responses(*host, compaction(), says("user")), "openai-responses") == set()
    assert only(responses(*host, says("user"), compaction(), says("user")), "responses.L7", "input[2]", "warning")
    assert found(responses(compaction(), says("user"), spoken(), says("user"))) == set()

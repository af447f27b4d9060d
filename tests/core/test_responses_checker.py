"""Each rule of the checker of OpenAI Responses is broken by a payload and found."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.checkers import CHECKERS, errors
from tests.core.responses_checker import check_responses
from tests.core.sdk_types import check_types

Item = dict[str, Any]

ASKED: Item = {"role": "user", "content": "q"}
CALL: Item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "a", "output": "1"}
THOUGHT: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "z"}
ANSWER: Item = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}
COMPACTION: Item = {"type": "compaction", "encrypted_content": "z"}
REFERENCE: Item = {"type": "item_reference", "id": "rs_9"}


def found(*items: Item) -> list[str]:
    return [code for code, _ in check_responses({"input": list(items)})]


def test_a_right_payload_has_no_faults() -> None:
    items = [ASKED, THOUGHT, ANSWER, {**CALL, "id": "fc_1"}, OUTPUT, {"role": "developer", "content": "d"}]
    assert found(*items) == []
    assert found(COMPACTION, ASKED, REFERENCE, ANSWER) == []
    assert check_types({"input": items}, "openai-responses") == []
    assert CHECKERS["openai-responses"] is check_responses


BROKEN: list[tuple[str, list[Item]]] = [
    ("all.S1", [{"role": "user", "content": "\ud83d"}]),
    ("responses.R1", []),
    ("responses.R2", [{**CALL, "call_id": ""}, {**OUTPUT, "call_id": ""}]),
    ("responses.R2", [{**CALL, "call_id": "i" * 65}, {**OUTPUT, "call_id": "i" * 65}]),
    ("responses.R2", [CALL, OUTPUT, CALL, OUTPUT]),
    ("responses.R3", [{**CALL, "arguments": '{"q": "hel'}, OUTPUT]),
    ("responses.R3", [{**CALL, "arguments": {}}, OUTPUT]),
    ("responses.R4", [OUTPUT, ASKED]),
    ("responses.R4", [CALL, OUTPUT, OUTPUT]),
    ("responses.R4", [CALL, {**OUTPUT, "type": "custom_tool_call_output"}]),
    ("responses.R5", [ASKED, THOUGHT]),
    ("responses.R5", [THOUGHT, ASKED]),
    ("responses.R5", [CALL, THOUGHT, OUTPUT]),
    ("responses.R7", [{"role": "user", "content": [{"type": "output_text", "text": "x", "annotations": []}]}]),
    ("responses.R7", [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]),
    ("responses.R7", [CALL, {**OUTPUT, "output": [{"type": "refusal", "refusal": "x"}]}]),
    ("responses.R9", [ASKED, CALL]),
    ("responses.R9", [ASKED, {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}]),
    ("responses.L6", [ASKED, ANSWER]),
    ("responses.L6", [THOUGHT, ANSWER, ASKED, {**CALL, "id": "fc_1"}, OUTPUT]),
    ("responses.L7", [ASKED, COMPACTION]),
    ("responses.L7", [COMPACTION, COMPACTION]),
    ("responses.keys", [{**ASKED, "timestamp": 5}]),
    ("responses.keys", [{"role": "user", "content": [{"type": "input_text", "text": "x", "tags": []}]}]),
    ("responses.keys", [THOUGHT, ANSWER, {**CALL, "metadata": {}}, OUTPUT]),
]


@pytest.mark.parametrize(("code", "items"), BROKEN)
def test_each_rule_is_broken_by_a_payload(code: str, items: list[Item]) -> None:
    assert set(found(*items)) == {code}


def test_what_the_body_alone_does_not_show() -> None:
    bare = {key: item for key, item in THOUGHT.items() if key != "encrypted_content"}
    body = {"input": [bare, ANSWER]}
    assert check_responses(body) == []
    assert check_responses(body, store=False) == [("responses.R6", "input[0]")]
    body = {"input": [COMPACTION]}
    assert check_responses(body, compactions=[COMPACTION]) == []
    assert check_responses(body, compactions=[{**COMPACTION, "id": "c"}]) == [("responses.R8", "input[0]")]
    assert check_responses({"input": "q", "model": "m"}) == [("responses.keys", "body.model")]


def test_system_messages_may_stand_before_a_compaction() -> None:
    assert found({"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, COMPACTION) == []


def test_a_lower_layer_is_no_error() -> None:
    assert errors(check_responses({"input": [ASKED, ANSWER, COMPACTION]})) == []


MISSHAPEN: list[Item] = [
    {**ASKED, "extra": 1},
    {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
    {**THOUGHT, "id": None},
    {**ANSWER, "content": [{"type": "output_text", "text": "x"}]},
    {**CALL, "arguments": {}},
    {"type": "web_search_call", "id": "ws"},
]


@pytest.mark.parametrize("item", MISSHAPEN)
def test_the_types_see_what_is_of_a_wrong_shape(item: Item) -> None:
    assert check_types({"input": [item]}, "openai-responses")

"""Calls of OpenAI Responses and their outputs: ids, pairs, and each kind of call with its kind of output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.payloads import call, codes, result, said
from tests.core.responses_items import TARGET, THOUGHT, Item, sent

from contextbus.core import wire
from contextbus.core.importers import from_responses
from contextbus.core.payload import render
from contextbus.core.targets.responses_calls import BLANK
from contextbus_protocol.chat import (
    ApprovalRequest,
    ApprovalResponse,
    Document,
    Image,
    ProviderData,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    user,
)


@pytest.mark.rule("P.E.7", "P.E.21", "responses.R2", "responses.R4")
def test_b80_ids_are_mapped_one_to_one_on_call_and_output() -> None:
    names = ["call-x|fc_1", "call-x|fc_2", "functions.Bash:0", "i" * 64, "i" * 65, "i" * 70, "", "call-x|fc_1"]
    messages = [user("q")]
    for number, name in enumerate(names):
        messages += [said("assistant", call(name)), said("tool", result(name, str(number)))]
    payload = render(messages, TARGET)
    items = sent(payload)
    called = [item["call_id"] for item in items if item.get("type") == "function_call"]
    answered = [(item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output"]
    assert answered == [(name, str(number)) for number, name in enumerate(called)]
    assert called[:4] == names[:4]
    assert called[7] == "call-x|fc_1-2"
    assert codes(payload) == ["id", "id", "id", "repeated-id"]


@pytest.mark.rule("P.E.12", "P.E.13", "P.E.14", "responses.R4", "responses.R9")
def test_calls_and_outputs_are_repaired_in_pairs() -> None:
    history = [user("q"), said("assistant", call("a"), call("b")), said("tool", result("b")), assistant("on")]
    payload = render([*history, said("tool", result("a", "late"), result("z"))], TARGET)
    items = sent(payload)
    assert [item.get("call_id") for item in items] == [None, "a", "b", "b", "a", None, None]
    assert items[4]["output"] == wire.NO_RESULT
    assert items[6] == {"role": "user", "content": wire.element("late_result", "late", "a")}
    assert codes(payload) == ["missing-result", "late-result", "orphan-result"]
    asked = said("assistant", call("a"), ApprovalRequest(id="p", call_id="a"))
    payload = render([user("q"), asked, said("tool", ApprovalResponse(id="p", approved=False))], TARGET)
    assert sent(payload)[2]["output"] == wire.DENIED
    payload = render([user("q"), said("assistant", call("a")), user("wait"), said("tool", result("a"))], TARGET)
    assert [item.get("type", item.get("role")) for item in sent(payload)] == [
        "user",
        "function_call",
        "function_call_output",
        "user",
    ]
    assert codes(payload) == ["moved-result"]


@pytest.mark.rule("P.E.6", "P.E.22", "responses.R3")
def test_b68_arguments_that_are_cut_off_are_never_sent() -> None:
    payload = render([user("q"), said("assistant", call("a", '{"q": "hello wor'))], TARGET)
    _, called, answered = sent(payload)
    assert (called["arguments"], answered["output"]) == ("{}", wire.BAD_ARGUMENTS)
    assert codes(payload) == ["bad-arguments", "missing-result"]


@pytest.mark.rule("P.E.12", "responses.R9")
@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("custom_tool_call", '{"input":"raw"}', {"output": wire.NO_RESULT}),
        ("local_shell_call", '{"type":"exec","command":["ls"],"env":{}}', {"output": wire.NO_RESULT}),
        (
            "shell_call",
            '{"commands":["ls"]}',
            {"output": [{"stderr": wire.NO_RESULT, "stdout": "", "outcome": {"type": "exit", "exit_code": 1}}]},
        ),
        ("apply_patch_call", '{"type":"delete_file","path":"a"}', {"output": wire.NO_RESULT, "status": "failed"}),
        (
            "computer_call",
            '{"action":{"type":"wait"}}',
            {"output": {"type": "computer_screenshot", "image_url": BLANK}},
        ),
    ],
)
def test_a_call_of_any_kind_without_an_output_gets_one_of_its_kind(kind: str, arguments: str, expected: Item) -> None:
    thought = from_responses([THOUGHT]).messages[0].content[0]
    data = ProviderData(TARGET, json.dumps({"type": kind, "id": "x_1"}))
    made = ToolCall(id="a", name="n", arguments=arguments, provider_data=data)
    payload = render([user("q"), said("assistant", thought, made)], TARGET)
    _, _, called, answered = sent(payload)
    assert (called["type"], called["id"], answered["type"]) == (kind, "x_1", f"{kind}_output")
    assert {key: answered[key] for key in expected} == expected
    assert codes(payload) == ["missing-result"]
    # Elsewhere it is a call as any other
    elsewhere = json.loads(render([user("q"), said("assistant", made)], "openai").json())["messages"]
    assert elsewhere[1]["tool_calls"][0]["function"] == {"name": "n", "arguments": arguments}
    # Arguments that are not there make it a function's
    broken = ToolCall(id="a", name="n", arguments="{", provider_data=data)
    called = sent(render([user("q"), said("assistant", thought, broken)], TARGET))[2]
    assert called["type"] == ("custom_tool_call" if kind == "custom_tool_call" else "function_call")


@pytest.mark.rule("P.E.8", "responses.R4")
def test_outputs_are_a_text_or_a_list_where_there_is_more() -> None:
    image, file = Image(media_type="image/png", data="AAAA"), Document(media_type="application/pdf", data="BBBB")
    audio = Unknown(data='{"type":"audio"}')
    contents: list[tuple[tuple[Any, ...], Any]] = [
        ((), ""),
        ((Text(text="x"),), "x"),
        ((Text(text="x"), Text(text="")), "x"),
        (
            (Text(text="x"), image),
            [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        ),
        ((file,), [{"type": "input_file", "file_data": "data:application/pdf;base64,BBBB", "filename": "document"}]),
        ((audio,), wire.LEFT_OUT.format(kind="audio")),
    ]
    for content, output in contents:
        answered = ToolResult(id="a", content=content)
        payload = render([user("q"), said("assistant", call("a")), said("tool", answered)], TARGET)
        assert sent(payload)[2]["output"] == output
    shell = ProviderData(TARGET, '{"type":"shell_call"}')
    made = ToolCall(id="a", name="shell", arguments='{"commands":["ls"]}', provider_data=shell)
    answered = ToolResult(id="a", content=(Text(text="out"), image))
    payload = render([user("q"), said("assistant", made), said("tool", answered)], TARGET)
    done = {"type": "exit", "exit_code": 0}
    assert [(chunk["stdout"], chunk["outcome"]) for chunk in sent(payload)[2]["output"]] == [
        ("out", done),
        (wire.LEFT_OUT.format(kind="image"), done),
    ]
    assert codes(payload) == ["unknown-part"]
    patch = ProviderData(TARGET, '{"type":"apply_patch_call"}')
    made = ToolCall(id="a", name="p", arguments='{"type":"delete_file","path":"a"}', provider_data=patch)
    payload = render([user("q"), said("assistant", made), said("tool", answered)], TARGET)
    assert sent(payload)[2]["output"] == f"out\n{wire.LEFT_OUT.format(kind='image')}"

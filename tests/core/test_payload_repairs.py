"""Repairs, each by its code: what the providers would refuse is made right, and nothing else is touched."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.checkers import CHECKERS, check_anthropic
from tests.core.payloads import IN_MESSAGES, TARGETS, call, codes, result, results_of, said, sent

from contextbus.core import wire
from contextbus.core.payload import Request, assemble, render, start_rendering
from contextbus.core.prefill_models import takes_prefill
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Reasoning,
    Text,
    assistant,
    system,
    user,
)
from contextbus_protocol.errors import EmptyHistoryError
from contextbus_protocol.values import Model


@pytest.mark.rule("P.E.12")
@pytest.mark.parametrize("target", TARGETS)
def test_a_call_without_result_gets_an_error_result(target: str) -> None:
    open_end = render([user("q"), said("assistant", call("a"))], target)
    assert results_of(sent(open_end)) == [("a", wire.NO_RESULT)]
    assert codes(open_end) == ["missing-result"]
    cut_off = render([user("q"), said("assistant", call("a")), user("stop"), assistant("yes"), user("go")], target)
    assert results_of(sent(cut_off)) == [("a", wire.NO_RESULT)]
    assert codes(cut_off).count("missing-result") == 1


@pytest.mark.rule("P.E.12")
@pytest.mark.parametrize("target", TARGETS)
def test_an_open_call_is_answered_once_its_result_comes(target: str) -> None:
    rendering = start_rendering(target).extend([user("q"), said("assistant", call("a"), call("b"))])
    assert results_of(sent(assemble(Request(history=rendering)))) == [("a", wire.NO_RESULT), ("b", wire.NO_RESULT)]
    later = rendering.extend([user("wait"), said("tool", result("b", "B"))])
    payload = assemble(Request(history=later))
    assert sorted(results_of(sent(payload))) == [("a", wire.NO_RESULT), ("b", "B")]
    assert "moved-result" in codes(payload)


@pytest.mark.rule("P.E.12")
@pytest.mark.parametrize("target", TARGETS)
def test_assistant_messages_in_a_row_count_as_one(target: str) -> None:
    history = [user("q"), said("assistant", call("a")), said("assistant", call("b"))]
    payload = render([*history, said("tool", result("b", "B")), said("tool", result("a", "A")), user("go")], target)
    assert results_of(sent(payload)) == [("a", "A"), ("b", "B")]
    assert "missing-result" not in codes(payload)


@pytest.mark.rule("P.E.13")
@pytest.mark.parametrize("target", TARGETS)
def test_orphans_are_dropped_and_late_results_stay_as_text(target: str) -> None:
    orphan = render([user("q"), said("tool", result("z", "lost")), assistant("a"), user("b")], target)
    assert results_of(sent(orphan)) == []
    assert codes(orphan) == ["orphan-result"]
    twice = render(
        [user("q"), said("assistant", call("a")), said("tool", result("a"), result("a", "2")), user("b")], target
    )
    assert results_of(sent(twice)) == [("a", "ok")]
    assert "orphan-result" in codes(twice)
    history = [user("q"), said("assistant", call("a")), user("w"), assistant("x"), said("tool", result("a", "<late>"))]
    late = render([*history, said("tool", result("a", "later"))], target)
    assert results_of(sent(late)) == [("a", wire.NO_RESULT)]
    assert b"&lt;late&gt;" in late.json()
    assert b"later" not in late.json()
    assert [code for code in codes(late) if code.endswith("result")] == [
        "missing-result",
        "late-result",
        "orphan-result",
    ]


@pytest.mark.rule("P.E.14")
@pytest.mark.parametrize("target", TARGETS)
def test_approvals_are_dropped_and_a_denied_call_says_so(target: str) -> None:
    asked = said("assistant", call("a"), ApprovalRequest(id="p", call_id="a"))
    denied = render([user("q"), asked, said("tool", ApprovalResponse(id="p", approved=False))], target)
    assert results_of(sent(denied)) == [("a", wire.DENIED)]
    assert codes(denied).count("approval") == 2
    agreed = said("tool", ApprovalResponse(id="p", approved=True))
    payload = render([user("q"), asked, agreed, said("tool", result("a"))], target)
    assert results_of(sent(payload)) == [("a", "ok")]


@pytest.mark.rule("P.E.14")
@pytest.mark.parametrize("target", TARGETS)
def test_an_approval_belongs_to_the_latest_open_call_and_ends_with_it(target: str) -> None:
    request, denied = ApprovalRequest(id="p", call_id="a"), ApprovalResponse(id="p", approved=False)
    both = said("assistant", call("a"), call("a"), request)
    assert results_of(sent(render([user("q"), both, said("tool", denied)], target))) == [
        ("a", wire.NO_RESULT),
        ("a-2", wire.DENIED),
    ]
    closed = [user("q"), said("assistant", call("a"), request), user("w"), said("assistant", call("a"))]
    assert results_of(sent(render([*closed, said("tool", denied)], target))) == [
        ("a", wire.NO_RESULT),
        ("a-2", wire.NO_RESULT),
    ]


@pytest.mark.rule("P.E.15")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("messages", [[], [system("s")], [user("")], [system("s"), said("user")]])
def test_nothing_but_system_messages_is_refused(target: str, messages: list[ChatMessage]) -> None:
    with pytest.raises(EmptyHistoryError) as caught:
        render(messages, target)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == "empty_history"


@pytest.mark.rule("P.E.16", "P.E.17", "P.C.3")
def test_anthropic_begins_and_ends_with_the_user() -> None:
    payload = render([assistant("hello")], "anthropic")
    assert [(message["role"], message["content"][0]["text"]) for message in sent(payload)] == [
        ("user", wire.OPENING),
        ("assistant", "hello"),
        ("user", wire.CONTINUE),
    ]
    assert codes(payload) == ["first-user", "last-assistant"]
    assert [message["role"] for message in sent(render([assistant("hello")], "openai"))] == ["assistant"]


@pytest.mark.rule("P.E.17")
def test_a_model_that_takes_a_prefill_keeps_the_answer_last_and_stripped() -> None:
    payload = render([user("q"), assistant("so: \n")], "anthropic", "claude-3-5-sonnet-20241022")
    body = json.loads(payload.json())
    assert body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "so:"}]}
    assert check_anthropic(body, prefill=True) == []
    model = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
    assert sent(render([user("q"), assistant("so: ")], None, model))[-1]["role"] == "user"
    only_thinking = said("assistant", Reasoning(text="", signature="s"))
    assert sent(render([user("q"), only_thinking], "anthropic", "claude-3-opus"))[-1]["role"] == "user"


@pytest.mark.rule("P.C.2")
@pytest.mark.parametrize(
    ("model_id", "takes"),
    [
        ("claude-3-opus-20240229", True),
        ("claude-3-5-sonnet-20241022", True),
        ("claude-opus-4-20250514", True),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("claude-opus-4-6", False),
        ("claude-opus-5-5", False),
        ("claude-fable-5-1", False),
        ("gpt-4o", False),
    ],
)
def test_which_models_take_a_prefill(model_id: str, takes: bool) -> None:
    assert takes_prefill("anthropic", model_id) is takes


@pytest.mark.rule("P.E.18")
def test_anthropic_merges_neighbours_and_puts_results_first() -> None:
    history = [user("q"), user("more"), said("assistant", Text(text="one")), said("assistant", call("a"))]
    payload = render([*history, said("user", Text(text="x"), result("a")), user("y")], "anthropic")
    messages = sent(payload)
    assert [[block["type"] for block in message["content"]] for message in messages] == [
        ["text", "text"],
        ["text", "tool_use"],
        ["tool_result", "text", "text"],
    ]
    assert codes(payload).count("merged") == 3


@pytest.mark.rule("P.E.19", "P.E.23")
def test_a_late_system_message() -> None:
    messages = [user("q"), assistant("a"), system("now <be> kind"), user("b")]
    blocks = sent(render(messages, "anthropic"))[-1]["content"]
    assert blocks[0]["text"] == "<system_message>\nnow &lt;be&gt; kind\n</system_message>"
    payload = render(messages, "openai")
    body = json.loads(payload.json())
    assert body["messages"][2] == {"role": "system", "content": "now <be> kind"}
    assert CHECKERS["openai"](body) == [("openai.L4", "messages[2]")]
    assert codes(payload) == ["late-system"]


@pytest.mark.rule("P.E.20")
@pytest.mark.parametrize("parts", [(), (Text(text=""),), (Text(text=" \n"),), (Reasoning(text="hm"),)])
def test_b78_empty_blocks_and_messages_are_dropped(parts: tuple[AnyPart, ...]) -> None:
    payload = render([user("q"), said("assistant", *parts), user("go")], "anthropic")
    assert [message["role"] for message in sent(payload)] == ["user"]
    assert "empty" in codes(payload)
    signed = said("assistant", Reasoning(text="", signature="sig"), Text(text=""))
    blocks = sent(render([user("q"), signed, user("go")], "anthropic"))[1]["content"]
    assert blocks == [{"type": "thinking", "thinking": "", "signature": "sig"}]


@pytest.mark.rule("P.E.21", "P.E.7")
@pytest.mark.parametrize("target", TARGETS)
def test_b14_a_repeated_id_is_paired_by_occurrence(target: str) -> None:
    history = [user("q")]
    for number in range(3):
        history += [said("assistant", call("X", json.dumps({"n": number}))), said("tool", result("X", f"r{number}"))]
    payload = render([*history, user("go")], target)
    found = results_of(sent(payload))
    assert [text for _, text in found] == ["r0", "r1", "r2"]
    assert [call_id for call_id, _ in found] == ["X", "X-2", "X-3"]
    assert codes(payload) == ["repeated-id", "repeated-id"]


@pytest.mark.rule("P.E.21")
@pytest.mark.parametrize("target", TARGETS)
def test_a_repeated_id_inside_one_message_answers_first_in_first_out(target: str) -> None:
    history = [user("q"), said("assistant", call("X"), call("X")), said("tool", result("X", "1"), result("X", "2"))]
    found = results_of(sent(render([*history, user("go")], target)))
    assert found == [("X", "1"), ("X-2", "2")]


@pytest.mark.rule("P.E.7")
@pytest.mark.parametrize("target", TARGETS)
@given(
    ids=st.lists(
        st.sampled_from(["functions.Bash:0", "call-x|fc_1", "call-x|fc_2", "", "i" * 70, "i" * 71, "a", "a-2"])
    )
)
def test_b80_ids_are_mapped_injectively_and_stay(target: str, ids: list[str]) -> None:
    rendering = start_rendering(target).append(user("q"))
    given_ids: list[str] = []
    for number, call_id in enumerate(ids):
        rendering = rendering.extend([said("assistant", call(call_id)), said("tool", result(call_id, str(number)))])
        found = results_of(sent(assemble(Request(history=rendering, tail=(user("t"),)))))
        assert [text for _, text in found] == [str(index) for index in range(number + 1)]
        assert [wire_id for wire_id, _ in found[:-1]] == given_ids
        given_ids = [wire_id for wire_id, _ in found]
    assert len(set(given_ids)) == len(ids)


@pytest.mark.rule("P.E.6", "P.E.22")
@pytest.mark.parametrize("target", IN_MESSAGES)
@pytest.mark.parametrize("arguments", ['{"q": "hello wor', "", "[1]", "null", '{"a":NaN}', '{"a":' * 3000])
def test_b68_broken_arguments_never_reach_the_provider(target: str, arguments: str) -> None:
    payload = render([user("q"), said("assistant", call("a", arguments)), user("go")], target)
    messages = sent(payload)
    made = messages[1]["content"][0]["input"] if target == "anthropic" else messages[1]["tool_calls"][0]["function"]
    assert made in ({}, {"name": "f", "arguments": "{}"})
    assert results_of(messages) == [("a", wire.BAD_ARGUMENTS)]
    assert codes(payload)[:1] == ["bad-arguments"]
    answered = render(
        [user("q"), said("assistant", call("a", arguments)), said("tool", result("a")), user("go")], target
    )
    assert results_of(sent(answered)) == [("a", "ok")]


@pytest.mark.rule("P.A.5")
@pytest.mark.parametrize("target", TARGETS)
def test_b67_lone_surrogates_never_reach_the_provider(target: str) -> None:
    half = "cut \ud83d"
    history = [
        system(half),
        user(half),
        said("assistant", Text(text=half), call(half, '{"a":"\\ud83d","b":"\ud83d"}', half)),
        said("tool", result(half, half)),
        said("user", Image(url=half), Document(text=half, title=half)),
    ]
    payload = render(history, target, tools=[{"name": "t", "description": half}])
    assert sent(payload)
    wired = json.dumps(json.loads(payload.json(metadata=half)))
    assert "\\ud83d" not in wired
    assert wired.count("\\ufffd") > 8
    assert render([user("👨‍👩‍👧 \ud83d\ude00")], target).json().decode().count("👨‍👩‍👧 😀") == 1


@pytest.mark.rule("P.E.18", "P.E.1")
def test_b11_parallel_results_are_one_user_message_in_call_order() -> None:
    history = [
        user("q"),
        said("assistant", call("A"), call("B")),
        said("tool", result("B", "b")),
        said("tool", result("A", "a")),
    ]
    messages = sent(render(history, "anthropic"))
    assert len(messages) == 3
    assert results_of(messages) == [("A", "a"), ("B", "b")]

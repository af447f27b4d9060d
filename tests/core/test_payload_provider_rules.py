"""Each rule of two providers: a history that breaks it as it stands and not as it is rendered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.checkers import check_anthropic, check_openai
from tests.core.payloads import call, codes, result, said
from tests.core.sdk_types import check_types

from contextbus.core.payload import Request, assemble, render, start_rendering
from contextbus.core.targets.anthropic import AnthropicTarget
from contextbus.core.targets.openai import OpenAITarget
from contextbus_protocol.chat import (
    AnyPart,
    ChatMessage,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    user,
)
from contextbus_protocol.errors import EmptyHistoryError

Body = dict[str, Any]
CHECKS = {"anthropic": check_anthropic, "openai": check_openai}
HALF = "cut \ud83d"
GO = user("go")


def as_it_stands(messages: list[ChatMessage], target: str) -> Body:
    """A body without any repair: each message by itself, each part as it is."""
    return {
        "messages": [made for message in messages for made in (_blocks if target == "anthropic" else _chat)(message)]
    }


def _blocks(message: ChatMessage) -> list[Body]:
    role = "user" if message.role == "tool" else message.role
    return [{"role": role, "content": [_block(part) for part in message.content]}]


def _block(part: AnyPart) -> Body:
    more: Body = {} if part.provider_data is None else json.loads(part.provider_data.data)
    match part:
        case Reasoning():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCall():
            try:
                given = json.loads(part.arguments)
            except ValueError:
                given = part.arguments
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}
        case ToolResult():
            content = [_block(inner) for inner in part.content]
            return {"type": "tool_result", "tool_use_id": part.id, "content": content}
        case Text():
            return {"type": "text", "text": part.text, **more}
        case _:
            raise AssertionError(part)


def _chat(message: ChatMessage) -> list[Body]:
    results = [part for part in message.content if isinstance(part, ToolResult)]
    if message.role == "tool":
        return [{"role": "tool", "tool_call_id": part.id, "content": "r"} for part in results]
    texts = [part.text for part in message.content if isinstance(part, Text)]
    made: Body = {"role": message.role, "content": "".join(texts) if texts or message.role == "user" else None}
    if message.role == "assistant":
        calls = [part for part in message.content if isinstance(part, ToolCall)]
        functions = [{"name": part.name, "arguments": part.arguments} for part in calls]
        named = zip(calls, functions, strict=True)
        made["tool_calls"] = [{"id": part.id, "type": "function", "function": function} for part, function in named]
    return [made]


ASKED = [user("q"), said("assistant", call("a"))]
SIGNED = Reasoning(text="hm", signature="s")
BROKEN: list[tuple[str, list[ChatMessage]]] = [
    ("all.S1", [user(HALF)]),
    ("all.S1", [user("q"), said("assistant", Text(text=HALF), call("a", json.dumps({"q": "\ud83d"})))]),
    ("anthropic.A2", [assistant("a"), GO]),
    ("anthropic.A3", [user("q"), assistant("a"), system("now"), GO]),
    ("anthropic.A4", [user("q"), user(" \n"), GO]),
    ("anthropic.A4", [user("q"), said("assistant", Text(text="")), GO]),
    ("anthropic.A4", [*ASKED, said("tool", ToolResult(id="a", content=(Text(text=" "),))), GO]),
    ("anthropic.A4", [*ASKED, said("tool", ToolResult(id="a", content=())), GO]),
    ("anthropic.A5", [user("q"), assistant("a")]),
    ("anthropic.A6", [*ASKED]),
    ("anthropic.A6", [*ASKED, user("w"), said("tool", result("a")), GO]),
    (
        "anthropic.A6",
        [user("q"), said("assistant", call("a"), call("b")), *(said("tool", result(i)) for i in "ba"), GO],
    ),
    ("anthropic.A7", [*ASKED, said("user", Text(text="x"), result("a"))]),
    ("anthropic.A8", [user("q"), said("tool", result("z")), GO]),
    ("anthropic.A6", [*ASKED, said("tool", result("a"), result("a")), GO]),
    ("anthropic.A8", [user("q"), said("assistant", call("a"), result("a")), GO]),
    ("anthropic.A8", [said("user", Text(text="q"), call("a")), GO]),
    ("anthropic.A9", [user("q"), said("assistant", call("f.g:0")), said("tool", result("f.g:0")), GO]),
    ("anthropic.A9", [*ASKED, said("tool", result("a")), *ASKED[1:], said("tool", result("a")), GO]),
    ("anthropic.A10", [user("q"), said("assistant", call("a", '{"q": "hel')), said("tool", result("a")), GO]),
    ("anthropic.A10", [user("q"), said("assistant", call("a", "[1]")), said("tool", result("a")), GO]),
    ("anthropic.A12", [*ASKED, said("tool", result("a")), GO]),
    ("anthropic.A13", [user("q"), said("assistant", Reasoning(text="hm"), Text(text="a")), GO]),
    ("anthropic.A19", [said("user", Text(text="q", provider_data=ProviderData("anthropic", '{"timestamp":1}')))]),
    ("anthropic.A19", [user("q"), said("assistant", call("a", name="a.b")), said("tool", result("a")), GO]),
    ("anthropic.L1", [user("q"), GO]),
    ("anthropic.L1", [user("q"), assistant("a"), assistant("b"), GO]),
    ("anthropic.L2", [user("q"), said("assistant", Text(text="a"), SIGNED), GO]),
    ("anthropic.L3", [user("q"), said("assistant", call("a"), Text(text="x")), said("tool", result("a")), GO]),
    ("openai.C3", [*ASKED]),
    ("openai.C3", [*ASKED, user("w"), said("tool", result("a")), GO]),
    ("openai.C4", [user("q"), said("tool", result("z")), GO]),
    ("openai.C4", [*ASKED, said("tool", result("a"), result("a")), GO]),
    ("openai.C5", [user("q"), said("assistant", SIGNED), GO]),
    ("openai.C6", [user("q"), assistant("a"), GO]),
    ("openai.C7", [user("q"), said("assistant", call("")), said("tool", result("")), GO]),
    ("openai.C7", [user("q"), said("assistant", call("i" * 41)), said("tool", result("i" * 41)), GO]),
    ("openai.C8", [user("q"), said("assistant", call("a", name="a.b")), said("tool", result("a")), GO]),
    ("openai.C8", [user("q"), said("assistant", call("a", name="n" * 65)), said("tool", result("a")), GO]),
    ("openai.C9", [user("q"), said("assistant", call("a", "[1]")), said("tool", result("a")), GO]),
    ("openai.C9", [user("q"), said("assistant", call("a", "")), said("tool", result("a")), GO]),
    ("openai.L5", [user("q"), user(""), GO]),
    ("openai.L9", [*ASKED, said("tool", result("a")), *ASKED[1:], said("tool", result("a")), GO]),
]
CASES = [
    pytest.param(code, messages, target, marks=pytest.mark.rule(code, "P.E.1"), id=f"{target}-{code}-{number}")
    for number, (code, messages) in enumerate(BROKEN)
    for target in CHECKS
    if code.startswith((target, "all"))
]


@pytest.mark.parametrize(("code", "messages", "target"), CASES)
def test_a_rule_that_the_history_breaks_is_kept(code: str, messages: list[ChatMessage], target: str) -> None:
    assert code in {found for found, _ in CHECKS[target](as_it_stands(messages, target))}
    payload = render(messages, target)
    body = json.loads(payload.json())
    assert CHECKS[target](body) == []
    assert check_types(body, target) == []


@pytest.mark.rule("anthropic.A1", "openai.C1", "P.E.15")
@pytest.mark.parametrize("target", CHECKS)
def test_a_request_without_a_message_is_never_made(target: str) -> None:
    for messages in (
        [],
        [system("s")],
        [user("")],
        [said("assistant", Reasoning(text="hm"))],
        [said("tool", result("z"))],
    ):
        with pytest.raises(EmptyHistoryError):
            render(messages, target)


@pytest.mark.rule("openai.C2")
def test_every_role_is_one_that_openai_takes() -> None:
    developer = ChatMessage(
        role="system", content=(Text(text="d"),), provider_data=ProviderData("openai", '{"role":"developer"}')
    )
    history = [system("s"), developer, *ASKED, said("tool", result("a")), assistant("x"), GO]
    roles = [message["role"] for message in json.loads(render(history, "openai").json())["messages"]]
    assert roles == ["system", "developer", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.rule("openai.L4", "P.E.23", "P.E.19")
def test_a_system_message_that_stays_late_is_listed() -> None:
    payload = render([user("q"), system("now"), GO], "openai")
    assert check_openai(json.loads(payload.json())) == [("openai.L4", "messages[1]")]
    assert codes(payload) == ["late-system"]


@pytest.mark.rule("anthropic.A18", "P.A.2")
@pytest.mark.parametrize("target", CHECKS)
def test_limits_and_models_are_the_callers_and_go_beside_the_body(target: str) -> None:
    history = [system("s"), *ASKED, said("tool", result("a")), GO]
    payload = render(history, target, "claude-opus-4-6", tools=[{"name": "f"}])
    assert set(payload.body) <= {"system", "tools", "messages"}
    limits = {"model": "m", "max_tokens": 2048, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert json.loads(payload.json(**limits)) == {**payload.copy(), **limits}


@pytest.mark.rule("anthropic.A5", "P.E.17")
def test_an_answer_at_the_end_stays_last_where_the_model_takes_it_and_without_space_behind_it() -> None:
    for model, last in (("claude-sonnet-4-5", "so:"), ("claude-sonnet-4-6", "Continue."), (None, "Continue.")):
        body = json.loads(render([user("q"), assistant("so: \n")], "anthropic", model).json())
        assert body["messages"][-1]["content"] == [{"type": "text", "text": last}]
        assert check_anthropic(body, prefill=model == "claude-sonnet-4-5") == []


COUNTED = {
    "anthropic": (AnthropicTarget, ("part", "call", "result", "members", "lay_out", "text", "system", "tool")),
    "openai": (OpenAITarget, ("part", "call", "result", "members", "lay_out", "text", "system", "tool")),
}


@pytest.mark.rule("P.K.1")
@pytest.mark.parametrize("target", CHECKS)
def test_one_more_message_behind_ten_thousand_costs_that_one(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    kind, names = COUNTED[target]

    def counted(name: str) -> Any:
        real = getattr(kind, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            return real(*args, **kwargs)

        return count

    rounds = [user("q"), said("assistant", Text(text="so"), call("a")), said("tool", result("a")), assistant("done")]
    costs: list[list[list[str]]] = []
    tools = '[{"name":"f"}]'
    short, long = (start_rendering(target).extend(rounds * number) for number in (10, 2_500))
    for name in names:
        monkeypatch.setattr(kind, name, counted(name))
    for begun in (short, long):
        history = begun
        assemble(Request(history=history, tools=tools))  # what is made once is made
        steps: list[list[str]] = []
        for message in (*rounds, *rounds):
            made.clear()
            history = history.append(message)
            payload = assemble(Request(history=history, tools=tools))
            assert payload.chunks()
            assert payload.repairs is not None
            steps.append(list(made))
        costs.append(steps)
    assert costs[0] == costs[1]
    assert max(len(step) for step in costs[1]) <= 12

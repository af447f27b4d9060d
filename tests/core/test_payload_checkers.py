"""The checkers find what they are for: each rule broken once, in a payload that is right otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.checkers import check_anthropic, check_openai

Body = dict[str, Any]
Break = Callable[[Body], object]

ANTHROPIC: Body = {
    "tools": [{"name": "f", "input_schema": {}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}, {"type": "text", "text": "b"}]},
    ],
}
OPENAI: Body = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "r"},
        {"role": "user", "content": "b"},
    ]
}


def change(*path: str | int, to: object) -> Break:
    def apply(body: Body) -> None:
        target: Any = body["messages"]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return apply


def blocks_of(body: Body) -> list[Body]:
    return [block for message in body["messages"] for block in message["content"]]


def test_right_payloads_have_no_findings() -> None:
    assert check_anthropic(ANTHROPIC) == []
    assert check_openai(OPENAI) == []


ANTHROPIC_BREAKS: list[tuple[str, Break]] = [
    ("anthropic.A1", lambda body: body["messages"].clear()),
    ("anthropic.A2", lambda body: body["messages"].pop(0)),
    ("anthropic.A3", change(0, "role", to="system")),
    ("anthropic.A4", change(0, "content", 0, "text", to=" ")),
    (
        "anthropic.A5",
        lambda body: body["messages"].append({"role": "assistant", "content": [{"type": "text", "text": "a"}]}),
    ),
    ("anthropic.A6", lambda body: body["messages"][2]["content"].pop(0)),
    ("anthropic.A6", lambda body: body["messages"].pop()),
    ("anthropic.A7", lambda body: body["messages"][2]["content"].reverse()),
    ("anthropic.A8", change(2, "content", 0, "tool_use_id", to="z")),
    ("anthropic.A9", change(1, "content", 2, "id", to="a:b")),
    ("anthropic.A10", change(1, "content", 2, "input", to="{}")),
    ("anthropic.A12", lambda body: body.pop("tools")),
    ("anthropic.A13", change(1, "content", 0, "signature", to="")),
    ("anthropic.A15", change(1, "content", 0, "cache_control", to={"type": "ephemeral"})),
    (
        "anthropic.A15",
        lambda body: body["messages"][0]["content"].extend(
            {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}} for _ in range(5)
        ),
    ),
    (
        "anthropic.A15",
        lambda body: [
            block.update(cache_control={"type": "ephemeral", "ttl": ttl})
            for block, ttl in zip(blocks_of(body)[4:], ("5m", "1h"), strict=True)
        ],
    ),
    ("anthropic.A17", change(2, "content", 1, to={"type": "compaction", "content": "s"})),
    ("anthropic.A17", lambda body: [body["messages"][0]["content"].insert(0, {"type": "compaction"}) for _ in "ab"]),
    ("anthropic.A19", change(0, "timestamp", to=1)),
    ("anthropic.L1", lambda body: body["messages"].insert(0, body["messages"][0])),
    ("anthropic.L2", lambda body: body["messages"][1]["content"].reverse()),
    ("anthropic.L3", lambda body: body["messages"][1]["content"].append({"type": "text", "text": "x"})),
    ("all.S1", change(0, "content", 0, "text", to="\ud83d")),
]


@pytest.mark.parametrize(("code", "break_it"), ANTHROPIC_BREAKS)
def test_anthropic_findings(code: str, break_it: Break) -> None:
    body = copy.deepcopy(ANTHROPIC)
    break_it(body)
    assert code in {found for found, _ in check_anthropic(body)}


OPENAI_BREAKS: list[tuple[str, Break]] = [
    ("openai.C1", lambda body: body["messages"].clear()),
    ("openai.C2", change(1, "role", to="robot")),
    ("openai.C3", lambda body: body["messages"].pop(3)),
    ("openai.C3", lambda body: body.update(messages=body["messages"][:3])),
    ("openai.C4", lambda body: body["messages"].insert(4, body["messages"][3])),
    ("openai.C5", change(1, "content", to=None)),
    ("openai.C6", change(2, "tool_calls", to=[])),
    ("openai.C7", change(2, "tool_calls", 0, "id", to="")),
    ("openai.C8", change(2, "tool_calls", 0, "function", "name", to="a b")),
    ("openai.C9", change(2, "tool_calls", 0, "function", "arguments", to="[]")),
    ("openai.L4", lambda body: body["messages"].append({"role": "system", "content": "s"})),
    ("openai.L5", change(1, "content", to="")),
    ("openai.L9", lambda body: body["messages"].extend(body["messages"][2:4])),
    ("openai.keys", change(3, "name", to="f")),
]


@pytest.mark.parametrize(("code", "break_it"), OPENAI_BREAKS)
def test_openai_findings(code: str, break_it: Break) -> None:
    body = copy.deepcopy(OPENAI)
    break_it(body)
    assert code in {found for found, _ in check_openai(body)}

"""The validator and the small checkers of other tests, which know nothing of each other, find the same.

Right payloads are changed at random, and the codes that both know are compared.  Where the two read a rule
differently, the difference is named here with its reason, and nothing else may differ.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.checkers import check_anthropic, check_openai
from tests.validation.bodies import (
    PREFILLED,
    Body,
    answer,
    anthropic,
    assistant,
    call,
    calls,
    openai,
    result,
    rules,
    says,
    text,
    think,
    use,
    user,
)

ANTHROPIC: Body = anthropic(
    user(text()),
    assistant(think(), text(), use("a"), use("b")),
    user(result("b"), result("a", content=[text()])),
    assistant(text()),
    user(text(), text()),
    assistant(use("c")),
    user(result("c"), text()),
    system=[text()],
)
OPENAI: Body = openai(
    says("system"),
    says("user"),
    calls(call("a"), call("b")),
    answer("b"),
    answer("a"),
    says("assistant"),
    says("user"),
    calls(call("c")),
    answer("c"),
)
ROLES = ("user", "assistant", "system", "robot")
KINDS = ("text", "tool_use", "tool_result", "thinking")
WORDS = ("", " ", "x", "x ", "a", "b", "c", "a:b", "\ud800", "x" * 41)
WHOLE: dict[str, Body] = {"text": text(), "tool_use": use("z"), "tool_result": result("z"), "thinking": think()}


def change_list(data: st.DataObject, items: list[Any]) -> None:
    """Drop, duplicate or swap."""
    if not items:
        return
    places = st.integers(0, len(items) - 1)
    one, other = data.draw(places), data.draw(places)
    match data.draw(st.sampled_from(("drop", "duplicate", "swap"))):
        case "drop":
            del items[one]
        case "duplicate":
            items.insert(other, copy.deepcopy(items[one]))
        case _:
            items[one], items[other] = items[other], items[one]


def change_anthropic(data: st.DataObject, body: Body) -> None:
    """One change that leaves the form as the checkers need it: every block whole, every message with its members."""
    messages: list[Any] = body["messages"]
    if not messages:
        return
    message = data.draw(st.sampled_from(messages))
    blocks: list[Any] = message["content"]
    change = data.draw(st.sampled_from(("messages", "blocks", "role", "retype", "id", "text", "key", "input", "tools")))
    block: Body = data.draw(st.sampled_from(blocks)) if blocks else {}
    match change:
        case "messages":
            change_list(data, messages)
        case "blocks":
            change_list(data, blocks)
        case "role":
            message["role"] = data.draw(st.sampled_from(ROLES))
        case "retype" if blocks:
            blocks[blocks.index(block)] = copy.deepcopy(WHOLE[data.draw(st.sampled_from(KINDS))])
        case "id" | "text" | "input":
            for key in {"id": ("id", "tool_use_id", "signature"), "text": ("text",), "input": ("input",)}[change]:
                if key in block:
                    block[key] = data.draw(st.sampled_from(WORDS))
        case "key":
            data.draw(st.sampled_from((body, message, block or body)))["timestamp"] = 1
        case _:
            body["tools"] = []


def change_openai(data: st.DataObject, body: Body) -> None:
    messages: list[Any] = body["messages"]
    if not messages:
        return
    message = data.draw(st.sampled_from(messages))
    made: list[Any] = message.get("tool_calls") or []
    match data.draw(st.sampled_from(("messages", "calls", "role", "content", "id", "name", "arguments"))):
        case "messages":
            change_list(data, messages)
        case "calls":
            change_list(data, made)
        case "role" if message["role"] in ("user", "system"):
            message["role"] = data.draw(st.sampled_from(("developer", "robot", "system", "user", "assistant")))
        case "content":
            message["content"] = data.draw(st.sampled_from((None, "", "x", "\ud800")))
        case "id":
            word = data.draw(st.sampled_from(WORDS))
            if made:
                made[0]["id"] = word
            elif "tool_call_id" in message:
                message["tool_call_id"] = word
        case "name" if made:
            made[0]["function"]["name"] = data.draw(st.sampled_from(("", "g", "a b", "x" * 65)))
        case "arguments" if made:
            made[0]["function"]["arguments"] = data.draw(st.sampled_from(("", "[]", "{", '{"x": 1}')))
        case _:
            pass


def named_differences(body: Body, theirs: set[str]) -> set[str]:
    """Codes that may differ in a changed payload, each for a reason."""
    allowed: set[str] = set()
    messages = body["messages"]
    kinds = [(m["role"], block["type"]) for m in messages for block in m["content"]]
    if "anthropic.A8" in theirs:
        # A result without a call breaks A8 alone for us; the checker counts it under A6 too.
        allowed.add("anthropic.A6")
    if any(role != "assistant" and kind == "thinking" for role, kind in kinds):
        # Thinking outside an assistant message is A13 for us, which says where it stands, and A8 for the checker.
        allowed |= {"anthropic.A8", "anthropic.A13", "anthropic.A6"}
    if any(role != "assistant" and kind == "tool_use" for role, kind in kinds):
        # The checker looks into calls only where they belong.
        allowed |= {"anthropic.A9", "anthropic.A10"}
    if any(role == "system" and kind == "tool_result" for role, kind in kinds):
        # The checker reads a system message as the user's.
        allowed.add("anthropic.A8")
    if any(one["role"] == other["role"] == "assistant" for one, other in pairwise(messages)):
        # Calls that another assistant message follows are forgotten by the checker.
        allowed.add("anthropic.A6")
    return allowed


def sound_enough(body: Body) -> bool:
    """Whether the checker, which expects a block at the end, can read it."""
    return all(message["content"] for message in body["messages"][-1:])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_anthropic(data: st.DataObject) -> None:
    body = copy.deepcopy(ANTHROPIC)
    for _ in range(data.draw(st.integers(0, 3))):
        change_anthropic(data, body)
    if not sound_enough(body):
        return
    for model, prefill in ((None, False), (PREFILLED, True)):
        ours = rules(body, "anthropic", model)
        theirs = {code for code, _ in check_anthropic(body, prefill=prefill)}
        if not body["messages"]:
            assert ours == theirs == {"anthropic.A1"}
            return
        assert (ours ^ theirs) <= named_differences(body, theirs), json.dumps(body)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_openai(data: st.DataObject) -> None:
    body = copy.deepcopy(OPENAI)
    for _ in range(data.draw(st.integers(0, 3))):
        change_openai(data, body)
    ours = rules(body, "openai")
    theirs = {code for code, _ in check_openai(body)}
    allowed: set[str] = set()
    if any(message["role"] == "user" and message["content"] is None for message in body["messages"]):
        # Content that is not there is C5 alone for us; the checker counts it under L5 too.
        allowed.add("openai.L5")
    assert (ours ^ theirs) <= allowed, json.dumps(body)

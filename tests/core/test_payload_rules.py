"""Payloads of real and of random histories obey the providers' rules, and every way out of a payload agrees."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.checkers import CHECKERS, errors
from tests.core.conversations import WILD_HISTORIES, airline
from tests.payloads.layers import MAY_BE_FOUND

from contextbus.core.importers import Conversation, from_anthropic, from_gemini, from_openai, from_responses
from contextbus.core.payload import Payload, Request, assemble, render, start_rendering
from contextbus_protocol.chat import ChatMessage, Text, user
from contextbus_protocol.errors import EmptyHistoryError

READERS: dict[str, Callable[..., Conversation]] = {
    "anthropic": from_anthropic,
    "gemini": from_gemini,
    "openai": from_openai,
    "openai-responses": from_responses,
}
TARGETS = tuple(READERS)


def bodies(payload: Payload) -> dict[str, Any]:
    """The body, once it is sure that all four ways out agree."""
    body = cast("dict[str, Any]", json.loads(payload.json()))
    assert payload.json() == b"".join(payload.chunks())
    assert payload.body == body
    assert payload.copy() == body
    assert msgspec.json.decode(payload.json()) == body
    return body


@pytest.mark.data
@pytest.mark.rule("P.E.1", "P.E.21", "P.E.15")
@pytest.mark.parametrize("target", TARGETS)
def test_real_conversations_cut_anywhere_obey_the_rules(target: str) -> None:
    for number, messages in enumerate(airline()):
        rendering = start_rendering(target)
        for index, message in enumerate(from_openai(messages).messages):
            rendering = rendering.append(message)
            if index > 12 and (index + number) % 4 and index + 1 < len(messages):
                continue  # every start and every end, and of what is between a part that differs by conversation
            if rendering.empty:
                with pytest.raises(EmptyHistoryError):
                    assemble(Request(history=rendering))
                continue
            payload = assemble(Request(history=rendering))
            assert CHECKERS[target](json.loads(payload.json())) == []


@pytest.mark.data
@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("target", TARGETS)
def test_a_real_conversation_comes_back_as_it_was_rendered(target: str) -> None:
    read = READERS[target]
    for messages in airline():
        first = render(from_openai(messages).messages, target)
        again = read(first.copy())
        second = render(again.messages, target, tools=again.tools)
        assert second.copy() == first.copy()
        assert second.repairs == ()


@pytest.mark.rule("P.E.1", "P.E.2", "P.E.23", "P.A.5")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=WILD_HISTORIES)
def test_any_history_obeys_the_rules(target: str, messages: list[ChatMessage]) -> None:
    rendering = start_rendering(target).extend(messages)
    assume(not rendering.empty)
    payload = assemble(Request(history=rendering))
    found = CHECKERS[target](bodies(payload))
    assert errors(found) == []
    repairs = {repair.code for repair in payload.repairs}
    assert all(MAY_BE_FOUND.get(code, set()) & repairs for code, _ in found)


@pytest.mark.rule("P.E.2", "P.E.7")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=WILD_HISTORIES)
def test_repair_is_idempotent(target: str, messages: list[ChatMessage]) -> None:
    rendering = start_rendering(target).extend(messages)
    assume(not rendering.empty)
    first = assemble(Request(history=rendering))
    again = READERS[target](first.copy())
    second = render(again.messages, target, tools=again.tools)
    assert second.copy() == first.copy()
    # what cannot be kept is listed each time (P.E.23)
    listed = [MAY_BE_FOUND[code] for code, _ in CHECKERS[target](first.copy())]
    assert {repair.code for repair in second.repairs} <= {"late-system"}.union(*listed)


@pytest.mark.rule("P.E.2", "P.K.1", "P.A.4", "P.A.1")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=WILD_HISTORIES, parts=st.lists(st.integers(1, 4), max_size=8))
def test_the_fold_does_not_depend_on_how_messages_arrive(
    target: str, messages: list[ChatMessage], parts: list[int]
) -> None:
    whole = start_rendering(target).extend(messages)
    stepwise, seen = start_rendering(target), 0
    frozen: list[tuple[object, bytes]] = []
    for size in [*parts, len(messages)]:
        stepwise = stepwise.extend(messages[seen : seen + size])
        seen += size
        if not stepwise.empty:
            frozen.append((stepwise, assemble(Request(history=stepwise, tail=(user("tail"),))).json()))
    assert stepwise.count == whole.count
    for rendering, json_before in frozen:
        again = assemble(Request(history=cast("Any", rendering), tail=(user("tail"),)))
        assert again.json() == json_before
    if not whole.empty:
        one, other = assemble(Request(history=whole)), assemble(Request(history=stepwise))
        assert one.json() == other.json()
        assert one.repairs == other.repairs


@pytest.mark.rule("P.A.4")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=WILD_HISTORIES, more=WILD_HISTORIES)
def test_what_is_settled_never_changes(target: str, messages: list[ChatMessage], more: list[ChatMessage]) -> None:
    before = start_rendering(target).extend(messages)
    after = before.extend(more)
    assert b"".join(after.settled.pieces()).startswith(b"".join(before.settled.pieces()))


@pytest.mark.rule("P.E.20", "P.E.18")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=WILD_HISTORIES)
def test_no_text_of_a_user_is_lost(target: str, messages: list[ChatMessage]) -> None:
    marked: list[ChatMessage] = []
    for index, message in enumerate(messages):
        extra = (Text(text=f"mark-{index}."),) if message.role in ("user", "assistant") else ()
        marked.append(msgspec.structs.replace(message, content=(*message.content, *extra)))
    rendering = start_rendering(target).extend(marked)
    assume(not rendering.empty)
    sent = assemble(Request(history=rendering)).json()
    for index, message in enumerate(messages):
        if message.role in ("user", "assistant"):
            assert sent.count(b"mark-%d." % index) == 1


def test_a_body_can_be_changed_outside_but_not_inside() -> None:
    history = start_rendering("anthropic").extend([user(f"m{index}") for index in range(3)])
    payload = assemble(Request(history=history.append(user("last"))))
    body = payload.body
    body["max_tokens"] = 10
    messages = cast("list[Any]", body["messages"])
    messages.append({"role": "assistant", "content": "x"})
    with pytest.raises(TypeError, match=r"payload\.copy\(\)"):
        messages[0]["role"] = "assistant"
    with pytest.raises(TypeError, match=r"payload\.copy\(\)"):
        messages[0]["content"].append({})
    with pytest.raises(TypeError, match=r"payload\.copy\(\)"):
        messages[0]["content"][0].update(text="other")
    own = copy.deepcopy(messages[0])
    own["content"][0]["text"] = "other"
    mine = payload.copy()
    cast("Any", mine)["messages"][0]["content"][0]["text"] = "other"
    assert json.loads(payload.json()) == payload.body
    assert "max_tokens" not in payload.body

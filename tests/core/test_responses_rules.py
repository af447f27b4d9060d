"""Any history becomes a right payload of OpenAI Responses, wherever it is cut, and rendering settles (P.E.1, P.E.2)."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.conversations import WILD_MESSAGES, airline
from tests.core.responses_checker import check_responses
from tests.core.responses_requests import NATIVE_ITEMS, requests
from tests.core.sdk_types import check_types

from contextbus.core.importers import from_openai, from_responses
from contextbus.core.payload import Payload, Request, assemble, render, start_rendering
from contextbus_protocol.chat import (
    AnyPart,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    ResultPart,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    user,
)

Body = dict[str, Any]
TARGET = "openai-responses"


def ours(**data: object) -> ProviderData:
    return ProviderData(TARGET, json.dumps(data))


def _members(**members: object) -> Body:
    """Those that are given."""
    return {name: value for name, value in members.items() if value}


def _reasoning(item_id: str | None, model: str | None, sealed: str | None, provider: str) -> Reasoning:
    data = json.dumps({"id": item_id, "summary": list[str]()} if item_id else {})
    return Reasoning(text="hm", redacted=sealed, provider_data=ProviderData(provider, data, model))


def _text(text: str, item_id: str | None, after: str | None, more: Body) -> Text:
    message = {"id": item_id, "status": "completed", "phase": "commentary"} if item_id else {}
    return Text(text=text, provider_data=ours(message=message, **_members(after=after), **more))


def _call(call_id: str, kind: str, item_id: str | None, after: str | None, number: int) -> ToolCall:
    arguments = '{"q": "hello wor' if number == 0 else _ARGUMENTS.get(kind, "{}")
    named = "" if kind == "function_call" else kind
    data = ours(**_members(type=named, id=item_id, after=after))
    return ToolCall(id=call_id, name="f", arguments=arguments, provider_data=data)


def _result(call_id: str, content: tuple[ResultPart, ...], error: bool) -> ToolResult:
    return ToolResult(id=call_id, content=content, error=error)


def _item(item: Body, after: str | None) -> Unknown:
    return Unknown(data=json.dumps(item), provider_data=ours(**_members(after=after)))


_ARGUMENTS: dict[str, str] = {
    "custom_tool_call": '{"input":"raw"}',
    "computer_call": '{"action":{"type":"wait"}}',
    "local_shell_call": '{"type":"exec","command":["ls"],"env":{}}',
    "shell_call": '{"commands":["ls"]}',
    "apply_patch_call": '{"type":"delete_file","path":"a"}',
}
_CONTENTS: list[tuple[ResultPart, ...]] = [
    (),
    (Text(text="42"),),
    (Text(text="a"), Text(text="")),
    (Image(data="AAAA"), Text(text="b")),
    (Document(data="AAAA"), Unknown(data='{"type":"x"}')),
    (Image(file_id="file-1", provider_data=ProviderData("anthropic", "{}")),),
    (Text(text='{"stdout":"","stderr":"","outcome":{"type":"timeout"}}'),),
]
_MORE: list[Body] = [{}, {"refusal": "part"}, {"annotations": "no list"}]
_COMPACTION: Body = {"type": "compaction", "encrypted_content": "z"}
_IDS = st.sampled_from(["a", "b", "call-x|fc_1", "call-x|fc_2", "", "i" * 70])
_REASONING_IDS = st.sampled_from(["rs_1", "rs_2", None])
_SIGNED = st.builds(
    _reasoning,
    _REASONING_IDS,
    st.sampled_from([None, "gpt-5.4", "gpt-5.4-2026-03-05", "gpt-4o"]),
    st.sampled_from([None, "z"]),
    st.sampled_from([TARGET, TARGET, TARGET, "anthropic"]),
)
_TEXTS = st.builds(
    _text,
    st.sampled_from(["so", "", " ", "half \ud83d"]),
    st.sampled_from(["msg_1", "msg_2", None]),
    _REASONING_IDS,
    st.sampled_from(_MORE),
)
_KINDS = st.sampled_from(["function_call", *_ARGUMENTS, "new"])
_CALLS = st.builds(_call, _IDS, _KINDS, st.sampled_from(["fc_1", None]), _REASONING_IDS, st.integers(0, 5))
_RESULTS = st.builds(_result, _IDS, st.sampled_from(_CONTENTS), st.booleans())
_ITEMS = st.builds(_item, NATIVE_ITEMS | st.just(_COMPACTION), _REASONING_IDS)
_APPROVAL = st.just(
    Unknown(
        data='{"type":"mcp_approval_response","approval_request_id":"r","approve":true}', provider_data=ours(item=True)
    )
)


def said(role: Any, parts: list[AnyPart]) -> ChatMessage:
    return ChatMessage(role=role, content=tuple(parts))


_ASSISTANT = st.builds(said, st.just("assistant"), st.lists(st.one_of(_SIGNED, _TEXTS, _CALLS, _ITEMS), max_size=6))
_ANSWERS = st.builds(said, st.sampled_from(["tool", "user"]), st.lists(_RESULTS | _APPROVAL, max_size=3))
_IMPORTED = requests().map(lambda body: from_responses(body).messages)
_ALONE = WILD_MESSAGES.map(lambda message: (message,))
_GROUPS: st.SearchStrategy[tuple[ChatMessage, ...]] = st.one_of(_ALONE, st.tuples(_ASSISTANT, _ANSWERS), _IMPORTED)


def _joined(groups: list[tuple[ChatMessage, ...]]) -> list[ChatMessage]:
    return [message for group in groups for message in group]


HISTORIES = st.lists(_GROUPS, max_size=8).map(_joined)
MODELS = st.sampled_from([None, "gpt-5.4"])


def checked(payload: Payload) -> Body:
    body = cast("Body", json.loads(payload.json()))
    assert check_responses(body) == []
    assert check_types(body, "openai-responses") == []
    return body


@pytest.mark.rule("P.E.1", "P.E.2", "P.A.2", "P.A.5", "P.E.8", "responses.R2", "responses.R4", "responses.R9")
@given(messages=HISTORIES, model=MODELS)
def test_any_history_cut_anywhere_is_right_in_both_layers(messages: list[ChatMessage], model: str | None) -> None:
    rendering = start_rendering(TARGET, model)
    for message in messages:
        rendering = rendering.append(message)
        if not rendering.empty:
            checked(assemble(Request(history=rendering)))


@pytest.mark.rule("P.E.2", "P.E.9", "P.E.7", "P.E.21")
@given(messages=HISTORIES, model=MODELS)
def test_rendering_settles(messages: list[ChatMessage], model: str | None) -> None:
    rendering = start_rendering(TARGET, model).extend(messages)
    assume(not rendering.empty)
    first = assemble(Request(history=rendering))
    assert render(messages, TARGET, model).json() == first.json()
    again = from_responses(first.copy())
    second = render(again.messages, TARGET, model, tools=again.tools)
    assert second.copy() == first.copy()
    assert {repair.code for repair in second.repairs} <= {"late-system"}


@pytest.mark.rule("P.E.2", "P.K.1", "P.A.4")
@given(messages=HISTORIES, parts=st.lists(st.integers(1, 4), max_size=6))
def test_the_fold_does_not_depend_on_how_messages_arrive(messages: list[ChatMessage], parts: list[int]) -> None:
    whole, stepwise, seen = start_rendering(TARGET).extend(messages), start_rendering(TARGET), 0
    for size in [*parts, len(messages)]:
        stepwise = stepwise.extend(messages[seen : seen + size])
        seen += size
        if not stepwise.empty:
            assemble(Request(history=stepwise, tail=(user("tail"),)))
    assume(not whole.empty)
    one, other = assemble(Request(history=whole)), assemble(Request(history=stepwise))
    assert one.json() == other.json()
    assert one.repairs == other.repairs


@pytest.mark.rule("P.E.2", "P.E.5", "responses.R5")
@given(messages=HISTORIES, model=MODELS)
def test_reasoning_is_sent_or_listed(messages: list[ChatMessage], model: str | None) -> None:
    spoken = [message for message in messages if message.role != "system"]
    rendering = start_rendering(TARGET, model).extend(spoken)
    assume(not rendering.empty)
    payload = assemble(Request(history=rendering))
    codes = [repair.code for repair in payload.repairs]
    given = [part for message in spoken for part in message.content if isinstance(part, Reasoning)]
    sent = [item for item in cast("list[Body]", payload.copy()["input"]) if item.get("type") == "reasoning"]
    lost = len(given) - len(sent) - codes.count("thinking")
    assert lost >= 0 if "compacted" in codes else lost == 0


@pytest.mark.data
@pytest.mark.rule("P.E.1", "P.E.9", "P.E.21")
def test_real_conversations_are_right_and_come_back() -> None:
    for messages in airline():
        first = render(from_openai(messages).messages, TARGET)
        checked(first)
        again = from_responses(first.copy())
        assert render(again.messages, TARGET).copy() == first.copy()

"""What the target of OpenAI Responses makes of single messages, calls, reasoning and tools."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from tests.core.payloads import call, codes, result, said
from tests.core.responses_items import ANSWER, ASKED, CALL, OUTPUT, TARGET, THOUGHT, Item, from_items, sent, without

from contextbus.core import wire
from contextbus.core.importers import from_anthropic, from_openai, from_responses
from contextbus.core.payload import Request, assemble, render, start_rendering
from contextbus.validation import check_types
from contextbus_protocol.chat import (
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    Unknown,
    assistant,
    system,
    user,
)
from contextbus_protocol.errors import EmptyHistoryError
from contextbus_protocol.values import Model


@pytest.mark.rule("P.A.2", "P.A.3")
def test_a_body_of_our_own_messages() -> None:
    history = start_rendering(TARGET).extend([system("one"), user("q"), assistant("a")])
    payload = assemble(Request(history=history, system=(system("two"), system("")), tail=(user("t"),)))
    assert sent(payload) == [
        {"role": "system", "content": "one"},
        {"role": "system", "content": "two"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "t"},
    ]
    assert list(payload.body) == ["input"]
    assert payload.repairs == ()
    assert json.loads(payload.json(model="m", store=False))["store"] is False


@pytest.mark.rule("P.A.3", "P.A.5")
def test_instructions_go_back_where_they_came_from_and_roles_stay() -> None:
    body = {"instructions": "be kind", "input": [{"role": "developer", "content": "d"}, ASKED]}
    payload = render(from_responses(body).messages, TARGET)
    assert payload.copy() == body
    assert payload.rendering.system[0].json == b'"be kind"'
    elsewhere = json.loads(render(from_responses(body).messages, "openai").json())["messages"]
    assert [message["role"] for message in elsewhere] == ["system", "system", "user"]
    twice = from_responses(body).messages[:1] * 2
    assert render([*twice, user("q")], TARGET).copy()["instructions"] == "be kind\n\nbe kind"


@pytest.mark.rule("P.E.19")
def test_a_late_system_message_stays_what_it_is_and_is_listed() -> None:
    payload = from_items(ASKED, {"role": "developer", "content": "d"}, ANSWER)
    assert sent(payload)[1] == {"role": "developer", "content": "d"}
    assert codes(payload) == ["late-system", "id"]


@pytest.mark.rule("P.E.15")
def test_nothing_but_system_messages_is_no_request() -> None:
    with pytest.raises(EmptyHistoryError):
        render([system("s")], TARGET)


@pytest.mark.rule("P.A.7")
def test_a_model_of_openai_asks_for_chat_completions_unless_this_target_is_named() -> None:
    model = Model(provider="openai", model_id="gpt-5.4", context_window=100_000, max_output_tokens=1_000)
    assert render([user("q")], None, model).target == "openai"
    assert render([user("q")], TARGET, model).target == TARGET
    with pytest.raises(TypeError, match="openai-responses"):
        render([user("q")], "mistral")


@pytest.mark.rule("responses.L6", "P.E.7")
def test_b18_ids_are_stripped_where_the_reasoning_is_absent() -> None:
    right = [ASKED, THOUGHT, ANSWER, CALL, OUTPUT]
    assert sent(from_items(*right)) == right
    payload = from_items(ASKED, {**ANSWER, "phase": "commentary"}, CALL, OUTPUT)
    assert sent(payload)[1:] == [
        {"role": "assistant", "content": "so", "phase": "commentary"},
        without(CALL, "id"),
        OUTPUT,
    ]
    assert codes(payload) == ["id", "id"]
    # An edit that removes the reasoning of one item leaves the id of the other
    messages = from_responses([ASKED, THOUGHT, ANSWER, {**THOUGHT, "id": "rs_2"}, CALL, OUTPUT]).messages
    spoken = messages[1].content
    edited = ChatMessage(role="assistant", content=(*spoken[:2], spoken[3]))
    assert sent(render([messages[0], edited, messages[2]], TARGET))[1:] == [
        THOUGHT,
        ANSWER,
        without(CALL, "id"),
        OUTPUT,
    ]


@pytest.mark.rule("responses.L6", "responses.R9")
def test_an_item_that_cannot_be_without_its_id_goes_as_another() -> None:
    click = {"type": "click", "button": "left", "x": 1, "y": 2}
    computer: Item = {"type": "computer_call", "id": "cu_1", "call_id": "a", "action": click}
    computer |= {"pending_safety_checks": [], "status": "completed"}
    shot: Item = {"type": "computer_call_output", "call_id": "a"}
    shot["output"] = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    assert sent(from_items(ASKED, THOUGHT, computer, shot))[2:] == [computer, shot]
    called, answered = sent(from_items(ASKED, computer, shot))[1:]
    assert (called["type"], called["name"], json.loads(called["arguments"])) == (
        "function_call",
        "computer",
        {"action": click},
    )
    assert answered["output"] == [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    search: Item = {"type": "web_search_call", "id": "ws", "status": "completed"}
    search["action"] = {"type": "search", "query": "q"}
    asked, spoken = from_responses([ASKED, THOUGHT, search]).messages
    payload = render([asked, ChatMessage(role="assistant", content=spoken.content[1:])], TARGET)
    assert sent(payload)[1] == {"role": "assistant", "content": wire.LEFT_OUT.format(kind="web_search_call")}
    assert codes(payload) == ["unknown-part"]
    assert sent(from_items(ASKED, search))[1] == search


@pytest.mark.rule("responses.R5", "P.E.5")
def test_reasoning_without_its_item_is_dropped_and_listed() -> None:
    for items in ([ASKED, THOUGHT], [ASKED, THOUGHT, ASKED], [ASKED, without(CALL, "id"), THOUGHT, OUTPUT]):
        payload = from_items(*items)
        assert all(item.get("type") != "reasoning" for item in sent(payload))
        assert [code for code in codes(payload) if code != "empty"] == ["thinking"]
    messages = from_responses([ASKED, THOUGHT, ANSWER, CALL, OUTPUT]).messages
    thought, _, called = messages[1].content
    payload = render([messages[0], ChatMessage(role="assistant", content=(thought, called)), messages[2]], TARGET)
    assert sent(payload)[1:] == [THOUGHT, CALL, OUTPUT]
    empty: Item = {**ANSWER, "content": [{"type": "output_text", "text": "", "annotations": []}]}
    assert codes(from_items(ASKED, THOUGHT, empty)) == ["thinking", "empty"]


@pytest.mark.rule("P.E.5", "responses.R6")
def test_b22_reasoning_goes_back_to_its_model_only() -> None:
    response = {"model": "gpt-5.4-2026-03-05", "output": [THOUGHT, ANSWER]}
    messages = [user("q"), *from_responses(response).messages, user("go")]
    assert sent(render(messages, TARGET, "gpt-5.4"))[1:3] == [THOUGHT, ANSWER]
    assert sent(render(messages, TARGET))[1:3] == [THOUGHT, ANSWER]
    payload = render(messages, TARGET, "gpt-4o")
    assert sent(payload)[1] == {"role": "assistant", "content": "so"}
    assert codes(payload) == ["thinking", "id"]
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}]
    claude = from_anthropic([ASKED, {"role": "assistant", "content": blocks}]).messages
    payload = render(claude, TARGET)
    assert sent(payload)[1:] == [{"role": "assistant", "content": "so"}]
    assert codes(payload) == ["thinking"]
    for target in ("anthropic", "openai"):
        assert b"encrypted" not in render(messages, target).json()
        assert b'"z"' not in render(messages, target).json()


@pytest.mark.rule("P.E.5", "responses.R6")
def test_reasoning_is_sent_with_what_it_came_with() -> None:
    bare = without(THOUGHT, "encrypted_content")
    assert sent(from_items(ASKED, bare, ANSWER))[1] == bare
    payload = from_items(ASKED, without(THOUGHT, "id", "encrypted_content"), ANSWER)
    assert sent(payload)[1:] == [{"role": "assistant", "content": "so"}]
    assert codes(payload) == ["thinking", "id"]
    ours = said("assistant", Reasoning(text="hm"), Text(text="so"))
    assert codes(render([user("q"), ours], TARGET)) == ["thinking"]


@pytest.mark.rule("P.E.5", "responses.R5", "responses.R6", "responses.L6")
def test_encrypted_reasoning_needs_no_id() -> None:
    sealed = without(THOUGHT, "id")
    plain: Item = {"role": "assistant", "content": "so"}
    payload = from_items(ASKED, sealed, ANSWER, sealed, without(CALL, "id"), OUTPUT)
    assert sent(payload)[1:] == [sealed, plain, sealed, without(CALL, "id"), OUTPUT]
    assert codes(payload) == ["id"]  # nothing is stored that an id could name
    assert check_types(payload.copy(), TARGET) == ()
    assert codes(from_items(ASKED, sealed, ASKED)) == ["thinking", "empty"]  # its item is not behind it
    later = {**THOUGHT, "id": "rs_2"}
    assert sent(from_items(ASKED, sealed, later, ANSWER))[1:] == [sealed, later, ANSWER]
    elsewhere = from_responses({"model": "gpt-5", "output": [sealed, plain]}).messages
    assert codes(render([user("q"), *elsewhere], TARGET, "gpt-4o")) == ["thinking"]
    foreign = Reasoning(redacted="z", provider_data=ProviderData("anthropic", "{}"))
    for part in (foreign, Reasoning(redacted="z")):
        assert codes(render([user("q"), said("assistant", part, Text(text="so"))], TARGET)) == ["thinking"]


@pytest.mark.rule("P.A.5", "responses.R8")
def test_b20_opaque_data_is_the_same_to_the_byte() -> None:
    sealed = {**THOUGHT, "encrypted_content": "gAAAA+/=\u2028\x7f\ud7ff" * 50}
    compaction: Item = {"type": "compaction", "id": None, "encrypted_content": "z+/=\u2028"}
    items = [compaction, ASKED, sealed, ANSWER]
    assert sent(from_items(*items)) == items


@pytest.mark.rule("responses.L7", "responses.R8")
def test_what_stands_before_the_newest_compaction_is_dropped() -> None:
    compaction: Item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "z"}
    newest: Item = {**compaction, "id": "cmp_2"}
    kept: Item = {"role": "system", "content": "s"}
    items = [
        kept,
        ASKED,
        compaction,
        ASKED,
        THOUGHT,
        ANSWER,
        without(CALL, "id"),
        newest,
        OUTPUT,
        {**ASKED, "content": "go"},
    ]
    payload = from_items(*items)
    assert sent(payload) == [kept, newest, items[-1]]
    assert codes(payload) == ["compacted", "compacted", "orphan-result"]
    stepwise = start_rendering(TARGET)
    for message in from_responses(items).messages:
        stepwise = stepwise.append(message)
    assert assemble(Request(history=stepwise)).json() == payload.json()
    elsewhere = render(from_responses(items).messages, "anthropic")
    assert b"compaction left out" in elsewhere.json()
    assert b'"go"' in elsewhere.json()
    misplaced = Unknown(data=json.dumps(newest), provider_data=ProviderData(TARGET, "{}"))
    assert codes(render([user("q"), said("user", misplaced)], TARGET)) == ["misplaced"]


@pytest.mark.rule("responses.L6", "responses.L7", "P.E.5")
def test_an_id_goes_with_the_reasoning_that_a_compaction_left_out() -> None:
    compaction: Item = {"type": "compaction", "encrypted_content": "z"}
    payload = from_items(ASKED, THOUGHT, compaction, ANSWER, ASKED)
    assert sent(payload) == [compaction, {"role": "assistant", "content": "so"}, ASKED]
    assert codes(payload) == ["id", "compacted"]
    again = from_items(ASKED, compaction, THOUGHT, ANSWER, ASKED)
    assert sent(again) == [compaction, THOUGHT, ANSWER, ASKED]


@pytest.mark.rule("P.E.8", "responses.R7")
def test_images_and_files_go_as_data_url_or_file() -> None:
    parts = (
        Image(media_type="image/png", data="AAAA"),
        Image(url="https://example.org/i.png"),
        Image(file_id="file-1", provider_data=ProviderData("openai", "{}")),
        Image(file_id="file-2", provider_data=ProviderData("anthropic", "{}")),
        Document(media_type="application/pdf", data="BBBB", title="terms.pdf"),
        Document(url="https://example.org/d.pdf"),
        Document(file_id="file-3"),
        Document(text="page", title="t"),
        Document(title="nothing"),
    )
    payload = render([said("user", *parts)], TARGET)
    assert sent(payload)[0]["content"] == [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.org/i.png", "detail": "auto"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_text", "text": wire.LEFT_OUT.format(kind="image")},
        {"type": "input_file", "file_data": "data:application/pdf;base64,BBBB", "filename": "terms.pdf"},
        {"type": "input_file", "file_url": "https://example.org/d.pdf"},
        {"type": "input_file", "file_id": "file-3"},
        {"type": "input_text", "text": "t\npage"},
        {"type": "input_text", "text": wire.LEFT_OUT.format(kind="document")},
    ]
    assert codes(payload) == ["unknown-part", "unknown-part"]
    payload = render([user("q"), said("assistant", parts[0], parts[4])], TARGET)
    assert b"AAAA" not in payload.json()
    assert [item["content"] for item in sent(payload)[1:]] == [
        wire.LEFT_OUT.format(kind="image"),
        wire.LEFT_OUT.format(kind="document"),
    ]
    assert codes(payload) == ["misplaced", "misplaced"]


@pytest.mark.rule("P.A.5", "P.E.9")
def test_items_keep_their_order_among_texts_and_calls() -> None:
    thought = said("assistant", Text(text="1"), call("a"), Text(text="2"), Text(text="3"), call("b"), Text(text="4"))
    payload = render([user("q"), thought, said("tool", result("b"), result("a"))], TARGET)
    assert [item.get("content", item.get("call_id")) for item in sent(payload)[1:]] == [
        "1",
        "a",
        "2",
        "3",
        "b",
        "4",
        "b",
        "a",
    ]
    assert payload.repairs == ()


@pytest.mark.rule("P.A.5")
def test_a_message_item_is_whole_and_never_twice() -> None:
    parts: list[Item] = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]
    items: list[Item] = [ASKED, THOUGHT, {**ANSWER, "content": parts}, {**ANSWER, "id": "msg_2", "content": parts}]
    asked, spoken = from_responses(items).messages
    assert sent(render([asked, spoken], TARGET)) == items
    first, second, third = spoken.content[1:4]
    torn = said("assistant", spoken.content[0], first, third, second)
    payload = render([asked, torn], TARGET)
    assert [item.get("id") for item in sent(payload)[1:]] == ["rs_1", "msg_1", "msg_2", None]
    assert codes(payload) == ["id"]
    noted = ChatMessage(
        role="assistant",
        content=(spoken.content[0], Text(text="so")),
        provider_data=ProviderData(TARGET, '{"id":"msg_1","status":"incomplete","phase":"final_answer"}'),
    )
    assert sent(render([asked, noted], TARGET))[2] == {**ANSWER, "status": "incomplete", "phase": "final_answer"}


@pytest.mark.rule("P.A.2", "P.A.5")
def test_b83_internal_fields_never_leak() -> None:
    extra: Item = {"metadata": {"k": 1}, "timestamp": 5, "_cache_breakpoint": True, "created_by": "x"}
    openai: list[Item] = [
        {"role": "user", "content": [{"type": "text", "text": "q", **extra}], "name": "ada", **extra},
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "a", "function": {"name": "f"}, **extra}], **extra},
        {"role": "tool", "tool_call_id": "a", "content": "r", **extra},
    ]
    own: list[Item] = [
        {"role": "user", "content": [{"type": "input_text", "text": "q", **extra}], **extra},
        {**THOUGHT, **extra},
        {**ANSWER, "content": [{**ANSWER["content"][0], **extra}], **extra},
        {**CALL, **extra},
        {**OUTPUT, "output": [{"type": "input_image", "image_url": "u", **extra}], **extra},
    ]
    tools: list[Item] = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "tags": ["x"], **extra}
    ]
    for conversation in (from_openai(openai), from_responses(own)):
        payload = render(conversation.messages, TARGET, tools=tools)
        assert sent(payload)
        for word in (b"metadata", b"timestamp", b"_cache", b"tags", b"created_by", b"after", b"ada"):
            assert word not in payload.json()


@pytest.mark.rule("P.E.3")
def test_tools_are_flat_and_keep_their_members_here_alone() -> None:
    schema: Item = {"type": "object", "properties": {"q": {"type": "string"}}}
    flat: Item = {"type": "function", "name": "f", "description": "d", "parameters": schema}
    for shape in (
        {"name": "f", "description": "d", "input_schema": schema},
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        flat,
    ):
        payload = render([user("q")], TARGET, tools=[shape])
        assert sent(payload)
        assert payload.copy()["tools"] == [{**flat, "strict": False}]
    strict: Item = {**flat, "strict": True, "output_schema": schema}
    assert render([user("q")], TARGET, tools=[strict]).copy()["tools"] == [strict]
    for target in ("anthropic", "openai"):
        assert b"strict" not in render([user("q")], target, tools=[strict]).json()
    named = render(
        [user("q"), said("assistant", call("a", name="look up"))], TARGET, tools=[{**flat, "name": "look up"}]
    )
    assert cast("Any", named.copy()["tools"])[0]["name"] == sent(named)[1]["name"] != "look up"


@pytest.mark.rule("P.E.3")
def test_tools_that_only_openai_knows() -> None:
    search: Item = {"type": "web_search"}
    space: Item = {"type": "namespace", "name": "n", "description": "d", "tools": []}
    custom: Item = {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}}
    claude: Item = {"type": "bash_20250124", "name": "bash"}
    payload = render([user("q")], TARGET, tools=[search, space, custom, claude])
    assert sent(payload)
    flat = {"type": "custom", "name": "c", "format": {"type": "text"}}
    assert payload.copy()["tools"] == [search, space, flat]
    assert "tools" not in render([user("q")], TARGET, tools=[claude]).copy()
    assert render([user("q")], "anthropic", tools=[search, space, claude]).copy()["tools"] == [claude]


@pytest.mark.rule("P.E.20")
def test_empty_texts_and_messages_are_dropped() -> None:
    payload = render([user(""), user("q"), assistant(""), said("assistant", Text(text=""), Text(text="a"))], TARGET)
    assert sent(payload) == [ASKED, {"role": "assistant", "content": "a"}]
    assert set(codes(payload)) == {"empty"}


@pytest.mark.rule("P.C.2", "P.E.17")
def test_any_item_may_be_last_and_no_model_continues_one() -> None:
    rendering = start_rendering(TARGET, "gpt-5.4").extend([user("q"), assistant("a")])
    assert not rendering.target.takes_prefill
    assert sent(assemble(Request(history=rendering)))[-1] == {"role": "assistant", "content": "a"}
    assert json.loads(rendering.target.prefill("So: \n")) == {"role": "assistant", "content": "So:"}

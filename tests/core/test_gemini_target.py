"""Payloads for Gemini obey its rules for every history, and what each kind of part and repair becomes there."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.checkers import errors
from tests.core.conversations import airline
from tests.core.gemini_checker import check_gemini
from tests.core.gemini_requests import histories
from tests.core.payloads import call, codes, result, said
from tests.core.sdk_types import check_types

from contextbus.core import wire
from contextbus.core.importers import from_anthropic, from_gemini, from_openai
from contextbus.core.payload import Payload, Request, assemble, render, start_rendering
from contextbus.core.targets.gemini import NO_SIGNATURE, GeminiTarget, wire_name
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    system,
    user,
)
from contextbus_protocol.errors import EmptyHistoryError, InvalidTypeError
from contextbus_protocol.values import Model

Body = dict[str, Any]
SIGNED = ProviderData("gemini", '{"thoughtSignature":"c2ln"}', "gemini-3-pro")
ASKED = said("assistant", call("a"), call("b", name="g"))


def checked(payload: Payload) -> Body:
    """The body, once both layers have passed it; text beside results must be among the repairs (P.E.23)."""
    body = cast("Body", json.loads(payload.json()))
    found = check_gemini(body)
    assert errors(found) == []
    if found:
        assert {"merged", "late-result"} & {repair.code for repair in payload.repairs}
    assert check_types(body, "gemini") == []
    assert payload.body == payload.copy() == body
    return body


def sent(payload: Payload) -> list[Any]:
    return cast("list[Any]", checked(payload)["contents"])


def results_of(contents: list[Any]) -> list[tuple[str, Any]]:
    parts = [
        part["functionResponse"] for content in contents for part in content["parts"] if "functionResponse" in part
    ]
    return [(part["name"], part["response"]) for part in parts]


def roles(payload: Payload) -> list[str]:
    return [content["role"] for content in sent(payload)]


@pytest.mark.rule("P.E.1", "P.E.2", "P.E.23", "P.A.5")
@given(messages=histories())
def test_any_history_cut_anywhere_obeys_the_rules(messages: list[ChatMessage]) -> None:
    rendering = start_rendering("gemini", "gemini-3-pro")
    for message in messages:
        rendering = rendering.append(message)
        if not rendering.empty:
            checked(assemble(Request(history=rendering)))


@pytest.mark.data
@pytest.mark.rule("P.E.1", "P.E.9")
def test_real_conversations_cut_anywhere_obey_the_rules_and_come_back() -> None:
    for number, messages in enumerate(airline()):
        rendering = start_rendering("gemini")
        for index, message in enumerate(from_openai(messages).messages):
            rendering = rendering.append(message)
            if not rendering.empty and not (index + number) % 5:
                checked(assemble(Request(history=rendering)))
        first = assemble(Request(history=rendering))
        assert check_gemini(checked(first)) == []
        again = render(from_gemini(first.copy()).messages, "gemini")
        assert again.copy() == first.copy()
        assert again.repairs == ()


@pytest.mark.rule("P.E.2", "P.E.9")
@given(messages=histories())
def test_repair_is_idempotent(messages: list[ChatMessage]) -> None:
    rendering = start_rendering("gemini").extend(messages)
    assume(not rendering.empty)
    first = assemble(Request(history=rendering))
    second = render(from_gemini(first.copy()).messages, "gemini")
    assert second.copy() == first.copy()
    assert second.json() == render(from_gemini(second.json()).messages, "gemini").json()
    assert {repair.code for repair in second.repairs} <= {"merged"}


@pytest.mark.rule("P.E.2", "P.K.1", "P.A.4")
@given(messages=histories(), parts=st.lists(st.integers(1, 4), max_size=6))
def test_the_fold_does_not_depend_on_how_messages_arrive(messages: list[ChatMessage], parts: list[int]) -> None:
    whole = start_rendering("gemini").extend(messages)
    stepwise, seen = start_rendering("gemini"), 0
    for size in [*parts, len(messages)]:
        before = b"".join(stepwise.settled.pieces())
        stepwise = stepwise.extend(messages[seen : seen + size])
        assert b"".join(stepwise.settled.pieces()).startswith(before)
        seen += size
    if not whole.empty:
        one, other = assemble(Request(history=whole)), assemble(Request(history=stepwise))
        assert one.json() == other.json() == assemble(Request(history=whole)).json()
        assert one.repairs == other.repairs


@pytest.mark.rule("P.E.20", "P.E.18")
@given(messages=histories())
def test_no_text_is_lost(messages: list[ChatMessage]) -> None:
    spoken = [index for index, message in enumerate(messages) if message.role in ("user", "assistant")]
    marked = [
        ChatMessage(role=message.role, content=(*message.content, Text(text=f"mark-{index}.")))
        for index, message in enumerate(messages)
    ]
    rendering = start_rendering("gemini").extend(marked)
    assume(not rendering.empty)
    body = assemble(Request(history=rendering)).json()
    assert all(body.count(b"mark-%d." % index) == 1 for index in spoken)


@pytest.mark.rule("P.A.2", "P.A.3")
def test_the_system_layer_and_the_tools_stand_beside_the_contents() -> None:
    history = start_rendering("gemini").extend([system("one"), user("q")])
    tools = json.dumps([{"name": "f", "input_schema": {"type": "object"}}])
    payload = assemble(Request(history=history, system=(system("two"), system("")), tail=(user("t"),), tools=tools))
    body = checked(payload)
    assert list(body) == ["systemInstruction", "tools", "contents"]
    assert body["systemInstruction"] == {"parts": [{"text": "one"}, {"text": "two"}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "q"}, {"text": "t"}]}]
    assert list(checked(render([user("q")], "gemini"))) == ["contents"]
    assert json.loads(payload.json(cachedContent="c", model="m"))["model"] == "m"


@pytest.mark.rule("P.A.7")
def test_google_is_the_provider_of_this_target() -> None:
    model = Model("google", "models/gemini-3-pro", 1_000_000, 8_000)
    target = start_rendering(None, model).target
    assert (target.name, target.model_id) == ("gemini", "gemini-3-pro")
    assert start_rendering(None, Model("gemini", "g", 1_000, 100)).target.name == "gemini"


@pytest.mark.rule("P.E.12", "gemini.G7")
def test_b81_there_are_as_many_results_as_calls() -> None:
    open_end = render([user("q"), ASKED], "gemini")
    assert results_of(sent(open_end)) == [("f", {"error": wire.NO_RESULT}), ("g", {"error": wire.NO_RESULT})]
    assert codes(open_end) == ["missing-result", "missing-result"]
    one = render([user("q"), ASKED, said("tool", result("b", "B")), assistant("x"), user("go")], "gemini")
    assert results_of(sent(one)) == [("f", {"error": wire.NO_RESULT}), ("g", {"result": "B"})]
    swapped = render([user("q"), ASKED, said("tool", result("b", "B")), said("tool", result("a", "A"))], "gemini")
    assert results_of(sent(swapped)) == [("f", {"result": "A"}), ("g", {"result": "B"})]
    assert codes(swapped) == []
    orphan = render([user("q"), said("tool", result("z")), assistant("a"), user("b")], "gemini")
    assert results_of(sent(orphan)) == []
    assert codes(orphan) == ["orphan-result"]


@pytest.mark.rule("P.E.13", "P.E.23")
def test_a_late_result_stays_as_text() -> None:
    history = [user("q"), ASKED, user("w"), assistant("x"), said("tool", result("a", "<late>"))]
    payload = render(history, "gemini")
    assert results_of(sent(payload)) == [("f", {"error": wire.NO_RESULT}), ("g", {"error": wire.NO_RESULT})]
    assert b"&lt;late&gt;" in payload.json()
    assert codes(payload) == ["merged", "missing-result", "missing-result", "late-result"]


@pytest.mark.rule("P.E.23", "gemini.L8", "gemini.G4")
def test_text_beside_results_is_listed() -> None:
    answered = [user("q"), said("assistant", call("a")), said("tool", result("a"))]
    for more in ([user("go")], [system("be kind")], [said("user", Document(text="page"))]):
        payload = render([*answered, *more], "gemini")
        assert check_gemini(checked(payload)) == [("gemini.L8", "contents[2]")]
        assert "merged" in codes(payload)
    moved = render([*answered[:2], user("wait"), answered[2]], "gemini")
    assert check_gemini(checked(moved)) == [("gemini.L8", "contents[2]")]
    assert codes(moved) == ["merged", "moved-result"]
    own = render([*answered[:2], said("user", result("a"), Text(text="go"))], "gemini")
    assert codes(own) == ["merged"]
    picture = render([*answered[:2], said("user", result("a"), Image(data="AAAA"))], "gemini")
    assert check_gemini(checked(picture)) == []
    assert codes(picture) == []
    assert codes(render([*answered, user("go")], "anthropic")) == []


@pytest.mark.rule("P.E.18", "gemini.G4", "gemini.G1", "gemini.G2")
def test_roles_alternate() -> None:
    history = [user("q"), user("more"), assistant("one"), said("assistant", call("a"), Text(text="two"))]
    payload = render([*history, said("tool", result("a"))], "gemini")
    contents = sent(payload)
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    assert [next(iter(part)) for part in contents[1]["parts"]] == ["text", "functionCall", "text"]
    assert codes(payload) == ["merged", "merged"]


@pytest.mark.rule("P.E.16", "P.E.17", "P.C.3")
def test_the_user_begins_and_ends() -> None:
    payload = render([assistant("hello")], "gemini")
    assert [(content["role"], content["parts"][0]["text"]) for content in sent(payload)] == [
        ("user", wire.OPENING),
        ("model", "hello"),
        ("user", wire.CONTINUE),
    ]
    assert codes(payload) == ["first-user", "last-assistant"]
    assert GeminiTarget().takes_prefill is False
    assert json.loads(GeminiTarget().prefill("so: ")) == {"role": "model", "parts": [{"text": "so:"}]}


@pytest.mark.rule("P.E.19")
def test_a_late_system_message_is_the_users() -> None:
    payload = render([user("q"), assistant("a"), system("now <be> kind"), user("b")], "gemini")
    assert sent(payload)[-1]["parts"][0]["text"] == "<system_message>\nnow &lt;be&gt; kind\n</system_message>"
    assert codes(payload) == ["late-system", "merged"]


@pytest.mark.rule("P.E.20", "gemini.G3")
@pytest.mark.parametrize("parts", [(), (Text(text=""),), (Text(text="", provider_data=SIGNED),)])
def test_b78_empty_parts_and_messages_are_dropped(parts: tuple[AnyPart, ...]) -> None:
    payload = render([user("q"), said("assistant", *parts), user("go")], "gemini")
    assert roles(payload) == ["user"]
    assert "empty" in codes(payload)


@pytest.mark.rule("P.E.15")
@pytest.mark.parametrize("messages", [[], [system("s")], [user("")]])
def test_nothing_but_system_messages_is_refused(messages: list[ChatMessage]) -> None:
    with pytest.raises(EmptyHistoryError):
        render(messages, "gemini")


@pytest.mark.rule("P.E.14")
def test_a_denied_call_says_so() -> None:
    asked = said("assistant", call("a"), ApprovalRequest(id="p", call_id="a"))
    payload = render([user("q"), asked, said("tool", ApprovalResponse(id="p", approved=False))], "gemini")
    assert results_of(sent(payload)) == [("f", {"error": wire.DENIED})]
    assert codes(payload).count("approval") == 2


@pytest.mark.rule("P.E.6", "P.E.22", "gemini.G6")
@pytest.mark.parametrize("arguments", ['{"q": "hello wor', "", "[1]", "null"])
def test_b68_broken_arguments_never_reach_the_provider(arguments: str) -> None:
    payload = render([user("q"), said("assistant", call("a", arguments)), user("go")], "gemini")
    assert sent(payload)[1]["parts"][0]["functionCall"] == {"name": "f", "args": {}}
    assert results_of(sent(payload)) == [("f", {"error": wire.BAD_ARGUMENTS})]
    assert codes(payload)[0] == "bad-arguments"


@pytest.mark.rule("P.E.7", "P.E.21")
def test_b14_ids_go_back_only_where_gemini_gave_them() -> None:
    history: list[ChatMessage] = [user("q")]
    for number in range(3):
        history += [said("assistant", call("X")), said("tool", result("X", f"r{number}"))]
    payload = render([*history, assistant("a"), user("go")], "gemini")
    assert results_of(sent(payload)) == [("f", {"result": f"r{number}"}) for number in range(3)]
    assert b'"id"' not in payload.json()
    own = ProviderData("gemini", '{"id":true}')
    for message in range(1, 6, 2):
        history[message] = said("assistant", ToolCall(id="X", name="f", provider_data=own))
    contents = sent(render([*history, assistant("a"), user("go")], "gemini"))
    called = [content["parts"][0]["functionCall"]["id"] for content in contents[1:7:2]]
    answered = [content["parts"][0]["functionResponse"]["id"] for content in contents[2:7:2]]
    assert called == answered == ["X", "X-2", "X-3"]


@pytest.mark.rule("P.E.5", "gemini.G8")
def test_b20_every_step_is_signed_and_stays_as_it_is() -> None:
    signed = ToolCall(id="a", name="f", provider_data=SIGNED)
    history = [user("q"), said("assistant", Text(text="so"), signed, call("b")), said("tool", result("a"), result("b"))]
    history += [said("assistant", call("c"), signed), said("tool", result("a"), result("c"))]
    payload = render(history, "gemini", "gemini-3-pro")
    first, second = (content["parts"] for content in sent(payload)[1::2])
    assert [part.get("thoughtSignature") for part in first] == [None, "c2ln", None]
    assert [part.get("thoughtSignature") for part in second] == [NO_SIGNATURE, "c2ln"]
    assert codes(payload) == ["repeated-id"]
    later = render([*history, assistant("done"), user("next")], "gemini", "gemini-3-pro")
    assert sent(later)[: len(sent(payload))] == sent(payload)


@pytest.mark.rule("P.E.5")
def test_b22_signatures_go_back_to_the_model_that_gave_them() -> None:
    parts: tuple[AnyPart, ...] = (
        Reasoning(text="hm", signature="c2ln", provider_data=SIGNED),
        Text(text="so", provider_data=SIGNED),
        ToolCall(id="a", name="f", provider_data=SIGNED),
    )
    history = [user("q"), said("assistant", *parts), said("tool", result("a"))]
    for model in ("gemini-3-pro", "gemini-3-pro-2026-01-01", "models/gemini-3-pro", None):
        payload = render(history, "gemini", model)
        assert sent(payload)[1]["parts"] == [
            {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
            {"text": "so", "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"},
        ]
        assert codes(payload) == []
    for target, model in (("gemini", "gemini-2.5-pro"), ("anthropic", None), ("openai", None)):
        payload = render(history, target, model)
        assert b"c2ln" not in payload.json()
        assert b"hm" not in payload.json()
        assert codes(payload) == ["thinking"] * 3
    foreign = Reasoning(text="hm", signature="c2ln", provider_data=ProviderData("anthropic", "{}"))
    for reasoning in (foreign, Reasoning(text="hm", signature="c2ln"), Reasoning(redacted="zip", provider_data=SIGNED)):
        payload = render([user("q"), said("assistant", reasoning, Text(text="so")), user("go")], "gemini")
        assert codes(payload) == ["thinking"]
        assert sent(payload)[1]["parts"] == [{"text": "so"}]


@pytest.mark.rule("gemini.G6")
def test_what_a_result_becomes() -> None:
    own = ProviderData("gemini", '{"response":"object"}')
    cases: list[tuple[ToolResult, Body]] = [
        (result("a", '{"n":1}'), {"result": '{"n":1}'}),
        (result("a", "no", error=True), {"error": "no"}),
        (ToolResult(id="a"), {"result": ""}),
        (ToolResult(id="a", content=(Text(text="1"), Text(text=""), Text(text="2"))), {"result": "1\n2"}),
        (ToolResult(id="a", content=(Text(text='{"n":1}'),), provider_data=own), {"n": 1}),
        (ToolResult(id="a", content=(Text(text="cut {"),), provider_data=own), {"result": "cut {"}),
        (ToolResult(id="a", content=(Document(title="t", text="page"),)), {"result": "t\npage"}),
    ]
    for answer, expected in cases:
        payload = render([user("q"), said("assistant", call("a")), said("tool", answer)], "gemini")
        assert results_of(sent(payload)) == [("f", expected)]


@pytest.mark.rule("P.E.8", "gemini.G7")
@pytest.mark.parametrize(("model", "inside"), [(None, True), ("gemini-3-pro", True), ("gemini-2.5-pro", False)])
def test_media_of_results_stand_inside_where_the_model_takes_them(model: str | None, inside: bool) -> None:
    png, heic = Image(media_type="image/png", data="AAAA"), Image(media_type="image/heic", data="BBBB")
    linked, bad = Image(url="https://example.org/i.png"), Image(media_type="image/png", data="not base64")
    answer = ToolResult(id="a", content=(Text(text="t"), png, heic, linked, bad))
    payload = render([user("q"), ASKED, said("tool", answer, result("b"))], "gemini", model)
    parts = sent(payload)[2]["parts"]
    nested = [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]
    assert parts[0]["functionResponse"].get("parts") == (nested if inside else None)
    assert "image left out" in parts[0]["functionResponse"]["response"]["result"]
    assert parts[1]["functionResponse"]["name"] == "g"
    assert parts[2:] == [
        *([] if inside else nested),
        {"inlineData": {"mimeType": "image/heic", "data": "BBBB"}},
        {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/i.png"}},
    ]
    assert codes(payload) == ["unknown-part"]


@pytest.mark.rule("P.E.8", "gemini.G5")
def test_images_and_documents() -> None:
    cases: list[tuple[AnyPart, Body]] = [
        (Image(data="AAAA"), {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
        (Image(url="data:image/webp;base64,AAAA"), {"inlineData": {"mimeType": "image/webp", "data": "AAAA"}}),
        (
            Image(url="https://e.org/i.JPG?x"),
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://e.org/i.JPG?x"}},
        ),
        (Image(url="gs://b/i"), {"fileData": {"fileUri": "gs://b/i"}}),
        (
            Document(media_type="application/pdf", data="AAAA"),
            {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}},
        ),
        (Document(text="page", title="t"), {"text": "t\npage"}),
        (
            Image(file_id="gs://b/i", media_type="image/png", provider_data=ProviderData("gemini", "{}")),
            {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/i"}},
        ),
    ]
    for part, expected in cases:
        payload = render([said("user", part)], "gemini")
        assert sent(payload)[0]["parts"] == [expected]
        assert codes(payload) == []
    titled = render([said("user", Document(media_type="application/pdf", data="AAAA", title="t.pdf"))], "gemini")
    assert [list(part) for part in sent(titled)[0]["parts"]] == [["text"], ["inlineData"]]
    refused: tuple[AnyPart, ...] = (
        Image(media_type="image/bmp", data="AAAA"),
        Image(url="http://e.org/i.png"),
        Image(file_id="file-1"),
        Image(media_type="image/png", data=""),
        Document(media_type="application/msword", data="AAAA"),
        Document(data="AAAA"),
    )
    for part in refused:
        payload = render([said("user", part)], "gemini")
        assert "left out" in sent(payload)[0]["parts"][0]["text"]
        assert codes(payload) == ["unknown-part"]
    payload = render([user("q"), said("assistant", Image(data="AAAA")), user("go")], "gemini")
    assert b"AAAA" not in payload.json()
    assert codes(payload) == ["misplaced"]


@pytest.mark.rule("P.A.5")
def test_parts_that_only_gemini_knows_go_back_to_it_alone() -> None:
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thought": True},
    ]
    messages = [user("q"), *from_gemini({"role": "model", "parts": parts}).messages, user("go")]
    assert sent(render(messages, "gemini"))[1]["parts"] == parts
    for target in ("anthropic", "openai"):
        payload = render(messages, target)
        assert b"executableCode left out" in payload.json()
        assert b"PYTHON" not in payload.json()
    foreign = Unknown(data='{"type":"input_audio","input_audio":{}}', provider_data=ProviderData("openai", "{}"))
    forged = Unknown(
        data='{"type":"functionCall","functionCall":{"name":"f"}}', provider_data=ProviderData("gemini", "{}")
    )
    payload = render([said("user", foreign, forged)], "gemini")
    assert b'"functionCall":' not in payload.json()
    assert codes(payload) == ["unknown-part", "unknown-part"]
    thought = [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thought": True}]
    response = {"candidates": [{"content": {"role": "model", "parts": thought}}], "modelVersion": "gemini-3-pro"}
    elsewhere = render([user("q"), *from_gemini(response).messages, user("go")], "gemini", "gemini-2.5-pro")
    assert b"AAAA" not in elsewhere.json()
    assert codes(elsewhere)[0] == "thinking"


@pytest.mark.rule("P.A.2", "P.A.5")
def test_b83_internal_fields_never_leak() -> None:
    extra = {"metadata": {"k": 1}, "timestamp": 5, "_cache_breakpoint": True}
    contents = [
        {
            "role": "user",
            "parts": [{"text": "q", **extra}, {"inlineData": {"mimeType": "image/png", "data": "AAAA", **extra}}],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}, **extra}, **extra}], **extra},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "f", "response": {"x": 1}, **extra}, **extra}],
            **extra,
        },
    ]
    tools = [{"functionDeclarations": [{"name": "f", "tags": ["x"], **extra}], **extra}]
    payload = render(from_gemini(contents).messages, "gemini", tools=tools)
    assert checked(payload)["tools"] == [{"functionDeclarations": [{"name": "f"}]}]
    for word in (b"metadata", b"timestamp", b"_cache", b"tags"):
        assert word not in payload.json()
    assert from_gemini(contents).messages[0].content[0].cache


@pytest.mark.rule("P.E.3")
def test_tools_are_converted() -> None:
    schema: Body = {"type": "object", "properties": {"q": {"type": ["string", "null"]}}, "required": ["q"]}
    for shape in (
        {"name": "f", "description": "d", "input_schema": schema},
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"functionDeclarations": [{"name": "f", "description": "d", "parametersJsonSchema": schema}]},
        {"function_declarations": [{"name": "f", "description": "d", "parameters_json_schema": schema}]},
    ):
        body = checked(render([user("q")], "gemini", tools=[shape]))
        declared = {"name": "f", "description": "d", "parametersJsonSchema": schema}
        assert body["tools"] == [{"functionDeclarations": [declared]}]
        anthropic = json.loads(render([user("q")], "anthropic", tools=[shape]).json())
        assert anthropic["tools"] == [{"name": "f", "description": "d", "input_schema": schema}]


@pytest.mark.rule("P.E.3")
def test_a_schema_of_geminis_own_is_json_schema_for_the_others() -> None:
    own: Body = {
        "type": "OBJECT",
        "properties": {
            "q": {"type": "STRING", "nullable": True, "maxLength": "5", "enum": ["a"]},
            "type": {"type": "ARRAY", "items": {"anyOf": [{"type": "NUMBER"}, {"type": "TYPE_UNSPECIFIED"}]}},
        },
        "propertyOrdering": ["q", "type"],
        "required": ["q"],
    }
    tool = {"functionDeclarations": [{"name": "f", "parameters": own}, {"name": "g"}]}
    plain = json.loads(render([user("q")], "openai", tools=[tool]).json())["tools"]
    assert [item["function"]["parameters"] for item in plain] == [
        {
            "type": "object",
            "properties": {
                "q": {"type": ["string", "null"], "maxLength": 5, "enum": ["a"]},
                "type": {"type": "array", "items": {"anyOf": [{"type": "number"}, {}]}},
            },
            "required": ["q"],
        },
        {"type": "object", "properties": {}},
    ]
    assert checked(render([user("q")], "gemini", tools=[tool]))["tools"] == [tool]


@pytest.mark.rule("P.E.3")
def test_all_functions_are_declared_in_one_tool_and_native_tools_stay_with_gemini() -> None:
    search: Body = {"google_search": {}, "code_execution": {}}
    first: Body = {"functionDeclarations": [{"name": "f"}]}
    tools = [search, first, {"name": "g", "input_schema": {"type": "object"}}]
    assert checked(render([user("q")], "gemini", tools=tools))["tools"] == [
        {"googleSearch": {}},
        {"codeExecution": {}},
        {
            "functionDeclarations": [
                {"name": "f"},
                {"name": "g", "parametersJsonSchema": {"type": "object"}},
            ]
        },
    ]
    openai = json.loads(render([user("q")], "openai", tools=tools).json())["tools"]
    assert [tool["function"]["name"] for tool in openai] == ["f", "g"]
    native: Body = {"type": "web_search_20250305", "name": "web_search"}
    assert "tools" not in checked(render([user("q")], "gemini", tools=[native]))
    assert "tools" not in json.loads(render([user("q")], "openai", tools=[search]).json())
    for bad, place in (
        ({"functionDeclarations": 5}, r"tools\[0\].functionDeclarations"),
        ({"functionDeclarations": [5]}, r"functionDeclarations\[0\]"),
        ({"functionDeclarations": [{"description": "d"}]}, r"functionDeclarations\[0\].name"),
        ({"functionDeclarations": [{"name": "f", "parameters": 5}]}, r"functionDeclarations\[0\].parameters"),
        ({"functionDeclarations": [{"name": "f", "description": 5}]}, r"functionDeclarations\[0\].description"),
    ):
        with pytest.raises(InvalidTypeError, match=place):
            render([user("q")], "gemini", tools=[cast("Body", bad)])


@pytest.mark.rule("P.E.3", "gemini.G7")
@given(
    names=st.lists(st.text(max_size=3) | st.sampled_from(["1a", "_1a", "a.b", "-", "n" * 128, "n" * 129]), unique=True)
)
def test_names_are_mapped_injectively_and_alike_everywhere(names: list[str]) -> None:
    written = [wire_name(name) for name in names]
    assert len(set(written)) == len(names)
    assert [wire_name(name) for name in written] == written
    for name in names:
        tools = [{"name": name, "input_schema": {"type": "object"}}] if name else []
        history = [user("q"), said("assistant", call("a", name=name)), said("tool", result("a"))]
        body = json.loads(render(history, "gemini", tools=tools).json())
        assert check_gemini(body) == []
        if tools:
            assert body["tools"][0]["functionDeclarations"][0]["name"] == wire_name(name)


@pytest.mark.rule("P.A.5")
def test_b67_lone_surrogates_never_reach_the_provider() -> None:
    half = "cut \ud83d"
    history = [
        system(half),
        user(half),
        said("assistant", Text(text=half), call(half, '{"a":"\\ud83d","b":"\ud83d"}', half)),
        said("tool", result(half, half)),
        said("user", Image(url=f"https://{half}"), Document(text=half, title=half)),
    ]
    body = checked(render(history, "gemini", tools=[{"name": "t", "description": half}]))
    assert json.dumps(body).count("\\ufffd") > 8


@pytest.mark.rule("P.E.1", "P.E.5")
def test_histories_of_the_others_are_taken_over() -> None:
    anthropic = from_anthropic(
        [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig=="},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"q": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]},
        ]
    )
    payload = render(anthropic.messages, "gemini")
    assert sent(payload)[1:] == [
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "f", "args": {"q": 1}}, "thoughtSignature": NO_SIGNATURE}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "ok"}}}]},
    ]
    assert codes(payload) == ["thinking"]

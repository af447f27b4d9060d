"""What a target writes to the last byte: fixed texts, ids at their limits, native parts, members that go back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.payloads import TARGETS, call, codes, result, results_of, said, sent

from contextbus.core import wire
from contextbus.core.payload import render, start_rendering
from contextbus.core.targets import find_target
from contextbus.core.targets.tools import ToolDefinition, read_tools
from contextbus_protocol.chat import (
    ApprovalRequest,
    ApprovalResponse,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolResult,
    Unknown,
    assistant,
    user,
)
from contextbus_protocol.errors import InvalidTypeError


@pytest.mark.rule("P.E.2")
def test_fixed_texts_are_those_of_their_version() -> None:
    assert wire.TEXTS_VERSION == 1  # another text is another version
    assert (wire.NO_RESULT, wire.DENIED) == ("no result was recorded", "denied")
    assert wire.BAD_ARGUMENTS == "the arguments were not a JSON object, so the call was not executed"
    assert (wire.OPENING, wire.CONTINUE) == ("The conversation continues.", "Continue.")
    assert wire.LEFT_OUT == "[{kind} left out: this model's API does not take it here]"
    assert wire.element("late_result", "<1>", 'a"b') == '<late_result id="a&quot;b">\n&lt;1&gt;\n</late_result>'
    assert wire.element("system_message", "s") == "<system_message>\ns\n</system_message>"


@pytest.mark.rule("P.E.12")
@pytest.mark.parametrize("target", TARGETS)
def test_a_late_result_says_which_call_it_belongs_to(target: str) -> None:
    late = said("tool", ToolResult(id="a", content=(Text(text="1"), Image(url="u"), Text(text="2"))))
    payload = render([user("q"), said("assistant", call("a")), user("w"), assistant("x"), late], target)
    image = wire.LEFT_OUT.format(kind="image")
    told = wire.element("late_result", f"1\n{image}\n2", "a")
    assert json.dumps(told) in json.dumps(sent(payload)[-1])


@pytest.mark.rule("P.E.15")
@pytest.mark.parametrize("target", TARGETS)
def test_a_rendering_is_empty_until_somebody_but_the_system_speaks(target: str) -> None:
    nothing = start_rendering(target)
    assert nothing.empty
    assert nothing.extend([said("system", Text(text="s"))]).empty
    for message in (user("q"), assistant("a"), said("assistant", call("a"))):
        assert not nothing.append(message).empty


@pytest.mark.rule("P.E.11")
@pytest.mark.parametrize("target", TARGETS)
def test_a_repair_names_the_message_that_it_was_made_at(target: str) -> None:
    rendering = start_rendering(target).extend([user("q"), assistant("a"), user(""), assistant("b")])
    rendering = rendering.extend([user("r"), said("assistant", Text(text="c"), result("z")), user("")])
    found = [(repair.code, repair.message, repair.id) for repair in rendering.repairs if repair.code != "merged"]
    assert found == [
        *[("empty", 2, None)] * 2,  # the part, and then the message
        ("misplaced", 5, "z"),
        ("orphan-result", 5, "z"),
        *[("empty", 6, None)] * 2,
    ]


@pytest.mark.rule("P.E.1", "P.E.10")
def test_text_behind_a_call_goes_before_it_where_calls_come_last() -> None:
    history = [user("q"), said("assistant", call("a"), Text(text="so")), said("tool", result("a")), user("go")]
    assert codes(render(history, "anthropic")) == ["misplaced"]
    assert codes(render(history, "openai")) == []
    split = [user("q"), said("assistant", call("a")), said("assistant", Text(text="so")), said("tool", result("a"))]
    assert codes(render(split, "anthropic")) == ["misplaced", "merged"]


@pytest.mark.rule("P.E.12")
def test_a_result_moves_where_another_turn_stands_between() -> None:
    history = [user("q"), said("assistant", call("a")), said("assistant", call("b")), said("tool", result("a"))]
    assert "moved-result" in codes(render(history, "openai"))
    assert "moved-result" not in codes(render(history, "anthropic"))
    newest = [*history[:3], said("tool", result("b"))]
    assert "moved-result" not in codes(render(newest, "openai"))


@pytest.mark.rule("P.E.14")
@pytest.mark.parametrize("target", TARGETS)
def test_a_denial_is_for_its_call_and_no_other(target: str) -> None:
    asked = said("assistant", call("a"), call("b"), ApprovalRequest(id="p", call_id="a"))
    payload = render([user("q"), asked, said("tool", ApprovalResponse(id="p", approved=False))], target)
    assert results_of(sent(payload)) == [("a", wire.DENIED), ("b", wire.NO_RESULT)]


@pytest.mark.rule("P.E.14")
@pytest.mark.parametrize("target", TARGETS)
def test_an_answer_is_for_the_request_that_it_names_and_only_once(target: str) -> None:
    requests = (ApprovalRequest(id="p", call_id="a"), ApprovalRequest(id="q", call_id="b"))
    asked = [user("q"), said("assistant", call("a"), call("b"), *requests)]
    first = ApprovalResponse(id="p", approved=False)
    assert results_of(sent(render([*asked, said("tool", first)], target))) == [
        ("a", wire.DENIED),
        ("b", wire.NO_RESULT),
    ]
    twice = said("tool", ApprovalResponse(id="p", approved=True), first)
    assert results_of(sent(render([*asked, twice], target))) == [("a", wire.NO_RESULT), ("b", wire.NO_RESULT)]


@pytest.mark.rule("P.E.1")
def test_messages_of_the_user_between_a_call_and_its_result_are_merged_for_anthropic_alone() -> None:
    history = [user("q"), said("assistant", call("a")), user("x"), user("y"), said("tool", result("a"))]
    assert codes(render(history, "anthropic")) == ["merged", "moved-result"]
    assert codes(render(history, "openai")) == ["moved-result"]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_finished_as_nothing(target: str) -> None:
    finished = start_rendering(target, "claude-opus-4-6").finish()
    assert (finished.empty, list(finished.repairs)) == (True, [])


@pytest.mark.rule("P.E.7", "P.E.21")
def test_ids_up_to_the_longest_stay() -> None:
    history = [user("q"), said("assistant", call("i" * 40), call("j" * 41))]
    first, second = results_of(sent(render(history, "openai")))
    assert first[0] == "i" * 40
    assert second[0] != "j" * 41
    first, second = results_of(sent(render(history, "anthropic")))
    assert (first[0], second[0]) == ("i" * 40, "j" * 41)


@pytest.mark.rule("P.E.3")
@pytest.mark.parametrize(("target", "longest"), [("openai", 64), ("anthropic", 128)])
def test_names_of_tools_up_to_the_longest_stay(target: str, longest: int) -> None:
    for length, stays in ((longest, True), (longest + 1, False)):
        body: dict[str, Any] = json.loads(render([user("q")], target, tools=[{"name": "n" * length}]).json())
        (tool,) = body["tools"]
        name = tool["name"] if target == "anthropic" else tool["function"]["name"]
        assert (name == "n" * length, len(name)) == (stays, longest)


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png", "image/gif", "image/webp"])
def test_images_of_these_types_are_sent(kind: str) -> None:
    (message,) = sent(render([said("user", Image(media_type=kind, data="AA"))], "anthropic"))
    source = {"type": "base64", "media_type": kind, "data": "AA"}
    assert message["content"] == [{"type": "image", "source": source}]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("part", [Image(), Document(), Image(file_id="i", provider_data=ProviderData("gemini", "{}"))])
def test_a_part_that_has_nothing_to_send_is_named(target: str, part: Image | Document) -> None:
    payload = render([said("user", part)], target)
    assert codes(payload) == ["unknown-part"]
    assert wire.LEFT_OUT.format(kind=type(part).__name__.lower()) in json.dumps(sent(payload))


@pytest.mark.rule("P.A.5")
@pytest.mark.parametrize(
    "kind", ["text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"]
)
def test_a_part_of_a_kind_that_we_model_is_never_sent_as_it_is_to_anthropic(kind: str) -> None:
    part = Unknown(data=json.dumps({"type": kind, "x": 1}), provider_data=ProviderData("anthropic", "{}"))
    payload = render([said("user", part)], "anthropic")
    assert codes(payload) == ["unknown-part"]
    assert wire.LEFT_OUT.format(kind=kind) in json.dumps(sent(payload))


@pytest.mark.rule("P.A.5")
@pytest.mark.parametrize("kind", ["text", "refusal", "image_url", "file"])
def test_a_part_of_a_kind_that_we_model_is_never_sent_as_it_is_to_openai(kind: str) -> None:
    part = Unknown(data=json.dumps({"type": kind, "x": 1}), provider_data=ProviderData("openai", "{}"))
    assert codes(render([said("user", part)], "openai")) == ["unknown-part"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_no_part_of_a_message_is_misplaced(target: str) -> None:
    for part in (call("a"), result("a"), ApprovalRequest(id="p", call_id="a")):
        assert find_target(target).part(part, "user") == (None, "misplaced")


@pytest.mark.rule("P.A.5")
def test_a_result_of_one_text_is_a_string_unless_members_go_with_it() -> None:
    def content_of(text: Text) -> Any:
        answer = said("tool", ToolResult(id="a", content=(text,)))
        return sent(render([user("q"), said("assistant", call("a")), answer], "anthropic"))[2]["content"][0]["content"]

    assert content_of(Text(text="r")) == "r"
    cited = Text(text="r", provider_data=ProviderData("anthropic", '{"citations":[1],"x":2}'))
    assert content_of(cited) == [{"type": "text", "text": "r", "citations": [1]}]


@pytest.mark.rule("P.E.17")
def test_of_many_turns_at_the_end_the_last_is_stripped_and_all_stay() -> None:
    history = start_rendering("anthropic", "claude-haiku-4-5").extend(
        [user("q"), assistant("one"), assistant("two"), assistant("three ")]
    )
    finished = history.finish()
    texts = [json.loads(piece.json)["text"] for turn in finished.group.turns for piece in turn.pieces]
    assert texts == ["one", "two", "three"]


@pytest.mark.rule("P.A.5")
@pytest.mark.parametrize(
    ("detail", "written"),
    [("auto", True), ("low", True), ("high", True), ("full", False), (5, False), (["low"], False), (None, False)],
)
def test_the_detail_of_an_image_goes_back_where_openai_knows_it(detail: object, written: bool) -> None:
    image = Image(url="u", provider_data=ProviderData("openai", json.dumps({"detail": detail})))
    (message,) = sent(render([said("user", image)], "openai"))
    expected = {"url": "u", "detail": detail} if written else {"url": "u"}
    assert message["content"] == [{"type": "image_url", "image_url": expected}]


def test_a_url_with_a_type_beside_it_is_sent_as_a_url() -> None:
    parts = (Image(media_type="image/png", url="i"), Document(media_type="application/pdf", url="d"))
    (message,) = sent(render([said("user", *parts)], "anthropic"))
    assert [block["source"] for block in message["content"]] == [
        {"type": "url", "url": "i"},
        {"type": "url", "url": "d"},
    ]


@pytest.mark.rule("P.A.5", "P.E.8")
def test_what_openai_takes_as_a_member_or_a_part_stands_where_it_takes_it() -> None:
    audio = Unknown(data='{"type":"audio","id":"x"}', provider_data=ProviderData("openai", '{"member":"audio"}'))
    new = Unknown(data='{"type":"new","id":"x"}', provider_data=ProviderData("openai", "{}"))
    asked, answered = sent(render([said("user", audio, new), said("assistant", audio, new)], "openai"))
    assert asked["content"] == [{"type": "audio", "id": "x"}, {"type": "new", "id": "x"}]
    assert answered["audio"] == {"id": "x"}
    assert answered["content"] == wire.LEFT_OUT.format(kind="new")
    only = render([user("q"), said("assistant", new)], "openai")
    assert (codes(only), "audio" in sent(only)[1]) == (["unknown-part"], False)


@pytest.mark.rule("P.A.5", "P.E.8")
def test_what_another_provider_said_of_a_part_changes_nothing() -> None:
    text = Text(text="no", provider_data=ProviderData("anthropic", '{"refusal":"message"}'))
    image = Image(url="u", provider_data=ProviderData("anthropic", '{"detail":"low"}'))
    asked, answered = sent(render([said("user", image), said("assistant", text)], "openai"))
    assert asked["content"] == [{"type": "image_url", "image_url": {"url": "u"}}]
    assert answered == {"role": "assistant", "content": "no"}


@pytest.mark.rule("P.E.11")
def test_an_empty_text_of_the_system_is_left_out() -> None:
    (message, _) = sent(render([said("system", Text(text=""), Text(text="s")), user("q")], "openai"))
    assert message == {"role": "system", "content": "s"}


@pytest.mark.rule("P.E.3")
def test_a_tool_has_a_name_and_needs_nothing_else() -> None:
    assert read_tools('[{"name":"f"}]') == (ToolDefinition("f"),)
    for name in ("5", '""', "null", "[]", "true"):
        with pytest.raises(InvalidTypeError, match=r"tools\[0\]\.name"):
            read_tools(f'[{{"name":{name}}}]')


@pytest.mark.rule("P.E.3")
def test_tools_that_only_one_provider_knows() -> None:
    custom = {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}}
    (tool,) = read_tools(json.dumps([custom]))
    assert (tool.name, tool.description, tool.native) == ("c", "", True)
    assert [target for target, _ in tool.own] == ["openai", "openai-responses"]
    assert json.loads(render([user("q")], "openai", tools=[custom]).json())["tools"] == [custom]
    assert "tools" not in json.loads(render([user("q")], "anthropic", tools=[custom]).json())
    # Anthropic's own custom tool is a plain one
    own = {"type": "custom", "name": "f", "input_schema": {"type": "object"}}
    (tool,) = read_tools(json.dumps([own]))
    assert (tool.name, tool.native) == ("f", False)
    for kind in ("function", "custom"):
        (tool,) = read_tools(json.dumps([{"type": kind, "name": "f"}]))
        assert (tool.name, tool.native) == ("f", False)
    (tool,) = read_tools('[{"type":"file_search"}]')
    assert (tool.name, tool.description, tool.native) == ("file_search", "", True)
    assert [target for target, _ in tool.own] == ["openai-responses"]
    (tool,) = read_tools('[{"type":"bash_20250124","name":"bash"}]')
    assert (tool.name, tool.native, [target for target, _ in tool.own]) == ("bash", True, ["anthropic"])


@pytest.mark.rule("P.E.5")
def test_thinking_never_stands_behind_text_or_calls() -> None:
    thought = Reasoning(text="hm", signature="s")
    for before in (Text(text="so"), call("a")):
        payload = render([user("q"), said("assistant", before, thought), user("go")], "anthropic")
        assert "thinking" in codes(payload)
        assert b'"hm"' not in payload.json()
        split = render([user("q"), said("assistant", before), said("assistant", thought), user("go")], "anthropic")
        assert b'"hm"' not in split.json()
    first = render([user("q"), said("assistant", thought), said("assistant", Text(text="so")), user("go")], "anthropic")
    assert codes(first) == ["merged"]
    assert b'"hm"' in first.json()


@pytest.mark.rule("P.E.14")
@pytest.mark.parametrize("target", TARGETS)
def test_of_two_approvals_with_one_id_the_latest_is_answered(target: str) -> None:
    asked = said("assistant", call("a"), call("b"), *(ApprovalRequest(id="p", call_id=name) for name in "ab"))
    payload = render([user("q"), asked, said("tool", ApprovalResponse(id="p", approved=False))], target)
    assert results_of(sent(payload)) == [("a", wire.NO_RESULT), ("b", wire.DENIED)]
    assert codes(payload) == ["approval"] * 3 + ["missing-result"] * 2


@pytest.mark.rule("P.E.7", "P.E.21")
def test_a_repeated_id_keeps_its_name_while_there_is_room_for_a_number() -> None:
    for length, kept in ((32, True), (33, False)):
        name = "i" * length
        turn = [said("assistant", call(name)), said("tool", result(name))]
        _, (again, _) = results_of(sent(render([user("q"), *turn, *turn], "openai")))
        assert (again == f"{name}-2") is kept


@pytest.mark.rule("P.E.19")
def test_texts_of_a_late_system_message_are_lines() -> None:
    late = said("system", Text(text="a"), Text(text="b"))
    (message,) = sent(render([user("q"), late], "anthropic"))
    assert message["content"][1]["text"] == wire.element("system_message", "a\nb")


def test_an_image_without_a_type_is_sent_as_png() -> None:
    (message,) = sent(render([said("user", Image(data="AA"))], "openai"))
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]

"""Each rule of Anthropic Messages: payloads that break it and nothing else, and near misses that are allowed."""

from __future__ import annotations

import pytest
from tests.validation.bodies import (
    ANTHROPIC,
    INLINE,
    PREFILLED,
    Body,
    anthropic,
    anything,
    assistant,
    changed,
    result,
    rules,
    text,
    think,
    use,
    user,
)

from contextbus.validation import validate

EPHEMERAL: Body = {"type": "ephemeral"}
HOUR: Body = {"type": "ephemeral", "ttl": "1h"}
SEARCH: Body = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Body = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SUMMARY: Body = {"type": "compaction", "content": "what was said"}


def found(body: object, model: str | None = None) -> set[str]:
    return rules(body, "anthropic", model)


def only(body: object, rule: str, place: str, model: str | None = None, severity: str = "error") -> bool:
    """Whether one thing is found, of this rule, at this place."""
    findings = validate(body, "anthropic", model)
    return [(one.rule, one.place, one.severity) for one in findings] == [(rule, place, severity)]


@pytest.mark.rule("all.S1")
def test_s1_no_lone_surrogate_anywhere() -> None:
    assert only(anthropic(user(text("a\ud83d"))), "all.S1", "messages[0].content[0].text")
    inside = anthropic(user(), assistant(use(input={"x": ["\udc00"]})), user(result()))
    assert only(inside, "all.S1", "messages[1].content[0]")
    assert only(anthropic(user(), system="\ud800"), "all.S1", "system")
    assert found(anthropic(user(text("a\U0001f600")))) == set()


@pytest.mark.rule("anthropic.A1")
def test_a1_messages_are_not_empty() -> None:
    for messages in anything([], None, "words", {}):
        assert only({"messages": messages}, "anthropic.A1", "messages")
    assert only({}, "anthropic.A1", "messages")
    assert found({"messages": [user()]}) == set()


@pytest.mark.rule("anthropic.A2")
def test_a2_the_first_role_is_user() -> None:
    assert only(anthropic(assistant(), user()), "anthropic.A2", "messages[0]")
    assert only(
        anthropic({"role": "system", "content": "s"}, assistant(), user()), "anthropic.A2", "messages[0]", INLINE
    )
    # The summary of what came before may be the assistant's.
    assert found(anthropic(assistant(SUMMARY, text()), user())) == set()


@pytest.mark.rule("anthropic.A3")
def test_a3_roles_are_user_and_assistant() -> None:
    for role in ("tool", "User", "", None, 1, ["user"]):
        assert only(anthropic(user(), {"role": role, "content": "x"}, user()), "anthropic.A3", "messages[1]")
    assert only(anthropic(user(), {"content": "x"}), "anthropic.A3", "messages[1]")


@pytest.mark.rule("anthropic.A3")
def test_a3_system_stands_inline_only_on_models_that_take_it() -> None:
    system = {"role": "system", "content": "s"}
    body = anthropic(user(), system, assistant(), user())
    for model in (None, "claude-opus-4-7", "claude-sonnet-4-5", "claude-opus-4-20250514", "claude-mythos-preview"):
        assert only(body, "anthropic.A3", "messages[1]", model)
    for model in (INLINE, "claude-opus-5", "us.anthropic.claude-sonnet-5-5"):
        assert found(body, model) == set()
    assert found(anthropic(user(), system), INLINE) == set()
    assert found(anthropic(user(), assistant(SEARCH), system), INLINE) == set()
    assert only(anthropic(user(), assistant(), system), "anthropic.A3", "messages[2]", INLINE)
    assert only(anthropic(user(), system, user()), "anthropic.A3", "messages[1]", INLINE)


@pytest.mark.rule("anthropic.A4")
def test_a4_no_empty_content_and_no_blank_text() -> None:
    for blank in ("", " ", "\n\t"):
        assert only(anthropic(user(text(blank))), "anthropic.A4", "messages[0].content[0]")
        assert only(anthropic({"role": "user", "content": blank}), "anthropic.A4", "messages[0].content")
    assert only(anthropic({"role": "user", "content": []}), "anthropic.A4", "messages[0].content")
    assert only(anthropic({"role": "user"}), "anthropic.A4", "messages[0].content")
    assert only(anthropic(user(), system=[text(" ")]), "anthropic.A4", "system[0]")
    for content in ([], [text("")]):
        assert found(anthropic(user(), assistant(use()), user(result(content=content)))) == {"anthropic.A4"}
    assert found(anthropic(assistant({"type": "compaction", "content": ""}), user())) == {"anthropic.A4"}
    # A result may say nothing, a signed thought may be withheld, and no system prompt is none.
    assert found(anthropic(user(), assistant(think(""), use()), user(result(content="")), system=[])) == set()
    assert found(anthropic(user(), assistant(use()), user({"type": "tool_result", "tool_use_id": "a"}))) == set()


@pytest.mark.rule("anthropic.A5")
def test_a5_no_prefill_from_4_6_on() -> None:
    body = anthropic(user(), assistant(text("{")))
    for model in (None, "claude-opus-4-6", "claude-sonnet-4-6", "claude-opus-5", "claude-mythos-preview"):
        assert only(body, "anthropic.A5", "messages[1]", model)
    for model in (PREFILLED, "claude-3-7-sonnet-latest", "claude-opus-4-20250514", "anthropic.claude-v2:1"):
        assert found(body, model) == set()
    assert only({**body, "model": "claude-opus-4-6"}, "anthropic.A5", "messages[1]")
    assert found({**body, "model": PREFILLED}) == set()
    assert found({**body, "model": "claude-opus-4-6"}, PREFILLED) == set()


@pytest.mark.rule("anthropic.A5")
def test_a5_a_prefill_is_text_without_white_space_behind_it() -> None:
    for words in ("{ ", "{\n"):
        assert only(anthropic(user(), assistant(text(words))), "anthropic.A5", "messages[1].content[0]", PREFILLED)
    assert (
        only(anthropic(user(), assistant(text(), think())), "anthropic.A5", "messages[1].content[1]", PREFILLED)
        is False
    )
    assert found(anthropic(user(), assistant(think())), PREFILLED) == {"anthropic.A5"}
    assert found(anthropic(user(), assistant(text(" {"))), PREFILLED) == set()
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert found(anthropic(user(), assistant(text("{")), **thinks), PREFILLED) == {"anthropic.A5"}
    # What stopped in the middle of the provider's own tools goes on.
    for block in (SEARCH, FOUND):
        assert found(anthropic(user(), assistant(text(), block)), "claude-opus-4-6") == set()


@pytest.mark.rule("anthropic.A6")
def test_a6_each_call_has_one_result_in_the_very_next_message() -> None:
    none = anthropic(user(), assistant(use()), user())
    assert only(none, "anthropic.A6", "messages[1].content[0]")
    half = anthropic(user(), assistant(use("a"), use("b")), user(result("a")))
    assert only(half, "anthropic.A6", "messages[1].content[1]")
    twice = anthropic(user(), assistant(use()), user(result(), result()))
    assert only(twice, "anthropic.A6", "messages[2].content[1]")
    assert "anthropic.A6" in found(anthropic(user(), assistant(use())))
    late = anthropic(user(), assistant(use("a"), use("b")), user(result("a")), user(result("b")))
    assert found(late) == {"anthropic.A6", "anthropic.A8", "anthropic.L1"}
    other = anthropic(user(), assistant(use("a"), use("b")), user(result("b"), result("a")))
    assert found(other) == set()
    assert found(anthropic(user(), assistant(SEARCH, FOUND, text()), user())) == set()


@pytest.mark.rule("anthropic.A7")
def test_a7_results_come_first() -> None:
    body = anthropic(user(), assistant(use("a"), use("b")), user(result("a"), text(), result("b")))
    assert only(body, "anthropic.A7", "messages[2].content[2]")
    assert found(anthropic(user(), assistant(use("a"), use("b")), user(result("a"), result("b"), text()))) == set()


@pytest.mark.rule("anthropic.A8")
def test_a8_no_orphans_and_each_block_in_its_role() -> None:
    assert only(anthropic(user(result())), "anthropic.A8", "messages[0].content[0]")
    again = anthropic(user(), assistant(use()), user(result()), assistant(), user(result()))
    assert only(again, "anthropic.A8", "messages[4].content[0]")
    nameless = anthropic(user({"type": "tool_result"}))
    assert only(nameless, "anthropic.A8", "messages[0].content[0]")
    assert only(anthropic(user(use())), "anthropic.A8", "messages[0].content[0]")
    assert only(anthropic(user(), assistant(result()), user()), "anthropic.A8", "messages[1].content[0]")
    inline = anthropic(user(), assistant(use()), {"role": "system", "content": [result()]})
    assert found(inline, INLINE) == {"anthropic.A3", "anthropic.A8"}
    assert found(anthropic(user(), assistant(use()), user(result()))) == set()


@pytest.mark.rule("anthropic.A9")
def test_a9_ids_are_unique_and_plain() -> None:
    for bad in ("a:b", "", "a b", "a\n", "ä"):
        body = anthropic(user(), assistant(use(bad)), user(result(bad)))
        assert only(body, "anthropic.A9", "messages[1].content[0]"), bad
    twice = anthropic(user(), assistant(use()), user(result()), assistant(use()), user(result()))
    assert only(twice, "anthropic.A9", "messages[3].content[0]")
    assert found(anthropic(user(), assistant({**SEARCH, "id": "x:1"}, FOUND), user())) == {"anthropic.A9"}
    assert found(anthropic(user(), assistant(use("toolu_0-Z" * 40)), user(result("toolu_0-Z" * 40)))) == set()


@pytest.mark.rule("anthropic.A10")
def test_a10_input_is_an_object() -> None:
    for bad in anything("{}", None, [], 1):
        body = anthropic(user(), assistant(use(input=bad)), user(result()))
        assert only(body, "anthropic.A10", "messages[1].content[0].input")
    assert found(anthropic(user(), assistant(use(input={"x": None})), user(result()))) == set()


@pytest.mark.rule("anthropic.A12")
def test_a12_tools_are_defined_where_there_are_tool_blocks() -> None:
    body = anthropic(user(), assistant(use()), user(result()))
    for tools in anything([], None):
        assert only({**body, "tools": tools}, "anthropic.A12", "tools")
    assert found({"messages": [user(), assistant(SEARCH, FOUND, text()), user()]}) == set()


@pytest.mark.rule("anthropic.A13")
def test_a13_thinking_is_whole() -> None:
    for bad in (think(signature=""), {"type": "thinking", "thinking": "hm"}, {"type": "thinking", "signature": "s"}):
        assert only(anthropic(user(), assistant(bad, text()), user()), "anthropic.A13", "messages[1].content[0]")
    redacted = {"type": "redacted_thinking", "data": ""}
    assert only(anthropic(user(), assistant(redacted, text()), user()), "anthropic.A13", "messages[1].content[0]")
    assert only(anthropic(user(think())), "anthropic.A13", "messages[0].content[0]")
    whole = anthropic(user(), assistant(think(""), {"type": "redacted_thinking", "data": "x"}, text()), user())
    assert found(whole) == set()


@pytest.mark.rule("anthropic.A13")
def test_a13_with_thinking_on_a_message_that_holds_thinking_begins_with_it() -> None:
    late = anthropic(user(), assistant(text(), think()), user())
    assert found(late) == {"anthropic.L2"}
    assert found({**late, "thinking": {"type": "adaptive"}}) == {"anthropic.A13", "anthropic.L2"}
    between = anthropic(user(), assistant(think(), text(), think(), text()), user(), thinking={"type": "adaptive"})
    assert found(between) == {"anthropic.L2"}
    unthinking = anthropic(user(), assistant(use()), user(result()), thinking={"type": "adaptive"})
    assert found(unthinking) == set()


@pytest.mark.rule("anthropic.A15")
def test_a15_at_most_four_breakpoints_the_automatic_one_included() -> None:
    four = [text(str(n), cache_control=EPHEMERAL) for n in range(4)]
    assert found(anthropic(user(*four, text()))) == set()
    body = anthropic(user(*four, text(cache_control=EPHEMERAL)))
    assert only(body, "anthropic.A15", "messages[0].content[4].cache_control")
    assert only(anthropic(user(*four, text()), cache_control=EPHEMERAL), "anthropic.A15", "cache_control")
    assert found(anthropic(user(*four, text()), system=[text(cache_control=EPHEMERAL)])) == {"anthropic.A15"}
    tools = [{"name": "f", "input_schema": {}, "cache_control": EPHEMERAL}]
    assert found({**anthropic(user(*four)), "tools": tools}) == {"anthropic.A15"}
    inner = result(content=[text(cache_control=EPHEMERAL)])
    assert found(anthropic(user(*four), assistant(use()), user(inner))) == {"anthropic.A15"}
    # The automatic one falls on the last block and is that block's own.
    assert found(anthropic(user(*four), cache_control=EPHEMERAL)) == set()
    assert found(anthropic(user(text(cache_control=None)), cache_control=None)) == set()


@pytest.mark.rule("anthropic.A15")
def test_a15_longer_lives_stand_before_shorter_ones() -> None:
    body = anthropic(user(text(cache_control=HOUR)), system=[text(cache_control=EPHEMERAL)])
    assert only(body, "anthropic.A15", "messages[0].content[0].cache_control")
    assert found(anthropic(user(text(cache_control=EPHEMERAL)), system=[text(cache_control=HOUR)])) == set()
    assert found(anthropic(user(text(cache_control=EPHEMERAL), text()), cache_control=HOUR)) == {"anthropic.A15"}
    other = anthropic(user(text(cache_control=HOUR)), cache_control=EPHEMERAL)
    assert only(other, "anthropic.A15", "cache_control")


@pytest.mark.rule("anthropic.A15")
def test_a15_no_breakpoint_on_thinking_and_none_of_another_form() -> None:
    for block in (
        {**think(), "cache_control": EPHEMERAL},
        {"type": "redacted_thinking", "data": "x", "cache_control": HOUR},
    ):
        body = anthropic(user(), assistant(block, text()), user())
        assert only(body, "anthropic.A15", "messages[1].content[0].cache_control")
    for control in anything(
        {"type": "ephemeral", "ttl": "1d"}, {"ttl": "1h"}, {"type": "persistent"}, "ephemeral", True, []
    ):
        assert found(anthropic(user(text(cache_control=control)))) == {"anthropic.A15"}
    assert found(anthropic(user(text(cache_control={"type": "ephemeral", "ttl": "5m"})))) == set()


@pytest.mark.rule("anthropic.A17")
def test_a17_one_compaction_block_first_of_all() -> None:
    assert only(anthropic(user(text(), SUMMARY)), "anthropic.A17", "messages[0].content[1]")
    assert only(anthropic(user(), assistant(SUMMARY, text()), user()), "anthropic.A17", "messages[1].content[0]")
    two = anthropic(assistant(SUMMARY, SUMMARY, text()), user())
    assert only(two, "anthropic.A17", "messages[0].content[1]")
    assert found(anthropic(user(SUMMARY, text()))) == set()
    # The API skips a compaction that failed.
    failed = {"type": "compaction", "content": None}
    assert found(anthropic(user(SUMMARY), assistant(text(), failed, text()), user())) == set()


@pytest.mark.rule("anthropic.A18")
def test_a18_max_tokens_is_above_the_budget_and_that_is_1024_at_least() -> None:
    def limits(budget: object, **members: object) -> Body:
        return anthropic(user(), thinking={"type": "enabled", "budget_tokens": budget}, **members)

    for budget in (1023, 0, -1, None, "2000", 1024.0, True):
        assert only(limits(budget, max_tokens=4096), "anthropic.A18", "thinking.budget_tokens")
    for most in (1024, 1000):
        assert only(limits(1024, max_tokens=most), "anthropic.A18", "max_tokens")
    assert found(limits(1024, max_tokens=1025)) == set()
    assert found(limits(1024)) == set()
    assert found(anthropic(user(), max_tokens=1, thinking={"type": "adaptive"})) == set()
    assert found(anthropic(user(), max_tokens=1, thinking={"type": "disabled"})) == set()


@pytest.mark.rule("anthropic.A19")
def test_a19_unknown_keys_are_rejected() -> None:
    assert only(anthropic(user(), manifest={}), "anthropic.A19", "manifest")
    assert only(anthropic({**user(), "timestamp": 1}), "anthropic.A19", "messages[0].timestamp")
    assert only(anthropic(user(text(id="x"))), "anthropic.A19", "messages[0].content[0].id")
    inner = result(content=[text(index=0)])
    assert found(anthropic(user(), assistant(use()), user(inner))) == {"anthropic.A19"}
    assert found(changed(ANTHROPIC, "tools", 0, "tags", to=["t"])) == {"anthropic.A19"}
    control = {"type": "ephemeral", "scope": "x"}
    assert found(anthropic(user(text(cache_control=control)))) == {"anthropic.A19"}
    assert found(anthropic(user(), model="m", max_tokens=1, temperature=0, metadata={"user_id": "u"})) == set()
    assert (
        found(anthropic(user(), assistant(use(input={"any": 1}, caller={"type": "direct"})), user(result()))) == set()
    )
    # A provider's own tool has members that are its own.
    own = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    assert found({**anthropic(user()), "tools": own}) == set()


def test_a_name_that_could_be_content_is_not_shown() -> None:
    body = anthropic({**user(), "what the user said": 1})
    assert only(body, "anthropic.A19", "messages[0].?")


@pytest.mark.rule("anthropic.L1")
def test_l1_neighbours_of_one_role() -> None:
    assert only(anthropic(user(), user()), "anthropic.L1", "messages[1]", severity="warning")
    assert only(anthropic(user(), assistant(), assistant(), user()), "anthropic.L1", "messages[2]", severity="warning")
    assert found(anthropic(user(), assistant(), user())) == set()


@pytest.mark.rule("anthropic.L2")
def test_l2_thinking_behind_text_or_calls() -> None:
    for block in (text(), use()):
        body = anthropic(user(), assistant(block, think()), user(result()) if block["type"] == "tool_use" else user())
        assert only(body, "anthropic.L2", "messages[1].content[1]", severity="warning")
    assert found(anthropic(user(), assistant(think(), think(), text()), user())) == set()


@pytest.mark.rule("anthropic.L3")
def test_l3_content_behind_calls() -> None:
    body = anthropic(user(), assistant(use(), text()), user(result()))
    assert only(body, "anthropic.L3", "messages[1].content[1]", severity="warning")
    assert found(anthropic(user(), assistant(text(), use("a"), use("b")), user(result("a"), result("b")))) == set()

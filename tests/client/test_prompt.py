"""A prompt is a frozen value; compiling it gives a provider's request, part by part in the order of the rules."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, cast

import anthropic.types
import msgspec
import openai.types.chat
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.checkers import CHECKERS, check_anthropic

from contextbus.client import Model, ModelPrefix, Prompt, assistant, system, user
from contextbus.client.prompt import STATE_PLACEMENTS, StatePlacement
from contextbus.core.dynamic_state import CURRENT_STATE
from contextbus.core.payload import Payload
from contextbus_protocol.chat import ChatMessage, Text, ToolResult
from contextbus_protocol.errors import EmptyHistoryError, InvalidTypeError

TARGETS = ("anthropic", "openai")
OLD = Model("anthropic", "claude-sonnet-4-5", 200_000, 8_000)
NEW = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


@dataclasses.dataclass
class Task:
    """What an agent works on."""

    active_file: str
    todo: list[str]


TASK = Task("auth.ts", ["Fix login"])
SCHEMA = {"properties": {"todo": {"type": "array"}, "file": {"type": "string"}}}
TOOL = {"name": "read_file", "description": "Read.", "input_schema": {"type": "object"}}
WHOLE = (
    Prompt()
    .system("You write code.", system("Be brief."))
    .history([user("q1"), assistant("a1"), user("q2")])
    .state(TASK)
    .guardrails(output_tag="answer", prefill="so: ")
    .tools([TOOL])
)


def texts(payload: Payload) -> list[tuple[str, str]]:
    """Role and text of every block, the system layer first."""
    body = cast("dict[str, Any]", json.loads(payload.json()))
    found = [("system", block["text"]) for block in body.get("system", ())]
    for message in body["messages"]:
        content = message["content"]
        blocks = [content] if isinstance(content, str) else [block["text"] for block in content]
        found += [(message["role"], text) for text in blocks]
    return found


def heads(payload: Payload) -> list[tuple[str, str]]:
    return [(role, text.split("\n")[0]) for role, text in texts(payload)]


ORDER = [
    ("system", "You write code."),
    ("system", "Be brief."),
    ("user", "q1"),
    ("assistant", "a1"),
    ("user", "q2"),
    ("user", "<dynamic_state>"),
    ("user", "<output_format>"),
]


@pytest.mark.rule("P.A.3", "P.B.4", "P.C.1", "D.F.21")
@pytest.mark.parametrize("target", TARGETS)
def test_the_order_of_the_parts(target: str) -> None:
    assert heads(WHOLE.compile(target)) == [*ORDER, ("user", "<answer_start>")]


@pytest.mark.rule("P.A.3", "P.C.2", "P.C.4")
def test_a_prefill_that_the_model_takes_is_last() -> None:
    assert heads(WHOLE.compile(model=OLD)) == [*ORDER, ("assistant", "so:")]
    assert heads(WHOLE.compile("anthropic", OLD.model_id)) == [*ORDER, ("assistant", "so:")]
    thinking = WHOLE.guardrails(output_tag="answer", prefill="so:", thinking=True)
    assert thinking.parts().thinking
    degraded = [
        thinking.compile(model=OLD),
        WHOLE.compile(model=NEW),
        WHOLE.compile("openai", OLD),
        WHOLE.compile(model=OLD, bound_models=[ModelPrefix("anthropic", "claude-sonnet-4-5")]),
    ]
    for payload in degraded:
        assert heads(payload) == [*ORDER, ("user", "<answer_start>")]


@pytest.mark.rule("P.C.3")
@pytest.mark.parametrize("model", [OLD, NEW])
def test_a_finished_answer_at_the_end_is_no_prefill(model: Model) -> None:
    prompt = Prompt().history([user("q"), assistant("done ")])
    for target in TARGETS:
        for given_prompt in (prompt, prompt.guardrails(prefill="so:"), prompt.state(TASK)):
            assert ("assistant", "done") in [(r, t.strip()) for r, t in texts(given_prompt.compile(target, model))]
    assert heads(prompt.guardrails(prefill="so:").compile(model=OLD))[-3:] == [
        ("assistant", "done "),
        ("user", "Continue."),
        ("assistant", "so:"),
    ]


@pytest.mark.rule("P.A.3", "P.B.4")
@pytest.mark.parametrize("target", TARGETS)
def test_state_in_the_system_layer_is_its_last_message(target: str) -> None:
    prompt = WHOLE.state(TASK, placement="system")
    found = heads(prompt.compile(target))
    assert found[:3] == [*ORDER[:2], ("system", "<dynamic_state>")]
    assert ("user", "<dynamic_state>") not in found
    parts = prompt.parts()
    assert parts.state_in_system
    assert parts.state == ()
    assert parts.state_xml == prompt.state_text
    assert not WHOLE.parts().state_in_system
    assert STATE_PLACEMENTS == ("last_user", "system")


@pytest.mark.rule("P.B.4", "P.B.5", "D.F.21")
def test_state_in_the_tail_is_a_user_message_of_its_own() -> None:
    (message,) = WHOLE.parts().state
    assert message.role == "user"
    messages = WHOLE.compile("openai").copy()["messages"]
    assert [m["content"] for m in cast("list[Any]", messages) if CURRENT_STATE in m["content"]] == [WHOLE.state_text]
    merged = cast("list[Any]", WHOLE.compile("anthropic").copy()["messages"])[-1]["content"]
    assert [block["text"] for block in merged][:2] == ["q2", WHOLE.state_text]


@pytest.mark.rule("P.A.2")
@pytest.mark.parametrize(("target", "model"), [("anthropic", None), ("anthropic", OLD), ("openai", None)])
def test_the_body_is_what_the_sdk_takes(target: str, model: Model | None) -> None:
    payload = WHOLE.compile(target, model)
    body = payload.copy()
    assert set(body) == {"messages", "tools"} | ({"system"} if target == "anthropic" else set[str]())
    if target == "anthropic":
        assert check_anthropic(body, prefill=model == OLD) == []
        kind: Any = anthropic.types.message_create_params.MessageCreateParamsNonStreaming
        asked = {**body, "model": "m", "max_tokens": 10}
    else:
        assert CHECKERS[target](body) == []
        kind = openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming
        asked = {**body, "model": "m"}
    pydantic.TypeAdapter(kind).validate_python(asked)


@pytest.mark.rule("P.A.7")
def test_the_models_provider_decides_where_no_target_is_named() -> None:
    assert WHOLE.compile(model=NEW).target == "anthropic"
    with pytest.raises(TypeError, match=r"anthropic.*openai"):
        WHOLE.compile("cohere")
    with pytest.raises(TypeError, match=r"anthropic.*openai"):
        WHOLE.compile(model=Model("cohere", "c", 1, 1))
    with pytest.raises(TypeError, match=r"anthropic.*openai"):
        WHOLE.compile()


@pytest.mark.rule("P.A.4")
@pytest.mark.parametrize("target", TARGETS)
def test_two_compiles_are_the_same_bytes_and_share_the_prefix_of_history(target: str) -> None:
    """Whatever is dynamic stands behind the history: its bytes begin both requests."""
    assert WHOLE.compile(target).json() == WHOLE.compile(target).json()
    other = WHOLE.state(Task("other.ts", [])).guardrails(output_tag="other").history([*WHOLE.messages])
    one, two = WHOLE.compile(target), other.compile(target)
    assert one.json() != two.json()
    settled = b'"q1"'
    until = one.json().index(b"q2") + 2
    assert settled in one.json()[:until]
    assert one.json()[:until] == two.json()[:until]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@pytest.mark.rule("P.A.4", "P.A.3", "P.B.2", "P.C.3")
@given(
    st.lists(TEXT, max_size=3),
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXT), max_size=5),
    st.none() | st.dictionaries(TEXT, TEXT | st.lists(TEXT, max_size=2) | st.floats(-1, 1), max_size=3),
    st.sampled_from(STATE_PLACEMENTS),
    st.none() | TEXT,
    st.sampled_from([None, OLD, NEW]),
    st.sampled_from(TARGETS),
)
def test_every_prompt_gives_a_request_that_keeps_the_rules(
    layer: list[str],
    said: list[tuple[Any, str]],
    state: dict[str, Any] | None,
    placement: StatePlacement,
    prefill: str | None,
    model: Model | None,
    target: str,
) -> None:
    messages = [user("begin"), *(ChatMessage(role=role, content=(Text(text=text),)) for role, text in said)]
    prompt = Prompt().system(*layer).history(messages).guardrails(output_tag="answer", prefill=prefill)
    if state is not None:
        prompt = prompt.state(state, {}, placement=placement)
    payload = prompt.compile(target, model)
    body = json.loads(payload.json())
    if target == "anthropic":
        assert check_anthropic(body, prefill=model == OLD) == []
    else:
        assert CHECKERS[target](body) == []
    found = texts(payload)
    for _, said_text in said:
        assert any(said_text.strip() in text for _, text in found)
    native = prefill is not None and model == OLD and target == "anthropic"
    assert (found[-1] == ("assistant", (prefill or "").rstrip())) is native


@pytest.mark.rule("P.A.1")
def test_a_prompt_is_frozen_and_each_method_gives_a_new_one() -> None:
    empty = Prompt()
    built: list[Callable[[], Prompt]] = [
        lambda: empty.system("s"),
        lambda: empty.history([user("q")]),
        lambda: empty.state(TASK),
        lambda: empty.guardrails(output_tag="a"),
        lambda: empty.tools([TOOL]),
    ]
    for build in built:
        assert build() == build() != empty
        assert hash(build()) == hash(build())
    assert empty == Prompt()
    with pytest.raises(AttributeError):
        WHOLE.thinking = True  # type: ignore[misc]  # what must not be
    with pytest.raises(InvalidTypeError, match="tuples"):
        Prompt(messages=[user("q")])  # type: ignore[arg-type]  # what must not be


@pytest.mark.rule("P.A.1")
def test_what_was_handed_over_can_change_without_a_trace() -> None:
    part: dict[str, Any] = {"type": "text", "text": "q"}
    message: dict[str, Any] = {"role": "user", "content": [part]}
    content: list[Any] = [Text(text="r")]
    parts: list[Any] = [ToolResult(id="a", content=content)]  # type: ignore[arg-type]  # what a caller can do
    ours = ChatMessage(role="tool", content=parts)  # type: ignore[arg-type]  # what a caller can do
    history: list[Any] = [message, ours]
    task = Task("f", ["t"])
    tool: dict[str, Any] = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    tools = [tool]
    prompt = Prompt().history(history).state(task).tools(tools)
    before = msgspec.json.encode(prompt)
    part["text"] = "changed"
    content.clear()
    parts.append(Text(text="more"))
    history.clear()
    task.todo.append("more")
    tool["input_schema"]["properties"]["x"] = {}
    tools.clear()
    assert msgspec.json.encode(prompt) == before
    given_back = cast("dict[str, Any]", prompt.state_value)
    given_back["todo"].append("more")
    assert prompt.state_value == {"active_file": "f", "todo": ["t"]}


@pytest.mark.rule("P.A.1")
def test_generators_are_read_once_and_whole() -> None:
    prompt = Prompt().history(user(text) for text in "ab").tools({"name": name} for name in "fg")
    assert prompt.compile("openai").json() == prompt.compile("openai").json()
    assert len(prompt.messages) == 2
    assert [tool["function"]["name"] for tool in cast("list[Any]", prompt.compile("openai").copy()["tools"])] == [*"fg"]


@pytest.mark.rule("P.A.1")
def test_a_part_is_set_anew() -> None:
    prompt = WHOLE.system("only").history([user("q")]).guardrails().tools(None)
    assert heads(prompt.compile("openai")) == [("system", "only"), ("user", "q"), ("user", "<dynamic_state>")]
    assert prompt.definitions is None


@pytest.mark.rule("P.A.1", "P.E.4")
def test_a_cache_breakpoint_is_asked_for_behind_the_last_system_message() -> None:
    for cache in (True, "5m", "1h"):
        prompt = Prompt().system("a", "b", cache=cache)
        assert [message.cache for message in prompt.system_messages] == [False, cache]
    kept = Prompt().system(msgspec.structs.replace(system("a"), cache="1h"), "b")
    assert [message.cache for message in kept.system_messages] == ["1h", False]
    assert Prompt().system(cache=True) == Prompt()


@pytest.mark.rule("P.A.1")
def test_every_providers_messages_are_read() -> None:
    prompt = Prompt().system({"role": "system", "content": "s"}, {"role": "developer", "content": "d"})
    prompt = prompt.history([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, user("b")])
    assert heads(prompt.compile("openai"))[:3] == [("system", "s"), ("developer", "d"), ("user", "q")]


@pytest.mark.rule("P.A.1")
@pytest.mark.parametrize(
    "build",
    [
        lambda: Prompt().system(user("q")),
        lambda: Prompt().system(["s"]),  # type: ignore[arg-type]
        lambda: Prompt().system("s", cache="2h"),  # type: ignore[arg-type]
        lambda: Prompt().history("text"),  # type: ignore[arg-type]
        lambda: Prompt().history([3]),  # type: ignore[list-item]
        lambda: Prompt().state(TASK, placement="first"),  # type: ignore[arg-type]
        lambda: Prompt().state({"a": 1}),
        lambda: Prompt().guardrails(output_tag="<a>"),
        lambda: Prompt().guardrails(prefill=3),  # type: ignore[arg-type]
        lambda: Prompt().guardrails(thinking="no"),  # type: ignore[arg-type]
        lambda: Prompt().tools([3]),  # type: ignore[list-item]
        lambda: Prompt().tools([{"description": "no name"}]),
        lambda: Prompt().tools([{"name": "f", "input_schema": object()}]),
        lambda: Prompt().tools("no json"),
    ],
)
def test_what_is_no_part_is_refused(build: Callable[[], Prompt]) -> None:
    with pytest.raises(InvalidTypeError):
        build()


@pytest.mark.rule("P.A.5")
def test_no_half_of_a_surrogate_pair_gets_into_a_request() -> None:
    schema: dict[str, Any] = {"properties": {"file": {}}}
    prompt = Prompt().system("\ud800s").history([user("q\udc00")]).guardrails(prefill="\ud800p")
    for payload in (prompt.state({"file": "\ud800", "\udfff": 1}, schema).compile(t, OLD) for t in TARGETS):
        assert "\ufffd" in payload.json().decode()
        assert not any("\ud800" <= char <= "\udfff" for _, text in texts(payload) for char in text)


@pytest.mark.rule("P.E.15")
def test_a_prompt_without_a_message_is_no_request() -> None:
    with pytest.raises(EmptyHistoryError):
        Prompt().system("s").compile("anthropic")

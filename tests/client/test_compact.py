"""``compact``: what it takes, in which order it looks at it, and what it leaves alone (C.A)."""

from __future__ import annotations

import asyncio
import copy
import inspect
import subprocess
import sys
from collections.abc import Awaitable
from types import MappingProxyType
from typing import Any, cast

import anyio
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletionMessage
from tests.client.compacting import (
    IMAGE,
    Counted,
    Scripted,
    assistant,
    assistant_of,
    b1,
    call_part,
    compact,
    compacted,
    refused,
    user,
)

import contextbus.client as contextbus
from contextbus.client import Compacted, RetentionPolicy
from contextbus.core.compaction.reduction import MOST_OUTPUT_TOKENS
from contextbus.summarisers.interface import SummaryRequest
from contextbus_protocol.chat import ChatMessage, Image, Text, ToolCall, ToolResult
from contextbus_protocol.errors import InvalidTypeError, RangeError

NOT_POSITIVE: tuple[Any, ...] = (0, -1, 1.5, float("nan"), float("inf"), 2**53, True, "5", [])


OPENAI_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
}
ANTHROPIC_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "a", "name": "t", "input": {}}],
}


@pytest.mark.rule("C.A.1")
async def test_the_same_function_serves_any_conversation_and_holds_none() -> None:
    first, second = (
        await compacted(b1(), keep_last_messages=2),
        await compacted([user("a"), assistant("b")], keep_last_messages=1),
    )
    assert (first.replaced_range.end, second.replaced_range.end) == (2, 1)
    assert set(inspect.signature(compact).parameters) >= {
        *("messages", "model", "target_tokens", "keep_last_messages", "instructions", "count_tokens"),
        *("own_blocks", "long_running", "media", "min_shrink", "on_failure", "summary_input_tokens", "keep"),
    }


@pytest.mark.rule("C.A.1")
async def test_four_messages_stay_where_nothing_else_is_said() -> None:
    messages = [user(), assistant(), user(), assistant(), user(), assistant()]
    assert (await compacted(messages)).replaced_range.end == 2
    with_turns = await compacted(messages, keep=RetentionPolicy(keep_last_turns=1))
    assert with_turns.replaced_range.end == 4


@pytest.mark.rule("C.A.1")
def test_its_rules_need_no_runtime_and_no_actor() -> None:
    text = (
        "import sys, contextbus.core.compaction.reduction as r\n"
        "bad = [m for m in sys.modules if m.startswith(('contextbus.runtime', 'contextbus.actors', 'nats'))]\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.rule("C.A.2")
async def test_faults_are_told_in_order_and_before_a_model_is_asked() -> None:
    model, counter = Scripted(), Counted(lambda _: -1)
    good: dict[str, Any] = {"target_tokens": 5, "keep_last_messages": 1, "instructions": "x", "messages": b1()}
    bad: dict[str, Any] = {"target_tokens": 0, "keep_last_messages": 0, "instructions": 5, "messages": [{"role": "x"}]}
    words = ("target_tokens", "keep_last_messages", "instructions", "messages[0].role", "count_tokens")
    for number, word in enumerate(words):
        given = {**good, **dict(list(bad.items())[number:])}
        with pytest.raises((RangeError, InvalidTypeError)) as caught:
            await compact(given.pop("messages"), model=model, count_tokens=counter, **given)
        assert str(caught.value).startswith(word)
    assert len(counter.given) == 1  # only where all else was right
    assert not model.asked


@pytest.mark.rule("C.A.2", "C.F.9")
async def test_a_cancellation_that_is_due_comes_after_the_options_and_before_the_messages() -> None:
    counter = Counted()

    async def run(**options: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await compact([{"role": "x"}], model=Scripted(), count_tokens=counter, **options)

    with pytest.raises(RangeError):
        await asyncio.create_task(run(target_tokens=0))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run(target_tokens=5))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await compact([{"role": "x"}], model=Scripted(), count_tokens=counter, target_tokens=5)
        pytest.fail("it was cancelled")
    assert scope.cancelled_caught
    assert not counter.given


@pytest.mark.rule("C.A.3")
@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("name", ["target_tokens", "keep_last_messages", "context_window", "summary_input_tokens"])
async def test_a_number_that_is_no_positive_safe_integer_is_refused(name: str, value: Any) -> None:
    model = Scripted()
    with pytest.raises(RangeError, match=name) as caught:
        await compact(b1(), model=model, **{"target_tokens": 5, name: value})
    assert isinstance(caught.value, ValueError)
    assert not model.asked


@pytest.mark.rule("C.A.3")
async def test_the_largest_safe_integer_is_taken() -> None:
    assert (await compacted(b1(), target_tokens=2**53 - 1, keep_last_messages=1)).replaced_range.end == 3
    assert (await refused(b1(), keep_last_messages=2**53 - 1)).reason == "no-safe-boundary"


@pytest.mark.rule("C.A.3", "C.X.1")
@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("name", ["keep_last_messages", "keep_last_turns", "keep_recent_tokens"])
async def test_the_numbers_of_a_policy_are_checked_too(name: str, value: Any) -> None:
    with pytest.raises(RangeError, match=name):
        await compact(b1(), model=Scripted(), target_tokens=5, keep=RetentionPolicy(**{name: value}))


@pytest.mark.rule("C.A.4")
@pytest.mark.parametrize("value", [5, b"x", ["x"], {}, False])
async def test_instructions_are_a_text(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match="instructions") as caught:
        await compact(b1(), model=Scripted(), target_tokens=5, instructions=value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.rule("C.A.5", "C.B.1", "C.B.2")
@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [call_part("a")]}, "messages[1].content[0].type"),
        (assistant_of({"type": "tool-call", "toolName": "t"}), "messages[1].content[0].toolCallId"),
        ({"role": "tool", "content": [{"type": "tool-result", "toolCallId": "a", "toolName": "t"}]}, "messages[1]"),
        (ChatMessage(role="robot", content=(Text(text="x"),)), "messages[1]"),  # type: ignore[arg-type]  # malformed
        (ChatMessage(role="user", content="x"), "messages[1]"),  # type: ignore[arg-type]  # malformed
        (ChatMessage(role="user", content=(Text(text=5),)), "messages[1]"),  # type: ignore[arg-type]  # malformed
        (ToolResult(id=""), "messages[1]"),
        ("x", "messages[1]"),
        (None, "messages[1]"),
    ],
)
async def test_a_malformed_message_rejects_the_call(message: Any, place: str) -> None:
    model = Scripted()
    with pytest.raises(InvalidTypeError) as caught:
        await compact([user(), message, assistant()], model=model, target_tokens=500, keep_last_messages=1)
    assert str(caught.value).startswith(place)
    assert not model.asked


@pytest.mark.rule("C.A.5")
async def test_the_place_of_a_fault_counts_messages_of_every_form() -> None:
    mixed = [contextbus.user("hi"), assistant(), contextbus.user("more"), {"role": "robot", "content": "x"}]
    with pytest.raises(InvalidTypeError, match=r"^messages\[3\]\.role"):
        await compact(mixed, model=Scripted(), target_tokens=500)


@pytest.mark.rule("C.A.6", "C.E.7")
async def test_fields_that_nobody_knows_survive_in_what_stays() -> None:
    kept = {
        "role": "assistant",
        "content": [{"type": "text", "text": "x", "providerOptions": {"p": {"k": [1, {"deep": None}]}}, "mine": 1.5}],
        "metadata": {"traceId": "t-1", "none": None},
        "_cache_breakpoint": True,
    }
    messages = [marked_rules(), user(), assistant(), user("last"), kept]
    before = copy.deepcopy(messages)
    result = await compacted(messages, keep_last_messages=2)
    assert result.messages[-1] is kept
    assert result.messages[0] is messages[0]
    assert messages == before


def marked_rules() -> dict[str, Any]:
    return {"role": "system", "content": "rules", "providerOptions": {"anthropic": {"cacheControl": {"type": "x"}}}}


@pytest.mark.rule("C.A.5")
async def test_null_is_the_content_of_an_assistants_message_alone() -> None:
    nothing: dict[str, Any] = {"role": "assistant", "content": None}
    assert (await compacted([user("a"), nothing, user("b")], keep_last_messages=1)).replaced_range.end == 2
    with pytest.raises(InvalidTypeError, match=r"messages\[1\]\.content"):
        await compact([user("a"), {**nothing, "role": "user"}], model=Scripted(), target_tokens=500)


@pytest.mark.rule("C.E.7")
async def test_objects_of_sdks_stay_what_they_are() -> None:
    answer = ChatCompletionMessage.model_validate({"role": "assistant", "content": "x" * 200})
    called = ChatCompletionMessage.model_validate(OPENAI_CALL)
    result = {"role": "tool", "tool_call_id": "a", "content": "r"}
    messages = [user("first"), answer, called, result, answer]
    model = Scripted()
    kept = await compacted(messages, model=model, keep_last_messages=1)
    assert kept.replaced_range.end == 4
    assert kept.messages[-1] is answer
    assert [p.name for m in model.asked[0].messages for p in m.content if isinstance(p, ToolCall)] == ["t"]
    assert (await compacted(messages, keep_last_messages=2)).replaced_range.end == 2
    fields = {**ANTHROPIC_CALL, "id": "m", "type": "message", "model": "m-1", "usage": {"input_tokens": 1}}
    waits = Message.model_construct(None, **fields)
    assert (await compacted([user("a"), waits, user("b")], keep_last_messages=1)).replaced_range.end == 2
    assert (await compacted([user("a"), waits, waits], keep_last_messages=1)).replaced_range.end == 1


@pytest.mark.rule("C.A.7")
@pytest.mark.parametrize("called", [OPENAI_CALL, ANTHROPIC_CALL])
async def test_frozen_messages_of_every_provider_are_read(called: dict[str, Any]) -> None:
    def freeze(value: Any) -> Any:
        match value:
            case dict():
                return MappingProxyType({key: freeze(item) for key, item in cast("dict[str, Any]", value).items()})
            case [*items]:
                return tuple(map(freeze, items))
            case _:
                return value

    model = Scripted()
    messages = [user("first"), called, user("more"), assistant("last")]
    result = await compacted(tuple(map(freeze, messages)), model=model, keep_last_messages=1)
    assert result.replaced_range.end == 3
    assert any(isinstance(part, ToolCall) for part in model.asked[0].messages[1].content)


@pytest.mark.rule("C.A.7")
async def test_frozen_messages_do() -> None:
    def freeze(value: Any) -> Any:
        match value:
            case dict():
                return MappingProxyType({key: freeze(item) for key, item in cast("dict[str, Any]", value).items()})
            case [*items]:
                return tuple(map(freeze, items))
            case _:
                return value

    frozen = tuple(freeze(m) for m in [*b1()[:2], assistant_of(call_part("a")), user("more"), assistant("ok")])
    result = await compacted(frozen, keep_last_messages=1, target_tokens=500)
    assert result.messages[-1] is frozen[-1]
    assert result.messages[0] == {"role": "user", "content": "Previous conversation summary:\nShort."}


@pytest.mark.rule("C.A.8")
async def test_there_is_no_default_model() -> None:
    with pytest.raises(TypeError, match="model"):
        await compact(b1(), target_tokens=5)
    for wrong in (None, "gpt-5", 5, Scripted):
        with pytest.raises(InvalidTypeError, match="summariser"):
            await compact(b1(), model=wrong, target_tokens=5)


@pytest.mark.rule("C.A.8", "C.F.10")
async def test_a_model_is_a_summariser_or_any_function() -> None:
    async def asynchronous(request: SummaryRequest) -> str:
        return f"at most {request.max_output_tokens}"

    def synchronous(request: SummaryRequest) -> str:
        return f"at most {request.max_output_tokens}"

    class Called:
        def __call__(self, request: SummaryRequest) -> str:
            return f"at most {request.max_output_tokens}"

    def handed_on(request: SummaryRequest) -> Awaitable[str]:
        return asynchronous(request)

    for model in (asynchronous, synchronous, handed_on, Called()):
        result = await compacted(b1(), model=model, keep_last_messages=2)
        assert result.summary == f"at most {MOST_OUTPUT_TOKENS}"


@pytest.mark.rule("C.A.9")
async def test_a_list_within_the_target_is_reduced_all_the_same() -> None:
    model = Scripted()
    result = await compacted(
        [user("a"), assistant("b"), user("c")], model=model, target_tokens=100_000, keep_last_messages=1
    )
    assert len(model.asked) == 1
    assert result.replaced_range.end == 2


@pytest.mark.rule("C.A.10")
async def test_the_same_again_gives_the_same() -> None:
    messages, blocks = b1(), [f"sha256:{n:064x}" for n in range(20)]
    results = [await compacted(messages, keep_last_messages=2, own_blocks=blocks[::step]) for step in (1, -1)]
    assert results[0] == results[1]
    assert (await refused(messages, target_tokens=34, keep_last_messages=2)).reason == "protected-history"
    assert await compacted(messages, keep_last_messages=2, own_blocks=blocks) == results[0]


async def test_every_other_option_is_checked() -> None:
    wrong: list[tuple[str, Any]] = [
        ("count_tokens", 5),
        ("own_blocks", "sha256:0"),
        ("own_blocks", [5]),
        ("own_blocks", None),
        ("long_running", "search"),
        ("long_running", {1: 2}),
        ("keep", {"keep_last_turns": 1}),
        ("media", "drop"),
        ("media", None),
        ("on_failure", "continue"),
        ("on_failure", True),
        ("min_shrink", -0.1),
        ("min_shrink", 1.1),
        ("min_shrink", float("nan")),
        ("min_shrink", True),
        ("min_shrink", "0"),
    ]
    for name, value in wrong:
        with pytest.raises((InvalidTypeError, RangeError), match=name):
            await compact(b1(), model=Scripted(), **{"target_tokens": 5, name: value})
    with pytest.raises(TypeError, match="targetTokens"):
        await compact(b1(), model=Scripted(), targetTokens=5)
    keep = RetentionPolicy(keep_last_messages=2)
    with pytest.raises(InvalidTypeError, match="twice"):
        await compact(b1(), model=Scripted(), target_tokens=5, keep_last_messages=2, keep=keep)
    with pytest.raises(RangeError, match="context_window"):
        await compact(b1(), model=Scripted(), target_tokens=5, keep=RetentionPolicy(keep_ratio=0.5))


@pytest.mark.parametrize("wrong", ["text", b"x", {"messages": []}, 5, None, contextbus.user("x")])
async def test_messages_are_a_list(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"^messages: expected a list"):
        await compact(wrong, model=Scripted(), target_tokens=5)


async def test_messages_may_come_from_a_generator() -> None:
    messages = b1()
    result = await compacted(cast("Any", (m for m in messages)), keep_last_messages=2)
    assert result.messages[1] is messages[2]


@pytest.mark.rule("C.E.2", "C.E.7")
async def test_what_comes_in_as_chat_messages_comes_back_as_such() -> None:
    image = ChatMessage(role="user", content=(Image(data="aGVsbG8=", media_type="image/png"),))
    ours = [contextbus.user("R" * 400), contextbus.assistant("S"), image, ToolResult(id="a")]
    result = await compacted(ours, keep_last_messages=1, count_tokens=len)
    assert result.messages[0] == contextbus.user("Previous conversation summary:\nShort.")
    assert result.messages[1:] == (*ours[2:],)
    assert all(a is b for a, b in zip(result.messages[1:], ours[2:], strict=True))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (OPENAI_CALL, {"role": "tool", "tool_call_id": "a", "content": "r"}),
        (ANTHROPIC_CALL, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]}),
    ],
)
async def test_the_dicts_of_other_providers_are_read_too(one: Any, two: Any) -> None:
    messages = [user("first"), one, two, assistant("seen"), user("last")]
    model = Scripted()
    result = await compacted(messages, model=model, keep_last_messages=2)
    assert result.replaced_range.end == 3
    assert [type(p) for m in model.asked[0].messages for p in m.content] == [Text, ToolCall, ToolResult]
    assert result.messages[-1] is messages[-1]
    assert result.messages[0] == {"role": "user", "content": "Previous conversation summary:\nShort."}
    cut = await compacted(messages, keep_last_messages=3)  # the call goes with its result
    assert cut.replaced_range.end == 1


@pytest.mark.rule("C.E.2", "C.E.7")
async def test_contents_of_gemini_are_read_and_their_summary_is_one() -> None:
    def content(role: str, *parts: Any) -> Any:
        return {"role": role, "parts": list(parts)}

    asked = content("model", {"functionCall": {"name": "t", "args": {}}})
    answered = content("user", {"functionResponse": {"name": "t", "response": {"output": "r"}}})
    first, seen, last = (content(role, {"text": "R" * 400}) for role in ("user", "model", "user"))
    messages = [first, asked, answered, seen, last]
    model = Scripted()
    result = await compacted(messages, model=model, keep_last_messages=2)
    assert [type(p) for m in model.asked[0].messages for p in m.content] == [Text, ToolCall, ToolResult]
    assert result.messages[0] == content("user", {"text": "Previous conversation summary:\nShort."})
    assert all(a is b for a, b in zip(result.messages[1:], messages[3:], strict=True))
    again = await compacted([*result.messages, seen, last], own_blocks=result.own_blocks, keep_last_messages=1)
    assert again.messages[-1] is last
    with pytest.raises(InvalidTypeError, match=r"^messages\[1\]\.parts\[0\]\.text"):
        await compact([contextbus.user("q"), content("model", {"text": 5})], model=Scripted(), target_tokens=5)


@pytest.mark.rule("C.A.5", "C.E.7")
async def test_items_of_responses_are_read_where_each_is_a_message() -> None:
    def item(role: str, text: str) -> Any:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    call = {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "r"}
    messages = [item("user", "R" * 400), call, output, item("assistant", "seen"), item("user", "last")]
    model = Scripted()
    result = await compacted(messages, model=model, keep_last_messages=2)
    assert result.replaced_range.end == 3
    assert [type(p) for m in model.asked[0].messages for p in m.content] == [Text, ToolCall, ToolResult]
    assert result.messages[0] == {"role": "user", "content": "Previous conversation summary:\nShort."}
    with pytest.raises(InvalidTypeError, match=r"^messages: 3 dicts read as 2 messages; give one dict a message$"):
        await compact([item("assistant", "so"), call, output], model=Scripted(), target_tokens=5)
    with pytest.raises(InvalidTypeError, match=r"^messages\[1\]\.name"):
        await compact([item("user", "q"), {"type": "function_call"}], model=Scripted(), target_tokens=5)


async def test_openai_parts_are_known_without_any_other_sign() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}]}
    model = Scripted()
    messages = [picture, assistant(), user("last"), assistant()]
    await compacted(messages, model=model, keep_last_messages=1, media="placeholder", count_tokens=len)
    (part,) = model.asked[0].messages[0].content
    assert isinstance(part, Text)
    assert part.text.startswith("[image: image/*, context://vfs/")


async def test_dicts_of_two_providers_in_one_list_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"messages\[2\]"):
        await compact([user(), OPENAI_CALL, assistant_of({"type": 5})], model=Scripted(), target_tokens=500)


async def test_media_is_known_as_such_in_the_ai_sdks_form() -> None:
    result = await compacted([user(), assistant(), IMAGE, assistant()], keep_last_messages=1, count_tokens=len)
    assert isinstance(result, Compacted)
    assert result.replaced_range.end == 2

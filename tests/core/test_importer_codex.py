"""Session files of the Codex CLI: items of the Responses API in envelopes become chat messages (P.E.9)."""

from __future__ import annotations

import contextlib
import json
from time import process_time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.responses_checker import check_responses
from tests.core.session_checks import SESSIONS, Line, check_every_prefix, check_pairs, shape, text_of

from contextbus.core.importers import Conversation
from contextbus.core.importers.claude_code import is_claude_code
from contextbus.core.importers.codex import from_codex, is_codex
from contextbus.core.payload import render
from contextbus_protocol.chat import (
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.errors import InvalidTypeError

EXAMPLE = (SESSIONS / "codex.jsonl").read_text()
Item = dict[str, Any]


def line(kind: str, **payload: object) -> Line:
    return {"timestamp": "2026-01-02T10:00:00.000Z", "type": kind, "payload": payload}


def item(kind: str, **fields: object) -> Line:
    return line("response_item", type=kind, **fields)


def message(role: str, text: str) -> Line:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}])


def call(name: str, arguments: str = "{}") -> Line:
    return item("function_call", name="shell", arguments=arguments, call_id=name)


def output(name: str, text: object = "ok") -> Line:
    return item("function_call_output", call_id=name, output=text)


def read(*lines: Line) -> list[tuple[str, list[str]]]:
    conversation = from_codex(text_of(lines))
    check_pairs(conversation)
    return shape(conversation)


def part_of(*lines: Line) -> object:
    (read_message,) = from_codex(text_of(lines)).messages
    (part,) = read_message.content
    return part


def origin(data: str, model: str | None = None) -> ProviderData:
    return ProviderData("openai-responses", data, model)


@pytest.mark.rule("P.E.9", "P.E.5")
def test_the_example_is_what_the_api_was_sent() -> None:
    conversation = from_codex(EXAMPLE)
    check_pairs(conversation)
    summary = '[{"type":"summary_text","text":"Two files."},{"type":"summary_text","text":"Two counts."}]'
    search = '{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"words"}}'
    done = ToolResult(id="call_b", content=(Text(text="done"),))  # its call tells which kind of output it is
    counted = '{"output":"12 a.txt","metadata":{"exit_code":0}}'
    assert conversation == Conversation(
        id="t-1",
        messages=(
            ChatMessage(role="system", content=(Text(text="You count words."),)),
            ChatMessage(
                role="system", content=(Text(text="Only read."),), provider_data=origin('{"role":"developer"}')
            ),
            ChatMessage(
                role="user",
                content=(Text(text="<environment_context><cwd>/srv/words</cwd></environment_context>"),),
            ),
            ChatMessage(role="user", content=(Text(text="How many words are in a.txt and b.txt?"),)),
            ChatMessage(
                role="assistant",
                content=(
                    Reasoning(
                        text="Two files.\nTwo counts.",
                        redacted="gAAAA+/==",
                        provider_data=origin(f'{{"id":"rs_1","summary":{summary}}}', "gpt-test-1"),
                    ),
                    ToolCall(
                        id="call_a",
                        name="shell",
                        arguments='{"command": ["wc", "-w", "a.txt"]}',
                        provider_data=origin('{"id":"fc_1","after":"rs_1"}'),
                    ),
                    ToolCall(
                        id="call_b",
                        name="apply_patch",
                        arguments='{"input":"*** Begin Patch\\n*** End Patch"}',
                        provider_data=origin('{"type":"custom_tool_call","status":"completed"}'),
                    ),
                ),
            ),
            ChatMessage(role="tool", content=(ToolResult(id="call_a", content=(Text(text=counted),)),)),
            ChatMessage(role="tool", content=(done,)),
            ChatMessage(
                role="assistant",
                content=(
                    Unknown(data=search, provider_data=origin("{}")),
                    Text(text="a.txt has 12 words.", provider_data=origin('{"message":{"phase":"final_answer"}}')),
                ),
            ),
        ),
    )


@pytest.mark.rule("P.E.9")
def test_every_way_to_hand_a_file_over_reads_the_same() -> None:
    whole = from_codex(EXAMPLE)
    lines = EXAMPLE.splitlines()
    decoded = [json.loads(text) for text in lines]
    for form in (EXAMPLE.encode(), EXAMPLE.replace("\n", "\r\n"), lines, iter(lines), decoded, tuple(decoded)):
        assert from_codex(form) == whole


@pytest.mark.rule("P.E.9")
def test_any_prefix_of_a_file_can_be_read() -> None:
    check_every_prefix(from_codex, "codex.jsonl")


@pytest.mark.rule("P.E.9")
def test_a_file_of_an_early_release_holds_the_items_themselves() -> None:
    meta: Line = {"id": "t-0", "timestamp": "2025-06-01T00:00:00Z", "instructions": "Be brief.", "git": {}}
    bare = [message("user", "q")["payload"], call("1")["payload"], output("1")["payload"]]
    state: Line = {"record_type": "state"}
    conversation = from_codex(text_of([meta, bare[0], state, *bare[1:]]))
    check_pairs(conversation)
    assert conversation.id == "t-0"
    assert shape(conversation) == [
        ("system", ["Be brief."]),
        ("user", ["q"]),
        ("assistant", ["call 1"]),
        ("tool", ["result 1"]),
    ]
    assert is_codex([meta])
    assert is_codex([state])


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"base_instructions": {"text": "base"}, "instructions": "own"}, ["base"]),
        ({"base_instructions": "base"}, ["base"]),
        ({"base_instructions": None, "instructions": "own"}, ["own"]),
        ({"instructions": None}, []),
        ({"instructions": ""}, []),
    ],
)
def test_instructions_are_the_system_layer(meta: Item, expected: list[str]) -> None:
    read_shape = read(line("session_meta", id="t", **meta), message("user", "q"))
    assert read_shape == [*(("system", [text]) for text in expected), ("user", ["q"])]


@pytest.mark.rule("P.E.9")
def test_a_forked_session_keeps_its_own_id() -> None:
    conversation = from_codex([line("session_meta", id="child"), line("session_meta", id="parent", instructions="x")])
    assert conversation == Conversation(messages=(), id="child")


@pytest.mark.rule("P.E.9")
def test_events_and_unknown_lines_are_no_messages() -> None:
    assert read(
        message("user", "q"),
        line("event_msg", type="user_message", message="q"),
        line("of_tomorrow", type="message", role="user", content="no"),
        {"type": "of_tomorrow"},
        item("ghost_snapshot", ghost_commit={"id": "x"}),
        message("assistant", "a"),
        line("event_msg", type="agent_message", message="a"),
    ) == [("user", ["q"]), ("assistant", ["a"])]


@pytest.mark.rule("P.E.9")
def test_what_the_assistant_wrote_in_a_row_is_one_message() -> None:
    assert read(
        message("user", "q"),
        item("reasoning", summary=[], encrypted_content="x"),
        message("assistant", "so"),
        call("1"),
        call("2"),
        output("2"),
        output("1"),
        message("assistant", "well"),
        message("assistant", "done"),
    ) == [
        ("user", ["q"]),
        ("assistant", ["", "so", "call 1", "call 2"]),
        ("tool", ["result 2"]),
        ("tool", ["result 1"]),
        ("assistant", ["well", "done"]),
    ]


@pytest.mark.rule("P.E.5", "P.E.9")
def test_reasoning_keeps_its_content_exactly_and_its_issuer() -> None:
    sealed = "gAAAAABo+/==\u2028\\n "
    lines = (
        item("reasoning", summary=[{"type": "summary_text", "text": "s"}], encrypted_content=sealed),
        line("turn_context", model="gpt-b"),
        item("reasoning", id="rs", summary=[], content=[{"type": "reasoning_text", "text": "raw"}]),
        line("turn_context"),
        item("reasoning", encrypted_content=None),
    )
    assert from_codex(text_of(lines)).messages[0].content == (
        Reasoning(text="s", redacted=sealed, provider_data=origin('{"summary":[{"type":"summary_text","text":"s"}]}')),
        Reasoning(
            text="raw",
            provider_data=origin(
                '{"id":"rs","summary":[],"content":[{"type":"reasoning_text","text":"raw"}]}', "gpt-b"
            ),
        ),
        Reasoning(provider_data=origin("{}")),
    )


@pytest.mark.rule("P.E.9")
def test_a_compaction_replaces_what_was_before_it() -> None:
    before = (
        message("developer", "rules"),
        message("user", "<environment_context>w"),
        message("user", "q"),
        call("1"),
        output("1"),
        message("assistant", "a"),
    )
    after = (message("user", "next"), message("assistant", "b"))
    sealed = {"type": "compaction", "encrypted_content": "gAAA"}
    history: list[Item] = [message("user", "q")["payload"], sealed, {"type": "ghost_snapshot"}]
    told = [("user", ["next"]), ("assistant", ["b"])]
    replaced = from_codex(text_of([*before, line("compacted", message="", replacement_history=history), *after]))
    assert shape(replaced) == [("user", ["q"]), ("assistant", ["Unknown"]), *told]
    part = cast("Unknown", replaced.messages[1].content[0])
    assert (json.loads(part.data), part.provider_data) == (sealed, origin("{}"))
    outside = [("system", ["rules"]), ("user", ["<environment_context>w"]), ("user", ["q"])]
    summed = line("compacted", message="what was")
    assert read(*before, summed, *after) == [*outside, ("user", ["what was"]), *told]
    again = line("compacted", message="all that was")
    assert read(*before, summed, *after, again) == [*outside, told[0], ("user", ["all that was"])]
    assert read(*before, line("compacted", message="")) == outside
    assert read(*before, line("compacted", message="x", replacement_history=[])) == []


@pytest.mark.rule("P.E.9")
def test_turns_that_were_rolled_back_are_gone() -> None:
    context = (message("developer", "rules"), message("user", "<environment_context>w"))
    first = (message("user", "one"), call("1"), output("1"), message("assistant", "a"))
    second = (message("user", "two"), message("assistant", "b"))

    def back(turns: object) -> Line:
        return line("event_msg", type="thread_rolled_back", num_turns=turns)

    whole = read(*context, *first, *second)
    assert read(*context, *first, *second, back(1)) == read(*context, *first)
    assert read(*context, *first, *second, back(1), *second) == whole
    assert read(*context, *first, *second, back(1), back(1)) == read(*context)
    assert read(*context, *first, *second, back(9)) == read(*context)
    for turns in (0, -1, "1", None):
        assert read(*context, *first, *second, back(turns)) == whole
    summed = line("compacted", message="what was")
    assert read(*context, *first, summed, *second, back(1), *second) == read(*context, *first, summed, *second)


@pytest.mark.rule("P.E.6", "P.E.9")
def test_a_call_that_was_cut_keeps_its_raw_text_and_has_no_result() -> None:
    whole = text_of([message("user", "q"), call("1", '{"q": "hello wor')])
    for text in (whole, whole + text_of([output("1")])[:60]):
        conversation = from_codex(text)
        assert conversation.messages[1].content == (ToolCall(id="1", name="shell", arguments='{"q": "hello wor'),)
        assert len(conversation.messages) == 2
    wire = json.loads(render(from_codex(whole).messages, "openai").json())["messages"]
    assert wire[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert wire[2]["role"] == "tool"
    assert shape(from_codex(whole[:-30])) == [("user", ["q"])]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("given_item", "part"),
    [
        (
            item("local_shell_call", call_id="c", status="completed", action={"type": "exec", "command": ["ls"]}),
            ToolCall(
                id="c",
                name="local_shell",
                arguments='{"type":"exec","command":["ls"]}',
                provider_data=origin('{"type":"local_shell_call","status":"completed"}'),
            ),
        ),
        (
            item("local_shell_call", id="i", call_id=None, action={}),
            ToolCall(id="i", name="local_shell", provider_data=origin('{"type":"local_shell_call","id":"i"}')),
        ),
        (
            item("local_shell_call", action={}),
            Unknown(data='{"type":"local_shell_call","action":{}}', provider_data=origin("{}")),
        ),
        (
            item("of_tomorrow", x=1),
            Unknown(data='{"type":"of_tomorrow","x":1}', provider_data=origin("{}")),
        ),
        (
            output("c", {"content": "no", "success": False}),
            ToolResult(id="c", content=(Text(text="no"),), error=True),
        ),
        (output("c", {"content": "yes", "success": True}), ToolResult(id="c", content=(Text(text="yes"),))),
        (output("c", {"rows": 1}), ToolResult(id="c", content=(Text(text='{"rows":1}'),))),
        (
            output(
                "c",
                [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}],
            ),
            ToolResult(id="c", content=(Text(text="t"), Image(media_type="image/png", data="AA"))),
        ),
    ],
)
def test_an_item_is_read_with_every_field(given_item: Line, part: object) -> None:
    assert part_of(given_item) == part


@pytest.mark.rule("P.E.8", "P.E.9")
@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"type": "input_text", "text": "t", "x": 1}, Text(text="t", provider_data=origin('{"x":1}'))),
        ({"type": "refusal", "refusal": "no"}, Text(text="no", provider_data=origin('{"refusal":"part"}'))),
        (
            {"type": "input_image", "image_url": "https://example.org/i.png", "detail": "low"},
            Image(url="https://example.org/i.png", provider_data=origin('{"detail":"low"}')),
        ),
        ({"type": "input_image", "file_id": "f"}, Image(file_id="f", provider_data=origin("{}"))),
        (
            {"type": "input_file", "filename": "d.pdf", "file_data": "data:application/pdf;base64,BB"},
            Document(media_type="application/pdf", title="d.pdf", data="BB"),
        ),
        ({"type": "input_file", "file_url": "https://example.org/d"}, Document(url="https://example.org/d")),
        ({"type": "input_file", "file_id": "f"}, Document(file_id="f", provider_data=origin("{}"))),
        (
            {"type": "input_file", "file_data": "BB"},
            Document(data="BB", provider_data=origin('{"bare":true}')),
        ),
        (
            {"type": "input_audio", "data": "AA"},
            Unknown(data='{"type":"input_audio","data":"AA"}', provider_data=origin("{}")),
        ),
    ],
)
def test_content_is_read_with_every_field(content: Item, part: object) -> None:
    assert part_of(item("message", role="user", content=[content])) == part


@pytest.mark.rule("P.A.5", "P.E.9")
def test_lone_surrogates_become_replacement_characters() -> None:
    conversation = from_codex([line("session_meta", id="\ud83d"), message("user", "\ud83d"), call("\ud83d", "\ud83d")])
    assert conversation.id == "\ufffd"
    assert conversation.messages[0].content == (Text(text="\ufffd"),)
    assert conversation.messages[1].content == (ToolCall(id="\ufffd", name="shell", arguments="\ufffd"),)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"type":"response_item","payl\n{}', "line 1: not JSON"),
        ('{"type":"response_item"}\n', "line 1.payload: expected an object"),
        (text_of([item("message", role="robot", content="x")]), "line 1.payload.role"),
        (text_of([message("user", "q"), item("function_call", name="f")]), "line 2.payload.call_id"),
        (text_of([item("function_call_output", output="x")]), "line 1.payload.call_id"),
        (text_of([item("custom_tool_call", call_id="c", name="f")]), "line 1.payload.input"),
        (text_of([item("reasoning", summary=[{"text": 5}])]), "line 1.payload.summary[0].text"),
        (
            text_of([item("message", role="user", content=[{"type": "input_image"}])]),
            "line 1.payload.content[0].image_url",
        ),
        (text_of([line("compacted", replacement_history=[5])]), "line 1.payload.replacement_history[0]"),
        (text_of([line("compacted", message=5)]), "line 1.payload.message"),
        (text_of([line("session_meta", instructions=5)]), "line 1.payload.instructions"),
        (text_of([line("response_item")]), "line 1.payload.type"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(text: str, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_codex(text)
    assert caught.value.message.startswith(place)


@pytest.mark.rule("P.E.9")
def test_deep_content_is_read_or_refused_with_a_reason() -> None:
    value: object = "x"
    for _ in range(600):
        value = {"content": [value]}
    for data in ([output("1", value)], [item("of_tomorrow", x=value)], [item("function_call", arguments=value)]):
        with contextlib.suppress(InvalidTypeError):
            from_codex(data)


def seconds(data: object) -> float:
    begin = process_time()
    from_codex(data)
    return process_time() - begin


@pytest.mark.rule("P.E.9")
def test_a_hundred_thousand_lines_take_time_in_proportion() -> None:
    def long(count: int, *every: Line) -> str:
        lines = [message("user", "q"), message("assistant", "a"), *every]
        return text_of(lines * (count // len(lines)))

    back = line("event_msg", type="thread_rolled_back", num_turns=1)
    for every in ((call("1"), output("1")), (line("compacted", message="m"), back)):
        least = min(seconds(long(10_000, *every)) for _ in range(2))
        assert seconds(long(100_000, *every)) < max(25 * least, 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "message", "user", "input_text", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "role", "call_id", "output", "summary", "id"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)
KINDS = ["session_meta", "response_item", "event_msg", "turn_context", "compacted", "message", "reasoning"]


@given(
    lines=st.lists(
        st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional={"payload": VALUES, "id": VALUES}) | VALUES,
        max_size=6,
    )
)
def test_anything_is_read_or_refused_with_a_reason(lines: list[object]) -> None:
    is_codex(lines)
    with contextlib.suppress(InvalidTypeError):
        assert isinstance(from_codex(lines), Conversation)


STEPS = st.sampled_from(["user", "assistant", "reasoning", "call", "output", "compacted", "replaced", "back", "event"])


@given(steps=st.lists(STEPS, max_size=15), cut=st.floats(0, 1))
def test_any_prefix_of_any_session_can_be_read_and_pairs_hold(steps: list[str], cut: float) -> None:
    lines: list[Line] = [line("session_meta", id="t")]
    waiting: list[str] = []
    for number, step in enumerate(steps):
        match step:
            case "user" | "assistant":
                lines.append(message(step, f"{step} {number}"))
            case "reasoning":
                lines.append(item("reasoning", summary=[], encrypted_content=f"x{number}"))
            case "call":
                waiting.append(f"c{number}")
                lines.append(call(waiting[-1]))
            case "output" if waiting:
                lines.append(output(waiting.pop(0)))
            case "compacted":
                waiting.clear()
                lines.append(line("compacted", message=f"summary {number}"))
            case "replaced":
                waiting.clear()
                lines.append(line("compacted", message="", replacement_history=[message("user", "kept")["payload"]]))
            case "back":
                waiting.clear()
                lines.append(line("event_msg", type="thread_rolled_back", num_turns=1))
            case _:
                lines.append(line("event_msg", type="token_count"))
    text = text_of(lines)
    end = int(len(text) * cut)
    whole = text[:end].count("\n") + (text[end : end + 1] == "\n")
    conversation = from_codex(text[:end])
    assert conversation == from_codex(lines[:whole])
    answered: set[str] = set()
    called: set[str] = set()
    for part in (part for read_message in conversation.messages for part in read_message.content):
        if isinstance(part, ToolCall):
            called.add(part.id)
        if isinstance(part, ToolResult):
            assert part.id in called - answered
            answered.add(part.id)


@pytest.mark.rule("P.E.9")
def test_its_lines_are_told_from_other_files() -> None:
    lines = [json.loads(text) for text in EXAMPLE.splitlines()]
    assert is_codex(lines)
    for one in lines:
        assert is_codex([one])
        assert not is_claude_code([one])
    claude = [json.loads(text) for text in (SESSIONS / "claude_code.jsonl").read_text().splitlines()]
    chat: list[Line] = [
        {"role": "user", "content": "q"},
        {"id": "r", "timestamp": 1, "messages": []},
        {"id": "x", "timestamp": 1},
    ]
    for values in (claude, chat, [item("message")["payload"]], [], [5, "x", None], [{"type": "compacted"}]):
        assert not is_codex(values)


@pytest.mark.rule("P.E.5", "P.E.9", "responses.R6")
def test_reasoning_without_an_id_goes_back_encrypted() -> None:
    sealed: Item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA+/=="}
    lines = (
        line("turn_context", model="gpt-5"),
        message("user", "q"),
        line("response_item", **sealed),
        call("1"),
        output("1"),
    )
    messages = from_codex(text_of(lines)).messages
    payload = render(messages, "openai-responses", "gpt-5")
    assert json.loads(payload.json())["input"][1] == sealed
    assert payload.repairs == ()
    assert check_responses(payload.copy(), store=False) == []
    other = render(messages, "openai-responses", "gpt-4o")
    assert [repair.code for repair in other.repairs] == ["thinking"]

"""Session files of Claude Code: a tree of lines becomes what the model has before it (P.E.9)."""

from __future__ import annotations

import contextlib
import json
from time import process_time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.session_checks import SESSIONS, Line, check_every_prefix, check_pairs, shape, text_of

from contextbus.core.importers import Conversation, from_anthropic
from contextbus.core.importers.claude_code import from_claude_code, is_claude_code
from contextbus.core.importers.codex import is_codex
from contextbus.core.payload import render
from contextbus_protocol.chat import ProviderData, Reasoning, Text, ToolCall, ToolResult, Unknown
from contextbus_protocol.errors import InvalidTypeError

EXAMPLE = (SESSIONS / "claude_code.jsonl").read_text()
Block = dict[str, Any]


def user(uuid: str, parent: str | None, content: object = "q", **more: object) -> Line:
    line: Line = {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
    return {**line, "message": {"role": "user", "content": content}, **more}


def assistant(uuid: str, parent: str | None, *blocks: Block, answer: str | None = None, **more: object) -> Line:
    line: Line = {"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
    message: Block = {"role": "assistant", "model": "m", "content": list(blocks)}
    return {**line, "message": {**message, "id": answer or f"msg_{uuid}"}, **more}


def says(text: str) -> Block:
    return {"type": "text", "text": text}


def calls(name: str, arguments: object = None) -> Block:
    return {"type": "tool_use", "id": name, "name": "f", "input": arguments or {}}


def result(uuid: str, parent: str, *names: str) -> Line:
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": f"of {name}"} for name in names]
    return user(uuid, parent, blocks, toolUseResult={"stdout": "not for the model"})


def boundary(uuid: str, parent: str | None = None, **metadata: object) -> Line:
    line: Line = {"type": "system", "subtype": "compact_boundary", "uuid": uuid, "parentUuid": parent}
    return {**line, "sessionId": "s", "content": "Conversation compacted", "compactMetadata": metadata}


def read(*lines: Line) -> list[tuple[str, list[str]]]:
    conversation = from_claude_code(text_of(lines))
    check_pairs(conversation)
    return shape(conversation)


@pytest.mark.rule("P.E.9", "P.E.5")
def test_the_example_is_what_the_api_was_sent() -> None:
    conversation = from_claude_code(EXAMPLE)
    thinking = {"type": "thinking", "thinking": "Two files, two counts.", "signature": "c2lnbmVk+/=="}
    first: Block = {"type": "tool_use", "id": "toolu_a", "name": "Bash", "input": {"command": "wc -w a.txt"}}
    second: Block = {"type": "tool_use", "id": "toolu_b", "name": "Bash", "input": {"command": "wc -w b.txt"}}
    sent: list[Block] = [
        {"role": "user", "content": "Caveat: the host ran a command."},
        {"role": "user", "content": "How many words are in a.txt and b.txt?"},
        {"role": "assistant", "content": [thinking, says("I count both."), first, second]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": "12 a.txt"},
                {"type": "tool_result", "tool_use_id": "toolu_b", "content": "no such file", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [says("a.txt has 12 words; b.txt is missing.")]},
        {"role": "user", "content": [says("Thank you.")]},
    ]
    assert conversation.id == "s-1"
    assert conversation.tools is None
    expected = from_anthropic(sent).messages
    assert [message.role for message in conversation.messages] == [message.role for message in expected]
    assert conversation.messages[3:] == expected[3:]
    assert conversation.messages[2].content[1:] == expected[2].content[1:]
    assert conversation.messages[2].content[0] == Reasoning(
        text="Two files, two counts.",
        signature="c2lnbmVk+/==",
        provider_data=ProviderData("anthropic", "{}", "claude-test-1"),
    )
    wire = json.loads(render(conversation.messages, "anthropic").json())["messages"]
    assert wire[1]["content"] == sent[2]["content"]


@pytest.mark.rule("P.E.9")
def test_every_way_to_hand_a_file_over_reads_the_same() -> None:
    whole = from_claude_code(EXAMPLE)
    lines = EXAMPLE.splitlines()
    decoded = [json.loads(line) for line in lines]
    for form in (
        EXAMPLE.encode(),
        b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n\r\n").encode(),
        lines,
        iter(lines),
        (line.encode() for line in lines),
        decoded,
        tuple(decoded),
    ):
        assert from_claude_code(form) == whole


@pytest.mark.rule("P.E.9")
def test_any_prefix_of_a_file_can_be_read() -> None:
    check_every_prefix(from_claude_code, "claude_code.jsonl")


@pytest.mark.rule("P.E.9")
def test_an_edited_session_ends_on_its_last_branch() -> None:
    lines = (
        user("a", None, "first"),
        assistant("b", "a", says("one")),
        user("c", "b", "dropped"),
        assistant("d", "c", says("dropped too")),
        user("e", "b", "instead"),
        assistant("f", "e", says("two")),
    )
    assert read(*lines) == [("user", ["first"]), ("assistant", ["one"]), ("user", ["instead"]), ("assistant", ["two"])]
    assert read(*lines[:4])[2:] == [("user", ["dropped"]), ("assistant", ["dropped too"])]


@pytest.mark.rule("P.E.9")
def test_lines_of_no_message_are_links_of_the_chain() -> None:
    assert read(
        user("a", None),
        {"type": "attachment", "uuid": "x", "parentUuid": "a", "attachment": {}},
        {"type": "of tomorrow", "uuid": "y", "parentUuid": "x", "message": 5},
        {"type": "of tomorrow"},
        assistant("b", "y", says("one")),
        {"type": "system", "subtype": "turn_duration", "uuid": "z", "parentUuid": "b"},
        {"type": "progress", "uuid": "p", "parentUuid": "a"},
    ) == [("user", ["q"]), ("assistant", ["one"])]


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("last", ["r1", "r2", "p"])
def test_parallel_calls_and_their_results_are_whole_wherever_the_chain_goes_on(last: str) -> None:
    expected = [
        ("user", ["q"]),
        ("assistant", ["so", "call 1", "call 2"]),
        ("user", ["result 1", "result 2"]),
        ("assistant", ["done"]),
    ]
    head = (user("a", None), assistant("b", "a", says("so"), answer="m"))
    tail = assistant("e", last, says("done"))
    hook = {"type": "progress", "uuid": "p", "parentUuid": "c"}
    pieces = (
        assistant("c", "b", calls("1"), answer="m"),
        assistant("d", "c", calls("2"), answer="m"),
        result("r1", "c", "1"),
        hook,
        result("r2", "d", "2"),
    )
    assert read(*head, *pieces, tail) == expected
    # The first result is there before the second call was written.
    pieces = (pieces[0], pieces[2], hook, assistant("d", "r1", calls("2"), answer="m"), pieces[4])
    assert read(*head, *pieces, tail) == expected


@pytest.mark.rule("P.E.9")
def test_a_copy_of_an_answer_is_no_piece_of_it() -> None:
    assert read(
        user("a", None),
        assistant("b", "a", says("so"), calls("1"), answer="m"),
        result("c", "b", "1"),
        user("a2", None),
        assistant("b2", "a2", says("so"), calls("1"), answer="m"),
        result("c2", "b2", "1"),
        assistant("d", "c2", says("done")),
        assistant("b", "a", says("again")),
    ) == [("user", ["q"]), ("assistant", ["so", "call 1"]), ("user", ["result 1"]), ("assistant", ["done"])]
    retried = (
        user("a", None),
        assistant("b", "a", says("so"), answer="m"),
        assistant("c", "a", says("so"), answer="m"),
    )
    assert read(*retried) == [("user", ["q"]), ("assistant", ["so"])]


@pytest.mark.rule("P.E.9")
def test_one_id_on_every_answer_keeps_the_users_messages_apart() -> None:
    assert read(
        user("a", None),
        assistant("b", "a", says("one"), answer="same"),
        user("c", "b", "next"),
        assistant("d", "c", says("two"), answer="same"),
        assistant("e", "d", says("three"), answer="same", requestId="other"),
    ) == [("user", ["q"]), ("assistant", ["one"]), ("user", ["next"]), ("assistant", ["two"]), ("assistant", ["three"])]


@pytest.mark.rule("P.E.9")
def test_a_sub_agents_lines_are_left_out_unless_the_file_is_its_own() -> None:
    side = (user("x", None, "task", isSidechain=True), assistant("y", "x", says("sub"), isSidechain=True))
    main = (user("a", None), assistant("b", "a", says("one")))
    assert read(*main, *side) == [("user", ["q"]), ("assistant", ["one"])]
    assert read(main[0], *side, main[1]) == [("user", ["q"]), ("assistant", ["one"])]
    assert read(*side) == [("user", ["task"]), ("assistant", ["sub"])]


@pytest.mark.rule("P.E.9")
def test_what_the_host_shows_and_what_it_says_to_the_model() -> None:
    shown: Line = {"isApiErrorMessage": True, "message": {"role": "assistant", "content": [says("API Error: 529")]}}
    assert read(
        user("a", None, "a reminder", isMeta=True),
        user("b", "a"),
        {**assistant("c", "b"), **shown},
        user("d", "c", ""),
        user("e", "d", "again"),
        assistant("f", "e", says("No response requested.")),
    ) == [("user", ["a reminder"]), ("user", ["q"]), ("user", ["again"]), ("assistant", ["No response requested."])]


@pytest.mark.rule("P.E.9")
def test_a_compaction_starts_the_conversation_anew() -> None:
    before = (user("a", None), assistant("b", "a", says("one")))
    summary = user("d", "c", "what was", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    after = (user("e", "d", "next"), assistant("f", "e", says("two")))
    expected = [("user", ["what was"]), ("user", ["next"]), ("assistant", ["two"])]
    assert read(*before, boundary("c", logicalParentUuid="b"), summary, *after) == expected
    assert read(*before, boundary("c", "b"), summary, *after) == expected
    assert read(*before, boundary("c"), {**summary, "parentUuid": "b"}, *after) == expected
    assert read(*before, boundary("c"), summary) == expected[:1]
    assert read(*before, boundary("c")) == [("user", ["q"]), ("assistant", ["one"])]
    small = {**boundary("c", "b"), "subtype": "microcompact_boundary"}
    assert read(*before, small, user("e", "c", "next"))[0] == ("user", ["q"])


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("anchor", ["summary", "boundary"])
def test_what_a_compaction_kept_stands_on_the_right_side_of_the_summary(anchor: str) -> None:
    segment = {"headUuid": "k1", "tailUuid": "k3", "anchorUuid": anchor}
    lines = (
        user("a", None, "gone"),
        assistant("k1", "a", calls("1")),
        result("k2", "k1", "1"),
        assistant("k3", "k2", says("kept")),
        boundary("boundary", preservedSegment=segment),
        user("summary", "boundary", "what was", isCompactSummary=True),
        user("b", "summary", "next"),
    )
    kept = [("assistant", ["call 1"]), ("user", ["result 1"]), ("assistant", ["kept"])]
    first = [("user", ["what was"]), *kept] if anchor == "summary" else [*kept, ("user", ["what was"])]
    assert read(*lines) == [*first, ("user", ["next"])]
    assert read(*lines[:-1]) == first
    gone = {**segment, "tailUuid": "nowhere"}
    assert read(*lines[:4], boundary("boundary", preservedSegment=gone), *lines[5:]) == [
        ("user", ["what was"]),
        ("user", ["next"]),
    ]


@pytest.mark.rule("P.E.9")
def test_a_parent_that_is_not_in_the_file_is_the_message_before() -> None:
    lines: tuple[Line, ...] = (
        user("b", "before the file"),
        assistant("c", "b", says("one")),
        user("e", "a hook that was not written", "next"),
    )
    assert read(*lines) == [("user", ["q"]), ("assistant", ["one"]), ("user", ["next"])]
    bare = [{key: value for key, value in line.items() if key not in ("uuid", "parentUuid")} for line in lines]
    assert read(*bare) == read(*lines)


@pytest.mark.rule("P.E.6", "P.E.9")
def test_a_call_that_was_cut_keeps_its_raw_text_and_has_no_result() -> None:
    cut = assistant("b", "a", {"type": "tool_use", "id": "1", "name": "write", "input": '{"q": "hello wor'})
    whole = text_of([user("a", None), cut])
    for text in (whole, whole + text_of([result("c", "b", "1")])[:40]):
        conversation = from_claude_code(text)
        (call,) = conversation.messages[1].content
        assert cast("ToolCall", call).arguments == '{"q": "hello wor'
        assert len(conversation.messages) == 2
    wire = json.loads(render(from_claude_code(whole).messages, "anthropic").json())["messages"]
    assert wire[1]["content"][0]["input"] == {}
    assert wire[2]["content"][0]["is_error"] is True
    assert shape(from_claude_code(text_of([user("a", None), cut])[:-30])) == [("user", ["q"])]


@pytest.mark.rule("P.E.9")
def test_unknown_blocks_stay_and_fields_of_the_response_do_not() -> None:
    block: Block = {"type": "server_tool_use", "id": "s", "name": "advisor", "input": {}}
    line = assistant("b", "a", block, {"type": "redacted_thinking", "data": "c2Vj+/=="})
    line["message"].update(usage={"input_tokens": 5}, stop_reason="end_turn", of_tomorrow=1)
    message = from_claude_code([user("a", None), line]).messages[1]
    assert isinstance(message.content[0], Unknown)
    assert json.loads(message.content[0].data) == block
    assert message.content[1] == Reasoning(redacted="c2Vj+/==", provider_data=ProviderData("anthropic", "{}", "m"))
    assert message.provider_data == ProviderData("anthropic", '{"of_tomorrow":1}')


@pytest.mark.rule("P.A.5", "P.E.9")
def test_lone_surrogates_become_replacement_characters_and_pairs_hold() -> None:
    text = '"\\ud83d"'
    lines = (
        user("a", None, json.loads(text)),
        assistant("\ud83d", "a", calls("i\ud83d")),
        result("r", "\ud83d", "i\ud83d"),
    )
    conversation = from_claude_code(text_of([{**line, "sessionId": "\ud83d"} for line in lines]))
    check_pairs(conversation)
    assert conversation.id == "\ufffd"
    assert conversation.messages[0].content == (Text(text="\ufffd"),)
    assert cast("ToolResult", conversation.messages[2].content[0]).id == "i\ufffd"


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"type":"user"}\n', "line 1.message"),
        ('{"type":"summary"}\n\n{"type":"us\n{"type":"summary"}', "line 3: not JSON"),
        ("5\n", "line 1: expected an object"),
        ("[" * 200_000 + "\n", "line 1: not JSON that can be read"),
        (text_of([user("a", None, 5)]), "line 1.message.content: expected a list"),
        (text_of([user("a", None, [{"type": "text", "text": 5}])]), "line 1.message.content[0].text"),
        (text_of([user("a", None), assistant("b", "a", {"type": "tool_use"})]), "line 2.message.content[0].id"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(text: str, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_claude_code(text)
    assert caught.value.message.startswith(place)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("data", [None, 5, [5], [["x"]]])
def test_what_holds_no_lines_is_refused(data: object) -> None:
    with pytest.raises(InvalidTypeError):
        from_claude_code(data)


@pytest.mark.rule("P.E.9")
def test_deep_content_is_read_or_refused_with_a_reason() -> None:
    content: object = "x"
    for _ in range(400):
        content = [{"type": "tool_result", "tool_use_id": "1", "content": content}]
    with contextlib.suppress(InvalidTypeError):
        from_claude_code([user("a", None, content)])
    ring = [user("a", "b"), assistant("b", "a", says("one"))]
    assert shape(from_claude_code(ring)) == [("user", ["q"]), ("assistant", ["one"])]


def seconds(data: object) -> float:
    begin = process_time()
    from_claude_code(data)
    return process_time() - begin


@pytest.mark.rule("P.E.9")
def test_a_hundred_thousand_lines_take_time_in_proportion() -> None:
    def long(count: int) -> str:
        lines = [user("0", None)]
        for number in range(1, count):
            parent = str(number - 1)
            match number % 4:
                case 1:
                    lines.append(assistant(str(number), parent, calls(f"c{number}"), answer=f"m{number}"))
                case 2:
                    lines.append(result(str(number), parent, f"c{number - 1}"))
                case 3:
                    lines.append({"type": "progress", "uuid": str(number), "parentUuid": parent})
                case _:
                    lines.append(user(str(number), parent))
        return text_of(lines)

    # One answer of many pieces, whose results all stand beside the chain.
    wide = [
        user("u", None),
        *(assistant(f"a{n}", f"a{n - 1}" if n else "u", calls(f"c{n}"), answer="m") for n in range(9999)),
    ]
    wide += [result(f"r{n}", f"a{n}", f"c{n}") for n in range(9999)]
    wide.append(assistant("end", "r0", says("done")))
    small, large = long(10_000), long(100_000)
    assert seconds(text_of(wide)) < 5
    least = min(seconds(small) for _ in range(2))
    assert seconds(large) < max(25 * least, 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b", "user", "text", "tool_use", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "id", "role", "input"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    lines=st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["user", "assistant", "system", "progress"])},
            optional={
                "uuid": st.sampled_from(["a", "b", "c", "d"]) | VALUES,
                "parentUuid": st.sampled_from(["a", "b", "c", "d"]) | VALUES,
                "message": st.fixed_dictionaries({"content": VALUES}, optional={"id": VALUES}) | VALUES,
                "subtype": st.just("compact_boundary"),
                "isCompactSummary": st.booleans(),
                "isSidechain": st.booleans(),
                "compactMetadata": st.fixed_dictionaries(
                    {
                        "preservedSegment": st.fixed_dictionaries(
                            dict.fromkeys(["anchorUuid", "headUuid", "tailUuid"], st.sampled_from(["a", "b", "c"]))
                        )
                    }
                ),
            },
        ),
        max_size=8,
    )
)
def test_anything_is_read_or_refused_with_a_reason(lines: list[Line]) -> None:
    is_claude_code(lines)
    with contextlib.suppress(InvalidTypeError):
        assert isinstance(from_claude_code(lines), Conversation)


@given(data=st.data())
def test_any_prefix_of_any_tree_can_be_read(data: st.DataObject) -> None:
    lines: list[Line] = []
    for number in range(data.draw(st.integers(1, 12))):
        parent = data.draw(st.sampled_from([None, *(line["uuid"] for line in lines)]))
        uuid = str(number)
        open_calls = [line["uuid"] for line in lines if line["type"] == "assistant"]
        kind = data.draw(st.sampled_from(["user", "assistant", "result", "progress", "boundary"]))
        if kind == "assistant":
            answer = data.draw(st.sampled_from(["m", "n", None]))
            lines.append(assistant(uuid, parent, calls(f"c{uuid}"), answer=answer))
        elif kind == "result" and open_calls:
            caller = data.draw(st.sampled_from(open_calls))
            lines.append(result(uuid, caller, f"c{caller}"))
        elif kind == "progress":
            lines.append({"type": "progress", "uuid": uuid, "parentUuid": parent})
        elif kind == "boundary":
            lines.append(boundary(uuid))
        else:
            lines.append(user(uuid, parent))
    text = text_of(lines)
    cut = data.draw(st.integers(0, len(text)))
    whole = text[:cut].count("\n") + (text[cut : cut + 1] == "\n")
    conversation = from_claude_code(text[:cut])
    assert conversation == from_claude_code(lines[:whole])
    named = [part.id for message in conversation.messages for part in message.content if isinstance(part, ToolCall)]
    assert len(named) == len(set(named))
    last = [line for line in lines[:whole] if line["type"] in ("user", "assistant")][-1:]
    for line in last:  # the conversation ends with it, or it is a piece of an answer that has results
        kept = [name for _, parts in shape(conversation) for name in parts]
        assert shape(from_claude_code([line]))[0][1][0] in kept


@pytest.mark.rule("P.E.9")
def test_its_lines_are_told_from_other_files() -> None:
    assert is_claude_code([json.loads(line) for line in EXAMPLE.splitlines()])
    for line in (
        user("a", None),
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        json.loads(EXAMPLE.splitlines()[1]),
    ):
        assert is_claude_code([line])
        assert not is_codex([line])
    codex = [json.loads(line) for line in (SESSIONS / "codex.jsonl").read_text().splitlines()]
    chat: list[Line] = [
        {"role": "user", "content": "q"},
        {"messages": []},
        {"type": "message", "role": "user", "content": "q"},
    ]
    for values in (codex, chat, [], [5, "x", None], [{"type": "user"}]):
        assert not is_claude_code(values)

"""The benchmark of compiles: both sides compile the same, and the lines say what the figures come to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from benchmarks import compile as compiling
from benchmarks.chef.process import Chef, ChefError, find_trouble, is_installed, start_chef
from benchmarks.compile_lines import Figures, Line, list_lines, step_line
from benchmarks.compile_ours import Ours, turns_of
from benchmarks.conversations import (
    CONVERSATION_KINDS,
    SYSTEM,
    ConversationKind,
    Given,
    list_texts,
    mark,
    read_dicts,
    write_dict,
    write_dicts,
)
from benchmarks.rules import OPTIONS, TOKENIZER, RulesRun

from contextbus.client import system
from contextbus.core.payload import render
from contextbus.runtime.tokenizers import load_tokenizers
from contextbus_protocol.chat import ToolCall, ToolResult

LENGTHS: tuple[int, ...] = (100, 1_000, 10_000)


def count_words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def chef() -> Iterator[Chef]:
    trouble = find_trouble() or ("" if is_installed() else "benchmarks/chef has no packages: npm ci installs them")
    if trouble:
        pytest.skip(trouble)
    with start_chef() as process:
        yield process


def figures_of(ours: dict[int, float], chef: dict[int, float]) -> Figures:
    """One round in which every form takes as long."""
    figures = Figures(LENGTHS)
    for kind in CONVERSATION_KINDS:
        for length in LENGTHS:
            for form in ("chunks", "chunks, three breakpoints", "json", "body", "list", "dicts", "edit"):
                figures.add("ours", form, kind, length, ours[length])
            for form in ("object", "bytes", "edit") if chef else ():
                figures.add("chef", form, kind, length, chef[length])
    return figures


def line_of(lines: list[Line], what: str, history: str, measure: str) -> Line:
    (line,) = [each for each in lines if (each.what, each.history, each.measure) == (what, history, measure)]
    return line


def test_the_goals_are_those_of_the_design() -> None:
    same = dict.fromkeys(LENGTHS, 1e-4)
    lines = list_lines(figures_of(same, same))
    for kind in CONVERSATION_KINDS:
        goals = [
            (line.what, line.measure, line.goal, line.at_least)
            for line in lines
            if line.goal is not None and line.history == f"{kind}, 10,000"
        ]
        assert goals == [
            ("appended, chunks()", "growth", 1.5, False),
            ("with three breakpoints", "growth", 1.5, False),
            ("appended, json()", "as fast", 20, True),
            ("appended, body", "as fast", 20, True),
            ("appended, body", "ns a message", 15, False),
            ("list of ours, chunks()", "as fast", 20, True),
            ("list of ours, chunks()", "ns a message", 2, False),
            ("list of dicts, body", "as fast", 5, True),
            ("list of dicts, body", "ns a message", 150, False),
        ]
    assert all(line.goal is None for line in lines if not line.history.endswith("10,000"))


def test_lines_say_how_many_times_as_fast_and_what_a_message_costs() -> None:
    ours = {100: 100e-6, 1_000: 150e-6, 10_000: 200e-6}
    lines = list_lines(figures_of(ours, {100: 50e-6, 1_000: 1e-3, 10_000: 4e-3}))
    growth = line_of(lines, "appended, chunks()", "plain, 10,000", "growth")
    assert (growth.ratio, growth.met, growth.ours, growth.yardstick) == (2, False, 200, 100)
    faster = line_of(lines, "appended, json()", "plain, 10,000", "as fast")
    assert (faster.ratio, faster.met) == (20, True)
    assert faster.ours == pytest.approx(200)
    assert faster.yardstick == pytest.approx(4_000)
    assert line_of(lines, "appended, json()", "plain, 100", "as fast").ratio == 0.5  # a loss is a line like any other
    slope = line_of(lines, "appended, body", "plain, 10,000", "ns a message")
    assert slope.ratio == pytest.approx(100e3 / 9_900, abs=0.001)
    assert slope.met is True
    assert line_of(lines, "the same, a message", "plain, 10,000", "growth").ratio == pytest.approx(0.133, abs=0.001)


def test_the_median_of_the_rounds_counts() -> None:
    figures = Figures((10, 20))
    for ours, theirs in ((1.0, 30.0), (1.0, 10.0), (1.0, 20.0)):
        for kind in CONVERSATION_KINDS:
            for length in (10, 20):
                for form in ("chunks", "chunks, three breakpoints", "json", "body", "list", "dicts"):
                    figures.add("ours", form, kind, length, ours)
                for form in ("object", "bytes"):
                    figures.add("chef", form, kind, length, theirs)
    line = line_of(list_lines(figures), "appended, body", "tool-heavy, 20", "as fast")
    assert (line.ratio, line.lowest, line.highest, line.met) == (20, 10, 30, True)


def test_without_the_yardstick_our_own_lines_are_left() -> None:
    lines = list_lines(figures_of(dict.fromkeys(LENGTHS, 1e-4), {}))
    compared = [line for line in lines if line.measure == "as fast"]
    assert compared
    assert all(line.ratio is None and line.met is None and line.yardstick is None for line in compared)
    assert all(line.ours == pytest.approx(100) for line in compared)
    assert any(line.met for line in lines if line.measure == "growth")
    assert [cell for cell in compared[0].cells() if "None" in cell] == []


def test_a_whole_step_stands_beside_a_compile_of_a_history_as_long() -> None:
    figures = figures_of(dict.fromkeys(LENGTHS, 1e-4), dict.fromkeys(LENGTHS, 1e-3))
    line = step_line(figures, "plain", "reused step, whole", 1_000, [2e-3])
    assert (line.ratio, line.goal, line.history) == (0.5, None, "plain, 1,000")


@pytest.mark.parametrize("kind", CONVERSATION_KINDS)
def test_a_conversation_is_the_same_as_dicts_and_as_ours(kind: ConversationKind) -> None:
    given = write_dicts(kind, 0, 64)
    ours = read_dicts(given)
    assert len(ours) == 64
    assert [message.role for message in ours] == [message["role"] for message in given]
    assert {message.role for message in ours[1::2]} == {"assistant"}
    calls = [part for message in ours for part in message.content if isinstance(part, ToolCall)]
    results = [part.id for message in ours for part in message.content if isinstance(part, ToolResult)]
    assert [call.id for call in calls] == results
    assert len(calls) == (24 if kind == "tool-heavy" else 0)
    assert all(turn[0]["role"] != "assistant" for turn in turns_of(kind, 64, 8))


def test_breakpoints_are_spread_and_the_last_is_at_the_end() -> None:
    messages = read_dicts(write_dicts("plain", 0, 30))
    marked = mark(messages, 3)
    assert [place for place, message in enumerate(marked) if message.cache] == [9, 19, 29]


@pytest.mark.rule("P.E.4")
@pytest.mark.parametrize("kind", CONVERSATION_KINDS)
def test_the_line_with_three_breakpoints_sends_three(kind: ConversationKind) -> None:
    mine = Ours(kind, 40, count_words, "A summary.")
    assert mine.marks == 3
    assert mine.time("chunks, three breakpoints", 2) > 0


@pytest.mark.parametrize("kind", CONVERSATION_KINDS)
def test_the_rules_alone_make_the_payload_of_the_whole_history(kind: ConversationKind) -> None:
    """Appended, as a whole list of ours, and as dicts: all come to the payload of rendering everything."""
    run = RulesRun({TOKENIZER: count_words})
    given: list[Given] = [{"role": "system", "content": SYSTEM}, *write_dicts(kind, 0, 70)]
    messages = [system(SYSTEM), *read_dicts(given[1:])]
    run.append(*messages)
    run.compile()
    run.mark()
    more = write_dict(kind, 70)
    expected = render([*messages, *read_dicts([more])], "anthropic", OPTIONS.model, tools=None).json()
    run.append(*read_dicts([more]))
    assert run.compile().json() == expected
    run.reset()
    run.hand_over([*messages, *read_dicts([more])])
    assert run.compile().json() == expected
    run.reset()
    run.hand_over([*given, more])
    assert run.compile().json() == expected
    run.reset()
    assert run.compile().json() == render(messages, "anthropic", OPTIONS.model, tools=None).json()


def texts_of(body: dict[str, Any]) -> list[str]:
    """All that a body says, in order, without the empty texts that the yardstick puts before calls."""
    texts: list[str] = []
    for message in body["messages"]:
        for block in message["content"]:
            match block["type"]:
                case "text":
                    texts += [block["text"]] if block["text"] else []
                case "tool_use":
                    texts.append(msgspec.json.encode([block["id"], block["name"], block["input"]]).decode())
                case _:
                    content = block["content"]
                    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                    texts.append(f"{block['tool_use_id']}: {text}")
    return texts


@pytest.mark.parametrize("kind", CONVERSATION_KINDS)
def test_both_sides_count_and_send_the_same(chef: Chef, kind: ConversationKind) -> None:
    counter = load_tokenizers((TOKENIZER,)).tokenizers.get(TOKENIZER)
    if counter is None:
        pytest.skip(f"no vocabulary of {TOKENIZER} is at hand")
    messages = write_dicts(kind, 0, 33)
    loaded = chef.ask("load", run="same", system=SYSTEM, messages=messages)
    assert loaded["tokens"] == sum(counter(text) for message in messages for text in list_texts(message))
    theirs = cast("dict[str, Any]", chef.ask("show", run="same")["body"])
    ours = render([system(SYSTEM), *read_dicts(messages)], "anthropic", OPTIONS.model, tools=None).copy()
    assert texts_of(theirs) == texts_of(ours)
    assert [block["text"] for block in theirs["system"]] == [SYSTEM]


def test_the_yardstick_compresses_where_it_is_asked_to_and_else_not(chef: Chef) -> None:
    chef.ask("load", run="long", system=SYSTEM, messages=write_dicts("plain", 0, 40))
    message = write_dict("plain", 40)
    assert cast("int", chef.ask("compaction", run="long", message=message, summary="Short.")["messages"]) < 10
    body = cast("dict[str, Any]", chef.ask("show", run="long")["body"])
    assert len(body["messages"]) == 40
    new = turns_of("plain", 40, 3)
    assert len(chef.time("appended", run="long", form="bytes", turns=new)) == 3
    body = cast("dict[str, Any]", chef.ask("show", run="long")["body"])
    assert len(body["messages"]) == 40


def test_what_fails_in_the_process_is_an_error_that_says_so(chef: Chef) -> None:
    with pytest.raises(ChefError, match="failed at show"):
        chef.ask("show", run="unknown")


def test_without_node_the_trouble_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        del name

    monkeypatch.setattr(shutil, "which", find_nothing)
    assert "node" in find_trouble()
    with pytest.raises(ChefError, match="node"), start_chef():
        pass


@pytest.mark.parametrize("form", ["copy", "sdk, bytes", "sdk, dicts", "edit", "compaction", "cold"])
def test_each_measurement_leaves_the_history_as_it_was(form: str) -> None:
    mine = Ours("tool-heavy", 32, count_words, "They failed.")
    before = mine.show()
    assert mine.time(form, 2) > 0
    assert mine.show() == before


@pytest.mark.broker
def test_the_short_form(chef: Chef, capsys: pytest.CaptureFixture[str]) -> None:
    del chef  # only where it can run: without it the lines against it have no ratio
    if TOKENIZER not in load_tokenizers((TOKENIZER,)).tokenizers:
        pytest.skip(f"no vocabulary of {TOKENIZER} is at hand")
    compiling.main(["--quick", "--json"])
    report = msgspec.json.decode(capsys.readouterr().out)
    assert not [note for note in report["notes"] if "did not run" in note]
    assert report["quick"] is True
    whats = {line["what"] for line in report["ratios"]}
    assert {"appended, copy()", "appended, json(), SDK", "edit, chunks()", "compaction, chunks()"} <= whats
    assert {"cold start, chunks()", "refresh step, whole", "reused step, whole"} <= whats
    for line in report["ratios"]:
        assert line["ours"] > 0
        assert line["yardstick"] > 0
        assert line["lowest"] <= line["ratio"] <= line["highest"]
        assert (line["met"] is None) == (line["goal"] is None)

"""The extractive summary of a range of messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from contextbus.summarisers.extractive.facts import Fact, Turns
from contextbus.summarisers.extractive.ledger import collect_facts
from contextbus.summarisers.extractive.packing import Line, pack
from contextbus.summarisers.extractive.segments import (
    SUMMARY_LABEL,
    Section,
    Segment,
    clip,
    cut_summary,
    cut_text,
    disarm,
    find_summaries,
    read_text,
)
from contextbus.summarisers.extractive.tool_work import ToolWork, read_tool_work
from contextbus.summarisers.extractive.values import EXACT
from contextbus_protocol.chat import ChatMessage

_IDENTIFIER: Final = re.compile(
    r"https?://[^\s<>\"'`,;)\]}]{1,200}|[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}|(?<![\w/.])[~.]{0,2}/?[\w.@-]{1,60}(?:/[\w.@-]{1,60}){1,12}"
    r"|(?<![\w-])(?!\d{4}-\d\d-\d\d)(?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])\w[\w-]{3,40}(?![\w-])|(?<![\w.,-])\d{4,20}(?![\w-])"
)
_FIRST_SENTENCE: Final = re.compile(r"(?<=[.!?])\s|(?<=[。！？])|\n")
_LETTER: Final = re.compile(r"[^\W_]")
_SEARCHED_OF_A_RESULT: Final = 4_000
_MOST_REFERENCES: Final = 60
_LONGEST_REFERENCE: Final = 120
_DIGITS_OF_AN_ID: Final = 4


def count_characters(text: str) -> int:
    """Tokens of a text as characters divided by four, rounded up; characters are code points (C.C.1)."""
    return -(-len(text) // 4)


def extract_summary(
    messages: Sequence[ChatMessage], max_tokens: int, count: Callable[[str], int] = count_characters
) -> str:
    """Summarise a range by what it says itself, with no model and no network (C.X.9).

    Goal, constraints, decisions, values, open questions, failures, tool calls and exact identifiers become labelled
    lines; a later value takes the place of an earlier one.  An earlier summary in the range is read back line by line,
    so that its facts outlive further rounds.  System messages and reasoning are left out.

    Args:
        messages: The range, oldest first.
        max_tokens: What the text may count at most, in tokens.
        count: Tokens of a text.

    Returns:
        The summary.  Empty where the range says nothing, or where the shortest statement does not fit.
    """
    if max_tokens < 1:
        return ""
    segments: list[Segment] = []
    references: dict[str, int] = {}
    summaries = find_summaries(messages)
    texts: dict[int, str] = {}
    for index, message in enumerate(messages):
        if message.role not in {"user", "assistant"}:
            continue
        text = texts[index] = read_text(message)
        if index in summaries:
            for segment in cut_summary(text, index):
                if segment.section == "References":
                    references.update(dict.fromkeys(segment.text.split(", "), index))
                else:
                    segments.append(segment)
        else:
            segments += cut_text(text, "user" if message.role == "user" else "assistant", index)
    held = collect_facts(segments, _find_turns(messages, texts, summaries))
    facts, retired = held.facts, held.retired
    work = read_tool_work(messages)
    lines = [Line(f.section, disarm(f.text), f.score, n) for n, f in enumerate(facts)]
    lines += _tool_lines(work, len(lines))
    for name, index in held.kept:
        _note(references, name, index)
    _add_references(references, facts, work)
    names = [name for name in references if name.lower() not in retired]
    if not lines and not names:
        lines = _last_words(messages, texts)
    return pack(lines, names[-_MOST_REFERENCES:], max_tokens, count)


def _last_words(messages: Sequence[ChatMessage], texts: dict[int, str]) -> list[Line]:
    """The last request and the first sentence of the last answer, for a range that says nothing else."""
    lines: list[Line] = []
    for role, weight in (("user", 2.0), ("assistant", 1.0)):
        index = max((n for n, text in texts.items() if messages[n].role == role and text.strip()), default=-1)
        said = texts.get(index, "").strip().removeprefix(SUMMARY_LABEL.strip()).strip()
        if role == "assistant":
            said = _FIRST_SENTENCE.split(said, maxsplit=1)[0]
        if _LETTER.search(said):
            lines.append(Line("Notes", f"{role}: {disarm(clip(said))}", weight, index))
    return lines


def _find_turns(messages: Sequence[ChatMessage], texts: dict[int, str], summaries: frozenset[int]) -> Turns:
    spoken = [(n, messages[n].role) for n, text in texts.items() if n not in summaries and text.strip()]
    users = [index for index, role in spoken if role == "user"]
    assistants = [index for index, role in spoken if role == "assistant"]
    return Turns(
        last_user=users[-1] if users else -1,
        last_assistant=assistants[-1] if assistants else -1,
        first_user=users[0] if users and not summaries else -1,
    )


def _tool_lines(work: ToolWork, start: int) -> list[Line]:
    lines: dict[str, Line] = {}
    section: Section
    for number, each in enumerate(work.lines):
        if each.failed:
            section, score = "Failures", 6.0
        elif each.answer:
            section, score = "Decisions", 6.0
        else:
            section = "Tool calls"
            # statements go before calls of which nothing is known but that they were made
            score = (2.5 if each.reading else 5.0) if each.told else (0.2 if each.reading else 1.0)
            score *= 0.5 + 0.5 * (number + 1) / len(work.lines)
        lines[f"{section} {each.text}"] = Line(section, disarm(each.text), score, start + number)
    return list(lines.values())


def _add_references(references: dict[str, int], facts: Sequence[Fact], work: ToolWork) -> None:
    """Add identifiers: of statements and of arguments all, of results those that come more than once."""
    for fact in facts:
        for value in fact.values:
            if value.kind in EXACT or (
                value.kind == "number" and sum(map(str.isdigit, value.text)) >= _DIGITS_OF_AN_ID
            ):
                _note(references, fact.said[value.start : value.end], fact.message)
    for index, text in work.arguments:
        for match in _IDENTIFIER.finditer(text):
            _note(references, match[0], index)
    seen: dict[str, int] = {}
    for index, text in work.results:
        for name in dict.fromkeys(m[0] for m in _IDENTIFIER.finditer(text[:_SEARCHED_OF_A_RESULT])):
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                _note(references, name, index)


def _note(references: dict[str, int], name: str, message: int) -> None:
    if len(name) <= _LONGEST_REFERENCE and ", " not in name and "…" not in name:
        references.pop(name, None)
        references[name] = message

"""A compaction for people: before and after, what is replaced and what stays, and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contextbus_protocol.chat import ApprovalRequest, ApprovalResponse, ChatMessage, Reasoning, ToolCall, ToolResult
from contextbus_protocol.chat import Text as TextPart

LONGEST_BEGINNING: Final = 80
MOST_ROWS: Final = 40


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What both reports begin with; counts in tokens.  ``why`` tells how a target came about that nobody chose."""

    name: str
    messages: tuple[ChatMessage, ...]
    before: int
    target: int
    counter: str
    summariser: str
    why: str = ""


def show_plan(
    console: Console,
    facts: Facts,
    fates: Sequence[str],
    *,
    room: int | None,
    allowed: int | None,
) -> None:
    """Print what would become of each message, and what room is left for the summary."""
    _head(console, facts, None)
    console.print(Text("plan (nothing is summarised)", "bold"))
    table = _table("messages", "role", "what becomes of them", "begins")
    numbered = list(enumerate(fates))
    for fate, group in groupby(numbered, key=lambda pair: pair[1]):
        indices = [index for index, _ in group]
        first = facts.messages[indices[0]]
        roles = dict.fromkeys(facts.messages[index].role for index in indices)
        table.add_row(_span(indices), ", ".join(roles), fate, Text(beginning(first)))
    console.print(table)
    if room is not None and allowed is not None:
        console.print()
        console.print(Text(f"room for the summary: {room:,} tokens; its writer is allowed {allowed:,}"))


def show_result(
    console: Console,
    facts: Facts,
    *,
    after: int,
    start: int,
    end: int,
    replayed: int | None,
    summary: str,
    requests: int,
    usage: str | None,
    written: str | None,
) -> None:
    """Print what was replaced by what."""
    _head(console, facts, after)
    stays = len(facts.messages) - (end - start)
    console.print(Text(f"replaced: {_span(range(start, end))} ({end - start} messages); {stays} stay", "bold"))
    table = _table("message", "role", "begins")
    for index in range(start, end):
        if end - start > MOST_ROWS and MOST_ROWS // 2 <= index - start < end - start - MOST_ROWS // 2:
            if index - start == MOST_ROWS // 2:
                table.add_row("…", "", Text(f"{end - start - MOST_ROWS} more", "dim"))
            continue
        message = facts.messages[index]
        table.add_row(str(index), message.role, Text(beginning(message)))
    console.print(table)
    console.print()
    if replayed is not None:
        said = beginning(facts.messages[replayed])
        console.print(Text(f"said again behind the summary: message {replayed}: {said}"), soft_wrap=True)
        console.print()
    asked = "1 request" if requests == 1 else f"{requests} requests"
    console.print(Text(f"summary by {facts.summariser} ({asked}{'' if usage is None else f'; {usage}'})", "bold"))
    console.print(Text(printable(summary)), soft_wrap=True)
    if written is not None:
        console.print()
        console.print(Text(f"written to {written}"), soft_wrap=True)


def beginning(message: ChatMessage) -> str:
    """The first words of a message, or what it holds instead."""
    line = " ".join(printable(" ".join(_said(message))).split())
    return line if len(line) <= LONGEST_BEGINNING else line[: LONGEST_BEGINNING - 1] + "…"


def printable(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


def _said(message: ChatMessage) -> Iterable[str]:
    for part in message.content:
        match part:
            case TextPart() | Reasoning():
                yield part.text
            case ToolCall():
                yield f"{part.name}({part.arguments})"
            case ToolResult():
                yield from (item.text if isinstance(item, TextPart) else "[media]" for item in part.content)
            case ApprovalRequest():
                yield f"[asks for consent: {part.id}]"
            case ApprovalResponse():
                yield f"[{'consent' if part.approved else 'no consent'}: {part.id}]"
            case _:
                yield "[media]"


def _head(console: Console, facts: Facts, after: int | None) -> None:
    line = f"{facts.name}   {len(facts.messages):,} messages   {facts.before:,} tokens before"
    if after is not None:
        share = 100 * after // facts.before if facts.before else 100
        line += f"   {after:,} after ({share} %)"
    console.print(Text(line, "bold"), soft_wrap=True)
    why = f" ({facts.why})" if facts.why else ""
    console.print(Text(f"target {facts.target:,} tokens{why}; counted by {facts.counter}", "dim"), soft_wrap=True)
    console.print()


def _span(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    return str(first) if first == last else f"{first}-{last}"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names[:-1]:
        table.add_column(name, no_wrap=name != "what becomes of them")
    table.add_column(names[-1], overflow="fold", ratio=1)
    return table

"""Conversations to compile, plain and tool-heavy: the same messages as dicts and as ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, cast

import msgspec

from benchmarks.workload import write_message
from contextbus.client.given import read_given
from contextbus_protocol.chat import ChatMessage, Text

ConversationKind = Literal["plain", "tool-heavy"]
CONVERSATION_KINDS: Final[tuple[ConversationKind, ...]] = ("plain", "tool-heavy")

SYSTEM: Final = "You look after a build farm. Answer briefly, and name the build that you speak of."

Given = dict[str, object]
"""A message as Chat Completions writes it, which the yardstick reads as it is."""

_CYCLE: Final = 8
_ASKED: Final = 6
"""In a cycle of eight tool-heavy messages the assistant's first three are calls, each with its result behind it."""


def write_dict(kind: ConversationKind, index: int) -> Given:
    """The message at an index: of the user or a tool where it is even, of the assistant where it is odd."""
    place = index % _CYCLE
    if kind == "tool-heavy" and place % 2 and place < _ASKED:
        arguments = {"build": 4_000 + index, "path": f"/srv/ci/stage{index % 7}/{index}.log", "lines": 40}
        function = {"name": "read_log", "arguments": msgspec.json.encode(arguments).decode()}
        call = {"id": f"call_{index}", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "tool-heavy" and not place % 2 and place:
        return {"role": "tool", "tool_call_id": f"call_{index - 1}", "content": _text(index)}
    return {"role": "assistant" if index % 2 else "user", "content": _text(index)}


def write_dicts(kind: ConversationKind, start: int, end: int) -> list[Given]:
    """The messages of a range of indices."""
    return [write_dict(kind, index) for index in range(start, end)]


def read_dicts(given: Iterable[Given]) -> list[ChatMessage]:
    """The same messages as ours."""
    return list(read_given(given))


def mark(messages: list[ChatMessage], count: int) -> list[ChatMessage]:
    """The messages with so many cache breakpoints, the last at the end and the others evenly before it."""
    marked = list(messages)
    for number in range(1, count + 1):
        place = len(messages) * number // count - 1
        marked[place] = msgspec.structs.replace(marked[place], cache=True)
    return marked


def list_texts(given: Given) -> list[str]:
    """What is counted of a message: its text, and name and arguments of its calls."""
    calls = cast("list[dict[str, dict[str, str]]]", given.get("tool_calls", []))
    functions = (call["function"] for call in calls)
    return [str(given["content"]), *(text for f in functions for text in (f["name"], f["arguments"]))]


def _text(index: int) -> str:
    part = write_message(index).content[0]
    assert isinstance(part, Text)
    return part.text

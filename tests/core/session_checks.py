"""What holds of every session that was read, whichever program wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.core.checkers import CHECKERS

from contextbus.core.importers import Conversation
from contextbus.core.payload import render
from contextbus_protocol.chat import ToolCall, ToolResult

Line = dict[str, Any]
SESSIONS = Path(__file__).parent / "sessions"


def text_of(lines: Sequence[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def shape(conversation: Conversation) -> list[tuple[str, list[str]]]:
    """Role of each message, and per part its text, call or result in short."""
    return [(message.role, [_short(part) for part in message.content]) for message in conversation.messages]


def _short(part: object) -> str:
    match part:
        case ToolCall(id=name):
            return f"call {name}"
        case ToolResult(id=name):
            return f"result {name}"
        case _:
            return str(getattr(part, "text", type(part).__name__))


def check_pairs(conversation: Conversation) -> None:
    """Each result follows its call, once; a target can send it without a repair of either."""
    called: set[str] = set()
    answered: set[str] = set()
    for message in conversation.messages:
        for part in message.content:
            if isinstance(part, ToolCall):
                assert part.id not in called
                called.add(part.id)
            if isinstance(part, ToolResult):
                assert part.id in called - answered
                answered.add(part.id)
    if any(message.role != "system" for message in conversation.messages):
        for target in ("anthropic", "openai"):
            payload = render(conversation.messages, target)
            assert CHECKERS[target](json.loads(payload.json())) == []
            codes = {repair.code for repair in payload.repairs}
            assert not codes & {"orphan-result", "moved-result", "late-result", "repeated-id"}
            assert ("missing-result" in codes) == (called != answered)


def check_every_prefix(read: Callable[[object], Conversation], name: str) -> None:
    """A file cut anywhere, in a line or between two, can be read, and nothing is paired wrongly."""
    data = (SESSIONS / name).read_bytes()
    lines = data.splitlines()
    for end in range(len(lines) + 1):
        whole = read(b"\n".join(lines[:end]))
        check_pairs(whole)
        assert read([json.loads(line) for line in lines[:end]]) == whole
        if end < len(lines):
            for cut in (1, len(lines[end]) // 2, len(lines[end]) - 1):
                assert read(b"\n".join([*lines[:end], lines[end][:cut]])) == whole

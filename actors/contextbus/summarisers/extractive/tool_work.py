"""Tool calls and their results, compressed: one line a call, error lines of results, identifiers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from contextbus.summarisers.extractive.cues import is_failure
from contextbus.summarisers.extractive.segments import clean, clip
from contextbus_protocol.chat import (
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Text,
    ToolCall,
    ToolResult,
)

_LONGEST_CALL: Final = 160
_LONGEST_ARGUMENT: Final = 60
_LONGEST_ERROR: Final = 200
_LONGEST_LINE: Final = 400
_SEARCHED: Final = 20_000
_ERRORS_OF_A_RESULT: Final = 2
_ERROR_FIELD: Final = re.compile(r"\"(?:error|errors|message|detail)\"\s*:\s*\"([^\"]{1,400})\"")
_READING: Final = re.compile(
    r"(?:^|_|-|\b)(?:get|list|search|find|read|fetch|look|think|calculate|check|query|view|show|count|describe)(?=_|-|\b|[A-Z])",
    re.IGNORECASE,
)


class Work(msgspec.Struct, frozen=True, gc=False):
    """One line about tools: a call, a failure, or an answer to an approval request."""

    text: str
    message: int
    failed: bool = False
    reading: bool = False
    answer: bool = False


class ToolWork(msgspec.Struct, frozen=True):
    """What the tools of a range did, and the texts of calls and results to look for identifiers in."""

    lines: tuple[Work, ...]
    arguments: tuple[tuple[int, str], ...]
    results: tuple[tuple[int, str], ...]


def read_tool_work(messages: Sequence[ChatMessage]) -> ToolWork:
    """Compress all tool calls and results of a range; results are paired with calls of their id in turn."""
    lines: list[Work] = []
    arguments: list[tuple[int, str]] = []
    results: list[tuple[int, str]] = []
    called: dict[str, list[str]] = {}
    requested: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        for part in message.content:
            if isinstance(part, ToolCall):
                name = clip(clean(part.name), _LONGEST_ARGUMENT) or "tool"
                shown = render_arguments(part.arguments)
                line = clip(f"{name}({shown})", _LONGEST_CALL)
                called.setdefault(part.id, []).append(name)
                arguments.append((index, shown))
                lines.append(Work(line, index, reading=_READING.search(name) is not None))
            elif isinstance(part, ToolResult):
                waiting = called.get(part.id)
                name = (waiting.pop(0) if waiting else None) or clip(clean(part.name or "tool"), _LONGEST_ARGUMENT)
                text = clean("\n".join(_texts(part)))[:_SEARCHED]
                results.append((index, text))
                lines += [Work(f"{name}: {error}", index, failed=True) for error in find_errors(text, sure=part.error)]
            elif isinstance(part, ApprovalRequest):
                waiting = called.get(part.call_id)
                requested[part.id] = waiting[-1] if waiting else "a tool"
            elif isinstance(part, ApprovalResponse):
                given = "approved" if part.approved else "denied"
                reason = f": {clean(part.reason)}" if part.reason else ""
                name = requested.get(part.id, "a tool")
                lines.append(Work(clip(f"the call of {name} was {given}{reason}"), index, answer=True))
    return ToolWork(tuple(lines), tuple(arguments), tuple(results))


def render_arguments(text: str) -> str:
    """Arguments of a call as ``name=value`` pairs, each cut short; what is no JSON object is cut short as it is."""
    try:
        given: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return clip(clean(text), _LONGEST_CALL)
    if not isinstance(given, dict):
        return clip(clean(text), _LONGEST_CALL)
    pairs: list[str] = []
    for name, value in given.items():  # pyright: ignore[reportUnknownVariableType]  (JSON)
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        pairs.append(f"{clip(clean(str(name)), _LONGEST_ARGUMENT)}={clip(clean(shown), _LONGEST_ARGUMENT)}")  # pyright: ignore[reportUnknownArgumentType]  (JSON)
    return ", ".join(pairs)


def find_errors(text: str, *, sure: bool) -> tuple[str, ...]:
    """The error lines of a result; of a result known to have failed (``sure``) the first line if none shows."""
    found: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped:
            continue
        if stripped[0] in "{[":
            if sure or is_failure(stripped[:_LONGEST_LINE]):
                found += [m for m in _ERROR_FIELD.findall(stripped[:_SEARCHED]) if sure or is_failure(m)]
        elif len(stripped) <= _LONGEST_LINE and is_failure(stripped):
            found.append(stripped)
        if len(found) >= _ERRORS_OF_A_RESULT:
            break
    if not found and sure and text.strip():
        found.append(text.strip().split("\n")[0])
    return tuple(dict.fromkeys(clip(line, _LONGEST_ERROR) for line in found[:_ERRORS_OF_A_RESULT]))


def _texts(part: ToolResult) -> list[str]:
    return [item.text for item in part.content if isinstance(item, Text | Document) and item.text is not None]

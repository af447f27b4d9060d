"""Tool calls and their results, compressed: one line a call, error lines of results, identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from contextbus.summarisers.extractive.cues import is_failure
from contextbus.summarisers.extractive.function_words import FUNCTION_WORDS
from contextbus.summarisers.extractive.segments import clean, clip
from contextbus.summarisers.extractive.values import find_values
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
_LONGEST_OUTCOME: Final = 160
_LONGEST_VALUE: Final = 40
_MOST_PAIRS: Final = 40
_MOST_BELOW: Final = 60
_DEEPEST: Final = 5
_SEARCHED_FOR_VALUES: Final = 1_500
_TELLING_KINDS: Final = frozenset(("url", "email", "ref", "code", "date", "time", "money", "percent", "name"))
_ERROR_HEAD: Final = re.compile(r"\s*(?:error|failed|failure|fatal|exception|traceback|fehler|erreur)\b", re.IGNORECASE)
_ERRORS_OF_A_RESULT: Final = 2
_ERROR_FIELD: Final = re.compile(r"\"(?:error|errors|message|detail)\"\s*:\s*\"([^\"]{1,400})\"")
_READING: Final = re.compile(
    r"(?:^|_|-|\b)(?:get|list|search|find|read|fetch|look|think|calculate|check|query|view|show|count|describe|status|lookup|load|inspect|details|info)(?=_|-|\b|[A-Z])",
    re.IGNORECASE,
)


class Work(msgspec.Struct, frozen=True, gc=False):
    """One line about tools: a call, a failure, or an answer to an approval request.

    ``told`` says that a call's line holds what came of it.
    """

    text: str
    message: int
    failed: bool = False
    reading: bool = False
    answer: bool = False
    told: bool = False


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
    called: dict[str, list[tuple[str, int]]] = {}
    requested: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        for part in message.content:
            if isinstance(part, ToolCall):
                name = clip(clean(part.name), _LONGEST_ARGUMENT) or "tool"
                shown = render_arguments(part.arguments)
                line = clip(f"{name}({shown})", _LONGEST_CALL)
                called.setdefault(part.id, []).append((name, len(lines)))
                arguments.append((index, shown))
                lines.append(Work(line, index, reading=_READING.search(name) is not None))
            elif isinstance(part, ToolResult):
                waiting = called.get(part.id)
                text = clean("\n".join(_texts(part)))[:_SEARCHED]
                results.append((index, text))
                if waiting:
                    name, at = waiting.pop(0)
                    called_with = lines[at].text
                    outcome = "failed" if has_failed(text, sure=part.error) else find_outcome(text, told=called_with)
                    if outcome:
                        told = f"{lines[at].text} -> {outcome}"
                        lines[at] = msgspec.structs.replace(lines[at], text=told, told=True)
                else:
                    name = clip(clean(part.name or "tool"), _LONGEST_ARGUMENT)
                lines += [Work(f"{name}: {error}", index, failed=True) for error in find_errors(text, sure=part.error)]
            elif isinstance(part, ApprovalRequest):
                waiting = called.get(part.call_id)
                requested[part.id] = waiting[-1][0] if waiting else "a tool"
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


def has_failed(text: str, *, sure: bool) -> bool:
    """Whether a result says that its call failed."""
    if sure or _ERROR_HEAD.match(text) is not None:
        return True
    value = _read_object(text)
    if not isinstance(value, dict):
        return False
    given = cast("dict[str, object]", value)
    status = given.get("status")
    return (
        bool(given.get("error") or given.get("errors"))
        or given.get("success", True) is False
        or given.get("ok", True) is False
        or (isinstance(status, str) and is_failure(status))
    )


def find_outcome(text: str, *, told: str = "") -> str:
    """What a result says, in short: pairs of a JSON result, a short line as it is, or the values of a long text.

    Pairs that ``told``, the line of the call, holds are left out.
    """
    given = _read_object(text)
    found: list[str] = []
    if isinstance(given, dict | list):
        found = [shown for shown, _ in zip(_find_pairs(cast("object", given)), range(_MOST_PAIRS), strict=False)]
    elif "\n" not in text.strip() and len(text) <= _LONGEST_OUTCOME:
        return clip(text, _LONGEST_OUTCOME)
    else:
        head = text[:_SEARCHED_FOR_VALUES]
        values, _ = find_values(head, FUNCTION_WORDS)
        found = [" ".join(head[v.start : v.end].split()) for v in values if v.kind in _TELLING_KINDS]
    kept: dict[str, None] = {}
    room = _LONGEST_OUTCOME
    for each in found:
        if each not in kept and each not in told and len(each) + 2 <= room:
            kept[each] = None
            room -= len(each) + 2
    return ", ".join(kept)


def _read_object(text: str) -> object:
    head = text.lstrip()[:1]
    if head not in {"{", "["}:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _find_pairs(given: object) -> Iterator[str]:
    """The scalars of a JSON value with their names, the outer ones first."""
    level: list[tuple[str, object]] = [("", given)]
    for _ in range(_DEEPEST):
        below: list[tuple[str, object]] = []
        for name, value in level:
            if isinstance(value, dict):
                pairs = cast("dict[str, object]", value)
                below += [(key, pairs[key]) for key in pairs]
            elif isinstance(value, list):
                below += [(name, item) for item in cast("list[object]", value)]
            elif value is not None and value != "":
                shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                if len(shown) <= _LONGEST_VALUE:
                    yield clip(f"{clean(name)}={clean(shown)}" if name else clean(shown), _LONGEST_ARGUMENT)
        level = below[:_MOST_BELOW]


def _texts(part: ToolResult) -> list[str]:
    return [item.text for item in part.content if isinstance(item, Text | Document) and item.text is not None]

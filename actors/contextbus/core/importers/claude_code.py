"""Session files of Claude Code to chat messages (P.E.9).

A line is an object with ``type``; those of type ``user`` and ``assistant`` hold a message in Anthropic's form, one
piece of it a line.  What the host keeps for itself (``toolUseResult``, ``usage``, snapshots, progress) is no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from contextbus.core.cache_control import read_cache
from contextbus.core.importers.anthropic import read_content
from contextbus.core.importers.claude_code_tree import Answer, Chosen, Entry, answer_of, choose_entries
from contextbus.core.importers.reading import Conversation, an_object, conversation_id, rest_of
from contextbus.core.importers.session_lines import session_lines
from contextbus.core.json_text import as_object
from contextbus_protocol.chat import AnyPart, Cache, ChatMessage, ProviderData, Reasoning, Role, ToolCall, ToolResult
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError

_OWN_TYPES: Final = ("user", "assistant", "system", "progress", "queue-operation", "attachment")
# Fields of a response that a request has not.
_RESPONSE: Final = (
    "id",
    "type",
    "role",
    "model",
    "content",
    "stop_reason",
    "stop_sequence",
    "stop_details",
    "usage",
    "container",
    "context_management",
)


def from_claude_code(data: object) -> Conversation:
    """Read a session: its text, its lines, or its lines decoded.

    The conversation is what the model has before it at the end of the file: the main thread's last branch, from the
    newest compaction on.  The lines of one answer are one message.  Messages that the host wrote for the model
    (``isMeta``, a compaction's summary) are among them, errors of the API that the host shows are not.  Where all lines
    are a sub-agent's, they are the conversation.  The id is the session's; the system prompt and tools are not in the
    file.

    Raises:
        InvalidTypeError: something cannot be used; the message names the line's number and the field.
    """
    lines = session_lines(data)
    chosen = choose_entries(lines)
    try:
        messages = _read_messages(chosen)
    except RecursionError:
        raise InvalidTypeError("session: content nested too deep") from None
    named = [entry.line for entry in chosen.entries[-1:]] or [line for _, line in lines[:1]]
    return Conversation(messages=messages, id=conversation_id({"id": named[0].get("sessionId")} if named else {}))


def is_claude_code(values: Sequence[object]) -> bool:
    """Whether decoded lines are those of a Claude Code session."""
    return any(map(_is_own, values))


def _is_own(value: object) -> bool:
    line = as_object(value)
    if line is None or "payload" in line or "role" in line:
        return False
    match line.get("type"):
        case "user" | "assistant":
            return as_object(line.get("message")) is not None and ("uuid" in line or "sessionId" in line)
        case "summary":
            return "leafUuid" in line
        case "file-history-snapshot":
            return "snapshot" in line
        case kind:
            return kind in _OWN_TYPES and "sessionId" in line


class _Draft:
    """A message while its pieces are gathered: numbers of lines with the parts that they hold."""

    def __init__(self, role: Role, cache: Cache = False, more: ProviderData | None = None) -> None:
        self.role: Role = role
        self.cache: Cache = cache
        self.more = more
        self.pieces: list[tuple[int, tuple[AnyPart, ...]]] = []

    @property
    def parts(self) -> tuple[AnyPart, ...]:
        ordered = sorted(self.pieces, key=lambda piece: piece[0])
        return tuple(part for _, parts in ordered for part in parts)

    @property
    def takes_results(self) -> bool:
        return self.role == "user" and self.more is None and _only_results(self.pieces[0][1])

    def message(self) -> ChatMessage:
        return ChatMessage(role=self.role, content=self.parts, cache=self.cache, provider_data=self.more)


def _read_messages(chosen: Chosen) -> tuple[ChatMessage, ...]:
    drafts: list[_Draft] = []
    answers: dict[Answer, _Draft] = {}
    for entry in chosen.entries:
        if not entry.is_message or entry.line.get("isApiErrorMessage") is True:
            continue
        place = f"line {entry.number}.message"
        value = an_object(entry.line.get("message"), place)
        parts = read_content(value.get("content"), f"{place}.content")
        if not parts:
            continue
        answer = answer_of(entry)
        more = rest_of(value, _RESPONSE, "anthropic")
        draft = answers.get(answer) if answer is not None else None
        if draft is None and drafts and drafts[-1].takes_results and more is None and _only_results(parts):
            draft = drafts[-1]
        if draft is None:
            draft = _Draft("assistant" if entry.kind == "assistant" else "user", read_cache(value), more)
            drafts.append(draft)
        if answer is not None:
            answers[answer] = draft
        elif entry.kind == "user" and not _only_results(parts):
            answers.clear()  # an id that comes again after the user spoke is no piece of the former answer
        draft.pieces.append((entry.number, _issued(parts, value.get("model"))))
    return tuple(draft.message() for draft in _with_results(drafts, chosen.beside))


def _issued(parts: tuple[AnyPart, ...], model: object) -> tuple[AnyPart, ...]:
    """The parts with the model that issued the thinking among them (P.E.5)."""
    if not isinstance(model, str):
        return parts
    return tuple(
        msgspec.structs.replace(
            part, provider_data=ProviderData("anthropic", part.provider_data.data, clean_text(model))
        )
        if isinstance(part, Reasoning) and part.provider_data is not None
        else part
        for part in parts
    )


def _only_results(parts: Sequence[AnyPart]) -> bool:
    return all(isinstance(part, ToolResult) for part in parts)


def _with_results(drafts: Sequence[_Draft], beside: dict[str, Entry]) -> Iterable[_Draft]:
    """The messages with the results that stand beside the chain, each behind the message that holds its call."""
    results = dict(_read_results(beside))
    ready: list[_Draft] = []
    for draft in drafts:
        if ready and ready[-1].takes_results and draft.takes_results:
            ready[-1].pieces += draft.pieces
            continue
        ready.append(draft)
        if draft.role != "assistant" or not results:
            continue
        calls = (part.id for part in draft.parts if isinstance(part, ToolCall))
        found = [results.pop(name) for name in calls if name in results]
        if found:
            made = _Draft("user")
            made.pieces += found
            ready.append(made)
    return ready


def _read_results(beside: dict[str, Entry]) -> Iterable[tuple[str, tuple[int, tuple[AnyPart, ...]]]]:
    read: dict[int, dict[str, AnyPart]] = {}
    for name, entry in beside.items():
        if entry.number not in read:
            place = f"line {entry.number}.message"
            value = an_object(entry.line.get("message"), place)
            parts = read_content(value.get("content"), f"{place}.content")
            read[entry.number] = {part.id: part for part in reversed(parts) if isinstance(part, ToolResult)}
        part = read[entry.number].get(name)
        if part is not None:
            yield name, (entry.number, (part,))

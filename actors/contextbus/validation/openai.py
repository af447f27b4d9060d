"""The rules of OpenAI Chat Completions (openai.C1 to C9, L4, L5, L9)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from contextbus.core.json_text import as_list, as_object, sound_object
from contextbus.validation.findings import SHAPE, Finding, Object, as_text, error, read_objects, warning

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_LONGEST_ID: Final = 40
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_INSTEAD_OF_CONTENT: Final = ("tool_calls", "refusal", "audio")


class _Seen(msgspec.Struct):
    """What the messages so far hold: every id of a call, and the calls that wait for an answer with their places."""

    ids: set[str]
    waiting: dict[str, list[str]]
    started: bool = False


def check(body: Object, model: str | None) -> Iterator[Finding]:
    """What breaks the rules; none of them depends on the model."""
    del model
    yield from _check_tools(body)
    messages = as_list(body.get("messages"))
    if not messages:
        yield error("openai.C1", "messages", "There is no list of messages with something in it; send at least one.")
        return
    seen = _Seen(ids=set(), waiting={})
    for place, message in read_objects(messages, "messages", "message"):
        if isinstance(message, Finding):
            yield message
        else:
            yield from _check_message(message, place, seen)
    yield from _unanswered(seen)


def _check_message(message: Object, place: str, seen: _Seen) -> Iterator[Finding]:
    role = message.get("role")
    if role not in ROLES:
        yield error("openai.C2", place, f"The role is none of {', '.join(ROLES)}; use one of them.")
        return
    if role == "tool":
        yield from _check_answer(message, place, seen)
    else:
        yield from _unanswered(seen)
    if role in ("system", "developer"):
        if seen.started:
            yield warning("openai.L4", place, "Instructions stand behind other messages; put them at the start.")
    else:
        seen.started = True
    yield from _check_content(message, place, str(role))
    if "tool_calls" in message:
        yield from _check_calls(message, place, role == "assistant", seen)


def _check_answer(message: Object, place: str, seen: _Seen) -> Iterator[Finding]:
    call_id = as_text(message.get("tool_call_id"))
    places = seen.waiting.get(call_id) if call_id is not None else None
    if call_id is None or places is None:
        yield error(
            "openai.C4",
            place,
            "This tool message answers no waiting call; put it right behind its call, once, or drop it.",
        )
        return
    places.pop()
    if not places:
        del seen.waiting[call_id]


def _unanswered(seen: _Seen) -> Iterator[Finding]:
    """The calls that no tool message answered before another role spoke, or before the end (openai.C3)."""
    for places in seen.waiting.values():
        for place in places:
            yield error(
                "openai.C3",
                place,
                "This call has no tool message before the next role; answer it right behind the call.",
            )
    seen.waiting = {}


def _check_content(message: Object, place: str, role: str) -> Iterator[Finding]:
    content, where = message.get("content"), f"{place}.content"
    parts = as_list(content)
    if content is None:
        if role != "assistant" or not any(message.get(key) for key in _INSTEAD_OF_CONTENT):
            yield error(
                "openai.C5",
                place,
                "There is no content; only an assistant message with tool calls, a refusal or audio may leave it out.",
            )
    elif parts is not None:
        if not parts:
            yield error("openai.C5", place, "The list of content parts is empty; write one part, or a text.")
        yield from _check_parts(parts, where)
    elif not isinstance(content, str):
        yield error(SHAPE, where, "The content is neither a text nor a list of parts; write one of them.")
    if role == "user" and _is_empty(content):
        yield warning("openai.L5", place, "This user message says nothing; drop it.")


def _is_empty(content: object) -> bool:
    parts = as_list(content)
    if parts is None:
        return content == ""
    found = [as_object(part) or {} for part in parts]
    return all(part.get("type") == "text" and part.get("text") == "" for part in found)


def _check_parts(parts: object, place: str) -> Iterator[Finding]:
    for where, part in read_objects(parts, place, "content part"):
        if isinstance(part, Finding):
            yield part
        elif not isinstance(part.get("type"), str):
            yield error(SHAPE, where, "This content part has no type; name it.")
        elif part["type"] == "text" and not isinstance(part.get("text"), str):
            yield error(SHAPE, where, "This text part has no text; write one.")


def _check_calls(message: Object, place: str, by_assistant: bool, seen: _Seen) -> Iterator[Finding]:
    where = f"{place}.tool_calls"
    if not message["tool_calls"]:
        yield error("openai.C6", where, "There is no call in tool_calls; leave the member out.")
        return
    if not by_assistant:
        yield error(SHAPE, where, "Only an assistant message makes calls; leave tool_calls out.")
        return
    for call_place, call in read_objects(message["tool_calls"], where, "call"):
        if isinstance(call, Finding):
            yield call
            continue
        yield from _check_id(call.get("id"), call_place, seen)
        if call.get("type") == "custom":
            yield from _check_name((as_object(call.get("custom")) or {}).get("name"), f"{call_place}.custom")
            continue
        function = as_object(call.get("function")) or {}
        yield from _check_name(function.get("name"), f"{call_place}.function")
        arguments = as_text(function.get("arguments"))
        if arguments is None or sound_object(arguments) is None:
            yield error(
                "openai.C9",
                f"{call_place}.function.arguments",
                "The arguments are no text that holds a JSON object; write one, {} if there are none.",
            )


def _check_id(value: object, place: str, seen: _Seen) -> Iterator[Finding]:
    call_id = as_text(value)
    if call_id is None or not 1 <= len(call_id) <= _LONGEST_ID:
        yield error(
            "openai.C7", place, f"The id is no text of 1 to {_LONGEST_ID} characters; give call and answer another one."
        )
    if call_id is None:
        return
    if call_id in seen.ids:
        yield warning("openai.L9", place, "This id was used by an earlier call; give call and answer another one.")
    seen.ids.add(call_id)
    seen.waiting.setdefault(call_id, []).append(place)


def _check_name(value: object, place: str) -> Iterator[Finding]:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        yield error("openai.C8", place, "The name is not 1 to 64 letters, digits, _ and -; rename the tool.")


def _check_tools(body: Object) -> Iterator[Finding]:
    for place, tool in read_objects(body.get("tools"), "tools", "tool"):
        if isinstance(tool, Finding):
            yield tool
            continue
        kind = "custom" if tool.get("type") == "custom" else "function"
        named = as_object(tool.get(kind))
        if named is None:
            yield error(SHAPE, place, f"This tool has no member {kind} with its definition; write it.")
        else:
            yield from _check_name(named.get("name"), f"{place}.{kind}")

"""Files of conversations: which provider wrote them, and how many there are in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from contextbus.core.importers.ai_sdk import from_ai_sdk
from contextbus.core.importers.anthropic import from_anthropic
from contextbus.core.importers.claude_code import from_claude_code, is_claude_code
from contextbus.core.importers.codex import from_codex, is_codex
from contextbus.core.importers.gemini import from_gemini
from contextbus.core.importers.openai import from_openai
from contextbus.core.importers.reading import Conversation, Form, Object, Provider, load
from contextbus.core.importers.responses import from_responses
from contextbus_protocol.errors import InvalidTypeError

_ANTHROPIC_PARTS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document")
_AI_SDK_PARTS: Final = (
    "tool-call",
    "tool-result",
    "tool-approval-request",
    "tool-approval-response",
    "reasoning-file",
)
_OPENAI_ROLES: Final = ("developer", "tool", "function")
_OPENAI_KEYS: Final = ("tool_calls", "tool_call_id", "function_call", "refusal")
_NULL_KEYS: Final = ("tool_calls", "function_call", "refusal", "audio")
_OPENAI_PARTS: Final = ("image_url", "input_audio", "refusal")
READERS: Final[dict[Form, Callable[[object], Conversation]]] = {
    "openai": from_openai,
    "openai-responses": from_responses,
    "anthropic": from_anthropic,
    "gemini": from_gemini,
    "ai-sdk": from_ai_sdk,
    "claude-code": from_claude_code,
    "codex": from_codex,
}
"""What reads each form."""
SESSIONS: Final[tuple[Form, ...]] = ("claude-code", "codex")
"""Forms in which all lines of a file are one conversation."""
_ANYWHERE: Final[tuple[Provider, ...]] = ("gemini", "openai-responses")  # one message of theirs tells of the list
_MOST_LINES: Final = 64  # so many lines of a file tell whether it is a session
_GEMINI_KEYS: Final = ("contents", "systemInstruction", "system_instruction", "candidates")
_RESPONSES_KEYS: Final = ("input", "previous_response_id")
_RESPONSES_ITEMS: Final = (
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "item_reference",
    "compaction",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
)
_RESPONSES_PARTS: Final = ("input_text", "input_image", "input_file", "output_text")
_LISTS: Final = ("messages", "contents", "candidates", "input", "output")


def detect(data: object) -> Form:
    """Whose form a file holds: an object with messages, a bare list, a conversation a line, or a session of an agent.

    Gemini is told by its contents and their parts, OpenAI's Responses by its items and their types.

    What several write alike counts as OpenAI's.

    Raises:
        InvalidTypeError: it holds no messages.
    """
    return _session_form(data) or _detect(_split(data)[0])


def read_conversations(data: object, form: Form | None = None) -> tuple[Conversation, ...]:
    """Read every conversation of a file; each is told apart by itself unless the form is given.

    Raises:
        InvalidTypeError: something cannot be read; the message names the line, or the message's index and field.
    """
    session = form if form in SESSIONS else _session_form(data) if form is None else None
    if session is not None:
        return (READERS[session](data),)
    return tuple(READERS[form or _detect(value)](value) for value in _split(data))


def _session_form(data: object) -> Form | None:
    """Which agent wrote the lines, if an agent did; the last one may be cut off."""
    values: list[object] = []
    if isinstance(data, bytes | bytearray):
        data = bytes(data).decode("utf-8-sig", "replace")
    lines = data.split("\n", _MOST_LINES)[:_MOST_LINES] if isinstance(data, str) else data
    if not isinstance(lines, list | tuple):
        return None
    for line in cast("Sequence[object]", lines)[:_MOST_LINES]:
        try:
            values.append(json.loads(line) if isinstance(line, str) else line)
        except (ValueError, RecursionError):
            continue
    return "claude-code" if is_claude_code(values) else "codex" if is_codex(values) else None


def _detect(value: object) -> Provider:
    top = cast("Object", value) if isinstance(value, dict) else {"messages": value}
    if _is_gemini(top):
        return "gemini"
    if _is_responses(top):
        return "openai-responses"
    messages = top.get("messages", [top] if "role" in top or "choices" in top else None)
    listed = cast("list[object]", messages) if isinstance(messages, list | tuple) else None
    told = told_by(listed or ())
    if told != "ai-sdk" and (top.get("system") is not None or _has_schema(top.get("tools"))):
        return "anthropic"
    if listed is None:
        raise InvalidTypeError("no conversation: expected a list of messages, or an object with a list 'messages'")
    return told or "openai"


def _is_gemini(top: Object) -> bool:
    """Whether a request, a response, a content or a list of contents has Gemini's form."""
    if "messages" not in top and any(top.get(key) is not None for key in _GEMINI_KEYS):
        return True
    return any(_is_content(item) for item in _objects(top.get("messages", [top])))


def _is_content(item: Object) -> bool:
    """Whether only Gemini writes a message like this: its parts have no type, and the assistant is the model."""
    if not isinstance(item.get("parts"), list | tuple) or "content" in item:
        return False
    return item.get("role") == "model" or not any("type" in part for part in _objects(item["parts"]))


def _is_responses(top: Object) -> bool:
    """Whether a request, a response, an item or a list of items has the form of OpenAI's Responses."""
    if "messages" not in top and (top.get("object") == "response" or any(key in top for key in _RESPONSES_KEYS)):
        return True
    items = top.get("messages", top.get("output"))
    return any(_is_item(item) for item in (_objects(items) if items is not None else [top]))


def _is_item(item: Object) -> bool:
    """Whether only Responses has an item like this."""
    kind = item.get("type")
    if kind in _RESPONSES_ITEMS or (kind == "reasoning" and isinstance(item.get("summary"), list)):
        return True
    content = item.get("content")  # a list of blocks in a message of Anthropic's, which has the type as well
    if kind == "message" and "role" in item and isinstance(content, str):
        return True
    return any(part.get("type") in _RESPONSES_PARTS for part in _objects(content))


def _objects(values: object) -> list[Object]:
    listed = cast("list[object]", values) if isinstance(values, list | tuple) else []
    return [cast("Object", item) for item in listed if isinstance(item, dict)]


def tell_provider(messages: Sequence[object]) -> Provider | None:
    """The provider whose form a list of messages has; None for what several write alike."""
    objects = _objects(messages)
    if any(map(_is_content, objects)):
        return "gemini"
    return "openai-responses" if any(map(_is_item, objects)) else told_by(messages)


def told_by(messages: Sequence[object]) -> Provider | None:
    """The provider that the first message tells which is written in one provider's way alone.

    Where none is, OpenAI if a message looks like it; None for what several write alike.
    """
    for item in messages:
        provider = _told(cast("Object", item)) if isinstance(item, dict) else None
        if provider is not None:
            return provider
    return "openai" if any(map(_may_be_openai, messages)) else None


def _told(message: Object) -> Provider | None:
    """The provider in whose way alone a message is written, Gemini and Responses aside; None if there is none."""
    content = message.get("content")
    listed = cast("list[object]", content) if isinstance(content, list | tuple) else ()
    parts = [cast("Object", part) for part in listed if isinstance(part, dict)]
    is_openai = any(message.get(key) is not None for key in _OPENAI_KEYS)
    if not is_openai and ("providerOptions" in message or any(_is_ai_sdk(part) for part in parts)):
        return "ai-sdk"
    if is_openai or message.get("role") in _OPENAI_ROLES:
        return "openai"
    if any(part.get("type") in _ANTHROPIC_PARTS for part in parts):
        return "anthropic"
    return None


def sign_of(message: Object) -> Provider | None:
    """What one message of a list tells of the list's form; None if nothing."""
    if _is_content(message):
        return "gemini"
    return "openai-responses" if _is_item(message) else _told(message)


def form_of(signs: Iterable[Provider | None]) -> Provider:
    """The form of a list of messages with roles, from what each of them tells: what ``detect`` says of the list."""
    told: list[Provider] = [sign for sign in signs if sign is not None]
    for form in _ANYWHERE:
        if form in told:
            return form
    return told[0] if told else "openai"


def _may_be_openai(message: object) -> bool:
    """Whether a message that tells nothing for certain looks like OpenAI's."""
    if not isinstance(message, dict):
        return False
    fields = cast("Object", message)
    if any(key in fields for key in _NULL_KEYS):  # an SDK's object has all of them, as null
        return True
    content = fields.get("content", "")
    if content is None and fields.get("role") == "assistant":
        return True
    listed = cast("list[object]", content) if isinstance(content, list | tuple) else ()
    parts = [cast("Object", part) for part in listed if isinstance(part, dict)]
    return any(part.get("type") in _OPENAI_PARTS or (part.get("type") == "file" and "file" in part) for part in parts)


def _is_ai_sdk(part: Object) -> bool:
    """Whether only the AI SDK writes a part like this."""
    match part.get("type"):
        case "file":
            return "mediaType" in part and "file" not in part
        case "image":
            return "image" in part and "source" not in part
        case "reasoning":
            return isinstance(part.get("text"), str) and "thinking" not in part and "summary" not in part
        case "custom":
            return isinstance(part.get("kind"), str)
        case kind:
            return kind in _AI_SDK_PARTS or (kind not in _ANTHROPIC_PARTS and "providerOptions" in part)


def _has_schema(tools: object) -> bool:
    listed = cast("list[object]", tools) if isinstance(tools, list | tuple) else []
    return any(isinstance(tool, dict) and "input_schema" in tool for tool in listed)


def _split(data: object) -> list[object]:
    """The conversations of a file, at least one."""
    if isinstance(data, bytes | bytearray):
        data = bytes(data).decode("utf-8-sig", "replace")
    values: list[object]
    try:
        value = load(data)
        listed = cast("list[object]", value) if isinstance(value, list | tuple) else None
        if not listed:
            return [value]
        values = listed
    except InvalidTypeError:
        if not isinstance(data, str) or "\n" not in data.strip():
            raise
        values = _lines(data)
    if all(isinstance(item, dict) and "role" in item and "messages" not in item for item in values):
        return [values]
    if all(isinstance(item, list) or _holds_messages(item) for item in values):
        return values
    return [values]


def _holds_messages(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    top = cast("Object", value)
    return "messages" in top or any(isinstance(top.get(key), list) for key in _LISTS)


def _lines(text: str) -> list[object]:
    values: list[object] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(load(line))
        except InvalidTypeError as exc:
            raise InvalidTypeError(f"line {number}: {exc.message}") from None
    return values

"""Chat messages as the AI SDK has them (v7 model messages), and what ``compact()`` counts by default (C.B, C.C)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from contextbus.core import json_text
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Part,
    Reasoning,
    ResultPart,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.errors import ErrorData, InvalidTypeError

PROVIDER: Final = "ai-sdk"
FORM: Final = "_form"
"""Member of a part's provider data: how the part was written, where that is not the form that we write by default."""
CHARACTERS_PER_TOKEN: Final = 4

Object = dict[str, object]


def write_ai_sdk(message: ChatMessage) -> Object:
    """A message in the AI SDK's form, the inverse of ``from_ai_sdk`` (P.E.9).

    One plain text is written as a string (C.C.2). Provider data of other providers, signatures, names of participants
    and cache marks are not written. Total: what the AI SDK has no place for is written in the nearest form.
    """
    role = message.role
    if (
        role == "user"
        and message.content
        and all(isinstance(p, ToolResult | ApprovalResponse) for p in message.content)
    ):
        role = "tool"  # Anthropic's results are the user's
    return {"role": role, "content": _content(message), **_rest(message, ("role", "content"))}


def is_opaque(part: AnyPart) -> bool:
    """Whether a part cannot be counted or summarised as text (C.B.4, C.B.5)."""
    if isinstance(part, ToolResult):
        return any(not isinstance(item, Text) for item in part.content)
    return isinstance(part, Image | Document | Unknown)


def has_opaque(message: ChatMessage) -> bool:
    """Whether any part of a message is opaque."""
    return any(is_opaque(part) for part in message.content)


def serialise(messages: Iterable[ChatMessage]) -> str:
    """Compact JSON of the messages as an array (C.C.2)."""
    return f"[{','.join(_serialised(message) for message in messages)}]"


def measure(message: ChatMessage) -> int:
    """Code points of one message's JSON: what callers keep, since a message never changes."""
    return len(_serialised(message))


def tokens_of(lengths: Sequence[int]) -> int:
    """Tokens of an array whose messages have these lengths in code points (C.C.1)."""
    if not lengths:
        return 0
    characters = sum(lengths) + len(lengths) + 1  # commas between them, brackets around them
    return -(-characters // CHARACTERS_PER_TOKEN)


def estimate_tokens(messages: Sequence[ChatMessage]) -> int:
    """Characters of the serialised messages divided by four, rounded up; 0 for none (C.C.1, C.C.8).

    Raises:
        InvalidTypeError: a message has opaque content (C.C.3); the text names its index.
    """
    refuse_opaque(messages)
    return tokens_of([measure(message) for message in messages])


def refuse_opaque(messages: Iterable[ChatMessage]) -> None:
    """Refuse messages that have no default count.

    Raises:
        InvalidTypeError: a message has opaque content (C.C.3); the text names its index.
    """
    for index, message in enumerate(messages):
        if has_opaque(message):
            place = f"messages[{index}].content"
            raise InvalidTypeError(
                f"{place}: images, files and other parts that are no text have no default count; pass count_tokens",
                ErrorData(field=place),
            )


def _serialised(message: ChatMessage) -> str:
    return json_text.encode(write_ai_sdk(message)).decode()


def _content(message: ChatMessage) -> str | list[Object]:
    parts = message.content
    if message.role == "system" and all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    if not parts and message.role != "tool":
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and not _rest(parts[0]):
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: AnyPart) -> Object:
    match part:
        case Text() | Image() | Document() | Unknown():
            return _spoken(part, in_result=False)
        case Reasoning():
            return {"type": "reasoning", "text": part.text, **_rest(part, ("type", "text"))}
        case ToolCall():
            value, sound = json_text.read_value(part.arguments)
            written: Object = {
                "type": "tool-call",
                "toolCallId": part.id,
                "toolName": part.name,
                "input": value if sound else part.arguments,
            }
            return {**written, **_rest(part, tuple(written))}
        case ToolResult():
            return _result(part)
        case ApprovalRequest():
            written = {"type": "tool-approval-request", "approvalId": part.id, "toolCallId": part.call_id}
            return {**written, **_rest(part, tuple(written))}
        case ApprovalResponse():
            written = {"type": "tool-approval-response", "approvalId": part.id, "approved": part.approved}
            if part.reason is not None:
                written["reason"] = part.reason
            return {**written, **_rest(part, (*written, "reason"))}
        case _:
            assert_never(part)


def _spoken(part: ResultPart, *, in_result: bool) -> Object:
    match part:
        case Text():
            return {"type": "text", "text": part.text, **_rest(part, ("type", "text"))}
        case Unknown():
            value = json_text.read_object(part.data)
            return value if isinstance(value.get("type"), str) else {"type": "unknown", "data": part.data}
        case Image() | Document():
            return _media(part, in_result=in_result)
        case _:
            assert_never(part)


def _media(part: Image | Document, *, in_result: bool) -> Object:
    data = _rest(part)
    text = part.text if isinstance(part, Document) else None
    payload = part.data if part.data is not None else part.url if part.url is not None else text
    if payload is not None and FORM in data:
        filled = _fill(json_text.as_object(data[FORM]) or {}, payload)
        if filled is not None:
            return filled
    media_type = part.media_type
    if media_type is None:
        media_type = (
            "image" if isinstance(part, Image) else "application/octet-stream" if text is None else "text/plain"
        )
    written: Object = {"type": "file", "mediaType": media_type, "data": _data(part, text, in_result=in_result)}
    if isinstance(part, Document) and part.title is not None:
        written["filename"] = part.title
    return {**written, **{name: item for name, item in data.items() if name not in (*written, FORM)}}


def _data(part: Image | Document, text: str | None, *, in_result: bool) -> object:
    """The data of a file; tools' outputs take them tagged only."""
    if part.data is not None:
        return {"type": "data", "data": part.data} if in_result else part.data
    if part.url is not None:
        return {"type": "url", "url": part.url} if in_result else part.url
    if text is not None:
        return {"type": "text", "text": text}
    issuer = part.provider_data.provider if part.provider_data else "unknown"
    return {"type": "reference", "reference": {issuer: part.file_id or ""}}


def _fill(form: Object, payload: str) -> Object | None:
    """The part as it was written, with its data; None where the form is none of ours."""
    part, head = json_text.as_object(form.get("part")), form.get("head")
    at = [name for name in json_text.as_list(form.get("at")) or () if isinstance(name, str)]
    if part is None or not isinstance(head, str):
        return None
    match at:
        case [name]:
            return {**part, name: head + payload}
        case [name, inner]:
            return {**part, name: {**(json_text.as_object(part.get(name)) or {}), inner: head + payload}}
        case _:
            return None


def _result(part: ToolResult) -> Object:
    data = _rest(part)
    form = json_text.as_object(data.pop(FORM, None)) or {}
    kept = json_text.as_object(form.get("output"))
    output = None if kept is None else _output_as(kept, part)
    if output is None:
        output = _output(part)
    more = json_text.as_object(form.get("rest")) or data
    written: Object = {"type": "tool-result", "toolCallId": part.id, "toolName": part.name or "", "output": output}
    return {**written, **{name: item for name, item in more.items() if name not in written}}


def _output_as(kept: Object, part: ToolResult) -> Object | None:
    """The output in the form in which it was given; None where the content has been changed and does not fit it."""
    texts = [item.text for item in part.content if isinstance(item, Text)]
    is_text = len(texts) == len(part.content) <= 1
    text = "".join(texts)
    match kept.get("type"):
        case "text" | "error-text" if is_text:
            return {**kept, "value": text}
        case "json" | "error-json" if is_text:
            value, sound = json_text.read_value(text)
            return {**kept, "value": value} if sound else None
        case "execution-denied" if is_text:
            return {**kept, "reason": text} if "reason" in kept else kept
        case "content":
            return {**kept, "value": [_spoken(item, in_result=True) for item in part.content]}
        case _:
            return None


def _output(part: ToolResult) -> Object:
    texts = [item.text for item in part.content if isinstance(item, Text)]
    plain = len(texts) == len(part.content) and not any(_rest(item) for item in part.content)
    if plain and (part.error or len(texts) <= 1):
        return {"type": "error-text" if part.error else "text", "value": "\n".join(texts)}
    return {"type": "content", "value": [_spoken(item, in_result=True) for item in part.content]}


def _rest(carrier: Part | ChatMessage, known: tuple[str, ...] = ()) -> Object:
    """The members that came with a part or message from the AI SDK and that we do not model (P.A.5)."""
    data = carrier.provider_data
    if data is None or data.provider != PROVIDER:
        return {}
    members = json_text.read_object(data.data)
    return {name: item for name, item in members.items() if name not in known}

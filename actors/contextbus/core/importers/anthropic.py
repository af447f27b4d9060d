"""Anthropic Messages to chat messages (P.E.9)."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from contextbus.core.cache_control import read_cache
from contextbus.core.importers.reading import (
    Conversation,
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    arguments,
    conversation_id,
    fail_word,
    load,
    rest_of,
    result_content,
    to_json,
    unknown,
)
from contextbus.core.json_text import as_list
from contextbus_protocol.chat import (
    AnyPart,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from contextbus_protocol.digests import clean_text

_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_NOTHING: Final = ProviderData("anthropic", "{}")


def from_anthropic(data: object) -> Conversation:
    """Read a request, a response, a list of messages, or JSON text of one of them.

    What is rendered for Anthropic again equals what was read, up to the order of fields and these defaults (P.E.9):

    - a content that is a string is one text block; a result's one plain text is a string;
    - members that are null, ``is_error`` that is false, and a result's empty content are absent;
    - results come in the order of their calls, and a breakpoint inside a result stands behind it;
    - a tool of type ``custom`` has no type, an empty description is absent;
    - a compaction block without content, which says nothing, is absent;
    - members of the body beside ``messages``, ``system`` and ``tools`` are the caller's.

    Thinking of a response is bound to the model that the response names (P.E.5).

    Raises:
        InvalidTypeError: something cannot be used; the message names the message's index and the field.
    """
    value = load(data)
    top: Object = {"messages": items} if (items := as_list(value)) is not None else an_object(value, "conversation")
    if "messages" not in top and "role" in top:
        top = {"messages": [top]}
    messages: list[ChatMessage] = []
    if top.get("system") is not None:
        parts = read_content(top["system"], "system")
        messages.append(ChatMessage(role="system", content=parts))
    for index, item in enumerate(a_list(top.get("messages"), "messages")):
        messages.append(_message(an_object(item, f"messages[{index}]"), f"messages[{index}]"))
    tools = top.get("tools")
    return Conversation(
        messages=tuple(messages),
        tools=None if tools is None else to_json(a_list(tools, "tools"), "tools"),
        id=conversation_id(top),
    )


def _message(value: Object, place: str) -> ChatMessage:
    name = a_text(value.get("role"), f"{place}.role")
    role = _ROLES.get(name)
    if role is None:
        fail_word(f"{place}.role", _ROLES, name)
    issuer = value.get("model")  # only a response has one; whom a request asks tells nothing of who answered before
    return ChatMessage(
        role=role,
        content=read_content(value.get("content"), f"{place}.content", issuer if isinstance(issuer, str) else None),
        cache=read_cache(value),
        provider_data=rest_of(value, ("role", "content"), "anthropic"),
    )


def read_content(content: object, place: str, issuer: str | None = None) -> tuple[AnyPart, ...]:
    """The parts of a message's or a tool result's content: a text, or a list of blocks; without empty texts.

    Args:
        content: what the message holds.
        place: where that is, for errors.
        issuer: the model that wrote it, where that is known (P.E.5).

    Raises:
        InvalidTypeError: something cannot be used; the message names the block and the field under ``place``.
    """
    if isinstance(content, str):
        return (Text(text=a_text(content, place)),) if content else ()
    if content is None:
        return ()
    parts = (_block(item, f"{place}[{index}]", issuer) for index, item in enumerate(a_list(content, place)))
    return tuple(part for part in parts if not (isinstance(part, Text) and not part.text))


def _block(item: object, place: str, issuer: str | None) -> AnyPart:
    if isinstance(item, str):
        return Text(text=a_text(item, place))
    value = an_object(item, place)
    match a_text(value.get("type"), f"{place}.type"):
        case "text":
            return Text(
                text=a_text(value.get("text"), f"{place}.text"),
                cache=read_cache(value),
                provider_data=rest_of(value, ("type", "text"), "anthropic"),
            )
        case "thinking":
            return Reasoning(
                text=a_text(value.get("thinking"), f"{place}.thinking"),
                signature=a_text_or_none(value.get("signature"), f"{place}.signature"),
                provider_data=_issued(rest_of(value, ("type", "thinking", "signature"), "anthropic"), issuer),
            )
        case "redacted_thinking":
            return Reasoning(
                redacted=a_text(value.get("data"), f"{place}.data"),
                provider_data=_issued(rest_of(value, ("type", "data"), "anthropic"), issuer),
            )
        case "tool_use":
            return ToolCall(
                id=a_text(value.get("id"), f"{place}.id"),
                name=a_text(value.get("name"), f"{place}.name"),
                arguments=arguments(value.get("input")),
                cache=read_cache(value),
                provider_data=rest_of(value, ("type", "id", "name", "input"), "anthropic"),
            )
        case "tool_result":
            return _result(value, place)
        case "image":
            return _image(value, place)
        case "document":
            return _document(value, place)
        case _:
            return unknown(value, "anthropic", place)


def _issued(more: ProviderData | None, issuer: str | None) -> ProviderData:
    return replace(more or _NOTHING, model=None if issuer is None else clean_text(issuer))


def _result(value: Object, place: str) -> ToolResult:
    return ToolResult(
        id=a_text(value.get("tool_use_id"), f"{place}.tool_use_id"),
        content=result_content(value.get("content"), read_content, f"{place}.content"),
        error=value.get("is_error") is True,
        cache=read_cache(value),
        provider_data=rest_of(value, ("type", "tool_use_id", "content", "is_error"), "anthropic"),
    )


def _image(value: Object, place: str) -> AnyPart:
    source = an_object(value.get("source"), f"{place}.source")
    at = f"{place}.source"
    kind = source.get("type")
    more = rest_of(value, ("type", "source"), "anthropic")
    cache = read_cache(value)
    if kind == "base64":
        media_type = a_text_or_none(source.get("media_type"), f"{at}.media_type")
        data = a_text(source.get("data"), f"{at}.data")
        return Image(media_type=media_type, data=data, cache=cache, provider_data=more)
    if kind == "url":
        return Image(url=a_text(source.get("url"), f"{at}.url"), cache=cache, provider_data=more)
    if kind == "file":
        file_id = a_text(source.get("file_id"), f"{at}.file_id")
        return Image(file_id=file_id, cache=cache, provider_data=more or _NOTHING)
    return unknown(value, "anthropic", place)


def _document(value: Object, place: str) -> AnyPart:
    source = an_object(value.get("source"), f"{place}.source")
    at = f"{place}.source"
    kind = source.get("type")
    more = rest_of(value, ("type", "source", "title"), "anthropic")
    title = a_text_or_none(value.get("title"), f"{place}.title")
    media_type = a_text_or_none(source.get("media_type"), f"{at}.media_type")
    cache = read_cache(value)
    if kind == "base64":
        data = a_text(source.get("data"), f"{at}.data")
        return Document(media_type=media_type, title=title, data=data, cache=cache, provider_data=more)
    if kind == "text":
        text = a_text(source.get("data"), f"{at}.data")
        return Document(media_type=media_type, title=title, text=text, cache=cache, provider_data=more)
    if kind == "url":
        return Document(title=title, url=a_text(source.get("url"), f"{at}.url"), cache=cache, provider_data=more)
    if kind == "file":
        file_id = a_text(source.get("file_id"), f"{at}.file_id")
        return Document(title=title, file_id=file_id, cache=cache, provider_data=more or _NOTHING)
    return unknown(value, "anthropic", place)

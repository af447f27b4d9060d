"""Items of the OpenAI Responses API, as Codex keeps them, to parts of chat messages (P.E.9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from contextbus.core.breakpoints import read_cache
from contextbus.core.importers.reading import (
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    arguments,
    data_url,
    fail_word,
    rest_of,
    result_content,
    to_json,
    unknown,
)
from contextbus.core.json_text import as_object
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

PROVIDER: Final = "openai-responses"
_ROLES: Final[dict[str, Role]] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_NOTHING: Final = ProviderData(PROVIDER, "{}")


class Item(NamedTuple):
    """An item, where it stands (``line 3.payload``), and the model that wrote it where that is known."""

    place: str
    value: Object
    model: str | None = None


def read_items(items: Iterable[Item]) -> list[ChatMessage]:
    """The messages of a list of items: what the assistant wrote in a row is one message, an output is one of its own.

    A second text of the assistant begins a message of its own, for a message keeps the fields of one item.

    Raises:
        InvalidTypeError: something cannot be used; the message names the item's place and the field.
    """
    messages: list[ChatMessage] = []
    parts: list[AnyPart] = []
    spoken: ChatMessage | None = None

    def close() -> None:
        nonlocal spoken
        if parts:
            more = None if spoken is None else spoken.provider_data
            messages.append(ChatMessage(role="assistant", content=tuple(parts), provider_data=more))
        parts.clear()
        spoken = None

    for item in items:
        read = read_item(item)
        if not isinstance(read, ChatMessage):
            parts.append(read)
        elif read.role != "assistant":
            close()
            messages.append(read)
        else:
            if spoken is not None:
                close()
            spoken = read
            parts += read.content
    close()
    return messages


def read_item(item: Item) -> ChatMessage | AnyPart:
    """A message or an output as a message; what else the assistant wrote as a part of its message."""
    place, value, model = item
    match a_text(value.get("type"), f"{place}.type"):
        case "message":
            return _message(value, place)
        case "function_call_output" | "custom_tool_call_output" as kind:
            return ChatMessage(role="tool", content=(_output(value, kind, place),))
        case "reasoning":
            return read_reasoning(value, place, model)
        case "function_call":
            return ToolCall(
                id=a_text(value.get("call_id"), f"{place}.call_id"),
                name=a_text(value.get("name"), f"{place}.name"),
                arguments=arguments(value.get("arguments")),
                provider_data=rest_of(value, ("type", "call_id", "name", "arguments"), PROVIDER),
            )
        case "custom_tool_call":
            text = a_text(value.get("input"), f"{place}.input")
            return ToolCall(
                id=a_text(value.get("call_id"), f"{place}.call_id"),
                name=a_text(value.get("name"), f"{place}.name"),
                arguments=to_json({"input": text}, place),
                provider_data=rest_of(value, ("call_id", "name", "input"), PROVIDER),
            )
        case "local_shell_call" if value.get("call_id") is not None or value.get("id") is not None:
            # Without a call_id the item's own id is what the output names.
            name = "call_id" if value.get("call_id") is not None else "id"
            return ToolCall(
                id=a_text(value[name], f"{place}.{name}"),
                name="local_shell",
                arguments=arguments(value.get("action")),
                provider_data=rest_of(value, (name, "action"), PROVIDER),
            )
        case _:
            return unknown(value, PROVIDER, place)


def read_reasoning(value: Object, place: str, model: str | None = None) -> Reasoning:
    """A reasoning item: its summary is the text, its encrypted content stays byte for byte."""
    summary = value.get("summary")
    texts = [
        a_text(an_object(entry, f"{place}.summary[{index}]").get("text"), f"{place}.summary[{index}].text")
        for index, entry in enumerate([] if summary is None else a_list(summary, f"{place}.summary"))
    ]
    more = rest_of(value, ("type", "encrypted_content"), PROVIDER) or _NOTHING
    return Reasoning(
        text="\n".join(texts),
        redacted=a_text_or_none(value.get("encrypted_content"), f"{place}.encrypted_content"),
        provider_data=ProviderData(PROVIDER, more.data, model),
    )


def _message(value: Object, place: str) -> ChatMessage:
    name = a_text(value.get("role"), f"{place}.role")
    role = _ROLES.get(name)
    if role is None:
        fail_word(f"{place}.role", _ROLES, name)
    known = ("type", "content") if name == "developer" else ("type", "role", "content")
    return ChatMessage(
        role=role,
        content=_content(value.get("content"), f"{place}.content"),
        cache=read_cache(value),
        provider_data=rest_of(value, known, PROVIDER),
    )


def _output(value: Object, kind: str, place: str) -> ToolResult:
    output = value.get("output")
    error = False
    known = ("type", "call_id", "output") if kind == "function_call_output" else ("call_id", "output")
    fields = as_object(output)
    if fields is not None and "content" in fields:  # a former form: the text and whether the tool succeeded
        output = fields["content"]
        error = fields.get("success") is False
    return ToolResult(
        id=a_text(value.get("call_id"), f"{place}.call_id"),
        content=result_content(output, _content, f"{place}.output"),
        error=error,
        provider_data=rest_of(value, known, PROVIDER),
    )


def _content(content: object, place: str) -> tuple[AnyPart, ...]:
    if isinstance(content, str):
        return (Text(text=a_text(content, place)),) if content else ()
    if content is None:
        return ()
    parts = (_part(item, f"{place}[{index}]") for index, item in enumerate(a_list(content, place)))
    return tuple(part for part in parts if not (isinstance(part, Text) and not part.text))


def _part(item: object, place: str) -> AnyPart:
    value = an_object(item, place)
    kind = a_text(value.get("type"), f"{place}.type")
    if kind in _TEXTS:
        text = a_text(value.get("text"), f"{place}.text")
        return Text(text=text, provider_data=rest_of(value, ("type", "text"), PROVIDER))
    if kind == "refusal":
        text = a_text(value.get("refusal"), f"{place}.refusal")
        return Text(text=text, provider_data=ProviderData(PROVIDER, '{"refusal":"part"}'))
    if kind == "input_image":
        return _image(value, place)
    if kind == "input_file":
        return _file(value, place)
    return unknown(value, PROVIDER, place)


def _image(value: Object, place: str) -> AnyPart:
    more = rest_of(value, ("type", "image_url", "file_id"), PROVIDER)
    file_id = a_text_or_none(value.get("file_id"), f"{place}.file_id")
    if file_id is not None:
        return Image(file_id=file_id, provider_data=more or _NOTHING)
    url = a_text(value.get("image_url"), f"{place}.image_url")
    inline = data_url(url)
    if inline is not None:
        return Image(media_type=inline[0], data=inline[1], provider_data=more)
    return Image(url=url, provider_data=more)


def _file(value: Object, place: str) -> AnyPart:
    more = rest_of(value, ("type", "filename", "file_id", "file_url", "file_data"), PROVIDER)
    title = a_text_or_none(value.get("filename"), f"{place}.filename")
    file_id = a_text_or_none(value.get("file_id"), f"{place}.file_id")
    if file_id is not None:
        return Document(title=title, file_id=file_id, provider_data=more or _NOTHING)
    url = a_text_or_none(value.get("file_url"), f"{place}.file_url")
    if url is not None:
        return Document(title=title, url=url, provider_data=more)
    inline = data_url(a_text(value.get("file_data"), f"{place}.file_data"))
    if inline is None:
        return unknown(value, PROVIDER, place)
    return Document(media_type=inline[0], title=title, data=inline[1], provider_data=more)

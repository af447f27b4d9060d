"""OpenAI Chat Completions to chat messages (P.E.9)."""

from __future__ import annotations

from typing import Final

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
    data_url,
    fail,
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
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_KNOWN: Final = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call")


def from_openai(data: object) -> Conversation:
    """Read a request, a response, a list of messages, or JSON text of one of them.

    What is rendered for Chat Completions again equals what was read, up to the order of fields and these defaults
    (P.E.9):

    - a content of one plain text part is a string, and an empty one beside calls, a refusal or audio is null;
    - members that are null are absent, a file with data and no name is called ``document``;
    - results come in the order of their calls;
    - a tool without parameters takes an empty object, an empty description is absent;
    - members of the body beside ``messages`` and ``tools`` are the caller's.

    Calls without an id, as older and local models write them, get one; a result without one answers the first open
    call, of its name if it has a name.

    Raises:
        InvalidTypeError: something cannot be used; the message names the message's index and the field.
    """
    value = load(data)
    top: Object = {"messages": items} if (items := as_list(value)) is not None else an_object(value, "conversation")
    reader = _Reader()
    messages = [
        reader.message(an_object(item, f"messages[{index}]"), index) for index, item in enumerate(_messages(top))
    ]
    tools = top.get("tools")
    return Conversation(
        messages=tuple(messages),
        tools=None if tools is None else to_json(a_list(tools, "tools"), "tools"),
        id=conversation_id(top),
    )


def _messages(top: Object) -> list[object]:
    if "messages" not in top and "choices" in top:
        choices = a_list(top["choices"], "choices")
        return [an_object(choice, "choices[0]").get("message") for choice in choices[:1]]
    if "messages" not in top and "role" in top:
        return [top]
    return a_list(top.get("messages"), "messages")


class _Reader:
    """Reads the messages of one conversation; remembers open calls for results that name none."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []

    def message(self, value: Object, index: int) -> ChatMessage:
        place = f"messages[{index}]"
        name = a_text(value.get("role"), f"{place}.role")
        role = _ROLES.get(name)
        if role is None:
            fail_word(f"{place}.role", _ROLES, name)
        if role == "tool":
            return self._tool(value, place)
        parts = list(_content(value.get("content"), f"{place}.content"))
        if role == "assistant":
            parts += self._assistant(value, index)
        more = rest_of(value, _KNOWN, "openai")
        if name == "developer":
            more = rest_of({**{k: v for k, v in value.items() if k not in _KNOWN}, "role": name}, (), "openai")
        return ChatMessage(
            role=role,
            content=tuple(parts),
            name=a_text_or_none(value.get("name"), f"{place}.name"),
            cache=read_cache(value),
            provider_data=more,
        )

    def _tool(self, value: Object, place: str) -> ChatMessage:
        name = a_text_or_none(value.get("name"), f"{place}.name")
        call_id = a_text_or_none(value.get("tool_call_id"), f"{place}.tool_call_id")
        if call_id is None:
            fitting = [pair for pair in self._open if name is None or pair[1] == name]
            if not fitting:
                fail(f"{place}.tool_call_id", "the id of a call", None)
            call_id = fitting[0][0]
        self._close(call_id)
        result = ToolResult(
            id=call_id,
            name=name,
            content=result_content(value.get("content"), _content, f"{place}.content"),
            cache=read_cache(value),
        )
        return ChatMessage(role="tool", content=(result,), provider_data=rest_of(value, _KNOWN, "openai"))

    def _close(self, call_id: str) -> None:
        for place, pair in enumerate(self._open):
            if pair[0] == call_id:
                del self._open[place]
                return

    def _assistant(self, value: Object, index: int) -> list[AnyPart]:
        place = f"messages[{index}]"
        parts: list[AnyPart] = []
        refusal = a_text_or_none(value.get("refusal"), f"{place}.refusal")
        if refusal:
            parts.append(Text(text=refusal, provider_data=ProviderData("openai", '{"refusal":"message"}')))
        if value.get("audio") is not None:
            audio = {"type": "audio", **an_object(value["audio"], f"{place}.audio")}
            parts.append(
                Unknown(data=to_json(audio, place), provider_data=ProviderData("openai", '{"member":"audio"}'))
            )
        calls = value.get("tool_calls")
        for number, item in enumerate([] if calls is None else a_list(calls, f"{place}.tool_calls")):
            parts.append(self._call(item, f"{place}.tool_calls[{number}]", f"call_{index}_{number}"))
        if value.get("function_call") is not None:
            item = {"function": value["function_call"]}
            parts.append(self._call(item, f"{place}.function_call", f"call_{index}_function"))
        return parts

    def _call(self, item: object, place: str, made_id: str) -> ToolCall:
        value = an_object(item, place)
        call_id = a_text_or_none(value.get("id"), f"{place}.id")
        call_id = made_id if call_id is None else call_id
        if value.get("type") == "custom":
            custom = an_object(value.get("custom"), f"{place}.custom")
            name = a_text(custom.get("name"), f"{place}.custom.name")
            text = to_json({"input": a_text(custom.get("input"), f"{place}.custom.input")}, place)
            more = rest_of({"type": "custom"}, (), "openai")
        else:
            function = an_object(value.get("function"), f"{place}.function")
            name = a_text(function.get("name"), f"{place}.function.name")
            text = arguments(function.get("arguments"))
            more = rest_of(value, ("id", "type", "function"), "openai")
        self._open.append((call_id, name))
        return ToolCall(id=call_id, name=name, arguments=text, cache=read_cache(value), provider_data=more)


def _content(content: object, place: str) -> tuple[AnyPart, ...]:
    if isinstance(content, str):
        return (Text(text=a_text(content, place)),) if content else ()
    if content is None:
        return ()
    parts = (_part(item, f"{place}[{index}]") for index, item in enumerate(a_list(content, place)))
    return tuple(part for part in parts if not (isinstance(part, Text) and not part.text))


def _part(item: object, place: str) -> AnyPart:
    if isinstance(item, str):
        return Text(text=a_text(item, place))
    value = an_object(item, place)
    cache = read_cache(value)
    match a_text(value.get("type"), f"{place}.type"):
        case "text":
            text = a_text(value.get("text"), f"{place}.text")
            return Text(text=text, cache=cache, provider_data=rest_of(value, ("type", "text"), "openai"))
        case "refusal":
            text = a_text(value.get("refusal"), f"{place}.refusal")
            return Text(text=text, cache=cache, provider_data=ProviderData("openai", '{"refusal":"part"}'))
        case "image_url":
            return _image(value, place)
        case "file":
            return _file(value, place)
        case _:
            return unknown(value, "openai", place)


def _image(value: Object, place: str) -> Image:
    inner = value.get("image_url")
    image = {"url": inner} if isinstance(inner, str) else an_object(inner, f"{place}.image_url")
    url = a_text(image.get("url"), f"{place}.image_url.url")
    more = rest_of({**value, **image}, ("type", "image_url", "url"), "openai")
    inline = data_url(url)
    if inline is not None:
        return Image(media_type=inline[0], data=inline[1], cache=read_cache(value), provider_data=more)
    return Image(url=url, cache=read_cache(value), provider_data=more)


def _file(value: Object, place: str) -> AnyPart:
    file = an_object(value.get("file"), f"{place}.file")
    title = a_text_or_none(file.get("filename"), f"{place}.file.filename")
    file_id = a_text_or_none(file.get("file_id"), f"{place}.file.file_id")
    cache = read_cache(value)
    more = rest_of(value, ("type", "file"), "openai")
    if file_id is not None:
        origin = more or ProviderData("openai", "{}")
        return Document(title=title, file_id=file_id, cache=cache, provider_data=origin)
    inline = data_url(a_text(file.get("file_data"), f"{place}.file.file_data"))
    if inline is None:
        return unknown(value, "openai", place)
    return Document(media_type=inline[0], title=title, data=inline[1], cache=cache, provider_data=more)

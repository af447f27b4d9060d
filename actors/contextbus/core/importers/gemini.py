"""Gemini generateContent to chat messages (P.E.9).

What a valid request holds comes back from the target as it was, up to these defaults:

- a content without a role is the user's, a result's old role ``function`` too; ``systemInstruction`` has no role and
  holds texts alone;
- a call without ``args`` has none, ``{}``; so has a result without ``response``;
- the first call of a content without a signature gets the sentinel that Gemini documents, which is read as none;
- a result whose call has an id has the id of the call;
- base64 of media is written with ``+`` and ``/``; a signature stays as it was;
- all functions are declared in one tool, every other tool is one of its own;
- parts without data, and members that are null or that Gemini does not know, are dropped.

A request that ends with a content of the model gets one of the user behind it (P.E.17).
"""

from __future__ import annotations

from typing import Final

from contextbus.core.cache_control import read_cache
from contextbus.core.importers.gemini_parts import Origin, Paired, named, read_part
from contextbus.core.importers.reading import (
    Conversation,
    Object,
    a_list,
    a_text,
    an_object,
    fail_word,
    load,
    rest_of,
    to_json,
)
from contextbus.core.json_text import as_list, as_object
from contextbus_protocol.chat import AnyPart, ChatMessage, Role, Text
from contextbus_protocol.digests import clean_text

_ROLES: Final[dict[str, Role]] = {"user": "user", "model": "assistant", "function": "user"}


def from_gemini(data: object) -> Conversation:
    """Read a request, a response, a list of contents, one content, a plain text, or JSON text of one of them.

    The members may be named as REST or as the Python SDK does; of a response the first candidate is read.  Calls
    without an id get one that is made from what they say; a result answers the first open call with its id, or its
    name.

    Raises:
        InvalidTypeError: something cannot be used; the message names the content's index and the field.
    """
    top = _top(data)
    version = top.get("modelVersion")
    model = a_text(version, "modelVersion").rpartition("/")[2] if version is not None else None
    messages: list[ChatMessage] = []
    if top.get("systemInstruction") is not None:
        texts = _system(top["systemInstruction"])
        messages += [ChatMessage(role="system", content=texts)] if texts else []
    paired = Paired()
    for index, item in enumerate(_contents(top)):
        messages.append(_message(item, f"contents[{index}]", Origin(index, model), paired))
    tools = top.get("tools")
    name = top.get("responseId", top.get("id"))
    return Conversation(
        messages=tuple(messages),
        tools=None if tools is None else to_json([_plain(tool) for tool in a_list(tools, "tools")], "tools"),
        id=clean_text(str(name)) if isinstance(name, str | int) else None,
    )


def _top(data: object) -> Object:
    """The members of a request or a response, whatever was given."""
    if isinstance(data, str) and data.lstrip()[:1] not in ("{", "[", '"'):
        return {"contents": data}  # a prompt, as the SDK takes one
    value = load(data)
    if isinstance(value, str):
        return {"contents": value}
    if (items := as_list(value)) is not None:
        return {"contents": items}
    top = named(an_object(value, "conversation"))
    config = top.get("config")  # the SDK's call has them there
    if config is not None:
        top = {**named(an_object(config, "config")), **top}
    return {"contents": [top]} if "parts" in top or "role" in top else top


def _plain(value: object) -> object:
    return an_object(value, "tools") if hasattr(value, "model_dump") else value


def _contents(top: Object) -> list[Object]:
    """The contents of a request, of the first candidate, or around loose texts and parts."""
    if "contents" not in top and "candidates" in top:
        first = [named(an_object(item, "candidates[0]")) for item in a_list(top["candidates"], "candidates")[:1]]
        return [named(an_object(item["content"], "candidates[0].content")) for item in first if "content" in item]
    given = top.get("contents")
    one = isinstance(given, str) or as_object(given) is not None or hasattr(given, "model_dump")
    items: list[object] = [given] if one else a_list(given, "contents")
    found: list[Object] = []
    loose: list[object] | None = None
    for index, item in enumerate(items):
        value = _text_or_object(item, f"contents[{index}]")
        if "role" in value or "parts" in value:
            found.append(named(value))
            loose = None
        elif loose is None:
            loose = [value]
            found.append({"role": "user", "parts": loose})
        else:
            loose.append(value)
    return found


def _text_or_object(item: object, place: str) -> Object:
    """A part that may be written as its text alone."""
    return {"text": item} if isinstance(item, str) else an_object(item, place)


def _message(value: Object, place: str, origin: Origin, paired: Paired) -> ChatMessage:
    name = a_text(value.get("role", "user"), f"{place}.role")
    role = _ROLES.get(name)
    if role is None:
        fail_word(f"{place}.role", _ROLES, name)
    given = value.get("parts", [])
    listed = [{"text": given}] if isinstance(given, str) else a_list(given, f"{place}.parts")
    parts: list[AnyPart] = []
    for number, item in enumerate(listed):
        at = f"{place}.parts[{number}]"
        part = read_part(named(_text_or_object(item, at)), at, origin, paired)
        parts += [] if part is None else [part]
    return ChatMessage(
        role=role,
        content=tuple(parts),
        cache=read_cache(value),
        provider_data=rest_of(value, ("role", "parts"), "gemini"),
    )


def _system(given: object) -> tuple[AnyPart, ...]:
    """Texts of a system instruction: a text, a content, a part, or a list of texts and parts."""
    place = "systemInstruction"
    if isinstance(given, str):
        given = {"text": given}
    items = as_list(given)
    if items is None:
        value = named(an_object(given, place))
        items = a_list(value["parts"], f"{place}.parts") if "parts" in value else [value]
    texts: list[AnyPart] = []
    for number, item in enumerate(items):
        at = f"{place}.parts[{number}]"
        value = _text_or_object(item, at)
        text = a_text(value.get("text"), f"{at}.text")
        if text:
            texts.append(Text(text=text, cache=read_cache(value)))
    return tuple(texts)

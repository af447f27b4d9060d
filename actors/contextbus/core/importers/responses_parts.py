"""Content parts of OpenAI Responses to parts of chat messages (P.E.9)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from contextbus.core import json_text
from contextbus.core.cache_control import read_cache
from contextbus.core.importers.reading import (
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    data_url,
    rest_of,
    to_json,
    unknown,
)
from contextbus_protocol.chat import AnyPart, Document, Image, ProviderData, Text

PROVIDER: Final[Literal["openai-responses"]] = "openai-responses"
NOTHING: Final = ProviderData(PROVIDER, "{}")
_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def data(members: Object) -> ProviderData | None:
    """Members as this provider's data; None for none."""
    return ProviderData(PROVIDER, to_json(members, "provider data")) if members else None


def read_content(content: object, place: str) -> tuple[AnyPart, ...]:
    """Content of a message or of an output: a text, or a list of parts; empty texts are left out.

    Raises:
        InvalidTypeError: something cannot be used; the message names the place.
    """
    if isinstance(content, str):
        return (Text(text=a_text(content, place)),) if content else ()
    if content is None:
        return ()
    parts = (_part(item, f"{place}[{index}]") for index, item in enumerate(a_list(content, place)))
    return tuple(part for part in parts if not (isinstance(part, Text) and not part.text))


def read_spoken(content: object, message: Object, place: str) -> tuple[AnyPart, ...]:
    """Content of a message of the assistant; each text notes the message that it is from.

    Raises:
        InvalidTypeError: something cannot be used; the message names the place.
    """
    members = {key: message[key] for key in ("id", "status", "phase") if message.get(key) is not None}
    found: list[AnyPart] = []
    for part in read_content(content, place):
        if isinstance(part, Text) and members:
            found.append(with_members(part, {"message": members}))
        else:
            found.append(part)
    return tuple(found)


def with_members(part: AnyPart, members: Object) -> AnyPart:
    """A part with more of this provider's data."""
    own = {} if part.provider_data is None else json_text.read_object(part.provider_data.data)
    return replace(part, provider_data=data({**own, **members}))


def read_texts(value: object, place: str) -> str:
    """The texts of a list of summaries as lines.

    Raises:
        InvalidTypeError: it is no list of objects with texts.
    """
    items = [] if value is None else a_list(value, place)
    texts = (an_object(item, f"{place}[{index}]").get("text") for index, item in enumerate(items))
    return "\n".join(a_text(text, f"{place}[{index}].text") for index, text in enumerate(texts))


def _part(item: object, place: str) -> AnyPart:
    if isinstance(item, str):
        return Text(text=a_text(item, place))
    value = an_object(item, place)
    match a_text(value.get("type"), f"{place}.type"):
        case kind if kind in _TEXTS:
            text = a_text(value.get("text"), f"{place}.text")
            more = {key: entry for key, entry in value.items() if entry != [] or key not in ("annotations", "logprobs")}
            return Text(text=text, cache=read_cache(value), provider_data=rest_of(more, ("type", "text"), PROVIDER))
        case "refusal":
            text = a_text(value.get("refusal"), f"{place}.refusal")
            return Text(text=text, provider_data=ProviderData(PROVIDER, '{"refusal":"part"}'))
        case "input_image":
            return read_image(value, place)
        case "input_file":
            return _file(value, place)
        case _:
            return unknown(value, PROVIDER, place)


def read_image(value: Object, place: str) -> AnyPart:
    """An image or a screenshot: a URL, data in one, or a file.

    Raises:
        InvalidTypeError: it has neither.
    """
    more = rest_of(value, ("type", "image_url", "file_id"), PROVIDER)
    cache = read_cache(value)
    url = value.get("image_url")
    if url is None and value.get("file_id") is not None:
        file_id = a_text(value["file_id"], f"{place}.file_id")
        return Image(file_id=file_id, cache=cache, provider_data=more or NOTHING)
    url = a_text(url, f"{place}.image_url")
    inline = _inline(url)
    if inline is not None:
        return Image(media_type=inline[0], data=inline[1], cache=cache, provider_data=more)
    return Image(url=url, cache=cache, provider_data=more)


def _file(value: Object, place: str) -> AnyPart:
    known = ("type", "filename", "file_id", "file_url", "file_data")
    more = rest_of(value, known, PROVIDER)
    title = a_text_or_none(value.get("filename"), f"{place}.filename")
    cache = read_cache(value)
    if value.get("file_data") is not None:
        text = a_text(value["file_data"], f"{place}.file_data")
        inline = _inline(text)
        if inline is not None:
            return Document(media_type=inline[0], title=title, data=inline[1], cache=cache, provider_data=more)
        left = {key: item for key, item in value.items() if key not in known and item is not None}
        return Document(title=title, data=text, cache=cache, provider_data=data({**left, "bare": True}))
    if value.get("file_url") is not None:
        url = a_text(value["file_url"], f"{place}.file_url")
        return Document(title=title, url=url, cache=cache, provider_data=more)
    file_id = a_text(value.get("file_id"), f"{place}.file_id")
    return Document(title=title, file_id=file_id, cache=cache, provider_data=more or NOTHING)


def _inline(url: str) -> tuple[str, str] | None:
    """Media type and data of a data URL in its plain form; any other URL stays whole."""
    found = data_url(url)
    if found is None or found[0] is None or not found[1] or url != f"data:{found[0]};base64,{found[1]}":
        return None
    return found[0], found[1]

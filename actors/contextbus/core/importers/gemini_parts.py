"""The parts of Gemini's contents: each has one data field, which tells what it is."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from contextbus.core.cache_control import read_cache
from contextbus.core.importers.reading import (
    CACHE_KEY,
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    arguments,
    fail,
    to_json,
)
from contextbus.core.targets.gemini import NO_SIGNATURE
from contextbus.core.targets.gemini_tools import camel_name
from contextbus_protocol.chat import (
    AnyPart,
    Document,
    Image,
    ProviderData,
    Reasoning,
    ResultPart,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

_FILES_API: Final = ("gs://", "https://generativelanguage.googleapis.com/")
"""Where files lie that no other provider can read."""

_MEMBERS: Final = frozenset(
    {
        "thought",
        "thoughtSignature",
        "videoMetadata",
        "mediaResolution",
        "mediaProcessing",
        "documentMetadata",
        "spreadsheetMetadata",
        "audioMetadata",
        "speechMetadata",
        "partMetadata",
    }
)
_MODELLED: Final = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
_NATIVE: Final = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse", "audioTranscription")


class Origin:
    """Where a part comes from: the index of its content, and the model of the response if it is one's."""

    def __init__(self, index: int, model: str | None) -> None:
        self.index = index
        self.model = model


class Paired:
    """The calls of a conversation that wait for a result, in order."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str, bool]] = []

    def call(self, call_id: str, name: str, *, given: bool) -> None:
        """A call was made; ``given`` says that its id is Gemini's own."""
        self._open.append((call_id, name, given))

    def answer(self, call_id: str | None, name: str | None) -> str | None:
        """The id of the call that a result answers: the first with its id, else the first of its name."""
        fitting = [call for call in self._open if call_id is not None and call[2] and call[0] == call_id]
        if not fitting:
            fitting = [call for call in self._open if name is None or call[1] == name]
            if call_id is not None:  # a call with another id is not the one
                fitting = [call for call in fitting if not call[2]]
        if not fitting:
            return None
        self._open.remove(fitting[0])
        return fitting[0][0]


def named(value: Object) -> Object:
    """An object with the names that REST has for its members, bytes as base64; what is null is not there."""
    found = {camel_name(key): item for key, item in value.items() if item is not None}
    return {key: base64.b64encode(item).decode() if isinstance(item, bytes) else item for key, item in found.items()}


def read_part(value: Object, place: str, origin: Origin, paired: Paired) -> AnyPart | None:
    """A part by its data field; None for one that holds nothing (gemini.G3).

    Args:
        value: the part, its members named as REST does.
        place: where it is, for what is said of it.
        origin: where it comes from.
        paired: the calls so far, to which this part may add.

    Raises:
        InvalidTypeError: it has several data fields, or one that cannot be used.
    """
    kind = _data_field(value, place)
    if kind is None or (kind == "text" and not value[kind]):
        return None
    cache = read_cache(value)
    match kind:
        case "text":
            text = a_text(value[kind], f"{place}.text")
            if value.get("thought") is not True:
                return Text(text=text, cache=cache, provider_data=_origin(value, kind, origin))
            signature = a_text_or_none(value.get("thoughtSignature"), f"{place}.thoughtSignature")
            rest = {key: item for key, item in value.items() if key not in ("thought", "thoughtSignature")}
            more = _origin(rest, kind, origin)
            data = ProviderData("gemini", "{}" if more is None else more.data, origin.model)
            return Reasoning(text=text, signature=signature, cache=cache, provider_data=data)
        case "functionCall":
            return _call(value, place, origin, paired)
        case "functionResponse":
            return _result(value, place, origin, paired)
        case _:
            return _media(value, kind, place, origin)


def _data_field(value: Object, place: str) -> str | None:
    """The one data field of a part: a known one, or else an object that we do not know."""
    fields = [key for key in value if key in _MODELLED or key in _NATIVE]
    if not fields:
        fields = [key for key in value if key not in _MEMBERS and isinstance(value[key], dict)]
    if len(fields) > 1:
        fail(place, "one data field a part", value)
    if fields:
        return fields[0]
    if any(key not in _MEMBERS and key != CACHE_KEY for key in value):
        fail(place, "a part with a data field", value)
    return None


def _origin(value: Object, kind: str, origin: Origin, **more: object) -> ProviderData | None:
    """The members beside the data field; the model only where it signed something or thought."""
    left = {key: item for key, item in value.items() if key not in (kind, CACHE_KEY)}
    if left.get("thought") is False:
        del left["thought"]
    signed = "thoughtSignature" in left or "thought" in left
    left |= {key: item for key, item in more.items() if item is not None}
    return ProviderData("gemini", to_json(left, "provider data"), origin.model if signed else None) if left else None


def _inner(value: Object, kind: str, place: str) -> Object:
    return named(an_object(value[kind], f"{place}.{kind}"))


def _call(value: Object, place: str, origin: Origin, paired: Paired) -> ToolCall:
    inner = _inner(value, "functionCall", place)
    at = f"{place}.functionCall"
    name = a_text(inner.get("name"), f"{at}.name")
    written = arguments(inner.get("args"))
    rest = {key: item for key, item in value.items() if key != "thoughtSignature" or item != NO_SIGNATURE}
    call_id = a_text_or_none(inner.get("id"), f"{at}.id") or None
    given = call_id is not None
    if call_id is None:
        said = to_json([origin.index, place, name, written, rest.get("thoughtSignature")], at)
        call_id = f"call_{hashlib.sha256(said.encode()).hexdigest()[:24]}"
    paired.call(call_id, name, given=given)
    left = {key: item for key, item in inner.items() if key not in ("id", "name", "args")}
    data = _origin(rest, "functionCall", origin, id=given or None, call=left or None)
    return ToolCall(id=call_id, name=name, arguments=written, cache=read_cache(value), provider_data=data)


def _result(value: Object, place: str, origin: Origin, paired: Paired) -> ToolResult:
    inner = _inner(value, "functionResponse", place)
    at = f"{place}.functionResponse"
    name = a_text_or_none(inner.get("name"), f"{at}.name")
    given = a_text_or_none(inner.get("id"), f"{at}.id") or None
    response = an_object(inner.get("response", {}), f"{at}.response")
    content: list[ResultPart] = []
    text, error, is_object = _said(response, f"{at}.response")
    if text:
        content.append(Text(text=text))
    for number, item in enumerate(a_list(inner.get("parts", []), f"{at}.parts")):
        there = f"{at}.parts[{number}]"
        part = named(an_object(item, there))
        kind = _data_field(part, there)
        if kind is not None and kind not in ("text", "functionCall", "functionResponse"):
            content.append(_media(part, kind, there, origin))
    call_id = paired.answer(given, name)
    if call_id is None:  # no call waits for it: an id that none has
        call_id = given or f"result_{hashlib.sha256(place.encode()).hexdigest()[:24]}"
    rest = {key: value[key] for key in value if key != "functionResponse"}
    left = {key: item for key, item in inner.items() if key not in ("id", "name", "response", "parts")}
    form = "object" if is_object else None
    data = _origin({**rest, **left}, "functionResponse", origin, response=form)
    return ToolResult(
        id=call_id, name=name, content=tuple(content), error=error, cache=read_cache(value), provider_data=data
    )


def _said(response: Object, place: str) -> tuple[str, bool, bool]:
    """The text of a response, whether it is an error, and whether the text is the JSON of the whole object."""
    if len(response) == 1:
        (key, said), *_ = response.items()
        if isinstance(said, str) and key in ("result", "error"):
            return a_text(said, f"{place}.{key}"), key == "error", False
    return to_json(response, place), False, True


def _media(value: Object, kind: str, place: str, origin: Origin) -> Image | Document | Unknown:
    """Data of a part: an image or a document where others have that too, else what only Gemini knows."""
    inner = _inner(value, kind, place)
    media_type = a_text_or_none(inner.get("mimeType"), f"{place}.{kind}.mimeType")
    plain = kind in ("inlineData", "fileData") and value.get("thought") is not True
    name = inner.get("displayName")
    data = _origin(value, kind, origin, displayName=name if plain else None) or ProviderData("gemini", "{}")
    cache = read_cache(value)
    is_image = media_type is not None and media_type.startswith("image/")
    is_document = media_type is not None and media_type.startswith(("application/", "text/"))
    if plain and kind == "inlineData" and (is_image or is_document):
        raw = a_text(inner.get("data"), f"{place}.{kind}.data").replace("-", "+").replace("_", "/")
        if is_image:
            return Image(media_type=media_type, data=raw, cache=cache, provider_data=data)
        return Document(media_type=media_type, data=raw, cache=cache, provider_data=data)
    if plain and kind == "fileData" and (is_image or is_document):
        uri = a_text(inner.get("fileUri"), f"{place}.{kind}.fileUri")
        url, file_id = (None, uri) if uri.startswith(_FILES_API) else (uri, None)
        if is_image:
            return Image(media_type=media_type, url=url, file_id=file_id, cache=cache, provider_data=data)
        return Document(media_type=media_type, url=url, file_id=file_id, cache=cache, provider_data=data)
    return Unknown(data=to_json({"type": kind, kind: inner}, place), cache=cache, provider_data=data)

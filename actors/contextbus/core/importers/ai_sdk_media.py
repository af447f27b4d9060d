"""Images and files of AI SDK messages, with all the ways in which their data may be given (C.B.1, C.B.2)."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from contextbus.core import ai_sdk, json_text
from contextbus.core.importers.ai_sdk_values import asks_for_cache, bound, opaque, rest
from contextbus.core.importers.reading import CACHE_KEY, Object, a_text, a_text_or_none, data_url, fail, to_json
from contextbus_protocol.chat import Document, Image, Unknown

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class _Payload(msgspec.Struct, frozen=True, gc=False):
    """A part's data: where they stand, what they are, and what stands before them in the same text."""

    at: tuple[str, ...]
    kind: Literal["data", "url", "text"]
    text: str
    head: str = ""
    media_type: str | None = None


def read_media(value: Object, kind: str, place: str, *, in_result: bool = False) -> Image | Document | Unknown:
    """An ``image``, ``file`` or ``reasoning-file`` part; a reference to a provider's file is kept whole.

    Raises:
        InvalidTypeError: the data or the media type is missing or of a wrong form.
    """
    name = "image" if kind == "image" else "data"
    if kind != "image":
        a_text(value.get("mediaType"), f"{place}.mediaType")
    payload = _payload(value.get(name), name, f"{place}.{name}")
    if payload is None or kind == "reasoning-file":
        return opaque(value, place)
    plain = kind == "file" and payload.at == ("data",) and not payload.head and not in_result
    return _made(value, payload, place, plain=plain)


def read_item(value: Object, kind: str, place: str) -> Image | Document | Unknown:
    """An item of a tool's output other than text; what we do not know is kept whole.

    Raises:
        InvalidTypeError: the data or the media type is missing or of a wrong form.
    """
    match kind:
        case "file":
            return read_media(value, kind, place, in_result=True)
        case "media" | "file-data" | "image-data":
            a_text(value.get("mediaType"), f"{place}.mediaType")
            payload = _Payload(("data",), "data", a_text(value.get("data"), f"{place}.data"))
        case "file-url" | "image-url":
            payload = _of_url(("url",), a_text(value.get("url"), f"{place}.url"))
        case _:
            return opaque(value, place)
    return _made(value, payload, place, plain=False)


def _payload(value: object, name: str, place: str) -> _Payload | None:
    """The data of a part, bare or tagged; None for a reference."""
    if isinstance(value, str):
        return _of_url((name,), value) if _SCHEME.match(value) else _Payload((name,), "data", value)
    tagged = json_text.as_object(value)
    if tagged is None:
        fail(place, "a text, bytes or an object", value)
    match tagged.get("type"):
        case "data":
            return _Payload((name, "data"), "data", a_text(tagged.get("data"), f"{place}.data"))
        case "url":
            return _of_url((name, "url"), a_text(tagged.get("url"), f"{place}.url"))
        case "text":
            return _Payload((name, "text"), "text", a_text(tagged.get("text"), f"{place}.text"))
        case "reference":
            reference = json_text.as_object(tagged.get("reference"))
            if reference is None:
                fail(f"{place}.reference", "an object", tagged.get("reference"))
            _check_ids(reference, f"{place}.reference")
            return None
        case _:
            _check_ids(tagged, place)
            return None


def _check_ids(reference: Object, place: str) -> None:
    """A reference is an object from provider to the file's id."""
    for file_id in reference.values():
        a_text(file_id, place)


def _of_url(at: tuple[str, ...], url: str) -> _Payload:
    inline = data_url(url)
    if inline is None:
        return _Payload(at, "url", url)
    media_type, data = inline
    return _Payload(at, "data", data, url[: len(url) - len(data)], media_type)


def _made(value: Object, payload: _Payload, place: str, *, plain: bool) -> Image | Document:
    """The part; where it is not in the plain form that ``core.ai_sdk`` writes, its form goes with it."""
    given = a_text_or_none(value.get("mediaType"), f"{place}.mediaType")
    title = a_text_or_none(value.get("filename"), f"{place}.filename")
    media_type = given or payload.media_type
    kind = str(value.get("type"))
    is_image = kind.startswith("image") or (media_type or "").partition("/")[0] == "image"
    known = ("type", "data", "mediaType") if is_image else ("type", "data", "mediaType", "filename")
    if plain and ai_sdk.FORM not in value:
        more = rest(value, known)
    else:
        more = bound(to_json({ai_sdk.FORM: _form(value, payload)}, place))
    cache = asks_for_cache(value)
    url = payload.text if payload.kind == "url" else None
    data = payload.text if payload.kind == "data" else None
    if is_image and payload.kind != "text":
        return Image(media_type=media_type, data=data, url=url, cache=cache, provider_data=more)
    text = payload.text if payload.kind == "text" else None
    return Document(media_type=media_type, title=title, text=text, data=data, url=url, cache=cache, provider_data=more)


def _form(value: Object, payload: _Payload) -> Object:
    """The part without its data, and where they belong."""
    part = {name: item for name, item in value.items() if name not in (payload.at[0], CACHE_KEY)}
    if len(payload.at) > 1:
        tagged = json_text.as_object(value[payload.at[0]]) or {}
        part[payload.at[0]] = {name: item for name, item in tagged.items() if name != payload.at[1]}
    return {"part": part, "at": list(payload.at), "head": payload.head}

"""Base64 inside text and JSON: it costs what the media costs, never what its characters would (D.M.4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

IMAGE_TOKENS: Final = 1600
DOCUMENT_TOKENS: Final = 1000

_MARK: Final = ";base64,"
# A scheme, a media type, a few parameters, and at least four characters of payload; every repeat is bounded or
# cannot overlap the next, so that no text makes the search slow.
_DATA_URI: Final = re.compile(
    r"(?<![A-Za-z0-9])data:([A-Za-z0-9.+-]{0,64}(?:\\?/[A-Za-z0-9.+-]{1,80})?)"
    r"(?:;[A-Za-z0-9._=+\"-]{1,80}){0,4}?;base64,(?:[A-Za-z0-9+/_-]|\\/){4}(?:[A-Za-z0-9+/_-]++|\\/)*+={0,2}"
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\r\n]{4,}={0,2}\s*")
_DATA_FIELDS: Final = ("data", "blob", "bytes", "base64")
_TYPE_FIELDS: Final = ("media_type", "mediaType", "mime_type", "mimeType", "contentType", "content_type")
_IMAGE_FORMATS: Final = frozenset({"png", "jpg", "jpeg", "gif", "webp", "bmp", "tiff", "heic", "avif"})
# A short word beside a format ("json", "csv") is a value, not media.
_SHORTEST_BESIDE_FORMAT: Final = 64
_HINT: Final = re.compile(r'"(?:data|blob|bytes|base64)"\s*:')


def media_tokens(media_type: str | None) -> int:
    """What media of a type costs, in tokens: 1600 an image, 1000 anything else."""
    return IMAGE_TOKENS if media_type is not None and media_type.lower().startswith("image") else DOCUMENT_TOKENS


def may_hold_data_uris(text: str) -> bool:
    """Whether ``strip_data_uris`` could find anything in a text or in a part of it."""
    return _MARK in text


def strip_data_uris(text: str) -> tuple[str, int]:
    """Take the data URIs out of a text.

    Returns:
        The text without them, and the tokens they cost.  A text with none comes back as it is.
    """
    tokens = 0

    def take(media_type: str, _data: str) -> str:
        nonlocal tokens
        tokens += media_tokens(media_type)
        return ""

    return replace_data_uris(text, take), tokens


def replace_data_uris(text: str, put: Callable[[str, str], str]) -> str:
    """Put another text in place of each data URI; ``put`` gets its media type and its base64, both as written."""
    if _MARK not in text:
        return text
    return _DATA_URI.sub(lambda match: put(match[1], match[0].partition(_MARK)[2]), text)


def strip_media_fields(text: str) -> tuple[str, int]:
    """Take base64 that stands beside a media type or a format out of a JSON text.

    Returns:
        The compact JSON with those strings emptied, and the tokens they cost.  What is no JSON, or holds no such
        field, comes back as it is.
    """
    if _HINT.search(text) is None:
        return text, 0
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return text, 0
    tokens = 0
    pending: list[Any] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody
        elif isinstance(node, dict):
            tokens += _empty_media(node)  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody
            pending.extend(node.values())  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody
    if tokens == 0:
        return text, 0
    return msgspec.json.encode(value).decode(), tokens


def _empty_media(node: dict[str, Any]) -> int:
    """Empty the base64 fields of one JSON object, in place; the tokens they cost."""
    media_type = next((node[name] for name in _TYPE_FIELDS if isinstance(node.get(name), str)), None)
    form = node.get("format")
    if media_type is None and not isinstance(form, str):
        return 0
    tokens = 0
    for name in _DATA_FIELDS:
        data = node.get(name)
        if not isinstance(data, str) or _BASE64.fullmatch(data) is None:
            continue
        if media_type is not None:
            tokens += media_tokens(media_type)
        elif len(data) >= _SHORTEST_BESIDE_FORMAT:
            tokens += IMAGE_TOKENS if str(form).lower() in _IMAGE_FORMATS else DOCUMENT_TOKENS
        else:
            continue
        node[name] = ""
    return tokens

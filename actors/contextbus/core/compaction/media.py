"""Media in a range: what of it protects, and what a summariser gets in its place (C.D.4, C.X.3)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from contextbus.core.media import replace_data_uris, strip_media_fields
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Reasoning,
    ResultPart,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.digests import digest_bytes, encode_text

MediaMode = Literal["protect", "placeholder"]
DigestOf = Callable[[bytes], str]
"""The digest of bytes, with or without ``sha256:`` before the hex."""

_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+*-]{1,80}")
_SPACE: Final = re.compile(r"\s+")


def is_opaque(message: ChatMessage, *, media: MediaMode = "protect") -> bool:
    """Whether a message holds a part that a summariser cannot be given as it is (C.B.4, C.B.5).

    With ``placeholder`` images and files are none of these; a part of a type that we do not know still is, since it
    may be anything.
    """
    return any(_is_opaque(part, media) for part in message.content)


def replace_media(message: ChatMessage, digest_of: DigestOf = digest_bytes) -> ChatMessage:
    """The message with a line in place of each media part, inside tool results too; one without any comes back (C.X.3).

    The digest is that of the media's bytes, decoded from base64; where there are none, or they are no base64, that of
    the UTF-8 of its text, url or file id.  Data URIs and base64 inside texts go too: a summariser never gets any.

    Args:
        message: the message.
        digest_of: the digest of bytes.
    """
    parts = tuple(_replace_part(part, digest_of) for part in message.content)
    if all(new is old for new, old in zip(parts, message.content, strict=True)):
        return message
    return msgspec.structs.replace(message, content=parts)


def _is_opaque(part: AnyPart, media: MediaMode) -> bool:
    match part:
        case Text() | Reasoning() | ToolCall() | ApprovalRequest() | ApprovalResponse():
            return False
        case ToolResult():
            return any(_is_opaque(item, media) for item in part.content)
        case Image() | Document():
            return media == "protect"
        case Unknown():
            return True


def _replace_part(part: AnyPart, digest_of: DigestOf) -> AnyPart:
    match part:
        case Image() | Document() | Unknown():
            return _placeholder(part, digest_of)
        case ToolResult():
            items = tuple(_replace_item(item, digest_of) for item in part.content)
            if all(new is old for new, old in zip(items, part.content, strict=True)):
                return part
            return msgspec.structs.replace(part, content=items)
        case Text() | Reasoning():
            text = _replace_text(part.text, digest_of)
            return part if text == part.text else msgspec.structs.replace(part, text=text)
        case ToolCall():
            text = _replace_text(part.arguments, digest_of)
            return part if text == part.arguments else msgspec.structs.replace(part, arguments=text)
        case ApprovalResponse():
            text = _replace_text(part.reason or "", digest_of)
            return part if text == (part.reason or "") else msgspec.structs.replace(part, reason=text)
        case ApprovalRequest():
            return part


def _replace_item(item: ResultPart, digest_of: DigestOf) -> ResultPart:
    if not isinstance(item, Text):
        return _placeholder(item, digest_of)
    text = _replace_text(item.text, digest_of)
    return item if text == item.text else msgspec.structs.replace(item, text=text)


def _replace_text(text: str, digest_of: DigestOf) -> str:
    """The text without base64: data URIs are replaced, base64 beside a media type in JSON is emptied."""

    def put(media_type: str, data: str) -> str:
        media_type = media_type.replace("\\", "")
        kind = "image" if media_type.lower().startswith("image") else "file"
        return _line(kind, media_type, _decode(data), digest_of)

    return strip_media_fields(replace_data_uris(text, put))[0]


def _placeholder(part: Image | Document | Unknown, digest_of: DigestOf) -> Text:
    if isinstance(part, Unknown):
        return Text(text=_line("file", "", encode_text(part.data), digest_of))
    kind = "image" if isinstance(part, Image) else "file"
    text = part.text if isinstance(part, Document) else None
    media_type = part.media_type or ("" if text is None else "text/plain")
    if part.data is not None:
        return Text(text=_line(kind, media_type, _decode(part.data), digest_of))
    text = text or part.url or part.file_id or ""
    lines: list[str] = []

    def put(inner_type: str, data: str) -> str:
        lines.append(_line(kind, media_type or inner_type, _decode(data), digest_of))
        return ""

    # A url may be the media itself.
    if text.startswith("data:") and not replace_data_uris(text, put):
        return Text(text=lines[0])
    return Text(text=_line(kind, media_type, encode_text(text), digest_of))


def _line(kind: str, media_type: str, data: bytes, digest_of: DigestOf) -> str:
    if _MEDIA_TYPE.fullmatch(media_type) is None:  # it goes into a prompt: no text of anybody
        media_type = "image/*" if kind == "image" else "application/octet-stream"
    return f"[{kind}: {media_type}, context://vfs/{digest_of(data).removeprefix('sha256:')}]"


def _decode(data: str) -> bytes:
    """The bytes of base64, in either alphabet, with or without padding; the UTF-8 of what is none."""
    clean = _SPACE.sub("", data).replace("\\/", "/").replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(clean + "=" * (-len(clean) % 4), validate=True)
    except (binascii.Error, ValueError):
        return encode_text(data)

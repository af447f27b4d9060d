"""Images, documents and other data of Gemini's parts, and the members of a part that go back to Gemini (P.E.8)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from contextbus.core import json_text
from contextbus.core.json_text import quote
from contextbus_protocol.chat import Document, Image, Part

PROVIDER: Final[Literal["gemini"]] = "gemini"
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
RESULT_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain")
"""What a functionResponse takes inside it."""

NESTED_MEMBERS: Final = (
    "videoMetadata",
    "mediaResolution",
    "mediaProcessing",
    "documentMetadata",
    "spreadsheetMetadata",
    "audioMetadata",
)
MEMBERS: Final = (*NESTED_MEMBERS, "speechMetadata", "partMetadata")
"""Members of a part beside its data field; each is an object.  Whatever else came with a part stays behind (P.A.5)."""

_BEFORE_3 = re.compile(r"gemini-(?:1|2)\b")
_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "txt": "text/plain",
}
# Groups of four, then a rest whose last symbol holds no bits that are left over: what a strict decoder takes.
_BASE64 = re.compile(
    r"(?:[A-Za-z0-9+/_-]{4})*+(?:[A-Za-z0-9+/_-][AQgw](?:==)?|[A-Za-z0-9+/_-]{2}[AEIMQUYcgkosw048]=?)?"
)


def is_base64(text: str) -> bool:
    """Whether a text is base64 that a strict decoder takes; empty text holds nothing, so it is none."""
    return bool(text) and _BASE64.fullmatch(text) is not None


def is_own(part: Part) -> bool:
    """Whether a part came from Gemini."""
    return part.provider_data is not None and part.provider_data.provider == PROVIDER


def is_signed(part: Part) -> bool:
    """Whether a part came with a thought signature of Gemini's (gemini.G8)."""
    return is_own(part) and "thoughtSignature" in own_data(part)


def own_data(part: Part) -> dict[str, object]:
    """The members that came with a part of Gemini's; empty for any other."""
    if part.provider_data is None or part.provider_data.provider != PROVIDER:
        return {}
    return json_text.read_object(part.provider_data.data)


def members(part: Part, allowed: Iterable[str]) -> bytes:
    """Those of the members that came with a part of Gemini's and may go back, comma in front."""
    data = own_data(part)
    found = [(key, data[key]) for key in allowed if data.get(key) is not None] if data else []
    return b"".join(b",%b:%b" % (quote(key), json_text.encode(value)) for key, value in found)


def data_field(part: Image | Document) -> bytes | None:
    """``inlineData`` or ``fileData`` of an image or a document; None where Gemini takes neither."""
    if part.data is not None:
        return _inline(part, part.media_type or _plain_type(part), part.data)
    if part.url is not None:
        head, comma, data = part.url.partition(",")
        if head.startswith("data:") and comma and head.endswith(";base64"):
            return _inline(part, head[5:-7].partition(";")[0] or _plain_type(part), data)
        return _file(part, part.url) if part.url.startswith(("https://", "gs://")) else None
    return _file(part, part.file_id) if part.file_id is not None and is_own(part) else None


def goes_into_result(part: Part, model_id: str | None) -> bool:
    """Whether media that a tool returned stand inside its functionResponse, as Gemini 3 takes some; else behind it."""
    if is_own(part):
        return True
    if not isinstance(part, Image | Document) or part.data is None:
        return False
    is_before_3 = model_id is not None and _BEFORE_3.match(model_id) is not None
    return not is_before_3 and (part.media_type or _plain_type(part)) in RESULT_TYPES


def _plain_type(part: Image | Document) -> str:
    return "image/png" if isinstance(part, Image) else ""


def _inline(part: Image | Document, media_type: str, data: str) -> bytes | None:
    allowed = media_type in IMAGE_TYPES
    if isinstance(part, Document):
        allowed = media_type == "application/pdf" or media_type.startswith("text/")
    if not (allowed or is_own(part)) or not is_base64(data):
        return None
    return b'"inlineData":{"mimeType":%b,"data":%b%b}' % (quote(media_type), quote(data), _shown(part))


def _file(part: Image | Document, uri: str) -> bytes:
    media_type = part.media_type
    if media_type is None and not is_own(part):
        media_type = _TYPES.get(uri.partition("?")[0].rpartition(".")[2].lower())
    kind = b'"mimeType":%b,' % quote(media_type) if media_type is not None else b""
    return b'"fileData":{%b"fileUri":%b%b}' % (kind, quote(uri), _shown(part))


def _shown(part: Part) -> bytes:
    name = own_data(part).get("displayName")
    return b',"displayName":' + quote(name) if isinstance(name, str) else b""

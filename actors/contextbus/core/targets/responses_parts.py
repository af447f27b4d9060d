"""Content of OpenAI Responses: input_* parts for who asks, output_text and refusal for the assistant (responses.R7)."""

from __future__ import annotations

from typing import Final, Literal

from contextbus.core import json_text, wire
from contextbus.core.json_text import quote
from contextbus.core.wire import Layer, Piece, RepairCode
from contextbus_protocol.chat import Document, Image, Part, Reasoning, Text, Unknown

PROVIDER: Final[Literal["openai-responses"]] = "openai-responses"
TEXT, PART, ITEM, REASONING, MESSAGE = "text", "part", "item", "reasoning", "message:"
"""Kinds of pieces: a plain text, a content part, an item of its own; ``message:`` is followed by the item's members."""
MODELLED: Final = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
    *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    *("input_text", "input_image", "input_file", "output_text", "refusal", "summary_text", "reasoning_text"),
)
"""Kinds of items and parts that are never sent as they came, for the rules are about them."""

_FILE_PROVIDERS: Final = ("openai", PROVIDER)  # both APIs read one store of files
_STATUSES: Final = ("in_progress", "completed", "incomplete")
_DETAILS: Final = ("auto", "low", "high", "original")
_FILE_DETAILS: Final = ("auto", "low", "high")
_BREAKPOINT: Final = ("prompt_cache_breakpoint",)


def data_of(part: Part) -> dict[str, object]:
    """What this provider sent with a part; empty for anybody else's."""
    if part.provider_data is None or part.provider_data.provider != PROVIDER:
        return {}
    return json_text.read_object(part.provider_data.data)


def written(data: dict[str, object], allowed: tuple[str, ...]) -> bytes:
    """Those members of an object that may go back, comma in front (P.A.5)."""
    found = [b",%b:%b" % (quote(key), json_text.encode(data[key])) for key in allowed if data.get(key) is not None]
    return b"".join(found)


def list_of(value: object) -> bytes:
    """A list as JSON, empty for anything else."""
    return json_text.encode(json_text.as_list(value) or ())


def status_of(data: dict[str, object]) -> str:
    """The status of an item, ``completed`` where none is given."""
    status = data.get("status")
    return status if isinstance(status, str) and status in _STATUSES else "completed"


def spoken(text: str, phase: object = None) -> Piece:
    """A message of the assistant that has no id: such a one is a plain text."""
    more = b',"phase":' + quote(phase) if isinstance(phase, str) else b""
    return Piece(b'{"role":"assistant","content":%b%b}' % (quote(text), more), ITEM)


def left_out(kind: str, layer: Layer) -> Piece:
    """The fixed text in place of what this API does not take."""
    text = wire.LEFT_OUT.format(kind=kind)
    return spoken(text) if layer == "assistant" else Piece(quote(text), TEXT)


def text_piece(part: Text, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    """A text; one of the assistant's goes back into its message where that has an id (responses.L6)."""
    if not part.text:
        return None, "empty"
    data = data_of(part)
    if layer != "assistant":
        more = written(data, _BREAKPOINT)
        if not more:
            return Piece(quote(part.text), TEXT), None
        return Piece(b'{"type":"input_text","text":%b%b}' % (quote(part.text), more), PART), None
    message = json_text.as_object(data.get("message")) or {}
    if not isinstance(message.get("id"), str):
        return spoken(part.text, message.get("phase")), None
    head = b'"id":%b,"role":"assistant","status":"%b"' % (quote(str(message["id"])), status_of(message).encode())
    kind = MESSAGE + (head + written(message, ("phase",))).decode()
    if data.get("refusal") is not None:
        return Piece(b'{"type":"refusal","refusal":%b}' % quote(part.text), kind), None
    fields = (quote(part.text), list_of(data.get("annotations")), written(data, ("logprobs",)))
    return Piece(b'{"type":"output_text","text":%b,"annotations":%b%b}' % fields, kind), None


def reasoning_id(part: Part) -> str | None:
    """The id of the reasoning that a part is or refers to."""
    if isinstance(part, Unknown):
        value = {} if wire.native_part(part, PROVIDER, MODELLED) is None else json_text.read_object(part.data)
        found = value.get("id") if value.get("type") == "item_reference" else None
        return found if isinstance(found, str) and found.startswith("rs_") else None
    found = data_of(part).get("id") if isinstance(part, Reasoning) else None
    return found if isinstance(found, str) and found else None


def may_go_back(part: Reasoning) -> bool:
    """Whether reasoning has what the API knows it by: an id, or its encrypted content, which needs none (responses.R6).

    An id is never made up: the encrypted content is bound to the one that it was written with.
    """
    ours = part.provider_data is not None and part.provider_data.provider == PROVIDER
    return ours and (reasoning_id(part) is not None or bool(part.redacted))


def reasoning_piece(part: Reasoning, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    """A reasoning item as it came; one with neither id nor encrypted content cannot go back (responses.R6)."""
    if layer != "assistant" or not may_go_back(part):
        return None, "thinking"
    item_id, data = reasoning_id(part), data_of(part)
    named = b"" if item_id is None else b',"id":' + quote(item_id)
    sealed = b',"encrypted_content":' + quote(part.redacted) if part.redacted is not None else b""
    fields = (
        named,
        list_of(data.get("summary")),
        written(data, ("content",)),
        sealed,
        written(data, ("status",)),
    )
    return Piece(b'{"type":"reasoning"%b,"summary":%b%b%b%b}' % fields, REASONING), None


def unknown_piece(part: Unknown, layer: Layer) -> tuple[Piece, RepairCode | None]:
    """An item or a content part of this API that we do not model, as it came (responses.R8)."""
    data = wire.native_part(part, PROVIDER, MODELLED)
    if data is None or layer in ("system", "result"):
        return left_out(wire.kind_of(part), layer), "unknown-part"
    kind = json_text.read_object(data).get("type")
    if kind == wire.COMPACTION:
        if layer != "assistant":
            return left_out(wire.COMPACTION, layer), "misplaced"
        return Piece(data.encode(), wire.COMPACTION), None
    is_item = layer == "assistant" or data_of(part).get("item") is True
    return Piece(data.encode(), ITEM if is_item else PART), None


def image_piece(part: Image, layer: Layer) -> tuple[Piece, RepairCode | None]:
    """An image as data, URL or file (P.E.8)."""
    json = _image(part, layer)
    if layer != "assistant" and json is not None:
        return Piece(json, PART), None
    return left_out("image", layer), "misplaced" if json is not None else "unknown-part"


def document_piece(part: Document, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    """A file as data, URL or id; one that is text goes as text (P.E.8)."""
    if part.text is not None:
        text = part.text if part.title is None else f"{part.title}\n{part.text}"
        return text_piece(Text(text=text), layer)
    json = _file(part)
    if layer != "assistant" and json is not None:
        return Piece(json, PART), None
    return left_out("document", layer), "misplaced" if json is not None else "unknown-part"


def screenshot(part: Image) -> bytes | None:
    """Where an image is, as a computer's screenshot has it."""
    url = _url(part)
    if url is not None:
        return b',"image_url":' + quote(url)
    return b',"file_id":' + quote(part.file_id) if part.file_id is not None and _may_name_file(part) else None


def _may_name_file(part: Part) -> bool:
    return part.provider_data is None or part.provider_data.provider in _FILE_PROVIDERS


def _url(part: Image) -> str | None:
    if part.data is not None:
        return f"data:{part.media_type or 'image/png'};base64,{part.data}"
    return part.url


def _image(part: Image, layer: Layer) -> bytes | None:
    place = screenshot(part)
    if place is None:
        return None
    data = data_of(part)
    detail = data.get("detail")
    asked = detail if isinstance(detail, str) and detail in _DETAILS else None
    if asked is None and layer != "result":
        asked = "auto"
    more = b"" if asked is None else b',"detail":"%b"' % asked.encode()
    return b'{"type":"input_image"%b%b%b}' % (place, more, written(data, _BREAKPOINT))


def _file(part: Document) -> bytes | None:
    data, title = data_of(part), part.title
    if part.data is not None:
        head = "" if data.get("bare") is True else f"data:{part.media_type or 'application/octet-stream'};base64,"
        place = b',"file_data":' + quote(head + part.data)
        title = title or "document"
    elif part.url is not None:
        place = b',"file_url":' + quote(part.url)
    elif part.file_id is not None and _may_name_file(part):
        place = b',"file_id":' + quote(part.file_id)
    else:
        return None
    name = b"" if title is None else b',"filename":' + quote(title)
    detail = data.get("detail")
    asked = ("detail",) if isinstance(detail, str) and detail in _FILE_DETAILS else ()
    return b'{"type":"input_file"%b%b%b}' % (place, name, written(data, (*asked, *_BREAKPOINT)))

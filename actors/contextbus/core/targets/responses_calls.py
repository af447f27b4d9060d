"""Calls of OpenAI Responses and their outputs: functions, custom tools, and the tools that a host runs for the model.

Each of them must be answered (responses.R9), so each is a call of ours; each kind of call has its own kind of output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from contextbus.core import json_text, wire
from contextbus.core.json_text import quote
from contextbus.core.targets.responses_parts import (
    PART,
    data_of,
    document_piece,
    image_piece,
    screenshot,
    status_of,
    text_piece,
    unknown_piece,
    written,
)
from contextbus.core.wire import Call, Layer, Piece, RepairCode
from contextbus_protocol.chat import Document, Image, ResultPart, Text, ToolCall, ToolResult, Unknown

LONGEST_NAME: Final = 64
BLANK: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
)
"""The screenshot of a computer call that has none: one grey point, for its output can hold nothing else."""

_TYPE = re.compile(rb'\{"type":"([a-z_]+)"')
_FUNCTION, _CUSTOM = "function_call", "custom_tool_call"

Codes = tuple[RepairCode, ...]


class Form(msgspec.Struct, frozen=True):
    """How a kind of call is written.

    ``payload`` are the members that are the arguments: one that is them, or several that are among them.  ``members``
    may go back, ``status`` must be there.  Without the id, where it ``needs_id``, a call goes as a function's.
    """

    payload: tuple[str, ...]
    members: tuple[str, ...]
    needs_id: bool = False
    status: bool = False


FORMS: Final[dict[str, Form]] = {
    _FUNCTION: Form(("arguments",), ("id", "caller", "namespace", "status", "async")),
    _CUSTOM: Form(("input",), ("id", "caller", "namespace", "async")),
    "computer_call": Form(("action", "actions"), ("id",), needs_id=True, status=True),
    "local_shell_call": Form(("action",), ("id",), needs_id=True, status=True),
    "shell_call": Form(("action",), ("id", "caller", "environment", "status")),
    "apply_patch_call": Form(("operation",), ("id", "caller"), status=True),
}
"""The kinds of calls, by type of their items."""


def wire_name(name: str) -> str:
    """A tool's name as OpenAI takes it."""
    return wire.wire_name(name, LONGEST_NAME)


def needs_id(call: ToolCall) -> bool:
    """Whether the item of a call cannot be without its id."""
    form = FORMS.get(str(data_of(call).get("type")))
    return form is not None and form.needs_id


def write_call(call: ToolCall, wire_id: str, arguments: str) -> bytes:
    """The item of a call with its wire id and sound arguments (responses.R2, R3)."""
    data = data_of(call)
    kind = str(data.get("type", _FUNCTION))
    form = FORMS.get(kind)
    if form is not None and kind == _CUSTOM:
        text = json_text.read_object(arguments).get("input")
        said = quote(text if isinstance(text, str) else arguments)
        named = (quote(wire_id), quote(wire_name(call.name)), said, written(data, form.members))
        return b'{"type":"custom_tool_call","call_id":%b,"name":%b,"input":%b%b}' % named
    if form is not None and kind != _FUNCTION:
        payload = _payload(form, arguments)
        if payload and (not form.needs_id or isinstance(data.get("id"), str)):
            more = written(data, form.members)
            if kind == "computer_call":
                checks = data.get("pending_safety_checks")
                more += b',"pending_safety_checks":' + json_text.encode(checks if isinstance(checks, list) else [])
            if form.status:
                more += b',"status":' + quote(status_of(data))
            return b'{"type":"%b","call_id":%b%b%b}' % (kind.encode(), quote(wire_id), payload, more)
    members = FORMS[_FUNCTION].members if kind == _FUNCTION else ()
    fields = (quote(wire_id), quote(wire_name(call.name)), quote(arguments), written(data, members))
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % fields


def write_result(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    """The output of a call, of the kind that the call wants (responses.R4)."""
    match = _TYPE.match(call.json)
    kind = _FUNCTION if match is None else match[1].decode()
    return _OUTPUTS.get(kind, _of_function)(result, call)


def _payload(form: Form, arguments: str) -> bytes:
    """The members that hold the arguments, comma in front; empty where they are not there."""
    value = json_text.read_object(arguments)
    if len(form.payload) > 1:
        return written(value, form.payload)
    return b',"%b":%b' % (form.payload[0].encode(), arguments.encode()) if value else b""


def _pieces(result: ToolResult, image_layer: Layer) -> tuple[list[Piece], Codes]:
    """The parts of a result; ``image_layer`` says whether an image must have its detail."""
    found = [_piece(part, image_layer) for part in result.content]
    return [piece for piece, _ in found if piece is not None], tuple(code for _, code in found if code is not None)


def _piece(part: ResultPart, image_layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    match part:
        case Text():
            return text_piece(part, "result")
        case Image():
            return image_piece(part, image_layer)
        case Document():
            return document_piece(part, "result")
        case Unknown():
            return unknown_piece(part, "result")


def content(pieces: Iterable[Piece]) -> bytes | None:
    """A string where it is one plain text, else a list of parts; None for nothing."""
    found = list(pieces)
    if not found:
        return None
    if len(found) == 1 and found[0].kind != PART:
        return found[0].json
    return content_list(found)


def content_list(pieces: Iterable[Piece]) -> bytes:
    """A list of parts."""
    parts = [p.json if p.kind == PART else b'{"type":"input_text","text":%b}' % p.json for p in pieces]
    return b"[%b]" % b",".join(parts)


def _text(result: ToolResult) -> tuple[str, Codes]:
    """The texts of a result as lines, for outputs that take nothing else."""
    lines: list[str] = []
    codes: list[RepairCode] = []
    for part in result.content:
        if isinstance(part, Text):
            lines.append(part.text)
        else:
            lines.append(wire.LEFT_OUT.format(kind=type(part).__name__.lower()))
            codes.append("unknown-part")
    return "\n".join(lines), tuple(codes)


def _of_function(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    pieces, codes = _pieces(result, "result")
    more = written(data_of(result), ("id", "caller", "name", "namespace", "status"))
    fields = (quote(call.wire), content(pieces) or b'""', more)
    return b'{"type":"function_call_output","call_id":%b,"output":%b%b}' % fields, codes


def _of_custom(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    pieces, codes = _pieces(result, "user")
    fields = (quote(call.wire), content(pieces) or b'""', written(data_of(result), ("id", "caller")))
    return b'{"type":"custom_tool_call_output","call_id":%b,"output":%b%b}' % fields, codes


def _of_computer(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    places = [place for part in result.content if isinstance(part, Image) and (place := screenshot(part)) is not None]
    place = places[-1] if places else b',"image_url":' + quote(BLANK)
    codes: list[RepairCode] = ["unknown-part"] * (len(result.content) - len(places[-1:]))
    fields = (quote(call.wire), place, written(data_of(result), ("id", "acknowledged_safety_checks", "status")))
    json = b'{"type":"computer_call_output","call_id":%b,"output":{"type":"computer_screenshot"%b}%b}' % fields
    return json, tuple(codes)


def _of_local_shell(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    text, codes = _text(result)
    data = data_of(result)
    named = data.get("id")
    fields = (quote(named if isinstance(named, str) else call.wire), quote(text), written(data, ("status",)))
    return b'{"type":"local_shell_call_output","id":%b,"output":%b%b}' % fields, codes


def _of_shell(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    chunks: list[bytes] = []
    codes: list[RepairCode] = []
    for part in result.content:
        if isinstance(part, Text):
            chunks.append(_chunk(part.text, failed=result.error))
        else:
            codes.append("unknown-part")
            chunks.append(_chunk(wire.LEFT_OUT.format(kind=type(part).__name__.lower()), failed=result.error))
    more = written(data_of(result), ("id", "caller", "max_output_length", "status"))
    fields = (quote(call.wire), b",".join(chunks), more)
    return b'{"type":"shell_call_output","call_id":%b,"output":[%b]%b}' % fields, tuple(codes)


def _chunk(text: str, *, failed: bool) -> bytes:
    sound = json_text.sound_object(text)
    if sound is not None and set(json_text.read_object(sound)) == {"stdout", "stderr", "outcome"}:
        return sound.encode()
    said, name = quote(text), b"stderr" if failed else b"stdout"
    other = b"stdout" if failed else b"stderr"
    fields = (name, said, other, b"1" if failed else b"0")
    return b'{"%b":%b,"%b":"","outcome":{"type":"exit","exit_code":%b}}' % fields


def _of_patch(result: ToolResult, call: Call) -> tuple[bytes, Codes]:
    text, codes = _text(result)
    said = b',"output":' + quote(text) if text else b""
    status = b"failed" if result.error else b"completed"
    fields = (quote(call.wire), status, said, written(data_of(result), ("id", "caller")))
    return b'{"type":"apply_patch_call_output","call_id":%b,"status":"%b"%b%b}' % fields, codes


_OUTPUTS: Final[dict[str, Callable[[ToolResult, Call], tuple[bytes, Codes]]]] = {
    _CUSTOM: _of_custom,
    "computer_call": _of_computer,
    "local_shell_call": _of_local_shell,
    "shell_call": _of_shell,
    "apply_patch_call": _of_patch,
}

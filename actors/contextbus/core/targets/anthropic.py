"""Anthropic Messages: neighbours merged, results first, the system layer apart (anthropic.A1 to A19)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from contextbus.core import json_text, wire
from contextbus.core.breakpoints import join_written, write_list
from contextbus.core.cache_control import read_control, write_control
from contextbus.core.json_text import quote
from contextbus.core.prefill_models import takes_prefill
from contextbus.core.targets.gemini_media import is_signed
from contextbus.core.wire import Call, Group, Layer, Piece, RepairCode, Turn, Written, WrittenResult
from contextbus_protocol.chat import (
    AnyPart,
    Cache,
    ChatMessage,
    Document,
    Image,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

PROVIDER: Final[Literal["anthropic"]] = "anthropic"
LONGEST_NAME: Final = 128
IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")

_COMPACTION: Final = "compaction"
_ID = re.compile(r"[a-zA-Z0-9_-]+")

_MODELLED = ("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result")

# Members that came with a part and may go back (P.A.5); whatever else came with it stays behind.
_MEMBERS: Final[dict[str, tuple[str, ...]]] = {
    "Text": ("citations",),
    "Image": ("transformations",),
    "Document": ("citations", "context"),
    "ToolCall": ("caller", "toolset_name"),
    "ToolResult": ("toolset_name",),
}


class AnthropicTarget(msgspec.Struct, frozen=True):
    """Writes requests for Anthropic's Messages API; ``model_id`` is the model, None where it is not known."""

    model_id: str | None = None
    name: Literal["anthropic"] = "anthropic"
    provider: Literal["anthropic"] = PROVIDER
    list_name: Literal["messages"] = "messages"
    takes_breakpoints: Literal[True] = True
    merges: Literal[True] = True
    calls_last: Literal[True] = True
    results_alone: Literal[False] = False
    needs_tools: Literal[True] = True

    @property
    def takes_prefill(self) -> bool:
        """Claude up to 4.5 takes one (anthropic.A5)."""
        return self.model_id is not None and takes_prefill(PROVIDER, self.model_id)

    def takes_id(self, call_id: str) -> bool:
        """``^[a-zA-Z0-9_-]+$`` (anthropic.A9)."""
        return _ID.fullmatch(call_id) is not None

    def write_breakpoint(self, cache: Cache) -> bytes:
        """A ``cache_control`` (anthropic.A15)."""
        return b',"cache_control":' + json_text.encode(write_control(cache))

    def read_breakpoint(self, members: Mapping[str, object]) -> Cache:
        """What its ``cache_control`` asks for; at the body itself that is the automatic one."""
        return read_control(members)

    def thinks(self, members: Mapping[str, object]) -> bool:
        """Whether ``thinking`` is there and not disabled."""
        asked = members.get("thinking")
        return asked is not None and json_text.read_object(json_text.encode(asked).decode()).get("type") != "disabled"

    def loses_signature(self, part: Part) -> bool:
        """Signatures of Gemini's calls and texts stay behind (P.E.5)."""
        return is_signed(part)

    def part(self, part: AnyPart, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        """A content block (anthropic.A4, A13)."""
        match part:
            case Text():
                if not part.text or part.text.isspace():
                    return None, "empty"
                return Piece(b'{"type":"text","text":%b%b}' % (quote(part.text), _members(part)), "text"), None
            case Reasoning():
                return self._reasoning(part, layer)
            case Image():
                return self._placed(part, _image(part), layer)
            case Document():
                return self._placed(part, _document(part), layer)
            case Unknown():
                data = wire.native_part(part, PROVIDER, _MODELLED)
                if data is None:
                    return self.text(wire.left_out(part)), "unknown-part"
                if wire.kind_of(part) == _COMPACTION:
                    return _compaction(data, layer)
                return Piece(data.encode(), "other"), None
            case _:
                return None, "misplaced"

    def members(self, message: ChatMessage) -> bytes:
        """A message has only role and content."""
        del message
        return b""

    def call(self, call: ToolCall, wire: str, arguments: str) -> bytes:
        """A ``tool_use`` block (anthropic.A10)."""
        name = quote(wire_name(call.name))
        fields = (quote(wire), name, arguments.encode(), _members(call))
        return b'{"type":"tool_use","id":%b,"name":%b,"input":%b%b}' % fields

    def result(self, result: ToolResult, call: Call) -> WrittenResult:
        """A ``tool_result`` block; its content is a string where it is one plain text."""
        written = [(part, *self.part(part, "result")) for part in result.content]
        kept = [(part, piece) for part, piece, _ in written if piece is not None]
        codes: tuple[RepairCode, ...] = tuple(code for _, _, code in written if code is not None)
        content = b',"content":[%b]' % b",".join(piece.json for _, piece in kept) if kept else b""
        if len(kept) == 1 and isinstance(kept[0][0], Text) and not _members(kept[0][0]):
            content = b',"content":' + quote(kept[0][0].text)
        error = b',"is_error":true' if result.error else b""
        fields = (quote(call.wire), content, error, _members(result))
        return WrittenResult(b'{"type":"tool_result","tool_use_id":%b%b%b%b}' % fields, codes)

    def error_result(self, text: str, call: Call) -> bytes:
        """A ``tool_result`` block that is an error."""
        fields = (quote(call.wire), quote(text))
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b,"is_error":true}' % fields

    def text(self, text: str) -> Piece:
        """A text block."""
        return Piece(b'{"type":"text","text":%b}' % quote(text), "text")

    def late_system(self, pieces: tuple[Piece, ...], message: ChatMessage) -> Turn:
        """A user message in a fixed escaped element (P.E.19)."""
        del pieces
        return wire.late_system_turn(message, self)

    def lay_out(self, group: Group) -> tuple[Written, ...]:
        """One assistant message, calls last; then one user message, results first in call order (A6, A7, L3)."""
        messages: list[Written] = []
        if group.turns:
            blocks = [piece for turn in group.turns for piece in turn.pieces]
            blocks += [Piece(call.json, cache=call.cache) for call in group.calls]
            messages.append(write_list(blocks, b'{"role":"assistant","content":[', b"]}"))
        blocks = [Piece(call.result, cache=call.result_cache) for call in group.calls if call.result is not None]
        blocks += [piece for turn in group.others for piece in turn.pieces]
        if blocks:
            messages.append(write_list(blocks, b'{"role":"user","content":[', b"]}"))
        return tuple(messages)

    def tool(self, name: str, description: str, parameters: bytes) -> bytes:
        """A tool definition with ``input_schema`` (P.E.3)."""
        about = b',"description":' + quote(description) if description else b""
        return b'{"name":%b%b,"input_schema":%b}' % (quote(wire_name(name)), about, parameters)

    def fields(self, system: tuple[Written, ...], tools: Written | None) -> dict[str, Written]:
        """``system`` and ``tools``, where there are any (anthropic.A12)."""
        found: dict[str, Written] = {}
        if system:
            found["system"] = join_written(system)
        if tools is not None:
            found["tools"] = tools
        return found

    def lead(self, system: tuple[Written, ...]) -> tuple[bytes, ...]:
        """Nothing: system messages are a field."""
        del system
        return ()

    def system(self, message: ChatMessage) -> Written | None:
        """Text blocks of the top-level system prompt."""
        texts = [part for part in message.content if isinstance(part, Text) and part.text.strip()]
        if not texts:
            return None
        return write_list(
            [
                Piece(b'{"type":"text","text":%b%b}' % (quote(part.text), _members(part)), "text", part.cache)
                for part in texts
            ],
            b"",
            b"",
        )

    def opening(self) -> bytes | None:
        """The first message is the user's (anthropic.A2, P.E.16)."""
        return b'{"role":"user","content":[%b]}' % self.text(wire.OPENING).json

    def close(self, group: Group, *, prefilled: bool) -> tuple[Group, bool]:
        """An answer at the end stays last and is stripped, or a user message follows it (anthropic.A5, P.E.17)."""
        if not group.turns or group.others or group.answered:
            return group, False
        turn = group.turns[-1]
        last = turn.pieces[-1] if turn.pieces else None
        if prefilled or not self.takes_prefill or last is None or last.kind != "text":
            user = Turn("user", (self.text(wire.CONTINUE),))
            return Group(group.turns, group.calls, (user,), group.answered), True
        stripped = _strip_end(last)
        if stripped is last:
            return group, False
        turn = Turn(turn.role, (*turn.pieces[:-1], stripped))
        return Group((*group.turns[:-1], turn), group.calls, (), group.answered), True

    def prefill(self, text: str) -> bytes:
        """An assistant message, stripped at its end (anthropic.A5)."""
        return b'{"role":"assistant","content":[%b]}' % self.text(text.rstrip()).json

    def _reasoning(self, part: Reasoning, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        if layer != "assistant" or not _is_ours(part, default=True):
            return None, "thinking"
        if part.redacted is not None:
            return Piece(b'{"type":"redacted_thinking","data":%b}' % quote(part.redacted), "thinking"), None
        if not part.signature:
            return None, "thinking"
        fields = (quote(part.text), quote(part.signature))
        return Piece(b'{"type":"thinking","thinking":%b,"signature":%b}' % fields, "thinking"), None

    def _placed(self, part: Part, json: bytes | None, layer: Layer) -> tuple[Piece, RepairCode | None]:
        if layer in ("user", "result") and json is not None:
            return Piece(json, "other"), None
        return self.text(wire.left_out(part)), "misplaced" if json is not None else "unknown-part"


def wire_name(name: str) -> str:
    """A tool's name as Anthropic takes it."""
    return wire.wire_name(name, LONGEST_NAME)


def _strip_end(piece: Piece) -> Piece:
    block = json_text.read_object(piece.json.decode())
    text = str(block["text"])
    if text == text.rstrip():
        return piece
    block["text"] = text.rstrip()
    return Piece(json_text.encode(block), piece.kind, piece.cache)


def _is_ours(part: Part, *, default: bool) -> bool:
    return part.provider_data.provider == PROVIDER if part.provider_data else default


def _members(part: Part) -> bytes:
    if part.provider_data is None or part.provider_data.provider != PROVIDER:
        return b""
    allowed = _MEMBERS.get(type(part).__name__, ())
    data = json_text.read_object(part.provider_data.data) if allowed else {}
    found = [b",%b:%b" % (quote(key), json_text.encode(data[key])) for key in allowed if data.get(key) is not None]
    return b"".join(found)


def _source(kind: bytes, **members: str) -> bytes:
    return b'{"type":"%b"%b}' % (kind, b"".join(b',"%b":%b' % (key.encode(), quote(v)) for key, v in members.items()))


def _compaction(data: str, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    """A summary that stands for every message before it (anthropic.A17); one without content says nothing."""
    if layer not in ("user", "assistant"):
        return None, "misplaced"
    if not json_text.read_object(data).get("content"):
        return None, "empty"
    return Piece(data.encode(), wire.COMPACTION), None


def _image(part: Image) -> bytes | None:
    if part.data is not None and part.media_type in IMAGE_TYPES:
        source = _source(b"base64", media_type=part.media_type, data=part.data)
    elif part.url is not None:
        source = _source(b"url", url=part.url)
    elif part.file_id is not None and _is_ours(part, default=True):
        source = _source(b"file", file_id=part.file_id)
    else:
        return None
    return b'{"type":"image","source":%b%b}' % (source, _members(part))


def _document(part: Document) -> bytes | None:
    if part.text is not None:
        source = _source(b"text", media_type="text/plain", data=part.text)
    elif part.data is not None and part.media_type == "application/pdf":
        source = _source(b"base64", media_type=part.media_type, data=part.data)
    elif part.url is not None:
        source = _source(b"url", url=part.url)
    elif part.file_id is not None and _is_ours(part, default=True):
        source = _source(b"file", file_id=part.file_id)
    else:
        return None
    title = b',"title":' + quote(part.title) if part.title is not None else b""
    return b'{"type":"document","source":%b%b%b}' % (source, title, _members(part))

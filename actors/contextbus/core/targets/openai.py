"""OpenAI Chat Completions: every call answered right behind its message (openai.C1 to C9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from contextbus.core import json_text, wire
from contextbus.core.json_text import quote
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

PROVIDER: Final[Literal["openai"]] = "openai"
LONGEST_NAME: Final = 64
LONGEST_ID: Final = 40

_PARTICIPANT = re.compile(r"[^\s<|\\/>]{1,64}")
_DETAILS = ("auto", "low", "high", "original")
_BREAKPOINT: Final = "prompt_cache_breakpoint"
"""A member of parts that goes back to OpenAI as it came (P.A.5); breakpoints of ours are never written (P.E.4)."""
_MODELLED = ("text", "refusal", "image_url", "file")
# Kinds of assistant parts that are members of the message, not of its content.
_REFUSAL, _AUDIO = "refusal", "audio"


class OpenAITarget(msgspec.Struct, frozen=True):
    """Writes requests for OpenAI's Chat Completions API; ``model_id`` is the model, None where it is not known."""

    model_id: str | None = None
    name: Literal["openai"] = "openai"
    provider: Literal["openai"] = PROVIDER
    list_name: Literal["messages"] = "messages"
    takes_prefill: Literal[False] = False
    takes_breakpoints: Literal[False] = False
    merges: Literal[False] = False
    calls_last: Literal[False] = False
    results_alone: Literal[False] = False
    needs_tools: Literal[False] = False

    def takes_id(self, call_id: str) -> bool:
        """1 to 40 characters (openai.C7)."""
        return 0 < len(call_id) <= LONGEST_ID and call_id.isprintable()

    def write_breakpoint(self, cache: Cache) -> bytes:
        """Nothing: this API takes none from the caller."""
        del cache
        return b""

    def read_breakpoint(self, members: Mapping[str, object]) -> Cache:
        """False: this API knows none."""
        del members
        return False

    def thinks(self, members: Mapping[str, object]) -> bool:
        """False: no model of this API takes a prefill, which is what asks."""
        del members
        return False

    def loses_signature(self, part: Part) -> bool:
        """Signatures of Gemini's calls and texts stay behind (P.E.5)."""
        return is_signed(part)

    def part(self, part: AnyPart, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        """A content part; reasoning is never sent, this API has no place for it (P.E.5)."""
        match part:
            case Text():
                return _text(part, layer)
            case Reasoning():
                return None, "thinking"
            case Image():
                return self._placed(part, _image(part), layer)
            case Document():
                if part.text is not None:
                    return self.text(part.text if part.title is None else f"{part.title}\n{part.text}"), None
                return self._placed(part, _file(part), layer)
            case Unknown():
                return self._unknown(part, layer)
            case _:
                return None, "misplaced"

    def members(self, message: ChatMessage) -> bytes:
        """The participant's name, where the API takes it."""
        if message.name is None or not _PARTICIPANT.fullmatch(message.name):
            return b""
        return b',"name":' + quote(message.name)

    def call(self, call: ToolCall, wire: str, arguments: str) -> bytes:
        """A member of ``tool_calls`` (openai.C8, C9)."""
        name = quote(wire_name(call.name))
        if _data(call).get("type") == "custom":
            text = json_text.read_object(arguments).get("input")
            fields = (quote(wire), name, quote(text if isinstance(text, str) else arguments))
            return b'{"id":%b,"type":"custom","custom":{"name":%b,"input":%b}}' % fields
        fields = (quote(wire), name, quote(arguments))
        return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % fields

    def result(self, result: ToolResult, call: Call) -> WrittenResult:
        """A ``tool`` message; this API has no mark for a failed call."""
        written = [self.part(part, "result") for part in result.content]
        content = _content(piece for piece, _ in written if piece is not None) or b'""'
        codes: tuple[RepairCode, ...] = tuple(code for _, code in written if code is not None)
        return WrittenResult(b'{"role":"tool","tool_call_id":%b,"content":%b}' % (quote(call.wire), content), codes)

    def error_result(self, text: str, call: Call) -> bytes:
        """A ``tool`` message that says what went wrong."""
        return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (quote(call.wire), quote(text))

    def text(self, text: str) -> Piece:
        """A text part."""
        return Piece(quote(text), "text")

    def late_system(self, pieces: tuple[Piece, ...], message: ChatMessage) -> Turn:
        """It stays what it is (P.E.19)."""
        return Turn(_system_role(message), pieces, self.members(message))

    def lay_out(self, group: Group) -> tuple[Written, ...]:
        """Each assistant message with its results behind it, then the others in order (openai.C3)."""
        messages: list[bytes] = []
        for number, turn in enumerate(group.turns):
            calls = [call for call in group.calls if call.turn == number]
            messages.append(_assistant(turn, [call.json for call in calls]))
            messages += [call.result for call in calls if call.result is not None]
        messages += [_message(turn) for turn in group.others]
        return tuple(map(Written, messages))

    def tool(self, name: str, description: str, parameters: bytes) -> bytes:
        """A function tool (P.E.3)."""
        about = b',"description":' + quote(description) if description else b""
        fields = (quote(wire_name(name)), about, parameters)
        return b'{"type":"function","function":{"name":%b%b,"parameters":%b}}' % fields

    def fields(self, system: tuple[Written, ...], tools: Written | None) -> dict[str, Written]:
        """``tools``, where there are any; system messages are messages."""
        del system
        return {} if tools is None else {"tools": tools}

    def lead(self, system: tuple[Written, ...]) -> tuple[bytes, ...]:
        """All of it: system messages are messages."""
        return tuple(message.json for message in system)

    def system(self, message: ChatMessage) -> Written | None:
        """A message of its own."""
        texts = [_text(part, "system")[0] for part in message.content if isinstance(part, Text)]
        pieces = [piece for piece in texts if piece is not None]
        if not pieces:
            return None
        return Written(_message(Turn(_system_role(message), tuple(pieces), self.members(message))))

    def opening(self) -> bytes | None:
        """None: the assistant may speak first."""
        return None

    def close(self, group: Group, *, prefilled: bool) -> tuple[Group, bool]:
        """Any message may be the last."""
        del prefilled
        return group, False

    def prefill(self, text: str) -> bytes:
        """An assistant message; no model of this API continues one."""
        return b'{"role":"assistant","content":%b}' % quote(text.rstrip())

    def _unknown(self, part: Unknown, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        data = wire.native_part(part, PROVIDER, _MODELLED)
        if data is not None and layer == "assistant" and _data(part).get("member") == _AUDIO:
            audio = json_text.read_object(data).get("id")
            if isinstance(audio, str):
                return Piece(b'{"id":%b}' % quote(audio), _AUDIO), None
        if data is not None and layer == "user":
            return Piece(data.encode(), "other"), None
        return self.text(wire.left_out(part)), "unknown-part"

    def _placed(self, part: Part, json: bytes | None, layer: Layer) -> tuple[Piece, RepairCode | None]:
        if layer == "user" and json is not None:
            return Piece(json, "other"), None
        left_out = self.text(wire.left_out(part))
        return left_out, "misplaced" if json is not None else "unknown-part"


def wire_name(name: str) -> str:
    """A tool's name as OpenAI takes it (openai.C8)."""
    return wire.wire_name(name, LONGEST_NAME)


def _text(part: Text, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
    if not part.text:
        return None, "empty"
    refusal = _data(part).get("refusal") if layer == "assistant" else None
    if refusal == "message":
        return Piece(quote(part.text), _REFUSAL), None
    if refusal == "part":
        return Piece(b'{"type":"refusal","refusal":%b}' % quote(part.text), "other"), None
    if more := _more(part):
        return Piece(b'{"type":"text","text":%b%b}' % (quote(part.text), more), "other"), None
    return Piece(quote(part.text), "text"), None


def _content(pieces: Iterable[Piece]) -> bytes | None:
    """A string where it is one plain text, else parts; None for nothing."""
    found = [piece for piece in pieces if piece.kind not in (_REFUSAL, _AUDIO)]
    if not found:
        return None
    if len(found) == 1 and found[0].kind == "text":
        return found[0].json
    parts = [b'{"type":"text","text":%b}' % piece.json if piece.kind == "text" else piece.json for piece in found]
    return b"[%b]" % b",".join(parts)


def _message(turn: Turn) -> bytes:
    fields = (turn.role.encode(), _content(turn.pieces) or b'""', turn.members)
    return b'{"role":"%b","content":%b%b}' % fields


def _assistant(turn: Turn, calls: list[bytes]) -> bytes:
    members = turn.members
    for kind in (_REFUSAL, _AUDIO):
        found = [piece.json for piece in turn.pieces if piece.kind == kind]
        members += b',"%b":%b' % (kind.encode(), found[-1]) if found else b""
    members += b',"tool_calls":[%b]' % b",".join(calls) if calls else b""
    return b'{"role":"assistant","content":%b%b}' % (_content(turn.pieces) or b"null", members)


def _system_role(message: ChatMessage) -> Literal["system", "developer"]:
    data = message.provider_data
    if data is None or data.provider != PROVIDER or json_text.read_object(data.data).get("role") != "developer":
        return "system"
    return "developer"


def _is_ours(part: Part) -> bool:
    return part.provider_data is None or part.provider_data.provider == PROVIDER


def _data(part: Part) -> dict[str, object]:
    if part.provider_data is None or part.provider_data.provider != PROVIDER:
        return {}
    return json_text.read_object(part.provider_data.data)


def _image(part: Image) -> bytes | None:
    if part.data is not None:
        url = f"data:{part.media_type or 'image/png'};base64,{part.data}"
    elif part.url is not None:
        url = part.url
    else:
        return None
    detail = _data(part).get("detail")
    asked = b',"detail":"%b"' % detail.encode() if isinstance(detail, str) and detail in _DETAILS else b""
    return b'{"type":"image_url","image_url":{"url":%b%b}%b}' % (quote(url), asked, _more(part))


def _file(part: Document) -> bytes | None:
    if part.data is not None:
        title = part.title or "document"
        data = f"data:{part.media_type or 'application/octet-stream'};base64,{part.data}"
        fields = (quote(title), quote(data), _more(part))
        return b'{"type":"file","file":{"filename":%b,"file_data":%b}%b}' % fields
    if part.file_id is not None and _is_ours(part):
        name = b"" if part.title is None else b',"filename":' + quote(part.title)
        return b'{"type":"file","file":{"file_id":%b%b}%b}' % (quote(part.file_id), name, _more(part))
    return None


def _more(part: Part) -> bytes:
    """Members that came with a part and go back, comma in front."""
    asked = json_text.as_object(_data(part).get(_BREAKPOINT))
    return b"" if asked is None else b',"%b":%b' % (_BREAKPOINT.encode(), json_text.encode(asked))

"""Gemini generateContent: strict alternation, results first, the system layer apart (gemini.G1 to G9)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import force_setattr, replace

from contextbus.core import json_text, wire
from contextbus.core.breakpoints import join_written, write_list
from contextbus.core.json_text import quote
from contextbus.core.targets import gemini_media as media
from contextbus.core.targets.gemini_tools import NAME
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

PROVIDER: Final[Literal["gemini"]] = media.PROVIDER
LONGEST_NAME: Final = 128
NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""The documented signature of a call that no Gemini model signed (gemini.G8)."""

_OUTSIDE_NAME = re.compile(r"[^A-Za-z0-9_.:-]")
_PAIRED: Final = ("text", "functionCall", "functionResponse")  # data fields that never go back as they came
_RESULT_MEMBERS: Final = ("scheduling", "willContinue")


class GeminiTarget(msgspec.Struct, frozen=True):
    """Writes requests for Gemini's generateContent in its REST form; ``model_id`` is the model, None if not known.

    ``cachedContent`` is the caller's member: with it, neither system layer nor tools may be sent (gemini.G9).
    """

    model_id: str | None = None
    name: Literal["gemini"] = "gemini"
    provider: Literal["gemini"] = PROVIDER
    list_name: Literal["contents"] = "contents"
    takes_prefill: Literal[False] = False
    takes_breakpoints: Literal[False] = False
    merges: Literal[True] = True
    calls_last: Literal[False] = False
    results_alone: Literal[True] = True
    needs_tools: Literal[False] = False

    def __post_init__(self) -> None:
        """A resource name ("models/…") and the id that ends it are one model."""
        if self.model_id is not None:
            force_setattr(self, "model_id", self.model_id.rpartition("/")[2])

    def takes_id(self, call_id: str) -> bool:
        """Any: there is no rule for ids, and only those that Gemini gave go back."""
        del call_id
        return True

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
        """One that another model of Gemini's gave stays behind (P.E.5)."""
        return media.is_signed(part) and wire.is_issued_elsewhere(part, self)

    def part(self, part: AnyPart, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        """A part of a content, with one data field (gemini.G3, G5)."""
        match part:
            case Text():
                if not part.text:
                    return None, "empty"
                return self._piece(b'"text":' + quote(part.text), part, layer, "text"), None
            case Reasoning():
                return self._thought(part, layer)
            case Image() | Document():
                return self._placed(part, layer)
            case Unknown():
                return self._unknown(part, layer)
            case _:
                return None, "misplaced"

    def members(self, message: ChatMessage) -> bytes:
        """A content has only role and parts."""
        del message
        return b""

    def call(self, call: ToolCall, wire: str, arguments: str) -> bytes:
        """A ``functionCall`` part; an id only where Gemini gave one (gemini.G6)."""
        given = b'"id":%b,' % quote(wire) if media.own_data(call).get("id") is not None else b""
        fields = (given, quote(wire_name(call.name)), arguments.encode(), self._signed(call))
        return b'{"functionCall":{%b"name":%b,"args":%b}%b}' % fields

    def result(self, result: ToolResult, call: Call) -> WrittenResult:
        """A ``functionResponse`` part, with the media that the tool returned inside or behind it (gemini.G6).

        Its response is ``{"result": text}`` or ``{"error": text}``, but an object that came from Gemini stays one.
        """
        texts: list[str] = []
        nested: list[bytes] = []
        beside: list[bytes] = []
        codes: list[RepairCode] = []
        for part in result.content:
            if isinstance(part, Text):
                texts += [part.text] if part.text else []
                continue
            if isinstance(part, Document):
                texts += [text for text in (part.title, part.text) if text]
                if part.text is not None:
                    continue
            field = self._native(part) if isinstance(part, Unknown) else media.data_field(part)
            if field is None:
                codes.append("unknown-part")
                texts.append(wire.left_out(part))
            elif media.goes_into_result(part, self.model_id):
                nested.append(b"{%b%b}" % (field, media.members(part, media.NESTED_MEMBERS)))
            else:
                beside.append(b"{%b}" % field)
        response = _response(result, texts)
        inside = b',"parts":[%b]' % b",".join(nested) if nested else b""
        inside += media.members(result, _RESULT_MEMBERS)
        behind = media.members(result, media.MEMBERS)
        written = b'{"functionResponse":{%b,"response":%b%b}%b}' % (_answer_to(call), response, inside, behind)
        return WrittenResult(written, tuple(codes), tuple(beside))

    def error_result(self, text: str, call: Call) -> bytes:
        """A ``functionResponse`` part that says what went wrong."""
        return b'{"functionResponse":{%b,"response":{"error":%b}}}' % (_answer_to(call), quote(text))

    def text(self, text: str) -> Piece:
        """A text part."""
        return Piece(b'{"text":%b}' % quote(text), "text")

    def late_system(self, pieces: tuple[Piece, ...], message: ChatMessage) -> Turn:
        """A user content in a fixed escaped element (P.E.19)."""
        del pieces
        return wire.late_system_turn(message, self)

    def lay_out(self, group: Group) -> tuple[Written, ...]:
        """One model content, calls where they were made; then one user content, results first (gemini.G4, G7)."""
        messages: list[Written] = []
        if group.turns:
            messages.append(Written(b'{"role":"model","parts":[%b]}' % b",".join(_model_parts(group))))
        parts = [call.result for call in group.calls if call.result is not None]
        parts += [item for call in group.calls for item in call.beside]
        parts += [piece.json for turn in group.others for piece in turn.pieces]
        if parts:
            messages.append(Written(b'{"role":"user","parts":[%b]}' % b",".join(parts)))
        return tuple(messages)

    def tool(self, name: str, description: str, parameters: bytes) -> bytes:
        """A tool with one function declaration (P.E.3).

        ``parametersJsonSchema`` takes any JSON Schema; ``parameters`` takes Gemini's own narrower Schema alone.
        """
        about = b',"description":' + quote(description) if description else b""
        fields = (quote(wire_name(name)), about, parameters)
        return b'{"functionDeclarations":[{"name":%b%b,"parametersJsonSchema":%b}]}' % fields

    def fields(self, system: tuple[Written, ...], tools: Written | None) -> dict[str, Written]:
        """``systemInstruction`` and ``tools``, where there are any; all functions are declared in one tool."""
        found: dict[str, Written] = {}
        if system:
            found["systemInstruction"] = join_written(system, b'{"parts":[', b"]}")
        if tools is not None:
            found["tools"] = Written(_join_declarations(tools.json))
        return found

    def lead(self, system: tuple[Written, ...]) -> tuple[bytes, ...]:
        """Nothing: the system layer is a field."""
        del system
        return ()

    def system(self, message: ChatMessage) -> Written | None:
        """Text parts of the system instruction."""
        texts = [part.text for part in message.content if isinstance(part, Text) and part.text]
        return write_list(map(self.text, texts), b"", b"") if texts else None

    def opening(self) -> bytes | None:
        """The first content is the user's (gemini.G1, P.E.16)."""
        return b'{"role":"user","parts":[%b]}' % self.text(wire.OPENING).json

    def close(self, group: Group, *, prefilled: bool) -> tuple[Group, bool]:
        """A user content behind a model's at the end: no model continues one (P.E.17)."""
        del prefilled
        if not group.turns or group.others or group.answered:
            return group, False
        return replace(group, others=(Turn("user", (self.text(wire.CONTINUE),)),)), True

    def prefill(self, text: str) -> bytes:
        """A model content; no model of this API continues one."""
        return b'{"role":"model","parts":[%b]}' % self.text(text.rstrip()).json

    def _piece(self, field: bytes, part: Part, layer: Layer, kind: str = "other") -> Piece:
        signed = self._signed(part) if layer == "assistant" else media.members(part, media.MEMBERS)
        return Piece(b"{%b%b}" % (field, signed), kind)

    def _signed(self, part: Part) -> bytes:
        """Members that came with a part and may go back, its signature to the issuer alone (P.A.5, P.E.5)."""
        signature = media.own_data(part).get("thoughtSignature")
        written = media.members(part, media.MEMBERS)
        if wire.is_issued_elsewhere(part, self) or not (isinstance(signature, str) and media.is_base64(signature)):
            return written
        return written + b',"thoughtSignature":' + quote(signature)

    def _thought(self, part: Reasoning, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        if layer != "assistant" or part.redacted is not None or not media.is_own(part):
            return None, "thinking"
        if not part.text:
            return None, "empty"
        field = b'"text":%b,"thought":true' % quote(part.text)
        if part.signature is not None and media.is_base64(part.signature):
            field += b',"thoughtSignature":' + quote(part.signature)
        return Piece(b"{%b%b}" % (field, media.members(part, media.MEMBERS)), "other"), None

    def _placed(self, part: Image | Document, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        if isinstance(part, Document) and part.text is not None:
            text = part.text if part.title is None else f"{part.title}\n{part.text}"
            return (self.text(text), None) if text else (None, "empty")
        field = media.data_field(part)
        if field is None:
            return self.text(wire.left_out(part)), "unknown-part"
        if layer != "user" and not (layer == "assistant" and media.is_own(part)):
            return self.text(wire.left_out(part)), "misplaced"
        piece = self._piece(field, part, layer)
        if isinstance(part, Document) and part.title:  # a part has no place for a title, so it goes before
            piece = Piece(self.text(part.title).json + b"," + piece.json, "text")
        return piece, None

    def _unknown(self, part: Unknown, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        field = self._native(part) if layer in ("user", "assistant") else None
        if field is None:
            return self.text(wire.left_out(part)), "unknown-part"
        if media.own_data(part).get("thought") is not True:
            return self._piece(field, part, layer), None
        if layer != "assistant" or wire.is_issued_elsewhere(part, self):
            return None, "thinking"
        return self._piece(field + b',"thought":true', part, layer), None

    def _native(self, part: Unknown) -> bytes | None:
        """The data field of a part that only Gemini knows, as it came."""
        data = wire.native_part(part, PROVIDER, _PAIRED)
        value = {} if data is None else json_text.read_object(data)
        kind = value.get("type")
        if not isinstance(kind, str) or json_text.as_object(value.get(kind)) is None:
            return None
        return quote(kind) + b":" + json_text.encode(value[kind])


def wire_name(name: str) -> str:
    """A function's name as Gemini takes it: itself, or a readable form made unique by a digest."""
    if NAME.fullmatch(name):
        return name
    kept = _OUTSIDE_NAME.sub("_", name)[: LONGEST_NAME - 10]
    start = "" if kept[:1].isalpha() else "_"
    return f"{start}{kept}_{wire.digest_hex(name)[:8]}"


class _FunctionCall(msgspec.Struct, gc=False):
    id: str | None = None


class _CallPart(msgspec.Struct, rename="camel", gc=False):
    """What is asked of a written call; everything else in it is skipped."""

    function_call: _FunctionCall
    thought_signature: str | None = None


def _model_parts(group: Group) -> list[bytes]:
    """Pieces and calls in the order in which the model made them; the first call is signed (gemini.G8).

    Calls of former turns get the sentinel too, so that a content stays as it is when its turn ends.
    """
    parts: list[bytes] = []
    made = 0
    for number, turn in enumerate(group.turns):
        for place in range(len(turn.pieces) + 1):
            while made < len(group.calls) and (group.calls[made].turn, group.calls[made].place) <= (number, place):
                json = group.calls[made].json
                parts.append(json if made else _with_signature(json))
                made += 1
            if place < len(turn.pieces):
                parts.append(turn.pieces[place].json)
    return parts


def _with_signature(json: bytes) -> bytes:
    if msgspec.json.decode(json, type=_CallPart).thought_signature is not None:
        return json
    return json[:-1] + b',"thoughtSignature":"%b"}' % NO_SIGNATURE.encode()


def _answer_to(call: Call) -> bytes:
    """Id, where the call was sent with one, and name of the call that a result answers (gemini.G7)."""
    given = msgspec.json.decode(call.json, type=_CallPart).function_call.id
    name = b'"name":' + quote(wire_name(call.name))
    return name if given is None else b'"id":%b,%b' % (quote(given), name)


def _response(result: ToolResult, texts: list[str]) -> bytes:
    if media.own_data(result).get("response") == "object" and len(texts) == 1:
        own = json_text.sound_object(texts[0])
        if own is not None:
            return own.encode()
    return b'{"%b":%b}' % (b"error" if result.error else b"result", quote("\n".join(texts)))


@functools.lru_cache(maxsize=64)
def _join_declarations(tools: bytes) -> bytes:
    """The tools with all function declarations in one, at the place of the first: some endpoints take only one."""
    joined: list[bytes] = []
    declarations: list[bytes] = []
    place: int | None = None
    for tool in msgspec.json.decode(tools, type=list[dict[str, msgspec.Raw]]):
        found = tool.get("functionDeclarations")
        if found is None:
            joined.append(msgspec.json.encode(tool))
            continue
        if place is None:
            place = len(joined)
        declarations.append(bytes(found)[1:-1])
    if place is not None:
        joined.insert(place, b'{"functionDeclarations":[%b]}' % b",".join(declarations))
    return b"[%b]" % b",".join(joined)

"""OpenAI Responses: a list of items, outputs behind calls, reasoning in front of its item (responses.R1 to R9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from contextbus.core import json_text
from contextbus.core.json_text import quote
from contextbus.core.targets.gemini_media import is_signed
from contextbus.core.targets.responses_calls import content, content_list, wire_name, write_call, write_result
from contextbus.core.targets.responses_pairing import fit
from contextbus.core.targets.responses_parts import (
    ITEM,
    MESSAGE,
    PROVIDER,
    TEXT,
    document_piece,
    image_piece,
    reasoning_piece,
    spoken,
    text_piece,
    unknown_piece,
    written,
)
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

LONGEST_ID: Final = 64
_INSTRUCTIONS: Final = "instructions"


class ResponsesTarget(msgspec.Struct, frozen=True):
    """Writes requests for OpenAI's Responses API; ``model_id`` is the model, None where it is not known.

    Reasoning goes back with what it came with: without ``encrypted_content`` it needs a host that stores, without an id
    it needs ``encrypted_content`` (responses.R6).
    """

    model_id: str | None = None
    name: Literal["openai-responses"] = PROVIDER
    provider: Literal["openai-responses"] = PROVIDER
    list_name: Literal["input"] = "input"
    takes_prefill: Literal[False] = False
    takes_breakpoints: Literal[False] = False
    merges: Literal[False] = False
    calls_last: Literal[False] = False
    results_alone: Literal[False] = False
    needs_tools: Literal[False] = False

    def takes_id(self, call_id: str) -> bool:
        """1 to 64 characters (responses.R2)."""
        return 0 < len(call_id) <= LONGEST_ID and call_id.isprintable()

    def fit(self, message: ChatMessage) -> tuple[ChatMessage, tuple[RepairCode, ...]]:
        """Reasoning stands in front of its item or nowhere, an id behind its reasoning (responses.R5, L6)."""
        return fit(message, self)

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
        """A content part, or an item of its own (responses.R7)."""
        match part:
            case Text():
                return text_piece(part, layer)
            case Reasoning():
                return reasoning_piece(part, layer)
            case Image():
                return image_piece(part, layer)
            case Document():
                return document_piece(part, layer)
            case Unknown():
                return unknown_piece(part, layer)
            case _:
                return None, "misplaced"

    def members(self, message: ChatMessage) -> bytes:
        """The status of an input message; what the assistant wrote has its own in each item."""
        return b"" if message.role == "assistant" else written(_data(message), ("status",))

    def call(self, call: ToolCall, wire: str, arguments: str) -> bytes:
        """A call's item (responses.R2, R3)."""
        return write_call(call, wire, arguments)

    def result(self, result: ToolResult, call: Call) -> WrittenResult:
        """A call's output; functions have no mark for a failed call."""
        json, codes = write_result(result, call)
        return WrittenResult(json, codes)

    def error_result(self, text: str, call: Call) -> bytes:
        """An output that says what went wrong."""
        return write_result(ToolResult(id=call.id, content=(Text(text=text),), error=True), call)[0]

    def text(self, text: str) -> Piece:
        """An input text."""
        return Piece(quote(text), TEXT)

    def late_system(self, pieces: tuple[Piece, ...], message: ChatMessage) -> Turn:
        """It stays what it is (P.E.19)."""
        return Turn(_system_role(message), pieces, self.members(message))

    def lay_out(self, group: Group) -> tuple[Written, ...]:
        """What the assistant wrote in a row, its outputs in the order they came, then the others (responses.R9)."""
        items: list[bytes] = []
        for number, turn in enumerate(group.turns):
            calls = [call for call in group.calls if call.turn == number]
            items += _spoken_items(turn, calls)
            calls.sort(key=lambda call: call.order)
            items += [call.result for call in calls if call.result is not None]
        for turn in group.others:
            items += _input_items(turn)
        return tuple(map(Written, items))

    def tool(self, name: str, description: str, parameters: bytes) -> bytes:
        """A flat function tool (P.E.3); strict would demand that every parameter is required."""
        about = b',"description":' + quote(description) if description else b""
        fields = (quote(wire_name(name)), about, parameters)
        return b'{"type":"function","name":%b%b,"parameters":%b,"strict":false}' % fields

    def fields(self, system: tuple[Written, ...], tools: Written | None) -> dict[str, Written]:
        """``instructions``, where a request came with them, and ``tools``, where there are any."""
        found: dict[str, Written] = {}
        texts = [msgspec.json.decode(item.json, type=str) for item in system if item.kind == _INSTRUCTIONS]
        if texts:
            found[_INSTRUCTIONS] = Written(quote("\n\n".join(texts)))
        if tools is not None:
            found["tools"] = tools
        return found

    def lead(self, system: tuple[Written, ...]) -> tuple[bytes, ...]:
        """Messages; what came as ``instructions`` is a text of that field."""
        return tuple(item.json for item in system if item.kind != _INSTRUCTIONS)

    def system(self, message: ChatMessage) -> Written | None:
        """A message of its own; of ``instructions`` the text, marked as such."""
        pieces = [piece for part in message.content if (piece := self.part(part, "system")[0]) is not None]
        if not pieces:
            return None
        if _data(message).get("member") == _INSTRUCTIONS:
            text = "\n".join(part.text for part in message.content if isinstance(part, Text))
            return Written(quote(text), kind=_INSTRUCTIONS)
        turn = Turn(_system_role(message), tuple(pieces), self.members(message))
        return Written(b",".join(_input_items(turn)))

    def opening(self) -> bytes | None:
        """None: the assistant may speak first."""
        return None

    def close(self, group: Group, *, prefilled: bool) -> tuple[Group, bool]:
        """Any item may be the last."""
        del prefilled
        return group, False

    def prefill(self, text: str) -> bytes:
        """A message of the assistant; no model of this API continues one."""
        return spoken(text.rstrip()).json


def _data(message: ChatMessage) -> dict[str, object]:
    if message.provider_data is None or message.provider_data.provider != PROVIDER:
        return {}
    return json_text.read_object(message.provider_data.data)


def _system_role(message: ChatMessage) -> Literal["system", "developer"]:
    return "developer" if _data(message).get("role") == "developer" else "system"


def _spoken_items(turn: Turn, calls: list[Call]) -> Iterator[bytes]:
    """The items of the assistant: texts of one message together, calls where they were made."""
    head, parts = "", list[bytes]()
    waiting = list(calls)
    for place, piece in enumerate(turn.pieces):
        while waiting and waiting[0].place <= place:
            yield from _message_item(head, parts)
            head, parts = "", []
            yield waiting.pop(0).json
        if piece.kind != head:
            yield from _message_item(head, parts)
            head, parts = "", []
        if piece.kind.startswith(MESSAGE):
            head = piece.kind
            parts.append(piece.json)
        else:
            yield piece.json
    yield from _message_item(head, parts)
    for call in waiting:
        yield call.json


def _message_item(head: str, parts: list[bytes]) -> Iterator[bytes]:
    if parts:
        fields = (head.removeprefix(MESSAGE).encode(), b",".join(parts))
        yield b'{"type":"message",%b,"content":[%b]}' % fields


def _input_items(turn: Turn) -> Iterator[bytes]:
    """A message for each run of content, and the items between them."""
    run: list[Piece] = []
    for piece in (*turn.pieces, None):
        if piece is not None and piece.kind != ITEM:
            run.append(piece)
            continue
        if run:
            text = content_list(run) if turn.members else content(run) or b'""'
            yield b'{"role":"%b","content":%b%b}' % (turn.role.encode(), text, turn.members)
            run = []
        if piece is not None:
            yield piece.json

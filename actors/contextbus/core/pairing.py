"""Calls and results of an open group, paired by occurrence, and the repairs that this takes (C.D.13, P.E.12-P.E.14).

Calls and results are paired first in, first out for each id, since real transcripts use ids again.  A call that is
unanswered when the assistant speaks again is closed with an error result for good.
"""

from __future__ import annotations

import functools

from msgspec.structs import replace

from contextbus.core import json_text, wire
from contextbus.core.cache_control import longer
from contextbus.core.call_ids import CallIds
from contextbus.core.persistent import Counts
from contextbus.core.wire import Call, Group, Piece, Repair, RepairCode, Target, Turn
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    Cache,
    ChatMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)


class Pairing:
    """The open group of a rendering while messages are appended; what is noted is a repair of message ``count``."""

    def __init__(
        self,
        target: Target,
        count: int,
        group: Group,
        tools: tuple[str, ...],
        dead: Counts,
        ids: CallIds,
        approvals: tuple[tuple[str, str], ...],
    ) -> None:
        self.target = target
        self.takes_breakpoints = target.takes_breakpoints
        self.fitting = target if isinstance(target, wire.Fitting) else None
        self.count: int = count
        self.group = group
        self.repairs: list[Repair] = []
        self.tools = tools
        self.dead = dead
        self.ids = ids
        self.approvals = approvals

    def note(self, code: RepairCode, call_id: str | None = None) -> None:
        """Note a repair."""
        self.repairs.append(Repair(code, self.count, call_id))

    def set_call(self, place: int, call: Call) -> None:
        """Put a call of the group in the place of the one that is there."""
        calls = self.group.calls
        self.group = replace(self.group, calls=(*calls[:place], call, *calls[place + 1 :]))

    def add_other(self, turn: Turn) -> None:
        """Put a turn behind the calls and their results."""
        self.group = replace(self.group, others=(*self.group.others, turn))

    def fit(self, message: ChatMessage) -> ChatMessage:
        """The message as the target takes it, where it looks at whole messages."""
        if self.fitting is None:
            return message
        fitted, codes = self.fitting.fit(message)
        for code in codes:
            self.note(code)
        return fitted

    def open(self, call: ToolCall, turn: int, place: int) -> Call:
        """A call of the model, with a wire id of its own and sound arguments."""
        self.ids, wire_id, codes = self.ids.mint(call.id, self.target)
        for code in codes:
            self.note(code, call.id)
        if call.name not in self.tools:
            self.tools = (*self.tools, call.name)
        if self.target.loses_signature(call):
            self.note("thinking", call.id)
        arguments = json_text.sound_object(call.arguments)
        error = wire.NO_RESULT
        if arguments is None:
            self.note("bad-arguments", call.id)
            arguments, error = "{}", wire.BAD_ARGUMENTS
        return Call(
            id=call.id,
            wire=wire_id,
            name=call.name,
            turn=turn,
            place=place,
            json=self.target.call(call, wire_id, arguments),
            error=error,
            cache=self.takes(call.cache),
        )

    def answer(self, result: ToolResult, *, separated: bool) -> Piece | int | None:
        """Give a result to its call: the first open one of the id.

        Returns:
            The place of the call; a piece of text if the result came too late; None if there was no such call.
        """
        group = self.group
        asked = functools.reduce(longer, (part.cache for part in result.content), result.cache)  # inside is behind it
        for place, call in enumerate(group.calls):
            if call.id == result.id and call.result is None:
                written = self.target.result(result, call)
                for code in written.codes:
                    self.note(code, result.id)
                if separated or group.others or (not self.target.merges and call.turn + 1 < len(group.turns)):
                    self.note("moved-result", result.id)
                order = sum(other.result is not None for other in group.calls)
                cache = self.takes(asked)
                answered = replace(call, result=written.json, beside=written.beside, result_cache=cache, order=order)
                self.set_call(place, answered)
                self.group = replace(self.group, answered=True)
                return place
        owed = self.dead.get(result.id)
        if not owed:
            self.note("orphan-result", result.id)
            self.takes(asked, placed=False)
            return None
        self.dead = self.dead.set(result.id, owed - 1)
        self.note("late-result", result.id)
        text = "\n".join(
            part.text if isinstance(part, Text) else wire.LEFT_OUT.format(kind=type(part).__name__.lower())
            for part in result.content
        )
        return replace(self.target.text(wire.element("late_result", text, result.id)), cache=self.takes(asked))

    def approve(self, part: ApprovalRequest | ApprovalResponse) -> None:
        """Note an approval; a denied call that waits gets an error result (P.E.14)."""
        self.note("approval", part.id)
        if isinstance(part, ApprovalRequest):
            self.approvals = (*self.approvals, (part.id, part.call_id))
            return
        asked = [call_id for request, call_id in self.approvals if request == part.id]
        self.approvals = tuple(pair for pair in self.approvals if pair[0] != part.id)
        if part.approved or not asked:
            return
        group = self.group
        waiting = [place for place, call in enumerate(group.calls) if call.id == asked[-1] and call.result is None]
        if waiting:
            place = waiting[-1]  # ids may repeat: the approval is for the newest that waits (C.D.13)
            self.set_call(place, replace(group.calls[place], error=wire.DENIED))

    def pieces(self, message: ChatMessage, layer: wire.Layer) -> tuple[Piece, ...]:
        """The parts of a message that can hold neither calls nor results."""
        found: list[Piece] = []
        for part in message.content:
            if isinstance(part, ToolCall | ToolResult | ApprovalRequest | ApprovalResponse):
                self.note("misplaced", part.id)
            else:
                found += self.piece(part, layer)
        return tuple(found)

    def piece(self, part: AnyPart, layer: wire.Layer) -> tuple[Piece, ...]:
        """A part as the target writes it; nothing where it is left out."""
        if isinstance(part, Reasoning) and wire.is_issued_elsewhere(part, self.target):
            self.note("thinking")
            return ()
        piece, code = self.target.part(part, layer)
        if piece is not None and code is None and self.target.loses_signature(part):
            code = "thinking"
        asked = self.takes(part.cache, placed=piece is not None and piece.kind != "thinking")
        if piece is not None and asked:
            piece = replace(piece, cache=asked)
        if code is not None:
            self.note(code)
        return () if piece is None else (piece,)

    def takes(self, asked: Cache, *, placed: bool = True) -> Cache:
        """The breakpoint that is asked for, where there is a block for it and a provider that takes it (P.E.4)."""
        if asked and not (placed and self.takes_breakpoints):
            self.note("breakpoint")
            return False
        return asked

    def close_calls(self) -> None:
        """Close what is unanswered for good (P.E.12)."""
        group = self.group
        if not group.pending:
            return
        calls: list[Call] = []
        for call in group.calls:
            if call.result is None:
                self.note("missing-result", call.id)
                self.dead = self.dead.set(call.id, self.dead.get(call.id) + 1)
                result = self.target.error_result(call.error, call)
                calls.append(replace(call, result=result, order=len(group.calls)))
            else:
                calls.append(call)
        self.group = replace(group, calls=tuple(calls), answered=True)

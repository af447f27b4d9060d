"""The rendered form of a history: a fold that repairs as it goes and looks at the open group only.

Calls and results are paired by occurrence, first in, first out for each id (C.D.13), since real transcripts use ids
again.  A call that is unanswered when the assistant speaks again is closed with an error result for good.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from contextbus.core import json_text, wire
from contextbus.core.persistent import Counts, Vector
from contextbus.core.settled import Settled
from contextbus.core.wire import Call, Group, Piece, Repair, RepairCode, Target, Turn, Written
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

_SUFFIX = 8  # code points kept free for the number of a repeated id


class Rendering(msgspec.Struct, frozen=True):
    """A history as one target takes it; a value, so branches and older steps keep theirs.

    ``count`` is the number of messages appended, ``system`` the leading system messages, ``tools`` the names of the
    tools that the history calls, ``dead`` the calls of each id that were closed without a result.
    """

    target: Target
    count: int = 0
    system: tuple[bytes, ...] = ()
    settled: Settled = Settled()
    group: Group = Group()
    repairs: Vector[Repair] = Vector()
    tools: tuple[str, ...] = ()
    dead: Counts = Counts()
    seen: Counts = Counts()
    wires: Counts = Counts()
    approvals: tuple[tuple[str, str], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is no message but system ones."""
        return not (len(self.settled) or self.group.turns or self.group.others)

    def append(self, message: ChatMessage) -> Rendering:
        """The rendering with one message behind it: of the history, a block of ours, or of the tail."""
        return self.extend((message,))

    def extend(self, messages: Iterable[ChatMessage]) -> Rendering:
        """The rendering with messages behind it."""
        draft = _Draft(self)
        for message in messages:
            draft.append(message)
        return draft.freeze()

    def finish(self, *, prefilled: bool = False) -> Rendering:
        """The rendering as it ends a request: no call without a result, and an end that the model takes.

        Args:
            prefilled: a prefill follows (P.C.4).
        """
        draft = _Draft(self)
        draft.finish(prefilled=prefilled)
        return draft.freeze()


class _Draft:
    """A rendering while messages are appended."""

    def __init__(self, base: Rendering) -> None:
        self._base = base
        self._target = base.target
        self._count = base.count
        self._system = base.system
        self._settled = base.settled
        self._group = base.group
        self._repairs: list[Repair] = []
        self._tools = base.tools
        self._dead = base.dead
        self._seen = base.seen
        self._wires = base.wires
        self._approvals = base.approvals

    def freeze(self) -> Rendering:
        return Rendering(
            target=self._target,
            count=self._count,
            system=self._system,
            settled=self._settled,
            group=self._group,
            repairs=self._base.repairs.extend(self._repairs) if self._repairs else self._base.repairs,
            tools=self._tools,
            dead=self._dead,
            seen=self._seen,
            wires=self._wires,
            approvals=self._approvals,
        )

    def append(self, message: ChatMessage) -> None:
        if message.role == "system":
            self._append_system(message)
        elif message.role == "assistant":
            self._append_assistant(message)
        else:
            self._append_user(message)
        if not self._target.merges and not self._group.pending:
            self._settle()
        self._count += 1

    def finish(self, *, prefilled: bool) -> None:
        self._close_calls()
        self._group, added = self._target.close(self._group, prefilled=prefilled)
        if added:
            self._note("last-assistant")

    def _note(self, code: RepairCode, call_id: str | None = None) -> None:
        self._repairs.append(Repair(code, self._count, call_id))

    def _append_system(self, message: ChatMessage) -> None:
        if self._empty():
            text = self._target.system(message)
            if text is None:
                self._note("empty")
            else:
                self._system = (*self._system, text)
            return
        pieces = self._pieces(message, "system")
        if pieces:
            self._note("late-system")
            before = self._group
            self._add_other(self._target.late_system(pieces, message))
            self._note_joined(before)
        else:
            self._note("empty")

    def _append_user(self, message: ChatMessage) -> None:
        pieces: list[Piece] = []
        silent = False
        before = self._group
        for part in message.content:
            if isinstance(part, ToolResult):
                silent = True
                late = self._answer(part, separated=bool(pieces))
                if late is not None:
                    pieces.append(late)
            elif isinstance(part, ApprovalRequest | ApprovalResponse):
                silent = True
                self._approve(part)
            elif isinstance(part, ToolCall):
                self._note("misplaced", part.id)
            else:
                pieces += self._piece(part, "user")
        members = self._target.members(message)
        if pieces:
            self._add_other(Turn("user", tuple(pieces), members if message.role == "user" else b""))
        elif not silent:
            self._note("empty")
        if message.role == "user":
            self._note_joined(before)

    def _add_other(self, turn: Turn) -> None:
        group = self._group
        self._group = replace(group, others=(*group.others, turn))

    def _note_joined(self, before: Group) -> None:
        """Note that a message of the user joins another one of the user's, where the target wants one."""
        if self._group.others is before.others and self._group.calls is before.calls:
            return
        if self._target.merges and before.user:
            self._note("merged")
        self._group = replace(self._group, user=True)

    def _append_assistant(self, message: ChatMessage) -> None:
        pieces: list[Piece] = []
        calls: list[tuple[int, ToolCall]] = []
        after: list[ToolResult | ApprovalRequest | ApprovalResponse] = []
        called, spoken = self._run_so_far()
        for part in message.content:
            if isinstance(part, ToolCall):
                calls.append((len(pieces), part))
                called = spoken = True
            elif isinstance(part, ToolResult | ApprovalRequest | ApprovalResponse):
                after.append(part)
            else:
                for piece in self._piece(part, "assistant"):
                    if piece.kind == "thinking" and spoken:
                        self._note("thinking")
                        continue
                    if called and self._target.merges:
                        self._note("misplaced")
                    spoken = spoken or piece.kind == "text"
                    pieces.append(piece)
        if pieces or calls:
            self._speak(Turn("assistant", tuple(pieces), self._target.members(message)), calls)
        elif not after:
            self._note("empty")
        for part in after:
            if not isinstance(part, ToolResult):
                self._approve(part)
                continue
            self._note("misplaced", part.id)
            late = self._answer(part, separated=False)
            if late is not None:
                self._add_other(Turn("user", (late,)))

    def _run_so_far(self) -> tuple[bool, bool]:
        """Whether the assistant's run that is open has calls, and whether thinking would come too late in it."""
        group = self._group
        if not self._target.merges or group.others or group.answered:
            return False, False
        called = bool(group.calls)
        return called, called or any(piece.kind == "text" for turn in group.turns for piece in turn.pieces)

    def _speak(self, turn: Turn, calls: list[tuple[int, ToolCall]]) -> None:
        if self._group.others or self._group.answered:
            self._settle()
        elif self._group.turns and self._target.merges:
            self._note("merged")
        opening = self._target.opening()
        if opening is not None and self._empty():
            self._note("first-user")
            self._settled = self._settled.extend((Written(opening),))
        group = self._group
        number = len(group.turns)
        opened = tuple(self._open(call, number, place) for place, call in calls)
        self._group = replace(group, turns=(*group.turns, turn), calls=group.calls + opened)

    def _empty(self) -> bool:
        return not (len(self._settled) or self._group.turns or self._group.others)

    def _open(self, call: ToolCall, turn: int, place: int) -> Call:
        wire_id = self._mint(call.id)
        if call.name not in self._tools:
            self._tools = (*self._tools, call.name)
        arguments = json_text.sound_object(call.arguments)
        error = wire.NO_RESULT
        if arguments is None:
            self._note("bad-arguments", call.id)
            arguments, error = "{}", wire.BAD_ARGUMENTS
        return Call(
            id=call.id,
            wire=wire_id,
            name=call.name,
            turn=turn,
            place=place,
            json=self._target.call(call, wire_id, arguments),
            error=error,
            cache=call.cache,
        )

    def _mint(self, call_id: str) -> str:
        """A wire id that no other call has: the id itself where it can be, else one made from it (P.E.7, P.E.21)."""
        number = self._seen.get(call_id) + 1
        self._seen = self._seen.set(call_id, number)
        made = f"call_{wire.digest_hex(call_id)[:24]}"
        wire_id = call_id
        if not self._target.takes_id(call_id):
            self._note("id", call_id)
            wire_id = made
        if self._wires.get(wire_id):
            self._note("repeated-id", call_id)
            base = wire_id if self._target.takes_id(wire_id + "-" * _SUFFIX) else made
            number = max(number, 2)
            while self._wires.get(wire_id := f"{base}-{number}"):
                number += 1
        self._wires = self._wires.set(wire_id, 1)
        return wire_id

    def _answer(self, result: ToolResult, *, separated: bool) -> Piece | None:
        """Give a result to its call: the first open one of the id.  A piece of text if it came too late."""
        group = self._group
        for place, call in enumerate(group.calls):
            if call.id == result.id and call.result is None:
                json, codes = self._target.result(result, call)
                for code in codes:
                    self._note(code, result.id)
                if separated or group.others or (not self._target.merges and call.turn + 1 < len(group.turns)):
                    self._note("moved-result", result.id)
                answered = replace(call, result=json, result_cache=result.cache)
                calls = (*group.calls[:place], answered, *group.calls[place + 1 :])
                self._group = replace(group, calls=calls, answered=True)
                return None
        owed = self._dead.get(result.id)
        if not owed:
            self._note("orphan-result", result.id)
            return None
        self._dead = self._dead.set(result.id, owed - 1)
        self._note("late-result", result.id)
        text = "\n".join(
            part.text if isinstance(part, Text) else wire.LEFT_OUT.format(kind=type(part).__name__.lower())
            for part in result.content
        )
        return self._target.text(wire.element("late_result", text, result.id))

    def _approve(self, part: ApprovalRequest | ApprovalResponse) -> None:
        self._note("approval", part.id)
        if isinstance(part, ApprovalRequest):
            self._approvals = (*self._approvals, (part.id, part.call_id))
            return
        asked = [call_id for request, call_id in self._approvals if request == part.id]
        self._approvals = tuple(pair for pair in self._approvals if pair[0] != part.id)
        if part.approved or not asked:
            return
        group = self._group
        waiting = [place for place, call in enumerate(group.calls) if call.id == asked[-1] and call.result is None]
        if waiting:
            place = waiting[-1]  # ids may repeat: the approval is for the newest that waits (C.D.13)
            denied = replace(group.calls[place], error=wire.DENIED)
            calls = (*group.calls[:place], denied, *group.calls[place + 1 :])
            self._group = replace(group, calls=calls)

    def _pieces(self, message: ChatMessage, layer: wire.Layer) -> tuple[Piece, ...]:
        found: list[Piece] = []
        for part in message.content:
            if isinstance(part, ToolCall | ToolResult | ApprovalRequest | ApprovalResponse):
                self._note("misplaced", part.id)
            else:
                found += self._piece(part, layer)
        return tuple(found)

    def _piece(self, part: AnyPart, layer: wire.Layer) -> tuple[Piece, ...]:
        if isinstance(part, Reasoning) and wire.is_issued_elsewhere(part, self._target):
            self._note("thinking")
            return ()
        piece, code = self._target.part(part, layer)
        if piece is not None and part.cache:
            piece = replace(piece, cache=part.cache)
        if code is not None:
            self._note(code)
        return () if piece is None else (piece,)

    def _close_calls(self) -> None:
        group = self._group
        if not group.pending:
            return
        calls: list[Call] = []
        for call in group.calls:
            if call.result is None:
                self._note("missing-result", call.id)
                self._dead = self._dead.set(call.id, self._dead.get(call.id) + 1)
                calls.append(replace(call, result=self._target.error_result(call.error, call)))
            else:
                calls.append(call)
        self._group = replace(group, calls=tuple(calls), answered=True)

    def _settle(self) -> None:
        self._close_calls()
        self._settled = self._settled.extend(self._target.lay_out(self._group))
        self._group = Group()
        self._approvals = ()

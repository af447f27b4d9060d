"""The rendered form of a history: a fold that repairs as it goes and looks at the open group only.

Calls and results are paired by occurrence, first in, first out for each id (C.D.13), since real transcripts use ids
again.  A call that is unanswered when the assistant speaks again is closed with an error result for good.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from contextbus.core import json_text, wire
from contextbus.core.breakpoints import longer, write_system
from contextbus.core.call_ids import CallIds
from contextbus.core.persistent import Counts, Vector
from contextbus.core.settled import Settled
from contextbus.core.wire import Call, Group, Piece, Repair, RepairCode, Target, Turn, Written
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


class Rendering(msgspec.Struct, frozen=True):
    """A history as one target takes it; a value, so branches and older steps keep theirs.

    ``count`` is the number of messages appended, ``system`` the leading system messages, ``tools`` the names of the
    tools that the history calls, ``ids`` the ids of its calls, ``dead`` the calls of each id that were closed without
    a result.
    """

    target: Target
    count: int = 0
    system: tuple[Written, ...] = ()
    settled: Settled = Settled()
    group: Group = Group()
    repairs: Vector[Repair] = Vector()
    tools: tuple[str, ...] = ()
    dead: Counts = Counts()
    ids: CallIds = CallIds()
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
        self._takes_breakpoints = wire.takes_breakpoints(base.target)
        self._count = base.count
        self._system = base.system
        self._settled = base.settled
        self._group = base.group
        self._repairs: list[Repair] = []
        self._tools = base.tools
        self._dead = base.dead
        self._ids = base.ids
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
            ids=self._ids,
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
            written, lost = write_system(message, self._target)
            for _ in range(lost):
                self._note("breakpoint")
            if written is None:
                self._note("empty")
            else:
                self._system = (*self._system, written)
            return
        pieces = self._pieces(message, "system")
        if pieces:
            self._note("late-system")
            before = self._group
            turn = self._target.late_system(pieces, message)
            last = turn.pieces[-1]
            asked = functools.reduce(longer, (piece.cache for piece in (*pieces, last)), self._takes(message.cache))
            self._add_other(replace(turn, pieces=(*turn.pieces[:-1], replace(last, cache=asked))))
            self._note_joined(before)
        else:
            self._takes(message.cache, placed=False)
            self._note("empty")

    def _append_user(self, message: ChatMessage) -> None:
        pieces: list[Piece] = []
        silent = False
        before = self._group
        carrier: int | None = None  # the call whose result ends the message, -1 for its last piece
        for part in message.content:
            if isinstance(part, ToolResult):
                silent = True
                placed = self._answer(part, separated=bool(pieces))
                if isinstance(placed, Piece):
                    pieces.append(placed)
                    carrier = -1
                elif placed is not None:
                    carrier = placed
            elif isinstance(part, ApprovalRequest | ApprovalResponse):
                silent = True
                self._approve(part)
            elif isinstance(part, ToolCall):
                self._note("misplaced", part.id)
            elif found := self._piece(part, "user"):
                if found[0].kind == wire.RESTART:
                    self._restart(bool(pieces))
                    pieces, before = [], self._group
                pieces += found
                carrier = -1
        if asked := self._takes(message.cache, placed=carrier is not None):
            if carrier == -1:
                pieces[-1] = replace(pieces[-1], cache=longer(pieces[-1].cache, asked))
            elif carrier is not None:
                call = self._group.calls[carrier]
                self._set_call(carrier, replace(call, result_cache=longer(call.result_cache, asked)))
        if pieces:
            members = self._target.members(message) if message.role == "user" else b""
            self._add_other(Turn("user", tuple(pieces), members))
        elif not silent:
            self._note("empty")
        if message.role == "user":
            self._note_joined(before)

    def _set_call(self, place: int, call: Call) -> None:
        calls = self._group.calls
        self._group = replace(self._group, calls=(*calls[:place], call, *calls[place + 1 :]))

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
        carrier: int | None = None  # the piece that can carry the message's breakpoint, -1 for its last call
        for part in message.content:
            if isinstance(part, ToolCall):
                calls.append((len(pieces), part))
                called = spoken = True
                carrier = -1
            elif isinstance(part, ToolResult | ApprovalRequest | ApprovalResponse):
                after.append(part)
            else:
                for piece in self._piece(part, "assistant"):
                    if piece.kind == wire.RESTART:
                        self._restart(bool(pieces or calls))
                        self._add_other(Turn("user", (piece,)))
                        pieces, calls, called, spoken, carrier = [], [], False, False, None
                        continue
                    if piece.kind == "thinking" and spoken:
                        self._note("thinking")
                        continue
                    if called and self._target.merges:
                        self._note("misplaced")
                    spoken = spoken or piece.kind == "text"
                    carrier = carrier if piece.kind == "thinking" else len(pieces)
                    pieces.append(piece)
        if asked := self._takes(message.cache, placed=carrier is not None):
            if carrier == -1:
                calls[-1] = (calls[-1][0], replace(calls[-1][1], cache=longer(calls[-1][1].cache, asked)))
            elif carrier is not None:
                pieces[carrier] = replace(pieces[carrier], cache=longer(pieces[carrier].cache, asked))
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
            if isinstance(late, Piece):
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
        self._ids, wire_id, codes = self._ids.mint(call.id, self._target)
        for code in codes:
            self._note(code, call.id)
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
            cache=self._takes(call.cache),
        )

    def _answer(self, result: ToolResult, *, separated: bool) -> Piece | int | None:
        """Give a result to its call: the first open one of the id.

        Returns:
            The place of the call; a piece of text if the result came too late; None if there was no such call.
        """
        group = self._group
        asked = functools.reduce(longer, (part.cache for part in result.content), result.cache)  # inside is behind it
        for place, call in enumerate(group.calls):
            if call.id == result.id and call.result is None:
                json, codes = self._target.result(result, call)
                for code in codes:
                    self._note(code, result.id)
                if separated or group.others or (not self._target.merges and call.turn + 1 < len(group.turns)):
                    self._note("moved-result", result.id)
                self._set_call(place, replace(call, result=json, result_cache=self._takes(asked)))
                self._group = replace(self._group, answered=True)
                return place
        owed = self._dead.get(result.id)
        if not owed:
            self._note("orphan-result", result.id)
            self._takes(asked, placed=False)
            return None
        self._dead = self._dead.set(result.id, owed - 1)
        self._note("late-result", result.id)
        text = "\n".join(
            part.text if isinstance(part, Text) else wire.LEFT_OUT.format(kind=type(part).__name__.lower())
            for part in result.content
        )
        return replace(self._target.text(wire.element("late_result", text, result.id)), cache=self._takes(asked))

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
            self._set_call(place, replace(group.calls[place], error=wire.DENIED))

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
        asked = self._takes(part.cache, placed=piece is not None and piece.kind != "thinking")
        if piece is not None and asked:
            piece = replace(piece, cache=asked)
        if code is not None:
            self._note(code)
        return () if piece is None else (piece,)

    def _takes(self, asked: Cache, *, placed: bool = True) -> Cache:
        """The breakpoint that is asked for, where there is a block for it and a provider that takes it (P.E.4)."""
        if asked and not (placed and self._takes_breakpoints):
            self._note("breakpoint")
            return False
        return asked

    def _restart(self, dropped: bool) -> None:
        """Leave out every message so far: a block comes that stands for them (anthropic.A17)."""
        if dropped or not self._empty():
            self._note("misplaced")
        self._settled, self._group, self._approvals = Settled(), Group(), ()

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

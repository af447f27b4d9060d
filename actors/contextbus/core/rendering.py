"""The rendered form of a history: a fold that repairs as it goes and looks at the open group only."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from contextbus.core import wire
from contextbus.core.breakpoints import write_system
from contextbus.core.cache_control import longer
from contextbus.core.call_ids import CallIds
from contextbus.core.pairing import Pairing
from contextbus.core.persistent import Counts, Vector
from contextbus.core.settled import Settled
from contextbus.core.wire import Group, Piece, Repair, Target, Turn, Written
from contextbus_protocol.chat import (
    ApprovalRequest,
    ApprovalResponse,
    Cache,
    ChatMessage,
    ToolCall,
    ToolResult,
)


class Rendering(msgspec.Struct, frozen=True):
    """A history as one target takes it; a value, so branches and older steps keep theirs.

    ``count`` is the number of messages appended, ``system`` the leading system messages, ``tools`` the names of the
    tools that the history calls, ``dead`` the calls of each id that were closed without a result.
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

    def mark_end(self, cache: Cache) -> Rendering:
        """The rendering with a breakpoint behind its last block, where the provider takes one (P.E.4)."""
        group = self.group
        if not cache or not self.target.takes_breakpoints:
            return self
        if group.others:
            turn = group.others[-1]
            group = replace(group, others=(*group.others[:-1], _mark_turn(turn, cache)))
        elif group.calls:  # results stand in the order of their calls; what is missing gets one (P.E.12)
            last = group.calls[-1]
            group = replace(
                group, calls=(*group.calls[:-1], replace(last, result_cache=longer(last.result_cache, cache)))
            )
        elif group.turns:
            group = replace(group, turns=(*group.turns[:-1], _mark_turn(group.turns[-1], cache)))
        return replace(self, group=group)

    def finish(self, *, prefilled: bool = False) -> Rendering:
        """The rendering as it ends a request: no call without a result, and an end that the model takes.

        Args:
            prefilled: a prefill follows (P.C.4).
        """
        draft = _Draft(self)
        draft.finish(prefilled=prefilled)
        return draft.freeze()


class _Draft(Pairing):
    """A rendering while messages are appended."""

    def __init__(self, base: Rendering) -> None:
        super().__init__(base.target, base.count, base.group, base.tools, base.dead, base.ids, base.approvals)
        self._base = base
        self._system = base.system
        self._settled = base.settled

    def freeze(self) -> Rendering:
        return Rendering(
            target=self.target,
            count=self.count,
            system=self._system,
            settled=self._settled,
            group=self.group,
            repairs=self._base.repairs.extend(self.repairs) if self.repairs else self._base.repairs,
            tools=self.tools,
            dead=self.dead,
            ids=self.ids,
            approvals=self.approvals,
        )

    def append(self, message: ChatMessage) -> None:
        if message.role == "system":
            self._append_system(message)
        elif message.role == "assistant":
            self._append_assistant(message)
        else:
            self._append_user(message)
        if not self.target.merges and not self.group.pending:
            self._settle()
        self.count += 1

    def finish(self, *, prefilled: bool) -> None:
        self.close_calls()
        self.group, changed = self.target.close(self.group, prefilled=prefilled)
        if changed:
            self.note("last-assistant")

    def _append_system(self, message: ChatMessage) -> None:
        if self._empty():
            written, lost = write_system(message, self.target)
            self.repairs += [Repair("breakpoint", self.count)] * lost
            if written is None:
                self.note("empty")
            else:
                self._system = (*self._system, written)
            return
        pieces = self.pieces(message, "system")
        if pieces:
            self.note("late-system")
            before = self.group
            turn = self.target.late_system(pieces, message)
            last = turn.pieces[-1]
            asked = functools.reduce(longer, (piece.cache for piece in (*pieces, last)), self.takes(message.cache))
            self.add_other(replace(turn, pieces=(*turn.pieces[:-1], replace(last, cache=asked))))
            self._note_joined(before)
        else:
            self.takes(message.cache, placed=False)
            self.note("empty")

    def _append_user(self, message: ChatMessage) -> None:
        pieces: list[Piece] = []
        silent = spoke = False
        before = self.group
        carrier: int | None = None  # the call whose result ends the message, -1 for its last piece
        for part in message.content:
            if isinstance(part, ToolResult):
                silent = True
                placed = self.answer(part, separated=bool(pieces))
                if isinstance(placed, Piece):
                    pieces.append(placed)
                    carrier = -1
                elif placed is not None:
                    carrier = placed
            elif isinstance(part, ApprovalRequest | ApprovalResponse):
                silent = True
                self.approve(part)
            elif isinstance(part, ToolCall):
                self.note("misplaced", part.id)
            elif found := self.piece(part, "user"):
                spoke = True
                if found[0].kind == wire.COMPACTION:
                    self._forget(pieces)
                    pieces, before = [], self.group
                pieces += found
                carrier = -1
        if asked := self.takes(message.cache, placed=carrier is not None):
            if carrier == -1:
                pieces[-1] = replace(pieces[-1], cache=longer(pieces[-1].cache, asked))
            elif carrier is not None:
                call = self.group.calls[carrier]
                self.set_call(carrier, replace(call, result_cache=longer(call.result_cache, asked)))
        if pieces:
            members = self.target.members(message) if message.role == "user" else b""
            self.add_other(Turn("user", tuple(pieces), members))
        elif not silent:
            self.note("empty")
        if message.role == "user":
            self._note_joined(before)
        elif spoke and self._is_beside_results(before):
            self.note("merged")

    def _note_joined(self, before: Group) -> None:
        """Note that a message of the user joins another one of the user's, where the target wants one."""
        if self.group.others is before.others and self.group.calls is before.calls:
            return
        if self.target.merges and (before.user or self._is_beside_results(before)):
            self.note("merged")
        self.group = replace(self.group, user=True)

    def _is_beside_results(self, before: Group) -> bool:
        """Whether the newest turn puts text beside results where that is against a rule (P.E.23)."""
        group = self.group
        if not self.target.results_alone or not group.calls or group.others is before.others:
            return False
        return any(piece.kind == "text" for piece in group.others[-1].pieces)

    def _append_assistant(self, message: ChatMessage) -> None:
        pieces: list[Piece] = []
        calls: list[tuple[int, ToolCall]] = []
        after: list[ToolResult | ApprovalRequest | ApprovalResponse] = []
        called, spoken = self._run_so_far()
        restarted = False
        carrier: int | None = None  # the piece that can carry the message's breakpoint, -1 for its last call
        message = self.fit(message)
        for part in message.content:
            if isinstance(part, ToolCall):
                calls.append((len(pieces), part))
                called = spoken = True
                carrier = -1
            elif isinstance(part, ToolResult | ApprovalRequest | ApprovalResponse):
                after.append(part)
            else:
                for piece in self.piece(part, "assistant"):
                    if piece.kind == wire.COMPACTION:
                        self._forget(pieces or calls)
                        pieces, calls, after, called, spoken, carrier = [], [], [], False, False, None
                        if self.target.opening() is not None:  # the first message is the user's
                            self.note("first-user")
                            restarted = True
                            self.add_other(Turn("user", (piece,)))
                            continue
                    if piece.kind == "thinking" and spoken:
                        self.note("thinking")
                        continue
                    if called and self.target.calls_last:
                        self.note("misplaced")
                    spoken = spoken or piece.kind == "text"
                    carrier = carrier if piece.kind == "thinking" else len(pieces)
                    pieces.append(piece)
        self._mark(message.cache, carrier, pieces, calls)
        if pieces or calls:
            self._speak(Turn("assistant", tuple(pieces), self.target.members(message)), calls)
        elif not (after or restarted):
            self.note("empty")
        for part in after:
            if not isinstance(part, ToolResult):
                self.approve(part)
                continue
            self.note("misplaced", part.id)
            late = self.answer(part, separated=False)
            if isinstance(late, Piece):
                self.add_other(Turn("user", (late,)))

    def _mark(self, asked: Cache, carrier: int | None, pieces: list[Piece], calls: list[tuple[int, ToolCall]]) -> None:
        """Put a message's breakpoint behind the part that can carry it: a piece, or at -1 the last call."""
        cache = self.takes(asked, placed=carrier is not None)
        if not cache or carrier is None:
            return
        if carrier == -1:
            calls[-1] = (calls[-1][0], replace(calls[-1][1], cache=longer(calls[-1][1].cache, cache)))
        else:
            pieces[carrier] = replace(pieces[carrier], cache=longer(pieces[carrier].cache, cache))

    def _forget(self, before: Sequence[object]) -> None:
        """Leave out what stands before a compaction but the system layer (anthropic.A17, responses.L7)."""
        if before or not self._empty():
            self.note("compacted")
        self._settled, self.group, self.approvals = Settled(), Group(), ()

    def _run_so_far(self) -> tuple[bool, bool]:
        """Whether the assistant's run that is open has calls, and whether thinking would come too late in it."""
        group = self.group
        if not self.target.merges or group.others or group.answered:
            return False, False
        called = bool(group.calls)
        return called, called or any(piece.kind == "text" for turn in group.turns for piece in turn.pieces)

    def _speak(self, turn: Turn, calls: list[tuple[int, ToolCall]]) -> None:
        if self.group.others or self.group.answered:
            self._settle()
        elif self.group.turns and self.target.merges:
            self.note("merged")
        opening = self.target.opening()
        if opening is not None and self._empty():
            self.note("first-user")
            self._settled = self._settled.extend((Written(opening),))
        group = self.group
        number = len(group.turns)
        opened = tuple(self.open(call, number, place) for place, call in calls)
        self.group = replace(group, turns=(*group.turns, turn), calls=group.calls + opened)

    def _empty(self) -> bool:
        return not (len(self._settled) or self.group.turns or self.group.others)

    def _settle(self) -> None:
        self.close_calls()
        self._settled = self._settled.extend(self.target.lay_out(self.group))
        self.group = Group()
        self.approvals = ()


def _mark_turn(turn: Turn, cache: Cache) -> Turn:
    """A turn with a breakpoint behind its last piece, which is never thinking (anthropic.A15)."""
    if not turn.pieces or turn.pieces[-1].kind == "thinking":
        return turn
    last = turn.pieces[-1]
    return replace(turn, pieces=(*turn.pieces[:-1], replace(last, cache=longer(last.cache, cache))))

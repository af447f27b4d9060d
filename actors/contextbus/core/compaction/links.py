"""Which messages belong together: calls with their requests and results, approval requests with their responses.

Tool links are by occurrence, since real transcripts use an id again (C.D.13); approval links are by id (C.D.5).
One walk over the parts finds all of them: each call is queued once, dies at most once, is answered at most once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.history import is_only_results
from contextbus_protocol.chat import ApprovalRequest, ApprovalResponse, Role, ToolCall, ToolResult


class Link(msgspec.Struct, frozen=True):
    """Messages that belong together, by the indices of the first and the last of them (C.D.5).

    ``open`` tells that the link waits for a result or a response (C.D.6); ``dead`` marks a call that nobody will answer
    (C.D.16).  ``id`` is the call's id, or that of the approval.
    """

    first: int
    last: int
    open: bool
    kind: Literal["tool", "approval"] = "tool"
    id: str = ""
    dead: bool = False


class _Occurrence:
    """A link in the making; a result ends it, death only where none comes."""

    __slots__ = ("dead", "first", "id", "kind", "last", "mortal", "open")

    def __init__(self, kind: Literal["tool", "approval"], name: str, index: int, *, mortal: bool = False) -> None:
        self.kind: Literal["tool", "approval"] = kind
        self.id = name
        self.first = self.last = index
        self.open = True
        self.dead = False
        self.mortal = mortal


class _Walk:
    """What one walk over the messages knows: links by first part, and the calls that wait for a result."""

    def __init__(self, long_running: Collection[str]) -> None:
        self.found: list[_Occurrence] = []
        self._long_running = frozenset(long_running)
        self._waiting: dict[str, deque[_Occurrence]] = {}
        self._dead: dict[str, deque[_Occurrence]] = {}
        self._approvals: dict[str, _Occurrence] = {}
        self._mortal: list[_Occurrence] = []

    def call(self, part: ToolCall, index: int) -> None:
        made = _Occurrence("tool", part.id, index, mortal=part.name not in self._long_running)
        self.found.append(made)
        self._waiting.setdefault(part.id, deque()).append(made)
        if made.mortal:
            self._mortal.append(made)

    def result(self, part: ToolResult, index: int) -> None:
        """A result answers the first open call of its id, else the first dead one; else it is an orphan (C.D.13)."""
        answered = _first_open(self._waiting.get(part.id))
        dead = self._dead.get(part.id)
        if answered is None and dead:
            answered = dead.popleft()
        if answered is None:
            answered = _Occurrence("tool", part.id, index)
            self.found.append(answered)
        answered.last = index
        answered.open = answered.dead = False

    def request(self, part: ApprovalRequest, index: int) -> None:
        """A request belongs to the latest open call of its id; without one it is an orphan (C.D.12, C.D.13)."""
        call = _last_open(self._waiting.get(part.call_id))
        if call is None:
            call = _Occurrence("tool", part.call_id, index)
            call.open = False
            self.found.append(call)
        call.last = index
        call.mortal = False
        self._approval(part.id, index).open = True

    def response(self, part: ApprovalResponse, index: int) -> None:
        self._approval(part.id, index).open = False

    def bury(self, before: int) -> None:
        """Calls before an index that wait without an approval request are dead from here on (C.D.16)."""
        left: list[_Occurrence] = []
        for call in self._mortal:
            if not call.open or not call.mortal:
                continue
            if call.first >= before:
                left.append(call)
                continue
            call.open, call.dead = False, True
            self._dead.setdefault(call.id, deque()).append(call)
        self._mortal = left

    def _approval(self, name: str, index: int) -> _Occurrence:
        known = self._approvals.get(name)
        if known is None:
            known = self._approvals[name] = _Occurrence("approval", name, index)
            self.found.append(known)
        known.last = index
        return known


def find_links(items: Sequence[Item], long_running: Collection[str] = ()) -> tuple[Link, ...]:
    """Find the tool and approval links of a history, in the order of their first parts; the work is linear.

    Blocks of ours hold no part of a link.  Whether a call was dead when a result of its id came is judged by what
    stands between the two: an assistant message that holds the result itself has spoken, a user message that holds it
    is no message behind the call yet.

    Args:
        items: the history.
        long_running: the names of tools whose calls stay open however the history goes on (C.D.16).
    """
    walk = _Walk(long_running)
    before: Role = "assistant"
    for index, item in enumerate(items):
        role = role_of(item)
        if role == "assistant" and before != "assistant":
            walk.bury(index - 1)
        if item.message is not None and item.own != "block":
            for part in item.message.content:
                match part:
                    case ToolCall():
                        walk.call(part, index)
                    case ToolResult():
                        walk.result(part, index)
                    case ApprovalRequest():
                        walk.request(part, index)
                    case ApprovalResponse():
                        walk.response(part, index)
                    case _:
                        pass
        if is_user_message(item):
            walk.bury(index)
        before = role
    return tuple(Link(one.first, one.last, one.open, one.kind, one.id, one.dead) for one in walk.found)


def role_of(item: Item) -> Role:
    """The role of a message; a block whose text is not at hand is a user message, as all of them are."""
    return "user" if item.message is None else item.message.role


def is_user_message(item: Item) -> bool:
    """Whether a message is the user's: of role user and no own block (C.E.6).

    A message of role user that holds nothing but tool results is a tool message, as some providers write them.
    """
    message = item.message
    return message is not None and not item.own and message.role == "user" and not is_only_results(message)


def _first_open(queue: deque[_Occurrence] | None) -> _Occurrence | None:
    while queue:
        call = queue.popleft()
        if call.open:
            return call
    return None


def _last_open(queue: deque[_Occurrence] | None) -> _Occurrence | None:
    while queue:
        if queue[-1].open:
            return queue[-1]
        queue.pop()
    return None

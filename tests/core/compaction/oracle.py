"""The rules of section D once more, word for word and without care for cost: what the fast form is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contextbus.core.compaction.items import Item
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    Document,
    Image,
    ToolCall,
    ToolResult,
    Unknown,
)


@dataclass
class Call:
    """One call as the walk goes on."""

    index: int
    id: str
    tool: str
    members: list[int] = field(default_factory=list[int])
    requested: bool = False
    answered: bool = False


def role(item: Item) -> str:
    return "user" if item.message is None else item.message.role


def is_user(item: Item) -> bool:
    """A user message that is no own block; nothing but tool results is a tool message."""
    if item.message is None or item.own or item.message.role != "user":
        return False
    parts = item.message.content
    return len(parts) == 0 or any(not isinstance(part, ToolResult) for part in parts)


def parts_of(items: Sequence[Item]) -> list[tuple[int, AnyPart]]:
    return [
        (index, part)
        for index, item in enumerate(items)
        if item.own != "block" and item.message is not None
        for part in item.message.content
    ]


def is_dead(items: Sequence[Item], call: Call, until: int, slow: Sequence[str]) -> bool:
    """C.D.16, judged before the parts of the message ``until`` are read."""
    if call.answered or call.requested or call.tool in slow:
        return False
    by_user = any(is_user(items[m]) for m in range(call.index + 1, min(until, len(items))))
    by_assistant = any(
        role(items[k]) == "assistant" and any(role(items[m]) != "assistant" for m in range(call.index + 1, k))
        for k in range(call.index + 1, min(until + 1, len(items)))
    )
    return by_user or by_assistant


def links(items: Sequence[Item], slow: Sequence[str] = ()) -> list[tuple[int, int, bool]]:
    """First index, last index, open: C.D.5 to C.D.7, C.D.12, C.D.13, C.D.16."""
    calls: list[Call] = []
    found: list[tuple[int, int, bool]] = []
    approvals: dict[str, list[tuple[int, bool]]] = {}
    for index, part in parts_of(items):
        if isinstance(part, ToolCall):
            calls.append(Call(index, part.id, part.name, [index]))
        elif isinstance(part, ToolResult):
            waiting = [call for call in calls if call.id == part.id and not call.answered]
            living = [call for call in waiting if not is_dead(items, call, index, slow)]
            if not waiting:
                found.append((index, index, False))
            else:
                call = (living or waiting)[0]
                call.answered = True
                call.members.append(index)
        elif isinstance(part, ApprovalRequest):
            waiting = [call for call in calls if call.id == part.call_id and not call.answered]
            living = [call for call in waiting if not is_dead(items, call, index, slow)]
            if living:
                living[-1].requested = True
                living[-1].members.append(index)
            else:
                found.append((index, index, False))
            approvals.setdefault(part.id, []).append((index, True))
        elif isinstance(part, ApprovalResponse):
            approvals.setdefault(part.id, []).append((index, False))
    for call in calls:
        is_open = not call.answered and not is_dead(items, call, len(items), slow)
        found.append((min(call.members), max(call.members), is_open))
    by_approval = ((min(i for i, _ in seen), max(i for i, _ in seen), seen[-1][1]) for seen in approvals.values())
    return [*found, *by_approval]


def is_opaque(item: Item, media: str) -> bool:
    """C.B.4, C.B.5, C.X.3."""

    def opaque(part: AnyPart) -> bool:
        if isinstance(part, ToolResult):
            return any(opaque(inner) for inner in part.content)
        return isinstance(part, Unknown) or (media == "protect" and isinstance(part, Image | Document))

    return item.message is not None and any(opaque(part) for part in item.message.content)


def allowed_ends(items: Sequence[Item], slow: Sequence[str] = (), media: str = "protect") -> list[int]:
    """C.D.2, C.D.4, C.D.6, C.D.8, C.E.9."""
    start = 0
    while start < len(items) and items[start].message is not None and role(items[start]) == "system":
        start += 1
    made = links(items, slow)
    users = [index for index, item in enumerate(items) if is_user(item)]

    def protects(index: int) -> bool:
        item = items[index]
        if item.own == "block":
            return False
        mode = "protect" if media == "protect" or (users and index >= users[-1]) else "placeholder"
        return item.message is None or role(item) == "system" or is_opaque(item, mode)

    def is_allowed(end: int) -> bool:
        if any(protects(index) for index in range(start, end)):
            return False
        if any(is_open and first < end for first, _, is_open in made):
            return False
        if any(first < end <= last for first, last, is_open in made if not is_open):
            return False
        return any(items[index].own != "block" for index in range(start, end))

    return [end for end in range(start + 1, len(items) + 1) if is_allowed(end)]


def wanted_end(
    items: Sequence[Item],
    ends: Sequence[int],
    *,
    start: int,
    messages: int | None = None,
    turns: int | None = None,
    tokens: int | None = None,
    count: Callable[[Sequence[Item]], int] = len,
) -> int | None:
    """C.X.1, C.D.3, C.D.9, C.D.10: the end that the policies leave, None where there is none."""
    indices: list[int] = []
    if messages is not None:
        kept = [index for index, item in enumerate(items) if item.own != "block"]
        indices.append(kept[-messages] if len(kept) >= messages else start)
    if turns is not None:
        kept = [index for index, item in enumerate(items) if is_user(item)]
        indices.append(kept[-turns] if len(kept) >= turns else start)
    if tokens is not None:
        below = [end for end in ends if end < len(items)]
        fitting = [end for end in below if count(items[end:]) <= tokens]
        if count(items[start:]) <= tokens or not below:
            indices.append(start)
        else:
            indices.append(fitting[0] if fitting else below[-1])
    fitting = [end for end in ends if end <= min(indices)]
    return fitting[-1] if fitting else None

"""Short ways to write histories: the letters of the vectors of section V, and random histories as bad as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import strategies as st

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.ranges import Range, begin_range, find_bounds
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    system,
    user,
)
from contextbus_protocol.values import RetentionPolicy

U, A, S = Item(user("u")), Item(assistant("a")), Item(system("s"))
B = Item(None, own="block")
SUMMARY = Item(user("Previous conversation summary:\nolder"), own="summary")


def says(role: Role, *parts: AnyPart, own: Literal["", "block", "summary"] = "") -> Item:
    return Item(ChatMessage(role=role, content=parts), own)


def called(name: str, tool: str = "t", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=name, name=tool, arguments=arguments)


def returned(name: str, text: str = "ok") -> ToolResult:
    return ToolResult(id=name, content=(Text(text=text),))


def call(*names: str, tool: str = "t") -> Item:
    return says("assistant", *(called(name, tool) for name in names))


def res(*names: str) -> Item:
    return says("tool", *(returned(name) for name in names))


def asks(name: str, approval: str = "p") -> ApprovalRequest:
    return ApprovalRequest(id=approval, call_id=name)


def answers(approval: str = "p", *, approved: bool = True) -> ApprovalResponse:
    return ApprovalResponse(id=approval, approved=approved)


def end_of(items: Sequence[Item], keep: int, long_running: Sequence[str] = ()) -> int | None:
    """Where the range ends that keeps some last messages; None if there is none."""
    bounds = find_bounds(items, long_running=long_running)
    _, step = begin_range(items, bounds, RetentionPolicy(keep_last_messages=keep))
    return step.end if isinstance(step, Range) else None


def ends_of(items: Sequence[Item], long_running: Sequence[str] = ()) -> list[int | None]:
    """Where the ranges end that keep 1, 2, ... last messages, up to all of them."""
    return [end_of(items, keep, long_running) for keep in range(1, len(items) + 1)]


_IDS = st.sampled_from("ab")
_CALLS = st.builds(called, _IDS, st.sampled_from(["t", "t", "slow"]))
_RESULTS = st.builds(returned, _IDS)
_OTHERS: st.SearchStrategy[AnyPart] = st.one_of(
    st.builds(asks, _IDS, st.sampled_from("pq")),
    st.builds(answers, st.sampled_from("pq"), approved=st.booleans()),
    st.just(Text(text="x")),
)
_RARE: st.SearchStrategy[AnyPart] = st.sampled_from(
    [
        Image(media_type="image/png", data="AAAA"),
        Document(text="page"),
        Unknown(data="{}"),
        ToolResult(id="a", content=(Image(url="http://a/b.png"),)),
    ]
)
_PARTS = st.one_of(_CALLS, _CALLS, _RESULTS, _RESULTS, _OTHERS)


def _item(role: Role, parts: list[AnyPart], own: Literal["", "block", "summary"]) -> Item:
    return says(role, *parts, own=own)


_ANY_ROLE: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "assistant", "tool"])
_WILD = st.builds(_item, _ANY_ROLE, st.lists(_PARTS, max_size=3), st.sampled_from(["", "", "", "", "summary"]))
_MEDIA = st.builds(_item, _ANY_ROLE, st.lists(_RARE, min_size=1, max_size=1), st.just(""))


def _answered(name: str) -> Item:
    return says("user", returned(name), Text(text="and"))


def _bare(name: str) -> Item:
    return says("user", returned(name))


def _joined(head: list[Item], middle: list[Item], tail: list[Item]) -> list[Item]:
    return [*head, *middle, *tail]


# What a conversation is made of most of the time; each kind is picked first, so that none drowns the others.
ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.sampled_from([U, A, B, SUMMARY]),
    st.builds(call, _IDS),
    st.builds(res, _IDS),
    _WILD,
    st.builds(_answered, _IDS),
    st.builds(_bare, _IDS),
)
HISTORIES: st.SearchStrategy[list[Item]] = st.builds(
    _joined,
    st.lists(st.just(S), max_size=2),
    st.lists(ITEMS, max_size=14),
    st.lists(st.one_of(ITEMS, ITEMS, _MEDIA, st.just(S), st.just(Item(None))), max_size=3),
)

"""Every real conversation, cut off anywhere and compacted at every keep from 1 to 8 (C.D, C.E.7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from tests.core.conversations import airline

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.ranges import Range, begin_range, find_bounds, replayed_message
from contextbus.core.importers import from_openai
from contextbus_protocol.chat import ChatMessage, ToolCall, ToolResult, user
from contextbus_protocol.values import RetentionPolicy

KEEPS = range(1, 9)
SUMMARY = user("Previous conversation summary:\nshort")


def pairs(messages: Sequence[ChatMessage]) -> tuple[list[tuple[int, int]], list[int]]:
    """Calls with their results, and calls without: each result belongs to the oldest call of its id that waits."""
    waiting: dict[str, deque[int]] = {}
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolCall):
                waiting.setdefault(part.id, deque()).append(index)
            elif isinstance(part, ToolResult):
                found.append((waiting[part.id].popleft(), index))
    return found, [index for queue in waiting.values() for index in queue]


def compact(messages: Sequence[ChatMessage], made: Range) -> list[ChatMessage]:
    """What stands in the place of a history (C.E.1)."""
    again = replayed_message([Item(message) for message in messages], made.start, made.end)
    replayed = [] if again is None else [messages[again]]
    return [*messages[: made.start], SUMMARY, *replayed, *messages[made.end :]]


@pytest.mark.data
@pytest.mark.rule("C.D.1", "C.D.3", "C.D.6", "C.D.8", "C.D.11", "C.E.1", "C.E.4", "C.E.7", "C.E.8")
def test_no_exchange_is_split_nothing_open_is_summarised_and_no_message_is_lost() -> None:
    ranges = reused = waiting = 0
    for conversation in airline():
        whole = from_openai({"messages": conversation}).messages
        for cut in range(1, len(whole) + 1):
            messages = whole[:cut]
            items = [Item(message) for message in messages]
            bounds = find_bounds(items)
            closed, still_open = pairs(messages)
            waiting += len(still_open)
            for keep in KEEPS:
                _, step = begin_range(items, bounds, RetentionPolicy(keep_last_messages=keep))
                if not isinstance(step, Range):
                    assert cut <= bounds.start + keep or any(
                        first < end <= last for first, last in closed for end in (cut - keep,)
                    )
                    continue
                ranges += 1
                end = step.end
                assert step.start == bounds.start == 1
                assert step.start < end <= cut - keep
                assert all(last < end or end <= first for first, last in closed)
                assert all(end <= index for index in still_open)
                # Nothing shorter was possible: between the end and what must stay only exchanges stand.
                for later in range(end + 1, cut - keep + 1):
                    assert any(first < later <= last for first, last in closed) or min(still_open) < later
                after = compact(messages, step)
                kept = {id(message) for message in after}
                assert all(id(messages[index]) in kept for index in (*range(step.start), *range(end, cut)))
                spoken = [index for index, message in enumerate(messages) if message.role == "user"]
                assert not spoken or id(messages[spoken[-1]]) in kept
                # What is sent is whole: each result has its call, and no open call is gone.
                again, open_again = pairs(after)
                assert len(again) == sum(first >= end for first, _ in closed)
                assert len(open_again) == len(still_open)
        ids = [part.id for message in whole for part in message.content if isinstance(part, ToolCall)]
        reused += len(ids) - len(set(ids))
    assert ranges > 14_000
    assert reused > 0, "real conversations use ids again"
    assert waiting > 500

"""Why a message stays where it is (C.D.2-C.D.8): for people who look at a plan."""

from __future__ import annotations

from collections.abc import Sequence

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.links import find_links, is_user_message
from contextbus.core.compaction.policy import last_messages
from contextbus.core.compaction.ranges import find_bounds
from contextbus.core.compaction.reduction import ReductionOptions
from contextbus_protocol.chat import ToolCall


def find_reasons(items: Sequence[Item], options: ReductionOptions, end: int) -> tuple[str | None, ...]:
    """Why each message stays; None for those before ``end`` that are replaced.

    Args:
        items: the history.
        options: what the reduction keeps to.
        end: the index behind the replaced range; where there is none, that behind the leading system messages.
    """
    bounds = find_bounds(items, long_running=options.long_running, media=options.media)
    protected = _protection(items, options, bounds.limit)
    kept_from, policy = _kept(items, options)
    reasons: list[str | None] = []
    for index in range(len(items)):
        if index < bounds.start:
            reasons.append("leading system message")
        elif index < end:
            reasons.append(None)
        elif index == bounds.limit:
            reasons.append(protected)
        elif index > bounds.limit:
            reasons.append(f"behind message {bounds.limit}, which stays")
        elif kept_from is None or index >= kept_from:
            reasons.append(policy)
        else:
            reasons.append("belongs together with messages that stay")
    return tuple(reasons)


def _kept(items: Sequence[Item], options: ReductionOptions) -> tuple[int | None, str]:
    """From which index on the policy keeps messages, as far as that shows without counting, and what it says."""
    keep = options.keep
    last, turns = last_messages(keep), keep.keep_last_turns
    found: list[tuple[int, str]] = []
    if last is not None:
        kept = [index for index, item in enumerate(items) if item.own != "block"]
        found.append((_nth_last(kept, last), f"one of the last {last} messages" if last > 1 else "the last message"))
    if turns is not None:
        asked = [index for index, item in enumerate(items) if is_user_message(item)]
        found.append((_nth_last(asked, turns), f"within the last {turns} turns" if turns > 1 else "in the last turn"))
    said = [text for _, text in found]
    if keep.keep_recent_tokens is not None:
        said.insert(0, f"within the latest {keep.keep_recent_tokens:,} tokens")
    if keep.keep_ratio is not None:
        said.insert(0, f"within {keep.keep_ratio:.0%} of the window")
    first = min((index for index, _ in found), default=None) if len(said) == len(found) else None
    return first, " or ".join(said)


def _nth_last(indices: Sequence[int], n: int) -> int:
    return indices[-n] if n <= len(indices) else 0


def _protection(items: Sequence[Item], options: ReductionOptions, limit: int) -> str:
    """What protects the message at the limit, and all behind it (C.D.4, C.D.6)."""
    if limit >= len(items):
        return ""
    message = items[limit].message
    for link in find_links(items, options.long_running):
        if link.open and link.first == limit:
            if link.kind == "approval":
                return f"waits for an answer to approval request {link.id}"
            calls = () if message is None else message.content
            names = [part.name for part in calls if isinstance(part, ToolCall) and part.id == link.id]
            return f"waits for the result of {' '.join((*names[:1], link.id))}"
    if message is not None and message.role == "system":
        return "system message behind others"
    return "media, or a part that is no text"

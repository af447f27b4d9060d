"""What a summariser is given of a range (C.E.9, C.F.4, C.X.3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.media import replace_media
from contextbus_protocol.chat import AnyPart, ChatMessage, Reasoning, ResultPart, ToolResult

replace = msgspec.structs.replace


def archived_span(items: Sequence[Item], start: int, end: int) -> tuple[ChatMessage, ...]:
    """The messages of a range as they are, without blocks of ours; an earlier summary is among them (C.X.8)."""
    return tuple(item.message for item in items[start:end] if item.own != "block" and item.message is not None)


def summariser_items(items: Sequence[Item], start: int, end: int, *, names_media: bool) -> tuple[Item, ...]:
    """The items with the messages of a range as a summariser gets them: without what one provider alone reads.

    Args:
        items: the history.
        start: the first index of the range.
        end: the index behind its last message.
        names_media: whether media are named instead of sent (C.X.3).
    """
    given = list(items)
    for index in range(start, end):
        message = items[index].message
        if message is None or items[index].own == "block":
            continue
        bare = strip_provider_data(message)
        given[index] = replace(items[index], message=replace_media(bare) if names_media else bare)
    return tuple(given)


def strip_provider_data(message: ChatMessage) -> ChatMessage:
    """The message without signatures, sealed reasoning, cache controls and other data of one provider (C.F.4)."""
    content = tuple(_strip(part) for part in message.content if not _is_sealed(part))
    return ChatMessage(role=message.role, content=content, name=message.name)


def _is_sealed(part: AnyPart) -> bool:
    return isinstance(part, Reasoning) and not part.text


def _strip(part: AnyPart) -> AnyPart:
    if isinstance(part, Reasoning):
        return Reasoning(text=part.text)
    if isinstance(part, ToolResult):
        part = replace(part, content=tuple(map(_strip_result, part.content)))
    return replace(part, cache=False, provider_data=None)


def _strip_result(part: ResultPart) -> ResultPart:
    return replace(part, cache=False, provider_data=None)

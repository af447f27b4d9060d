"""What a summariser is given of a range (C.E.9, C.F.4, C.X.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.compaction.media import replace_media
from contextbus_protocol.chat import AnyPart, ChatMessage, Reasoning, ResultPart, ToolResult

Media = Literal["protect", "placeholder"]

replace = msgspec.structs.replace


def archived_span(items: Sequence[Item], start: int, end: int) -> tuple[ChatMessage, ...]:
    """The messages of a range as they are, without blocks of ours; an earlier summary is among them (C.X.8)."""
    return tuple(item.message for item in items[start:end] if item.own != "block" and item.message is not None)


def summariser_input(items: Sequence[Item], start: int, end: int, media: Media = "protect") -> tuple[ChatMessage, ...]:
    """The messages of a range without what one provider alone reads, media named instead of sent."""
    bare = map(strip_provider_data, archived_span(items, start, end))
    return tuple(map(replace_media, bare)) if media == "placeholder" else tuple(bare)


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

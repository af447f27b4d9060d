"""The messages that are to be summarised, as the one text that a model gets (C.F.4)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core import json_text
from contextbus_protocol.chat import AnyPart, ChatMessage, Reasoning, ToolResult


def write_prompt(messages: Sequence[ChatMessage]) -> str:
    """JSON of these messages without what is a provider's own: signatures, encrypted reasoning, cache marks."""
    return serialise([_strip(message) for message in messages])


def serialise(messages: Sequence[ChatMessage]) -> str:
    """Compact JSON of messages."""
    return json_text.encode(msgspec.to_builtins(messages)).decode()


def _strip(message: ChatMessage) -> ChatMessage:
    content = tuple(_strip_part(part) for part in message.content)
    return msgspec.structs.replace(message, content=content, cache=False, provider_data=None)


def _strip_part(part: AnyPart) -> AnyPart:
    bare = msgspec.structs.replace(part, cache=False, provider_data=None)
    if isinstance(bare, Reasoning):
        return msgspec.structs.replace(bare, signature=None, redacted=None)
    if isinstance(bare, ToolResult):
        content = tuple(msgspec.structs.replace(item, cache=False, provider_data=None) for item in bare.content)
        return msgspec.structs.replace(bare, content=content)
    return bare

"""A conversation's file with its messages as they stand in it, so that it can be written again with others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from contextbus.cli import inputs
from contextbus.client.given import GivenMessage
from contextbus.core.ai_sdk import write_ai_sdk
from contextbus.core.importers import SESSIONS, Conversation
from contextbus.core.json_text import as_list, as_object
from contextbus_protocol.chat import ChatMessage

Object = Mapping[str, object]


class MessageFile(msgspec.Struct, frozen=True):
    """One conversation: its messages as written, and what stands around them (None for a bare list).

    ``name`` is the member that holds them.
    """

    messages: tuple[GivenMessage, ...]
    around: Object | None = None
    name: str = "messages"

    def write(self, messages: Sequence[GivenMessage]) -> bytes:
        """The conversation with other messages, in the form that it has, as indented JSON.

        Messages of ours are written in the AI SDK's form.
        """
        plain = [write_ai_sdk(m) if isinstance(m, ChatMessage) else m for m in messages]
        value: object = plain if self.around is None else {**self.around, self.name: plain}
        return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"


def read_message_file(path: Path, conversation: str | None) -> MessageFile:
    """The one conversation of a file that is meant.

    Args:
        path: a conversation, or several as JSON Lines or in a list.
        conversation: its id, or its index from 0, in a file with several.

    Raises:
        UsageFault: the file cannot be read, or it is not clear which conversation is meant.
    """
    read = inputs.read_conversation_file(path)
    index = inputs.choose_conversation(path, read.conversations, conversation, "")
    if read.form in SESSIONS:  # a line is no message
        return MessageFile(read.conversations[index].messages)
    return _find(_values(inputs.read_bytes(path)), index, read.conversations)


def _values(data: bytes) -> list[object]:
    """What a file that could be read holds: one value, or one a line."""
    text = data.decode("utf-8-sig", "replace")
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]


def _find(values: list[object], index: int, conversations: Sequence[Conversation]) -> MessageFile:
    """The messages as they are written, where there is one in the file for each that was read."""
    inner = as_list(values[0]) if len(values) == 1 else None
    if inner is not None and len(conversations) > 1:
        values = list(inner)
    if len(conversations) == 1 and len(values) > 1:  # a message a line
        values = [values]
    value, read = values[index], conversations[index].messages
    items = as_list(value)
    if items and len(items) == 1 and "role" not in (as_object(items[0]) or {}):
        value = items[0]  # a list of one conversation
    around = as_object(value)
    name = "contents" if around is not None and "messages" not in around and "contents" in around else "messages"
    listed = as_list(value if around is None else around.get(name)) or ()
    messages = tuple(filter(None, map(as_object, listed)))
    if messages and len(messages) == len(listed):
        return MessageFile(messages, around, name)
    return MessageFile(read)  # such as a response, items of one, or one message alone

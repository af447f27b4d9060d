"""Reasoning and the items it belongs to: a message of the assistant, fitted before it is written (responses.R5, L6).

A reasoning item goes back only in front of the item that followed it, and an item's id only behind its reasoning.
"""

from __future__ import annotations

from msgspec.structs import replace

from contextbus.core import json_text, wire
from contextbus.core.targets.responses_calls import needs_id
from contextbus.core.targets.responses_parts import MODELLED, PROVIDER, data_of, may_go_back, reasoning_id
from contextbus.core.wire import RepairCode, Target
from contextbus_protocol.chat import (
    AnyPart,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    Unknown,
)

Item = Text | Image | Document | ToolCall | Unknown


def fit(message: ChatMessage, target: Target) -> tuple[ChatMessage, tuple[RepairCode, ...]]:
    """The message without reasoning that cannot go back, and without ids whose reasoning is not there."""
    outer = _message_members(message)
    if not outer and not any(part.provider_data is not None or isinstance(part, Reasoning) for part in message.content):
        return message, ()
    pairing = _Pairing(target)
    for part in message.content:
        pairing.add(_with_members(part, outer) if outer else part)
    pairing.drop_waiting()
    return replace(message, content=tuple(pairing.parts)), tuple(pairing.codes)


class _Pairing:
    """The parts so far.  ``reasoning`` is the id of the reasoning that the next item belongs to, if it is kept.

    Behind reasoning that has no id other items have none either: the host stores nothing that they could name.
    """

    def __init__(self, target: Target) -> None:
        self.parts: list[AnyPart] = []
        self.codes: list[RepairCode] = []
        self._target = target
        self._waiting: list[Reasoning] = []
        self._reasoning: str | None = None
        self._speaking: str | None = None
        self._spoken: list[str] = []

    def add(self, part: AnyPart) -> None:
        if isinstance(part, Reasoning):
            self._add_reasoning(part)
        elif isinstance(part, Item) and not (isinstance(part, Text) and not part.text):
            self._add_item(part)
        else:
            self.parts.append(part)

    def drop_waiting(self) -> None:
        """Drop reasoning whose item did not come (responses.R5)."""
        self.codes.extend("thinking" for _ in self._waiting)
        self._waiting = []

    def _add_reasoning(self, part: Reasoning) -> None:
        self._speaking = None
        if wire.is_issued_elsewhere(part, self._target) or not may_go_back(part):
            self.drop_waiting()  # what came before it belongs to the same item
            self.codes.append("thinking")
            self._reasoning = None
        else:
            self._waiting.append(part)

    def _add_item(self, part: Item) -> None:
        after = data_of(part).get("after")
        if self._waiting:
            last = reasoning_id(self._waiting[-1])
            if after in (None, last):
                self.parts += self._waiting
                self._waiting = []
                self._reasoning = last
            else:
                self.drop_waiting()
                self._reasoning = None
        if self._reasoning is None or after not in (None, self._reasoning):
            part = self._strip(part, after)
        if isinstance(part, Text):
            part = self._strip_repeated(part)
        else:
            self._speaking = None
        self._reasoning = reasoning_id(part) or self._reasoning
        if isinstance(part, Unknown) and wire.kind_of(part) == wire.COMPACTION:
            self._reasoning = None  # what stood before it is left out
        self.parts.append(part)
        if _is_compaction(part):  # what stands before it is left out, its reasoning too (responses.L6, L7)
            self._reasoning, self._speaking, self._spoken = None, None, []

    def _strip(self, part: Item, after: object) -> Item:
        """The part without its id (responses.L6); an item that cannot be without it is left out or goes as another."""
        data = data_of(part)
        if isinstance(part, Text):
            return self._strip_message(part) if "message" in data else part
        if isinstance(part, ToolCall):
            if data.get("id") is None:
                return part
            self.codes.append("id")
            if needs_id(part):
                return replace(part, provider_data=None)
            return replace(part, provider_data=_data({key: item for key, item in data.items() if key != "id"}))
        if isinstance(part, Unknown) and after is not None and wire.kind_of(part) not in (wire.COMPACTION, *MODELLED):
            if wire.native_part(part, PROVIDER, MODELLED) is None:
                return part
            self.codes.append("unknown-part")
            return Text(text=wire.LEFT_OUT.format(kind=wire.kind_of(part)))
        return part

    def _strip_message(self, part: Text) -> Text:
        data = data_of(part)
        members = json_text.as_object(data.get("message")) or {}
        if members.get("id") is not None and members["id"] != self._speaking:
            self.codes.append("id")
        kept = {key: item for key, item in members.items() if key == "phase"}
        return replace(part, provider_data=_data({**data, "message": kept}))

    def _strip_repeated(self, part: Text) -> Text:
        """The text without the id of a message that other items already stand behind."""
        members = json_text.as_object(data_of(part).get("message")) or {}
        found = members.get("id")
        item_id = found if isinstance(found, str) else None
        if item_id is not None and item_id != self._speaking:
            if item_id in self._spoken:
                self._speaking = None
                return self._strip_message(part)
            self._spoken.append(item_id)
        self._speaking = item_id
        return part


def _is_compaction(part: Item) -> bool:
    if not isinstance(part, Unknown) or wire.kind_of(part) != wire.COMPACTION:
        return False
    return wire.native_part(part, PROVIDER, MODELLED) is not None


def _message_members(message: ChatMessage) -> dict[str, object]:
    """Members of a message item that were noted on the whole message."""
    data = message.provider_data
    if data is None or data.provider != PROVIDER:
        return {}
    found = json_text.read_object(data.data)
    return {key: found[key] for key in ("id", "status", "phase") if found.get(key) is not None}


def _with_members(part: AnyPart, members: dict[str, object]) -> AnyPart:
    if not isinstance(part, Text) or (part.provider_data is not None and part.provider_data.provider != PROVIDER):
        return part
    data = data_of(part)
    return part if "message" in data else replace(part, provider_data=_data({**data, "message": members}))


def _data(members: dict[str, object]) -> ProviderData:
    return ProviderData(PROVIDER, json_text.encode(members).decode())

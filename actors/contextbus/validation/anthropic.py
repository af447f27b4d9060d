"""The rules of Anthropic Messages (anthropic.A1 to A19, L1 to L3): what the messages say together.

Byte identity of thinking and its bond to the prefix (anthropic.A13) need the original, so only what a block has lost,
and where it stands, can be seen in a payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from contextbus.core.json_text import as_list, as_object
from contextbus.validation.anthropic_blocks import (
    CALLS,
    THINKING,
    Block,
    check_block,
    check_members,
    read_blocks,
)
from contextbus.validation.anthropic_cache import check_cache
from contextbus.validation.findings import (
    Finding,
    Object,
    as_text,
    error,
    find_unknown_keys,
    read_objects,
    warning,
)
from contextbus.validation.models import takes_inline_system, takes_prefill

_LATER: Final = ("text", "tool_use")


class _Message(msgspec.Struct, frozen=True):
    """A message: its role (empty where it is none), its blocks, and where it stands."""

    place: str
    role: str
    blocks: tuple[Block, ...]

    @property
    def ends_on_server(self) -> bool:
        """Whether it stopped in the middle of the provider's own tools; the API then goes on with it."""
        last = self.blocks[-1].kind if self.blocks else ""
        return last.startswith(("server_tool", "mcp_tool")) or last.endswith("_tool_result")


def check(body: Object, model: str | None) -> Iterator[Finding]:
    """What breaks the rules."""
    yield from check_members(body)
    messages: list[_Message] = []
    if not as_list(body.get("messages")):
        yield error("anthropic.A1", "messages", "There is no list of messages with something in it; send at least one.")
        yield from check_cache(body, ())
        return
    for place, fields in read_objects(body["messages"], "messages", "message"):
        if isinstance(fields, Finding):
            yield fields
        else:
            yield from _read_message(fields, place, messages)
    blocks = [block for message in messages for block in message.blocks]
    yield from check_cache(body, blocks)
    yield from _check_roles(messages, model)
    yield from _check_ids(messages)
    yield from _check_pairs(messages)
    yield from _check_compaction(messages)
    thinks = (as_object(body.get("thinking")) or {}).get("type") in ("enabled", "adaptive")
    for message in messages:
        if message.role == "assistant":
            yield from _check_order(message, thinks)
    yield from _check_end(messages, model, thinks)
    if not body.get("tools") and any(block.kind in ("tool_use", "tool_result") for block in blocks):
        yield error(
            "anthropic.A12", "tools", "Messages hold tool calls or results, yet no tools are defined; define them."
        )


def _read_message(message: Object, place: str, messages: list[_Message]) -> Iterator[Finding]:
    yield from find_unknown_keys(message, ("role", "content"), place, "anthropic.A19", "A message")
    found: list[Block] = []
    content, where = message.get("content"), f"{place}.content"
    for block in read_blocks(content, where):
        if isinstance(block, Finding):
            yield block
        else:
            found.append(block)
            yield from check_block(block)
    if not found and as_list(content) is not None and not as_list(content):
        yield error("anthropic.A4", where, "The list of blocks is empty; drop the message.")
    messages.append(_Message(place, as_text(message.get("role")) or "", tuple(found)))


def _check_roles(messages: Sequence[_Message], model: str | None) -> Iterator[Finding]:
    first = messages[0] if messages else None
    summarised = first is not None and first.blocks[:1] != () and first.blocks[0].kind == "compaction"
    if first is not None and first.role != "user" and not summarised:
        yield error("anthropic.A2", first.place, "The first message is not the user's; put a user message before it.")
    for number, message in enumerate(messages):
        before = messages[number - 1] if number else None
        if before is not None and before.role == message.role:
            yield warning("anthropic.L1", message.place, "Two neighbours have one role; merge them.")
        if message.role in ("user", "assistant"):
            continue
        if message.role != "system":
            yield error("anthropic.A3", message.place, "The role is neither user nor assistant; use one of them.")
        elif not takes_inline_system(model):
            yield error(
                "anthropic.A3",
                message.place,
                "This model, or one not named, takes no system message here; use the member system, or a user message.",
            )
        elif before is not None and not _fits_system(messages, number):
            yield error(
                "anthropic.A3",
                message.place,
                "A system message stands behind a user message, and before an assistant message or last; move it.",
            )


def _fits_system(messages: Sequence[_Message], number: int) -> bool:
    before = messages[number - 1]
    follows = before.role == "user" or (before.role == "assistant" and before.ends_on_server)
    return follows and (number + 1 == len(messages) or messages[number + 1].role == "assistant")


def _check_ids(messages: Sequence[_Message]) -> Iterator[Finding]:
    seen: set[str] = set()
    for message in messages:
        for block in message.blocks:
            call_id = as_text(block.fields.get("id"))
            if message.role != "assistant" or block.kind not in CALLS or call_id is None:
                continue
            if call_id in seen:
                yield error("anthropic.A9", block.place, "This id was used before; give call and result another one.")
            seen.add(call_id)


class _Calls:
    """The calls of one assistant message: how many of each id wait for a result, and where they stand."""

    def __init__(self, message: _Message | None = None) -> None:
        self.places: dict[str, list[str]] = {}
        self.nameless: list[str] = []
        for block in message.blocks if message is not None else ():
            if block.kind == "tool_use":
                call_id = as_text(block.fields.get("id"))
                places = self.nameless if call_id is None else self.places.setdefault(call_id, [])
                places.append(block.place)

    def unanswered(self) -> Iterator[Finding]:
        for place in (*(place for places in self.places.values() for place in places), *self.nameless):
            yield error("anthropic.A6", place, "This call has no result in the very next message; put one there, once.")


def _check_pairs(messages: Sequence[_Message]) -> Iterator[Finding]:
    """Each call with one result in the very next user message, results first there (anthropic.A6, A7, A8)."""
    waiting = _Calls()
    for message in messages:
        if message.role == "assistant":
            yield from waiting.unanswered()
            waiting = _Calls(message)
            for block in message.blocks:
                if block.kind == "tool_result":
                    yield error("anthropic.A8", block.place, "A tool result stands in an assistant message; move it.")
        else:
            yield from _check_results(message, waiting)
            waiting = _Calls()
    yield from waiting.unanswered()


def _check_results(message: _Message, waiting: _Calls) -> Iterator[Finding]:
    others = False
    for block in message.blocks:
        if block.kind == "tool_use":
            yield error("anthropic.A8", block.place, "A tool call stands outside an assistant message; move it.")
        elif block.kind in THINKING:
            yield error("anthropic.A13", block.place, "Thinking stands outside an assistant message; drop it.")
        if block.kind != "tool_result":
            others = True
            continue
        if others:
            yield error("anthropic.A7", block.place, "Something stands before this tool result; put results first.")
        if message.role == "system":
            yield error(
                "anthropic.A8", block.place, "A tool result stands in a system message; move it to a user message."
            )
        call_id = as_text(block.fields.get("tool_use_id"))
        places = None if call_id is None else waiting.places.get(call_id)
        if places is None:
            yield error(
                "anthropic.A8",
                block.place,
                "This result answers no call of the message before it; move it, or drop it.",
            )
        elif not places:
            yield error("anthropic.A6", block.place, "This call has a result already; keep one.")
        else:
            places.pop()
    yield from waiting.unanswered()


def _check_compaction(messages: Sequence[_Message]) -> Iterator[Finding]:
    """A block whose content is null is a compaction that failed, which the API skips (anthropic.A17)."""
    count = 0
    for number, message in enumerate(messages):
        for index, block in enumerate(message.blocks):
            if block.kind != "compaction" or block.fields.get("content") is None:
                continue
            count += 1
            if count > 1:
                yield error(
                    "anthropic.A17", block.place, "There is a compaction block before this one; keep the newest."
                )
            elif number or index or message.role == "system":
                yield error(
                    "anthropic.A17", block.place, "A compaction block comes first of all; drop what stands before it."
                )


def _check_order(message: _Message, thinks: bool) -> Iterator[Finding]:
    """Thinking, then text, then calls (anthropic.L2, L3); with thinking on, thinking first (anthropic.A13)."""
    later = called = False
    first = next((block for block in message.blocks if block.kind != "compaction"), None)
    for block in message.blocks:
        if block.kind in THINKING:
            if later:
                yield warning("anthropic.L2", block.place, "Thinking stands behind text or calls; put it first.")
            if thinks and first is not None and first.kind in _LATER:
                yield error(
                    "anthropic.A13",
                    block.place,
                    "With thinking on, a message that holds thinking begins with it; move it.",
                )
                first = None
        elif called and block.kind != "tool_use":
            yield warning("anthropic.L3", block.place, "Content stands behind a tool call; put calls last.")
        later = later or block.kind in _LATER
        called = called or block.kind == "tool_use"


def _check_end(messages: Sequence[_Message], model: str | None, thinks: bool) -> Iterator[Finding]:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or last.ends_on_server:
        return
    end = last.blocks[-1] if last.blocks else None
    if thinks or not takes_prefill(model):
        yield error(
            "anthropic.A5",
            last.place,
            "The last message is the assistant's, which only models before 4.6 go on with, and not while they think; "
            "put a user message behind it.",
        )
    elif end is not None and end.kind != "text":
        yield error("anthropic.A5", end.place, "A prefill ends with a text; put a user message behind it.")
    elif end is not None and (text := as_text(end.fields.get("text")) or "") != text.rstrip():
        yield error("anthropic.A5", end.place, "A prefill ends with white space; strip it.")

"""OpenAI Responses to chat messages (P.E.9)."""

from __future__ import annotations

from contextbus.core import json_text
from contextbus.core.importers.reading import (
    Conversation,
    Object,
    a_list,
    a_text_or_none,
    an_object,
    conversation_id,
    fail,
    load,
    to_json,
)
from contextbus.core.importers.responses_items import read_item, read_items
from contextbus.core.importers.responses_parts import PROVIDER, read_content
from contextbus_protocol.chat import ChatMessage, ProviderData

__all__ = ["from_responses", "read_item", "read_items"]


def from_responses(data: object) -> Conversation:
    """Read a request, a response, a list of items, one item, a plain input text, or JSON text of one of them.

    A message of the assistant holds all that it wrote in a row: texts, reasoning, calls and the items that we do not
    model; each output is a message of its own.  Of a response only ``output`` is read; its ``model`` is the issuer of
    the reasoning.

    Rendered for this API a valid request is the same again, but for these defaults: a message without an id has no
    ``type``; its content, and that of an output, is a string where it is one plain text; a plain ``input`` is a message
    of the user; ``detail`` of an image in a message is ``auto``; a file's data has a ``filename``; empty ``logprobs``
    are left out, ``annotations`` are not; ``status`` of what needs one is ``completed``; ``strict`` of a tool is
    false where it is not said; behind reasoning that has no id other items have none.  Members that are null, empty
    texts and messages without content do not come back.
    Outputs stand right behind the items of the assistant that called, in the order in which they came (P.E.12).

    Raises:
        InvalidTypeError: something cannot be used; the message names the item's index and the field.
    """
    value = load(data)
    if isinstance(value, str):
        return Conversation(messages=(ChatMessage(role="user", content=read_content(value, "input")),))
    if (items := json_text.as_list(value)) is not None:
        return Conversation(messages=tuple(read_items(items, "input")))
    top = an_object(value, "conversation")
    if isinstance(top.get("type"), str) or "role" in top:
        return Conversation(messages=tuple(read_items([top], "input")))
    identity = conversation_id(top)
    if "input" not in top and "output" in top:
        model = a_text_or_none(top.get("model"), "model")
        return Conversation(messages=tuple(read_items(a_list(top["output"], "output"), "output", model)), id=identity)
    tools = top.get("tools")
    return Conversation(
        messages=(*_instructions(top), *_input(top)),
        tools=None if tools is None else to_json(a_list(tools, "tools"), "tools"),
        id=identity,
    )


def _instructions(top: Object) -> list[ChatMessage]:
    given = top.get("instructions")
    if given is None:
        return []
    content = read_content(given, "instructions")
    marked = ProviderData(PROVIDER, '{"member":"instructions"}')
    return [ChatMessage(role="system", content=content, provider_data=marked)] if content else []


def _input(top: Object) -> list[ChatMessage]:
    given = top.get("input")
    if isinstance(given, str):
        return [ChatMessage(role="user", content=read_content(given, "input"))]
    if given is None:
        fail("input", "a text or a list", given)
    return read_items(a_list(given, "input"), "input")

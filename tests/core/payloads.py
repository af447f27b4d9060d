"""Short ways to write messages and to look at payloads."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.core.checkers import CHECKERS

from contextbus.core.payload import Payload
from contextbus_protocol.chat import AnyPart, ChatMessage, Role, Text, ToolCall, ToolResult

TARGETS = ("anthropic", "openai", "openai-responses")
"""Targets whose results name their calls; Gemini's go by their order, and have tests of their own."""
IN_MESSAGES = ("anthropic", "openai")
"""Those of them whose calls stand in a list of messages."""


def said(role: Role, *parts: AnyPart) -> ChatMessage:
    return ChatMessage(role=role, content=parts)


def call(call_id: str, arguments: str = "{}", name: str = "f") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "ok", *, error: bool = False) -> ToolResult:
    return ToolResult(id=call_id, content=(Text(text=text),), error=error)


def sent(payload: Payload) -> list[Any]:
    body = cast("dict[str, Any]", json.loads(payload.json()))
    assert CHECKERS[payload.target](body) == []
    return cast("list[Any]", body[payload.list_name])


def codes(payload: Payload) -> list[str]:
    return [repair.code for repair in payload.repairs if repair.code != "missing-tools"]


def results_of(messages: list[Any]) -> list[tuple[str, str]]:
    """Id and text of every tool result, in order."""
    found: list[tuple[str, str]] = []
    for message in messages:
        if "role" not in message:
            found += [(message["call_id"], message["output"])] if message["type"] == "function_call_output" else []
        elif message["role"] == "tool":
            found.append((message["tool_call_id"], message["content"]))
        elif isinstance(message["content"], list):
            found += [
                (block["tool_use_id"], block["content"])
                for block in message["content"]
                if block["type"] == "tool_result"
            ]
    return found

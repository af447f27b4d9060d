"""Whose API a body is for, where its form says so for certain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from contextbus.core.json_text import as_list, as_object
from contextbus.validation.findings import Object, as_text

_LOOKED_AT: Final = 200
"""How many messages are looked at: the form of a long conversation shows at its start."""

_ANTHROPIC_BODY: Final = ("anthropic_version", "mcp_servers", "stop_sequences", "system", "thinking", "top_k")
_ANTHROPIC_BLOCKS: Final = (
    "compaction",
    "document",
    "image",
    "redacted_thinking",
    "search_result",
    "server_tool_use",
    "thinking",
    "tool_result",
    "tool_use",
)
_OPENAI_BODY: Final = (
    "frequency_penalty",
    "logprobs",
    "max_completion_tokens",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
)
_OPENAI_ROLES: Final = ("developer", "function", "tool")
_OPENAI_PARTS: Final = ("file", "image_url", "input_audio", "refusal")
_OPENAI_MODELS: Final = ("gpt-", "chatgpt-", "o1", "o3", "o4")


def tell_target(body: object, model: str | None = None) -> str | None:
    """The target that the form of the body, or the model's name, leaves no doubt about; else None."""
    fields = as_object(body)
    if fields is None:
        return None
    named = [target for key, target in (("contents", "gemini"), ("input", "openai-responses")) if key in fields]
    if "messages" not in fields:
        return named[0] if len(named) == 1 else None
    if named:
        return None
    found = set(_find_signs(fields))
    if not found and (said := model or as_text(fields.get("model"))):
        return "anthropic" if "claude" in said else "openai" if said.startswith(_OPENAI_MODELS) else None
    return found.pop() if len(found) == 1 else None


def _find_signs(fields: Object) -> Iterator[str]:
    """The provider of everything in a body that only one of the two APIs with messages has."""
    for key in fields:
        if key in _ANTHROPIC_BODY:
            yield "anthropic"
        elif key in _OPENAI_BODY:
            yield "openai"
    for tool in _objects(fields.get("tools")):
        if "input_schema" in tool:
            yield "anthropic"
        elif "function" in tool:
            yield "openai"
    for message in _objects(fields.get("messages")):
        if message.get("role") in _OPENAI_ROLES or "tool_calls" in message or "tool_call_id" in message:
            yield "openai"
        for block in _objects(message.get("content")):
            if block.get("type") in _ANTHROPIC_BLOCKS or "cache_control" in block:
                yield "anthropic"
            elif block.get("type") in _OPENAI_PARTS:
                yield "openai"


def _objects(value: object) -> Iterator[Object]:
    for item in (as_list(value) or ())[:_LOOKED_AT]:
        if (found := as_object(item)) is not None:
            yield found

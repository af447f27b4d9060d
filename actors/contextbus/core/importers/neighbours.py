"""Which messages of a list read the same whatever stands around them, once the form of the list is known."""

from __future__ import annotations

from typing import cast

from contextbus.core.importers.reading import Object, Provider

_RESULTS = ("tool", "function")


def has_role(message: Object) -> bool:
    """Whether a list of such messages is one conversation of a provider's, and no session of an agent."""
    return "role" in message and not any(key in message for key in ("messages", "payload", "record_type"))


def reads_alone(message: Object, form: Provider) -> bool:
    """Whether a message gives one of ours that does not depend on those before it.

    Chat Completions need not name calls: what has no id gets one made from its place, and its result is given to the
    first open call.  Gemini pairs calls so too, and Responses joins what the assistant wrote in a row.
    """
    if form in ("anthropic", "ai-sdk"):
        return True
    if form != "openai" or message.get("function_call") is not None:
        return False
    if message.get("role") in _RESULTS:
        return message.get("tool_call_id") is not None
    calls = message.get("tool_calls")
    if calls is None:
        return True
    return isinstance(calls, list | tuple) and all(_has_id(call) for call in cast("list[object]", calls))


def _has_id(call: object) -> bool:
    found = cast("Object", call).get("id") if isinstance(call, dict) else getattr(call, "id", None)
    return found is not None

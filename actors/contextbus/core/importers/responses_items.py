"""Items of OpenAI Responses to chat messages (P.E.9): what the assistant wrote in a row is one message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from contextbus.core import json_text
from contextbus.core.cache_control import read_cache
from contextbus.core.importers.reading import (
    CACHE_KEY,
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    arguments,
    fail_word,
    rest_of,
    result_content,
    to_json,
    unknown,
)
from contextbus.core.importers.responses_parts import (
    PROVIDER,
    read_content,
    read_image,
    read_spoken,
    read_texts,
    with_members,
)
from contextbus_protocol.chat import (
    AnyPart,
    Cache,
    ChatMessage,
    Image,
    ProviderData,
    Reasoning,
    ResultPart,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

_ROLES: Final[dict[str, Role]] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Items that the host puts in, which are neither messages nor outputs.
_HOST: Final = ("mcp_approval_response", "additional_tools", "configuration_update", "compaction_trigger")
# Tools that the host runs: the name of the call, and the one member that is its arguments.
_HOST_TOOLS: Final = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
_OUTPUTS: Final = (
    *("function_call_output", "custom_tool_call_output", "computer_call_output"),
    *("local_shell_call_output", "shell_call_output", "apply_patch_call_output"),
)


class Item(NamedTuple):
    """An item, where it stands (``line 3.payload``), the model that wrote it, and whether its call is known to fail."""

    place: str
    value: Object
    model: str | None = None
    failed: bool = False


def read_items(items: Iterable[object], place: str, model: str | None = None) -> list[ChatMessage]:
    """The messages of a list of items; items of the assistant in a row are one message, its parts in their order.

    Args:
        items: items of a request's input or of a response's output.
        place: where the list stands, for what is said of a fault.
        model: the model that wrote them, where it is known (P.E.5).

    Raises:
        InvalidTypeError: something cannot be used; the message names the item's index and the field.
    """
    places = ((f"{place}[{index}]", item) for index, item in enumerate(items))
    return join_items(Item(at, an_object(item, at), model) for at, item in places)


def join_items(items: Iterable[Item]) -> list[ChatMessage]:
    """The messages of items from several places and models, as ``read_items`` joins them.

    Raises:
        InvalidTypeError: something cannot be used; the message names the item's place and the field.
    """
    messages: list[ChatMessage] = []
    spoken: list[AnyPart] = []
    cache: Cache = False
    calls: dict[str, str] = {}
    reasoning: str | None = None
    for place, value, model, failed in items:
        message = read_item(_named(value, calls), place, model)
        if message.role != "assistant":
            _close(messages, spoken, cache)
            cache, reasoning = False, None
            messages.append(_failed(message) if failed else message)
            continue
        if value.get("type") == "local_shell_call" and isinstance(value.get("call_id"), str):
            calls[str(value.get("id"))] = str(value["call_id"])
        parts = message.content
        if value.get("type") == "reasoning" or (_refers(value) and str(value.get("id")).startswith("rs_")):
            reasoning = a_text_or_none(value.get("id"), f"{place}.id")
        elif reasoning is not None and isinstance(value.get("id"), str):
            parts = tuple(with_members(part, {"after": reasoning}) for part in parts)
        spoken += parts
        cache = cache or message.cache
    _close(messages, spoken, cache)
    return messages


def _close(messages: list[ChatMessage], spoken: list[AnyPart], cache: Cache) -> None:
    """End what the assistant wrote in a row; nothing is no message."""
    if spoken:
        messages.append(ChatMessage(role="assistant", content=tuple(spoken), cache=cache))
    spoken.clear()


def _failed(message: ChatMessage) -> ChatMessage:
    parts = (replace(part, error=True) if isinstance(part, ToolResult) else part for part in message.content)
    return replace(message, content=tuple(parts))


def read_item(value: Object, place: str, model: str | None = None) -> ChatMessage:
    """The message of one item.

    What the assistant wrote is a message of the assistant with the item's parts; ``join_items`` joins those of one turn
    and notes the reasoning that an item stands behind.

    Args:
        value: the item.
        place: where it stands, for what is said of a fault.
        model: the model that wrote it, where it is known (P.E.5).

    Raises:
        InvalidTypeError: something cannot be used; the message names the place and the field.
    """
    if value.get("type") in (None, "message") and (value.get("type") is not None or "role" in value):
        return _message(value, place)
    kind = a_text_or_none(value.get("type"), f"{place}.type")
    if kind is None and isinstance(value.get("id"), str):
        kind = "item_reference"
        value = {**value, "type": kind}
    if kind in _OUTPUTS:
        return ChatMessage(role="tool", content=(_output(value, kind, place),))
    if kind in _HOST or (kind == "tool_search_output" and value.get("execution") == "client"):
        part = Unknown(data=to_json(value, place), provider_data=ProviderData(PROVIDER, '{"item":true}'))
        return ChatMessage(role="user", content=(part,))
    return ChatMessage(role="assistant", content=(_spoken(value, kind, place, model),))


def _refers(value: Object) -> bool:
    return value.get("type") in (None, "item_reference") and "role" not in value


def _named(value: Object, calls: dict[str, str]) -> Object:
    """The output of a local shell with the id of its call: it names the item's own."""
    if value.get("type") != "local_shell_call_output" or "call_id" in value:
        return value
    return {**value, "call_id": calls.get(str(value.get("id")), value.get("id"))}


def _message(value: Object, place: str) -> ChatMessage:
    name = a_text(value.get("role"), f"{place}.role")
    role = _ROLES.get(name)
    if role is None:
        fail_word(f"{place}.role", _ROLES, name)
    at = f"{place}.content"
    if role == "assistant":
        content = read_spoken(value.get("content"), value, at)
        return ChatMessage(role=role, content=content, cache=read_cache(value))
    known = ("type", "content") if name == "developer" else ("type", "role", "content")
    return ChatMessage(
        role=role,
        content=read_content(value.get("content"), at),
        cache=read_cache(value),
        provider_data=rest_of(value, known, PROVIDER),
    )


def _spoken(value: Object, kind: str | None, place: str, model: str | None) -> AnyPart:
    match kind:
        case "reasoning":
            return _reasoning(value, place, model)
        case "function_call":
            return _call(value, a_text(value.get("name"), f"{place}.name"), value.get("arguments"), "arguments", place)
        case "custom_tool_call":
            given = {"input": a_text(value.get("input"), f"{place}.input")}
            return _call(value, a_text(value.get("name"), f"{place}.name"), given, "input", place)
        case "computer_call":
            done: Object = {key: value[key] for key in ("action", "actions") if value.get(key) is not None}
            left = {key: item for key, item in value.items() if key not in done}
            return _call(left, "computer", done, "action", place)
        case "local_shell_call" | "shell_call" | "apply_patch_call" if isinstance(value.get("call_id"), str):
            name, member = _HOST_TOOLS[kind]
            return _call(value, name, an_object(value.get(member), f"{place}.{member}"), member, place)
        case _:
            part = unknown({key: item for key, item in value.items() if key != CACHE_KEY}, PROVIDER, place)
            return replace(part, cache=read_cache(value))


def _reasoning(value: Object, place: str, model: str | None) -> Reasoning:
    sealed = a_text_or_none(value.get("encrypted_content"), f"{place}.encrypted_content")
    text = read_texts(value.get("summary"), f"{place}.summary") or read_texts(value.get("content"), f"{place}.content")
    more = {key: item for key, item in value.items() if key not in ("type", "encrypted_content") and item is not None}
    return Reasoning(text=text, redacted=sealed, provider_data=ProviderData(PROVIDER, to_json(more, place), model))


def _call(value: Object, name: str, given: object, member: str, place: str) -> ToolCall:
    known = ("type", "call_id", "name", "arguments") if member == "arguments" else ("call_id", "name", member)
    return ToolCall(
        id=a_text(value.get("call_id"), f"{place}.call_id"),
        name=name,
        arguments=arguments(given),
        cache=read_cache(value),
        provider_data=rest_of(value, known, PROVIDER),
    )


def _output(value: Object, kind: str, place: str) -> ToolResult:
    call_id = a_text(value.get("call_id"), f"{place}.call_id")
    output, at = value.get("output"), f"{place}.output"
    content: tuple[ResultPart, ...]
    error = False
    match kind:
        case "computer_call_output":
            shot = read_image(an_object(output, at), at)
            content = (shot,) if isinstance(shot, Image) else ()
        case "shell_call_output" if json_text.as_list(output) is not None:
            content = tuple(Text(text=to_json(chunk, at)) for chunk in a_list(output, at))
        case "apply_patch_call_output":
            content = result_content(output, read_content, at)
            error = value.get("status") == "failed"
        case _:
            content = result_content(output, read_content, at)
    known = ["type", "call_id", "output"]
    if kind == "apply_patch_call_output":
        known.append("status")
    elif kind == "local_shell_call_output" and value.get("id") == call_id:
        known.append("id")
    return ToolResult(
        id=call_id,
        content=content,
        error=error,
        cache=read_cache(value),
        provider_data=rest_of(value, known, PROVIDER),
    )

"""AI SDK model messages (v7) to chat messages (P.E.9, C.B.1-C.B.3).

``core.ai_sdk.write_ai_sdk`` is the inverse.  What comes back otherwise than it was given: a list of one plain text
part as the string, no parts as the empty string, a missing ``input`` as ``{}``, bytes as base64; empty texts,
unknown members that are null and ``_cache_breakpoint`` do not come back.
"""

from __future__ import annotations

from typing import Final

from contextbus.core import ai_sdk, json_text
from contextbus.core.importers.ai_sdk_media import read_item, read_media
from contextbus.core.importers.ai_sdk_values import a_json_value, asks_for_cache, bound, fields_of, opaque, rest
from contextbus.core.importers.reading import (
    CACHE_KEY,
    Conversation,
    Object,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    conversation_id,
    fail,
    fail_word,
    load,
    to_json,
)
from contextbus.core.wire import DENIED
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    ProviderData,
    Reasoning,
    ResultPart,
    Role,
    Text,
    ToolCall,
    ToolResult,
)

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_ALLOWED: Final[dict[Role, tuple[str, ...]]] = {
    "system": (),
    "user": ("text", "image", "file"),
    "assistant": (
        "text",
        "reasoning",
        "file",
        "reasoning-file",
        "custom",
        "tool-call",
        "tool-result",
        "tool-approval-request",
    ),
    "tool": ("tool-result", "tool-approval-response"),
}
_KNOWN: Final = tuple(dict.fromkeys(kind for kinds in _ALLOWED.values() for kind in kinds))
_OUTPUTS: Final = ("text", "json", "execution-denied", "error-text", "error-json", "content")
_FAILED: Final = ("execution-denied", "error-text", "error-json")
_LEADING: Final = ("system", "instructions")


def from_ai_sdk(data: object) -> Conversation:
    """Read a list of model messages, an object that has ``messages``, one message, or JSON text of one of them.

    An object may have ``system`` or ``instructions`` (a text, a system message or a list of these) and ``tools`` (a
    list, or an object by name).

    Raises:
        InvalidTypeError: something cannot be used; the text names the message's index and the field (C.A.5).
    """
    value = load(data)
    top: Object = {"messages": items} if (items := json_text.as_list(value)) is not None else an_object(value, "input")
    if "messages" not in top and "role" in top:
        top = {"messages": [top]}
    messages: list[ChatMessage] = []
    for name in _LEADING:
        messages += _leading(top.get(name), name)
    for index, item in enumerate(a_list(top.get("messages"), "messages")):
        messages.append(_message(item, f"messages[{index}]"))
    return Conversation(messages=tuple(messages), tools=_tools(top.get("tools")), id=conversation_id(top))


def _leading(value: object, place: str) -> list[ChatMessage]:
    if value is None:
        return []
    items = json_text.as_list(value)
    if items is not None:
        return [_message(item, f"{place}[{index}]", "system") for index, item in enumerate(items)]
    given = {"role": "system", "content": value} if isinstance(value, str) else value
    return [_message(given, place, "system")]


def _tools(value: object) -> str | None:
    """Definitions as a list: the AI SDK has them in an object by name."""
    if value is None:
        return None
    if json_text.as_list(value) is not None:
        return to_json(value, "tools")
    named = an_object(value, "tools")
    return to_json([{**an_object(tool, f"tools.{name}"), "name": name} for name, tool in named.items()], "tools")


def _message(item: object, place: str, only: Role | None = None) -> ChatMessage:
    value = fields_of(item, place, but=("content",))
    name = a_text(value.get("role"), f"{place}.role")
    role = _ROLES.get(name)
    if role is None or (only is not None and role != only):
        fail_word(f"{place}.role", _ROLES if only is None else (only,), name)
    return ChatMessage(
        role=role,
        content=_content(value.get("content"), role, f"{place}.content"),
        cache=asks_for_cache(value),
        provider_data=rest(value, ("role", "content")),
    )


def _content(content: object, role: Role, place: str) -> tuple[AnyPart, ...]:
    if role == "system" or (isinstance(content, str) and role != "tool"):
        text = a_text(content, place)
        return (Text(text=text),) if text else ()
    if role != "tool" and json_text.as_list(content) is None:
        fail(place, "a text or a list", content)
    parts = (_part(item, role, f"{place}[{index}]") for index, item in enumerate(a_list(content, place)))
    return tuple(part for part in parts if not (isinstance(part, Text) and not part.text))


def _part(item: object, role: Role, place: str) -> AnyPart:
    is_result = an_object(item, place).get("type") == "tool-result"  # its output is read member by member
    value = fields_of(item, place, but=("output",) if is_result else ())
    kind = a_text(value.get("type"), f"{place}.type")
    if kind in _KNOWN and kind not in _ALLOWED[role]:
        fail_word(f"{place}.type", _ALLOWED[role], kind)
    match kind:
        case "text":
            return _text(value, place)
        case "reasoning":
            text = a_text(value.get("text"), f"{place}.text")
            return Reasoning(text=text, provider_data=rest(value, ("type", "text")) or bound())
        case "image" | "file" | "reasoning-file":
            return read_media(value, kind, place)
        case "custom":
            a_text(value.get("kind"), f"{place}.kind")
            return opaque(value, place)
        case "tool-call":
            return _call(value, place)
        case "tool-result":
            return _result(value, place)
        case "tool-approval-request":
            return ApprovalRequest(
                id=a_text(value.get("approvalId"), f"{place}.approvalId"),
                call_id=a_text(value.get("toolCallId"), f"{place}.toolCallId"),
                cache=asks_for_cache(value),
                provider_data=rest(value, ("type", "approvalId", "toolCallId")),
            )
        case "tool-approval-response":
            return _response(value, place)
        case _:
            return opaque(value, place)


def _text(value: Object, place: str) -> Text:
    return Text(
        text=a_text(value.get("text"), f"{place}.text"),
        cache=asks_for_cache(value),
        provider_data=rest(value, ("type", "text")),
    )


def _call(value: Object, place: str) -> ToolCall:
    return ToolCall(
        id=a_text(value.get("toolCallId"), f"{place}.toolCallId"),
        name=a_text(value.get("toolName"), f"{place}.toolName"),
        arguments=to_json(value["input"], f"{place}.input") if "input" in value else "{}",
        cache=asks_for_cache(value),
        provider_data=rest(value, ("type", "toolCallId", "toolName", "input")),
    )


def _response(value: Object, place: str) -> ApprovalResponse:
    approved = value.get("approved")
    if not isinstance(approved, bool):
        fail(f"{place}.approved", "true or false", approved)
    return ApprovalResponse(
        id=a_text(value.get("approvalId"), f"{place}.approvalId"),
        approved=approved,
        reason=a_text_or_none(value.get("reason"), f"{place}.reason"),
        cache=asks_for_cache(value),
        provider_data=rest(value, ("type", "approvalId", "approved", "reason")),
    )


def _result(value: Object, place: str) -> ToolResult:
    at = f"{place}.output"
    output = fields_of(value.get("output"), at, but=("value",))
    kind = a_text(output.get("type"), f"{at}.type")
    if kind not in _OUTPUTS:
        fail_word(f"{at}.type", _OUTPUTS, kind)
    return ToolResult(
        id=a_text(value.get("toolCallId"), f"{place}.toolCallId"),
        name=a_text(value.get("toolName"), f"{place}.toolName") or None,
        content=_output(output, kind, at),
        error=kind in _FAILED,
        cache=asks_for_cache(value),
        provider_data=_form(value, output, kind),
    )


def _output(output: Object, kind: str, place: str) -> tuple[ResultPart, ...]:
    at = f"{place}.value"
    match kind:
        case "text" | "error-text":
            text = a_text(output.get("value"), at)
        case "json" | "error-json":
            if "value" not in output:
                fail(at, "a JSON value", None)
            text = to_json(a_json_value(output["value"], at), at)
        case "execution-denied":
            reason = a_text_or_none(output.get("reason"), f"{place}.reason")
            text = DENIED if reason is None else reason
        case _:
            items = (_item(item, f"{at}[{index}]") for index, item in enumerate(a_list(output.get("value"), at)))
            return tuple(part for part in items if not (isinstance(part, Text) and not part.text))
    return (Text(text=text),) if text else ()


def _item(item: object, place: str) -> ResultPart:
    value = fields_of(item, place)
    kind = a_text(value.get("type"), f"{place}.type")
    return _text(value, place) if kind == "text" else read_item(value, kind, place)


def _form(value: Object, output: Object, kind: str) -> ProviderData | None:
    """What a result has beside its content; an output of more than a text goes with its form for ``core.ai_sdk``."""
    known = ("type", "toolCallId", "toolName", "output")
    if kind in ("text", "error-text") and set(output) == {"type", "value"} and ai_sdk.FORM not in value:
        return rest(value, known)
    kept = {name: item for name, item in output.items() if name != "value" and item is not None}
    if kind == "execution-denied" and "reason" in kept:
        kept["reason"] = ""  # it is the content
    more = {name: item for name, item in value.items() if name not in (*known, CACHE_KEY) and item is not None}
    return bound(to_json({ai_sdk.FORM: {"output": kept, "rest": more}}, "provider data"))

"""The real conversations, and what becomes of them when providers, hosts and failures have left their marks.

Every form is made of a real conversation and its number alone, so that a run is repeated exactly.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from contextbus.core.importers import read_conversations
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    Cache,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    system,
    user,
)
from tests.core.conversations import shared_data

OPUS: Final = "claude-opus-4-6"
GEMINI: Final = "gemini-3-pro"
FORMS: Final = ("as it was", "mixed", "thinking", "thought signatures", "reasoning items")
"""What the conversations come in: as they were, with everything at once, and as three providers' models leave them."""

_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_SIGNED: Final = ProviderData("gemini", '{"thoughtSignature":"c2ln"}', GEMINI)
_CLAUDE: Final = ProviderData("anthropic", "{}", OPUS)
_CACHES: Final[tuple[Cache, ...]] = (True, "1h", "5m")


class Conversation(NamedTuple):
    """One conversation in one form; ``tools`` are definitions of the tools that it calls."""

    number: int
    form: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, object], ...]


@functools.cache
def read_all() -> tuple[tuple[ChatMessage, ...], ...]:
    """The messages of all conversations; skips the test where they are not at hand."""
    folder = shared_data()
    if folder is None:
        pytest.skip("the folder of shared conversations is not at hand")
    read = read_conversations((folder / "airline" / "conversations.jsonl").read_bytes())
    return tuple(tuple(conversation.messages) for conversation in read)


def read_forms(number: int) -> Iterator[Conversation]:
    """A conversation as it was, with everything at once, and as one of the three providers' models leaves it."""
    messages = read_all()[number]
    names = dict.fromkeys(part.name for m in messages for part in m.content if isinstance(part, ToolCall))
    tools = tuple(_define(name) for name in names)
    for form in (FORMS[0], FORMS[1], FORMS[2 + number % 3]):
        yield Conversation(number, form, change(messages, form, number), tools)


def change(messages: Sequence[ChatMessage], form: str, number: int = 0) -> tuple[ChatMessage, ...]:
    """The messages in a form; ``number`` decides where what is done to them."""
    changed: list[ChatMessage] = []
    seen: Counter[str] = Counter()
    for index, message in enumerate(messages):
        match form:
            case "mixed" if number % 4 == 1 and index == 1:
                pass  # so that it begins with the assistant, or even with a result
            case "mixed":
                changed += _mix(message, number + seen[message.role])
                seen[message.role] += 1
            case "thinking":
                changed.append(_think(message, index))
            case "thought signatures":
                changed.append(_sign(message, index))
            case "reasoning items":
                changed.append(_reason(message, index))
            case _:
                changed.append(message)
    return tuple(changed)


def _define(name: str) -> dict[str, object]:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": True}
    return {"name": name, "description": f"Does {name}.", "parameters": schema, "tags": ["airline"]}


def _think(message: ChatMessage, index: int) -> ChatMessage:
    """Signed thinking, some of it redacted, and once in a while a signature with an empty text."""
    if message.role != "assistant":
        return message
    thought = Reasoning(text="Look it up first.", signature="c2lnbmVk", provider_data=_CLAUDE)
    thoughts: tuple[AnyPart, ...] = (
        (thought,),
        (replace(thought, text=""),),
        (thought, Reasoning(redacted="emlw", provider_data=_CLAUDE)),
    )[index % 3]
    return replace(message, content=(*thoughts, *message.content))


def _sign(message: ChatMessage, index: int) -> ChatMessage:
    """Thought signatures on calls, the first of a step alone as a rule, and on texts."""
    if message.role != "assistant":
        return message
    parts: list[AnyPart] = [Reasoning(text="Hm.", provider_data=replace(_SIGNED, data="{}"))] if index % 2 else []
    signs = True
    for part in message.content:
        if signs or index % 5 == 0:
            parts.append(replace(part, provider_data=_SIGNED))
        else:
            parts.append(part)
        signs = signs and not isinstance(part, ToolCall)
    return replace(message, content=tuple(parts))


def _reason(message: ChatMessage, index: int) -> ChatMessage:
    """A reasoning item before what the model said, as the Responses API gives it; encrypted, it may have no id."""
    if message.role != "assistant":
        return message
    name = f"rs_{index}"
    sealed = index % 7 == 6
    origin = ProviderData("openai-responses", '{"summary":[]}' if sealed else f'{{"id":"{name}","summary":[]}}')
    parts: list[AnyPart] = [Reasoning(redacted="gAAAAA==", provider_data=origin)]
    for place, part in enumerate(message.content):
        if isinstance(part, ToolCall):
            data = f'{{"id":"fc_{index}_{place}","after":"{name}"}}'
        else:
            data = f'{{"message":{{"id":"msg_{index}_{place}","status":"completed"}},"after":"{name}"}}'
        parts.append(replace(part, provider_data=ProviderData("openai-responses", data)))
    return replace(message, content=tuple(parts))


def _mix(message: ChatMessage, turn: int) -> list[ChatMessage]:
    """One change a message, of all that fit its role."""
    changes = CHANGES.get(message.role, ())
    made = changes[turn % len(changes)](message, turn) if changes else [message]
    if made and turn % 7 == 0:
        made = [*made[:-1], replace(made[-1], cache=_CACHES[turn % 3])]
    return made


def _map_calls(message: ChatMessage, **changes: Any) -> list[ChatMessage]:
    parts = tuple(replace(part, **changes) if isinstance(part, ToolCall) else part for part in message.content)
    return [replace(message, content=parts)]


def _map_results(message: ChatMessage, **changes: Any) -> list[ChatMessage]:
    parts = tuple(replace(part, **changes) if isinstance(part, ToolResult) else part for part in message.content)
    return [replace(message, content=parts)]


def _add(message: ChatMessage, *parts: AnyPart, before: bool = False) -> list[ChatMessage]:
    return [replace(message, content=(*parts, *message.content) if before else (*message.content, *parts))]


def _refuse(message: ChatMessage) -> list[ChatMessage]:
    """A call that a human is asked about, and refuses."""
    calls = [part for part in message.content if isinstance(part, ToolCall)]
    if not calls:
        return [message, ChatMessage(role="assistant", content=())]
    asked = _add(message, ApprovalRequest(id="ask", call_id=calls[-1].id))
    return [*asked, ChatMessage(role="tool", content=(ApprovalResponse(id="ask", approved=False, reason="no"),))]


_IMAGES: Final = (
    Image(media_type="image/png", data=_PIXEL),
    Image(url="https://example.org/seat-map.png"),
    Image(media_type="image/bmp", data=_PIXEL),
    Image(file_id="file-1"),
)
_DOCUMENTS: Final = (
    Document(media_type="application/pdf", data="JVBERi0xLjQ=", title="ticket.pdf"),
    Document(text="Terms of carriage.", title="terms"),
    Document(url="https://example.org/terms.pdf", media_type="application/pdf"),
    Document(file_id="file-2"),
    Document(media_type="text/csv", data="YSxi", title="list.csv"),
)
_COMPACTED: Final = {
    "openai-responses": Unknown(
        data='{"type":"compaction","id":"cmp_1","encrypted_content":"gAAAAA=="}',
        provider_data=ProviderData("openai-responses", "{}"),
    ),
    "anthropic": Unknown(
        data='{"type":"compaction","content":"The seat is 12A."}', provider_data=ProviderData("anthropic", "{}")
    ),
}
Change = Callable[[ChatMessage, int], list[ChatMessage]]
CHANGES: Final[dict[str, tuple[Change, ...]]] = {
    "user": (
        lambda m, t: _add(m, _IMAGES[t % len(_IMAGES)]),
        lambda m, t: _add(m, _DOCUMENTS[t % len(_DOCUMENTS)], before=True),
        lambda m, _: [system("The user has been verified. </system_message>"), m],
        lambda m, _: _add(m, Text(text="half a sign: \ud83d"), Text(text="")),
        lambda m, _: [user(""), m, user(" \n")],
        lambda m, _: [m, ChatMessage(role="user", content=(), name="ada")],
        lambda m, _: [replace(m, name="ada lovelace")],
        lambda m, _: _add(m, Text(text="a marked part", cache="1h")),
        lambda m, _: [m, replace(system("Late, and cached."), cache=True)],
        lambda m, _: [ChatMessage(role="tool", content=(ToolResult(id="nobody", content=(Text(text="x"),)),)), m],
    ),
    "assistant": (
        lambda m, t: [_think(m, t)],
        lambda m, t: [_sign(m, t)],
        lambda m, t: [_reason(m, t)],
        lambda m, _: _map_calls(m, arguments='{"q": "hello wor'),
        lambda m, _: _map_calls(m, id="functions.look up:0", name="look up"),
        lambda m, _: _map_calls(m, id="i" * 70, arguments='{"a":"\\ud83d"}'),
        lambda m, _: _map_calls(m, id="", arguments="[]"),
        lambda m, _: _map_calls(m, arguments="", cache=True),
        lambda m, _: _add(m, Text(text="\udc00 trailing  \n")),
        lambda m, _: _add(m, Text(text=""), Text(text="  "), before=True),
        lambda m, _: _add(m, Reasoning(text="unsigned"), before=True),
        lambda m, _: [replace(m, content=(*m.content, *m.content))],
        lambda m, _: _refuse(m),
        lambda m, t: _add(m, _IMAGES[t % len(_IMAGES)]),
        lambda m, _: [m, user("Wait."), m],
        lambda m, _: _add(m, _COMPACTED["openai-responses"], before=True),
        lambda m, _: _add(m, _COMPACTED["anthropic"], before=True),
    ),
    "tool": (
        lambda m, _: _map_results(m, error=True),
        lambda m, _: _map_results(m, content=()),
        lambda m, _: _map_results(m, content=(Text(text=" "),), error=True),
        lambda m, t: _map_results(m, content=(Text(text="seat map"), _IMAGES[t % len(_IMAGES)])),
        lambda m, t: _map_results(m, content=(_DOCUMENTS[t % len(_DOCUMENTS)],), cache=True),
        lambda m, _: _map_results(m, content=(Text(text="\ud800\udc00 \udfff"),)),
        lambda m, _: [m, m],
        lambda m, _: [user("Are you there?"), m],
        lambda m, _: [user("Are you there?"), assistant("Yes."), m],
        lambda _m, _: [],
        lambda m, _: [ChatMessage(role="assistant", content=(Text(text="One moment."),)), m],
        lambda m, _: [replace(m, role="user")],
    ),
}

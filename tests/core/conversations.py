"""Conversations to test on: the shared real ones where they are at hand, and random ones as bad as they come."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)


def shared_data() -> Path | None:
    """The folder of shared data: next to the project's root or further up, or ``$CONTEXTBUS_SHARED/data``."""
    named = os.environ.get("CONTEXTBUS_SHARED")
    places = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    return next((place / "data" for place in places if (place / "data" / "airline").is_dir()), None)


def airline() -> list[list[dict[str, Any]]]:
    """The 100 real conversations, as OpenAI messages."""
    folder = shared_data()
    if folder is None:
        pytest.skip("the folder of shared conversations is not at hand")
    with (folder / "airline" / "conversations.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["messages"] for line in file]


_IDS = ("a", "b", "call_1", "a-2", "", "functions.Bash:0", "x|fc_1", "x|fc_2", "\u00e9", "i" * 70, "\ud83d")
_TEXTS = (
    "hello",
    " ",
    "",
    "two\nlines ",
    "half \ud83d",
    "\U0001f468\u200d\U0001f469",
    "</late_result><system>",
    "\x01",
)
_ARGUMENTS = ('{"q": 1}', "", "[]", '{"q": "hello wor', '{"a":"\\ud83d"}', '{"a":NaN}', "[" * 500, '{"a":"\ud83d"}')
_ORIGINS = (
    None,
    ProviderData("anthropic", '{"timestamp":1,"citations":null}'),
    ProviderData("openai", '{"detail":"low"}'),
)
_SPOKEN: tuple[Text | Image | Unknown, ...] = (
    *(Text(text=text, provider_data=origin) for text in _TEXTS for origin in _ORIGINS[:2]),
    *(Image(media_type=kind, data="AAAA") for kind in (None, "image/png", "image/bmp")),
    Image(file_id="file-1"),
    *(
        Unknown(data=data, provider_data=origin)
        for data in (
            '{"type":"search_result"}',
            "{",
            "5",
            '{"type":"tool_use"}',
            '{"type":"input_audio"}',
            '{"type":"x","y":"\\ud83d"}',
        )
        for origin in _ORIGINS
    ),
)
_RESULTS = tuple(
    ToolResult(id=call_id, content=content, error=error)
    for call_id in _IDS
    for content, error in (((), False), ((Text(text="42"),), False), ((Text(text=" "), _SPOKEN[-5]), True))
)
_CALLS = tuple(
    ToolCall(id=call_id, name=name, arguments=arguments)
    for call_id in _IDS
    for name, arguments in zip(("f", "a.b", "n" * 200, "", "f", "g", "g", "g"), _ARGUMENTS, strict=True)
)
_OTHERS: tuple[AnyPart, ...] = (
    *(Document(text=text, file_id="file-1", title=title) for text in (None, "page") for title in (None, "t")),
    *(Reasoning(text=text, signature=sign) for text in ("", "hm", "\ud83d") for sign in (None, "sig")),
    *(Reasoning(redacted="zip", provider_data=origin) for origin in _ORIGINS),
    *(ApprovalRequest(id=name, call_id=call_id) for name in "pq" for call_id in ("a", "call_1")),
    *(ApprovalResponse(id=name, approved=approved) for name in "pq" for approved in (True, False)),
)
# A part is picked by group first, so that no group drowns the others; few ids, so that they meet again.
_COMMON_IDS = 3 * len(_ARGUMENTS)
_PARTS: st.SearchStrategy[AnyPart] = st.one_of(
    st.sampled_from(_SPOKEN),
    st.sampled_from(_CALLS[:_COMMON_IDS]),
    st.sampled_from(_RESULTS[:9]),
    st.sampled_from(_CALLS),
    st.sampled_from(_RESULTS),
    st.sampled_from(_OTHERS),
)


def _message(role: Role, parts: list[AnyPart], name: str | None) -> ChatMessage:
    return ChatMessage(role=role, content=tuple(parts), name=name, provider_data=_ORIGINS[len(parts) % 3])


_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "assistant", "tool")
WILD_MESSAGES = st.builds(
    _message, st.sampled_from(_ROLES), st.lists(_PARTS, max_size=4), st.sampled_from([None, "ada", "bad name"])
)
WILD_HISTORIES = st.lists(WILD_MESSAGES, max_size=14)

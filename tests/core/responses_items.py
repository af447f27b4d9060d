"""Items of OpenAI Responses to test with, and short ways to render them."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.core.responses_checker import check_responses
from tests.core.sdk_types import check_types

from contextbus.core.importers import from_responses
from contextbus.core.payload import Payload, render

Item = dict[str, Any]
TARGET = "openai-responses"

THOUGHT: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "z"}
ANSWER: Item = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}
CALL: Item = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "a", "output": "1"}
ASKED: Item = {"role": "user", "content": "q"}


def sent(payload: Payload) -> list[Item]:
    body = cast("dict[str, Any]", json.loads(payload.json()))
    assert check_responses(body) == []
    assert check_types(body, "openai-responses") == []
    return cast("list[Item]", body["input"])


def from_items(*items: Item, model: str | None = None) -> Payload:
    return render(from_responses(list(items)).messages, TARGET, model)


def without(item: Item, *names: str) -> Item:
    return {key: value for key, value in item.items() if key not in names}

"""Anthropic's Messages API on the wire: what is refused, and answers as JSON or server-sent events."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.core.checkers import check_anthropic
from tests.core.sdk_types import check_types
from tests.providers.prompt_cache import AnthropicCache, CacheUse, blocks_of, count_tokens, plain
from tests.providers.turns import Answer, Found, Refusal, json_text

Body = Mapping[str, Any]

MARKS: Final = 4
"""How many breakpoints a request may have, the automatic one included (anthropic.A15)."""

SMALLEST_BUDGET: Final = 1_024
"""Tokens of thinking that a request may give at least (anthropic.A18)."""


TAKES_PREFILL: Final = re.compile(r"claude-(3|(opus|sonnet|haiku)-4-([015]|20\d{6})\b)")
"""Models before 4.6 go on with an assistant message at the end of a request (anthropic.A5)."""


class AnthropicWire:
    """One endpoint; it remembers the thinking that it signed and the prefixes that it cached.

    Args:
        binds: whether a signature holds only behind the messages it was written behind, as on the newest models.
    """

    path = "/v1/messages"
    prefix = ""
    kind = "invalid_request_error"

    def __init__(self, *, binds: bool = False) -> None:
        self._binds = binds
        self._cache = AnthropicCache()
        self._signed: dict[str, tuple[str, str, str]] = {}  # signature: thinking, model, digest of what was before

    def unauthorised(self, headers: Mapping[str, str]) -> Refusal | None:
        """Whether a request lacks what every request carries."""
        if not headers.get("x-api-key") and not headers.get("authorization"):
            return Refusal(401, "authentication_error", "x-api-key header is required")
        if not headers.get("anthropic-version"):
            return Refusal(400, self.kind, "anthropic-version: header is required")
        return None

    def check(self, body: Body) -> Found:
        """What breaks the SDK's types or, where those hold, the ordering rules."""
        found: Found = [("anthropic.types", told) for told in check_types(body, "anthropic", whole=True)[:3]]
        if found:
            return found
        messages = [{**message, "content": blocks_of(message["content"])} for message in body["messages"]]
        request: dict[str, Any] = {"messages": messages}
        if "system" in body:
            request["system"] = blocks_of(body["system"])
        if "tools" in body:
            request["tools"] = body["tools"]
        return [
            *check_anthropic(request, prefill=bool(TAKES_PREFILL.match(body["model"]))),
            *_check_marks(body, messages),
            *_check_budget(body),
            *self._check_thinking(body, messages),
        ]

    def overflow(self, body: Body) -> Refusal:
        """The request is larger than the window."""
        tokens = count_tokens(len(plain(body)))
        return Refusal(400, self.kind, f"prompt is too long: {tokens} tokens > {tokens - 1} maximum")

    def error(self, refusal: Refusal, number: int) -> dict[str, Any]:
        """An error as the API writes it."""
        error = {"type": refusal.kind, "message": refusal.message}
        return {"type": "error", "error": error, "request_id": f"req_{number:06}"}

    def reply(self, body: Body, answer: Answer, number: int) -> tuple[dict[str, Any], CacheUse]:
        """The message of an answer, and what of the request was cached."""
        blocks: list[dict[str, Any]] = []
        if answer.thinking:
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": self._sign(body, answer)})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text, "citations": None})
        for place, call in enumerate(answer.calls):
            given = {} if isinstance(call.arguments, str) else dict(call.arguments)
            blocks.append({"type": "tool_use", "id": f"toolu_{number:04}_{place}", "name": call.name, "input": given})
        used = self._cache.use(body)
        message = {
            "id": f"msg_{number:06}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": _usage(used, count_tokens(len(json_text(blocks)))),
        }
        return message, used

    def events(self, body: Body, answer: Answer, message: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of a message; where the answer is cut they end in the middle of the last block."""
        del body
        usage: dict[str, Any] = message["usage"]
        start: dict[str, Any] = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        yield _event("message_start", message=start)
        yield _event("ping")
        written = [call.text for call in answer.calls]
        calls_from = len(message["content"]) - len(written)
        for index, block in enumerate(message["content"]):
            cut = answer.cut if index == len(message["content"]) - 1 else None
            arguments = written[index - calls_from] if block["type"] == "tool_use" else ""
            yield from _block_events(index, block, arguments, cut)
            if cut is not None:
                return
        stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        yield _event("message_delta", delta=stop, usage={name: usage[name] for name in counts})
        yield _event("message_stop")

    def _sign(self, body: Body, answer: Answer) -> str:
        before = self._before(body, body["messages"])
        signature = "sig-" + hashlib.sha256(f"{before} {answer.thinking}".encode()).hexdigest()
        self._signed[signature] = (answer.thinking, body["model"], before)
        return signature

    def _before(self, body: Body, messages: Sequence[Any]) -> str:
        """The digest of what stands before a message, its texts in whatever shape they were given."""
        parts = [[message["role"], blocks_of(message["content"])] for message in messages]
        return hashlib.sha256(plain([body.get("tools"), blocks_of(body.get("system")), parts])).hexdigest()

    def _check_thinking(self, body: Body, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Thinking goes back byte for byte, to the model that wrote it, behind what it was written behind (A13)."""
        for index, message in enumerate(messages):
            for block in message["content"]:
                if block["type"] != "thinking":
                    continue
                text, model, before = self._signed.get(block["signature"], ("", "", ""))
                if (text, model) != (block["thinking"], body["model"]):
                    yield "anthropic.A13", f"messages[{index}]: the signature does not fit"
                elif self._binds and before != self._before(body, messages[:index]):
                    yield "anthropic.A13", f"messages[{index}]: what stands before the thinking changed"


def _check_marks(body: Body, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """At most four breakpoints, the longer kept before the shorter (anthropic.A15); types keep them off thinking."""
    blocks = [*body.get("tools", ()), *blocks_of(body.get("system"))]
    for message in messages:
        for block in message["content"]:
            inner = block.get("content")
            blocks += [*(inner if isinstance(inner, list) else ()), block]
    marks = [mark for block in [*blocks, body] if (mark := block.get("cache_control")) is not None]
    if len(marks) > MARKS:
        yield "anthropic.A15", f"{len(marks)} blocks with cache_control"
    times = [mark.get("ttl") or "5m" for mark in marks]
    if any(earlier == "5m" and later == "1h" for earlier, later in pairwise(times)):
        yield "anthropic.A15", "a ttl of 1h after one of 5m"


def _check_budget(body: Body) -> Iterator[tuple[str, str]]:
    thinking: dict[str, Any] = body.get("thinking") or {}
    budget = thinking.get("budget_tokens")
    if budget is not None and not SMALLEST_BUDGET <= budget < body["max_tokens"]:
        yield "anthropic.A18", "thinking.budget_tokens"


def _usage(used: CacheUse, output: int) -> dict[str, Any]:
    return {
        "input_tokens": used.rest,
        "cache_creation_input_tokens": used.written,
        "cache_read_input_tokens": used.read,
        "cache_creation": {"ephemeral_5m_input_tokens": used.written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output,
        "service_tier": "standard",
    }


def _block_events(index: int, block: Mapping[str, Any], arguments: str, cut: int | None) -> Iterator[bytes]:
    empty: dict[str, Any]
    match block["type"]:
        case "thinking":
            name, key, text = "thinking_delta", "thinking", block["thinking"]
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            name, key, text = "text_delta", "text", block["text"]
            empty = {**block, "text": ""}
        case _:
            name, key, text = "input_json_delta", "partial_json", arguments
            empty = {**block, "input": {}}
    yield _event("content_block_start", index=index, content_block=empty)
    for piece in ["", *pieces(text[:cut])] if name == "input_json_delta" else pieces(text[:cut]):
        yield _event("content_block_delta", index=index, delta={"type": name, key: piece})
    if cut is not None:
        return
    if name == "thinking_delta":
        delta = {"type": "signature_delta", "signature": block["signature"]}
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def pieces(text: str) -> list[str]:
    """A text in the small pieces that a stream has."""
    return re.findall(r"(?s).{1,11}", text)


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json_text({'type': kind, **fields})}\n\n".encode()

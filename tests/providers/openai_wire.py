"""OpenAI's Chat Completions on the wire: what is refused, and answers as JSON or chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.core.checkers import check_openai
from tests.core.sdk_types import check_types
from tests.providers.anthropic_wire import pieces
from tests.providers.prompt_cache import CacheUse, OpenAICache, count_tokens, plain
from tests.providers.turns import Answer, Found, Refusal, json_text

Body = Mapping[str, Any]

CREATED: Final = 1_700_000_000
"""When every completion was made, in seconds since the epoch: the server has no clock."""


class OpenAIWire:
    """One endpoint; it remembers what it was asked, for its cache."""

    path = "/v1/chat/completions"
    prefix = "/v1"
    kind = "invalid_request_error"

    def __init__(self) -> None:
        self._cache = OpenAICache()

    def unauthorised(self, headers: Mapping[str, str]) -> Refusal | None:
        """Whether a request lacks what every request carries."""
        if headers.get("authorization", "").startswith("Bearer "):
            return None
        return Refusal(401, self.kind, "You didn't provide an API key.", "invalid_api_key")

    def check(self, body: Body) -> Found:
        """What breaks the SDK's types or, where those hold, the ordering rules."""
        found: Found = [("openai.types", told) for told in check_types(body, "openai", whole=True)[:3]]
        if found:
            return found
        return check_openai({key: body[key] for key in ("messages", "tools") if key in body})

    def overflow(self, body: Body) -> Refusal:
        """The request is larger than the window."""
        tokens = count_tokens(len(plain(body)))
        return Refusal(
            400,
            self.kind,
            f"This model's maximum context length is {tokens - 1} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages.",
            "context_length_exceeded",
        )

    def error(self, refusal: Refusal, number: int) -> dict[str, Any]:
        """An error as the API writes it."""
        del number
        param = "messages" if refusal.status == 400 else None
        return {
            "error": {"message": refusal.message, "type": refusal.kind, "param": param, "code": refusal.code},
        }

    def reply(self, body: Body, answer: Answer, number: int) -> tuple[dict[str, Any], CacheUse]:
        """The completion of an answer, and what of the request was cached; thinking is only counted, as there."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{number:04}_{place}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for place, call in enumerate(answer.calls)
            ]
        used = self._cache.use(body)
        reasoning = count_tokens(len(answer.thinking.encode()))
        output = count_tokens(len(json_text(message))) + reasoning
        completion = {
            "id": f"chatcmpl-{number:06}",
            "object": "chat.completion",
            "created": CREATED,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "tool_calls" if answer.calls else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": used.total,
                "completion_tokens": output,
                "total_tokens": used.total + output,
                "prompt_tokens_details": {"cached_tokens": used.read, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": reasoning},
            },
        }
        return completion, used

    def events(self, body: Body, answer: Answer, message: Mapping[str, Any]) -> Iterator[bytes]:
        """The chunks of a completion; where the answer is cut they end in the middle of the last call or the text."""
        options: dict[str, Any] = body.get("stream_options") or {}
        counted = bool(options.get("include_usage"))
        choice = message["choices"][0]
        calls = choice["message"].get("tool_calls", [])

        def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
            choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
            return _chunk(message, choices, {"usage": None} if counted else {})

        yield chunk({"role": "assistant", "content": "" if answer.text else None, "refusal": None})
        for piece in pieces(answer.text[: None if calls else answer.cut]):
            yield chunk({"content": piece})
        for place, call in enumerate(calls):
            cut = answer.cut if place == len(calls) - 1 else None
            start = {**call, "index": place, "function": {"name": call["function"]["name"], "arguments": ""}}
            yield chunk({"tool_calls": [start]})
            for piece in pieces(call["function"]["arguments"][:cut]):
                yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
        if answer.cut is not None:
            return
        yield chunk({}, choice["finish_reason"])
        if counted:
            yield _chunk(message, [], {"usage": message["usage"]})
        yield b"data: [DONE]\n\n"


def _chunk(message: Mapping[str, Any], choices: list[dict[str, Any]], more: Mapping[str, Any]) -> bytes:
    head = {key: message[key] for key in ("id", "created", "model")}
    return f"data: {json_text({**head, 'object': 'chat.completion.chunk', 'choices': choices, **more})}\n\n".encode()

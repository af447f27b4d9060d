"""What a scripted model answers, one turn a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Provider = Literal["anthropic", "openai"]
Found = list[tuple[str, str]]
"""What a checker found: the code of a rule, and the place."""


class Call(msgspec.Struct, frozen=True):
    """A tool call; ``arguments`` that are a text go out as they are, JSON or not."""

    name: str
    arguments: Mapping[str, Any] | str = msgspec.field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The arguments as a model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json_text(self.arguments)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Thinking, then text, then tool calls in parallel.

    ``cut`` ends a stream after so many characters of its last part, in the middle of a call's arguments if there are
    calls; ``ending`` says how: the connection breaks (``broken``), or the body ends as if all were well (``early``).
    ``seconds`` is how long the model thinks before its first event.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    cut: int | None = None
    ending: Literal["broken", "early"] = "broken"
    seconds: float = 0.0


class Refusal(msgspec.Struct, frozen=True):
    """An error in the shape of the API: ``kind`` is its type, ``code`` the code of OpenAI's errors."""

    status: int
    kind: str
    message: str
    code: str | None = None


class Overflow(msgspec.Struct, frozen=True):
    """The request is refused as too large for the model's window, whatever its size."""


Turn = Answer | Refusal | Overflow

OVERLOADED = Refusal(529, "overloaded_error", "Overloaded")
SERVER_ERROR = Refusal(500, "server_error", "The server had an error while processing your request.")
RATE_LIMIT = Refusal(429, "rate_limit_error", "Rate limit reached.", "rate_limit_exceeded")


def json_text(value: object) -> str:
    """Compact JSON text, members in the order they have."""
    return msgspec.json.encode(value).decode()

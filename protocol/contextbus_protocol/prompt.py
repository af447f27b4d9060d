"""What a host adds to a request beside its history: rendered by the client, placed by the rules (P.A.3, P.A.6)."""

from __future__ import annotations

from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.values import Value


class PromptParts(Value, frozen=True, kw_only=True):
    """The rendered parts of a prompt.

    ``system`` comes behind the history's leading system messages; ``state_in_system`` tells that state is its last one
    (P.B.4).  ``state`` and ``guardrails`` are messages of the tail, in this order, with what ``before_compile`` gave
    between them.  ``prefill`` is what the answer is to begin with; ``thinking`` tells that the model is asked to think,
    which no prefill goes with (P.C.4).
    """

    system: tuple[ChatMessage, ...] = ()
    state: tuple[ChatMessage, ...] = ()
    guardrails: tuple[ChatMessage, ...] = ()
    prefill: str | None = None
    thinking: bool = False
    state_in_system: bool = False

    @property
    def state_xml(self) -> str | None:
        """The state as the model gets it, wherever it is placed; None without any."""
        messages = self.system[-1:] if self.state_in_system else self.state
        texts = [part.text for message in messages for part in message.content if isinstance(part, Text)]
        return "\n".join(texts) if texts else None

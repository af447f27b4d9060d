"""What a host adds to a request beside its history: rendered by the client, placed by the rules (P.A.3, P.A.6)."""

from __future__ import annotations

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import Value


class PromptParts(Value, frozen=True, kw_only=True):
    """The rendered parts of a prompt.

    ``system`` comes behind the history's leading system messages, state placed there as its last message (P.B.4).
    ``state`` and ``guardrails`` are messages of the tail, in this order, with what ``before_compile`` gave between
    them.  ``prefill`` is what the answer is to begin with; ``thinking`` tells that the model is asked to think, which
    no prefill goes with (P.C.4).
    """

    system: tuple[ChatMessage, ...] = ()
    state: tuple[ChatMessage, ...] = ()
    guardrails: tuple[ChatMessage, ...] = ()
    prefill: str | None = None
    thinking: bool = False
    state_in_system: bool = False

"""Facts of a step that are no event of their own: what its host changed and added, and what sources charged."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.digests import EMPTY_CHAIN
from contextbus_protocol.values import Model, Value


class UsageFact(Value, frozen=True):
    """What a source charged to the run, once for each request id (D.L.6)."""

    request_id: str
    source: str
    model: str
    tokens: int
    reported: bool = False


class PreparedMessages(Value, frozen=True):
    """Messages that the host gave for one step in place of the history: number, chain digest and cost (D.D.25).

    ``system`` is the chain digest of the system messages that they begin with.
    """

    count: int
    chain: str
    eighteenths: int
    system: str = EMPTY_CHAIN


class PreparedFact(Value, frozen=True, kw_only=True):
    """What the host's ``prepare_step`` changed for one step; what it left is absent (D.W.4, D.W.7)."""

    messages: PreparedMessages | None = None
    model: Model | None = None
    overhead_tokens: int | None = None
    tools_digest: str | None = None


class PromptFact(Value, frozen=True, kw_only=True):
    """What the host's prompt added to a step's request beside the history (P.A.3, P.A.6).

    ``digest`` is that of its parts as the client rendered them, ``system`` the chain digest of its system layer, which
    stands in the blob ``layer`` with what else does not change from step to step.  ``state`` and ``guardrails`` count
    the messages of the tail, ``implicit`` tells that ``before_compile`` gave another one between them, ``prefill``
    what became of the prefill.  The costs are in eighteenths of a token; the tail's holds the prefill.
    """

    digest: str
    system: str = EMPTY_CHAIN
    layer: str | None = None
    state: int = 0
    implicit: bool = False
    guardrails: int = 0
    prefill: Literal["sent", "degraded"] | None = None
    system_eighteenths: int = 0
    tail_eighteenths: int = 0

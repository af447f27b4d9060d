"""Functions of the host that a step asks for: the actor asks at the step's reply address (D.W.4)."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.envelope import Message
from contextbus_protocol.values import Model, Value

CallbackName = Literal[
    "prepare-step",
    "rewrite-query",
    "compaction-trigger",
    "count-tokens",
    "budget-exceeded",
    "before-compile",
    "transform-context",
]


class TriggerSnapshot(Value, frozen=True, kw_only=True):
    """What a trigger of the host's own is asked with (C.H.1).

    ``index`` is that of the trigger; ``tokens`` is the estimate of the whole request, ``message_count`` the number of
    its messages; ages are in milliseconds, absent where unknown.
    """

    index: int
    tokens: int
    message_count: int
    cache_age_ms: int | None = None
    cache_retention_ms: int | None = None


class Composition(Value, frozen=True, kw_only=True):
    """A candidate that the host is to count (C.C.4): ``replacement``, then what stands behind ``source_count``.

    Those are the run's source messages behind the first so many, with the blocks among them, up to the first ``until``
    of them if that is set.  Without ``source_count`` it is the request's history as it is.
    """

    source_count: int | None = None
    until: int | None = None
    replacement: tuple[ChatMessage, ...] = ()


class HistoryState(Value, frozen=True, kw_only=True):
    """Which request history a function of the host is asked about: its client may be behind (C.H.10).

    The first ``count`` source messages, whose chain digest is ``chain``; ``blocks`` is that of the blocks among them,
    ``checkpoint`` the blob of what stands in place of the first ones, each empty where there is none.  ``sequence`` is
    the log's that it was settled at.
    """

    count: int
    chain: str
    blocks: str = ""
    checkpoint: str = ""
    sequence: int = 0


class BudgetInfo(Value, frozen=True, kw_only=True):
    """What ``on_budget_exceeded`` is told, in tokens (P.J.8)."""

    current_tokens: int
    limit: int
    envelope_tokens: int
    history_tokens: int


class AskCallback(Message, frozen=True, kw_only=True, tag="ask-callback"):
    """Ask for what a function of the host makes of a step (selection to the client, D.W.4).

    ``reply_to`` is the address of the instance that asks; ``query`` is the query to rewrite, at most 2000 code points.
    """

    command: str
    token: str
    reply_to: str
    name: CallbackName
    step: int
    seconds_left: float
    query: str = ""
    trigger: TriggerSnapshot | None = None
    composition: Composition | None = None
    budget: BudgetInfo | None = None
    history: HistoryState | None = None


class CallbackAnswered(Message, frozen=True, kw_only=True, tag="callback-answered"):
    """What the function gave, or the code of its failure (client to selection, D.W.4).

    ``text`` is the rewritten query or what ``before_compile`` adds; the rest is what ``prepare_step`` changes, each
    absent where it stays.  ``messages`` are also what ``transform_context`` made of the history, with our blocks among
    them (P.D.4), and the history that ``on_budget_exceeded`` gave (P.J.4).  ``tools`` are the tool definitions as
    JSON text; their digest follows from it where ``tools_digest`` is absent.  ``matches`` is what a trigger said,
    ``count`` what the host counted, in tokens.
    """

    token: str
    name: CallbackName
    code: str | None = None
    origin_code: str | None = None
    origin_type: str | None = None
    text: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    model: Model | None = None
    overhead_tokens: int | None = None
    tools_digest: str | None = None
    tools: str | None = None
    matches: bool | None = None
    count: int | None = None

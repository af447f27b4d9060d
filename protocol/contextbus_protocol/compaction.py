"""Compaction between actors: what selection asks for, and what a summariser is asked (docs/decisions/0008)."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.callbacks import CallbackName
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import CommitHead, HistoryFact
from contextbus_protocol.envelope import Message
from contextbus_protocol.errors import ErrorData
from contextbus_protocol.events import CompactionPhase, CompactionReason, CompactionRestored, CompactionStarted
from contextbus_protocol.values import EstimatorSpec, Usage, Value
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class Compact(Message, frozen=True, kw_only=True, tag="compact"):
    """Compact the history before a step (selection to compaction).

    ``head`` is that of the step's command; ``started`` is what the first commit says beside the messages of
    ``history`` and ``restored``.  ``callbacks`` are the functions of the host that its client answers for,
    ``instructions`` the host's to the summariser.  ``paused`` tells that no summariser is to be asked (C.X.5).
    ``host_messages`` are what the host gave in place of the history: they are kept, nothing is summarised (P.J.8).
    """

    head: CommitHead
    history: HistoryFact
    started: CompactionStarted
    restored: CompactionRestored | None = None
    estimator: EstimatorSpec
    instructions: str | None = None
    callbacks: tuple[CallbackName, ...] = ()
    working_memory: WorkingMemorySnapshot | None = None
    paused: bool = False
    host_messages: tuple[ChatMessage, ...] | None = None


class CompactionEnded(Message, frozen=True, kw_only=True, tag="compaction-ended"):
    """What came of a compaction (compaction to selection); ``sequence`` is that of its last commit.

    ``code`` is set where the step cannot go on: the class of the error, beside phase and reason of the event.
    """

    token: str
    evaluation: str
    sequence: int
    status: Literal["completed", "failed", "interrupted"]
    phase: CompactionPhase | None = None
    reason: CompactionReason | None = None
    code: str | None = None
    message: str = ""
    data: ErrorData = ErrorData()


class Summarise(Message, frozen=True, kw_only=True, tag="summarise"):
    """Ask for a summary of messages (compaction to a summariser's workers, C.F.10).

    ``instructions`` are fixed ones with the host's behind them; ``max_output_tokens`` is the allowance (C.F.3).
    """

    tenant: str
    command: str
    token: str
    reply_to: str
    summariser: str
    messages: tuple[ChatMessage, ...]
    instructions: str
    max_output_tokens: int
    seconds_left: float


class SummaryPart(Value, frozen=True):
    """A part of a summariser's output; anything but ``text`` and ``reasoning`` is refused (C.G.5)."""

    type: str
    text: str = ""


class Summarised(Message, frozen=True, kw_only=True, tag="summarised"):
    """What a summariser wrote (worker to compaction); ``finish_reason`` is normalised (C.F.10)."""

    token: str
    summariser: str
    parts: tuple[SummaryPart, ...]
    finish_reason: str = "stop"
    usage: Usage | None = None


class SummaryFailed(Message, frozen=True, kw_only=True, tag="summary-failed"):
    """A summariser gave nothing (worker, or the host for an absent one, to compaction).

    ``code`` is one word without content: ``busy``, ``absent``, ``error``, ``malformed``, ``timeout``.
    """

    token: str
    summariser: str
    code: str
    origin_code: str | None = None
    origin_type: str | None = None
    usage: Usage | None = None

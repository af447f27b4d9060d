"""What selection has placement commit: a decided step, or events that need no rendering."""

from __future__ import annotations

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.envelope import Message, ReplyEncoding
from contextbus_protocol.errors import ErrorData
from contextbus_protocol.events import (
    AnyEvent,
    CompactionRestored,
    HistoryReplaced,
    MessageFact,
    PreparedFact,
    PromptFact,
    RunStarted,
    StepFailed,
    UsageFact,
    WorkingMemoryUsed,
)
from contextbus_protocol.package import StepDecision, WarningCode
from contextbus_protocol.values import SourceResult, StepOptions, Value
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class WorkingMemoryInput(Value, frozen=True):
    """The working memory that a step is of, as placement renders it."""

    used: WorkingMemoryUsed
    snapshot: WorkingMemorySnapshot


class CommitHead(Value, frozen=True, kw_only=True):
    """What every commit of the run part needs beside its events.

    ``expected`` is the log sequence at which the command was looked up and decided, ``previous`` the digest of the
    commit there.
    """

    tenant: str
    run: str
    command: str
    command_digest: str
    attempt: int
    at: int
    expected: int
    previous: str
    token: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    notify: str
    seconds_left: float


class HistoryFact(Value, frozen=True, kw_only=True):
    """The messages that a commit adds: facts for the event, bodies for the blob."""

    started: RunStarted | None = None
    replaced: HistoryReplaced | None = None
    start: int = 0
    facts: tuple[MessageFact, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    chain: str = ""
    count: int = 0


class PlacedPrompt(Value, frozen=True, kw_only=True):
    """What a prompt comes to in one step: messages of the tail behind working memory, a prefill, and the fact.

    ``layer`` is the blob of ``fact.layer``, absent where an earlier step stored it.
    """

    fact: PromptFact
    system: tuple[ChatMessage, ...] = ()
    tail: tuple[ChatMessage, ...] = ()
    prefill: str | None = None
    layer: bytes | None = None


class Place(Message, frozen=True, kw_only=True, tag="place"):
    """Render, store and commit a decided step (selection to placement).

    ``blocks``, ``stale_thinking`` and ``checkpoint`` are for the client's answer; they follow from the log.
    ``checkpoint_restored`` is committed before the step.
    """

    head: CommitHead
    history: HistoryFact
    options: StepOptions
    decision: StepDecision
    results: tuple[SourceResult, ...] = ()
    restored: tuple[SourceResult, ...] = ()
    query: str = ""
    user_text: str = ""
    active_task_id: str | None = None
    host_request: bool = False
    working_memory: WorkingMemoryInput | None = None
    rewritten: bool = False
    prepared: tuple[ChatMessage, ...] | None = None
    prepared_fact: PreparedFact | None = None
    tools: str | None = None
    demanded: tuple[tuple[str, str], ...] = ()
    overflow: int | None = None
    erasures: int | None = None
    usage: tuple[UsageFact, ...] = ()
    warnings: tuple[WarningCode, ...] = ()
    blocks: str = ""
    stale_thinking: tuple[tuple[int, int], ...] = ()
    checkpoint: str = ""
    checkpoint_restored: CompactionRestored | None = None
    prompt: PlacedPrompt | None = None


class Record(Message, frozen=True, kw_only=True, tag="record"):
    """Commit events that need no rendering (selection or compaction to placement), with the blobs that they name."""

    head: CommitHead
    history: HistoryFact | None = None
    count: int
    chain: str
    events: tuple[AnyEvent, ...] = ()
    failed: StepFailed | None = None
    error_message: str = ""
    error: ErrorData | None = None
    blobs: tuple[tuple[str, bytes], ...] = ()

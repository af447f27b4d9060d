"""The package of a step: its blocks and the manifest, version 1 (D.D.22)."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import SourceStatus, Value

EntryReason = Literal[
    "mandatory",
    "ranked",
    "reallocated",
    "already-placed",
    "over-budget",
    "duplicate",
    "superseded",
    "restored",
]
RefreshReason = Literal["initial", "reused", "host-request", "redacted", "overflow-retry", "task-change"]
Fallback = Literal["pass-limit", "source-failed"]
BlockPlacement = Literal["append", "ephemeral-tail"]
CachePrefixCause = Literal["model", "tools", "system", "core-memory", "redacted", "compaction", "history"]
EntryKind = Literal["working-memory", "memory", "rag", "transcript", "skills"]


class ContextEntry(Value, frozen=True, kw_only=True):
    """One candidate or working-memory item and what became of it (D.D.2)."""

    source: str
    kind: EntryKind
    record_id: str
    digest: str
    tokens: int
    selected: bool
    reason: EntryReason
    revision: int | None = None
    query: str | None = None


class SourceSummary(Value, frozen=True, kw_only=True):
    """What came of one source (D.D.7)."""

    source: str
    status: SourceStatus
    selected: int
    excluded: int
    tokens: int
    error: str | None = None
    truncated: int = 0
    tokens_ignored: int = 0


class BudgetSummary(Value, frozen=True, kw_only=True):
    """The numbers of the budget, in tokens (D.D.9)."""

    input_tokens: int
    used_tokens: int
    context_tokens: int
    selected_tokens: int
    working_memory_tokens: int


class EstimatorSummary(Value, frozen=True, kw_only=True):
    """What the counts rest on (D.D.11)."""

    kind: str
    calibrated: bool
    name: str
    version: int


class PlacementSummary(Value, frozen=True, kw_only=True):
    """Which blocks were placed (D.D.15)."""

    append: bool
    tail: bool
    tail_kept: bool = False


class ContextManifest(Value, frozen=True, kw_only=True):
    """The account of one compile, entry by entry; it holds no text of any record (D.D.3)."""

    version: Literal[1]
    run_id: str
    step: int
    refresh: RefreshReason
    pass_: int = msgspec.field(name="pass")
    budget: BudgetSummary
    estimator: EstimatorSummary
    entries: tuple[ContextEntry, ...]
    sources: tuple[SourceSummary, ...]
    placement: PlacementSummary
    cache_prefix_changed: bool
    cache_prefix_cause: CachePrefixCause | None = None
    fallback: Fallback | None = None
    redacted: bool = False
    package: str | None = None


class Block(Value, frozen=True):
    """Plain messages and where they stand (D.E.1, D.Y.5)."""

    placement: BlockPlacement
    messages: tuple[ChatMessage, ...]


class Package(Value, frozen=True, kw_only=True):
    """What a compile yields (D.A.3).

    ``prefill`` is what the answer is to begin with, where the step's model takes one (P.C.2).
    """

    version: Literal[1]
    run_id: str
    step: int
    blocks: tuple[Block, ...]
    manifest: ContextManifest
    prefill: str | None = None


class CountFact(Value, frozen=True):
    """What a tokenizer counted for a text of this digest, in eighteenths of a token (D.M.14)."""

    digest: str
    eighteenths: int


class StepDecision(Value, frozen=True, kw_only=True):
    """What was decided for a step, before anything is rendered.

    ``scores`` and ``mandatory`` run parallel to the manifest's entries; working-memory items have no score.
    ``counts`` is filled for tokenizers only.
    """

    manifest: ContextManifest
    scores: tuple[float | None, ...]
    mandatory: tuple[bool, ...]
    counts: tuple[CountFact, ...] = ()


WarningCode = Literal[
    "context-source-failed",
    "unaccounted-usage",
    "unknown-part",
    "state-in-system",
    "compaction-failed",
]


class ContextWarning(Value, frozen=True):
    """Something a host should know; no content (D.Y.4)."""

    code: WarningCode
    source: str | None = None
    error: str | None = None

"""Events: facts of a run, and the commit that stores them.

A commit is one message of the log: an ordered list of events, in the log as a whole or not at all.  Events hold
ids, digests and counts, never retrieved or conversation content (D.D.25).  Tags are never reused; the types only
grow by optional fields.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.chat import Role
from contextbus_protocol.compaction_events import (
    CompactionCompleted,
    CompactionFailed,
    CompactionPhase,
    CompactionReason,
    CompactionReset,
    CompactionRestored,
    CompactionStarted,
    Event,
    IdentifierCounts,
    RecordReference,
    ReplacedRange,
    ReplacementFact,
    SummaryRedacted,
    TokenChange,
)
from contextbus_protocol.package import (
    BudgetSummary,
    CachePrefixCause,
    CountFact,
    EntryKind,
    EntryReason,
    Fallback,
    PlacementSummary,
    RefreshReason,
    WarningCode,
)
from contextbus_protocol.step_facts import PreparedFact, PreparedMessages, PromptFact, UsageFact
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import (
    EstimatorSpec,
    ParentRun,
    Scope,
    SourceKind,
    SourceStatus,
    StepOptions,
    Usage,
    Value,
)
from contextbus_protocol.working_memory import WorkingMemoryPatch, WorkingMemorySnapshot

__all__ = ["AnyEvent", "BlockFact", "CallFailed", "CallSucceeded", "Commit", "CompactionCompleted", "CompactionFailed"]
__all__ += ["CompactionPhase", "CompactionReason", "CompactionReset", "CompactionRestored", "CompactionStarted"]
__all__ += ["EntryFact", "Event", "HistoryCleared", "HistoryReplaced", "IdentifierCounts", "MessageFact"]
__all__ += [
    "MessagesAppended",
    "PackageRedacted",
    "PreparedFact",
    "PreparedMessages",
    "PromptFact",
    "RecordAllowed",
    "RecordErased",
]
__all__ += ["RecordReference", "RefreshRequested", "ReplacedRange", "ReplacementFact", "RunStarted", "SkillCall"]
__all__ += ["SourceFact", "StepCompiled", "StepFailed", "SummaryRedacted", "TokenChange", "UnknownEvent", "UsageFact"]
__all__ += ["WorkingMemoryCreated", "WorkingMemoryPatched", "WorkingMemoryUsed"]


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    """The run exists; its scope is pinned for good (D.K.2), and so is what it counts with (D.M.1)."""

    scope: Scope
    estimator: EstimatorSpec
    parent: ParentRun | None = None


class SkillCall(Value, frozen=True):
    """The model asked for the body of a skill: ``call`` is the id of its tool call (D.K.26)."""

    call: str
    skill: str


class MessageFact(Value, frozen=True):
    """One source message: its digest, its cost in eighteenths of a token (D.M.4) and its role.

    ``skill_calls`` are its calls of ``load_skill``; ``succeeded`` are the ids of calls to which it holds a result of
    that tool that is no error (D.K.26).  ``only_results`` tells that a message of role user holds tool results alone:
    it is no message of the user's (C.E.6).  Logs of before do not say it, and it counts as one there.
    """

    digest: str
    eighteenths: int
    role: Role = "user"
    skill_calls: tuple[SkillCall, ...] = ()
    succeeded: tuple[str, ...] = ()
    only_results: bool = False


class MessagesAppended(Event, frozen=True, kw_only=True, tag="messages-appended"):
    """Source messages joined the history behind message ``start`` (zero-based).

    ``chain`` is the chain digest after them; the texts are in the blob ``inputs``.
    """

    start: int
    messages: tuple[MessageFact, ...]
    chain: str
    inputs: str


class HistoryReplaced(Event, frozen=True, kw_only=True, tag="history-replaced"):
    """The host handed over another history: the first ``keep`` source messages stay."""

    keep: int


class SourceFact(Value, frozen=True, kw_only=True):
    """What came of asking one source."""

    source: str
    kind: SourceKind
    required: bool = False
    status: SourceStatus
    offered: int = 0
    truncated: int = 0
    error: str | None = None
    origin_code: str | None = None
    origin_type: str | None = None


class EntryFact(Value, frozen=True, kw_only=True):
    """One entry of the manifest as a fact: no query, but the score that ranked it."""

    source: str
    kind: EntryKind
    record_id: str
    digest: str
    tokens: int
    selected: bool
    reason: EntryReason
    score: float | None = None
    revision: int | None = None
    mandatory: bool = False


class WorkingMemoryUsed(Value, frozen=True):
    """The state of the working memory that a step is of."""

    sequence: int
    revision: int
    digest: str


class BlockFact(Value, frozen=True):
    """One block of a package: the digest of its message and its cost in eighteenths of a token (D.M.4)."""

    placement: Literal["append", "ephemeral-tail"]
    digest: str
    eighteenths: int


class StepCompiled(Event, frozen=True, kw_only=True, tag="step-compiled"):
    """A step has its package.

    ``package`` refers to the blob that holds offers and package, ``package_digest`` is over the package's bytes,
    ``counts`` is filled for tokenizers only.
    ``rewritten`` tells that the query is the host's (D.D.25), ``prepared`` what its hook changed.
    ``demanded`` are the records that sources were asked for because the run is owed them, as (source, record id).
    ``overflow`` is the smaller input limit of a step that is compiled again (D.I.1); ``redacted`` a step that follows a
    forget (D.J.1); ``erasures`` the sequence of the tenant's erasures that the answers were checked against.
    Entries too many for a commit are in the blob ``facts``; then ``entries`` holds the selected ones alone.
    """

    step: int
    refresh: RefreshReason
    pass_: int = msgspec.field(name="pass")
    host_request: bool = False
    options: StepOptions
    sources: tuple[SourceFact, ...] = ()
    query_digest: str | None = None
    query_length: int = 0
    working_memory: WorkingMemoryUsed | None = None
    active_task_id: str | None = None
    budget: BudgetSummary
    entries: tuple[EntryFact, ...] = ()
    facts: str | None = None
    counts: tuple[CountFact, ...] = ()
    blocks: tuple[BlockFact, ...] = ()
    placement: PlacementSummary
    cache_prefix_changed: bool
    cache_prefix_cause: CachePrefixCause | None = None
    fallback: Fallback | None = None
    count: int
    chain: str
    manifest_digest: str
    package_digest: str
    package: str
    rewritten: bool = False
    prepared: PreparedFact | None = None
    demanded: tuple[tuple[str, str], ...] = ()
    overflow: int | None = None
    redacted: bool = False
    erasures: int | None = None
    usage: tuple[UsageFact, ...] = ()
    warnings: tuple[WarningCode, ...] = ()
    prompt: PromptFact | None = None


class StepFailed(Event, frozen=True, kw_only=True, tag="step-failed"):
    """A step could not be compiled; it consumed nothing and its command may be retried."""

    step: int
    code: str
    required_tokens: int | None = None
    available_tokens: int | None = None
    origin: str | None = None
    origin_code: str | None = None
    origin_type: str | None = None
    sources: tuple[SourceFact, ...] = ()
    usage: tuple[UsageFact, ...] = ()


class CallSucceeded(Event, frozen=True, kw_only=True, tag="call-succeeded"):
    """The model call of a step succeeded: its append block joins the history (D.F.13).

    ``started_at`` is when the call began, in milliseconds since the epoch; ``response_model`` and ``upstream`` say who
    answered, ``request_digest`` is over the body that was sent (D.W.8).  ``measured`` is the whole input in tokens,
    cached ones included, where there is a reliable number (C.M.13); ``retention_ms`` is how long the provider's cache
    is kept, as far as the request tells (C.N.5).
    """

    step: int
    usage: Usage | None = None
    finish_reason: str | None = None
    started_at: int | None = None
    response_model: str | None = None
    request_digest: str | None = None
    upstream: str | None = None
    measured: int | None = None
    retention_ms: int | None = None


class CallFailed(Event, frozen=True, kw_only=True, tag="call-failed"):
    """The model call of a step failed, was cancelled or overflowed: it leaves no placement (D.F.13)."""

    step: int
    status: Literal["failed", "cancelled", "overflow"]


class RefreshRequested(Event, frozen=True, kw_only=True, tag="refresh-requested"):
    """The host asked for a retrieval at the next step (D.G.5)."""


class PackageRedacted(Event, frozen=True, kw_only=True, tag="package-redacted"):
    """A forget took a record out of a stored package (D.J.6).

    The blob ``package`` is erased; ``replacement`` holds what it said of other records, and the blocks without the
    record.  ``erasure`` is the sequence of the tombstone in the tenant's erasures.
    """

    step: int
    package: str
    replacement: str
    source: str
    record_id: str
    erasure: int


class HistoryCleared(Event, frozen=True, kw_only=True, tag="history-cleared"):
    """The host starts a new topic: history, placements and checkpoint are empty (P.J.9)."""


class WorkingMemoryCreated(Event, frozen=True, kw_only=True, tag="working-memory-created"):
    """The working memory exists."""

    snapshot: WorkingMemorySnapshot


class WorkingMemoryPatched(Event, frozen=True, kw_only=True, tag="working-memory-patched"):
    """A patch was applied; ``revision`` is the one it produced, ``ids`` are those of the items that it added."""

    patch: WorkingMemoryPatch
    revision: int
    now: int
    ids: tuple[str, ...] = ()


class RecordErased(Event, frozen=True, kw_only=True, tag="record-erased"):
    """A memory record was forgotten: the digests of its revisions are not learned again (D.K.24)."""

    source: str
    record_id: str
    digests: tuple[str, ...]


class RecordAllowed(Event, frozen=True, kw_only=True, tag="record-allowed"):
    """The host allows forgotten digests to be remembered again."""

    source: str
    digests: tuple[str, ...]


class UnknownEvent(Event, frozen=True, kw_only=True, tag="unknown-event"):
    """An event of a newer release: kept as its JSON text, never interpreted, never an error (B74)."""

    name: str
    data: str


AnyEvent = (
    RunStarted
    | MessagesAppended
    | HistoryReplaced
    | StepCompiled
    | StepFailed
    | CallSucceeded
    | CallFailed
    | RefreshRequested
    | PackageRedacted
    | CompactionStarted
    | CompactionCompleted
    | CompactionFailed
    | CompactionRestored
    | CompactionReset
    | SummaryRedacted
    | HistoryCleared
    | WorkingMemoryCreated
    | WorkingMemoryPatched
    | RecordErased
    | RecordAllowed
)


class Commit(Value, frozen=True, kw_only=True):
    """One message of the log.

    ``previous`` is the digest of the bytes of the commit before on the same part, empty for the first: a hash
    chain.  ``at`` is the clock reading that the command brought, in milliseconds since the epoch.
    ``command_digest`` is over what the command asked for, so that a reused id is noticed.
    """

    version: int
    tenant: str
    run: str
    part: Part
    command: str
    command_digest: str
    attempt: int
    engine: str
    policy: int
    previous: str
    at: int
    events: tuple[AnyEvent | UnknownEvent, ...]

"""Messages that cross the bus: commands, questions, answers (docs/decisions/0001).

Every command holds all that its step needs: tenant, run, command id, attempt, reply address, seconds left.  Time
left is relative; each host subtracts what it spent.  Tags are never reused and the types only grow.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import ErrorData
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    HistoryReplaced,
    MessageFact,
    RunStarted,
    StepFailed,
    WorkingMemoryUsed,
)
from contextbus_protocol.package import Decision
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import (
    Candidate,
    EstimatorSpec,
    Scope,
    SourceKind,
    SourceResult,
    StepOptions,
    Usage,
    Value,
)
from contextbus_protocol.working_memory import (
    SourceRef,
    TasksInput,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
)

ReplyEncoding = Literal["msgpack", "json"]


class Message(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """Base of all messages; ``run`` is the key of an actor's state."""

    run: str


class Command(Message, frozen=True, kw_only=True):
    """Base of what a client asks for.

    ``command`` is the idempotency key: the same id and body have one effect.  ``now`` is the client's clock in
    milliseconds since the epoch, recorded and never used to decide (D.G.32).  ``seen`` and ``seen_memory`` are the
    log sequences of the run's two parts that the client knows, so that it always sees its own writes.
    """

    tenant: str
    command: str
    attempt: int
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    seconds_left: float
    now: int
    seen: int = 0
    seen_memory: int = 0


class NewMessages(Value, frozen=True):
    """Source messages that the log does not hold yet.

    The history after the command is the first ``keep`` messages that the log holds, then ``messages``;
    ``base_count`` and ``base_chain`` say which history the client built on, ``chain`` what comes out.
    """

    base_count: int
    base_chain: str
    keep: int
    messages: tuple[ChatMessage, ...]
    chain: str


class CompileStep(Command, frozen=True, kw_only=True, tag="compile-step"):
    """Compile the context of one model call (client to selection).

    ``user_text`` is the latest user text by D.G.17, at most 2000 code points.  ``step`` is left out for the next.
    """

    step: int | None = None
    history: NewMessages
    user_text: str
    options: StepOptions
    refresh: bool = False


class StepCompiled(Message, frozen=True, kw_only=True, tag="step-compiled"):
    """The package of a step (placement, or selection for a stored one, to the client).

    ``package`` is the JSON text of the package, byte for byte what the blob holds; ``reference`` is the blob's
    reference.  ``durability`` names what the acknowledgement rests on.
    """

    command: str
    step: int
    sequence: int
    commit: str
    count: int
    chain: str
    reference: str
    package: str
    stored: bool = False
    durability: str = ""


class ReportStep(Command, frozen=True, kw_only=True, tag="report-step"):
    """How the model call of a step went (client to selection, D.W.8)."""

    step: int
    status: Literal["succeeded", "failed", "cancelled", "overflow"]
    history: NewMessages | None = None
    usage: Usage | None = None
    finish_reason: str | None = None


class AppendMessages(Command, frozen=True, kw_only=True, tag="append-messages"):
    """Add source messages to a run's history (client to selection)."""

    scope: Scope
    estimator: EstimatorSpec = EstimatorSpec()
    history: NewMessages


class RequestRefresh(Command, frozen=True, kw_only=True, tag="request-refresh"):
    """Ask for a retrieval at the next step (client to selection, D.G.5)."""


class Recorded(Message, frozen=True, kw_only=True, tag="recorded"):
    """What the client asked to record is in the log (placement or selection to the client)."""

    command: str
    sequence: int
    commit: str
    count: int
    chain: str
    durability: str = ""


class CancelCommand(Message, frozen=True, kw_only=True, tag="cancel-command"):
    """The client no longer waits (client to the actor, D.W.5); what is committed stays."""

    tenant: str
    command: str


class CreateWorkingMemory(Command, frozen=True, kw_only=True, tag="create-working-memory"):
    """Create the working memory of a run (client to working_memory, D.N.3); ``snapshot`` takes one over."""

    scope: str
    goal: str | None = None
    constraints: tuple[str, ...] = ()
    tasks: TasksInput | None = None
    goal_ref: str | None = None
    snapshot: WorkingMemorySnapshot | None = None


class PatchWorkingMemory(Command, frozen=True, kw_only=True, tag="patch-working-memory"):
    """Apply a patch (client to working_memory, D.O)."""

    patch: WorkingMemoryPatch


class ReadWorkingMemory(Command, frozen=True, kw_only=True, tag="read-working-memory"):
    """Ask for the snapshot (client to working_memory)."""


class WorkingMemoryState(Message, frozen=True, kw_only=True, tag="working-memory-state"):
    """The snapshot, and for a patch what became of it (working_memory to the client, D.O.3)."""

    command: str
    sequence: int
    snapshot: WorkingMemorySnapshot | None = None
    status: Literal["applied", "duplicate", "rejected", "created", "read"] = "read"
    reason: Literal["forbidden", "not-found", "limit", "revision-conflict"] | None = None
    ids: tuple[str, ...] = ()


class AskItems(Message, frozen=True, kw_only=True, tag="ask-items"):
    """Ask what working memory offers to a step (selection to working_memory).

    ``seen`` is the sequence of the part that the client knows; ``load`` asks to look for newer commits first.
    """

    tenant: str
    token: str
    reply_to: str
    seen: int = 0
    load: bool = False


class ItemsOffered(Message, frozen=True, kw_only=True, tag="items-offered"):
    """The working memory as of a sequence (working_memory to selection); no snapshot means none was created.

    ``code`` is set when the log could not be read; the step then fails with it.
    """

    token: str
    sequence: int = 0
    digest: str = ""
    snapshot: WorkingMemorySnapshot | None = None
    code: str | None = None


class Query(Message, frozen=True, kw_only=True, tag="query"):
    """Ask a source for candidates (selection to a source's workers, D.G.23).

    ``budget_tokens`` is a hint in tokens; ``seen`` are the sequences that the client knows of the source's own store.
    """

    tenant: str
    command: str
    token: str
    reply_to: str
    source: str
    step: int
    text: str
    scope: Scope
    limit: int
    budget_tokens: int
    seconds_left: float
    seen: int = 0


class Offered(Message, frozen=True, kw_only=True, tag="offered"):
    """What a source found (worker to selection); nothing found is an empty tuple (D.K.19)."""

    token: str
    source: str
    kind: SourceKind
    candidates: tuple[Candidate, ...] = ()


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """A source could not answer (worker, or the host for an absent source, to selection).

    ``code`` is one word without content: ``busy``, ``absent``, ``error``, ``malformed``, ``timeout``.
    """

    token: str
    source: str
    code: str
    origin_code: str | None = None
    origin_type: str | None = None


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


class Place(Message, frozen=True, kw_only=True, tag="place"):
    """Render, store and commit a decided step (selection to placement)."""

    head: CommitHead
    history: HistoryFact
    options: StepOptions
    decision: Decision
    results: tuple[SourceResult, ...] = ()
    query: str = ""
    user_text: str = ""
    active_task_id: str | None = None
    host_request: bool = False
    working_memory: WorkingMemoryInput | None = None
    erasures: int = 0


class Record(Message, frozen=True, kw_only=True, tag="record"):
    """Commit events that need no rendering (selection to placement)."""

    head: CommitHead
    history: HistoryFact | None = None
    count: int
    chain: str
    events: tuple[AnyEvent, ...] = ()
    failed: StepFailed | None = None
    error_message: str = ""
    error: ErrorData | None = None


class Committed(Message, frozen=True, kw_only=True, tag="committed"):
    """A commit is in the log (host to the actor that stored it; placement to selection)."""

    token: str
    part: Part
    sequence: int
    digest: str
    commit: Commit


class Conflicted(Message, frozen=True, kw_only=True, tag="conflicted"):
    """Another commit came first (host to the actor that stored; placement to selection)."""

    token: str
    part: Part


class Unstored(Message, frozen=True, kw_only=True, tag="unstored"):
    """The log refused or did not answer in time (host to the actor that stored; placement to selection)."""

    token: str
    part: Part
    code: str
    message: str = ""


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """The commits of a part after a sequence, oldest first (host to the actor that asked).

    Each is (sequence, digest of the bytes, commit).  ``code`` is set when the log could not be read.
    """

    token: str
    part: Part
    after: int
    commits: tuple[tuple[int, str, Commit], ...] = ()
    code: str | None = None


class Fetched(Message, frozen=True, kw_only=True, tag="fetched"):
    """Blobs that were asked for (host to the actor); a missing one is absent from ``blobs``."""

    token: str
    blobs: tuple[tuple[str, bytes], ...] = ()
    code: str | None = None


class Elapsed(Message, frozen=True, kw_only=True, tag="elapsed"):
    """A timer ran out (host to the actor that set it)."""

    token: str


class ErrorReply(Message, frozen=True, kw_only=True, tag="error"):
    """A command failed (any actor to the client, D.W.2)."""

    command: str
    code: str
    message: str
    data: ErrorData = ErrorData()


class ByReference(Message, frozen=True, kw_only=True, tag="by-reference"):
    """A message too large for the bus: its bytes are the blob ``digest`` of the run."""

    tenant: str
    digest: str
    size: int
    content_type: str


class Remember(Message, frozen=True, kw_only=True, tag="remember"):
    """Store a memory record or a new revision of it (client to a memory worker, D.K.24).

    ``message_id`` makes a repeated request have one effect; ``now`` is in milliseconds since the epoch.
    """

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    text: str
    scope: Scope
    now: int
    record_id: str | None = None
    origin: str = "asserted"
    source_refs: tuple[SourceRef, ...] = ()


class Forget(Message, frozen=True, kw_only=True, tag="forget"):
    """Erase every revision of a record (client to a memory worker)."""

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    record_id: str
    scope: Scope


class ListRecords(Message, frozen=True, kw_only=True, tag="list-records"):
    """List the newest revisions of the records of a scope (client to a memory worker)."""

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    scope: Scope
    limit: int = 1000


class MemoryRecord(Value, frozen=True, kw_only=True):
    """One revision of a memory record as its stream holds it."""

    version: int
    record_id: str
    revision: int
    text: str
    digest: str
    scope: Scope
    at: int
    origin: str = "asserted"
    source_kinds: tuple[str, ...] = ()


class Remembered(Message, frozen=True, kw_only=True, tag="remembered"):
    """A record is stored (memory worker to the client); ``sequence`` is the store's."""

    message_id: str
    record_id: str
    revision: int
    digest: str
    sequence: int


class Forgotten(Message, frozen=True, kw_only=True, tag="forgotten"):
    """A record is erased; packages that quoted it keep it until they are redacted."""

    message_id: str
    record_id: str
    revisions: int
    sequence: int


class RecordsListed(Message, frozen=True, kw_only=True, tag="records-listed"):
    """The records of a scope, ordered by id."""

    message_id: str
    records: tuple[MemoryRecord, ...] = ()
    sequence: int = 0


AnyCommand = (
    CompileStep
    | ReportStep
    | AppendMessages
    | RequestRefresh
    | CreateWorkingMemory
    | PatchWorkingMemory
    | ReadWorkingMemory
)

AnyMessage = (
    CompileStep
    | StepCompiled
    | ReportStep
    | AppendMessages
    | RequestRefresh
    | Recorded
    | CancelCommand
    | CreateWorkingMemory
    | PatchWorkingMemory
    | ReadWorkingMemory
    | WorkingMemoryState
    | AskItems
    | ItemsOffered
    | Query
    | Offered
    | Failed
    | Place
    | Record
    | Committed
    | Conflicted
    | Unstored
    | Loaded
    | Fetched
    | Elapsed
    | ErrorReply
    | ByReference
    | Remember
    | Forget
    | ListRecords
    | Remembered
    | Forgotten
    | RecordsListed
)

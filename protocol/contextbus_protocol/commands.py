"""What a client asks of the actors of a run, and what they answer (docs/decisions/0001)."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.callbacks import CallbackName
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.envelope import Command, Message
from contextbus_protocol.errors import ContextBusError, ErrorData
from contextbus_protocol.package import WarningCode
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import EstimatorSpec, ParentRun, Scope, StepOptions, Usage, Value
from contextbus_protocol.working_memory import TasksInput, WorkingMemoryPatch, WorkingMemorySnapshot


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
    ``callbacks`` are the functions of the host that the client answers for (D.W.4).  ``instructions`` are the host's to
    the summariser, in no log (C.F.4).  ``summary_seconds`` is the part of the time left that is for a summariser alone.
    ``prompt`` is what the host adds to the request beside its history (P.A.3).
    """

    step: int | None = None
    history: NewMessages
    user_text: str
    options: StepOptions
    refresh: bool = False
    callbacks: tuple[CallbackName, ...] = ()
    parent: ParentRun | None = None
    instructions: str | None = None
    summary_seconds: float = 0.0
    prompt: PromptParts | None = None


class OverflowStep(Command, frozen=True, kw_only=True, tag="overflow-step"):
    """Compile the run's last step again under a smaller limit: its request was too large (client to selection, D.I.1).

    ``input_tokens`` is the new limit in tokens; without it one below the counted size of the request (D.I.5).
    """

    step: int
    input_tokens: int | None = None
    callbacks: tuple[CallbackName, ...] = ()
    instructions: str | None = None
    summary_seconds: float = 0.0


class StepCompiled(Message, frozen=True, kw_only=True, tag="step-compiled"):
    """The package of a step (placement, or selection for a stored one, to the client).

    ``package`` is the JSON text of the package, byte for byte what the blob holds; ``reference`` is the blob's
    reference.  ``durability`` names what the acknowledgement rests on.  ``blocks`` is the chain digest of the blocks
    that stand in the history, empty without any; ``stale_thinking`` are ranges of source messages whose thinking is not
    sent again (D.F.20).  ``options``, ``prepared`` and ``tools`` are what the host's hook made of the step, where it
    did (D.W.7).  ``checkpoint`` is the blob of what stands in place of the first source messages, empty without any
    (C.L.1).
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
    blocks: str = ""
    stale_thinking: tuple[tuple[int, int], ...] = ()
    warnings: tuple[WarningCode, ...] = ()
    options: StepOptions | None = None
    prepared: tuple[ChatMessage, ...] | None = None
    tools: str | None = None
    checkpoint: str = ""


class ReportStep(Command, frozen=True, kw_only=True, tag="report-step"):
    """How the model call of a step went (client to selection, D.W.8).

    ``started_at`` is in milliseconds since the epoch; ``request_digest`` is over the body that was sent, ``upstream``
    and ``response_model`` are words of at most 64 characters.  ``measured`` is the whole input in tokens, cached ones
    included, where the provider's count is reliable (C.M.13); ``retention_ms`` is how long its cache is kept, as far as
    the request tells (C.N.5).
    """

    step: int
    status: Literal["succeeded", "failed", "cancelled", "overflow"]
    history: NewMessages | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    started_at: int | None = None
    response_model: str | None = None
    request_digest: str | None = None
    upstream: str | None = None
    measured: int | None = None
    retention_ms: int | None = None


class AppendMessages(Command, frozen=True, kw_only=True, tag="append-messages"):
    """Add source messages to a run's history (client to selection)."""

    scope: Scope
    estimator: EstimatorSpec = EstimatorSpec()
    history: NewMessages
    parent: ParentRun | None = None


class RedactedPackage(Value, frozen=True):
    """A stored package that held a forgotten record, and the blob that takes its place."""

    step: int
    package: str
    replacement: str


class RedactedSummary(Value, frozen=True):
    """The blobs of a checkpoint that a forget took: the replacement with its summary, and the archived span."""

    replaced_by: str
    archive: str | None = None


class RedactPackages(Command, frozen=True, kw_only=True, tag="redact-packages"):
    """Record that packages of a run were redacted by a forget (a memory worker to selection, D.J)."""

    source: str
    record_id: str
    erasure: int
    packages: tuple[RedactedPackage, ...]
    summaries: tuple[RedactedSummary, ...] = ()


class RequestRefresh(Command, frozen=True, kw_only=True, tag="request-refresh"):
    """Ask for a retrieval at the next step (client to selection, D.G.5)."""


class ResetCompaction(Command, frozen=True, kw_only=True, tag="reset-compaction"):
    """End a pause of compaction (client to selection, C.X.5)."""


class ClearHistory(Command, frozen=True, kw_only=True, tag="clear-history"):
    """Start a new topic (client to selection, P.J.9)."""


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
    """The snapshot, and for a patch what became of it (working_memory to the client, D.O.3).

    ``revision`` and ``ids`` are what the patch came to when it was applied, now or at an earlier time (D.Q.12).
    """

    command: str
    sequence: int
    snapshot: WorkingMemorySnapshot | None = None
    status: Literal["applied", "duplicate", "rejected", "created", "read"] = "read"
    reason: Literal["forbidden", "not-found", "limit", "revision-conflict"] | None = None
    ids: tuple[str, ...] = ()
    revision: int | None = None


class ErrorReply(Message, frozen=True, kw_only=True, tag="error"):
    """A command failed (any actor to the client, D.W.2)."""

    command: str
    code: str
    message: str
    data: ErrorData = ErrorData()


def refuse(run: str, command: str, error: ContextBusError) -> ErrorReply:
    """The answer to a command that came to nothing: the error as it crosses the bus (D.W.2)."""
    return ErrorReply(run=run, command=command, code=error.code, message=error.message, data=error.data)


AnyCommand = (
    CompileStep
    | OverflowStep
    | RedactPackages
    | ReportStep
    | AppendMessages
    | RequestRefresh
    | ResetCompaction
    | ClearHistory
    | CreateWorkingMemory
    | PatchWorkingMemory
    | ReadWorkingMemory
)

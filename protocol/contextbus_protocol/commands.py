"""What a client asks of the actors of a run, and what they answer (docs/decisions/0001)."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.envelope import Command, Message
from contextbus_protocol.errors import ContextBusError, ErrorData
from contextbus_protocol.values import EstimatorSpec, Scope, StepOptions, Usage, Value
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
    | ReportStep
    | AppendMessages
    | RequestRefresh
    | CreateWorkingMemory
    | PatchWorkingMemory
    | ReadWorkingMemory
)

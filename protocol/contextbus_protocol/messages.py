"""All messages that cross the bus (docs/decisions/0001).  Tags are never reused and the types only grow."""

from __future__ import annotations

from contextbus_protocol import callbacks, commands, commit_requests, compaction, memory_records, outcomes, questions
from contextbus_protocol.envelope import Message


class ByReference(Message, frozen=True, kw_only=True, tag="by-reference"):
    """A message too large for the bus: its bytes are the blob ``digest`` of the run."""

    tenant: str
    digest: str
    size: int
    content_type: str


AnyMessage = (
    commands.CompileStep
    | commands.OverflowStep
    | commands.RedactPackages
    | commands.StepCompiled
    | commands.ReportStep
    | commands.AppendMessages
    | commands.RequestRefresh
    | commands.ResetCompaction
    | commands.ClearHistory
    | commands.Recorded
    | commands.CancelCommand
    | commands.CreateWorkingMemory
    | commands.PatchWorkingMemory
    | commands.ReadWorkingMemory
    | commands.WorkingMemoryState
    | callbacks.AskCallback
    | callbacks.CallbackAnswered
    | questions.AskItems
    | questions.ItemsOffered
    | questions.Query
    | questions.Offered
    | questions.Failed
    | commit_requests.Place
    | commit_requests.Record
    | compaction.Compact
    | compaction.CompactionEnded
    | compaction.Summarise
    | compaction.Summarised
    | compaction.SummaryFailed
    | outcomes.Committed
    | outcomes.Conflicted
    | outcomes.Unstored
    | outcomes.Loaded
    | outcomes.Fetched
    | outcomes.Elapsed
    | commands.ErrorReply
    | ByReference
    | memory_records.Remember
    | memory_records.Forget
    | memory_records.ListRecords
    | memory_records.AllowRecords
    | memory_records.Remembered
    | memory_records.Forgotten
    | memory_records.RecordsListed
    | memory_records.RecordsAllowed
)

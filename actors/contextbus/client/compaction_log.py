"""The compactions of a run as its log tells them, and telling its host of them (C.O)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from contextbus.client.compaction_options import CompactionEvent, CompactionSetup
from contextbus.client.reading import read_blobs, read_part
from contextbus.core.compaction.composition import read_summary
from contextbus.core.compaction.evaluation import evaluation_id
from contextbus.core.history import SourceHistory
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.logs import get_logger
from contextbus.runtime.telling import tell
from contextbus_protocol import blobs
from contextbus_protocol.chat import Text
from contextbus_protocol.commands import StepCompiled as StepAnswer
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionFailed,
    CompactionPhase,
    CompactionReason,
    CompactionRestored,
    CompactionStarted,
    IdentifierCounts,
    ReplacedRange,
    StepCompiled,
    StepFailed,
)
from contextbus_protocol.values import Usage

_log = get_logger(__name__)


class CompactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation, its events grouped (C.O.13); token counts are estimates.

    ``scope`` tells of what: ``request`` of the whole request, ``messages`` in old events (C.O.12).  ``source_messages``
    is how many source messages the checkpoint stands for, ``replacement_messages`` how many stand there instead.
    """

    evaluation: str
    sequence: int
    status: Literal["started", "completed", "failed", "restored", "interrupted"]
    step: int | None = None
    cause: str | None = None
    trigger_index: int | None = None
    scope: Literal["request", "messages"] = "request"
    estimated_before: int | None = None
    estimated_after: int | None = None
    target_tokens: int | None = None
    message_count: int | None = None
    replaced_range: ReplacedRange | None = None
    source_messages: int | None = None
    replacement_messages: int | None = None
    archive: str | None = None
    summariser: str = ""
    usage: Usage | None = None
    identifiers: IdentifierCounts | None = None
    dropped: bool = False
    host: bool = False
    phase: CompactionPhase | None = None
    reason: CompactionReason | None = None


def list_compactions(log: RunLog, over: Sequence[str] = ()) -> tuple[CompactionInfo, ...]:
    """The evaluations of a run's log, oldest first.

    Args:
        log: the run's log.
        over: commands of steps that are over, whatever the log has of them (C.O.11).
    """
    found: dict[str, CompactionInfo] = {}
    before = 0
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, CompactionEvent):
                _end_others(found, event.evaluation)
                found[event.evaluation] = _fold(found.get(event.evaluation), event, logged.sequence)
                if any(event.evaluation == evaluation_id(log.run, command, before) for command in over):
                    _end_others(found, "", only=event.evaluation)
            elif _is_later(event):
                _end_others(found, "")
        before = logged.sequence
    return tuple(found.values())


def _is_later(event: object) -> bool:
    """Whether a step ended: nobody waits for a summary any more."""
    return isinstance(event, StepCompiled | StepFailed)


def _end_others(found: dict[str, CompactionInfo], current: str, only: str | None = None) -> None:
    """Mark what was started and has no end as interrupted."""
    for evaluation, info in found.items():
        if info.status == "started" and evaluation != current and only in (None, evaluation):
            found[evaluation] = msgspec.structs.replace(info, status="interrupted")


def _fold(known: CompactionInfo | None, event: CompactionEvent, sequence: int) -> CompactionInfo:
    info = known or CompactionInfo(evaluation=event.evaluation, sequence=sequence, status="started")
    replace = msgspec.structs.replace
    match event:
        case CompactionStarted():
            return replace(
                info,
                status="started",
                step=event.step,
                cause=event.cause,
                trigger_index=event.trigger_index,
                scope=_scope(event.token_scope),
                estimated_before=event.tokens_before,
                target_tokens=event.target_tokens,
                message_count=event.message_count,
            )
        case CompactionCompleted():
            return replace(
                info,
                status="completed",
                scope=_scope(event.token_scope),
                estimated_before=event.tokens.before,
                estimated_after=event.tokens.after,
                replaced_range=event.replaced_range,
                source_messages=event.source_count,
                replacement_messages=len(event.replacement),
                archive=event.archive,
                summariser=event.summariser,
                usage=event.usage,
                identifiers=event.identifiers,
                dropped=event.dropped,
                host=event.host,
            )
        case CompactionFailed():
            return replace(
                info,
                status="failed",
                step=event.step,
                scope=_scope(event.token_scope),
                summariser=event.summariser,
                usage=event.usage,
                phase=event.phase,
                reason=event.reason,
            )
        case CompactionRestored():
            return replace(
                info,
                status="restored",
                source_messages=event.source_messages,
                replacement_messages=event.replacement_messages,
            )


def _scope(scope: str | None) -> Literal["request", "messages"]:
    return "request" if scope == "request" else "messages"


class CompactionTeller:
    """Tells a host of its run's compactions, each event once, after the commit (D.W.4).

    Args:
        driver: reads the tenant's log and packages.
        run: the run's id.
        setup: who is told.
        sequence: the log's sequence up to which nothing is told.
    """

    def __init__(self, driver: JournalDriver, run: str, setup: CompactionSetup | None, sequence: int = 0) -> None:
        self._driver = driver
        self._run = run
        self._setup = setup
        self._history = SourceHistory()  # that of the step that was told of last
        self._checkpoint = ""
        self._owes = False
        self.sequence = sequence

    def expect(self) -> None:
        """Read the log with the next step, whatever that says: what became of this one is not known."""
        self._owes = True

    async def tell_step(self, command: str, answer: StepAnswer, history: SourceHistory) -> None:
        """Tell of a step that has its package; the log is not read where its answer shows that nothing was evaluated.

        Args:
            command: the step's command.
            answer: its answer.
            history: the source messages that this client knows of, those of the step first.
        """
        if self._setup is None or (self._setup.on_compress is None and self._setup.on_event is None):
            return
        history = history.keep(min(answer.count, history.count))
        if self._owes or self._may_tell(answer, history):
            await self.tell(command)
        else:
            self.sequence = max(answer.sequence, self.sequence)
        self._history, self._checkpoint = history, answer.checkpoint

    def _may_tell(self, answer: StepAnswer, history: SourceHistory) -> bool:
        """Whether there may be an event: of a checkpoint, a failure, a turn's restore, or an attempt before."""
        if answer.stored or "compaction-failed" in answer.warnings or answer.checkpoint != self._checkpoint:
            return True
        if not answer.checkpoint:
            return False
        if not history.begins_with(self._history):
            return True
        new = history[self._history.count :]
        return any(entry.message is None or entry.message.role == "user" for entry in new)

    async def tell(self, command: str) -> None:
        """Tell what the log has of a step's evaluations; what cannot be read is logged and told with the next."""
        setup = self._setup
        if setup is None or (setup.on_compress is None and setup.on_event is None):
            return
        self._owes = True
        try:
            commits = await read_part(self._driver, self._run, "run", self.sequence)
            for event in self._events_of(commits, command):
                await self._tell(setup, event)
        except ContextBusError as exc:
            _log.warning("compaction_untold", run=self._run, error=type(exc).__name__)
            return
        self._owes = False
        if commits:
            self.sequence = commits[-1].sequence

    def _events_of(self, commits: Sequence[LoggedCommit], command: str) -> list[CompactionEvent]:
        """The events of the command's own evaluations: those of other clients are told there."""
        sequences = (self.sequence, *(logged.sequence for logged in commits))
        own = {evaluation_id(self._run, command, sequence) for sequence in sequences}
        events = (event for logged in commits for event in logged.commit.events)
        return [event for event in events if isinstance(event, CompactionEvent) and event.evaluation in own]

    async def _tell(self, setup: CompactionSetup, event: CompactionEvent) -> None:
        if setup.on_event is not None:
            await tell("on_event", setup.on_event, event, run=self._run)
        if setup.on_compress is None or not isinstance(event, CompactionCompleted) or event.host:
            return
        summary = await self._read_summary(event)
        count = event.replaced_range.end - event.replaced_range.start
        await tell("on_compress", setup.on_compress, summary, count, event, run=self._run)

    async def _read_summary(self, event: CompactionCompleted) -> str:
        """The text of a summary; empty where the range went without one."""
        places = range(len(event.replacement))
        place = next((index for index in places if self._is_new(event, index)), None)
        if place is None:
            return ""
        data = (await read_blobs(self._driver, self._run, (event.replaced_by,))).get(event.replaced_by)
        if data is None:
            return ""
        (part,) = blobs.decode_replacement(data).messages[place].content
        return read_summary(part.text, event.archive) if isinstance(part, Text) else ""

    @staticmethod
    def _is_new(event: CompactionCompleted, index: int) -> bool:
        """Whether a message of the replacement is the summary of this compaction, not one that stayed."""
        return not event.dropped and event.replacement[index].own == "summary"

"""A plain model of what a run sends: read from the events of its log and their blobs, in lists, sharing no fold.

Source messages, blocks, checkpoint and pauses are worked out from what the rules say of each event (C.L, C.X.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from contextbus.core.compaction.items import Item
from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus_protocol import blobs
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.events import (
    CallFailed,
    CallSucceeded,
    CompactionCompleted,
    CompactionFailed,
    CompactionReset,
    CompactionStarted,
    HistoryCleared,
    HistoryReplaced,
    MessagesAppended,
    PackageRedacted,
    StepCompiled,
    SummaryRedacted,
)

REFUSALS = frozenset({"incomplete-summary", "empty-summary", "summary-too-large", "error"})

Read = Callable[[str], bytes]


@dataclass
class PlainBlock:
    """A block behind the first ``position`` source messages."""

    step: int
    position: int
    placement: str
    digest: str
    weight: int
    package: str
    records: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


@dataclass
class Pending:
    """The last step, whose call may still place its blocks."""

    step: int
    digests: list[str]
    blocks: list[PlainBlock]
    is_open: bool = True
    forgotten: bool = False


@dataclass
class PlainCheckpoint:
    """What stands in place of the first source messages, if it applies."""

    event: CompactionCompleted
    messages: tuple[ChatMessage, ...]
    applies: bool = True
    forgotten: bool = False


@dataclass
class Sent:
    """One message of the request: its text unless it is a block, and how many source messages stand up to it."""

    digest: str
    weight: int
    own: str
    message: ChatMessage | None
    source: int | None


class Projected:
    """A run as its log tells it."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.weigh = make_estimator().message
        self.messages: list[ChatMessage] = []
        self.blocks: list[PlainBlock] = []
        self.checkpoint: PlainCheckpoint | None = None
        self.pending: Pending | None = None
        self.in_row = 0
        self.paused_at: int | None = None
        self.refused: int | None = None
        self.told = False
        self.begun: dict[str, CompactionStarted] = {}

    # -- what is sent

    def chain(self, count: int) -> str:
        """The chain digest of the first source messages (C.L.2)."""
        chain = EMPTY_CHAIN
        for message in self.messages[:count]:
            chain = extend_chain(chain, digest_message(message))
        return chain

    def request(self) -> list[Sent]:
        """The request history, in order (C.L.3, C.E.1)."""
        sent: list[Sent] = []
        start = 0
        if self.checkpoint is not None and self.checkpoint.applies:
            start = self.checkpoint.event.source_count
            for fact, message in zip(self.checkpoint.event.replacement, self.checkpoint.messages, strict=True):
                sent.append(Sent(digest_message(message), self.weigh(message), fact.own, message, fact.source))
        blocks = [b for b in self.blocks if b.position <= start] if start else []
        sent += [Sent(b.digest, b.weight, "block", None, None) for b in blocks]
        rest = [b for b in self.blocks if b not in blocks]
        for index in range(start, len(self.messages) + 1):
            sent += [Sent(b.digest, b.weight, "block", None, None) for b in rest if b.position == index]
            if index < len(self.messages):
                message = self.messages[index]
                sent.append(Sent(digest_message(message), self.weigh(message), "", message, index))
        return sent

    def items(self) -> list[Item]:
        """The request as the oracle of ranges reads it."""
        return [
            Item(s.message, "block" if s.own == "block" else "summary" if s.own == "summary" else "", s.weight)
            for s in self.request()
        ]

    def weight(self) -> int:
        """What the request costs, in eighteenths of a token."""
        return sum(s.weight for s in self.request())

    def is_paused(self) -> bool:
        """Whether the summariser is not to be asked, for three failures in a row (C.X.5)."""
        return self.paused_at is not None and 5 * (self.weight() - self.paused_at) < self.paused_at

    # -- what the log says

    def fold(self, event: object) -> None:
        """Take one event."""
        match event:
            case HistoryReplaced(keep=keep):
                self._cut(keep)
            case MessagesAppended():
                self._append(event)
            case StepCompiled():
                self._compile(event)
            case CallSucceeded(step=step):
                self._succeed(step)
            case CallFailed(step=step):
                if self.pending is not None and self.pending.step == step:
                    self.pending.is_open = False
            case PackageRedacted():
                self._redact(event)
            case SummaryRedacted(replaced_by=replaced_by):
                if self.checkpoint is not None and self.checkpoint.event.replaced_by == replaced_by:
                    self.checkpoint.applies, self.checkpoint.forgotten = False, True
            case CompactionStarted():
                self.begun[event.evaluation] = event
            case CompactionCompleted():
                self._complete(event)
            case CompactionFailed():
                self._fail(event)
            case CompactionReset():
                self._forget_failures()
            case HistoryCleared():
                self.messages, self.blocks, self.checkpoint = [], [], None
                self._forget_failures()
            case _:
                pass

    def _cut(self, keep: int) -> None:
        del self.messages[keep:]
        self.blocks = [b for b in self.blocks if b.position <= keep]
        if self.checkpoint is not None and keep < self.checkpoint.event.source_count:
            self.checkpoint.applies = False

    def _append(self, event: MessagesAppended) -> None:
        given = blobs.decode_input(self.read(event.inputs)).messages
        assert event.start == len(self.messages), "messages that do not follow"
        self.messages += given
        known = self.checkpoint
        if known is None or known.applies or known.forgotten or len(self.messages) < known.event.source_count:
            return
        if self.chain(known.event.source_count) == known.event.source_hash:  # forward again (C.L.5)
            known.applies = True
            self.blocks = [b for b in self.blocks if b.position > known.event.source_count]

    def _compile(self, event: StepCompiled) -> None:
        held = {(e.source, e.record_id) for e in event.entries if e.selected and e.kind != "working-memory"}
        kept = ("append", "ephemeral-tail") if event.placement.tail_kept else ("append",)
        blocks = [
            PlainBlock(
                event.step,
                event.count,
                b.placement,
                b.digest,
                b.eighteenths,
                event.package,
                held if b.placement == "append" else set(),
            )
            for b in event.blocks
            if b.placement in kept
        ]
        self.pending = Pending(event.step, [digest_message(m) for m in self.messages[: event.count]], blocks)

    def _succeed(self, step: int) -> None:
        last = self.pending
        if last is None or last.step != step or not last.is_open:
            return
        last.is_open = False
        known = self.checkpoint
        if known is not None and known.applies and len(last.digests) <= known.event.source_count:
            return  # what its request ended with is in the range, and the block left with it (C.E.9)
        if [digest_message(m) for m in self.messages[: len(last.digests)]] == last.digests:
            self.blocks += [b for b in last.blocks if not (last.forgotten and b.placement == "append")]

    def _redact(self, event: PackageRedacted) -> None:
        key = (event.source, event.record_id)
        self.blocks = [b for b in self.blocks if not (b.package == event.package and key in b.records)]
        last = self.pending
        pending = last.blocks if last is not None else []
        if last is not None and any(b.package == event.package and key in b.records for b in pending):
            last.forgotten = True
        for block in (*self.blocks, *pending):
            if block.package == event.package:
                block.package = event.replacement

    def _complete(self, event: CompactionCompleted) -> None:
        gone = sum(1 for sent in self.request()[: event.replaced_range.end] if sent.own == "block")
        self.blocks = sorted(self.blocks, key=lambda b: b.position)[gone:]
        messages = blobs.decode_replacement(self.read(event.replaced_by)).messages
        self.checkpoint = PlainCheckpoint(event, messages)
        if event.dropped and event.pieces:
            self._count_failure(None)
        elif not event.dropped:
            self._forget_failures()

    def _fail(self, event: CompactionFailed) -> None:
        if event.reason == "paused":
            self.told = True
        elif event.phase == "compact" and event.reason in REFUSALS and event.summariser:
            self._count_failure(event.refused)

    def _count_failure(self, refused: int | None) -> None:
        self.in_row += 1
        self.refused, self.told = refused, False
        self.paused_at = self.weight() if self.in_row >= 3 else None

    def _forget_failures(self) -> None:
        self.in_row, self.paused_at, self.refused, self.told = 0, None, None, False

"""What the log of a run comes to, as one frozen value: ids, digests and counts, no text."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus.core.history import SourceHistory
from contextbus.core.persistent import Vector
from contextbus.core.placed_blocks import PlacedBlocks
from contextbus.core.recent import Recent
from contextbus_protocol.digests import EMPTY_CHAIN
from contextbus_protocol.events import (
    BlockFact,
    CompactionReason,
    PreparedFact,
    PromptFact,
    RecordReference,
    ReplacementFact,
    SkillCall,
)
from contextbus_protocol.package import CachePrefixCause, WarningCode
from contextbus_protocol.values import EstimatorSpec, ParentRun, PlacedEntry, Scope, StepOptions, Usage

CallStatus = Literal["open", "succeeded", "failed", "overflow"]


class CommandFact(msgspec.Struct, frozen=True):
    """A command that the log holds: the same id and digest get the same answer, with what its step warned of."""

    command: str
    command_digest: str
    sequence: int
    digest: str
    step: int | None = None
    package: str | None = None
    count: int = 0
    chain: str = ""
    prepared: PreparedFact | None = None
    warnings: tuple[WarningCode, ...] = ()


class OwedEntry(msgspec.Struct, frozen=True):
    """A record whose block left the history (D.H.5); ``package`` is the blob that holds its recorded offer.

    It competes at the next step; what finds no room there ``waits`` for the next retrieval, and only its revision
    counts: no older one may follow it (D.C.18, D.H.9).
    """

    entry: PlacedEntry
    package: str
    waits: bool = False


class PlacedCall(msgspec.Struct, frozen=True):
    """A call of ``load_skill`` in the source messages; the assistant's next message ``closed`` it (D.K.26)."""

    call: SkillCall
    position: int
    closed: int | None = None


class LoadedSkill(msgspec.Struct, frozen=True):
    """A skill that the model loaded: its first result stands at ``position`` in the source messages (D.K.26).

    ``absent`` tells that its sources answered and have no such body.
    """

    skill: str
    position: int
    absent: bool = False


class LastStep(msgspec.Struct, frozen=True):
    """The newest compiled step and how its model call went; ``scope`` is the one that its step asked for.

    ``options`` are those it was compiled with, what the host's hook changed included.  ``estimated`` is the counted
    size of its request in tokens, ``tail`` its tail if that stays once the call succeeded (D.F.9), ``loose_tail`` tells
    that it ended with one that does not.  ``owed`` are the records that could return with it.  ``redacted`` tells that
    a forget took its stored package, ``block_forgotten`` that its block carries what was forgotten,
    ``history_forgotten`` that a forget took a block from the history that it was compiled for.
    ``tail_eighteenths`` is the cost of a tail that does not stay, ``at`` the clock reading of its commit, ``prompt``
    what the host's prompt added.
    """

    step: int
    scope: Scope
    pass_: int
    command: str
    count: int
    chain: str
    options: StepOptions
    package: str
    package_digest: str
    sequence: int
    digest: str
    status: CallStatus = "open"
    block: BlockFact | None = None
    tail: tuple[BlockFact, ...] = ()
    loose_tail: bool = False
    entries: tuple[PlacedEntry, ...] = ()
    owed: tuple[OwedEntry, ...] = ()
    estimated: int = 0
    prepared: PreparedFact | None = None
    redacted: bool = False
    block_forgotten: bool = False
    history_forgotten: bool = False
    tail_eighteenths: int = 0
    at: int = 0
    prompt: PromptFact | None = None

    @property
    def system(self) -> str:
        """The chain digest of the system layer that its prompt added."""
        return EMPTY_CHAIN if self.prompt is None else self.prompt.system


class Segment(msgspec.Struct, frozen=True):
    """Source messages ``start`` to ``end``, half-open: the first ones of the blob ``inputs``."""

    start: int
    end: int
    inputs: str


class Checkpoint(msgspec.Struct, frozen=True):
    """What stands in place of the first ``source_count`` source messages, whose chain is ``source_hash`` (C.L.1).

    ``covered`` and ``eighteenths`` are the cost of those messages and of what replaces them, in eighteenths of a token.
    ``replaced_by`` and ``archive`` are blobs.  ``applies`` tells that the history begins with those messages (C.L.3);
    ``records`` are those of blocks in or before the range (C.X.11), ``forgotten`` that a forget took the summary.
    """

    source_count: int
    source_hash: str
    replacement: tuple[ReplacementFact, ...]
    replaced_by: str
    archive: str | None = None
    covered: int = 0
    eighteenths: int = 0
    records: tuple[RecordReference, ...] = ()
    applies: bool = True
    forgotten: bool = False


class CompactionFailures(msgspec.Struct, frozen=True):
    """How the last reductions of a run failed (C.X.4, C.X.5).

    ``in_row`` counts refused summaries and failures of the summariser since the last that passed, ``reason`` is the
    last one's.  ``refused_range`` is the cost of the range whose summary did not shrink it, ``paused_at`` that of the
    history when compaction was paused, both in eighteenths of a token; ``told`` that the pause is in the log.
    """

    in_row: int = 0
    reason: CompactionReason | None = None
    refused_range: int | None = None
    paused_at: int | None = None
    told: bool = False


class Measured(msgspec.Struct, frozen=True):
    """The request of the last successful call: what it is still the beginning of (C.M.1, C.N.1).

    It held the first ``count`` source messages with their blocks; ``model``, ``tools``, ``settings`` and the chain
    ``system`` of the prompt's system layer are what else it was sent with.  ``input_tokens`` is the provider's count of
    it, None where there is none to rely on (C.M.8), and ``tail`` the cost of its tail, which does not stay, in
    eighteenths of a token (C.M.14).  ``cached_at`` is when it was sent, in milliseconds since the epoch, if the
    provider read or wrote its cache; ``retention_ms`` how long that keeps, if known.
    """

    count: int
    model: tuple[str, str]
    tools: str | None
    settings: str | None
    input_tokens: int | None = None
    tail: int = 0
    cached_at: int | None = None
    retention_ms: int | None = None
    system: str = EMPTY_CHAIN


class RunState(msgspec.Struct, frozen=True):
    """A run as of a commit.

    ``broken_prefix`` is set once the history that the last request began with was changed (D.F.22), ``broken_at`` is
    the number of source messages before the first change.  ``stale_thinking`` are ranges of source messages whose
    thinking was written behind other bytes (D.F.20).  ``refused_task`` is the active task for which a pass limit was
    already reported (D.G.11).  ``redaction_due`` makes the next step retrieve (D.J.1), ``redactions`` are the newest
    forgets as (package or summary, source, record id).  ``skill_calls`` are the calls of ``load_skill``: results answer
    those that are not closed, also once the host rewrote what came behind them.  ``memory_sequence`` is the newest
    state of the working memory that a step was of: no later step is of an older one.  ``unaccounted`` tells that a
    failed step held usage of which no step warned yet (D.L.3).

    ``segments`` name the blobs of the source messages, oldest first.  ``checkpoint`` is the newest compaction's, also
    while the history does not begin with what it replaced; ``summaries`` are the blobs of all that the run ever had, as
    (replaced_by, archive), which a forget may name.  ``turn_begins`` tells that no step was evaluated since the
    user's last message, ``compaction_due`` that a forget took the summary (C.X.11).  ``measured`` is the last
    successful request, None once its beginning was changed.  ``usage`` is what model calls and summaries used (C.K.5).
    """

    run: str
    sequence: int = 0
    digest: str = ""
    scope: Scope | None = None
    parent: ParentRun | None = None
    estimator: EstimatorSpec | None = None
    history: SourceHistory = SourceHistory()
    system_count: int = 0
    blocks: PlacedBlocks = PlacedBlocks()
    placed: tuple[PlacedEntry, ...] = ()
    owed: tuple[OwedEntry, ...] = ()
    skill_calls: tuple[PlacedCall, ...] = ()
    skills: tuple[LoadedSkill, ...] = ()
    last: LastStep | None = None
    broken_prefix: CachePrefixCause | None = None
    broken_at: int | None = None
    stale_thinking: tuple[tuple[int, int], ...] = ()
    passes: int = 0
    last_refresh_step: int | None = None
    last_active_task: str | None = None
    refused_task: tuple[str | None, ...] = ()
    refresh_requested: bool = False
    redaction_due: bool = False
    redacted_packages: tuple[str, ...] = ()
    redactions: tuple[tuple[str, str, str], ...] = ()
    warned: tuple[WarningCode, ...] = ()
    unaccounted: bool = False
    memory_sequence: int = 0
    inputs: str | None = None
    segments: Vector[Segment] = Vector()
    checkpoint: Checkpoint | None = None
    summaries: Vector[tuple[str, str | None]] = Vector()
    turn_begins: bool = True
    compaction_due: bool = False
    failures: CompactionFailures = CompactionFailures()
    measured: Measured | None = None
    usage: Usage = Usage()
    recent: Recent[CommandFact] = Recent()

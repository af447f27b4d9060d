"""Events of compaction: what was replaced, by what, and why an evaluation came to nothing (C.O)."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.values import CompactionOptions, Model, RetentionPolicy, Usage, Value


class Event(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """Base of all events."""


CompactionPhase = Literal["restore", "evaluate", "compact", "persist"]
CompactionReason = Literal[
    "no-safe-boundary",
    "protected-history",
    "incomplete-summary",
    "empty-summary",
    "summary-too-large",
    "request-overhead",
    "error",
    "paused",
]


class CompactionStarted(Event, frozen=True, kw_only=True, tag="compaction-started"):
    """The history is about to be compacted (C.O.2); ``evaluation`` is one id for all events of an evaluation.

    ``trigger_index`` is that of the trigger that matched, absent where an overflow or a forget asks (D.I.5, C.X.11);
    ``matched`` are the answers of the host's own triggers that were asked, as (index, answer).  ``tokens_before`` is an
    estimate of the whole request, ``envelope_tokens`` the part of it that is no message; ``target_tokens`` is the
    configured one.  ``message_count`` counts the messages of the request.  ``host_tokens`` is the host's own count.
    ``options`` are what the range is chosen by, ``policy`` those of the trigger.  ``token_scope`` is ``request``; old
    events without it mean message estimates (C.O.12).  ``step`` is the step before which it happens;
    ``binds_thinking`` tells that its model binds thinking to the prefix (C.X.6), ``memory_sequence`` which state of the
    working memory it is of.  ``taken_by`` is the instance of the actor that took the evaluation: two that take one tell
    their starts apart, and the second one asks no summariser (C.F.1).  ``prompt_tail_tokens`` is what the host's prompt
    adds to the coming tail (C.M.14).
    """

    evaluation: str
    step: int
    cause: Literal["trigger", "overflow", "redacted"] = "trigger"
    trigger_index: int | None = None
    matched: tuple[tuple[int, bool], ...] = ()
    tokens_before: int
    envelope_tokens: int = 0
    target_tokens: int
    message_count: int
    host_tokens: int | None = None
    token_scope: Literal["request"] | None = None
    model: Model
    options: CompactionOptions
    policy: RetentionPolicy
    binds_thinking: bool = False
    memory_sequence: int = 0
    taken_by: str = ""
    prompt_tail_tokens: int = 0


class ReplacedRange(Value, frozen=True):
    """Half-open indices into the messages of the request as it was, blocks of ours included (C.G.9)."""

    start: int
    end: int


class TokenChange(Value, frozen=True):
    """Estimates of the whole request before and after, in tokens (C.O.3)."""

    before: int
    after: int


class IdentifierCounts(Value, frozen=True):
    """How many exact identifiers the range held, and how many summary or working memory still has (C.X.7)."""

    seen: int
    kept: int


class ReplacementFact(Value, frozen=True, kw_only=True):
    """One message that stands in place of source messages: digest, and cost in eighteenths of a token (D.M.4).

    ``own`` marks a summary; ``source`` is the index of the source message that it is, absent where it is none.
    """

    digest: str
    eighteenths: int
    own: Literal["", "summary"] = ""
    source: int | None = None


class RecordReference(Value, frozen=True):
    """A record by source, id and revision."""

    source: str
    record_id: str
    revision: int | None = None


class CompactionCompleted(Event, frozen=True, kw_only=True, tag="compaction-completed"):
    """A summary passed its checks, and its checkpoint is saved (C.L.1, C.O.3).

    The first ``source_count`` source messages, whose chain digest is ``source_hash``, are sent as ``replacement``; its
    texts are in the blob ``replaced_by``, the replaced span is in ``archive``.  ``thinking`` are ranges of source
    messages behind the boundary whose thinking was written before it (C.X.6); ``records`` those of every block that lay
    in or before the range (C.X.11).  ``pieces`` is the number of requests to the summariser (C.X.2).  ``dropped`` tells
    that the range went without a summary (C.X.5), ``host`` that the host gave the replacement (P.J.8).
    """

    evaluation: str
    tokens: TokenChange
    replaced_range: ReplacedRange
    source_count: int
    source_hash: str
    replacement: tuple[ReplacementFact, ...]
    replaced_by: str
    archive: str | None = None
    summariser: str = ""
    usage: Usage | None = None
    pieces: int = 0
    identifiers: IdentifierCounts | None = None
    thinking: tuple[tuple[int, int], ...] = ()
    records: tuple[RecordReference, ...] = ()
    dropped: bool = False
    host: bool = False
    host_counts: tuple[int, ...] = ()
    token_scope: Literal["request"] | None = None


class CompactionFailed(Event, frozen=True, kw_only=True, tag="compaction-failed"):
    """An evaluation, a reduction or the saving of a checkpoint failed (C.O.4); the history is as it was.

    ``usage`` is that of summaries that were refused, or that came to nothing (C.K.5).  ``refused`` is the cost of the
    range whose summary did not shrink it, in eighteenths of a token (C.X.4).  ``origin_code`` and ``origin_type`` name
    what a summariser raised.
    """

    evaluation: str
    step: int
    phase: CompactionPhase
    reason: CompactionReason
    usage: Usage | None = None
    refused: int | None = None
    summariser: str = ""
    origin_code: str | None = None
    origin_type: str | None = None
    token_scope: Literal["request"] | None = None


class CompactionRestored(Event, frozen=True, kw_only=True, tag="compaction-restored"):
    """A turn begins with a checkpoint in place (C.L.3, C.O.5): numbers of messages."""

    evaluation: str
    source_messages: int
    replacement_messages: int


class CompactionReset(Event, frozen=True, kw_only=True, tag="compaction-reset"):
    """The host ends a pause of compaction (C.X.5)."""


class SummaryRedacted(Event, frozen=True, kw_only=True, tag="summary-redacted"):
    """A forget took the summary and the archived span of a checkpoint (C.X.11); both blobs are erased.

    ``erasure`` is the sequence of the tombstone in the tenant's erasures.
    """

    replaced_by: str
    archive: str | None = None
    source: str
    record_id: str
    erasure: int

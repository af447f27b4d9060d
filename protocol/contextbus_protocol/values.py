"""Values that commands, events and packages are made of.

All are frozen and serialise with camelCase field names (D.D.22).  Optional fields are absent on the wire
when unknown, never null (D.D.2).  Token counts are integers in tokens unless a name ends in ``_eighteenths``.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

SourceKind = Literal["memory", "rag", "transcript", "skills"]
SOURCE_KINDS: tuple[SourceKind, ...] = ("memory", "rag", "transcript", "skills")

MAX_SAFE_INTEGER = 2**53 - 1
LONGEST_MODEL = 128
"""The most characters of the name of a model that usage is charged to; all of them are printable."""


class Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all values: frozen, camelCase on the wire, defaults absent."""


class Scope(Value, frozen=True):
    """Whose data a run may read (D.K.4); at least one field is set where data is read."""

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    actor_id: str | None = None
    chat_id: str | None = None


class Model(Value, frozen=True):
    """The model of a call: ``context_window`` and ``max_output_tokens`` in tokens (D.B.2)."""

    provider: str
    model_id: str
    context_window: int
    max_output_tokens: int


class Shares(Value, frozen=True):
    """Weights of the four kinds; they are normalised by their sum (D.B.11)."""

    memory: float = 0.35
    rag: float = 0.40
    transcript: float = 0.15
    skills: float = 0.10


class ContextBudget(Value, frozen=True):
    """How much context a step may add: ``min(ratio x room, max_tokens)`` tokens (D.B.4, D.U.1)."""

    ratio: float = 0.25
    max_tokens: int = 8192
    working_memory_tokens: int = 2048
    shares: Shares = Shares()


class RefreshOptions(Value, frozen=True):
    """When a run retrieves again (D.G.5, D.U.2)."""

    min_steps: int = 4
    max_passes: int = 8
    candidates_per_source: int = 16


class EstimatorSpec(Value, frozen=True):
    """Which counter a step uses (D.M.2, D.D.11).

    ``factor`` is in ten-thousandths: 10000 leaves counts as they are (D.M.5).  ``calibrate`` asks a run to learn it
    from reported usage; ``calibrated`` tells that it did (D.M.11).
    """

    kind: Literal["heuristic", "tokenizer"] = "heuristic"
    name: str = "classes"
    version: int = 1
    factor: int = 10_000
    calibrated: bool = False
    calibrate: bool = False


class SourceSpec(Value, frozen=True):
    """A source as a run knows it: its id, the kind that picks its share, and whether a step needs it."""

    id: str
    kind: SourceKind
    required: bool = False


TriggerKind = Literal[
    "tokens-exceed", "messages-exceed", "cache-likely-cold", "window-exceeded", "usage-exceeded", "custom"
]
OnFailure = Literal["stop", "continue", "drop"]


class RetentionPolicy(Value, frozen=True, kw_only=True):
    """What a compaction keeps (C.X.1); with several the smallest range is replaced, with none four messages are kept.

    ``keep_recent_tokens`` is in tokens, ``keep_ratio`` a share of the model's window.
    """

    keep_last_messages: int | None = None
    keep_last_turns: int | None = None
    keep_recent_tokens: int | None = None
    keep_ratio: float | None = None


class Trigger(Value, frozen=True, kw_only=True):
    """When a run compacts (C.H).

    ``limit`` is in tokens or messages, or for ``cache-likely-cold`` in milliseconds; ``ratio`` is a share of the
    model's window (P.J.1).  ``keep`` takes the place of the options' policy where this trigger matched.
    """

    kind: TriggerKind
    limit: int | None = None
    ratio: float | None = None
    keep: RetentionPolicy | None = None


class CompactionOptions(Value, frozen=True, kw_only=True):
    """How a run compacts its history (C.I.1, C.X).

    ``target_tokens`` caps the whole request, in tokens; ``target_ratio`` gives it as a share of the model's window
    (P.J.1).  ``long_running`` are tools whose calls may stay open (C.D.16), ``summary_input_tokens`` is the most that a
    summariser takes at once.  ``min_shrink`` is a share of the replaced range.  ``counts`` tells that the host counts
    (C.M.11), ``reserves_output`` that the model's output is reserved within the target (P.J.6).
    ``instructions_digest`` is over the host's instructions to the summariser.
    """

    triggers: tuple[Trigger, ...]
    target_tokens: int | None = None
    target_ratio: float | None = None
    keep: RetentionPolicy = RetentionPolicy()
    summariser: str = "extractive"
    long_running: tuple[str, ...] = ()
    summary_input_tokens: int | None = None
    media: Literal["protect", "placeholder"] = "protect"
    min_shrink: float = 0.1
    on_failure: OnFailure = "stop"
    counts: bool = False
    reserves_output: bool = False
    instructions_digest: str | None = None


class ModelPrefix(Value, frozen=True):
    """Models by provider and the beginning of their id (D.F.12)."""

    provider: str
    model_id: str


class ParentRun(Value, frozen=True):
    """The run that another one was started from, and its pinned scope: the child's lies within it (D.K.5)."""

    run: str
    scope: Scope


class StepOptions(Value, frozen=True, kw_only=True):
    """What a step is compiled for and with; recorded with the step, so that it can be computed again.

    ``overhead_tokens`` counts tool schemas, output schema and framing (D.B.3).  ``scope`` lies within the run's
    pinned one.  ``estimator_kind`` only labels the manifest (D.M.16).  ``tools_digest`` is over the tool definitions,
    as far as given (D.F.22).  ``bound_models`` are further models that bind thinking to the prefix (D.F.12).
    ``compaction`` tells how the history is compacted before the step, if it is (C.I.1).  ``settings_digest`` is over
    what else of the request a measured count depends on: provider options, tool choice, output schema (C.M.3).
    """

    scope: Scope
    model: Model
    overhead_tokens: int = 0
    sources: tuple[SourceSpec, ...] = ()
    budget: ContextBudget = ContextBudget()
    refresh: RefreshOptions = RefreshOptions()
    estimator: EstimatorSpec = EstimatorSpec()
    estimator_kind: str | None = None
    tools_digest: str | None = None
    bound_models: tuple[ModelPrefix, ...] = ()
    compaction: CompactionOptions | None = None
    settings_digest: str | None = None


class Provenance(Value, frozen=True):
    """Where a record comes from; a label only, it grants nothing (D.E.17)."""

    origin: str | None = None
    source_kinds: tuple[str, ...] = ()


class Candidate(Value, frozen=True):
    """One record that a source offers (D.K.17).

    ``digest`` is the SHA-256 of the text in UTF-8, as ``digest_text`` writes it (D.K.18); ``tokens``, if given, is
    the source's own count of the text.
    """

    record_id: str
    text: str
    score: float
    digest: str
    revision: int | None = None
    tokens: int | None = None
    provenance: Provenance | None = None
    mandatory: bool = False
    query: str | None = None
    match: str | None = None


class SourceStatus(enum.Enum):
    """What came of asking a source (D.Y.6)."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class SourceUsage(Value, frozen=True):
    """What answering a query cost, in tokens; not ``reported`` means that the amount is held as unaccounted (D.L.3)."""

    model: str
    tokens: int
    reported: bool = False


class SourceResult(Value, frozen=True):
    """A source's answer as selection uses it: merged in source order, cut to the limit (D.C.16).

    ``error`` is a short code without content, set only when failed (D.D.8).  ``truncated`` counts candidates
    beyond the limit.  ``origin_code`` and ``origin_type`` name what the source raised.  ``usage`` is what the answer
    cost (D.L.6); ``erasures`` is the sequence of the tenant's erasures that the source had seen.
    """

    source: str
    kind: SourceKind
    status: SourceStatus = SourceStatus.OK
    candidates: tuple[Candidate, ...] = ()
    required: bool = False
    error: str | None = None
    truncated: int = 0
    origin_code: str | None = None
    origin_type: str | None = None
    usage: tuple[SourceUsage, ...] = ()
    erasures: int | None = None


class PlacedEntry(Value, frozen=True):
    """A record that an earlier package of the run placed; no text (D.H.4)."""

    source: str
    record_id: str
    digest: str
    step: int
    pass_: int = msgspec.field(name="pass")
    tokens: int
    revision: int | None = None
    mandatory: bool = False


class Usage(Value, frozen=True):
    """Token usage as a provider reports it, in tokens; ``input_tokens`` are those that no cache read or write holds."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


_DEFAULT_KINDS: dict[str, SourceKind] = {
    "memory": "memory",
    "docs": "rag",
    "rag": "rag",
    "transcript": "transcript",
    "skills": "skills",
}


def default_kind(source: str) -> SourceKind | None:
    """The kind that a source of a well-known id has."""
    return _DEFAULT_KINDS.get(source)

"""What selection has under way for one run: the command it serves and how far it is."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contextbus.core.prompt import digest_parts
from contextbus.core.run_state import CommandFact, RunState
from contextbus.core.step import StepPlan
from contextbus_protocol import digests
from contextbus_protocol.blobs import StepOutput
from contextbus_protocol.callbacks import CallbackAnswered, CallbackName, HistoryState
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commands import (
    AppendMessages,
    ClearHistory,
    CompileStep,
    OverflowStep,
    RedactPackages,
    ReportStep,
    RequestRefresh,
    ResetCompaction,
)
from contextbus_protocol.commit_requests import HistoryFact
from contextbus_protocol.compaction import CompactionEnded
from contextbus_protocol.events import CompactionPhase, PreparedFact, UsageFact
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import ItemsOffered, Query
from contextbus_protocol.values import Scope, SourceResult, StepOptions

DEADLINE: Final = "#deadline"

RunCommand = (
    CompileStep
    | OverflowStep
    | ReportStep
    | AppendMessages
    | RequestRefresh
    | RedactPackages
    | ResetCompaction
    | ClearHistory
)
StepCommand = CompileStep | OverflowStep
"""The commands that come to a package."""

Phase = Literal["open", "callback", "restore", "compact", "fetch", "gather", "erasures", "commit", "stored"]


class Prepared(msgspec.Struct, frozen=True):
    """What is settled for a step at one sequence of the log; another sequence means: again.

    ``options`` are the step's with what the host's hook changed, which is ``hook``.
    """

    sequence: int
    after: RunState
    history: HistoryFact
    plan: StepPlan
    scope: Scope
    options: StepOptions
    hook: PreparedFact | None = None


class Offers(msgspec.Struct, frozen=True):
    """What the blob of an earlier package holds of its offers; nothing where the blob is gone (D.H.7)."""

    package: str
    results: tuple[SourceResult, ...] = ()
    output: StepOutput | None = None


class Flight(msgspec.Struct, frozen=True):
    """One command on its way.

    ``phase`` is ``open`` until log and working memory are at hand; ``callback`` while the host's function is asked,
    ``restore`` while a checkpoint is read, ``compact`` while the history is compacted, ``fetch`` while earlier offers
    are read, ``gather`` while sources are asked, ``erasures`` while it is read what was forgotten since, ``commit``
    while placement stores, ``stored`` while a stored package is fetched.

    ``items_asked`` is the sequence of the working memory that its present question asks for at least, 0 for the first
    question.  ``queries`` are those of the gather, ``gathered`` what was asked in it; ``asked_again`` names sources
    asked again at once, ``asked_half`` those asked at half the time, ``refused`` has a source once for each query that
    nobody took.  ``erasures`` is the sequence of the tenant's erasures that the answers were checked against.  ``gone``
    is the sequence of the commit whose stored package is gone, 0 if none is.  ``timed`` tells that the timer runs which
    ends the questions to the host and to sources; ``usage`` is what answers cost that were forgotten again.

    ``hook``, ``implicit``, ``transformed`` and ``rewrite`` are what the host's ``prepare_step``, ``before_compile``,
    ``transform_context`` and ``rewrite_query`` gave; ``transformed_for`` is the request history that the third was
    asked about.

    ``question`` is the token of what the host is asked for at present, of the function ``asked``, ``trigger`` the index
    of the trigger among them.  ``checkpoint`` is
    the blob of a checkpoint that was read, ``host_tokens`` what the host counted, ``matched`` what its triggers said,
    ``evaluation`` the last such answer, ``failing`` the phase in which the evaluation failed, and ``compacted`` what
    came of the compaction.  ``given`` is what the host gave of its too large history, of the chain ``given_for``, and
    ``rounds`` is 1 once that is in the log (P.J.8).
    """

    command: RunCommand
    token: str
    phase: Phase = "open"
    loading: bool = False
    items: ItemsOffered | None = None
    items_asked: int = 0
    prepared: Prepared | None = None
    hook: CallbackAnswered | None = None
    rewrite: CallbackAnswered | None = None
    implicit: CallbackAnswered | None = None
    transformed: CallbackAnswered | None = None
    transformed_for: HistoryState | None = None
    offers: tuple[Offers, ...] = ()
    reading: tuple[str, ...] = ()
    erasures: int | None = None
    timed: bool = False
    usage: tuple[UsageFact, ...] = ()
    gathers: int = 0
    gathered: Literal["nothing", "records", "all"] = "nothing"
    results: tuple[SourceResult, ...] = ()
    queries: tuple[Query, ...] = ()
    asked_again: tuple[str, ...] = ()
    asked_half: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    conflicts: int = 0
    stored: CommandFact | None = None
    gone: int = 0
    question: str = ""
    asked: CallbackName | None = None
    trigger: int | None = None
    checkpoint: str = ""
    host_tokens: int | None = None
    matched: tuple[tuple[int, bool], ...] = ()
    evaluation: CallbackAnswered | None = None
    failing: CompactionPhase | None = None
    compacted: CompactionEnded | None = None
    given: CallbackAnswered | None = None
    given_for: str = ""
    rounds: int = 0


class SelectionState(msgspec.Struct, frozen=True):
    """Selection's state of one run: the fold, the command in flight, and those behind it.

    ``held`` is a step whose history is being compacted: appends and reports go on beside it (C.K.9).
    """

    fold: RunState
    loaded: bool = False
    flight: Flight | None = None
    held: Flight | None = None
    waiting: tuple[RunCommand, ...] = ()
    serial: int = 0


def items_token(flight: Flight) -> str:
    """The token of the present question to working_memory: an answer to an earlier one is not taken for its answer."""
    return f"{flight.token}#items{flight.items_asked}" if flight.items_asked else flight.token


def answer_token(flight: Flight, message: AnyMessage) -> str:
    """The token that an answer must carry to be one of this flight."""
    match message:
        case ItemsOffered():
            return items_token(flight)
        case CallbackAnswered():
            return flight.question
        case _:
            return flight.token


def deadline_token(command: RunCommand) -> str:
    """The token of the timer that ends the time of a command, which runs from its arrival."""
    return command.command + DEADLINE


def digest_command(command: RunCommand) -> str:
    """What a command asks for, as a digest: attempt, reply address, times and how it brings its messages left out."""
    key: tuple[object, ...]
    match command:
        case CompileStep():
            key = (
                "compile-step",
                command.step,
                command.history.chain,
                command.user_text,
                command.options,
                command.refresh,
            )
            if command.prompt is not None:  # without one the digest is what older releases made
                key = (*key, digest_parts(command.prompt))
        case ReportStep():
            chain = None if command.history is None else command.history.chain
            key = (
                "report-step",
                command.step,
                command.status,
                chain,
                command.usage,
                command.finish_reason,
            )
            more = (command.started_at, command.response_model, command.request_digest, command.upstream)
            if any(field is not None for field in more):  # without them the digest is what older releases made
                key = (*key, *more)
            if command.measured is not None:  # how long a cache is kept may be told from what only one client knows
                key = ("report-step-evidence", key, command.measured)
        case OverflowStep():
            key = ("overflow-step", command.step, command.input_tokens)
        case RedactPackages():
            key = ("redact-packages", command.source, command.record_id, command.packages)
            if command.summaries:  # without them the digest is what older releases made
                key = (*key, command.summaries)
        case AppendMessages():
            key = ("append-messages", command.scope, command.estimator, command.history.chain)
        case ResetCompaction():
            key = ("reset-compaction",)
        case ClearHistory():
            key = ("clear-history",)
        case RequestRefresh():
            key = ("request-refresh",)
    return digests.digest_bytes(encode_json(key))

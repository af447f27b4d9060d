"""What selection has committed without rendering: reports, messages, refresh requests, failed steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from contextbus.actors import gather
from contextbus.actors.effects import Send
from contextbus.actors.flight import Flight, RunCommand, digest_command
from contextbus.core.estimate import Estimator, make_estimator
from contextbus.core.new_messages import take_messages
from contextbus.core.reported import outcome_of_report
from contextbus.core.run_state import RunState
from contextbus.core.scope import narrow, require_within
from contextbus.core.step import counter_of
from contextbus_protocol.commands import (
    AppendMessages,
    ClearHistory,
    CompileStep,
    NewMessages,
    OverflowStep,
    Recorded,
    RedactPackages,
    ReportStep,
    RequestRefresh,
    ResetCompaction,
    refuse,
)
from contextbus_protocol.commit_requests import CommitHead, HistoryFact, Record
from contextbus_protocol.digests import EMPTY_CHAIN, is_digest
from contextbus_protocol.errors import (
    ConflictError,
    ContextBusError,
    InvalidRequestError,
    NotFoundError,
    StaleStepError,
)
from contextbus_protocol.events import (
    AnyEvent,
    CompactionReset,
    HistoryCleared,
    PackageRedacted,
    RefreshRequested,
    StepFailed,
    SummaryRedacted,
)
from contextbus_protocol.subjects import encode_name
from contextbus_protocol.values import EstimatorSpec, ParentRun, Scope, SourceResult

Tokenizers = Mapping[str, Callable[[str], int]]


def head_of(fold: RunState, flight: Flight, tenant: str, inbox: str) -> CommitHead:
    """What the commit of the flight's command needs, as decided at this fold."""
    command = flight.command
    return CommitHead(
        tenant=tenant,
        run=command.run,
        command=command.command,
        command_digest=digest_command(command),
        attempt=command.attempt,
        at=command.now,
        expected=fold.sequence,
        previous=fold.digest,
        token=flight.token,
        reply_to=command.reply_to,
        reply_as=command.reply_as,
        notify=inbox,
        seconds_left=command.seconds_left,
    )


def record_of(
    fold: RunState,
    flight: Flight,
    tenant: str,
    inbox: str,
    *,
    history: HistoryFact | None = None,
    events: tuple[AnyEvent, ...] = (),
    failed: StepFailed | None = None,
    error: ContextBusError | None = None,
) -> Record:
    """A request to commit events, and for a failed step the error that its client gets."""
    return Record(
        run=flight.command.run,
        head=head_of(fold, flight, tenant, inbox),
        history=history,
        count=fold.history.count if history is None else history.count,
        chain=fold.history.chain if history is None else history.chain,
        events=events,
        failed=failed,
        error_message="" if error is None else error.message,
        error=None if error is None else error.data,
    )


def failure_of(
    fold: RunState, flight: Flight, results: Sequence[SourceResult], error: ContextBusError, tenant: str, inbox: str
) -> Record:
    """A request to commit that a step failed: it consumes nothing and leaves its command open (D.G.27).

    Raises:
        InvalidRequestError: the flight is not a settled step.
    """
    if flight.prepared is None:
        raise InvalidRequestError("only a settled step can fail")
    data = error.data
    failed = StepFailed(
        step=flight.prepared.plan.step,
        usage=gather.usage_of(flight),
        code=error.code,
        required_tokens=data.required_tokens,
        available_tokens=data.available_tokens,
        origin=data.origin,
        origin_code=data.origin_code,
        origin_type=data.origin_type,
        sources=gather.facts_of(results),
    )
    return record_of(fold, flight, tenant, inbox, failed=failed, error=error)


def refuse_command(command: RunCommand, error: ContextBusError) -> Send:
    """The answer to a command that came to nothing."""
    reply = refuse(command.run, command.command, error)
    return Send(command.reply_to, reply, command.reply_as)


def estimator_of(fold: RunState, given: EstimatorSpec, tokenizers: Tokenizers) -> Estimator:
    """The counter that a command names: the one the run was started with, which none may change (D.M.1).

    Raises:
        InvalidRequestError: the command names another one, or one that is not at hand.
    """
    pinned = fold.estimator
    if pinned is not None and (pinned.kind, pinned.name, pinned.version) != (given.kind, given.name, given.version):
        raise InvalidRequestError(
            f"this run counts with {pinned.kind} {pinned.name!r}; it cannot change to {given.name!r}"
        )
    return make_estimator(counter_of(fold, given), tokenizers)


def pinned_scope(fold: RunState, requested: Scope, parent: ParentRun | None) -> Scope:
    """The scope of a command: within the run's pinned one, and within that of the run it was started from (D.K.5).

    Raises:
        ScopeConflictError: it lies outside one of them.
    """
    scope = requested if fold.scope is None else narrow(fold.scope, requested)
    above = parent if fold.scope is None else fold.parent
    return scope if above is None else require_within(scope, above.scope)


def plan_record(
    fold: RunState,
    flight: Flight,
    tenant: str,
    inbox: str,
    tokenizers: Tokenizers,
    durability: str,
) -> Record | Recorded:
    """What a command without rendering comes to: a commit, or the answer that nothing is new.

    Raises:
        NotFoundError: the run has no log yet.
        StaleStepError: the reported step is not the last one, or its outcome is known.
        ConflictError: the messages do not fit the run's history.
        ScopeConflictError: the scope lies outside the pinned one.
    """
    command = flight.command
    history: HistoryFact | None = None
    events: tuple[AnyEvent, ...] = ()
    match command:
        case AppendMessages():
            scope = pinned_scope(fold, command.scope, command.parent)
            estimator = estimator_of(fold, command.estimator, tokenizers)
            history = _take(fold, command.history, scope, estimator, command.parent)
        case ReportStep():
            _check_report(fold, command)
            if command.history is not None and fold.estimator is not None and fold.scope is not None:
                estimator = make_estimator(fold.estimator, tokenizers)
                history = _take(fold, command.history, fold.scope, estimator)
            events = (outcome_of_report(command),)
        case RequestRefresh():
            _check_exists(fold, command.run)
            events = (RefreshRequested(),)
        case ResetCompaction():
            _check_exists(fold, command.run)
            events = (CompactionReset(),)
        case ClearHistory():
            _check_exists(fold, command.run)
            events = (HistoryCleared(),)
        case RedactPackages():
            _check_exists(fold, command.run)
            events = _redactions(fold, command)
        case CompileStep() | OverflowStep():
            raise InvalidRequestError("a step is placed, not recorded")
    if not events and history is None:
        return Recorded(
            run=command.run,
            command=command.command,
            sequence=fold.sequence,
            commit=fold.digest,
            count=fold.history.count,
            chain=fold.history.chain,
            durability=durability,
        )
    record = record_of(fold, flight, tenant, inbox, history=history, events=events)
    if isinstance(command, ClearHistory):
        record = msgspec.structs.replace(record, count=0, chain=EMPTY_CHAIN)
    return record


def _redactions(fold: RunState, command: RedactPackages) -> tuple[AnyEvent, ...]:
    """What a forget did to the run's packages and summaries, as far as the log does not say it (D.J.6, C.X.11).

    Raises:
        ConflictError: another forget came first: what this one left of a package may hold what that one took, and what
            that one left holds the record.
    """
    source, record = command.source, command.record_id
    _check_redactions(fold, command)
    new = tuple(p for p in command.packages if (p.package, source, record) not in fold.redactions)
    if any(p.package in fold.redacted_packages for p in new):
        raise ConflictError("another forget redacted a package first; redact what it left, and tell the run again")
    packages = tuple(
        PackageRedacted(
            step=package.step,
            package=package.package,
            replacement=package.replacement,
            source=source,
            record_id=record,
            erasure=command.erasure,
        )
        for package in new
    )
    summaries = tuple(
        SummaryRedacted(
            replaced_by=summary.replaced_by,
            archive=summary.archive,
            source=source,
            record_id=record,
            erasure=command.erasure,
        )
        for summary in command.summaries
        if (summary.replaced_by, source, record) not in fold.redactions
    )
    return (*packages, *summaries)


def _check_redactions(fold: RunState, command: RedactPackages) -> None:
    """Refuse what is no redaction: the log holds names and references, never a text (D.D.25).

    Of a summary that others followed the fold has the blobs and no records.  Saying that it is gone changes nothing of
    the run, and its blobs are erased only for a record that its own event lists.

    Raises:
        InvalidTypeError: source or record is no name.
        InvalidRequestError: a reference is none, the run has no such step or never had such a summary, or the record
            was in no block in or before the range that the run's present one stands for.
    """
    for name in (command.source, command.record_id):
        encode_name(name)
    last = -1 if fold.last is None else fold.last.step
    for package in command.packages:
        if not (is_digest(package.package) and is_digest(package.replacement)):
            raise InvalidRequestError("a redaction names blobs by their digests: sha256: and 64 hex digits")
        if package.replacement == package.package:
            raise InvalidRequestError("what takes the place of a package is another blob than the package")
        if not 0 <= package.step <= last:
            raise InvalidRequestError(f"the run has no step {package.step}; its last is {last}")
    if command.summaries:
        _check_summaries(fold, command)


def _check_summaries(fold: RunState, command: RedactPackages) -> None:
    known, checkpoint = frozenset(fold.summaries), fold.checkpoint
    for summary in command.summaries:
        if (summary.replaced_by, summary.archive) not in known:
            raise InvalidRequestError("the run never had a summary of these blobs")
        if checkpoint is None or checkpoint.forgotten or checkpoint.replaced_by != summary.replaced_by:
            continue
        if all((r.source, r.record_id) != (command.source, command.record_id) for r in checkpoint.records):
            raise InvalidRequestError("the record was in no block that the summary may tell of")


def _take(
    fold: RunState, new: NewMessages, scope: Scope, estimator: Estimator, parent: ParentRun | None = None
) -> HistoryFact | None:
    _, history = take_messages(fold, new, scope, estimator, parent)
    if not history.facts and history.replaced is None and history.started is None:
        return None
    return history


def _check_exists(fold: RunState, run: str) -> None:
    if fold.scope is None:
        raise NotFoundError(f"run {run!r} has no log yet; compile a step or append messages first")


def _check_report(fold: RunState, command: ReportStep) -> None:
    _check_exists(fold, command.run)
    last = fold.last
    if last is None or last.step != command.step:
        newest = "none" if last is None else str(last.step)
        raise StaleStepError(f"step {command.step} is not the run's last compiled step ({newest})")
    if last.status != "open":
        raise StaleStepError(f"the outcome of step {command.step} is already recorded")

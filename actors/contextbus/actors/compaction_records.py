"""What a compaction has committed, and what whoever asked for it is told (C.K.2, C.K.4, C.O)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from contextbus.actors.compacting import Failure, Instance, Job, take_texts
from contextbus.actors.effects import Effects, Send
from contextbus.core.checkpoints import COUNTED
from contextbus.core.compaction.forgotten import drop_forgotten, forgotten_boundary
from contextbus.core.compaction.host_history import save_history
from contextbus.core.compaction.reduction import CannotFit, Reduced, add_usages
from contextbus.core.compaction.saving import Saved, save
from contextbus.core.estimate import Estimator
from contextbus.core.run import find_command
from contextbus.core.run_state import RunState
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commit_requests import CommitHead, Record
from contextbus_protocol.compaction import Compact, CompactionEnded
from contextbus_protocol.errors import (
    ContextBudgetExceededError,
    ContextBusError,
    ErrorData,
    RequestOverheadError,
    SummariserFailedError,
    error_of,
)
from contextbus_protocol.events import AnyEvent, CompactionFailed, CompactionPhase, CompactionReason

_UNFIT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "no-safe-boundary": "no older range is free of open tool calls, media and messages that are kept; keep fewer, "
        "answer what is open, or name media with media='placeholder'",
        "protected-history": "what stays leaves no room for a summary under the target; raise target_tokens or keep "
        "fewer messages",
    }
)
_UNUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "absent": "nobody serves it; check its id, give it to open(summarisers=[…]), or run `contextbus worker FILE`",
        "timeout": "it did not answer in time; raise seconds",
        "busy": "it has no room for more requests; run more workers of it",
        "malformed": "what it answered is neither a text nor a Summary",
        "empty-summary": "it is empty",
        "incomplete-summary": "it was cut off, or holds something else than text",
        "summary-too-large": "it is above the target, or saves too little of what it replaces; compact later, or lower "
        "min_shrink",
    }
)

replace = msgspec.structs.replace


def begin_commit(fold: RunState, job: Job, at: Instance) -> tuple[Job, Effects]:
    """Have the start committed, with the messages that it is decided on (C.K.9)."""
    return replace(job, phase="started"), (Send(at.placement, _record(fold, job, at, "started", _first_events(job))),)


def save_commit(fold: RunState, job: Job, at: Instance, outcome: Reduced, estimator: Estimator) -> tuple[Job, Effects]:
    """Have the checkpoint committed (C.K.3); the start with it where no summariser had to be waited for."""
    assert job.request is not None
    assert job.after is not None
    saved = save(
        job.after,
        job.request,
        job.compact.started,
        replace(outcome, pieces=job.requests, usages=job.usages),
        estimator=estimator,
        working_memory=job.compact.working_memory,
        host_counts=job.host_counts,
        archive=job.archive,
    )
    return _send_saved(fold, job, at, saved)


def drop_commit(
    fold: RunState, job: Job, at: Instance, found: Mapping[str, bytes], estimator: Estimator
) -> tuple[Job, Effects]:
    """Have committed that the history goes on from the boundary of a summary that a forget took (C.X.11).

    Raises:
        NotFoundError: messages behind the boundary are gone too.
        InvalidTypeError: a blob is damaged.
    """
    assert job.after is not None
    job = take_texts(replace(job, reading=tuple(name for name in job.reading if name in found)), found)
    boundary = forgotten_boundary(job.after or fold, job.compact.started) or 0
    saved = drop_forgotten(job.after or fold, boundary, dict(job.texts), job.compact.started, estimator)
    return _send_saved(fold, job, at, saved)


def _send_saved(fold: RunState, job: Job, at: Instance, saved: Saved) -> tuple[Job, Effects]:
    events = (*(() if job.begun else _first_events(job)), saved.event)
    record = _record(fold, job, at, "completed", events, saved.blobs)
    job = replace(job, phase="commit", end=saved.event.source_count)
    return job, (Send(at.placement, record),)


def history_commit(
    fold: RunState, job: Job, at: Instance, estimator: Estimator, counted: int | None = None
) -> tuple[Job, Effects]:
    """Have the history that the host gave committed as a checkpoint (P.J.8); ``counted`` is the host's own count."""
    assert job.request is not None
    assert job.after is not None
    assert job.given is not None
    started = job.compact.started
    saved = save_history(job.after, job.request, started, job.given, estimator=estimator, counted=counted)
    record = _record(fold, job, at, "completed", (*_first_events(job), saved.event), saved.blobs)
    return replace(job, phase="commit"), (Send(at.placement, record),)


def fail_commit(fold: RunState, job: Job, at: Instance, failure: Failure) -> tuple[Job, Effects]:
    """Have a failure committed (C.K.4); of an evaluation it is the only event (C.O.6)."""
    compact = job.compact
    event = CompactionFailed(
        evaluation=compact.started.evaluation,
        step=compact.started.step,
        phase=failure.phase,
        reason=failure.reason,
        usage=add_usages(job.usages),
        refused=failure.refused,
        summariser=compact.started.options.summariser if failure.blames else "",
        origin_code=failure.origin_code,
        origin_type=failure.origin_type,
        token_scope="request",
    )
    first = () if job.begun or failure.phase != "compact" else _first_events(job)
    record = _record(fold, job, at, _failed(failure), (*first, event))
    return replace(job, phase="failing", failure=failure), (Send(at.placement, record),)


def is_recorded(fold: RunState, job: Job, failure: Failure) -> bool:
    """Whether the log says of this evaluation that it failed so."""
    return find_command(fold, _command(job, _failed(failure))) is not None


def is_over(fold: RunState, evaluation: str) -> bool:
    """Whether the log has the end of an evaluation that began, and so what its summaries cost (C.O.6)."""
    ends = ("completed", "failed-compact", "failed-persist")
    return any(find_command(fold, f"{evaluation}-{end}") is not None for end in ends)


def is_taken(fold: RunState, job: Job) -> bool:
    """Whether another instance began the job's evaluation: it asks the summariser, and it answers (C.F.1)."""
    fact = find_command(fold, _command(job, "started"))
    return fact is not None and fact.command_digest != _digest(_first_events(job))


def _failed(failure: Failure) -> str:
    return f"failed-{failure.phase}"


def _command(job: Job, status: str) -> str:
    """Evaluation and status are a commit's id, so a repeated one is stored once (C.O.8)."""
    return f"{job.compact.started.evaluation}-{status}"


def failure_of(job: Job, outcome: CannotFit) -> Failure:
    """What the event says of a reduction that did not fit."""
    assert job.request is not None
    cost = sum(item.cost for item in job.request.items[outcome.start : outcome.end])
    return Failure(
        phase="compact",
        reason=outcome.reason,
        refused=cost if outcome.unshrunk else None,
        blames=outcome.reason in COUNTED,
    )


def _first_events(job: Job) -> tuple[AnyEvent, ...]:
    restored = job.compact.restored
    return (job.compact.started,) if restored is None else (restored, job.compact.started)


def _record(
    fold: RunState,
    job: Job,
    at: Instance,
    status: str,
    events: tuple[AnyEvent, ...],
    stored: tuple[tuple[str, bytes], ...] = (),
) -> Record:
    """A request to commit for an evaluation; evaluation and status are its id (C.O.8)."""
    head, history = job.compact.head, job.compact.history
    with_history = job.compact.started in events and not job.begun
    count, chain = (history.count, history.chain) if with_history else (fold.history.count, fold.history.chain)
    return Record(
        run=job.compact.run,
        head=CommitHead(
            tenant=at.tenant,
            run=job.compact.run,
            command=_command(job, status),
            command_digest=_digest(events),
            attempt=job.conflicts + 1,
            at=head.at,
            expected=fold.sequence,
            previous=fold.digest,
            token=job.token,
            reply_to=at.inbox,
            notify=at.inbox,
            seconds_left=head.seconds_left,
        ),
        history=history if with_history else None,
        count=count,
        chain=chain,
        events=events,
        blobs=stored,
    )


def _digest(events: tuple[AnyEvent, ...]) -> str:
    return digests.digest_bytes(encode_json(events))


def ended(job: Job, fold: RunState, status: Literal["completed", "failed", "interrupted"]) -> CompactionEnded:
    """The answer to whoever asked for a compaction."""
    return CompactionEnded(
        run=job.compact.run,
        token=job.compact.head.token,
        evaluation=job.compact.started.evaluation,
        sequence=fold.sequence,
        status=status,
    )


def given_up(job: Job, fold: RunState, phase: CompactionPhase, code: str, text: str) -> CompactionEnded:
    """The answer where log or store did not do what they were asked for."""
    return replace(ended(job, fold, "failed"), phase=phase, reason="error", code=code, message=text)


def refused(compact: Compact, fold: RunState) -> CompactionEnded:
    """The answer where too many wait already."""
    busy = ended(Job(compact=compact, token=""), fold, "failed")
    return replace(busy, phase="evaluate", reason="error", code="busy", message="too many compactions wait")


def ended_by(job: Job, fold: RunState, failure: Failure) -> CompactionEnded:
    """The answer to whoever asked for a compaction that failed: what the event says, and the error of the step."""
    last = fold.failures.reason if failure.reason == "paused" else None
    error = error_of_failure(failure, last, job.compact.started.options.summariser)
    return replace(
        ended(job, fold, "failed"),
        phase=failure.phase,
        reason=failure.reason,
        code=error.code,
        message=error.message,
        data=error.data,
    )


def error_of_failure(failure: Failure, last: CompactionReason | None, summariser: str) -> ContextBusError:
    """The error that a step gets where it stops for a failure (C.K.4, C.X.5).

    Args:
        failure: what failed.
        last: the reason of the failure before, where compaction is paused.
        summariser: the run's summariser.
    """
    if failure.code is not None:
        data = ErrorData(
            phase="compaction",
            origin=failure.origin,
            origin_code=failure.origin_code,
            origin_type=failure.origin_type,
        )
        return error_of(failure.code, failure.text, data)
    reason = last or failure.reason
    data = ErrorData(phase="compaction", origin_code=reason)
    if reason == "request-overhead":
        text = (
            "what is sent beside the messages leaves no room under the target; raise target_tokens or send fewer tools"
        )
        return RequestOverheadError(text, data)
    if reason in _UNFIT:
        return ContextBudgetExceededError(f"the history cannot be compacted ({reason}): {_UNFIT[reason]}", data)
    code = failure.origin_code if failure.reason == "error" else None
    data = ErrorData(phase="compaction", origin=summariser, origin_code=code or reason, origin_type=failure.origin_type)
    paused = "; compaction is paused until the history has grown or reset_compaction is called"
    why = _UNUSED.get(code or reason) or f"it raised {failure.origin_type or 'an error'}"
    text = f"summariser {summariser!r} gave no summary that can be used ({reason}): {why}"
    return SummariserFailedError(text + (paused if failure.reason == "paused" else ""), data)

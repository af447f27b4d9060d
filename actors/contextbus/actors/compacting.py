"""How one compaction gets on: what is read, counted, asked and committed, one after the other (C.K.2, C.K.9).

Pure functions of the fold and the job; the compaction actor keeps both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from contextbus.actors.effects import Effects, Fetch, Scatter, Send, Timer
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.evaluation import is_range_paused, ratio_room
from contextbus.core.compaction.forgotten import drop_forgotten, forgotten_boundary, is_only_forgotten
from contextbus.core.compaction.instructions import write_instructions
from contextbus.core.compaction.reduction import (
    Answer,
    Ask,
    CannotFit,
    CountComposed,
    CountRange,
    CountTail,
    CountWhole,
    Reduced,
    Reduction,
    ReductionOptions,
    Request,
)
from contextbus.core.compaction.request_items import RequestItems, missing_blobs, request_items
from contextbus.core.compaction.saving import Saved, archive_of, compose, save
from contextbus.core.estimate import Estimator
from contextbus.core.run_state import RunState
from contextbus.core.step import apply_history
from contextbus_protocol import blobs, digests
from contextbus_protocol.callbacks import AskCallback, Composition
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commit_requests import CommitHead, Record
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarise
from contextbus_protocol.errors import (
    ContextBudgetExceededError,
    ContextBusError,
    ErrorData,
    InvalidTypeError,
    NotFoundError,
    RequestOverheadError,
    SummariserFailedError,
)
from contextbus_protocol.events import AnyEvent, CompactionFailed, CompactionPhase, CompactionReason

SUMMARY_SHARE: Final = 0.8
"""The part of the time left that reading, counting and the summariser get; the rest is for storing."""

Tokenizers = Mapping[str, Callable[[str], int]]
Phase = Literal["load", "fetch", "count", "started", "summary", "commit", "failing"]

replace = msgspec.structs.replace


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a compaction came to nothing: what the event says of it (C.O.4)."""

    phase: CompactionPhase
    reason: CompactionReason
    refused: int | None = None
    usages: tuple[object, ...] = ()
    origin_code: str | None = None
    origin_type: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction on its way.

    ``texts`` are the messages of blobs by reference.  ``begun`` tells that its start is in the log; ``end`` is the
    number of source messages that its summary stands for, once there is one.  ``answers`` are those of the summariser
    with what it was given, kept for the case that the commit loses a race; ``question`` numbers what is asked.
    """

    compact: Compact
    token: str
    phase: Phase = "load"
    texts: tuple[tuple[str, tuple[ChatMessage, ...]], ...] = ()
    reading: tuple[str, ...] = ()
    after: RunState | None = None
    request: RequestItems | None = None
    reduction: Reduction | None = None
    asked: Request | None = None
    host_counts: tuple[int, ...] = ()
    begun: bool = False
    saved: Saved | None = None
    failure: Failure | None = None
    end: int | None = None
    answers: tuple[tuple[Ask, Answer], ...] = ()
    question: int = 0
    conflicts: int = 0


class Instance(msgspec.Struct, frozen=True):
    """The instance of the actor: whose runs, where answers go, where placement takes requests."""

    tenant: str
    inbox: str
    placement: str


def plan(fold: RunState, job: Job) -> tuple[Job, Effects]:
    """Read what the run's messages say, as far as it is not at hand."""
    history = job.compact.history
    if job.begun or not history.facts:
        after = fold if job.begun else apply_history(fold, history)
        job = replace(job, after=after)
    else:
        inputs = digests.digest_bytes(blobs.encode_input(history.messages))
        texts = (*job.texts, (inputs, history.messages))
        job = replace(job, after=apply_history(fold, history, inputs), texts=texts)
    assert job.after is not None
    wanted = missing_blobs(job.after, frozenset(reference for reference, _ in job.texts))
    if wanted:
        return replace(job, phase="fetch", reading=wanted), (Fetch(fold.run, wanted, job.token),)
    return job, ()


def take_texts(job: Job, found: Mapping[str, bytes]) -> Job:
    """The job with the blobs that were read.

    Raises:
        NotFoundError: one is gone.
        InvalidTypeError: one is damaged.
    """
    texts = list(job.texts)
    for reference in job.reading:
        data = found.get(reference)
        if data is None:
            raise NotFoundError("messages of the run are no longer stored")
        if digests.digest_bytes(data) != reference:
            raise InvalidTypeError("a blob of the run is damaged: its digest is another")
        texts.append((reference, _read_messages(data)))
    return replace(job, texts=tuple(texts), reading=(), phase="count")


def lacks_only_forgotten(job: Job, found: Mapping[str, bytes]) -> bool:
    """Whether only messages are gone that the summary stood for which a forget took (C.X.11)."""
    assert job.after is not None
    boundary = forgotten_boundary(job.after, job.compact.started)
    missing = frozenset(job.reading).difference(found)
    return bool(missing) and boundary is not None and is_only_forgotten(job.after, boundary, missing)


def _read_messages(data: bytes) -> tuple[ChatMessage, ...]:
    try:
        return blobs.decode_input(data).messages  # both blobs hold a version and messages
    except ContextBusError:
        return blobs.decode_replacement(data).messages


def reduce(job: Job) -> Job:
    """The job at the beginning of its reduction, its first request waiting.

    Raises:
        NotFoundError: texts do not fit what the log says.
    """
    assert job.after is not None
    started = job.compact.started
    request = request_items(job.after, dict(job.texts))
    options, boundary = started.options, forgotten_boundary(job.after, started)
    given = ReductionOptions(
        target_tokens=started.target_tokens - started.envelope_tokens,
        keep=started.policy,
        window_tokens=ratio_room(started.policy, started.model.context_window, started.envelope_tokens),
        long_running=options.long_running,
        summary_input_tokens=options.summary_input_tokens,
        media=options.media,
        min_shrink=options.min_shrink,
        names_media=True,
        end=None if job.end is None else _end_at(request, job.end),
        least_end=None if boundary is None else _end_at(request, boundary),
    )
    reduction, asked = reducing.begin(request.items, given)
    return replace(job, phase="count", request=request, reduction=reduction, asked=asked, host_counts=())


def _end_at(request: RequestItems, source_count: int) -> int | None:
    """The end of a range that stands for so many source messages; None where no cut does."""
    ends = (index + 1 for index in reversed(range(len(request.covers))) if request.covers[index] == source_count)
    return next(ends, None)


def count(job: Job, estimator: Estimator) -> int:
    """The tokens of the candidate that the job's reduction asks for: sums of what each message costs (C.C.11)."""
    assert job.request is not None
    costs = [item.cost for item in job.request.items]
    match job.asked:
        case CountWhole():
            return estimator.tokens(sum(costs))
        case CountTail(start=start):
            return estimator.tokens(sum(costs[start:]))
        case CountRange(start=start, end=end):
            return estimator.tokens(sum(costs[start:end]))
        case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
            total = sum(costs[:start]) + sum(costs[end:])
            if replayed is not None:
                total += costs[replayed]
            if summary is not None:
                archive, _ = archive_of(job.request, start, end)
                total += estimator.message(summary_message(summary, archive))
            return estimator.tokens(total)
        case _:
            raise InvalidTypeError("nothing is to be counted")


def go_on(job: Job, answer: int | Answer, estimator: Estimator) -> Job:
    """The job with an answer to what its reduction asked for."""
    assert job.reduction is not None
    if isinstance(answer, Answer) and isinstance(job.asked, Ask):
        job = replace(job, answers=(*job.answers, (job.asked, answer)))
    assert job.reduction is not None
    reduction, asked = reducing.advance(job.reduction, answer, estimator.estimate)
    return replace(job, phase="count", reduction=reduction, asked=asked)


def known_answer(job: Job) -> Answer | None:
    """What the summariser gave for the same messages before a race was lost (C.K.9)."""
    ask = job.asked
    if not isinstance(ask, Ask):
        return None
    return next((answer for asked, answer in job.answers if asked.messages == ask.messages), None)


def is_refused_again(job: Job) -> bool:
    """Whether the range is not a fifth larger than the one whose summary did not shrink it (C.X.4)."""
    if job.after is None or job.request is None or job.reduction is None:
        return False
    items = job.request.items[job.reduction.start : job.reduction.end]
    return is_range_paused(job.after.failures, sum(item.cost for item in items))


def ask_host(job: Job, at: Instance) -> tuple[Job, Effects]:
    """Have the host count a candidate (C.C.4, C.M.11)."""
    job = replace(job, question=job.question + 1)
    head = job.compact.head
    ask = AskCallback(
        run=job.compact.run,
        command=head.command,
        token=question_token(job),
        reply_to=at.inbox,
        name="count-tokens",
        step=job.compact.started.step,
        seconds_left=head.seconds_left * SUMMARY_SHARE,
        composition=_composition(job),
    )
    return job, (Send(head.reply_to, ask, head.reply_as),)


def _composition(job: Job) -> Composition:
    assert job.request is not None
    request = job.request
    match job.asked:
        case CountTail(start=start) if start:
            return _behind(request, start)
        case CountRange(start=start, end=end):
            behind = _behind(request, start) if start else Composition(source_count=0)
            return replace(behind, until=request.source_count(end))
        case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
            outcome = Reduced(start=start, end=end, replayed=replayed, summary=summary, before=0, after=0)
            messages, _ = compose(request, outcome, archive_of(request, start, end)[0])
            return Composition(source_count=request.source_count(end), replacement=messages)
        case _:
            return Composition()


def _behind(request: RequestItems, start: int) -> Composition:
    """The messages from an index on."""
    source_count = request.source_count(start)
    rest = zip(request.items[start:], request.covers[start:], strict=True)
    replaced = (item.message for item, covered in rest if covered == source_count)
    return Composition(source_count=source_count, replacement=tuple(m for m in replaced if m is not None))


def question_token(job: Job) -> str:
    """The token of what is asked at present: an answer to another question is not taken for its answer."""
    return f"{job.token}#{job.question}"


def ask_summariser(job: Job, at: Instance) -> tuple[Job, Effects]:
    """Ask the summariser for what the reduction wants, with a timer for its time (C.F.1)."""
    ask, compact = job.asked, job.compact
    assert isinstance(ask, Ask)
    job = replace(job, phase="summary", question=job.question + 1)
    seconds = compact.head.seconds_left * SUMMARY_SHARE
    request = Summarise(
        run=compact.run,
        tenant=at.tenant,
        command=compact.head.command,
        token=question_token(job),
        reply_to=at.inbox,
        summariser=compact.started.options.summariser,
        messages=ask.messages,
        instructions=write_instructions(compact.instructions),
        max_output_tokens=ask.max_output_tokens,
        seconds_left=seconds,
    )
    return job, (Scatter((request,)), Timer(compact.run, summary_timer(job), seconds))


def summary_timer(job: Job) -> str:
    """The token of the timer that ends the summariser's time."""
    return f"{job.token}#late"


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
        outcome,
        estimator=estimator,
        working_memory=job.compact.working_memory,
        host_counts=job.host_counts,
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
    job = replace(job, phase="commit", saved=saved, end=saved.event.source_count)
    return job, (Send(at.placement, record),)


def fail_commit(fold: RunState, job: Job, at: Instance, failure: Failure) -> tuple[Job, Effects]:
    """Have a failure committed (C.K.4); of an evaluation it is the only event (C.O.6)."""
    compact = job.compact
    event = CompactionFailed(
        evaluation=compact.started.evaluation,
        step=compact.started.step,
        phase=failure.phase,
        reason=failure.reason,
        usage=reducing.add_usages(failure.usages),
        refused=failure.refused,
        summariser=compact.started.options.summariser if failure.phase == "compact" else "",
        origin_code=failure.origin_code,
        origin_type=failure.origin_type,
        token_scope="request",
    )
    first = () if job.begun or failure.phase != "compact" else _first_events(job)
    record = _record(fold, job, at, f"failed-{failure.phase}", (*first, event))
    return replace(job, phase="failing", failure=failure), (Send(at.placement, record),)


def failure_of(job: Job, outcome: CannotFit) -> Failure:
    """What the event says of a reduction that did not fit."""
    assert job.request is not None
    cost = sum(item.cost for item in job.request.items[outcome.start : outcome.end])
    return Failure(
        phase="compact",
        reason=outcome.reason,
        refused=cost if outcome.unshrunk else None,
        usages=outcome.usages,
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
            command=f"{job.compact.started.evaluation}-{status}",
            command_digest=digests.digest_bytes(encode_json(events)),
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


def ended(job: Job, fold: RunState, status: Literal["completed", "failed", "interrupted"]) -> CompactionEnded:
    """The answer to whoever asked for a compaction."""
    return CompactionEnded(
        run=job.compact.run,
        token=job.compact.head.token,
        evaluation=job.compact.started.evaluation,
        sequence=fold.sequence,
        status=status,
    )


def error_of(failure: Failure, last: CompactionReason | None, summariser: str) -> ContextBusError:
    """The error that a step gets where it stops for a failure (C.K.4, C.X.5).

    Args:
        failure: what failed.
        last: the reason of the failure before, where compaction is paused.
        summariser: the run's summariser.
    """
    reason = last or failure.reason
    data = ErrorData(phase="compaction", origin_code=reason)
    if reason == "request-overhead":
        text = (
            "what is sent beside the messages leaves no room under the target; raise target_tokens or send fewer tools"
        )
        return RequestOverheadError(text, data)
    if reason in ("no-safe-boundary", "protected-history"):
        text = f"the history cannot be compacted ({reason}): what must stay is too large or its work is open"
        return ContextBudgetExceededError(text, data)
    code = failure.origin_code if failure.reason == "error" else None
    data = ErrorData(phase="compaction", origin=summariser, origin_code=code or reason, origin_type=failure.origin_type)
    paused = "; compaction is paused until the history has grown or reset_compaction is called"
    text = f"summariser {summariser!r} gave no summary that can be used ({reason})"
    return SummariserFailedError(text + (paused if failure.reason == "paused" else ""), data)

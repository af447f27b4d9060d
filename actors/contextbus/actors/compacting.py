"""How one compaction gets on: what is read, counted, asked and committed, one after the other (C.K.2, C.K.9).

Pure functions of the fold and the job; the compaction actor keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from contextbus.actors.effects import Effects, Fetch
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.counting import count_candidate
from contextbus.core.compaction.evaluation import is_range_paused, ratio_room
from contextbus.core.compaction.forgotten import forgotten_boundary, is_only_forgotten
from contextbus.core.compaction.host_history import HostReplacement, replace_history
from contextbus.core.compaction.reduction import (
    Answer,
    Ask,
    CannotFit,
    CountComposed,
    Reduction,
    ReductionOptions,
    Request,
)
from contextbus.core.compaction.request_items import RequestItems, missing_blobs, request_items
from contextbus.core.compaction.saving import Archive, archive_of
from contextbus.core.estimate import Estimator
from contextbus.core.new_messages import apply_history
from contextbus.core.projection import applied
from contextbus.core.run_state import RunState
from contextbus_protocol import blobs, digests
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarised
from contextbus_protocol.errors import (
    LONGEST_WORD,
    CallbackTimeoutError,
    ContextBusError,
    HookFailedError,
    InvalidTypeError,
    NotFoundError,
    RangeError,
    word_of,
)
from contextbus_protocol.events import CompactionPhase, CompactionReason, CompactionStarted
from contextbus_protocol.values import Usage

Phase = Literal["load", "fetch", "count", "started", "summary", "commit", "failing"]

replace = msgspec.structs.replace


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a compaction came to nothing: what the event says of it (C.O.4).

    ``blames`` tells that a summary was refused, or that its summariser gave none.  ``code`` is the class of the error
    where it is neither of these nor follows from the reason, ``text`` its message and ``origin`` what it names.
    """

    phase: CompactionPhase
    reason: CompactionReason
    refused: int | None = None
    blames: bool = False
    origin_code: str | None = None
    origin_type: str | None = None
    code: str | None = None
    text: str = ""
    origin: str | None = None


PAUSED: Final = Failure(phase="evaluate", reason="paused")
"""The summariser is not asked (C.X.5)."""

_TEXTS: Final = ("text", "reasoning")

ABANDONED: Final = Failure(phase="persist", reason="error")
"""Summaries were paid for, and nothing came of them: the history is another than they were written for (C.K.5)."""

COUNT_TOKENS: Final = "count_tokens"

LATE_COUNT: Final = Failure(
    phase="compact",
    reason="error",
    origin=COUNT_TOKENS,
    origin_code=CallbackTimeoutError.code,
    code=CallbackTimeoutError.code,
    text=f"{COUNT_TOKENS} of the host did not answer in time",
)
"""The host did not count in time (D.W.4)."""

LOST_CHECKPOINT: Final = Failure(
    phase="restore",
    reason="error",
    origin_code=NotFoundError.code,
    code=NotFoundError.code,
    text="the texts of the run's checkpoint are gone or damaged; its source messages are whole: clear the history, or "
    "hand them over to a new run",
)
"""What stands in place of the history's beginning cannot be read (C.L.8)."""


def count_failure(answer: CallbackAnswered) -> Failure:
    """The host's function failed, or gave what is no count (C.C.5, D.W.4)."""
    return Failure(
        phase="compact",
        reason="error",
        origin=COUNT_TOKENS,
        origin_code=RangeError.code if answer.code is None else word_of(answer.origin_code),
        origin_type=None if answer.origin_type is None else answer.origin_type[:LONGEST_WORD],
        code=HookFailedError.code,
        text=f"{COUNT_TOKENS} of the host failed",
    )


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction on its way.

    ``texts`` are the messages of blobs by reference.  ``begun`` tells that its start is in the log; ``end`` is the
    number of source messages that its summary stands for, once there is one.  ``answers`` are those of the summariser
    with what it was given, kept for the case that the commit loses a race; ``question`` numbers what is asked.
    ``requests`` counts those to the summariser, ``usages`` are what they cost.  ``late`` tells that the time for
    questions is over, ``dropping`` that the range goes without a summary.  ``given`` is what the host gave in place of
    the history (P.J.8).  ``archive`` is the archived span of the range that is counted, ``room`` what the summariser
    was last given, in tokens (C.F.2).  ``over`` is what is told once the log has what summaries cost that came to
    nothing (C.K.5); such ``usages`` of earlier jobs are among these.
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
    failure: Failure | None = None
    end: int | None = None
    answers: tuple[tuple[Ask, Answer], ...] = ()
    question: int = 0
    requests: int = 0
    usages: tuple[Usage, ...] = ()
    conflicts: int = 0
    late: bool = False
    dropping: bool = False
    given: HostReplacement | None = None
    archive: Archive | None = None
    room: int = 0
    over: CompactionEnded | None = None


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
    request = request_items(job.after, dict(job.texts))
    end = None if job.end is None else _end_at(request, job.end)
    options = reduction_options(job.after, job.compact.started, request, end)
    reduction, asked = reducing.begin(request.items, options)
    return replace(job, phase="count", request=request, reduction=reduction, asked=asked, host_counts=(), archive=None)


def reduction_options(
    state: RunState, started: CompactionStarted, request: RequestItems, end: int | None = None
) -> ReductionOptions:
    """What a reduction keeps to by what the log says of its start.

    Args:
        state: the run with the messages that the start was decided on.
        started: the event.
        request: its request history.
        end: the index behind the range, where its summary is there already (C.K.9).
    """
    options, boundary = started.options, forgotten_boundary(state, started)
    return ReductionOptions(
        target_tokens=started.target_tokens - started.envelope_tokens,
        keep=started.policy,
        window_tokens=ratio_room(started.policy, started.model.context_window, started.envelope_tokens),
        long_running=options.long_running,
        summary_input_tokens=options.summary_input_tokens,
        media=options.media,
        min_shrink=options.min_shrink,
        names_media=True,
        end=end,
        least_end=None if boundary is None else _end_at(request, boundary),
    )


def take_history(job: Job, estimator: Estimator) -> Job:
    """The job with what the host gave in place of the history.

    Raises:
        ContextBusError: it is none, or texts do not fit what the log says.
    """
    assert job.after is not None
    request = request_items(job.after, dict(job.texts))
    given = replace_history(request, job.compact.host_messages or (), estimator)
    return replace(job, phase="count", request=request, given=given)


def _end_at(request: RequestItems, source_count: int) -> int | None:
    """The end of a range that stands for so many source messages; None where no cut does."""
    ends = (index + 1 for index in reversed(range(len(request.covers))) if request.covers[index] == source_count)
    return next(ends, None)


def count(job: Job, estimator: Estimator) -> int:
    """The tokens of the candidate that the job's reduction asks for."""
    assert job.request is not None
    return count_candidate(job.request, job.asked, estimator, job.archive)


def note_archive(job: Job) -> Job:
    """The job with the archived span of the range whose composition is counted; it is made once for a range (C.X.8)."""
    asked, known = job.asked, job.archive
    if not isinstance(asked, CountComposed) or job.request is None:
        return job
    if known is not None and (known.start, known.end) == (asked.start, asked.end):
        return job
    return replace(job, archive=archive_of(job.request, asked.start, asked.end))


def go_on(job: Job, answer: int | Answer, estimator: Estimator) -> Job:
    """The job with an answer to what its reduction asked for."""
    assert job.reduction is not None
    reduction, asked = reducing.advance(job.reduction, answer, estimator.estimate)
    return replace(job, phase="count", reduction=reduction, asked=asked)


def answer_of(message: Summarised) -> Answer:
    """What a summariser wrote, as a reduction takes it (C.G.5, C.G.7)."""
    return Answer(
        text="".join(part.text for part in message.parts if part.type == "text"),
        only_text=all(part.type in _TEXTS for part in message.parts),
        finish_reason=message.finish_reason,
        usage=message.usage,
    )


def note_answer(job: Job, answer: Answer, usage: Usage | None) -> Job:
    """The job with what the summariser gave, whatever comes of it (C.K.5)."""
    assert isinstance(job.asked, Ask)
    job = replace(job, answers=(*job.answers, (job.asked, answer)))
    return note_usage(job, usage)


def note_usage(job: Job, usage: Usage | None) -> Job:
    """The job with what a request to the summariser cost."""
    return job if usage is None else replace(job, usages=(*job.usages, usage))


def drop_range(job: Job) -> Job:
    """The job whose range goes without a summary (C.X.5)."""
    assert job.reduction is not None
    reduction, asked = reducing.drop(job.reduction)
    return replace(job, phase="count", dropping=True, reduction=reduction, asked=asked)


def is_superseded(fold: RunState, job: Job) -> bool:
    """Whether another checkpoint stands in the history now than the one that the compaction began on."""
    before = None if job.after is None else applied(job.after)
    now = applied(fold)
    return (before and before.replaced_by) != (now and now.replaced_by)


def unreadable_checkpoint(job: Job, found: Mapping[str, bytes]) -> bool:
    """Whether the texts of the run's checkpoint are gone or damaged (C.L.8)."""
    checkpoint = None if job.after is None else applied(job.after)
    if checkpoint is None or checkpoint.replaced_by not in job.reading:
        return False
    data = found.get(checkpoint.replaced_by)
    return data is None or digests.digest_bytes(data) != checkpoint.replaced_by


def known_answer(job: Job) -> Answer | None:
    """What the summariser gave for the same messages before a race was lost (C.K.9)."""
    ask = job.asked
    if not isinstance(ask, Ask):
        return None
    return next((answer for asked, answer in job.answers if asked.messages == ask.messages), None)


def kept_to_room(job: Job, outcome: CannotFit) -> bool:
    """Whether a summary that is too large now kept to the room that its summariser was given (C.K.9).

    Messages that came meanwhile made the room smaller, so that the summary is not to blame.
    """
    assert job.reduction is not None
    return outcome.excess > 0 and job.reduction.room + outcome.excess <= job.room


def is_same(known: Compact, message: Compact) -> bool:
    """Whether two requests are of one evaluation."""
    return (known.head.command, known.started.evaluation) == (message.head.command, message.started.evaluation)


def follow(job: Job, message: Compact) -> Job:
    """The job for whoever asked last: the one who asked first may be gone, and the newest one's time counts."""
    head = replace(
        job.compact.head,
        token=message.head.token,
        notify=message.head.notify,
        reply_to=message.head.reply_to,
        reply_as=message.head.reply_as,
        seconds_left=message.head.seconds_left,
    )
    return replace(job, compact=replace(job.compact, head=head))


def is_refused_again(job: Job) -> bool:
    """Whether the range is not a fifth larger than the one whose summary did not shrink it (C.X.4)."""
    if job.after is None or job.request is None or job.reduction is None:
        return False
    items = job.request.items[job.reduction.start : job.reduction.end]
    return is_range_paused(job.after.failures, sum(item.cost for item in items))

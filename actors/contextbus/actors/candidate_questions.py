"""What a compaction asks others: the host to count a candidate, a summariser to write (C.C.4, C.F.1)."""

from __future__ import annotations

from typing import Final

import msgspec

from contextbus.actors.compacting import Instance, Job
from contextbus.actors.effects import Effects, Scatter, Send, Timer
from contextbus.core.compaction.instructions import write_instructions
from contextbus.core.compaction.reduction import Ask, CountComposed, CountRange, CountTail, Reduced
from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.compaction.saving import archive_of, compose
from contextbus.core.projection import history_state
from contextbus_protocol.callbacks import AskCallback, Composition
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.compaction import Summarise

ANSWER_SHARE: Final = 0.8
"""The part of the time left that the host and the summariser get; the rest is for storing."""

replace = msgspec.structs.replace


def ask_host(job: Job, at: Instance) -> tuple[Job, Effects]:
    """Have the host count a candidate (C.C.4, C.M.11)."""
    job = replace(job, question=job.question + 1)
    return job, (ask_again(job, at),)


def is_host_asked(job: Job) -> bool:
    """Whether the host is to count something at present."""
    asked = job.given is not None or (job.asked is not None and not isinstance(job.asked, Ask))
    return job.phase == "count" and asked


def ask_again(job: Job, at: Instance) -> Send:
    """The question to the host that waits for its answer."""
    head = job.compact.head
    ask = AskCallback(
        run=job.compact.run,
        command=head.command,
        token=question_token(job),
        reply_to=at.inbox,
        name="count-tokens",
        step=job.compact.started.step,
        seconds_left=head.seconds_left * ANSWER_SHARE,
        composition=_composition(job),
        history=None if job.after is None else history_state(job.after),
    )
    return Send(head.reply_to, ask, head.reply_as)


def _composition(job: Job) -> Composition:
    assert job.request is not None
    request = job.request
    if job.given is not None:
        return Composition(source_count=job.given.source_count, replacement=job.given.messages)
    match job.asked:
        case CountTail(start=start) if start:
            return _behind(request, start)
        case CountRange(start=start, end=end):
            return _between(request, start, end)
        case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
            outcome = Reduced(start=start, end=end, replayed=replayed, summary=summary, before=0, after=0)
            archive = job.archive or archive_of(request, start, end)
            messages, _ = compose(request, outcome, archive.reference)
            return Composition(source_count=request.source_count(end), replacement=messages)
        case _:
            return Composition()


def _behind(request: RequestItems, start: int) -> Composition:
    """The messages from an index on."""
    if start >= request.replaced:
        return Composition(source_count=request.source_count(start))
    return Composition(source_count=request.base, replacement=_messages(request, start, request.replaced))


def _between(request: RequestItems, start: int, end: int) -> Composition:
    """The messages of a range."""
    if end > request.replaced:
        return replace(_behind(request, start), until=request.source_count(end))
    given = _messages(request, start, end)  # all of them stand in place of others: no source message is among them
    return Composition(source_count=request.base, replacement=given, until=request.base)


def _messages(request: RequestItems, start: int, end: int) -> tuple[ChatMessage, ...]:
    return tuple(item.message for item in request.items[start:end] if item.message is not None)


def question_token(job: Job) -> str:
    """The token of what is asked at present: an answer to another question is not taken for its answer."""
    return f"{job.token}#{job.question}"


def ask_summariser(job: Job, at: Instance) -> tuple[Job, Effects]:
    """Ask the summariser for what the reduction wants (C.F.1)."""
    ask, compact = job.asked, job.compact
    assert isinstance(ask, Ask)
    room = 0 if job.reduction is None else job.reduction.room
    job = replace(job, phase="summary", question=job.question + 1, requests=job.requests + 1, room=room)
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
        seconds_left=compact.head.seconds_left * ANSWER_SHARE,
    )
    return job, (Scatter((request,)),)


def timers(job: Job) -> Effects:
    """The timers of a compaction: one ends its questions, all of them together, the other ends it."""
    compact = job.compact
    seconds = compact.head.seconds_left
    late = Timer(compact.run, late_token(job), seconds * ANSWER_SHARE)
    return (Timer(compact.run, job.token, seconds), *(() if job.late else (late,)))


def late_token(job: Job) -> str:
    """The token of the timer that ends the time of the host and of the summariser."""
    return f"{job.token}#late"

"""How a compaction ends: what is told, and what is committed before (C.K.4, C.K.5).

Pure functions of the actor's state; the next compaction begins once none is under way.
"""

from __future__ import annotations

from itertools import chain

import msgspec

from contextbus.actors import candidate_questions as questions
from contextbus.actors import compacting
from contextbus.actors import compaction_records as records
from contextbus.actors.compacting import Failure, Instance, Job
from contextbus.actors.effects import Cancel, Effects, Send
from contextbus.core.run_state import RunState
from contextbus_protocol.compaction import Compact, CompactionEnded
from contextbus_protocol.events import CompactionPhase
from contextbus_protocol.values import Usage

COMMITTING = ("started", "commit", "failing")
"""Phases of a job in which placement stores."""

replace = msgspec.structs.replace


class CompactionState(msgspec.Struct, frozen=True):
    """What is known of a run: its fold, the compaction under way, and those behind it.

    ``spent`` is what summaries cost by evaluation whose end may not be in the log: the next event says it (C.K.5).
    """

    fold: RunState
    job: Job | None = None
    waiting: tuple[Compact, ...] = ()
    serial: int = 0
    spent: tuple[tuple[str, tuple[Usage, ...]], ...] = ()


Step = tuple[CompactionState, Effects]


def send_failure(state: CompactionState, job: Job, at: Instance, failure: Failure, effects: Effects) -> Step:
    """Have a failure committed, and told then (C.K.4)."""
    job = replace(job, failure=failure)
    if failure.reason == "paused" and state.fold.failures.told:  # the log says it of the first step concerned
        return tell_failure(state, job, effects)
    job, more = records.fail_commit(state.fold, job, at, failure)
    return replace(state, job=job), (*effects, *more)


def tell_failure(state: CompactionState, job: Job, effects: Effects) -> Step:
    """Tell of a failure that the log has."""
    assert job.failure is not None
    return tell(state, job, effects, records.ended_by(job, state.fold, job.failure))


def interrupt(state: CompactionState, job: Job, at: Instance, effects: Effects) -> Step:
    """Have the history evaluated again: it is another than the one that the compaction is of (C.K.9)."""
    return leave(state, job, at, effects, records.ended(job, state.fold, "interrupted"))


def leave(state: CompactionState, job: Job, at: Instance, effects: Effects, ended: CompactionEnded) -> Step:
    """End without a result; what summaries cost goes into the log before anybody is told (C.K.5)."""
    more = record_spent(state.fold, job, at)
    if more:
        job = replace(job, phase="failing", over=ended, failure=compacting.ABANDONED)
        return replace(state, job=job), (*effects, *more)
    return tell(replace(state, fold=RunState(state.fold.run)), job, effects, ended)


def record_spent(fold: RunState, job: Job, at: Instance) -> Effects:
    """Have it committed what summaries cost that came to nothing, if any did; an evaluation ends once (C.O.6)."""
    if not job.begun or not job.usages or job.phase in COMMITTING:
        return ()
    return records.fail_commit(fold, job, at, compacting.ABANDONED)[1]


def give_up(state: CompactionState, job: Job, phase: CompactionPhase, code: str, text: str) -> Step:
    """End without an event: log or store did not do what they were asked for."""
    ended = job.over or records.given_up(job, state.fold, phase, code, text)
    return tell(replace(state, fold=RunState(state.fold.run)), job, (), ended)


def tell(state: CompactionState, job: Job, effects: Effects, ended: CompactionEnded) -> Step:
    """End, and tell whoever asked."""
    return go_on(replace(state, job=job), (*effects, Send(job.compact.head.notify, ended)))


def go_on(state: CompactionState, effects: Effects) -> Step:
    """The compaction under way is over: its timers are dropped, what it spent is kept until an event says it."""
    job = state.job
    if job is None:
        return state, effects
    run = job.compact.run
    effects += (Cancel(run, job.token), Cancel(run, questions.late_token(job)))
    if job.usages:
        state = replace(state, spent=(*state.spent, (job.compact.started.evaluation, job.usages)))
    return replace(state, job=None), effects


def take_spent(state: CompactionState, job: Job) -> tuple[CompactionState, Job]:
    """The job with what earlier ones spent, as far as the log does not say it."""
    lost = (usages for evaluation, usages in state.spent if not records.is_over(state.fold, evaluation))
    return replace(state, spent=()), replace(job, usages=(*job.usages, *chain.from_iterable(lost)))

"""The compaction actor: replaces an older range of a run's history by a summary (C.K, C.L, C.X).

It owns the safe range and the check of the summary, keeps a fold of each run, and writes nothing itself: what is to be
committed goes to placement with the sequence at which it was decided.  One compaction of a run is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from contextbus.actors import append, compacting
from contextbus.actors import candidate_questions as questions
from contextbus.actors import compaction_records as records
from contextbus.actors.compacting import Failure, Instance, Job
from contextbus.actors.effects import Cancel, Effects, Load, Send
from contextbus.core.checkpoints import COUNTED
from contextbus.core.compaction.reduction import Answer, Ask, CannotFit, Reduced
from contextbus.core.estimate import Estimator, make_estimator
from contextbus.core.run import ChainBrokenError, fold_commits
from contextbus.core.run_state import RunState
from contextbus_protocol import subjects
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.commands import CancelCommand
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarised, SummaryFailed
from contextbus_protocol.errors import (
    LONGEST_WORD,
    ConflictError,
    ContextBusError,
    word_of,
)
from contextbus_protocol.events import CompactionPhase
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import MAX_SAFE_INTEGER

LONGEST_QUEUE: Final = 16
CONFLICTS: Final = 5
_TEXTS: Final = ("text", "reasoning")
_COMMITTING: Final = ("started", "commit", "failing")

replace = msgspec.structs.replace


class CompactionState(msgspec.Struct, frozen=True):
    """What is known of a run: its fold, the compaction under way, and those behind it."""

    fold: RunState
    job: Job | None = None
    waiting: tuple[Compact, ...] = ()
    serial: int = 0


Step = tuple[CompactionState, Effects]


class Compaction:
    """The rule.

    Args:
        tenant: whose runs these are.
        inbox: the address at which this instance takes answers.
        tokenizers: the named tokenizers that this process has at hand.
    """

    name: ActorName = "compaction"

    def __init__(self, tenant: str, inbox: str, tokenizers: Mapping[str, Callable[[str], int]] | None = None) -> None:
        self._instance = inbox.rsplit(".", 1)[-1]
        self._tokenizers = dict(tokenizers or {})
        self._at = Instance(tenant, inbox, subjects.command("placement", tenant))

    def initial(self, run: str) -> CompactionState:
        """Nothing is known of the run yet."""
        return CompactionState(RunState(run))

    def is_idle(self, state: CompactionState) -> bool:
        """Whether no compaction is under way."""
        return state.job is None

    def decide(self, state: CompactionState, message: AnyMessage) -> Step:
        """Take one message of a run."""
        match message:
            case Compact():
                return self._take(state, message)
            case CancelCommand(command=command):
                return self._cancel(state, command)
            case Elapsed(token=token):
                return self._elapsed(state, token)
            case Committed():
                return self._committed(state, message)
            case _:
                return self._answer(state, message)

    # -- requests

    def _take(self, state: CompactionState, message: Compact) -> Step:
        job = state.job
        if job is None:
            return self._begin(state, message, ())
        if _is_same(job.compact, message):
            return self._follow(state, job, message)
        known = next((c for c in state.waiting if _is_same(c, message)), None)
        if known is not None:
            return replace(state, waiting=tuple(message if c is known else c for c in state.waiting)), ()
        if len(state.waiting) >= LONGEST_QUEUE:
            busy = records.ended(Job(compact=message, token=""), state.fold, "failed")
            busy = replace(busy, phase="evaluate", reason="error", code="busy", message="too many compactions wait")
            return state, (Send(message.head.notify, busy),)
        return replace(state, waiting=(*state.waiting, message)), ()

    def _follow(self, state: CompactionState, job: Job, message: Compact) -> Step:
        """Whoever asked first may be gone: the newest one is told and asked, and its time counts."""
        head = replace(
            job.compact.head,
            token=message.head.token,
            notify=message.head.notify,
            reply_to=message.head.reply_to,
            reply_as=message.head.reply_as,
            seconds_left=message.head.seconds_left,
        )
        job = replace(job, compact=replace(job.compact, head=head))
        effects = questions.timers(job)
        if questions.is_host_asked(job):
            effects += (questions.ask_again(job, self._at),)
        return replace(state, job=job), effects

    def _begin(self, state: CompactionState, message: Compact, effects: Effects) -> Step:
        token = f"{self._instance}/{message.started.evaluation}/{state.serial}"
        job = Job(compact=message, token=token)
        state = replace(state, job=job, serial=state.serial + 1)
        effects += questions.timers(job)
        if state.fold.sequence < message.head.expected:
            return state, (*effects, _load(state.fold, job, message.head.expected))
        return self._plan(state, job, effects)

    def _cancel(self, state: CompactionState, command: str) -> Step:
        waiting = tuple(c for c in state.waiting if c.head.command != command)
        state = replace(state, waiting=waiting)
        job = state.job
        if job is None or job.compact.head.command != command or job.phase in ("commit", "failing"):
            return state, ()  # what is being committed stays (D.W.5)
        return self._next(state, ())  # no terminal event (C.K.8)

    # -- answers

    def _answer(self, state: CompactionState, message: AnyMessage) -> Step:
        job = state.job
        if job is None:
            return state, ()
        asked = questions.question_token(job)
        match message:
            case Loaded(token=token) if token == job.token and job.phase == "load":
                return self._loaded(state, job, message)
            case Fetched(token=token) if token == job.token and job.phase == "fetch":
                return self._fetched(state, job, message)
            case Summarised(token=token) if token == asked and job.phase == "summary":
                return self._summarised(state, job, message)
            case SummaryFailed(token=token) if token == asked and job.phase == "summary":
                return self._summary_failed(state, job, message)
            case CallbackAnswered(token=token) if token == asked and questions.is_host_asked(job):
                return self._counted(state, job, message)
            case Conflicted(token=token) if token == job.token and job.phase in _COMMITTING:
                return self._conflicted(state, job)
            case Unstored(token=token, code=code, message=text) if token == job.token and job.phase in _COMMITTING:
                return self._give_up(state, job, "persist", code, text)
            case _:
                return state, ()  # late, repeated, or of another compaction

    def _loaded(self, state: CompactionState, job: Job, message: Loaded) -> Step:
        if message.code is not None:
            text = f"the run's log could not be read; {append.LOOK}"
            return self._give_up(state, job, "evaluate", message.code, text)
        try:
            fold = fold_commits(state.fold, message.commits)
        except ChainBrokenError as exc:
            return self._give_up(state, job, "evaluate", exc.code, exc.message)
        return self._plan(replace(state, fold=fold), job, ())

    def _plan(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        if not job.begun and state.fold.sequence != job.compact.head.expected:
            # others went on since the step was evaluated: whoever asked looks at the log and evaluates again
            return self._interrupt(state, job, effects)
        if job.failure is not None and records.is_recorded(state.fold, job, job.failure):
            return self._failed(state, job, effects)  # the acknowledgement was lost behind others
        if job.begun and compacting.is_superseded(state.fold, job):
            return self._interrupt(state, job, effects)  # what it was begun on stands there no more
        if job.failure is not None and job.failure.blames:  # nobody is asked a second time for one failure
            return self._send_failure(state, job, job.failure, effects)
        job = replace(job, failure=None)
        return self._guard(state, job, lambda: self._read(state, job, effects))

    def _read(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        if job.compact.paused and job.compact.started.options.on_failure != "drop":
            failure = Failure(phase="evaluate", reason="paused")
            return self._send_failure(state, job, failure, effects)
        job, more = compacting.plan(state.fold, job)
        effects += more
        if more:
            return replace(state, job=job), effects
        return self._reduce(state, job, effects)

    def _fetched(self, state: CompactionState, job: Job, message: Fetched) -> Step:
        if message.code is not None:
            return self._give_up(state, job, "evaluate", message.code, "the run's messages could not be read")
        found = dict(message.blobs)
        if compacting.unreadable_checkpoint(job, found):
            return self._send_failure(state, job, compacting.LOST_CHECKPOINT, ())
        return self._guard(state, job, lambda: self._take_texts(state, job, found))

    def _take_texts(self, state: CompactionState, job: Job, found: Mapping[str, bytes]) -> Step:
        if compacting.lacks_only_forgotten(job, found):
            job, effects = records.drop_commit(state.fold, job, self._at, found, self._estimator(job))
            return replace(state, job=job), effects
        return self._reduce(state, compacting.take_texts(job, found), ())

    def _guard(self, state: CompactionState, job: Job, go: Callable[[], Step]) -> Step:
        """Go on; what cannot be read or counted fails the reduction, and the history stays as it is."""
        try:
            return go()
        except ContextBusError as exc:
            failure = Failure(phase="compact", reason="error", origin_code=exc.code, code=exc.code, text=exc.message)
            return self._send_failure(state, job, failure, ())

    def _reduce(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        started = job.compact.started
        if job.compact.host_messages is not None:
            return self._keep_history(state, job, effects)
        if started.target_tokens - started.envelope_tokens < 1:
            return self._send_failure(state, job, Failure(phase="compact", reason="request-overhead"), effects)
        return self._drive(state, compacting.reduce(job), effects)

    def _keep_history(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        """Keep what the host gave in place of the history, once it is counted (P.J.8)."""
        job = compacting.take_history(job, self._estimator(job))
        if job.compact.started.options.counts:
            job, more = questions.ask_host(job, self._at)
        else:
            job, more = records.history_commit(state.fold, job, self._at, self._estimator(job))
        return replace(state, job=job), (*effects, *more)

    def _drive(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        """Give the reduction what it asks for until it has to wait, or is over."""
        estimator = self._estimator(job)
        options = job.compact.started.options
        while True:
            match job.asked:
                case Reduced() as outcome:
                    job, more = records.save_commit(state.fold, job, self._at, outcome, estimator)
                    return replace(state, job=job), (*effects, *more)
                case CannotFit() as outcome:
                    if job.begun and outcome.reason not in COUNTED:
                        # the history is another than it was begun on: whether it is to be compacted is asked anew
                        return self._interrupt(state, job, effects)
                    if options.on_failure == "drop" and outcome.end > outcome.start:  # (C.X.5)
                        job = compacting.drop_range(job)
                        continue
                    return self._send_failure(state, job, records.failure_of(job, outcome), effects)
                case Ask():
                    known = compacting.known_answer(job)
                    paused = job.compact.paused or (not job.begun and compacting.is_refused_again(job))
                    if job.dropping or (paused and options.on_failure == "drop"):
                        job = compacting.drop_range(job)
                    elif paused:
                        return self._send_failure(state, job, Failure(phase="evaluate", reason="paused"), effects)
                    elif known is not None:
                        job = compacting.go_on(job, known, estimator)
                    elif job.late:
                        return self._unsummarised(state, job, effects, "timeout")
                    elif job.begun:
                        job, more = questions.ask_summariser(job, self._at)
                        return replace(state, job=job), (*effects, *more)
                    else:
                        job, more = records.begin_commit(state.fold, job, self._at)
                        return replace(state, job=job), (*effects, *more)
                case _ if not options.counts:
                    job = compacting.go_on(job, compacting.count(job, estimator), estimator)
                case _ if job.late:
                    return self._send_failure(state, job, compacting.LATE_COUNT, effects)
                case _:
                    job, more = questions.ask_host(job, self._at)
                    return replace(state, job=job), (*effects, *more)

    def _counted(self, state: CompactionState, job: Job, message: CallbackAnswered) -> Step:
        count = message.count
        if message.code is not None or count is None or not 0 <= count <= MAX_SAFE_INTEGER:
            return self._send_failure(state, job, compacting.count_failure(message), ())
        if job.given is not None:
            job, more = records.history_commit(state.fold, job, self._at, self._estimator(job), count)
            return replace(state, job=job), more
        job = replace(job, host_counts=(*job.host_counts, count))
        return self._guard(
            state, job, lambda: self._drive(state, compacting.go_on(job, count, self._estimator(job)), ())
        )

    def _summarised(self, state: CompactionState, job: Job, message: Summarised) -> Step:
        answer = Answer(
            text="".join(part.text for part in message.parts if part.type == "text"),
            only_text=all(part.type in _TEXTS for part in message.parts),
            finish_reason=message.finish_reason,
            usage=message.usage,
        )
        job = compacting.note_answer(job, answer, message.usage)
        return self._guard(
            state, job, lambda: self._drive(state, compacting.go_on(job, answer, self._estimator(job)), ())
        )

    def _summary_failed(self, state: CompactionState, job: Job, message: SummaryFailed) -> Step:
        code = word_of(message.origin_code) or word_of(message.code) or "error"
        return self._unsummarised(state, compacting.note_usage(job, message.usage), (), code, message.origin_type)

    def _unsummarised(
        self, state: CompactionState, job: Job, effects: Effects, code: str, type_: str | None = None
    ) -> Step:
        """No summary came: the range is dropped where it may be, else the history stays whole."""
        if job.compact.started.options.on_failure == "drop":
            return self._guard(state, job, lambda: self._drive(state, compacting.drop_range(job), effects))
        type_ = None if type_ is None else type_[:LONGEST_WORD]
        failure = Failure(phase="compact", reason="error", blames=True, origin_code=code, origin_type=type_)
        return self._send_failure(state, job, failure, effects)

    def _elapsed(self, state: CompactionState, token: str) -> Step:
        job = state.job
        if job is None:
            return state, ()
        if token == questions.late_token(job):
            job = replace(job, late=True)
            if job.phase == "summary":
                return self._unsummarised(state, job, (), "timeout")
            if questions.is_host_asked(job):
                return self._send_failure(state, job, compacting.LATE_COUNT, ())
            return replace(state, job=job), ()  # what is read or stored at present still comes
        if token == job.token:  # who asked has stopped waiting; what is being committed is found in the log
            return self._next(replace(state, fold=RunState(state.fold.run)), ())
        return state, ()

    # -- after a commit

    def _committed(self, state: CompactionState, message: Committed) -> Step:
        if message.part != "run":
            return state, ()
        try:
            fold = fold_commits(state.fold, ((message.sequence, message.digest, message.commit),))
            state = replace(state, fold=fold)
        except ChainBrokenError:
            state = replace(state, fold=RunState(state.fold.run))
        job = state.job
        if job is not None and job.token != message.token and not job.begun and job.phase in ("fetch", "count"):
            return self._interrupt(state, job, ())  # an earlier compaction's commit moved what this one was planned on
        if job is None or job.token != message.token:
            return state, ()
        if job.phase == "started":
            job = replace(job, begun=True)
            if state.fold.sequence != message.sequence:  # commits in between are missing: look first
                return replace(state, job=replace(job, phase="load")), (_load(state.fold, job, message.sequence),)
            return self._guard(state, job, lambda: self._drive(state, job, ()))
        if job.phase == "commit":
            return self._tell(state, job, (), records.ended(job, state.fold, "completed"))
        if job.phase == "failing":
            return self._failed(state, job, ())
        return state, ()

    def _conflicted(self, state: CompactionState, job: Job) -> Step:
        """Another commit came first (C.K.9): what was decided is checked again against the new history."""
        if not job.begun:
            return self._interrupt(state, job, ())
        if job.conflicts + 1 > CONFLICTS:
            text = "others changed the run faster than its compaction could be stored"
            return self._give_up(state, job, "persist", ConflictError.code, text)
        job = replace(job, phase="load", conflicts=job.conflicts + 1)
        return replace(state, job=job), (_load(state.fold, job, state.fold.sequence + 1),)

    def _send_failure(self, state: CompactionState, job: Job, failure: Failure, effects: Effects) -> Step:
        job = replace(job, failure=failure)
        if failure.reason == "paused" and state.fold.failures.told:  # the log says it of the first step concerned
            return self._failed(state, job, effects)
        job, more = records.fail_commit(state.fold, job, self._at, failure)
        return replace(state, job=job), (*effects, *more)

    def _failed(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        assert job.failure is not None
        return self._tell(state, job, effects, records.ended_by(job, state.fold, job.failure))

    def _interrupt(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        ended = records.ended(job, state.fold, "interrupted")
        return self._tell(replace(state, fold=RunState(state.fold.run)), job, effects, ended)

    def _give_up(self, state: CompactionState, job: Job, phase: CompactionPhase, code: str, text: str) -> Step:
        """End without an event: log or store did not do what they were asked for."""
        ended = records.ended(job, state.fold, "failed")
        ended = replace(ended, phase=phase, reason="error", code=code, message=text)
        return self._tell(replace(state, fold=RunState(state.fold.run)), job, (), ended)

    def _tell(self, state: CompactionState, job: Job, effects: Effects, ended: CompactionEnded) -> Step:
        return self._next(state, (*effects, Send(job.compact.head.notify, ended)))

    def _next(self, state: CompactionState, effects: Effects) -> Step:
        """The compaction under way is over: drop its timers, take the next."""
        job = state.job
        if job is not None:
            run = job.compact.run
            effects += (Cancel(run, job.token), Cancel(run, questions.late_token(job)))
        state = replace(state, job=None)
        if not state.waiting:
            return state, effects
        message, *rest = state.waiting
        return self._begin(replace(state, waiting=tuple(rest)), message, effects)

    def _estimator(self, job: Job) -> Estimator:
        return make_estimator(job.compact.estimator, self._tokenizers)


def _is_same(known: Compact, message: Compact) -> bool:
    return (known.head.command, known.started.evaluation) == (message.head.command, message.started.evaluation)


def _load(fold: RunState, job: Job, at_least: int) -> Load:
    return Load(fold.run, "run", fold.sequence, job.token, at_least)

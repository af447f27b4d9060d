"""The compaction actor: replaces an older range of a run's history by a summary (C.K, C.L, C.X).

It owns the safe range and the check of the summary, keeps a fold of each run, and writes nothing itself: what is to be
committed goes to placement with the sequence at which it was decided.  One compaction of a run is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from contextbus.actors import append, compacting, endings
from contextbus.actors import candidate_questions as questions
from contextbus.actors import compaction_records as records
from contextbus.actors.compacting import Failure, Instance, Job
from contextbus.actors.effects import Effects, Load, Send
from contextbus.actors.endings import COMMITTING, CompactionState, Step
from contextbus.core.checkpoints import COUNTED
from contextbus.core.compaction.reduction import Ask, CannotFit, Reduced
from contextbus.core.estimate import Estimator, make_estimator
from contextbus.core.run import ChainBrokenError, fold_commits
from contextbus.core.run_state import RunState
from contextbus_protocol import subjects
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.commands import CancelCommand
from contextbus_protocol.compaction import Compact, Summarised, SummaryFailed
from contextbus_protocol.errors import (
    LONGEST_WORD,
    ConflictError,
    ContextBusError,
    word_of,
)
from contextbus_protocol.events import CompactionCompleted, CompactionFailed
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import MAX_SAFE_INTEGER

LONGEST_QUEUE: Final = 16
CONFLICTS: Final = 5

replace = msgspec.structs.replace


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
        """Take one message of a run; where a compaction is over by it, the next one begins."""
        state, effects = self._decide(state, message)
        while state.job is None and state.waiting:
            following, *rest = state.waiting
            state, effects = self._begin(replace(state, waiting=tuple(rest)), following, effects)
        return state, effects

    def _decide(self, state: CompactionState, message: AnyMessage) -> Step:
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
        if compacting.is_same(job.compact, message):
            return self._follow(state, compacting.follow(job, message))
        known = next((c for c in state.waiting if compacting.is_same(c, message)), None)
        if known is not None:
            return replace(state, waiting=tuple(message if c is known else c for c in state.waiting)), ()
        if len(state.waiting) >= LONGEST_QUEUE:
            return state, (Send(message.head.notify, records.refused(message, state.fold)),)
        return replace(state, waiting=(*state.waiting, message)), ()

    def _follow(self, state: CompactionState, job: Job) -> Step:
        """The newest one that asks is told and asked from now on."""
        effects = questions.timers(job)
        if questions.is_host_asked(job):
            effects += (questions.ask_again(job, self._at),)
        return replace(state, job=job), effects

    def _begin(self, state: CompactionState, message: Compact, effects: Effects) -> Step:
        token = f"{self._instance}/{message.started.evaluation}/{state.serial}"
        started = replace(message.started, taken_by=self._instance)
        job = Job(compact=replace(message, started=started), token=token)
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
        return endings.go_on(state, ())  # no terminal event (C.K.8)

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
            case Conflicted(token=token) if token == job.token and job.phase in COMMITTING:
                return self._conflicted(state, job)
            case Unstored(token=token, code=code, message=text) if token == job.token and job.phase in COMMITTING:
                return endings.give_up(state, job, "persist", code, text)
            case _:
                return state, ()  # late, repeated, or of another compaction

    def _loaded(self, state: CompactionState, job: Job, message: Loaded) -> Step:
        if message.code is not None:
            text = f"the run's log could not be read; {append.LOOK}"
            return endings.give_up(state, job, "evaluate", message.code, text)
        try:
            fold = fold_commits(state.fold, message.commits)
        except ChainBrokenError as exc:
            return endings.give_up(state, job, "evaluate", exc.code, exc.message)
        return self._plan(replace(state, fold=fold), job, ())

    def _plan(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        if not job.begun and state.fold.sequence != job.compact.head.expected:
            if records.is_taken(state.fold, job):
                return endings.go_on(state, effects)
            # others went on since the step was evaluated: whoever asked looks at the log and evaluates again
            return endings.interrupt(state, job, self._at, effects)
        state, job = endings.take_spent(state, job)
        if job.begun and records.is_over(state.fold, job.compact.started.evaluation):
            job = replace(job, usages=())
        if job.over is not None:
            return endings.leave(state, job, self._at, effects, job.over)
        if job.failure is not None and records.is_recorded(state.fold, job, job.failure):
            return endings.tell_failure(state, job, effects)  # the acknowledgement was lost behind others
        if job.begun and compacting.is_superseded(state.fold, job):
            return endings.interrupt(state, job, self._at, effects)  # what it was begun on stands there no more
        if job.failure is not None and job.failure.blames:  # nobody is asked a second time for one failure
            return endings.send_failure(state, job, self._at, job.failure, effects)
        job = replace(job, failure=None)
        return self._guard(state, job, lambda: self._read(state, job, effects))

    def _read(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        if job.compact.paused and job.compact.started.options.on_failure != "drop":
            return endings.send_failure(state, job, self._at, compacting.PAUSED, effects)
        job, more = compacting.plan(state.fold, job)
        effects += more
        if more:
            return replace(state, job=job), effects
        return self._reduce(state, job, effects)

    def _fetched(self, state: CompactionState, job: Job, message: Fetched) -> Step:
        if message.code is not None:
            return endings.give_up(state, job, "evaluate", message.code, "the run's messages could not be read")
        found = dict(message.blobs)
        if compacting.unreadable_checkpoint(job, found):
            return endings.send_failure(state, job, self._at, compacting.LOST_CHECKPOINT, ())
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
            return endings.send_failure(state, job, self._at, failure, ())

    def _reduce(self, state: CompactionState, job: Job, effects: Effects) -> Step:
        started = job.compact.started
        if job.compact.host_messages is not None:
            return self._keep_history(state, job, effects)
        if started.target_tokens - started.envelope_tokens < 1:
            return endings.send_failure(
                state, job, self._at, Failure(phase="compact", reason="request-overhead"), effects
            )
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
            job = compacting.note_archive(job)
            match job.asked:
                case Reduced() as outcome:
                    job, more = records.save_commit(state.fold, job, self._at, outcome, estimator)
                    return replace(state, job=job), (*effects, *more)
                case CannotFit() as outcome:
                    if job.begun and (outcome.reason not in COUNTED or compacting.kept_to_room(job, outcome)):
                        # the history is another than it was begun on: whether it is to be compacted is asked anew
                        return endings.interrupt(state, job, self._at, effects)
                    if options.on_failure == "drop" and outcome.end > outcome.start:  # (C.X.5)
                        job = compacting.drop_range(job)
                        continue
                    return endings.send_failure(state, job, self._at, records.failure_of(job, outcome), effects)
                case Ask():
                    known = compacting.known_answer(job)
                    paused = job.compact.paused or (not job.begun and compacting.is_refused_again(job))
                    if job.dropping or (paused and options.on_failure == "drop"):
                        job = compacting.drop_range(job)
                    elif paused:
                        return endings.send_failure(
                            state, job, self._at, Failure(phase="evaluate", reason="paused"), effects
                        )
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
                    return endings.send_failure(state, job, self._at, compacting.LATE_COUNT, effects)
                case _:
                    job, more = questions.ask_host(job, self._at)
                    return replace(state, job=job), (*effects, *more)

    def _counted(self, state: CompactionState, job: Job, message: CallbackAnswered) -> Step:
        count = message.count
        if message.code is not None or count is None or not 0 <= count <= MAX_SAFE_INTEGER:
            return endings.send_failure(state, job, self._at, compacting.count_failure(message), ())
        if job.given is not None:
            job, more = records.history_commit(state.fold, job, self._at, self._estimator(job), count)
            return replace(state, job=job), more
        job = replace(job, host_counts=(*job.host_counts, count))
        return self._guard(
            state, job, lambda: self._drive(state, compacting.go_on(job, count, self._estimator(job)), ())
        )

    def _summarised(self, state: CompactionState, job: Job, message: Summarised) -> Step:
        answer = compacting.answer_of(message)
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
        return endings.send_failure(state, job, self._at, failure, effects)

    def _elapsed(self, state: CompactionState, token: str) -> Step:
        job = state.job
        if job is None:
            return state, ()
        if token == questions.late_token(job):
            job = replace(job, late=True)
            if job.phase == "summary":
                return self._unsummarised(state, job, (), "timeout")
            if questions.is_host_asked(job):
                return endings.send_failure(state, job, self._at, compacting.LATE_COUNT, ())
            return replace(state, job=job), ()  # what is read or stored at present still comes
        if token == job.token:  # who asked has stopped waiting; what is being committed is found in the log
            spent = endings.record_spent(state.fold, job, self._at)
            return endings.go_on(replace(state, fold=RunState(state.fold.run)), spent)
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
            return endings.interrupt(state, job, self._at, ())  # an earlier one moved what this is planned on
        if job is None or job.token != message.token:
            return state, ()
        if any(isinstance(e, CompactionCompleted | CompactionFailed) and e.usage for e in message.commit.events):
            job = replace(job, usages=())
        if job.phase == "started":
            job = replace(job, begun=True)
            if state.fold.sequence != message.sequence:  # commits in between are missing: look first
                return replace(state, job=replace(job, phase="load")), (_load(state.fold, job, message.sequence),)
            return self._guard(state, job, lambda: self._drive(state, job, ()))
        if job.phase == "commit":
            return endings.tell(state, job, (), records.ended(job, state.fold, "completed"))
        if job.phase == "failing" and job.over is not None:
            return endings.tell(state, job, (), replace(job.over, sequence=message.sequence))
        if job.phase == "failing":
            return endings.tell_failure(state, job, ())
        return state, ()

    def _conflicted(self, state: CompactionState, job: Job) -> Step:
        """Another commit came first (C.K.9): what was decided is checked again against the new history."""
        if job.conflicts + 1 > CONFLICTS and job.over is None:
            text = "others changed the run faster than its compaction could be stored"
            job = replace(job, over=records.given_up(job, state.fold, "persist", ConflictError.code, text))
        if job.over is not None and (job.conflicts + 1 > 2 * CONFLICTS or not job.usages):
            return endings.tell(replace(state, fold=RunState(state.fold.run)), job, (), job.over)
        job = replace(job, phase="load", conflicts=job.conflicts + 1)
        return replace(state, job=job), (_load(state.fold, job, state.fold.sequence + 1),)

    def _estimator(self, job: Job) -> Estimator:
        return make_estimator(job.compact.estimator, self._tokenizers)


def _load(fold: RunState, job: Job, at_least: int) -> Load:
    return Load(fold.run, "run", fold.sequence, job.token, at_least)

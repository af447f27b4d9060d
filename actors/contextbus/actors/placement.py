"""The placement actor: renders a decided step, stores its package, and commits; the only one that commits to a run.

It keeps no fold.  After the commit it tells the selection instance, then answers the client, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from contextbus import __version__
from contextbus.actors.effects import Effects, Send, Store
from contextbus.actors.step_event import compile_event
from contextbus.core.estimate import make_estimator
from contextbus.core.placement import place
from contextbus.core.prepared import prepared_options
from contextbus.core.step import POLICY
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import ErrorReply, Recorded, StepCompiled
from contextbus_protocol.commit_requests import CommitHead, HistoryFact, Place, Record
from contextbus_protocol.errors import ContextBusError, InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    MessagesAppended,
    StepFailed,
)
from contextbus_protocol.events import (
    StepCompiled as StepCompiledEvent,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Unstored
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import StepOptions

replace = msgspec.structs.replace


class Job(msgspec.Struct, frozen=True):
    """One commit under way."""

    head: CommitHead
    package: str = ""
    error: ErrorReply | None = None
    count: int = 0
    chain: str = ""
    blocks: str = ""
    checkpoint: str = ""
    stale_thinking: tuple[tuple[int, int], ...] = ()
    options: StepOptions | None = None
    prepared: tuple[ChatMessage, ...] | None = None
    tools: str | None = None
    commit: Commit | None = None


class PlacementState(msgspec.Struct, frozen=True):
    """The commits under way for one run, by token."""

    jobs: tuple[Job, ...] = ()


Step = tuple[PlacementState, Effects]


class Placement:
    """The rule.

    Args:
        tokenizers: the named tokenizers that this process has at hand.
        durability: what an acknowledgement rests on; it is named in every answer.
    """

    name: ActorName = "placement"

    def __init__(
        self,
        tokenizers: Mapping[str, Callable[[str], int]] | None = None,
        durability: str = "",
    ) -> None:
        self._tokenizers = dict(tokenizers or {})
        self._durability = durability

    def initial(self, run: str) -> PlacementState:
        """Nothing is under way."""
        del run
        return PlacementState()

    def is_idle(self, state: PlacementState) -> bool:
        """Whether no commit is under way."""
        return not state.jobs

    def decide(self, state: PlacementState, message: AnyMessage) -> Step:
        """Take one message of a run."""
        match message:
            case Place() | Record():
                return self._store(state, message)
            case Committed():
                return self._committed(state, message)
            case Conflicted() | Unstored():
                job = _find(state, message.token)
                if job is None:
                    return state, ()
                return _drop(state, job), (Send(job.head.notify, message),)
            case _:
                return state, ()

    def _store(self, state: PlacementState, message: Place | Record) -> Step:
        head = message.head
        if _find(state, head.token) is not None:
            return state, ()  # the same request again: its commit is under way
        try:
            if isinstance(message, Place):
                job, stored = self._render(message)
            else:
                job, stored = _plain(message)
        except ContextBusError as exc:
            refused = Unstored(run=message.run, token=head.token, part="run", code=exc.code, message=exc.message)
            return state, (Send(head.notify, refused),)
        assert job.commit is not None
        store = Store(job.commit, head.expected, head.token, stored)
        return PlacementState((*state.jobs, job)), (store,)

    def _render(self, message: Place) -> tuple[Job, tuple[tuple[str, bytes], ...]]:
        memory = message.working_memory
        snapshot = None if memory is None else memory.snapshot
        package = place(message.decision, message.results, snapshot, message.query, message.restored, message.prompt)
        estimator = make_estimator(message.options.estimator, self._tokenizers)
        events, stored = _history_events(message.history)
        if message.checkpoint_restored is not None:
            events += (message.checkpoint_restored,)
        step, text, outputs = compile_event(message, package, estimator)
        job = Job(
            head=message.head,
            package=text,
            commit=_commit(message.head, (*events, step)),
            blocks=message.blocks,
            checkpoint=message.checkpoint,
            stale_thinking=message.stale_thinking,
            options=None if message.prepared_fact is None else prepared_options(message.options, message.prepared_fact),
            prepared=message.prepared,
            tools=message.tools,
        )
        return job, stored + outputs

    def _committed(self, state: PlacementState, message: Committed) -> Step:
        job = _find(state, message.token)
        if job is None:
            return state, ()
        if message.commit != job.commit:
            # another attempt's commit stands there: selection reads the log and answers with what it says
            conflicted = Conflicted(run=message.run, token=message.token, part=message.part)
            return _drop(state, job), (Send(job.head.notify, conflicted),)
        told = Send(job.head.notify, message)
        if job.head.reply_to == job.head.notify:  # compaction commits for itself: no client waits for this commit
            return _drop(state, job), (told,)
        return _drop(state, job), (told, self._reply(job, message))

    def _reply(self, job: Job, message: Committed) -> Send:
        head = job.head
        step = _step_of(message.commit)
        failed = next((e for e in message.commit.events if isinstance(e, StepFailed)), None)
        if failed is not None and job.error is not None:
            return Send(head.reply_to, job.error, head.reply_as)
        if step is not None:
            compiled = StepCompiled(
                run=head.run,
                command=head.command,
                step=step.step,
                sequence=message.sequence,
                commit=message.digest,
                count=step.count,
                chain=step.chain,
                reference=step.package,
                package=job.package,
                durability=self._durability,
                blocks=job.blocks,
                checkpoint=job.checkpoint,
                stale_thinking=job.stale_thinking,
                warnings=step.warnings,
                options=job.options,
                prepared=job.prepared,
                tools=job.tools,
            )
            return Send(head.reply_to, compiled, head.reply_as)
        recorded = Recorded(
            run=head.run,
            command=head.command,
            sequence=message.sequence,
            commit=message.digest,
            count=job.count,
            chain=job.chain,
            durability=self._durability,
        )
        return Send(head.reply_to, recorded, head.reply_as)


def _plain(message: Record) -> tuple[Job, tuple[tuple[str, bytes], ...]]:
    head = message.head
    events: tuple[AnyEvent, ...] = ()
    stored: tuple[tuple[str, bytes], ...] = ()
    if message.history is not None:
        events, stored = _history_events(message.history)
    events += message.events
    stored += message.blobs
    error: ErrorReply | None = None
    if message.failed is not None:
        events += (message.failed,)
        error = ErrorReply(
            run=head.run,
            command=head.command,
            code=message.failed.code,
            message=message.error_message,
        )
        if message.error is not None:
            error = replace(error, data=message.error)
    if not events:
        raise InvalidTypeError("a commit needs at least one event")
    job = Job(
        head=head,
        error=error,
        count=message.count,
        chain=message.chain,
        commit=_commit(head, events),
    )
    return job, stored


def _history_events(
    history: HistoryFact,
) -> tuple[tuple[AnyEvent, ...], tuple[tuple[str, bytes], ...]]:
    """What a commit says of its messages, in order, and the blob that holds them."""
    events: list[AnyEvent] = []
    stored: tuple[tuple[str, bytes], ...] = ()
    if history.started is not None:
        events.append(history.started)
    if history.replaced is not None:
        events.append(history.replaced)
    if history.facts:
        data = blobs.encode_input(history.messages)
        reference = digests.digest_bytes(data)
        stored = ((reference, data),)
        events.append(
            MessagesAppended(
                start=history.start,
                messages=history.facts,
                chain=history.chain,
                inputs=reference,
            )
        )
    return tuple(events), stored


def _commit(head: CommitHead, events: tuple[AnyEvent, ...]) -> Commit:
    return Commit(
        version=codec.COMMIT_VERSION,
        tenant=head.tenant,
        run=head.run,
        part="run",
        command=head.command,
        command_digest=head.command_digest,
        attempt=head.attempt,
        engine=__version__,
        policy=POLICY,
        previous=head.previous,
        at=head.at,
        events=events,
    )


def _step_of(commit: Commit) -> StepCompiledEvent | None:
    return next((e for e in commit.events if isinstance(e, StepCompiledEvent)), None)


def _find(state: PlacementState, token: str) -> Job | None:
    return next((j for j in state.jobs if j.head.token == token), None)


def _drop(state: PlacementState, job: Job) -> PlacementState:
    return PlacementState(tuple(j for j in state.jobs if j.head.token != job.head.token))

"""What tests of rules are made of: commands, a log in a list, and actors driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar

import msgspec

from contextbus.actors.effects import AnyEffect, Cancel, Effects, Fetch, Load, Rule, Scatter, Send, Store, Timer
from contextbus.actors.flight import SelectionState
from contextbus.actors.placement import Placement, PlacementState
from contextbus.actors.selection import Selection
from contextbus.core.handle import RunHandle
from contextbus.core.run import fold_commits
from contextbus.core.run_state import RunState
from contextbus_protocol import codec, digests, subjects
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.commands import (
    AppendMessages,
    CompileStep,
    ErrorReply,
    NewMessages,
    RedactPackages,
    ReportStep,
    RequestRefresh,
)
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.events import AnyEvent, Commit, StepCompiled, StepFailed, UnknownEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Elapsed, Fetched, Loaded
from contextbus_protocol.questions import AskItems, ItemsOffered, Offered, Query
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import Candidate, Model, Scope, SourceSpec, StepOptions

TENANT = "t"
RUN = "run-1"
INBOX = subjects.inbox(TENANT, "me")
CLIENT = subjects.inbox(TENANT, "client")
SCOPE = Scope(user_id="ada")
MODEL = Model("anthropic", "claude-opus-4-6", 20_000, 2_000)
DOCS = SourceSpec("docs", "rag")
NOTES = SourceSpec("memory", "memory")
TICKETS = SourceSpec("tickets", "rag", required=True)

M = TypeVar("M")


class Head(TypedDict):
    """The fields that every command has."""

    run: str
    tenant: str
    command: str
    attempt: int
    reply_to: str
    seconds_left: float
    now: int
    seen: int
    seen_memory: int


def head(
    command: str = "c1",
    attempt: int = 1,
    *,
    seconds: float = 10.0,
    seen: int = 0,
    seen_memory: int = 0,
    to: str = CLIENT,
) -> Head:
    """The head of a command."""
    return Head(
        run=RUN,
        tenant=TENANT,
        command=command,
        attempt=attempt,
        reply_to=to,
        seconds_left=seconds,
        now=1_750_000_000_000,
        seen=seen,
        seen_memory=seen_memory,
    )


def options(*sources: SourceSpec, **changes: Any) -> StepOptions:
    """Options of a step over some sources."""
    return msgspec.structs.replace(StepOptions(scope=SCOPE, model=MODEL, sources=sources), **changes)


def new_messages(*messages: ChatMessage, after: RunState | None = None) -> NewMessages:
    """Messages behind those that a run has."""
    handle = RunHandle()
    if after is not None and after.history.count:
        handle = msgspec.structs.replace(
            handle,
            history=after.history,
            base_count=after.history.count,
            base_chain=after.history.chain,
            kept=after.history.count,
        )
    return handle.append(messages).new_messages()


def step(
    text: str = "How do we deploy?",
    *sources: SourceSpec,
    after: RunState | None = None,
    add: bool = True,
    number: int | None = None,
    refresh: bool = False,
    options_: StepOptions | None = None,
    **heads: Any,
) -> CompileStep:
    """A step with one more user message, or with none."""
    return CompileStep(
        **head(**heads),
        history=new_messages(*((user(text),) if add else ()), after=after),
        user_text=text,
        options=options_ or options(*sources),
        refresh=refresh,
        step=number,
    )


def report(number: int, status: Any = "succeeded", *, history: NewMessages | None = None, **heads: Any) -> ReportStep:
    """A report of a step."""
    return ReportStep(**head(**heads), step=number, status=status, history=history)


def more(*texts: str, after: RunState | None = None, scope: Scope = SCOPE, **heads: Any) -> AppendMessages:
    """Messages without a step."""
    return AppendMessages(**head(**heads), scope=scope, history=new_messages(*map(user, texts), after=after))


def ask_refresh(**heads: Any) -> RequestRefresh:
    """A request for a retrieval at the next step."""
    return RequestRefresh(**head(**heads))


def candidate(number: int = 1, words: int = 10, **changes: Any) -> Candidate:
    """A record that a source offers."""
    text = f"record {number} " + "word " * words
    made = Candidate(record_id=f"r{number}", text=text, score=1.0 / number, digest=digests.digest_text(text))
    return msgspec.structs.replace(made, **changes)


def offer(query: Query, *candidates: Candidate, source: str | None = None) -> Offered:
    """The answer to a query."""
    return Offered(run=RUN, token=query.token, source=source or query.source, kind="rag", candidates=candidates)


def nothing_in_memory(effects: Effects) -> ItemsOffered:
    """The answer of a working memory that was never created."""
    sent = [e.message for e in effects if isinstance(e, Send)]
    return ItemsOffered(run=RUN, token=only(sent, AskItems).token)


def only(values: Sequence[object], kind: type[M]) -> M:
    """The one value of a kind."""
    found = [v for v in values if isinstance(v, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {values}"
    return found[0]


def sent(effects: Effects, kind: type[M], to: str | None = None) -> M:
    """The one message of a kind that was sent."""
    return only([e.message for e in effects if isinstance(e, Send) and to in {None, e.to}], kind)


def queries(effects: Effects) -> tuple[Query, ...]:
    """All queries that were sent."""
    return tuple(q for e in effects if isinstance(e, Scatter) for q in e.queries if isinstance(q, Query))


def refusal(effects: Effects, to: str = CLIENT) -> str:
    """The code that a client got."""
    return sent(effects, ErrorReply, to).code


class Log:
    """One part of a run's log."""

    def __init__(self, part: Part = "run") -> None:
        self.part: Part = part
        self.commits: list[tuple[int, str, Commit]] = []
        self.blobs: dict[str, bytes] = {}

    @property
    def last(self) -> tuple[int, str]:
        """Sequence and digest of the last commit."""
        return self.commits[-1][:2] if self.commits else (0, "")

    @property
    def fold(self) -> RunState:
        """The run as the log says it."""
        return fold_commits(RunState(RUN), self.commits)

    def store(self, store: Store) -> Committed:
        """Carry out a store whose expectation holds."""
        sequence, digest = self.last
        assert (store.expected, store.commit.previous) == (sequence, digest)
        self.blobs |= dict(store.blobs)
        return self.write(store.commit, store.token)

    def write(self, commit: Commit, token: str = "") -> Committed:
        """Append a commit; it comes back as it is read."""
        data = codec.encode_commit(commit)
        self.commits.append((self.last[0] + 3, digests.digest_bytes(data), codec.decode_commit(data)))
        sequence, digest, stored = self.commits[-1]
        return Committed(run=RUN, token=token, part=self.part, sequence=sequence, digest=digest, commit=stored)

    def add(self, *events: AnyEvent | UnknownEvent, command: str = "other", **changes: Any) -> Committed:
        """Append events as another client's command."""
        commit = Commit(
            version=1,
            tenant=TENANT,
            run=RUN,
            part=self.part,
            command=command,
            command_digest="sha256:of-" + command,
            attempt=1,
            engine="test",
            policy=1,
            previous=self.last[1],
            at=0,
            events=events,
        )
        return self.write(msgspec.structs.replace(commit, **changes))

    def load(self, load: Load) -> Loaded:
        """Answer a load."""
        commits = tuple(c for c in self.commits if c[0] > load.after)
        return Loaded(run=RUN, token=load.token, part=self.part, after=load.after, commits=commits)


class Actor:
    """A rule and its state of one run."""

    def __init__(self, rule: Rule[Any]) -> None:
        self.rule = rule
        self.state: Any = rule.initial(RUN)
        self.timers: dict[str, float] = {}

    def tell(self, *messages: AnyMessage) -> Effects:
        """Hand it messages; the effects of all of them."""
        effects: list[AnyEffect] = []
        for message in messages:
            if isinstance(message, Elapsed):
                self.timers.pop(message.token, None)
            self.state, some = self.rule.decide(self.state, message)
            effects += some
            for effect in some:
                if isinstance(effect, Timer):
                    self.timers[effect.token] = effect.seconds
                elif isinstance(effect, Cancel):
                    self.timers.pop(effect.token, None)
        return tuple(effects)

    @property
    def idle(self) -> bool:
        """Whether the state may be dropped; then no timer runs."""
        idle = self.rule.is_idle(self.state)
        assert not (idle and self.timers), f"idle, and timers run: {self.timers}"
        return idle


class Bench:
    """A selection and a placement over one log, driven by hand."""

    def __init__(self, log: Log | None = None, **arguments: Any) -> None:
        self.log = log or Log()
        self.selection = Actor(Selection(TENANT, INBOX, **arguments))
        self.placement = Actor(Placement(**arguments))

    @property
    def state(self) -> SelectionState:
        """Selection's state."""
        state: SelectionState = self.selection.state
        return state

    @property
    def jobs(self) -> PlacementState:
        """Placement's state."""
        state: PlacementState = self.placement.state
        return state

    def tell(self, *messages: AnyMessage) -> Effects:
        """Tell selection."""
        return self.selection.tell(*messages)

    def open(self, command: CompileStep) -> Effects:
        """Tell selection of a step and give it log and working memory."""
        effects = self.tell(command)
        for load in [e for e in effects if isinstance(e, Load)]:
            effects += self.tell(self.log.load(load))
        return effects + self.tell(nothing_in_memory(effects))

    def begin(self, command: AppendMessages | ReportStep | RequestRefresh | RedactPackages) -> Effects:
        """Tell selection of another command and give it the log."""
        effects = self.tell(command)
        for load in [e for e in effects if isinstance(e, Load)]:
            effects += self.tell(self.log.load(load))
        return effects

    def read(self, effects: Effects) -> Effects:
        """Answer what selection wants to read of log and store."""
        answers: list[AnyMessage] = [self.log.load(e) for e in effects if isinstance(e, Load)]
        for fetch in [e for e in effects if isinstance(e, Fetch)]:
            found = tuple((d, self.log.blobs[d]) for d in fetch.digests if d in self.log.blobs)
            answers.append(Fetched(run=RUN, token=fetch.token, blobs=found))
        return self.tell(*answers)

    def place(self, effects: Effects) -> Effects:
        """Hand placement what selection sent it."""
        asked = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Place | Record)]
        return self.placement.tell(*asked)

    def commit(self, effects: Effects) -> Effects:
        """Have placement commit what selection sent it and tell both; the effects of both."""
        stored = self.log.store(only(self.place(effects), Store))
        answers = self.placement.tell(stored)
        return answers + self.tell(sent(answers, Committed))

    def compile(self, command: CompileStep, *candidates: Candidate) -> StepCompiled | StepFailed:
        """Take a step to its commit, every source offering the same candidates."""
        effects = self.open(command)
        asked = queries(effects)
        if asked:
            effects = self.tell(*(offer(q, *candidates) for q in asked))
        self.commit(effects)
        events = self.log.commits[-1][2].events
        return next(e for e in events if isinstance(e, StepCompiled | StepFailed))

    def record(self, command: AppendMessages | ReportStep | RequestRefresh | RedactPackages) -> Effects:
        """Take another command to its commit."""
        return self.commit(self.begin(command))

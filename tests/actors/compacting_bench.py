"""A selection, a placement and a compaction over one log, driven effect by effect; summariser and host are scripted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from tests.actors.bench import CLIENT, INBOX, RUN, TENANT, Actor, Log, more, new_messages, options, step

from contextbus.actors.compaction import Compaction
from contextbus.actors.effects import AnyEffect, Fetch, Load, Scatter, Send, Store
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import Verdict, verify_run
from contextbus_protocol import blobs, digests, subjects
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.commands import AppendMessages, CompileStep, ErrorReply, Recorded, StepCompiled
from contextbus_protocol.compaction import CompactionEnded, Summarise, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.events import AnyEvent, MessageFact, MessagesAppended, UnknownEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import AskItems, ItemsOffered, Offered, Query
from contextbus_protocol.values import CompactionOptions, RetentionPolicy, StepOptions, Trigger

COMPACTING = subjects.inbox(TENANT, "compacting")
TO_COMPACTION = subjects.command("compaction", TENANT)
ALWAYS = Trigger(kind="messages-exceed", limit=4)
replace = msgspec.structs.replace


def compacting(**changes: Any) -> CompactionOptions:
    """Options that compact whatever has more than four messages."""
    made = CompactionOptions(triggers=(ALWAYS,), target_tokens=2_000, keep=RetentionPolicy(keep_last_messages=2))
    return replace(made, **changes)


def long(number: int, role: str = "user") -> ChatMessage:
    """A message that is worth a summary."""
    text = f"Note {number}: ticket {4000 + number} " + "word " * 30
    return user(text) if role == "user" else assistant(text)


def talk(count: int, first: int = 0) -> tuple[ChatMessage, ...]:
    """A conversation: user and assistant take turns."""
    return tuple(long(n, "user" if n % 2 == 0 else "assistant") for n in range(first, first + count))


class Trio:
    """The three actors of a run.

    ``summary`` is what the summariser writes: a text, the code with which it fails, an answer, or None for silence.
    ``counts`` and ``matches`` are what the host answers, None for silence.  ``at`` is called with each effect before it
    is carried out; when it gives True the effect is put into ``kept`` instead.
    """

    def __init__(self, log: Log | None = None) -> None:
        self.log = log or Log()
        self.selection = Actor(Selection(TENANT, INBOX))
        self.placement = Actor(Placement())
        self.compaction = Actor(Compaction(TENANT, COMPACTING))
        self.queue: deque[tuple[str, AnyEffect]] = deque()
        self.kept: list[tuple[str, AnyEffect]] = []
        self.at: Callable[[str, AnyEffect], bool | None] | None = None
        self.summary: str | Summarised | SummaryFailed | None = "Short."
        self.count: Callable[[AskCallback], CallbackAnswered | None] = _count
        self.asked: list[Summarise] = []
        self.questions: list[AskCallback] = []
        self.ended: list[CompactionEnded] = []
        self.answers: list[Any] = []  # of the kinds that a client gets
        self.store: Callable[[Store], AnyMessage | None] | None = None

    # -- what tests say

    def tell(self, *messages: AnyMessage, to: str = "selection") -> list[Any]:
        """Hand messages to an actor and go on until nothing is left to do; what clients were answered."""
        before = len(self.answers)
        actor: Actor = getattr(self, to)
        self.queue += [(to, effect) for effect in actor.tell(*messages)]
        self.pump()
        return self.answers[before:]

    def release(self) -> None:
        """Carry out what was kept."""
        kept, self.kept, self.at = self.kept, [], None
        self.queue += kept
        self.pump()

    def elapse(self, token: str) -> list[Any]:
        """A timer runs down, at whoever set it."""
        to = "compaction" if token in self.compaction.timers else "selection"
        assert token in getattr(self, to).timers, (token, self.compaction.timers, self.selection.timers)
        return self.tell(Elapsed(run=RUN, token=token), to=to)

    def late(self) -> list[Any]:
        """The time for questions of the compaction is over."""
        (token,) = (t for t in self.compaction.timers if t.endswith("#late"))
        return self.elapse(token)

    def write(self, *messages: ChatMessage) -> None:
        """Another client adds messages to the history."""
        self.log.blobs |= dict(_inputs(messages))
        self.log.add(appended(self.fold, *messages), command=f"other-{self.log.last[0]}")

    def step(self, *messages: ChatMessage, compaction: CompactionOptions | None = None, **changes: Any) -> CompileStep:
        """A step behind these messages."""
        heads: dict[str, Any] = {
            k: changes.pop(k) for k in ("command", "attempt", "seconds", "to", "number", "seen") if k in changes
        }
        heads = {"command": "c0", "seen": self.log.last[0], **heads}
        given: StepOptions = options(compaction=compaction or compacting(), **changes)
        made = step("", options_=given, after=self.fold, add=False, **heads)
        return replace(made, history=new_messages(*messages, after=self.fold))

    # -- what is known

    @property
    def fold(self) -> RunState:
        """The run as its log says."""
        return self.log.fold

    @property
    def events(self) -> list[AnyEvent | UnknownEvent]:
        """All events of the log."""
        return [event for _, _, commit in self.log.commits for event in commit.events]

    @property
    def kinds(self) -> list[str]:
        """The tags of the events about compaction."""
        tags = [str(event.__struct_config__.tag) for event in self.events]
        return [tag.removeprefix("compaction-") for tag in tags if tag.startswith("compaction-")]

    def find(self, kind: type[Any]) -> Any:
        """The last event of a kind."""
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    def verify(self) -> Verdict:
        """Verify the run."""
        return verify_run(RunLog(RUN, tuple(LoggedCommit(*c) for c in self.log.commits)), self.log.blobs.get)

    # -- the world

    def pump(self) -> None:
        """Carry out effects until nothing is left."""
        while self.queue:
            name, effect = self.queue.popleft()
            if self.at is not None and self.at(name, effect):
                self.kept.append((name, effect))
                continue
            self._carry_out(name, effect)

    def _tell(self, name: str, *messages: AnyMessage) -> None:
        actor: Actor = getattr(self, name)
        self.queue += [(name, effect) for effect in actor.tell(*messages)]

    def _carry_out(self, name: str, effect: AnyEffect) -> None:
        match effect:
            case Load(part="erasures"):
                self._tell(name, Loaded(run=RUN, token=effect.token, part="erasures", after=effect.after))
            case Load():
                self._tell(name, self.log.load(effect))
            case Fetch():
                held = tuple((d, self.log.blobs[d]) for d in effect.digests if d in self.log.blobs)
                self._tell(name, Fetched(run=RUN, token=effect.token, blobs=held))
            case Scatter(queries=asked):
                for question in asked:
                    self._answer(name, question)
            case Send(to=to, message=message):
                self._deliver(to, message)
            case Store():
                self._store(effect)
            case _:
                pass

    def _answer(self, name: str, question: Query | Summarise) -> None:
        if isinstance(question, Query):
            self._tell(name, Offered(run=RUN, token=question.token, source=question.source, kind="rag"))
            return
        self.asked.append(question)
        if self.summary is not None:
            self._tell(name, answer_to(question, self.summary))

    def _deliver(self, to: str, message: AnyMessage) -> None:
        if to in (TO_COMPACTION, COMPACTING):
            self._tell("compaction", message)
        elif to == INBOX:
            if isinstance(message, CompactionEnded):
                self.ended.append(message)
            self._tell("selection", message)
        elif to == subjects.command("placement", TENANT):
            self._tell("placement", message)
        elif isinstance(message, AskItems):
            self._tell("selection", ItemsOffered(run=RUN, token=message.token))
        elif isinstance(message, AskCallback):
            self.questions.append(message)
            answer = self.count(message)
            if answer is not None:
                self._tell("compaction" if message.reply_to == COMPACTING else "selection", answer)
        else:
            assert to.startswith(CLIENT), to
            assert isinstance(message, StepCompiled | Recorded | ErrorReply)
            self.answers.append(message)

    def _store(self, store: Store) -> None:
        said = None if self.store is None else self.store(store)
        if said is not None:
            self._tell("placement", said)
        elif (store.expected, store.commit.previous) != self.log.last:
            self._tell("placement", Conflicted(run=RUN, token=store.token, part="run"))
        else:
            self._tell("placement", self.log.store(store))


def answer_to(question: Summarise, summary: str | Summarised | SummaryFailed) -> Summarised | SummaryFailed:
    """What the summariser says to a question; a text in brackets is the code of a failure."""
    if not isinstance(summary, str):
        return replace(summary, token=question.token)
    if summary.startswith("["):
        return SummaryFailed(run=RUN, token=question.token, summariser=question.summariser, code=summary.strip("[]"))
    parts = (SummaryPart("text", summary),)
    return Summarised(run=RUN, token=question.token, summariser=question.summariser, parts=parts)


def unstored(store: Store, code: str = "limit") -> Unstored:
    """The log refuses."""
    return Unstored(run=RUN, token=store.token, part="run", code=code, message="the log refused")


def appended(state: RunState, *messages: ChatMessage) -> MessagesAppended:
    """The event of messages behind a run's history."""
    new = new_messages(*messages, after=state)
    estimator = make_estimator(state.estimator)
    facts = tuple(MessageFact(digest_message(m), estimator.message(m), m.role) for m in messages)
    ((reference, _),) = _inputs(messages)
    return MessagesAppended(start=state.history.count, messages=facts, chain=new.chain, inputs=reference)


def _inputs(messages: tuple[ChatMessage, ...]) -> tuple[tuple[str, bytes], ...]:
    data = blobs.encode_input(messages)
    return ((digests.digest_bytes(data), data),)


def _count(question: AskCallback) -> CallbackAnswered | None:
    return CallbackAnswered(run=RUN, token=question.token, name=question.name, count=100, matches=True)


def beside(trio: Trio, *texts: str, command: str = "beside", **heads: Any) -> AppendMessages:
    """An append that comes while a step is held."""
    return more(*texts, after=trio.fold, command=command, **heads)

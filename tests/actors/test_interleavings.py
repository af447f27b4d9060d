"""Any order of messages: no rule raises, and what is not idle has something that will wake it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.actors.bench import (
    CLIENT,
    DOCS,
    INBOX,
    NOTES,
    RUN,
    TENANT,
    TICKETS,
    Actor,
    Log,
    ask_refresh,
    candidate,
    more,
    offer,
    only,
    report,
    step,
)
from tests.actors.test_working_memory import ask, cancel, create, elapsed, patch, read

from contextbus.actors import gather
from contextbus.actors.effects import Effects, Fetch, Load, Scatter, Send, Store, Timer
from contextbus.actors.memory_requests import WorkingMemoryActorState
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus_protocol.commands import CancelCommand, ErrorReply
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.errors import ERRORS
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Query
from contextbus_protocol.values import Scope

CODES = {e.code for e in ERRORS} - {"internal"}
TURNS = st.lists(st.integers(0, 10**6), min_size=20, max_size=80)
ROOMY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Chaos:
    """A selection and a placement whose messages are picked, repeated, lost and made up by numbers."""

    def __init__(self) -> None:
        self.log = Log()
        self.selection = Actor(Selection(TENANT, INBOX))
        self.placement = Actor(Placement())
        self.under_way: list[tuple[Actor, AnyMessage | Store | Load | Fetch]] = []
        self.replies: list[AnyMessage] = []

    def commands(self, number: int) -> AnyMessage:
        """A command that may come at any time; few ids, so that they are used again."""
        fold = self.selection.state.fold
        heads: dict[str, Any] = {"command": f"c{number % 5}", "attempt": 1 + number % 3, "seen": number % 7}
        makes: list[Callable[[], AnyMessage]] = [
            lambda: step(f"text {number % 3}", DOCS, TICKETS, after=fold, **heads),
            lambda: step("same", DOCS, after=fold, add=False, number=number % 4 or None, **heads),
            lambda: step("other base", NOTES, refresh=True, **heads),
            lambda: more("text", after=fold, **heads),
            lambda: more("text", scope=Scope(user_id="somebody-else"), **heads),
            lambda: report(number % 3, **heads),
            lambda: ask_refresh(**heads),
            lambda: CancelCommand(run=RUN, tenant=TENANT, command=heads["command"]),
            lambda: self.ring(number),
        ]
        return makes[number // 11 % len(makes)]()

    def ring(self, number: int) -> AnyMessage:
        """A timer that goes off."""
        tokens = sorted(self.selection.timers)
        token = tokens[number % len(tokens)] if tokens else "none"
        self.selection.timers.pop(token, None)
        return Elapsed(run=RUN, token=token)

    def stray(self, number: int) -> AnyMessage:
        """An answer that nobody waits for, or that comes again, under the token of the flight."""
        flight = self.selection.state.flight
        token = "stray" if flight is None else flight.token
        makes: list[AnyMessage] = [
            Conflicted(run=RUN, token=token, part="run"),
            Unstored(run=RUN, token=token, part="run", code="limit"),
            Fetched(run=RUN, token=token),
            Loaded(run=RUN, token=token, part="run", after=0, code="deadline_exceeded"),
            ItemsOffered(run=RUN, token=token),
            Failed(run=RUN, token=token, source="docs", code="busy"),
            Failed(run=RUN, token=token, source="stranger", code="busy"),
            Elapsed(run=RUN, token=token + "#half"),
            Elapsed(run=RUN, token=token + "#end"),
        ]
        if self.log.commits:
            makes.append(self._committed(number, token))
        return makes[number % len(makes)]

    def _committed(self, number: int, token: str) -> Committed:
        sequence, digest, commit = self.log.commits[number % len(self.log.commits)]
        return Committed(run=RUN, token=token, part="run", sequence=sequence, digest=digest, commit=commit)

    def tell(self, actor: Actor, message: AnyMessage) -> None:
        """Hand a message over and note what it causes."""
        for effect in actor.tell(message):
            match effect:
                case Send(_, Place() | Record() as request):
                    self.under_way.append((self.placement, request))
                case Send(_, AskItems(token=token)):
                    self.under_way.append((self.selection, ItemsOffered(run=RUN, token=token)))
                case Send(to, answer) if to == INBOX:
                    self.under_way.append((self.selection, answer))
                case Send(_, answer):
                    self.replies.append(answer)
                case Scatter(asked):
                    for query in asked:
                        assert isinstance(query, Query)
                        self.under_way.append((self.selection, offer(query, candidate(len(query.text) or 1))))
                case Load() | Store() | Fetch():
                    self.under_way.append((actor, effect))
                case _:
                    pass

    def turn(self, number: int) -> None:
        """One thing happens."""
        kind = number % 10
        if kind < 3 or not self.under_way:
            self.tell(self.selection, self.commands(number // 10))
        elif kind == 3:
            self.tell(self.selection, self.stray(number // 10))
        else:
            actor, what = self.under_way.pop(number // 10 % len(self.under_way))
            if kind == 4 and not isinstance(what, Load | Store | Fetch):
                return  # lost
            self.tell(actor, self.result(what, number // 100))
        self.check()

    def result(self, what: AnyMessage | Store | Load | Fetch, number: int) -> AnyMessage:
        """What comes of an effect; others may have committed meanwhile."""
        match what:
            case Load():
                return self.log.load(what)
            case Fetch():
                found = tuple((d, self.log.blobs[d]) for d in what.digests if d in self.log.blobs and number % 4)
                return Fetched(run=RUN, token=what.token, blobs=found)
            case Store():
                if what.expected != self.log.last[0]:
                    return Conflicted(run=RUN, token=what.token, part="run")
                if number % 7 == 0:
                    return Unstored(run=RUN, token=what.token, part="run", code="limit")
                return self.log.store(what)
            case _:
                return what

    def check(self) -> None:
        """What is not idle will be woken, and what selection knows is what the log says."""
        state = self.selection.state
        if not self.selection.idle:
            for command in (state.flight.command, *state.waiting):
                assert f"{command.command}#deadline" in self.selection.timers
        else:
            assert not self.selection.timers
        waits = [w.token for a, w in self.under_way if a is self.placement and isinstance(w, Store | Fetch)]
        assert sorted(j.head.token for j in self.placement.state.jobs) == sorted(waits)
        assert not [r for r in self.replies if isinstance(r, ErrorReply) and r.code not in CODES]


@ROOMY
@given(TURNS)
def test_selection_and_placement(turns: list[int]) -> None:
    chaos = Chaos()
    for number in turns:
        chaos.turn(number)
    for _ in range(400):  # let everything come to rest: what is left is answered, then every timer goes off
        if chaos.under_way:
            actor, what = chaos.under_way.pop(0)
            chaos.tell(actor, chaos.result(what, 1))
        elif chaos.selection.timers:
            token = sorted(chaos.selection.timers)[0]
            del chaos.selection.timers[token]
            chaos.tell(chaos.selection, Elapsed(run=RUN, token=token))
        else:
            break
    assert chaos.selection.idle
    assert chaos.placement.idle
    fold = chaos.selection.state.fold
    assert fold.sequence <= chaos.log.last[0]
    if fold.sequence == chaos.log.last[0]:
        assert fold == chaos.log.fold


# Two writes wait for a log whose commit timed out, and the first is gone when it comes.
LEFT_BEHIND = [*[0] * 12, 125, 385, 1130, 1060, 225, 154, 14, 15]


@ROOMY
@given(TURNS)
@example(LEFT_BEHIND)
def test_working_memory(turns: list[int]) -> None:
    log = Log("working-memory")
    actor = Actor(WorkingMemory(TENANT, "me"))
    under_way: list[Load | Store] = []

    def tell(message: AnyMessage) -> None:
        effects: Effects = actor.tell(message)
        under_way.extend(e for e in effects if isinstance(e, Load | Store))
        state: WorkingMemoryActorState = actor.state
        waiting = [p for p in state.pending if not isinstance(p, AskItems)] + list(state.writes)
        if state.writing is not None:
            waiting.append(state.writing.command)
        assert {f"{w.command}#deadline" for w in waiting} == set(actor.timers)
        if state.loading is not None:
            assert any(isinstance(e, Load) and e.token == state.loading for e in under_way)
        else:
            assert not state.pending
        if state.writing is not None:
            assert any(e.token == state.writing.token for e in under_way)
        else:
            assert not state.writes or state.loading is not None

    def result(what: Load | Store, number: int) -> AnyMessage:
        if isinstance(what, Load):
            if number % 5 == 0:
                return Loaded(run=RUN, token=what.token, part=what.part, after=what.after, code="deadline_exceeded")
            return log.load(what)
        if what.expected != log.last[0] or number % 5 == 0:
            return Conflicted(run=RUN, token=what.token, part="working-memory")
        if number % 7 == 0:
            return Unstored(run=RUN, token=what.token, part="working-memory", code="limit")
        return log.store(what)

    for turn in turns:
        what, number = turn % 10, turn // 10
        heads: dict[str, Any] = {"command": f"c{number % 6}", "attempt": 1 + number % 3, "seen_memory": number % 5}
        revision = 0 if actor.state.fold.snapshot is None else actor.state.fold.snapshot.revision
        messages: list[AnyMessage] = [
            create(**heads),
            patch("text", revision, **heads),
            patch("other", revision, **heads),
            read(**heads),
            ask(f"q{number}", number % 9, load=number % 2 == 0),
            cancel(heads["command"]),
            Conflicted(run=RUN, token="stray", part="working-memory"),
        ]
        if under_way and what > 4:
            tell(result(under_way.pop(number % len(under_way)), number // 7))
        elif what == 4 and actor.timers:
            token = sorted(actor.timers)[number % len(actor.timers)]
            del actor.timers[token]
            tell(Elapsed(run=RUN, token=token))
        else:
            tell(messages[number % len(messages)])
    while under_way:
        tell(result(under_way.pop(0), 1))
    assert actor.idle


ANSWERS: list[AnyMessage] = [
    Conflicted(run=RUN, token="x", part="run"),
    Fetched(run=RUN, token="x"),
    ItemsOffered(run=RUN, token="x"),
    ErrorReply(run=RUN, command="c1", code="busy", message=""),
    ask(),
    create(),
    ask_refresh(),
    elapsed("c1"),
]


@pytest.mark.parametrize("message", ANSWERS, ids=lambda m: type(m).__name__)
def test_no_actor_is_harmed_by_a_message_of_another(message: AnyMessage) -> None:
    for rule in (Selection(TENANT, INBOX), Placement(), WorkingMemory(TENANT, "me")):
        Actor(rule).tell(message)


def test_bodies_are_shared_not_copied() -> None:
    log, actor = Log(), Actor(Selection(TENANT, INBOX))
    command = step("Hello")
    effects = actor.tell(command)
    actor.tell(log.load(only(effects, Load)))
    asked = only([e.message for e in effects if isinstance(e, Send)], AskItems)
    effects = actor.tell(ItemsOffered(run=RUN, token=asked.token))
    place = only([e.message for e in effects if isinstance(e, Send)], Place)
    assert place.history.messages[0] is command.history.messages[0]
    assert msgspec.structs.replace(place.head, reply_to="").notify == INBOX
    assert place.head.reply_to == CLIENT
    assert [e.token for e in effects if isinstance(e, Timer)] == []
    assert gather.NOT_TAKEN == ("busy", "absent")

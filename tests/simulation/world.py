"""The world: a seeded scheduler that owns network, server, timers, sources and kills.

One seed gives one history: every choice is drawn from one generator, in the order of the events.  Messages are
reordered, delayed, repeated and dropped; requests and acknowledgements of the log are lost; actors die between any two
effects and start again with nothing.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from contextbus.actors import append, catch_up
from contextbus.actors.compaction import Compaction
from contextbus.actors.effects import (
    Cancel,
    Effects,
    Fetch,
    Load,
    Rule,
    Scatter,
    Send,
    Store,
    Timer,
)
from contextbus.actors.placement import Placement
from contextbus.actors.selection import Selection
from contextbus.actors.working_memory import WorkingMemory
from contextbus_protocol import codec, subjects
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Elapsed, Fetched
from contextbus_protocol.questions import Query
from tests.simulation.server import Server
from tests.simulation.sources import Records, answer_query
from tests.simulation.summarisers import Behaviour, answer_request, choose_behaviour

TENANT = "t"
SILENCE = 2.0
"""Seconds after which a lost request counts as unanswered."""


class Faults(msgspec.Struct, frozen=True):
    """How often things go wrong, as probabilities for each message or event; ``outages`` is the most of the server."""

    drop: float = 0.02
    repeat: float = 0.02
    delay: float = 0.02
    lost_request: float = 0.02
    lost_reply: float = 0.02
    kill: float = 0.004
    stale: float = 0.05
    source: float = 0.15
    callback: float = 0.1
    outages: int = 2
    replicated: bool = False
    summariser: float = 0.4


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, summariser=0)


class Summarising(msgspec.Struct):
    """A request to the summariser: when it came, how it was taken, and when its first answer arrived or time ended."""

    request: Summarise
    behaviour: Behaviour
    asked: float
    over: float

    @property
    def evaluation(self) -> str:
        """The evaluation that it is of: its token names it."""
        return self.request.token.split("/")[-2]


AnyRule = Rule[Any]


class Node:
    """One instance of an actor: its states die with it, a new incarnation starts with none."""

    def __init__(self, name: str, make: Callable[[str], AnyRule]) -> None:
        self.name = name
        self.rule = make(name)
        self.make = make
        self.states: dict[str, Any] = {}
        self.timers: dict[tuple[str, str], int] = {}
        self.incarnation = 0


class Receiver(Protocol):
    """Who is not an actor and gets messages: a client."""

    def receive(self, message: AnyMessage) -> None: ...


class World:
    """One simulation."""

    def __init__(self, seed: int, faults: Faults, instances: int = 2) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.events = 0
        self.kills = 0
        self.dropped = 0
        self.server = Server(replicated=faults.replicated)
        self.records = Records()
        self.receivers: dict[str, Receiver] = {}
        self.summaries: list[Summarising] = []
        self.behaviours: list[Behaviour] = []
        self.writing: float | None = None
        self.unacknowledged: list[str] = []
        self.unheard: list[str] = []
        self.everyone: tuple[type[AnyMessage], ...] = ()
        self._queue: list[tuple[float, float, int, Callable[[], None]]] = []
        self._order = 0
        self._serial = 0
        self._down_until = 0.0
        self._doomed: tuple[int, int] | None = None
        makes: list[tuple[subjects.ActorName, Callable[[str], AnyRule]]] = [
            ("selection", lambda n: Selection(TENANT, self.inbox(n))),
            ("working-memory", lambda n: WorkingMemory(TENANT, n)),
            ("placement", lambda _: Placement()),
            ("compaction", lambda n: Compaction(TENANT, self.inbox(n))),
        ]
        self.nodes = {f"{name}-{i}": Node(f"{name}-{i}", make) for name, make in makes for i in range(instances)}
        self._groups = {subjects.command(name, TENANT): [f"{name}-{i}" for i in range(instances)] for name, _ in makes}

    def inbox(self, name: str) -> str:
        """The reply address of a node or client."""
        return subjects.inbox(TENANT, name)

    # -- scheduling

    def at(self, delay: float, event: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay, self.random.random(), self._order, event))

    def run(self, most: int = 5_000_000) -> None:
        """Go on until nothing is left to happen."""
        while self._queue:
            self.now, _, _, event = heapq.heappop(self._queue)
            self.events += 1
            if self.events > most:
                raise AssertionError(f"no rest after {most} events")
            event()

    def chance(self, probability: float) -> bool:
        """Draw whether something happens."""
        return probability > 0 and self.random.random() < probability

    # -- network

    def send(self, to: str, message: AnyMessage) -> None:
        """Send over the network: encoded, perhaps late, twice, or never."""
        data = codec.encode_message(message)
        if self.chance(self.faults.drop):
            self.dropped += 1
            return
        delay = 0.0002 + self.random.expovariate(2000)
        if self.chance(self.faults.delay):
            delay += self.random.random() * 4
        if isinstance(message, self.everyone):  # two instances took what a client asked for twice
            for name in self._groups.get(to, [])[1:]:
                self.at(delay, partial(self.deliver, self.nodes[name], message))
            to = self.inbox(self._groups[to][0])
        self.at(delay, lambda: self._arrive(to, data))
        if self.chance(self.faults.repeat):
            self.at(delay + self.random.random(), lambda: self._arrive(to, data))

    def _arrive(self, to: str, data: bytes) -> None:
        message = codec.decode_message(data)
        group = self._groups.get(to)
        name = self.random.choice(group) if group else to.rsplit(".", 1)[-1]
        name = subjects.decode_name(name)
        if name in self.nodes:
            self.deliver(self.nodes[name], message)
        elif name in self.receivers:
            self.receivers[name].receive(message)

    # -- actors

    def deliver(self, node: Node, message: AnyMessage) -> None:
        """Hand a message to a rule and carry out its effects; perhaps die in the middle of them."""
        run = message.run
        state = node.states.get(run)
        if state is None:
            state = node.rule.initial(run)
        state, effects = node.rule.decide(state, message)
        node.states[run] = state
        cut = self._cut(len(effects))
        if cut is not None:
            effects = effects[:cut]
            self._carry(node, effects)
            self.kill(node)
            return
        self._carry(node, effects)
        if self.chance(0.02) and node.rule.is_idle(node.states[run]):
            del node.states[run]  # the bounded cache dropped it

    def doom(self, deliveries: int, effects: int) -> None:
        """Have the actor that takes a message after so many deliveries die once so many effects are carried out."""
        self._doomed = deliveries, effects

    def _cut(self, effects: int) -> int | None:
        """After how many of its effects an actor dies; None if it lives on."""
        if self._doomed is not None:
            deliveries, after = self._doomed
            self._doomed = (deliveries - 1, after) if deliveries else None
            if not deliveries:
                return min(after, effects)
        return self.random.randrange(effects + 1) if self.chance(self.faults.kill) else None

    def kill(self, node: Node) -> None:
        """End an instance: states, timers and the operations that it was waiting for are gone."""
        node.states = {}
        node.timers = {}
        node.incarnation += 1
        self.kills += 1

    def fill_server(self, seconds: float) -> None:
        """The log takes nothing for a while: it is at its limit."""
        self.server.full = True
        self.at(seconds, self._drain_server)

    def _drain_server(self) -> None:
        self.server.full = False

    def take_server_down(self, seconds: float) -> None:
        """Nobody answers for a while; what is stored stays."""
        self._down_until = self.now + seconds

    def _carry(self, node: Node, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message, _):
                    self.send(to, message)
                case Scatter(queries):
                    for query in queries:
                        if isinstance(query, Query):
                            self._ask(query)
                        else:
                            self._summarise(query)
                case Load():
                    load_state, load_next = catch_up.begin(effect, TENANT)
                    self._read(node, node.incarnation, load_state, load_next)
                case Store():
                    store_state, store_next = append.begin(effect)
                    self._write(node, node.incarnation, store_state, store_next)
                case Fetch():
                    self._fetch(node, effect)
                case Timer(run, token, seconds):
                    self._serial += 1
                    node.timers[run, token] = self._serial
                    self.at(seconds, self._alarm(node, run, token, self._serial))
                case Cancel(run, token):
                    node.timers.pop((run, token), None)

    def _alarm(self, node: Node, run: str, token: str, serial: int) -> Callable[[], None]:
        def fire() -> None:
            if node.timers.get((run, token)) == serial:
                del node.timers[run, token]
                self.deliver(node, Elapsed(run=run, token=token))

        return fire

    # -- log and store, through the real algorithms

    def _write(self, node: Node, life: int, state: append.Appending, op: append.Operation) -> None:
        def go_on(outcome: append.Outcome) -> None:
            if node.incarnation == life:
                self._write(node, life, *append.advance(state, outcome))

        match op:
            case append.Finish(result):
                self.at(0, self._if_alive(node, life, lambda: self.deliver(node, result)))
            case append.Wait(seconds):
                self.at(seconds, lambda: go_on(append.Waited()))
            case append.PutBlobs() | append.AppendCommit() | append.ReadLast():
                self._operate(op, go_on)

    def _read(self, node: Node, life: int, state: catch_up.CatchingUp, op: catch_up.Operation) -> None:
        def go_on(outcome: catch_up.Outcome) -> None:
            if node.incarnation == life:
                self._read(node, life, *catch_up.advance(state, outcome))

        match op:
            case catch_up.Caught(result):
                self.at(0, self._if_alive(node, life, lambda: self.deliver(node, result)))
            case append.Wait(seconds):
                self.at(seconds, lambda: go_on(append.Waited()))
            case catch_up.ReadPage() | append.ReadLast():
                self._operate(op, go_on)

    def _operate(
        self,
        request: append.PutBlobs | append.AppendCommit | append.ReadLast | catch_up.ReadPage,
        go_on: Callable[[Any], None],
    ) -> None:
        answered = [False]

        def reply(outcome: append.Outcome | catch_up.Outcome) -> None:
            if not answered[0]:
                answered[0] = True
                go_on(outcome)

        def execute() -> None:
            if self.now < self._down_until:
                return
            if isinstance(request, append.AppendCommit) and take_ending(self.unheard, request.command):
                return
            lag = 1 if self.chance(self.faults.stale) else 0
            outcome = self.server.answer(request, lag=lag)
            if isinstance(request, append.AppendCommit) and take_ending(self.unacknowledged, request.command):
                return
            if not self.chance(self.faults.lost_reply):
                self.at(0.0001 + self.random.expovariate(5000), lambda: reply(outcome))

        if not self.chance(self.faults.lost_request):
            self.at(0.0001 + self.random.expovariate(5000), execute)
        self.at(SILENCE, lambda: reply(append.Unanswered("timeout")))

    def _fetch(self, node: Node, effect: Fetch) -> None:
        found = {d: self.server.blobs.get((effect.run, d)) for d in effect.digests}
        blobs = tuple((d, data) for d, data in found.items() if data is not None)
        fetched = Fetched(run=effect.run, token=effect.token, blobs=blobs)
        life = node.incarnation
        self.at(0.0005, self._if_alive(node, life, lambda: self.deliver(node, fetched)))

    def _if_alive(self, node: Node, life: int, event: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            if node.incarnation == life:
                event()

        return guarded

    # -- sources and summariser

    def _summarise(self, request: Summarise) -> None:
        """Ask the summariser; ``behaviours`` are those that were chosen for the next requests."""
        chosen = self.behaviours.pop(0) if self.behaviours else choose_behaviour(self.random, self.faults.summariser)
        noted = Summarising(request, chosen, self.now, self.now + request.seconds_left)
        self.summaries.append(noted)
        delay = self.random.expovariate(200) if self.writing is None else self.writing
        answers = answer_request(request, chosen, delay)
        if answers:
            noted.over = min(noted.over, self.now + min(delay for delay, _ in answers))
        for delay, message in answers:
            self.at(delay, partial(self.send, request.reply_to, message))

    def _ask(self, query: Query) -> None:
        erased = self.server.by_subject.get(subjects.erasures(TENANT), [])
        seen = erased[-1] if erased else 0
        for delay, message in answer_query(query, self.random, self.faults.source, self.records, seen):
            self.at(delay, partial(self.send, query.reply_to, message))


def take_ending(endings: list[str], command: str) -> bool:
    """Whether a command ends as one of those that are to fail; each does once."""
    ending = next((ending for ending in endings if command.endswith(ending)), None)
    if ending is not None:
        endings.remove(ending)
    return ending is not None

"""The host: runs actors inside the bus's callback until no local message is left.

A message to an actor of the same process is passed by reference, with no task and no stream between.  Only what waits
for the log or for a source is a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import anyio

from contextbus.actors.effects import AnyEffect, Cancel, Fetch, Load, Rule, Scatter, Send, Store, Timer
from contextbus.runtime import routes
from contextbus.runtime.bus import NOBODY_SERVES, Announcement, Bus, BusUnavailableError, Frame, Subscription
from contextbus.runtime.clock import Clock, SystemClock
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.expiring import Expiring
from contextbus.runtime.flights import Alarms, Flights
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.inbound import Inbound, encoding_of
from contextbus.runtime.journal import Journal
from contextbus.runtime.logs import get_logger
from contextbus.runtime.outbox import Arrivals, Outbox
from contextbus.runtime.package_store import PackageStore
from contextbus.runtime.reply_addresses import ReplyAddresses, TakeQuestion
from contextbus.runtime.run_states import RunState
from contextbus.runtime.trampoline import Actor, Trampoline
from contextbus.runtime.worker_answers import SOURCES, SUMMARISERS
from contextbus.runtime.worker_calls import CONCURRENCY, SourceHandler, SummariserHandler
from contextbus.runtime.worker_questions import WorkerQuestions
from contextbus.runtime.workers import Workers
from contextbus_protocol import codec, subjects
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.compaction import Compact
from contextbus_protocol.envelope import ReplyEncoding
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import AskItems
from contextbus_protocol.values import SourceSpec

CACHED_RUNS: Final = 4096
DRAIN_SECONDS: Final = 10.0
QUEUED_PER_RUN: Final = 1024

_MOST_SENT: Final = 65_536
_ABSENCE_SECONDS: Final = 2.0

_log = get_logger(__name__)


class Host:
    """Runs actors, and sources of this process, on a bus; an async context manager.

    Args:
        tenant: Whose host it is.
        instance: A name that no other process of the tenant has or had; part of every reply address.
        bus: The bus; it belongs to the caller.
        journal: The log; it belongs to the caller.
        rules: The actors; none for a process that only asks or only answers queries.
        clock: Read for the time left of commands.
        encode_local: Encode and decode messages between actors of this process too.
        cache: How many states of runs are kept for each actor; busy ones are kept beyond that.
        queued_per_run: How many messages may wait for one run of an actor; beyond, senders are told ``busy``.
        drain_seconds: How long leaving waits for work in flight, in seconds.

    Attributes:
        stats: What happened so far.
        packages: The package store.
        inbox: The prefix of all reply addresses of this host.
    """

    def __init__(
        self,
        tenant: str,
        instance: str,
        bus: Bus,
        journal: Journal,
        rules: Iterable[Rule[Any]] = (),
        *,
        clock: Clock | None = None,
        encode_local: bool = False,
        cache: int = CACHED_RUNS,
        queued_per_run: int = QUEUED_PER_RUN,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self.tenant = tenant
        self.inbox = subjects.inbox(tenant, instance)
        self.stats = HostStats()
        self.packages = PackageStore(journal, tenant)
        self._bus = bus
        self._clock: Clock = clock or SystemClock()
        self._encode_local = encode_local
        self._queued_per_run = queued_per_run
        self._drain_seconds = drain_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._driver = JournalDriver(journal, self.packages, tenant)
        self._arrivals = Arrivals(self._clock, 2 * cache)
        self._outbox = Outbox(
            bus,
            packages=self.packages,
            tenant=tenant,
            arrivals=self._arrivals,
            stats=self.stats,
            lost=self._lose,
            spawn=self._spawn,
        )
        self._inbound = Inbound(tenant, self._driver, self.stats, self._send, self._spawn)
        self._trampoline = Trampoline(self._start, self._inbound.answer, self._rest, self.stats)
        self._actors = tuple(Actor(rule, tenant, self.inbox, cache) for rule in rules)
        self._routes: dict[str, tuple[Actor, frozenset[type]]] = {}
        for actor in self._actors:
            self._routes[actor.subject] = (actor, actor.commands)
            self._routes[actor.address] = (actor, actor.answers)
        self._alarms = Alarms(self._trampoline, self.stats)
        flights = Flights(self._driver, self._trampoline, self._spawn)
        self._counter = itertools.count(1)
        self._addresses = ReplyAddresses(f"{self.inbox}.client")
        self._questions = WorkerQuestions(
            tenant,
            f"{self.inbox}.worker",
            clock=self._clock,
            outbox=self._outbox,
            inbound=self._inbound,
            stats=self.stats,
            deliver=self._deliver_answer,
        )
        self._workers = Workers(
            tenant,
            self._questions,
            arrivals=self._arrivals,
            inbound=self._inbound,
            send=self._send,
            deliver=self._deliver_answer,
            keep=self._keep,
        )
        self._sent: Expiring[tuple[Send, ...]] = Expiring(_MOST_SENT)
        self._subscriptions: list[Subscription] = []
        self._services: list[Announcement] = []
        self._inbox_subscription: Subscription | None = None
        self._draining = False
        self._quiet = asyncio.Event()
        self._starters: dict[type, Callable[[Actor, RunState, Any], None]] = {
            Send: self._start_send,
            Scatter: self._start_scatter,
            Load: flights.load,
            Fetch: flights.fetch,
            Store: flights.store,
            Timer: self._start_timer,
            Cancel: self._start_cancel,
        }

    async def __aenter__(self) -> Self:
        self._inbox_subscription = await self._bus.subscribe(f"{self.inbox}.>", self._take_answer)
        for actor in self._actors:
            await self._serve(actor.name, actor.subject, actor.name, partial(self._take_command, actor))
        for worker in self._workers.served():
            await self._serve(worker.name, worker.subject, worker.queue, worker.take)
        # Whoever asks after this finds us; without a connection, the next one makes the subscriptions.
        with contextlib.suppress(BusUnavailableError):
            await self._bus.flush()
        return self

    async def _serve(self, name: str, subject: str, queue: str, take: Callable[[Frame], None]) -> None:
        service = await self._bus.announce(name, subject, queue)
        self._services.append(service)

        def count_and_take(frame: Frame) -> None:
            service.count()
            take(frame)

        self._subscriptions.append(await self._bus.subscribe(subject, count_and_take, queue=queue))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            while self._services:
                await self._services.pop().withdraw()
            while self._subscriptions:
                await self._subscriptions.pop().unsubscribe()
            # Answers still come in while what was taken is brought to its end.
            self._draining = True
            self._rest()
            with anyio.move_on_after(self._drain_seconds):
                await self._quiet.wait()
            if self._inbox_subscription is not None:
                await self._inbox_subscription.unsubscribe()
                self._inbox_subscription = None
            self._trampoline.close()
            self._alarms.close()
            self._questions.close()
            if self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=1.0)
            self._addresses.close()

    def add_source(
        self, spec: SourceSpec, handler: SourceHandler, *, concurrency: int = CONCURRENCY, serve: bool = False
    ) -> None:
        """Answer the queries to a source in this process.

        Args:
            spec: The source.
            handler: Finds candidates for a query.
            concurrency: How many calls may be under way; more are answered with ``busy``.
            serve: Take the queries of other processes too, as one of the source's workers; to be said before the host
                is entered.
        """
        self._workers.add(SOURCES, spec.id, handler, concurrency=concurrency, serve=serve)

    def add_summariser(
        self, name: str, handler: SummariserHandler, *, concurrency: int = CONCURRENCY, serve: bool = False
    ) -> None:
        """Answer the requests to a summariser in this process; ``name`` is its id, the rest as of ``add_source``."""
        self._workers.add(SUMMARISERS, name, handler, concurrency=concurrency, serve=serve)

    def reply_address(self, take_question: TakeQuestion | None = None) -> tuple[str, asyncio.Future[AnyMessage]]:
        """Make an address for one answer, and what will hold it; cancelling the latter closes the address.

        Questions to functions of the host that come before the answer are given to ``take_question``.

        The latter raises `BusUnavailableError` if nobody serves the subject to which the message was delivered.
        """
        return self._addresses.open(take_question)

    def deliver(self, to: str, message: AnyMessage) -> None:
        """Send a message as a client does: to an actor of this process or over the bus.

        Raises:
            BusUnavailableError: nothing was sent: the bus is not connected or does not take it, or the host was left.
        """
        if self._draining:
            raise BusUnavailableError("not sent: this host is closing or closed")
        route = self._routes.get(to)
        if route is not None:
            self._let_in(*route, self._pass(message))
        elif not self._outbox.send(to, message, reply=next(iter(routes.addresses(message)), "")):
            raise BusUnavailableError("not sent: the bus is not connected or does not take the message")

    # What comes in

    def _take_command(self, actor: Actor, frame: Frame) -> None:
        def accept(message: AnyMessage) -> None:
            filled = routes.fill_reply(message, frame.reply, encoding_of(frame))
            if "" in routes.addresses(filled):
                self._inbound.reject(frame, filled.run, "invalid_request", "the message names no reply address")
            else:
                self._let_in(actor, actor.commands, filled)

        self._inbound.read(frame, accept)

    def _take_answer(self, frame: Frame) -> None:
        kind, _, _ = frame.subject[len(self.inbox) + 1 :].partition(".")
        if kind == "worker":
            self._questions.take(frame)
        elif kind == "client":
            self._take_client_answer(frame)
        elif kind == "sent":
            if frame.status == NOBODY_SERVES:
                self._lose(frame.subject)
        elif (route := self._routes.get(frame.subject)) is not None:
            self._inbound.read(frame, partial(self._let_in, *route), _say_nothing)
        else:
            self.stats.unroutable += 1

    def _take_client_answer(self, frame: Frame) -> None:
        if frame.status == NOBODY_SERVES:
            self._lose(frame.subject)
        else:
            self._inbound.read(frame, partial(self._answer_client, frame.subject), _say_nothing)

    def _lose(self, reply: str) -> None:
        """Tell who waits at a reply address that the message did not reach anybody."""
        refusals = self._sent.take(reply, self._clock.elapsed())
        if refusals is None:
            self._questions.lose(reply)
            self._addresses.fail(reply, "nobody serves this subject")
            return
        self.stats.refused += 1
        for send in refusals:
            self._send(send.to, send.message, send.encoding)

    def _let_in(self, actor: Actor, kinds: frozenset[type], message: AnyMessage) -> None:
        if not self._inbound.check(actor.name, kinds, message):
            return
        if not actor.states.known(message.run):
            if kinds is actor.answers:
                self.stats.late += 1
                return
            if not actor.states.has_room():
                self._inbound.refuse(message, "busy", "too many runs are busy in this instance; send it again later")
                return
        entry = actor.states.take(message.run)
        if entry.queued >= self._queued_per_run:
            self._inbound.refuse(message, "busy", "too many messages wait for this run; send it again later")
            return
        self._arrivals.note(message)
        self._trampoline.put(actor, entry, message)
        self._trampoline.run()

    # What goes out

    def _send(self, to: str, message: AnyMessage, encoding: ReplyEncoding = "msgpack") -> None:
        route = self._routes.get(to)
        if route is not None:
            actor, kinds = route
            if type(message) in kinds:
                self._trampoline.put(actor, actor.states.take(message.run), self._pass(message))
                self._trampoline.run()
            else:  # a reply address that a client chose may be an actor's own
                self.stats.unroutable += 1
        elif to.startswith(f"{self.inbox}."):
            self._answer_client(to, self._pass(message))
        else:
            reply = ""
            if isinstance(message, AskItems | Place | Record | Compact):
                # Not for an answer: there the server says when nobody serves the actor.
                reply = f"{self.inbox}.sent.{next(self._counter)}"
                refusals = routes.refuse(message, "busy", "no instance of the actor is running; send it again later")
                self._sent.put(reply, refusals, self._clock.elapsed(), _ABSENCE_SECONDS)
            self._outbox.send(to, message, encoding, reply)

    def _answer_client(self, to: str, message: AnyMessage) -> None:
        if not all(routes.is_address(address, self.tenant) for address in routes.addresses(message)):
            self.stats.refused += 1  # a question to the host, whose answer holds what was said
            _log.warning("reply_address_refused", actor="client", type=type(message).__name__)
        elif not self._addresses.answer(to, message):
            self.stats.late += 1

    def _pass(self, message: AnyMessage) -> AnyMessage:
        return codec.decode_message(codec.encode_message(message)) if self._encode_local else message

    def _deliver_answer(self, actor: Actor, message: AnyMessage) -> None:
        if not actor.states.known(message.run):
            self.stats.late += 1
            return
        self._trampoline.put(actor, actor.states.take(message.run), message)
        self._trampoline.run()

    # Effects

    def _start(self, actor: Actor, entry: RunState, effect: AnyEffect) -> None:
        self._starters[type(effect)](actor, entry, effect)

    def _start_send(self, actor: Actor, entry: RunState, effect: Send) -> None:
        self._send(effect.to, effect.message, effect.encoding)

    def _start_scatter(self, actor: Actor, entry: RunState, effect: Scatter) -> None:
        self._workers.scatter(actor, effect)

    def _start_timer(self, actor: Actor, entry: RunState, effect: Timer) -> None:
        self._alarms.set(actor, effect.run, effect.token, effect.seconds)

    def _start_cancel(self, actor: Actor, entry: RunState, effect: Cancel) -> None:
        self._alarms.cancel(actor, effect.run, effect.token)
        self._workers.cancel(effect.run, effect.token)

    # Life

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_report)
        self._keep(task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._rest()

    def _rest(self) -> None:
        if self._draining and self._is_quiet():
            self._quiet.set()

    def _is_quiet(self) -> bool:
        return not self._tasks and self._trampoline.empty and all(actor.states.is_quiet() for actor in self._actors)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task_failed", error=type(error).__name__)


def _say_nothing() -> None:
    """Answers are not answered."""

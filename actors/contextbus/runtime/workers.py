"""The sources and summarisers that actors ask: those of this process, and those that others serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from contextbus.actors.effects import Scatter
from contextbus.runtime import routes
from contextbus.runtime.bus import Frame
from contextbus.runtime.inbound import Inbound, encoding_of
from contextbus.runtime.outbox import Arrivals
from contextbus.runtime.trampoline import Actor
from contextbus.runtime.worker_answers import A, Q, WorkerKind, kind_of
from contextbus.runtime.worker_calls import LocalWorker
from contextbus.runtime.worker_questions import WorkerQuestions
from contextbus_protocol import subjects
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.envelope import ReplyEncoding
from contextbus_protocol.messages import AnyMessage


class ServedWorker(msgspec.Struct, frozen=True):
    """A worker of this process whose questions other processes may send: ``take`` takes their frames."""

    name: str
    subject: str
    queue: str
    take: Callable[[Frame], None]


class Workers:
    """Local workers, and the way to those of other processes.

    Args:
        tenant: Whose workers they are.
        questions: Asks over the bus.
        arrivals: Tells how much time is left.
        inbound: Reads and checks what other processes ask.
        send: Sends an answer: address, message, encoding.
        deliver: Gives an actor the answer to its question.
        keep: Keeps the task of a call until it ends.
    """

    def __init__(
        self,
        tenant: str,
        questions: WorkerQuestions,
        *,
        arrivals: Arrivals,
        inbound: Inbound,
        send: Callable[[str, AnyMessage, ReplyEncoding], None],
        deliver: Callable[[Actor, AnyMessage], None],
        keep: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._tenant = tenant
        self._questions = questions
        self._arrivals = arrivals
        self._inbound = inbound
        self._send = send
        self._deliver = deliver
        self._keep = keep
        self._local: dict[tuple[type, str], LocalWorker[Any, Any]] = {}
        self._served: set[tuple[type, str]] = set()

    def add(
        self,
        kind: WorkerKind[Q, A],
        name: str,
        handler: Callable[[Q], Awaitable[object]],
        *,
        concurrency: int,
        serve: bool,
    ) -> None:
        """Answer the questions to a worker in this process, and those of other processes if it is to be served."""
        key = (kind.question, name)
        self._local[key] = LocalWorker(kind, name, handler, concurrency, self._keep)
        if serve:
            self._served.add(key)

    def served(self) -> Iterator[ServedWorker]:
        """What other processes may ask, sources first, by name."""
        for key in sorted(self._served, key=lambda k: (k[0].__name__, k[1])):
            worker = self._local[key]
            yield ServedWorker(
                worker.name,
                worker.kind.subject(self._tenant, worker.name),
                subjects.encode_name(worker.name),
                partial(self._take, worker),
            )

    def scatter(self, actor: Actor, effect: Scatter) -> None:
        """Ask everybody whom an actor asks."""
        for question in effect.queries:
            worker = self._local.get((type(question), kind_of(question).name(question)))
            aged = self._arrivals.age_question(question)
            if worker is not None:
                worker.call(aged, partial(self._deliver, actor))
            else:
                self._questions.ask(actor, question, aged.seconds_left)

    def cancel(self, run: str, token: str) -> None:
        """Stop the call of a summariser of this process that was asked with a token; one elsewhere ends by its time."""
        for (question, _), worker in self._local.items():
            if question is Summarise:
                worker.cancel(run, token)

    def _take(self, worker: LocalWorker[Any, Any], frame: Frame) -> None:
        encoding = encoding_of(frame)
        kinds: frozenset[type] = frozenset((worker.kind.question,))

        def accept(message: AnyMessage) -> None:
            if not self._inbound.check(worker.name, kinds, message):
                return
            if worker.kind.name(message) != worker.name:
                self._inbound.refuse(message, "invalid_request", "the message names another worker than its subject")
                return
            (address,) = routes.addresses(message)
            worker.call(message, lambda answer: self._send(address, answer, encoding))

        self._inbound.read(frame, accept)

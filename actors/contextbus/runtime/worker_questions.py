"""Questions of actors to workers of other processes: each has an address of its own, and gets one answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from contextbus.runtime.bus import NOBODY_SERVES, Frame
from contextbus.runtime.clock import Clock
from contextbus.runtime.expiring import Expiring
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.inbound import Inbound
from contextbus.runtime.outbox import Outbox
from contextbus.runtime.trampoline import Actor
from contextbus.runtime.worker_answers import Question, kind_of
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.messages import AnyMessage

_MOST_QUESTIONS: Final = 65_536
_GRACE_SECONDS: Final = 1.0


class WorkerQuestions:
    """The queries and the requests to summarisers that wait for an answer over the bus.

    Args:
        tenant: Whose workers are asked.
        prefix: What all reply addresses begin with.
        clock: Tells how long a question has waited.
        outbox: Sends the questions.
        inbound: Reads the answers.
        stats: Counts answers that come too late.
        deliver: Gives an actor the answer to its question.
    """

    def __init__(
        self,
        tenant: str,
        prefix: str,
        *,
        clock: Clock,
        outbox: Outbox,
        inbound: Inbound,
        stats: HostStats,
        deliver: Callable[[Actor, AnyMessage], None],
    ) -> None:
        self._tenant = tenant
        self._prefix = prefix
        self._clock = clock
        self._outbox = outbox
        self._inbound = inbound
        self._stats = stats
        self._deliver = deliver
        self._counter = itertools.count(1)
        self._asked: Expiring[tuple[Actor, Question]] = Expiring(_MOST_QUESTIONS)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def ask(self, actor: Actor, question: Question, seconds: float) -> None:
        """Send a question of an actor to whoever serves the worker that it names.

        Args:
            actor: Who asks.
            question: The question.
            seconds: How long it may take from now on.  Of a query the actor itself keeps the time, and asks again;
                who asks a summariser is told ``timeout``, or that nothing could be sent.
        """
        # An address for each question: so the server can say who is absent.
        reply = f"{self._prefix}.{next(self._counter)}"
        asked = msgspec.structs.replace(question, reply_to=reply)
        kept = max(0.0, question.seconds_left) + _GRACE_SECONDS
        self._asked.put(reply, (actor, asked), self._clock.elapsed(), kept)
        kind = kind_of(question)
        sent = self._outbox.send(kind.subject(self._tenant, kind.name(question)), asked, reply=reply)
        if isinstance(question, Summarise):
            if sent:
                loop = asyncio.get_running_loop()
                self._timers[reply] = loop.call_later(max(0.0, seconds), self._give_up, reply, "timeout", None)
            else:
                self.lose(reply)

    def lose(self, reply: str) -> None:
        """Tell who asked a summariser that the request could not be sent."""
        self._give_up(reply, "error", "unsent")

    def close(self) -> None:
        """Keep the time of no request any more."""
        while self._timers:
            self._timers.popitem()[1].cancel()

    def _give_up(self, reply: str, code: str, origin_code: str | None) -> None:
        waiting = self._take(reply)
        if waiting is not None and isinstance(waiting[1], Summarise):
            actor, question = waiting
            self._deliver(actor, kind_of(question).fail(question, code, origin_code))

    def _take(self, reply: str) -> tuple[Actor, Question] | None:
        timer = self._timers.pop(reply, None)
        if timer is not None:
            timer.cancel()
        return self._asked.take(reply, self._clock.elapsed())

    def take(self, frame: Frame) -> None:
        """Deliver what came to one of the addresses: an answer, or that nobody serves the worker."""
        waiting = self._take(frame.subject)
        if waiting is None:
            self._stats.late += 1
            return
        actor, question = waiting
        kind = kind_of(question)

        def accept(message: AnyMessage) -> None:
            answer = kind.accept(question, message)
            if answer is not None:
                self._deliver(actor, answer)
            else:  # a host that cannot read more large messages at once says so before it knows what it is asked
                fail("busy" if isinstance(message, ErrorReply) and message.code == "busy" else "malformed")

        def fail(code: str) -> None:
            self._deliver(actor, kind.fail(question, code))

        if frame.status == NOBODY_SERVES:
            fail("absent")
        else:
            self._inbound.read(frame, accept, partial(fail, "malformed"))

"""Questions of actors to sources of other processes: each has an address of its own, and gets one answer."""

from __future__ import annotations

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
from contextbus.runtime.source_calls import fits
from contextbus.runtime.trampoline import Actor
from contextbus_protocol import subjects
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query

_MOST_QUESTIONS: Final = 65_536
_GRACE_SECONDS: Final = 1.0


class SourceQuestions:
    """The queries that wait for an answer over the bus.

    Args:
        tenant: Whose sources are asked.
        prefix: What all reply addresses begin with.
        clock: Tells how long a query has waited.
        outbox: Sends the queries.
        inbound: Reads the answers.
        stats: Counts answers that come too late.
        deliver: Gives an actor the answer to its query.
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
        self._asked: Expiring[tuple[Actor, Query]] = Expiring(_MOST_QUESTIONS)

    def ask(self, actor: Actor, query: Query) -> None:
        """Send a query of an actor to whoever serves its source."""
        # An address for each question: so the server can say which source is absent.
        reply = f"{self._prefix}.{next(self._counter)}"
        asked = msgspec.structs.replace(query, reply_to=reply)
        seconds = max(0.0, query.seconds_left) + _GRACE_SECONDS
        self._asked.put(reply, (actor, asked), self._clock.elapsed(), seconds)
        self._outbox.send(subjects.query(self._tenant, query.source), asked, reply=reply)

    def take(self, frame: Frame) -> None:
        """Deliver what came to one of the addresses: an answer, or that nobody serves the source."""
        question = self._asked.take(frame.subject, self._clock.elapsed())
        if question is None:
            self._stats.late += 1
            return
        actor, query = question

        def accept(message: AnyMessage) -> None:
            if isinstance(message, Offered | Failed) and fits(query, message):
                self._deliver(actor, message)
            else:
                fail("malformed")

        def fail(code: str) -> None:
            self._deliver(actor, Failed(run=query.run, token=query.token, source=query.source, code=code))

        if frame.status == NOBODY_SERVES:
            fail("absent")
        else:
            self._inbound.read(frame, accept, partial(fail, "malformed"))

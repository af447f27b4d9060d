"""What a rule may ask of its host: a closed set (design: section 2).

A rule is ``(state, message) -> (state, effects)``.  Effects start in the order of the list; results arrive in any
order, at most once each, with the token of the flight that asked.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from contextbus_protocol.compaction import Summarise
from contextbus_protocol.envelope import ReplyEncoding
from contextbus_protocol.events import Commit
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Query
from contextbus_protocol.subjects import ActorName, Part


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Send(Effect, frozen=True):
    """Send a message to a subject: an actor's command subject, an instance's inbox, a client's reply address."""

    to: str
    message: AnyMessage
    encoding: ReplyEncoding = "msgpack"


class Scatter(Effect, frozen=True):
    """Ask sources or summarisers, all in one flush.

    An absent one comes back as ``Failed`` or ``SummaryFailed`` with code ``absent``.
    """

    queries: tuple[Query | Summarise, ...]


class Load(Effect, frozen=True):
    """Read the commits of a part after a sequence: comes back as ``Loaded``.

    ``at_least`` is a sequence that is known to exist; fewer commits than that mean a stale replica, not the end.
    """

    run: str
    part: Part
    after: int
    token: str
    at_least: int = 0


class Fetch(Effect, frozen=True):
    """Read blobs of a run: comes back as ``Fetched``."""

    run: str
    digests: tuple[str, ...]
    token: str


class Store(Effect, frozen=True):
    """Put blobs, then commit: comes back as ``Committed``, ``Conflicted`` or ``Unstored``.

    ``expected`` is the stream sequence of the last commit on the part's subject, 0 for the first.
    """

    commit: Commit
    expected: int
    token: str
    blobs: tuple[tuple[str, bytes], ...] = ()


class Timer(Effect, frozen=True):
    """Wake the run's state after some seconds with ``Elapsed``; a timer of the same token is replaced."""

    run: str
    token: str
    seconds: float


class Cancel(Effect, frozen=True):
    """Forget a timer, or a question to a summariser: one of this process stops (C.F.9)."""

    run: str
    token: str


AnyEffect = Send | Scatter | Load | Fetch | Store | Timer | Cancel
Effects = tuple[AnyEffect, ...]

S = TypeVar("S")


class Rule(Protocol[S]):
    """An actor: a name and a pure rule over the state of one run."""

    @property
    def name(self) -> ActorName:
        """The actor's name, which is its queue group and its part of every subject."""
        ...

    def initial(self, run: str) -> S:
        """The state of a run before anything is known of it."""
        ...

    def is_idle(self, state: S) -> bool:
        """Whether the state may be dropped from memory: nothing is in flight."""
        ...

    def decide(self, state: S, message: AnyMessage) -> tuple[S, Effects]:
        """Take one message."""
        ...

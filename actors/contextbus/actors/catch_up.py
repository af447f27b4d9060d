"""Catch-up: read the commits of a part after a sequence, whole and in order.

A pure state machine over the log's read operations, driven by the host and by the simulation alike.  Pages may come
from a stale replica: the answer counts only once it reaches the sequence that is known to exist.  The hash chain is
checked by the fold that takes the commits.
"""

from __future__ import annotations

from typing import Final

import msgspec

from contextbus.actors.append import LastRead, ReadLast, Unanswered, Wait, Waited
from contextbus.actors.effects import Load
from contextbus_protocol import codec, digests, subjects
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import Commit
from contextbus_protocol.outcomes import Loaded

ATTEMPTS: Final = 8
PAGE: Final = 256
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 1.0


class ReadPage(msgspec.Struct, frozen=True):
    """Read up to ``limit`` messages of a subject after a sequence.  Answered by ``PageRead`` or ``Unanswered``."""

    subject: str
    after: int
    limit: int = PAGE


class PageRead(msgspec.Struct, frozen=True):
    """Messages in order, each (sequence, data); ``more`` tells that the subject goes on."""

    records: tuple[tuple[int, bytes], ...]
    more: bool


class Caught(msgspec.Struct, frozen=True):
    """The catch-up is over; the result goes to the actor that asked."""

    result: Loaded


Operation = ReadPage | ReadLast | Wait | Caught
Outcome = PageRead | LastRead | Unanswered | Waited


class CatchingUp(msgspec.Struct, frozen=True):
    """Where the catch-up stands."""

    load: Load
    tenant: str
    reached: int
    commits: tuple[tuple[int, str, Commit], ...] = ()
    tries: int = 0


def begin(load: Load, tenant: str) -> tuple[CatchingUp, Operation]:
    """Start with the first page."""
    state = CatchingUp(load, tenant, load.after)
    return state, _page(state)


def advance(state: CatchingUp, outcome: Outcome) -> tuple[CatchingUp, Operation]:
    """Take the outcome of the operation under way and name the next one."""
    match outcome:
        case Waited():
            return state, _page(state)
        case Unanswered():
            return _again(state)
        case PageRead(records, more):
            return _take(state, records, more)
        case LastRead():
            if outcome.data is None or outcome.sequence <= state.reached:
                # the leader has no more: what was known to exist was erased with its run
                return state, _done(state)
            return _again(state)


def _page(state: CatchingUp) -> Operation:
    return ReadPage(subjects.log(state.tenant, state.load.run, state.load.part), state.reached)


def _again(state: CatchingUp) -> tuple[CatchingUp, Operation]:
    if state.tries + 1 >= ATTEMPTS:
        return state, _done(state, "deadline_exceeded")
    wait = min(_FIRST_WAIT * 2**state.tries, _LONGEST_WAIT)
    return msgspec.structs.replace(state, tries=state.tries + 1), Wait(wait)


def _take(state: CatchingUp, records: tuple[tuple[int, bytes], ...], more: bool) -> tuple[CatchingUp, Operation]:
    fresh: list[tuple[int, str, Commit]] = []
    for sequence, data in records:
        if sequence <= state.reached:
            continue
        try:
            commit = codec.decode_commit(data)
        except ContextBusError as exc:
            return state, _done(state, exc.code)
        fresh.append((sequence, digests.digest_bytes(data), commit))
    reached = fresh[-1][0] if fresh else state.reached
    state = msgspec.structs.replace(
        state, commits=state.commits + tuple(fresh), reached=reached, tries=0 if fresh else state.tries
    )
    if more and fresh:
        return state, _page(state)
    if reached < state.load.at_least or more:
        return state, ReadLast(subjects.log(state.tenant, state.load.run, state.load.part))
    return state, _done(state)


def _done(state: CatchingUp, code: str | None = None) -> Caught:
    load = state.load
    return Caught(
        Loaded(
            run=load.run,
            token=load.token,
            part=load.part,
            after=load.after,
            commits=() if code else state.commits,
            code=code,
        )
    )

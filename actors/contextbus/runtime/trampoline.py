"""The trampoline: hands messages to rules, one after the other, until none is left.

A message is an append to one queue; there is no task per message.  Messages of a run are therefore handled strictly
one at a time and in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from contextbus.actors.effects import AnyEffect, Rule
from contextbus.runtime import routes
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.logs import get_logger
from contextbus.runtime.run_states import RunState, RunStates
from contextbus_protocol import subjects
from contextbus_protocol.messages import AnyMessage

MESSAGES_AT_ONCE: Final = 256

_log = get_logger(__name__)


class Actor:
    """A rule with its states and its addresses.

    Attributes:
        name: Its name and queue group.
        subject: Where it takes commands.
        address: Where this process's instance takes answers.
        commands: What it takes on its subject.
        answers: What it takes at its address.
        states: What it knows of its runs.
    """

    def __init__(self, rule: Rule[Any], tenant: str, inbox: str, cache: int) -> None:
        self.rule = rule
        self.name = rule.name
        self.subject = subjects.command(rule.name, tenant)
        self.address = f"{inbox}.{rule.name}"
        self.commands = routes.COMMANDS[rule.name]
        self.answers = routes.ANSWERS[rule.name]
        self.states = RunStates(rule, cache)


class Alarm:
    """A timer of a run; one that was cancelled or replaced is dead even if it has gone off.

    Args:
        forget: Takes it out of the table of timers, once it is handled.
    """

    __slots__ = ("alive", "forget", "handle")

    def __init__(self, forget: Callable[[], object]) -> None:
        self.alive = True
        self.forget = forget
        self.handle: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Cancel it."""
        self.alive = False
        if self.handle is not None:
            self.handle.cancel()


class Trampoline:
    """Runs rules.

    Args:
        start: Starts an effect of an actor's run; what it raises is logged and keeps no other effect.
        refuse: Tells who waits for a message that it came to nothing: message, code, text.
        rest: Called each time no message is left.
        stats: Counts.
    """

    def __init__(
        self,
        start: Callable[[Actor, RunState, AnyEffect], None],
        refuse: Callable[[AnyMessage, str, str], None],
        rest: Callable[[], None],
        stats: HostStats,
    ) -> None:
        self._start = start
        self._refuse = refuse
        self._rest = rest
        self._stats = stats
        self._queue: deque[tuple[Actor, RunState, AnyMessage, Alarm | None]] = deque()
        self._running = False
        self._closed = False

    @property
    def empty(self) -> bool:
        """Whether no message waits."""
        return not self._queue

    def put(self, actor: Actor, entry: RunState, message: AnyMessage, alarm: Alarm | None = None) -> None:
        """Queue a message for a run of an actor; `run` handles it."""
        if self._closed:
            return
        entry.queued += 1
        self._queue.append((actor, entry, message, alarm))

    def close(self) -> None:
        """Handle no more: what is under way is being broken off, and that must not look like an answer."""
        self._closed = True
        self._queue.clear()

    def run(self) -> None:
        """Handle messages until none is left, or until others must have their turn of the event loop."""
        if self._running:
            return
        self._running = True
        try:
            for _ in range(MESSAGES_AT_ONCE):
                if not self._queue:
                    break
                self._step(*self._queue.popleft())
        finally:
            self._running = False
        if self._queue:
            asyncio.get_running_loop().call_soon(self.run)
        else:
            self._rest()

    def _step(self, actor: Actor, entry: RunState, message: AnyMessage, alarm: Alarm | None) -> None:
        entry.queued -= 1
        if alarm is not None:
            if not alarm.alive:
                self._stats.late += 1
                return
            alarm.forget()
        self._stats.handled += 1
        try:
            state, effects = actor.rule.decide(entry.state, message)
        except Exception as error:  # the rule's fault: the state stays, the process lives on
            self._give_up(actor, message, error)
            return
        if not effects and state is entry.state:
            self._stats.ignored += 1
        entry.state = state
        for effect in effects:
            try:
                self._start(actor, entry, effect)
            except Exception as error:  # one effect that cannot start must not keep the others
                _log.error("effect_failed", actor=actor.name, effect=type(effect).__name__, error=type(error).__name__)

    def _give_up(self, actor: Actor, message: AnyMessage, error: Exception) -> None:
        kind = type(error).__name__
        self._stats.raised += 1
        _log.error("rule_raised", actor=actor.name, type=type(message).__name__, run=message.run, error=kind)
        self._refuse(message, "internal", f"{actor.name} could not handle the message ({kind}); nothing was changed")

"""What actors wait for: results of the log, and timers."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from contextbus.actors.effects import Fetch, Load, Store
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.logs import get_logger
from contextbus.runtime.run_states import RunState
from contextbus.runtime.trampoline import Actor, Alarm, Trampoline
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Elapsed, Fetched, Loaded, Unstored

_log = get_logger(__name__)


class Flights:
    """Starts what the log is asked for; each comes back to its actor exactly once, as a message.

    Args:
        driver: Carries it out.
        trampoline: Takes the results.
        spawn: Starts a task of the host.
    """

    def __init__(
        self, driver: JournalDriver, trampoline: Trampoline, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._driver = driver
        self._trampoline = trampoline
        self._spawn = spawn

    def load(self, actor: Actor, entry: RunState, effect: Load) -> None:
        """Read commits."""
        self._launch(actor, entry, self._driver.load(effect), partial(_failed_load, effect))

    def fetch(self, actor: Actor, entry: RunState, effect: Fetch) -> None:
        """Read blobs."""
        self._launch(actor, entry, self._driver.fetch(effect), partial(_failed_fetch, effect))

    def store(self, actor: Actor, entry: RunState, effect: Store) -> None:
        """Put blobs and commit."""
        self._launch(actor, entry, self._driver.store(effect), partial(_failed_store, effect))

    def _launch(
        self,
        actor: Actor,
        entry: RunState,
        work: Coroutine[Any, Any, AnyMessage],
        fail: Callable[[str, str], AnyMessage],
    ) -> None:
        entry.flights += 1
        flight = self._fly(actor, entry, work, fail)
        try:
            # Until it waits for the first time, at once: what it sends leaves a turn of the event loop earlier.
            awaited: object = flight.send(None)
        except StopIteration:
            return
        self._spawn(go_on(flight, awaited))

    async def _fly(
        self,
        actor: Actor,
        entry: RunState,
        work: Coroutine[Any, Any, AnyMessage],
        fail: Callable[[str, str], AnyMessage],
    ) -> None:
        try:
            result = await work
        except ContextBusError as error:
            result = fail(error.code, error.message)
        except Exception as error:  # whatever the store did: the actor gets its one answer
            _log.error("flight_failed", actor=actor.name, run=entry.run, error=type(error).__name__)
            result = fail("internal", type(error).__name__)
        finally:
            entry.flights -= 1
        self._trampoline.put(actor, entry, result)
        self._trampoline.run()


async def go_on(started: Coroutine[Any, Any, None], awaited: object) -> None:
    """Go on with a coroutine that waits for something already; the task that runs this becomes the coroutine's."""
    await _delegate(started, awaited)


@types.coroutine
def _delegate(started: Coroutine[Any, Any, None], awaited: object) -> Generator[object, object, None]:
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # what it waited for failed, or it is cancelled: the coroutine decides
            resume = partial(started.throw, error)
        else:
            resume = partial(started.send, value)
        try:
            awaited = resume()
        except StopIteration:
            return


class Alarms:
    """The timers of all runs, by token.

    Args:
        trampoline: Takes what elapsed.
        stats: Counts timers of runs that were forgotten.
    """

    def __init__(self, trampoline: Trampoline, stats: HostStats) -> None:
        self._trampoline = trampoline
        self._stats = stats
        self._alarms: dict[tuple[Actor, str, str], Alarm] = {}

    def set(self, actor: Actor, run: str, token: str, seconds: float) -> None:
        """Start a timer; one of the same token is replaced."""
        self.cancel(actor, run, token)
        key = (actor, run, token)
        alarm = self._alarms[key] = Alarm(partial(self._alarms.pop, key, None))
        alarm.handle = asyncio.get_running_loop().call_later(max(0.0, seconds), self._ring, key, alarm)

    def cancel(self, actor: Actor, run: str, token: str) -> None:
        """Forget a timer, if there is one."""
        alarm = self._alarms.pop((actor, run, token), None)
        if alarm is not None:
            alarm.stop()

    def close(self) -> None:
        """Forget all."""
        for alarm in self._alarms.values():
            alarm.stop()
        self._alarms.clear()

    def _ring(self, key: tuple[Actor, str, str], alarm: Alarm) -> None:
        actor, run, token = key
        if not actor.states.known(run):
            del self._alarms[key]
            self._stats.late += 1
            return
        # It stays in the table until it is handled, so that it can still be cancelled.
        self._trampoline.put(actor, actor.states.take(run), Elapsed(run=run, token=token), alarm)
        self._trampoline.run()


def _failed_load(effect: Load, code: str, text: str) -> Loaded:
    del text
    return Loaded(run=effect.run, token=effect.token, part=effect.part, after=effect.after, code=code)


def _failed_fetch(effect: Fetch, code: str, text: str) -> Fetched:
    del text
    return Fetched(run=effect.run, token=effect.token, code=code)


def _failed_store(effect: Store, code: str, text: str) -> Unstored:
    commit = effect.commit
    return Unstored(run=commit.run, token=effect.token, part=commit.part, code=code, message=text)

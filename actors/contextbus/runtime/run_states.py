"""The states of an actor's runs: bounded, and never forgetting one that is busy."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from contextbus.actors.effects import Rule

_LOOKED_AT = 8


class RunState:
    """What an actor knows of one run.

    Attributes:
        state: The rule's state.
        queued: How many messages wait for it.
        flights: How many of its effects are under way.
    """

    __slots__ = ("flights", "queued", "run", "state")

    def __init__(self, run: str, state: object) -> None:
        self.run = run
        self.state = state
        self.queued = 0
        self.flights = 0


class RunStates:
    """A least-recently-used table of states.

    A state leaves only when nothing waits for it or is under way and its rule calls it idle; so the table can grow
    beyond its limit for as long as that many runs are busy.

    Args:
        rule: Whose states they are.
        limit: How many are kept.
    """

    def __init__(self, rule: Rule[Any], limit: int) -> None:
        self._rule = rule
        self._limit = limit
        self._states: OrderedDict[str, RunState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def has_room(self) -> bool:
        """Whether a run may be added: less than twice the limit are busy."""
        if len(self._states) >= 2 * self._limit:
            self._drop_idle("")
        return len(self._states) < 2 * self._limit

    def known(self, run: str) -> bool:
        """Whether a state of the run is at hand."""
        return run in self._states

    def take(self, run: str) -> RunState:
        """Give the state of a run, made anew if it is not at hand."""
        entry = self._states.get(run)
        if entry is not None:
            self._states.move_to_end(run)
            return entry
        entry = self._states[run] = RunState(run, self._rule.initial(run))
        if len(self._states) > self._limit:
            self._drop_idle(run)
        return entry

    def is_quiet(self) -> bool:
        """Whether no run of the actor is busy."""
        return not any(self._is_busy(entry) for entry in self._states.values())

    def _drop_idle(self, keep: str) -> None:
        # A few at a time: busy ones go to the end, so the next call looks at others.
        for _ in range(_LOOKED_AT):
            run, entry = next(iter(self._states.items()))
            if run == keep or self._is_busy(entry):
                self._states.move_to_end(run)
                continue
            del self._states[run]
            if len(self._states) <= self._limit:
                return

    def _is_busy(self, entry: RunState) -> bool:
        return entry.queued > 0 or entry.flights > 0 or not self._rule.is_idle(entry.state)

"""A few examples of the state machine; ``python -m tests.simulation.machine --examples 2000`` is the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from contextbus.actors import decided
from contextbus.core import run, step
from contextbus.core.placed_blocks import PlacedBlock
from contextbus.core.refresh import plan_refresh
from contextbus.core.run_state import RunState
from contextbus_protocol.events import AnyEvent, CallFailed, CallSucceeded, StepCompiled, UnknownEvent
from contextbus_protocol.values import RefreshOptions
from tests.simulation.harness import MODELS
from tests.simulation.machine import RunMachine, settings_of

EXAMPLES = 60
OPUS, BOUND = MODELS[:2]


@pytest.mark.rule("D.F.9", "D.F.13", "D.F.20", "D.G.10", "D.H.5")
def test_a_run_under_faults_is_what_the_plain_model_says() -> None:
    chosen = settings(settings_of(EXAMPLES, 25), derandomize=True)
    run_state_machine_as_test(RunMachine, settings=chosen)


def owe_nothing(patch: pytest.MonkeyPatch) -> None:
    """Records whose block left the history are not owed."""

    def owe(state: RunState, gone: Iterable[PlacedBlock]) -> RunState:
        left = {block.step for block in gone}
        return msgspec.structs.replace(state, placed=tuple(e for e in state.placed if e.step not in left))

    patch.setattr(run, "owe_entries", owe)


def trust_all_thinking(patch: pytest.MonkeyPatch) -> None:
    """No thinking is ever behind other bytes."""

    def stale(*_: object) -> tuple[tuple[int, int], ...]:
        return ()

    patch.setattr(decided, "stale_ranges", stale)
    patch.setattr(run, "stale_ranges", stale)


def place_at_once(patch: pytest.MonkeyPatch) -> None:
    """A failed call places its block too."""
    real = run.fold_event

    def fold(state: RunState, event: AnyEvent | UnknownEvent, *rest: Any) -> RunState:
        if isinstance(event, CallFailed):
            event = CallSucceeded(step=event.step)
        return real(state, event, *rest)

    patch.setattr(run, "fold_event", fold)


def keep_no_tail(patch: pytest.MonkeyPatch) -> None:
    """No model binds its thinking."""

    def binds(*_: object) -> bool:
        return False

    patch.setattr(step, "binds_thinking", binds)


def retrieve_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Passes have no limit."""
    real = plan_refresh

    def plan(state: RunState, options: RefreshOptions, **rest: Any) -> Any:
        return real(state, msgspec.structs.replace(options, max_passes=99), **rest)

    patch.setattr(step, "plan_refresh", plan)


@pytest.mark.parametrize("plant", [owe_nothing, trust_all_thinking, place_at_once, keep_no_tail, retrieve_for_ever])
def test_a_broken_rule_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    chosen = settings(settings_of(150, 30), derandomize=True, phases=(Phase.generate,))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RunMachine, settings=chosen)


def machine(*, source: float = 0.0, memory: bool = False, seed: int = 0, drop: float = 0.0) -> RunMachine:
    """A machine that is driven by hand: what once failed stays."""
    state = RunMachine()
    state.begin(seed=seed, drop=drop, kill=0.0, source=source, replicated=False, calibrates=False, memory=memory)
    return state


def test_an_empty_query_with_records_to_return() -> None:
    """The decision took the skipped sources' order, and placement could not repeat it."""
    state = machine()
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=False, who=0)
    for _ in range(5):
        state.refresh(who=0)
    state.turn(kind="skill", model=OPUS, succeeded=True, who=0)
    state.refresh(who=0)
    state.turn(kind="blank", model=OPUS, succeeded=True, who=1)
    state.rewrite(behind=True, keep=5, model=OPUS, outcome=False, who=1)
    state.teardown()


def test_a_reopened_step_whose_package_is_gone_is_compiled_once() -> None:
    """A second attempt took the package that the first one had just compiled for gone too."""
    state = machine(drop=0.02)
    state.append(who=0, with_system=False)
    state.step(kind="none", model=OPUS, passes=30, refresh=False, sources=4, tools=None, who=0)
    state.lose(behind=0)
    state.turn(kind="none", model=BOUND, succeeded=True, who=0)
    state.teardown()


def test_what_waits_after_two_forgets() -> None:
    """Owed records whose package was redacted meanwhile did not wait."""
    state = machine(seed=1)
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=False, who=1)
    state.lose(behind=0)
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=True, who=1)
    state.reload(who=0)
    state.forget(during=None, model=OPUS, which=0)
    state.forget(during=0, model=OPUS, which=0)
    state.turn(kind="none", model=OPUS, succeeded=True, who=0)
    state.teardown()


def test_a_skill_whose_result_the_host_moved() -> None:
    """The call was taken for answered, and the result that came back loaded nothing."""
    state = machine()
    state.step(kind="skill", model=OPUS, passes=30, refresh=False, sources=4, tools=None, who=0)
    state.reload(who=1)
    state.rewrite(behind=False, keep=1, model=OPUS, outcome=False, who=0)
    state.rewrite(behind=True, keep=2, model=OPUS, outcome=False, who=1)
    state.forget(during=1, model=OPUS, which=0)
    state.teardown()


def test_an_overflow_whose_first_package_is_gone() -> None:
    """The retry of the first command is the same step, whatever the overflow made of it."""
    state = machine()
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=False, who=0)
    state.overflow(behind=0, limit=None, who=1)
    state.lose(behind=1)
    state.repeat(who=0)
    state.teardown()
    assert state.harness.model.last is not None
    assert state.harness.model.last.step == 0


def test_what_was_forgotten_while_it_was_to_return() -> None:
    """A record whose tombstone the step had read was expected to be restored until its package was redacted."""
    state = machine()
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=False, who=0)
    state.step(kind="user", model=OPUS, passes=30, refresh=True, sources=4, tools=None, who=0)
    state.forget(during=0, model=OPUS, which=0)
    state.step(kind="none", model=OPUS, passes=30, refresh=False, sources=4, tools=None, who=0)
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=True, who=0)
    state.step(kind="none", model=OPUS, passes=30, refresh=False, sources=4, tools=None, who=0)
    state.reload(who=0)
    state.rewrite(behind=False, keep=3, model=OPUS, outcome=False, who=0)
    state.forget(during=0, model=OPUS, which=13)
    state.teardown()


def test_an_empty_query_behind_a_forget() -> None:
    """A step that could not retrieve was compiled anew whenever it was asked for, each time under the same number."""
    state = machine()
    state.rewrite(behind=False, keep=0, model=OPUS, outcome=False, who=0)
    state.forget(during=None, model=OPUS, which=0)
    state.race(kinds=("blank", "none"), model=OPUS, refresh=False)
    state.race(kinds=("none", "none"), model=OPUS, refresh=False)
    state.teardown()
    assert [e.step for e in state.harness.events(StepCompiled)] == [0, 1]


def test_what_came_to_be_owed_before_an_overflow() -> None:
    """The records of a block that left since the step's first compile were taken to have had their turn."""
    state = machine()
    state.append(who=0, with_system=False)
    state.refresh(who=0)
    state.append(who=0, with_system=False)
    state.race(kinds=("user", "none"), model=OPUS, refresh=False)
    state.refresh(who=0)
    state.turn(kind="none", model=OPUS, succeeded=True, who=0)
    state.race(kinds=("none", "none"), model=OPUS, refresh=False)
    state.forget(during=None, model=OPUS, which=0)
    state.overflow(behind=0, limit=None, who=0)
    state.report(status="succeeded", who=0)
    state.race(kinds=("none", "none"), model=OPUS, refresh=False)
    state.teardown()


SMALL = MODELS[3]


@pytest.mark.rule("C.L.4", "C.X.6", "D.F.20")
def test_messages_that_return_without_the_blocks_of_their_range() -> None:
    """Behind a boundary that the host took back, thinking stood behind the block that had left with the range."""
    state = machine()
    state.talk(behaviour="good", kinds=["none"], limit=2, model=BOUND, on_failure="stop", who=0)
    state.talk(behaviour="good", kinds=["skill"], limit=2, model=SMALL, on_failure="stop", who=0)
    state.refresh(who=0)
    state.rewrite(behind=False, keep=2, model=BOUND, outcome=False, who=0)
    state.teardown()

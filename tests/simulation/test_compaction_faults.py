"""Faults planted in compaction: each shows in some seed, or in the race that it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contextbus.actors import compacting
from contextbus.core import checkpoints
from contextbus.core.compaction import ranges, reduction
from contextbus_protocol.errors import ContextBusError
from tests.simulation.run import simulate
from tests.simulation.test_compaction import (
    test_what_is_appended_beside_a_compaction_stays_behind_the_boundary_and_costs_no_second_summary as append_beside,
)
from tests.simulation.world import Faults

Plant = Callable[[pytest.MonkeyPatch], None]


def cut_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A range may end one message further than is safe."""
    real_begin, real_advance = ranges.begin_range, ranges.advance_range

    def begin(*given: Any, **named: Any) -> Any:
        state, step = real_begin(*given, **named)
        return state, _further(step)

    def advance(*given: Any) -> Any:
        state, step = real_advance(*given)
        return state, _further(step)

    patch.setattr(reduction, "begin_range", begin)
    patch.setattr(reduction, "advance_range", advance)


def _further(step: Any) -> Any:
    return ranges.Range(step.start, step.end + 1) if isinstance(step, ranges.Range) else step


def never_pause(patch: pytest.MonkeyPatch) -> None:
    """Failures in a row pause nothing."""
    patch.setattr(checkpoints, "MOST_FAILURES", 10**6)


def take_anything(patch: pytest.MonkeyPatch) -> None:
    """A summary that was cut off is taken."""
    real = reduction.advance

    def advance(state: Any, answer: Any, count: Any) -> Any:
        if isinstance(answer, reduction.Answer):
            answer = msgspec.structs.replace(answer, finish_reason="stop", only_text=True)
        return real(state, answer, count)

    patch.setattr(reduction, "advance", advance)


def keep_all_blocks(patch: pytest.MonkeyPatch) -> None:
    """Blocks of a range that was replaced stay."""

    def none(*_: object) -> int:
        return 0

    patch.setattr(checkpoints, "blocks_before", none)


@pytest.mark.parametrize("plant", [cut_anywhere, never_pause, take_anything, keep_all_blocks])
def test_a_planted_fault_of_compaction_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(100):
        try:
            simulate(seed, Faults(summariser=0.6), compacts=True)
        except (AssertionError, LookupError, ContextBusError):
            return
    pytest.fail("no seed shows the fault")


def test_a_summary_that_is_bought_again_after_a_race_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(_job: object) -> None:
        return None

    monkeypatch.setattr(compacting, "known_answer", known)
    with pytest.raises(AssertionError):
        append_beside()

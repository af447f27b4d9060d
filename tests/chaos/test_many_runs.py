"""A hundred runs side by side over separate processes, two instances of each actor, random kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.many_runs import hold_many

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

RUNS = 100
STEPS = 4


async def test_no_step_of_a_hundred_runs_is_lost_or_doubled(tmp_path: Path) -> None:
    outcome = await hold_many(tmp_path, runs=RUNS, steps=STEPS, kills=6, seed=3)
    assert (outcome.runs, outcome.steps) == (RUNS, RUNS * STEPS)

"""How the factor of an estimator learns from reported usage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.calibration import calibrate_factor
from contextbus_protocol.errors import RangeError


@pytest.mark.rule("D.M.5")
@pytest.mark.parametrize(
    ("factor", "actual", "estimated", "learned"),
    [
        (10_000, 100, 100, 10_000),
        (10_000, 200, 100, 13_000),
        (10_000, 50, 100, 8_500),
        (10_000, 1_000_000, 1, 20_000),
        (5_001, 1, 1_000_000, 5_000),
        (10_000, 1, 3, 8_000),
        (10_000, 1, 7, 7_429),  # 7428.57...
        (10_000, 1.5, 1.0, 11_500),
        (10_005, 3, 2, 11_506),  # 11505.75
        (10_010, 3, 2, 11_512),  # 11511.5, half to even
        (10_030, 3, 2, 11_534),  # 11534.5, half to even
    ],
)
def test_a_factor_moves_three_tenths_of_the_way_and_stays_within_its_limits(
    factor: int, actual: float, estimated: float, learned: int
) -> None:
    assert calibrate_factor(factor, actual, estimated) == learned


@pytest.mark.rule("D.M.5")
@pytest.mark.parametrize("nothing", [0, -1, 0.0, math.nan, math.inf, -math.inf, True])
def test_what_says_nothing_is_ignored(nothing: float) -> None:
    assert calibrate_factor(12_345, nothing, 10) == 12_345
    assert calibrate_factor(12_345, 10, nothing) == 12_345


@pytest.mark.rule("D.M.5")
@pytest.mark.parametrize("factor", [4_999, 20_001, 1.0, True])
def test_a_factor_outside_its_limits_is_refused(factor: int) -> None:
    with pytest.raises(RangeError):
        calibrate_factor(factor, 1, 1)


@pytest.mark.rule("D.M.5")
@given(st.integers(5_000, 20_000), st.integers(1, 10**9) | st.floats(1e-300, 1e300), st.integers(1, 10**9))
def test_every_report_leaves_a_factor_that_an_estimator_takes(factor: int, actual: float, estimated: int) -> None:
    assert 5_000 <= calibrate_factor(factor, actual, estimated) <= 20_000

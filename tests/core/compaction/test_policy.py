"""Retention policies: what their numbers may be, and what holds where none is set."""

from __future__ import annotations

import math
from typing import Any

import pytest

from contextbus.core.compaction.policy import check_count, check_policy, check_positive, last_messages, recent_tokens
from contextbus_protocol.errors import RangeError
from contextbus_protocol.values import RetentionPolicy

NAMES = ("keep_last_messages", "keep_last_turns", "keep_recent_tokens")


@pytest.mark.rule("C.A.3")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 1.5, 4.0, math.nan, math.inf, 2**53, True, "4"])
def test_counts_are_positive_safe_integers(name: str, value: Any) -> None:
    with pytest.raises(RangeError, match=name) as raised:
        check_policy(RetentionPolicy(**{name: value}))
    assert isinstance(raised.value, ValueError)


@pytest.mark.rule("C.A.3", "C.X.1")
@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_the_range_are_in_it(name: str) -> None:
    for value in (1, 2**53 - 1):
        assert getattr(check_policy(RetentionPolicy(**{name: value})), name) == value


@pytest.mark.rule("C.X.1")
@pytest.mark.parametrize("value", [0, -0.1, 1.01, 2, math.nan, math.inf, -math.inf, True, "0.5"])
def test_a_ratio_is_finite_above_0_and_at_most_1(value: Any) -> None:
    with pytest.raises(RangeError, match="keep_ratio"):
        check_policy(RetentionPolicy(keep_ratio=value))
    assert check_policy(RetentionPolicy(keep_ratio=1)).keep_ratio == 1
    assert check_policy(RetentionPolicy(keep_ratio=1e-9)).keep_ratio == 1e-9


@pytest.mark.rule("C.X.1", "C.A.1")
def test_with_no_policy_four_messages_are_kept() -> None:
    assert last_messages(RetentionPolicy()) == 4
    assert last_messages(RetentionPolicy(keep_last_messages=2)) == 2
    assert last_messages(RetentionPolicy(keep_last_turns=1)) is None
    assert last_messages(RetentionPolicy(keep_recent_tokens=1)) is None
    assert last_messages(RetentionPolicy(keep_ratio=0.5)) is None
    assert last_messages(RetentionPolicy(keep_ratio=0.5, keep_last_messages=3)) == 3


@pytest.mark.rule("C.X.1")
def test_the_larger_of_two_token_limits_decides() -> None:
    assert recent_tokens(RetentionPolicy(), None) is None
    assert recent_tokens(RetentionPolicy(keep_recent_tokens=7), None) == 7
    assert recent_tokens(RetentionPolicy(keep_ratio=0.1), 4095) == 4095 - 2047
    assert recent_tokens(RetentionPolicy(keep_ratio=0.1), 100_000) == 100_000 - 2048
    assert recent_tokens(RetentionPolicy(keep_ratio=0.1, keep_recent_tokens=60), 100) == 60
    assert recent_tokens(RetentionPolicy(keep_ratio=0.1, keep_recent_tokens=40), 100) == 50


@pytest.mark.rule("C.A.3", "C.C.5")
def test_numbers_are_checked_by_name() -> None:
    assert check_positive("target_tokens", 1) == 1
    with pytest.raises(RangeError, match="target_tokens"):
        check_positive("target_tokens", 0)
    assert check_count("count_tokens", 0) == 0
    for wrong in (-1, 2**53, True, 0.5, None):
        with pytest.raises(RangeError, match="count_tokens"):
            check_count("count_tokens", wrong)

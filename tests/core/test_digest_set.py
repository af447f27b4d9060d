"""A set of digests that grows without changing what it was."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.digest_set import DigestSet


@pytest.mark.rule("D.O.23")
@given(st.lists(st.binary(min_size=1, max_size=2), max_size=80))
def test_it_is_a_set_and_every_older_value_stays(digests: list[bytes]) -> None:
    grown = [DigestSet()]
    for digest in digests:
        grown.append(grown[-1].add(digest))
    for count, value in enumerate(grown):
        known = set(digests[:count])
        assert len(value) == len(known)
        assert {d for d in digests if d in value} == known


def test_levels_stay_few_and_adding_twice_changes_nothing() -> None:
    value = DigestSet()
    for number in range(2000):
        value = value.add(number.to_bytes(4))
    assert len(value) == 2000
    assert len(value.levels) <= 12
    sizes = [len(level) for level in value.levels]
    assert all(big >= 2 * small for big, small in itertools.pairwise(sizes))
    assert value.add((7).to_bytes(4)) is value

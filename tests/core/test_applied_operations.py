"""What an operation came to is remembered for good, in one number (D.O.23, D.Q.12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.applied_operations import AppliedOperations, Outcome
from contextbus_protocol.values import MAX_SAFE_INTEGER

LISTS = ("constraints", "observations", "hypotheses", "decisions", "questions", "attempts")
KINDS = st.lists(st.sampled_from(("", *LISTS)), max_size=16)
REVISIONS = st.integers(1, MAX_SAFE_INTEGER)


@pytest.mark.rule("D.O.23", "D.Q.12")
@given(st.dictionaries(st.text(), st.tuples(REVISIONS, KINDS), max_size=60), st.text())
def test_it_is_a_map_from_operation_id_to_outcome(given_: dict[str, tuple[int, list[str]]], other: str) -> None:
    applied, versions = AppliedOperations(), [AppliedOperations()]
    expected: dict[str, Outcome] = {}
    for operation_id, (revision, kinds) in given_.items():
        ids = tuple(f"{kind}-{revision}-{index}" for index, kind in enumerate(kinds) if kind)
        applied = applied.add(operation_id, revision, ids)
        expected[operation_id] = Outcome(revision, ids)
        versions.append(applied)
    assert {i: applied.find(i) for i in expected} == expected
    assert applied.find(other) == expected.get(other)
    for count, version in enumerate(versions):
        assert [version.find(i) is not None for i in expected] == [n < count for n in range(len(expected))]


def test_of_an_id_that_was_taken_over_only_the_id_is_known() -> None:
    applied = AppliedOperations().take_over("theirs")
    assert applied.find("theirs") == Outcome(None, ())
    assert applied.find("ours") is None

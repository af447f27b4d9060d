"""Fusing rankings: by rank alone, and the same for everybody."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.sources.fusion import fuse_ranks
from contextbus_protocol.errors import RangeError

rankings_of_ids = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4)


def test_an_id_scores_the_sum_of_its_reciprocal_ranks() -> None:
    fused = fuse_ranks([["a", "b"], ["b", "c"]])
    assert fused == (("b", 1 / 62 + 1 / 61), ("a", 1 / 61), ("c", 1 / 62))
    assert fuse_ranks([]) == ()
    assert fuse_ranks([["a", "a", "b"]], k=0) == (("a", 1.0), ("b", 0.5))
    with pytest.raises(RangeError, match="60"):
        fuse_ranks([["a"]], k=-1)


@pytest.mark.rule("D.C.3")
@given(rankings_of_ids, st.integers(0, 100))
def test_every_id_stands_once_by_score_and_then_by_id(rankings: list[list[str]], k: int) -> None:
    fused = fuse_ranks(rankings, k)
    assert sorted(identifier for identifier, _ in fused) == sorted({i for ranking in rankings for i in ranking})
    assert list(fused) == sorted(fused, key=lambda item: (-item[1], item[0]))
    for identifier, score in fused:
        exact = sum(Fraction(1, k + r.index(identifier) + 1) for r in rankings if identifier in r)
        assert math.isclose(score, exact)


@given(rankings_of_ids, st.data())
def test_the_order_of_the_rankings_does_not_matter(rankings: list[list[str]], data: st.DataObject) -> None:
    assert fuse_ranks(data.draw(st.permutations(rankings))) == fuse_ranks(rankings)


@given(st.lists(st.text(), unique=True), st.integers(1, 4))
def test_a_ranking_fused_with_itself_keeps_its_order(ranking: list[str], times: int) -> None:
    assert [identifier for identifier, _ in fuse_ranks([ranking] * times)] == ranking


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_what_is_above_in_one_and_not_below_in_the_other_is_above(one: list[str], other: list[str]) -> None:
    places = {identifier: place for place, (identifier, _) in enumerate(fuse_ranks([one, other]))}
    for above in one:
        for below in one[one.index(above) + 1 :]:
            if below not in other or (above in other and other.index(above) < other.index(below)):
                assert places[above] < places[below]

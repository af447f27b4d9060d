"""Persistent vectors: what is read from the end, behind a place, or compared, is what a list would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.persistent import CHUNK, Vector

ITEMS = st.lists(st.integers(0, 3), max_size=3 * CHUNK)


def vector(items: list[int]) -> Vector[int]:
    return Vector[int]().extend(items)


@given(items=ITEMS, more=st.lists(st.integers(0, 3), max_size=CHUNK + 2))
def test_extending_is_adding_lists_and_leaves_the_old_vector_alone(items: list[int], more: list[int]) -> None:
    before = vector(items)
    after = before.extend(more)
    assert (list(before), list(after)) == (items, items + more)
    assert (len(before), len(after)) == (len(items), len(items) + len(more))
    assert after.begins_with(before)
    assert after == vector(items + more)  # one content, one form
    shared = zip(before.chunks, after.chunks, strict=False)
    assert all(a is b for a, b in shared)


@given(items=ITEMS)
def test_backwards_gives_the_items_from_the_last(items: list[int]) -> None:
    assert list(vector(items).backwards()) == items[::-1]


@given(items=ITEMS, count=st.integers(0, 3 * CHUNK + 5))
def test_behind_gives_what_follows_the_first(items: list[int], count: int) -> None:
    assert list(vector(items).behind(count)) == items[count:]


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3, 3 * CHUNK])
def test_behind_gives_what_follows_wherever_a_chunk_ends(length: int) -> None:
    items = list(range(length))
    for count in range(length + CHUNK + 2):
        assert list(vector(items).behind(count)) == items[count:]


@given(items=ITEMS, length=st.integers(0, 3 * CHUNK), spoiled=st.none() | st.integers(0, 3 * CHUNK))
def test_begins_with_is_having_the_same_first_items(items: list[int], length: int, spoiled: int | None) -> None:
    other = items[:length]
    if spoiled is not None and spoiled < len(other):
        other[spoiled] += 1
    assert vector(items).begins_with(vector(other)) == (items[: len(other)] == other)


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_a_longer_vector_is_not_the_beginning(length: int) -> None:
    items = list(range(length))
    assert vector(items).begins_with(vector(items))
    assert not vector(items).begins_with(vector([*items, 0]))
    assert not vector(items).begins_with(vector([*items, *range(CHUNK)]))


@given(items=ITEMS, count=st.integers(0, 3 * CHUNK + 5))
def test_keeping_the_first_shares_their_chunks_and_has_one_form(items: list[int], count: int) -> None:
    whole = vector(items)
    kept = whole.keep(count)
    assert kept == vector(items[:count])
    assert all(a is b for a, b in zip(kept.chunks, whole.chunks, strict=False))

"""The values that payloads are built of: persistent collections, read-only dicts, checked JSON text."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.frozen import FrozenDict, FrozenList, freeze, thaw
from contextbus.core.json_text import MAX_DEPTH, encode, quote, sound_object
from contextbus.core.persistent import CHUNK, Counts, Vector
from contextbus.core.wire import wire_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(parts=st.lists(st.integers(0, 150), max_size=5))
def test_a_vector_is_a_sequence_that_only_grows(parts: list[int]) -> None:
    vector, expected = Vector[int](), list[int]()
    for size in parts:
        before, grown = list(vector), vector.extend(range(size))
        expected += range(size)
        assert list(vector) == before
        assert all(old is new for old, new in zip(vector.chunks, grown.chunks, strict=False))
        vector = grown
        assert (list(vector), len(vector)) == (expected, len(expected))
        assert len(vector.rest) < CHUNK


@given(writes=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 9)), max_size=120))
def test_counts_are_a_map_that_keeps_its_older_versions(writes: list[tuple[int, int]]) -> None:
    counts, expected = Counts(), dict[str, int]()
    versions: list[tuple[Counts, dict[str, int]]] = []
    for key, number in writes:
        versions.append((counts, dict(expected)))
        counts = counts.set(str(key), number)
        expected[str(key)] = number
    for version, known in [*versions[-3:], (counts, expected)]:
        assert {str(key): version.get(str(key)) for key in range(401)} == {
            str(key): known.get(str(key), 0) for key in range(401)
        }


def test_counts_stay_shallow_with_many_keys() -> None:
    counts = Counts()
    for number in range(5000):
        counts = counts.set(f"call_{number}", number + 1)
    assert [counts.get(f"call_{number}") for number in range(5000)] == list(range(1, 5001))
    assert counts.get("\ud83d") == 0


@given(value=JSON)
def test_frozen_values_encode_like_plain_ones_and_copy_to_plain_ones(value: object) -> None:
    frozen = freeze(value)
    assert frozen == value
    assert json.dumps(frozen) == json.dumps(value)
    assert msgspec.json.encode(frozen) == msgspec.json.encode(value)
    for plain in (thaw(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert plain == value
        assert not isinstance(plain, FrozenDict | FrozenList)


CHANGES: list[Callable[[Any, Any], object]] = [
    lambda members, _: members.__setitem__("a", 1),
    lambda members, _: members.__delitem__("a"),
    lambda members, _: members.update(a=1),
    lambda members, _: members.pop("a"),
    lambda members, _: members.popitem(),
    lambda members, _: members.setdefault("b", 1),
    lambda members, _: members.clear(),
    lambda members, _: members.__ior__({"b": 1}),
    lambda _, items: items.__setitem__(0, 1),
    lambda _, items: items.__delitem__(0),
    lambda _, items: items.append(1),
    lambda _, items: items.extend([1]),
    lambda _, items: items.insert(0, 1),
    lambda _, items: items.pop(),
    lambda _, items: items.remove(1),
    lambda _, items: items.clear(),
    lambda _, items: items.sort(),
    lambda _, items: items.reverse(),
    lambda _, items: items.__iadd__([1]),
    lambda _, items: items.__imul__(2),
]


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_gets_through(change: Callable[[Any, Any], object]) -> None:
    value = cast("Any", freeze({"a": [1]}))
    with pytest.raises(TypeError, match=r"payload\.copy\(\)"):
        change(value, value["a"])
    assert value == {"a": [1]}
    assert copy.copy(value) == {"a": [1]}
    assert copy.copy(value["a"]) == [1]


@given(value=JSON)
def test_sound_json_stays_as_it_was_written(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, ensure_ascii=False)):
        assert sound_object(text) == (text if isinstance(value, dict) else None)


@pytest.mark.rule("P.E.6", "P.A.5")
def test_unsound_json() -> None:
    for text in ("", "{", "[1]", "nan", '{"a":NaN}', '{"a":1}x', '{"a":1e999}', '{"\\ud83d', "\ud83d"):
        assert sound_object(text) is None
    assert sound_object('{"a":"\\ud83d","\\uDE00b":1}') == '{"a":"\ufffd","\ufffdb":1}'
    assert sound_object('{"a":"\\ud83d\\ude00"}') == '{"a":"\\ud83d\\ude00"}'
    assert sound_object('{"a":"\ud83d"}') == '{"a":"\ufffd"}'
    deep = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert sound_object(deep) == deep
    assert sound_object('{"a":' + deep + "}") is None
    wide = '{"a":[' + ",".join(["{}"] * 500) + "]}"
    assert sound_object(wide) == wide
    braces = json.dumps({"a": '[{"' * 500})
    assert sound_object(braces) == braces


def test_surrogates_are_replaced_in_any_value() -> None:
    assert quote("\ud83d") == '"\ufffd"'.encode()
    assert encode({"\ud83d": ["\udc00", 1, {"a": "b"}]}) == '{"\ufffd":["\ufffd",1,{"a":"b"}]}'.encode()


@given(first=st.text(max_size=80), second=st.text(max_size=80))
def test_tool_names_are_mapped_injectively(first: str, second: str) -> None:
    one, other = wire_name(first, 64), wire_name(second, 64)
    assert (one == other) == (first == second)
    assert 1 <= len(one) <= 64
    assert all(char.isascii() and (char.isalnum() or char in "_-") for char in one)


def test_numbers_that_json_has_not_make_a_text_unsound_also_beside_half_escapes() -> None:
    half = r'{"a":"\ud83d","b":%s}'
    assert sound_object(half % "1") == '{"a":"\ufffd","b":1}'
    for number in ("NaN", "Infinity", "-Infinity"):
        assert sound_object(half % number) is None


def test_depth_is_counted_and_closed_brackets_are_not_in_it() -> None:
    for before in ("", "[],", "[],[],[[]],", '"[[[[",'):
        deepest = '{"a":[' + before + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + "]}"
        assert sound_object(deepest) == deepest
        deeper = '{"a":[' + before + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "]}"
        assert sound_object(deeper) is None


def test_the_greatest_depth_is_a_fixed_number() -> None:
    deepest = '{"a":' * 100 + "1" + "}" * 100  # what is deeper is refused by every release alike
    assert sound_object(deepest) == deepest
    assert sound_object('{"a":' + deepest + "}") is None

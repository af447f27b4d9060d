"""The dicts of settled messages are made once and shared, and no version sees those of another (P.E.4)."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.core.breakpoints import Overlay
from contextbus.core.persistent import CHUNK
from contextbus.core.settled import Settled
from contextbus.core.wire import Written


def write(name: str, count: int) -> list[Written]:
    return [Written(msgspec.json.encode({"role": "user", "content": f"{name} {index}"})) for index in range(count)]


def decode(settled: Settled) -> list[object]:
    return cast("list[object]", msgspec.json.decode(b"[%b]" % b"".join(settled.pieces())))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_version_of_a_branching_history_has_its_own_dicts(data: st.DataObject) -> None:
    versions = [Settled()]
    for number in range(data.draw(st.integers(1, 8))):
        base = data.draw(st.sampled_from(versions))
        versions.append(base.extend(write(str(number), data.draw(st.sampled_from((0, 1, 3, CHUNK, 3 * CHUNK))))))
        for version in data.draw(st.lists(st.sampled_from(versions), max_size=3)):
            assert version.dicts() == decode(version)
    for version in versions:
        assert version.dicts() == decode(version)


def test_dicts_are_made_once_and_the_list_is_the_callers() -> None:
    first = Settled().extend(write("a", 3 * CHUNK + 1))
    dicts = first.dicts()
    later = first.extend(write("b", CHUNK))
    dicts.clear()
    again = later.dicts()
    assert all(a is b for a, b in zip(first.dicts(), again[: len(first)], strict=True))
    again[0] = None
    assert later.dicts()[0] is not None


@pytest.mark.rule("P.E.4")
def test_a_breakpoint_of_one_request_is_in_no_other() -> None:
    settled = Settled().extend(write("a", 2 * CHUNK))
    end = len(settled.rest[0].json if settled.rest else settled.chunks[0][0].json) - 1
    marked = settled.dicts({0: (Overlay(end, b',"cache_control":{"type":"ephemeral"}'),)})
    assert cast("dict[str, object]", marked[0])["cache_control"] == {"type": "ephemeral"}
    assert settled.dicts() == decode(settled)


def test_versions_are_equal_whether_their_dicts_were_asked_for_or_not() -> None:
    one, other = (Settled().extend(write("a", 2 * CHUNK)) for _ in range(2))
    text = [message.json for chunk in one.chunks for message in chunk]
    assert text == [message.json for chunk in other.chunks for message in chunk]
    assert one.memo == other.memo
    one.dicts()
    assert one.memo == other.memo

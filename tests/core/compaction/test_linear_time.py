"""Work grows with the history, not with its square: lines of ours that run are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.core.compaction.histories import A, B, S, U, answers, asks, call, called, res, returned, says

from contextbus.core import compaction
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.pieces import shorten_text
from contextbus.core.compaction.ranges import Range, begin_range, find_bounds, replayed_message
from contextbus_protocol.values import RetentionPolicy

FOLDER = str(Path(compaction.__file__).parent)


def work(run: Callable[[], object]) -> int:
    """How many lines of the package run."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


def asked(number: int) -> Item:
    return says("assistant", called("a"), asks("a", f"p{number}"))


SHAPES: dict[str, Callable[[int], list[Item]]] = {
    "plain": lambda size: [U, A] * size,
    "exchanges": lambda size: [U, *([call("a"), res("a")] * size)],
    "parallel calls": lambda size: [call(*(f"c{n}" for n in range(size))), *(res(f"c{n}") for n in range(size))],
    "one id, all open": lambda size: [call("a")] * size,
    "one id, answered late": lambda size: [*([call("a")] * size), *([res("a")] * size), U],
    "one id, all dead": lambda size: [call("a"), U] * size,
    "dead, then answered": lambda size: [*([call("a"), U] * size), *([res("a")] * size)],
    "one id in one message": lambda size: [call(*["a"] * size), U, res(*["a"] * size)],
    "requests for the latest": lambda size: [*([call("a")] * size), *([says("assistant", asks("a"))] * size)],
    "approvals": lambda size: [asked(n) for n in range(size)] + [says("tool", answers(f"p{n}")) for n in range(size)],
    "open for ever": lambda size: [*(asked(n) for n in range(size)), *([U, A] * size)],
    "long running": lambda size: [call("a", tool="slow"), U] * size,
    "orphans": lambda size: [res("a"), says("tool", asks("b"))] * size,
    "calls of users": lambda size: [says("user", called("a"))] * size,
    "own blocks": lambda size: [B, U] * size,
    "systems": lambda size: [S] * size,
    "provider-executed": lambda size: [says("assistant", called("a"), returned("a")), A] * size,
}


@pytest.mark.rule("C.D.5", "C.D.9")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("media", ["protect", "placeholder"])
def test_planning_a_range_is_linear(shape: str, media: Any) -> None:
    def plan(items: list[Item]) -> None:
        bounds = find_bounds(items, long_running=("slow",), media=media)
        _, step = begin_range(items, bounds, RetentionPolicy(keep_last_messages=1, keep_last_turns=1))
        if isinstance(step, Range):
            replayed_message(items, step.start, step.end)

    small, large = SHAPES[shape](100), SHAPES[shape](800)
    assert work(lambda: plan(large)) <= 8.5 * work(lambda: plan(small))


@pytest.mark.rule("C.X.2")
def test_shortening_a_text_takes_the_same_steps_at_any_length() -> None:
    assert work(lambda: shorten_text("x" * 1_000_000, 100)) == work(lambda: shorten_text("x" * 1000, 100))


def test_the_counter_of_work_sees_a_square() -> None:
    """The measure itself can fail: planning once for each message is no longer linear."""

    def square(size: int) -> None:
        items = [U, A] * size
        for end in range(len(items)):
            find_bounds(items[:end])

    assert work(lambda: square(80)) > 30 * work(lambda: square(10))

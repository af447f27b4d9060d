"""What compaction costs by length of the history, and a step behind one: ``python -m benchmarks.compaction``."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import contextbus.client as contextbus
from benchmarks.history import GROWTH_GOAL, SCOPE, take_step
from benchmarks.ratios import Ratio, Report, count_cores, show, summarise
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.ranges import begin_range, find_bounds
from contextbus.summarisers.extractive import extract_summary
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult
from contextbus_protocol.values import RetentionPolicy

LENGTHS: Final = (100, 1_000, 10_000)
MODEL: Final = contextbus.Model("anthropic", "claude-opus-4-6", 2_000_000, 8_000)
_MESSAGES_OF_A_ROUND: Final = 20_000
_STEPS_OF_A_ROUND: Final = 20
_SUMMARY_TOKENS: Final = 2_000


def make_messages(count: int) -> list[ChatMessage]:
    """A conversation of so many messages with a tool call in each turn of four."""
    messages: list[ChatMessage] = []
    for turn in range(count // 4):
        call = f"call-{turn % 97}"
        messages += [
            contextbus.user(f"Question {turn}: why did build {4000 + turn} fail at /srv/ci/stage{turn % 7}?"),
            ChatMessage(role="assistant", content=(ToolCall(id=call, name="logs", arguments=f'{{"build":{turn}}}'),)),
            ChatMessage(
                role="tool", content=(ToolResult(id=call, content=(Text(text=f"error: exit code {turn % 5}"),)),)
            ),
            contextbus.assistant(f"Build {4000 + turn} failed since the cache of stage {turn % 7} was stale."),
        ]
    return messages


def time_each(work: Callable[[], object], count: int, messages: int) -> float:
    """Seconds that a message takes, over enough calls to look at ``messages`` of them."""
    times = max(1, messages // count)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times / count


def plan(items: Sequence[Item]) -> None:
    """The safe range of a history."""
    begin_range(items, find_bounds(items), RetentionPolicy(keep_last_messages=4))


async def begin_run(bus: contextbus.ContextBus, length: int) -> contextbus.Run:
    """A run of so many source messages whose history is compacted to a few."""
    options = contextbus.Compaction(
        triggers=[contextbus.messages_exceed(min(length, 100))], target_tokens=20_000, keep_last_messages=4
    )
    run = await bus.run(f"run-{length}", scope=SCOPE, compaction=options)
    run.append(*make_messages(length))
    await take_step(run, MODEL)
    return run


async def measure_steps(rounds: int, lengths: Sequence[int]) -> list[Ratio]:
    """What a step costs behind a compaction, by the number of source messages."""
    async with contextbus.open("memory:", memory=False) as bus:
        runs = [await begin_run(bus, length) for length in lengths]
        figures: list[list[float]] = []
        for _ in range(rounds):
            took: list[float] = []
            for run in runs:
                begin = time.perf_counter()
                for _ in range(_STEPS_OF_A_ROUND):
                    await take_step(run, MODEL)
                took.append(time.perf_counter() - begin)
            figures.append(took)
    return growth(figures, lengths, "step behind a compaction", "rules alone")


def growth(figures: Sequence[Sequence[float]], lengths: Sequence[int], what: str, where: str) -> list[Ratio]:
    """How each length compares with the first."""
    return [
        summarise(
            [took[index] / took[0] for took in figures],
            where=where,
            what=f"{what}, {length:,} messages",
            setting=f"against {lengths[0]:,}",
            measure="growth",
            goal=GROWTH_GOAL,
        )
        for index, length in enumerate(lengths)
        if index
    ]


def measure(rounds: int, lengths: Sequence[int], messages: int) -> list[Ratio]:
    """What a message costs to plan and to extract."""
    given = [make_messages(length) for length in lengths]
    items = [[Item(message) for message in each] for each in given]
    works: tuple[tuple[str, list[Callable[[], object]]], ...] = (
        ("plan, a message", [partial(plan, each) for each in items]),
        ("extractive summary, a message", [partial(extract_summary, each, _SUMMARY_TOKENS) for each in given]),
    )
    ratios: list[Ratio] = []
    for what, calls in works:
        figures = [
            [time_each(call, length, messages) for call, length in zip(calls, lengths, strict=True)]
            for _ in range(rounds)
        ]
        ratios += growth(figures, lengths, what, "pure")
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--quick", action="store_true", help="short histories and one round, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    lengths = (40, 80) if given.quick else LENGTHS
    ratios = measure(rounds, lengths, lengths[0] if given.quick else _MESSAGES_OF_A_ROUND)
    ratios += asyncio.run(measure_steps(rounds, lengths))
    report = Report(
        benchmark="compaction by length of the history",
        cores=count_cores(),
        loop="asyncio",
        rounds=rounds,
        quick=given.quick,
        ratios=tuple(ratios),
    )
    show(report, as_json=given.json)


if __name__ == "__main__":
    main()

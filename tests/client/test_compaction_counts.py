"""Counting the whole request: envelope, the host's own counter, budgets that leave no room (C.C, C.J, C.M.11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.compacting_runs import DONE, SMALL, Writing, bus_writing, contents, events_of, kinds, said, talk
from tests.client.scripted import CHARACTERS, SCOPE, Scripted, state_of

import contextbus.client as contextbus
from contextbus.client import Compaction, messages_exceed, tokens_exceed
from contextbus.core.estimate import make_estimator
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.errors import ContextBusError, HookFailedError, RangeError, RequestOverheadError
from contextbus_protocol.events import CompactionCompleted, CompactionFailed, CompactionStarted

TOOLS: list[dict[str, Any]] = [{"name": "deploy", "description": "Deploys. " * 20, "input_schema": {"type": "object"}}]


def options(*triggers: Any, **given: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"target_tokens": 600, "summariser": "writing"} | given
    return {"scope": SCOPE, "estimator": CHARACTERS, "compaction": Compaction(triggers=triggers, **chosen)}


class Counter:
    """Counts a hundred a message; it remembers what it was given."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.seen: list[tuple[ChatMessage, ...]] = []

    def __call__(self, messages: tuple[ChatMessage, ...]) -> Any:
        self.seen.append(messages)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return 100 * len(messages) if self.answer is None else self.answer


@pytest.mark.rule("C.J.1", "C.J.2", "C.J.4", "C.J.6", "C.C.11")
async def test_tools_and_schema_are_part_of_before_and_after_and_the_target_is_the_configured_one() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(3)))
        run.append(*talk(4))
        step = await run.before_model_call(model=SMALL, tools=TOOLS, output_schema={"type": "string"})
        started, completed = await events_of(bus, run)
        assert isinstance(started, CompactionStarted)
        assert isinstance(completed, CompactionCompleted)
        overhead = make_estimator(CHARACTERS)
        own = contextbus.estimate_overhead(TOOLS, {"type": "string"}, "openai", estimator=overhead)
        assert (started.envelope_tokens, started.target_tokens) == (own, 600)
        assert own > 40
        history = (await state_of(bus, run)).history.eighteenths
        assert started.tokens_before == overhead.tokens(history) + own == completed.tokens.before
        assert completed.tokens.after == step.manifest.budget.used_tokens


@pytest.mark.rule("C.J.8", "P.J.6")
async def test_the_output_is_reserved_by_the_caller_unless_it_is_a_window() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(3)))
        run.append(*talk(4))
        await run.before_model_call(model=SMALL)
        started = (await events_of(bus, run))[0]
        assert isinstance(started, CompactionStarted)
        assert started.envelope_tokens == 0


@pytest.mark.rule("C.J.5", "C.O.4", "C.K.4")
@pytest.mark.parametrize(("overhead", "fails"), [(599, False), (600, True), (5_000, True)])
async def test_an_envelope_that_leaves_no_room_under_the_target_fails_the_step(overhead: int, *, fails: bool) -> None:
    writer = Writing()
    model = contextbus.Model("openai", "gpt-test", 10_000, 100)
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options(messages_exceed(3)))
        run.append(*talk(4))
        with pytest.raises(ContextBusError) as raised:  # with a room of 1 the summary is what does not fit
            await run.before_model_call(model=model, overhead_tokens=overhead)
        failed = (await events_of(bus, run))[-1]
        assert isinstance(failed, CompactionFailed)
        assert (failed.reason == "request-overhead") is fails
        assert isinstance(raised.value, RequestOverheadError) is fails
        assert writer.asked == []
        assert (await state_of(bus, run)).checkpoint is None


@pytest.mark.rule("C.M.11", "C.C.4", "C.C.6", "C.C.7", "C.I.4")
async def test_the_hosts_counter_gets_complete_candidates_each_once() -> None:
    counter = Counter()
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(tokens_exceed(500), count_tokens=counter))
        run.append(*talk(4))
        step = await run.before_model_call(model=SMALL, overhead_tokens=7)
        started, completed = await events_of(bus, run)
        assert isinstance(started, CompactionStarted)
        assert isinstance(completed, CompactionCompleted)
        assert (started.tokens_before, started.host_tokens) == (907, 900)
        assert (completed.tokens.before, completed.tokens.after) == (907, 507)
        assert completed.host_counts == (900, 500, 500, 500)
        whole, empty, replaced, final = counter.seen
        assert list(whole) == talk(4)
        assert list(replaced) == talk(4)[:5]
        assert [len(empty), list(empty[1:])] == [5, talk(4)[5:]]
        assert said(final) == contents(step)
        assert "Archived: context://archive/" in str(empty[0])
        assert (await bus.verify("r")).is_clean
        await run.after_model_call(contextbus.Report(status="succeeded", usage={"input_tokens": 9_000}))
        run.append(user("More?"))
        await run.before_model_call(model=SMALL)  # 9,000 measured tokens say nothing to a host that counts
        assert len(counter.seen) >= 5
        assert [len(m) for m in counter.seen[4:5]] == [6]


@pytest.mark.rule("C.C.4", "C.H.10", "C.E.9")
async def test_blocks_behind_the_range_are_among_what_the_host_counts() -> None:
    counter = Counter()
    rag = check_source(Scripted([contextbus.candidate("0", "Deploys need CI.", 0.9)]))
    async with bus_writing(Writing(), sources=[rag]) as bus:
        run = await bus.run(
            "r", sources=["rag"], **options(messages_exceed(6), count_tokens=counter, target_tokens=2_000)
        )
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        assert [len(m) for m in counter.seen] == [3]
        await run.after_model_call(DONE)
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        assert "Deploys need CI." in str(counter.seen[1])
        assert len(counter.seen[1]) == 8
        second = await bus.run(
            "r", sources=["rag"], **options(messages_exceed(6), count_tokens=counter, target_tokens=2_000)
        )
        second.append(user("I too."))
        await run.after_model_call(DONE)
        await second.before_model_call(model=SMALL)
        assert "Done." in str(counter.seen[-1])


@pytest.mark.rule("C.C.5", "D.W.4")
@pytest.mark.parametrize("answer", [-1, float("nan"), float("inf"), 0.5, True, "5"])
async def test_what_is_no_count_is_refused(answer: object) -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(tokens_exceed(1), count_tokens=Counter(answer)))
        run.append(*talk(4))
        with pytest.raises(HookFailedError) as raised:
            await run.before_model_call(model=SMALL)
        assert isinstance(raised.value.__cause__, RangeError)
        assert (raised.value.origin, raised.value.origin_type) == ("count_tokens", "RangeError")
        assert await kinds(bus, run) == ["failed"]


@pytest.mark.rule("D.W.4", "C.C.4")
async def test_a_counter_may_be_async_and_what_it_raises_is_the_cause() -> None:
    error = ValueError("down")

    async def count(messages: tuple[ChatMessage, ...]) -> int:
        await asyncio.sleep(0)
        if len(messages) > 5:
            raise error
        return len(messages)

    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(3), count_tokens=count))
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(DONE)
        run.append(*talk(1))
        with pytest.raises(HookFailedError) as raised:
            await run.before_model_call(model=SMALL)
        assert raised.value.__cause__ is error


@pytest.mark.rule("C.C.4", "D.W.4")
async def test_a_counter_that_fails_within_the_reduction_is_the_cause_too() -> None:
    error = ValueError("down")
    counts = iter([900, 500])

    def count(_: tuple[ChatMessage, ...]) -> int:
        for known in counts:
            return known
        raise error

    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(3), count_tokens=count))
        run.append(*talk(4))
        with pytest.raises(ContextBusError) as raised:
            await run.before_model_call(model=SMALL)
        assert raised.value.__cause__ is error
        assert (await kinds(bus, run))[-1] == "failed"

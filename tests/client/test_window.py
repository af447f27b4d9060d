"""A run whose history stays inside the model's window (P.J)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.compacting_runs import (
    DONE,
    SMALL,
    Writing,
    bus_writing,
    contents,
    events_of,
    kinds,
    reported,
    said,
    talk,
)
from tests.client.scripted import CHARACTERS, SCOPE, Scripted, state_of

import contextbus.client as contextbus
from contextbus.client import Window
from contextbus.core.estimate import make_estimator
from contextbus.sources.interface import check_source
from contextbus_protocol.callbacks import BudgetInfo
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.errors import (
    CallbackTimeoutError,
    ContextBudgetExceededError,
    HookFailedError,
    InvalidTypeError,
    RequestOverheadError,
)
from contextbus_protocol.events import CompactionCompleted, CompactionFailed, CompactionStarted, StepCompiled
from contextbus_protocol.values import Model

History = tuple[ChatMessage, ...]
OVER = 20
"""So many turns are more than the window of the small model."""


def options(**given: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"summariser": "writing"} | given
    return {"scope": SCOPE, "estimator": CHARACTERS, "compaction": Window(**chosen)}


@asynccontextmanager
async def held(*sources: Scripted, **given: Any) -> AsyncGenerator[tuple[contextbus.ContextBus, contextbus.Run]]:
    """A bus and a run that keeps to its window."""
    checked = [check_source(source) for source in sources]
    async with bus_writing(Writing(), sources=checked) as bus:
        yield bus, await bus.run("r", sources=[s.id for s in sources], **options(**given))


def told_all(told: list[Any]) -> Callable[..., None]:
    """Keeps what it is told."""

    def keep(*given: object) -> None:
        told.append(given)

    return keep


def answering(answer: Any) -> Callable[..., Any]:
    """Gives the same whatever it is asked."""

    def give(*_: object) -> Any:
        return answer

    return give


def cost(messages: list[ChatMessage]) -> int:
    estimator = make_estimator(CHARACTERS)
    return estimator.tokens(sum(map(estimator.message, messages)))


@pytest.mark.rule("P.J.1", "P.J.5", "P.J.7", "C.J.4", "C.X.1")
async def test_without_any_option_the_estimator_counts_and_the_extractive_summariser_writes() -> None:
    async with contextbus.open("memory:", memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=Window())
        run.append(*talk(60))
        step = await run.before_model_call(model=SMALL)
        started, completed = await events_of(bus, run)
        assert isinstance(started, CompactionStarted)
        assert isinstance(completed, CompactionCompleted)
        assert (started.target_tokens, started.options.summariser) == (800, "extractive")
        assert completed.tokens.before > 1_000
        assert completed.tokens.after <= 800
        assert step.manifest.budget.used_tokens + 100 == completed.tokens.after
        assert step.manifest.budget.used_tokens <= step.manifest.budget.input_tokens
        assert contents(step)[-1] == "And now?"
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.J.1", "P.J.6")
@pytest.mark.parametrize(("more", "compacts"), [(0, False), (1, True)])
async def test_it_is_strictly_above_the_window_with_the_output_reserved(more: int, *, compacts: bool) -> None:
    async with held() as (bus, run):
        messages = talk(OVER - 4)
        run.append(*messages)
        await run.before_model_call(model=SMALL, overhead_tokens=1_000 - 100 - cost(messages) + more)
        assert bool(await kinds(bus, run)) is compacts


@pytest.mark.rule("P.J.1", "C.X.1")
async def test_summary_and_suffix_fit_the_kept_share_and_the_suffix_is_as_long_as_it_may_be() -> None:
    async with held(trigger_ratio=0.5, keep_ratio=0.4) as (bus, run):
        run.append(*talk(OVER - 8))
        step = await run.before_model_call(model=SMALL)
        completed = (await events_of(bus, run))[-1]
        assert isinstance(completed, CompactionCompleted)
        kept = talk(OVER - 8)[completed.source_count :]
        room = 400 - 100  # the share less the output's reserve; a half of it is for the summary
        assert cost(kept) <= room - room // 2 < cost(talk(OVER - 8)[completed.source_count - 1 :])
        assert contents(step)[1:] == said(kept)


@pytest.mark.rule("P.J.1", "C.J.5", "P.J.6")
async def test_an_overhead_that_alone_is_too_large_is_told_by_name_and_asks_nobody() -> None:
    """MoonshotAI/kimi-code#2325: every step compacted, for ever."""
    async with bus_writing(writer := Writing()) as bus:
        run = await bus.run("r", **options())
        model = Model("openai", "gpt-test", 32_768, 4_096)
        for number in range(3):
            run.append(user(f"Hi {number}."))
            with pytest.raises(RequestOverheadError) as raised:
                await run.before_model_call(model=model, overhead_tokens=29_000)
            assert raised.value.code == "request_overhead"
        failed = [e for e in await events_of(bus, run) if isinstance(e, CompactionFailed)]
        assert {(e.phase, e.reason) for e in failed} == {("compact", "request-overhead")}
        assert writer.asked == []
        assert (await state_of(bus, run)).checkpoint is None


@pytest.mark.rule("P.J.1", "P.J.5", "C.X.5")
async def test_a_request_that_cannot_fit_is_an_error_and_never_sent_with_a_floor() -> None:
    """stepfun-ai/Step-Realtime-CLI#84: a negative budget became a small positive one, and the request was sent."""
    async with bus_writing(writer := Writing()) as bus:
        run = await bus.run("r", **options())
        run.append(user("long " * 2_000))
        with pytest.raises(ContextBudgetExceededError) as raised:
            await run.before_model_call(model=SMALL)
        assert (raised.value.available_tokens, raised.value.data.origin_code) == (900, "no-safe-boundary")
        assert raised.value.required_tokens == cost([user("long " * 2_000)])
        assert writer.asked == []
        log = await bus.log("r")
        assert not any(isinstance(e, StepCompiled) for c in log.commits for e in c.commit.events)


@pytest.mark.rule("P.J.2", "C.M.2", "C.M.7", "P.J.6")
async def test_above_the_window_by_the_providers_count_all_but_the_last_message_is_compacted() -> None:
    async with held() as (bus, run):
        run.append(*talk(2))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(1_200))
        step = await run.before_model_call(model=SMALL)
        started, completed = await events_of(bus, run)
        assert isinstance(started, CompactionStarted)
        assert isinstance(completed, CompactionCompleted)
        assert (started.trigger_index, started.target_tokens) == (0, 800)
        assert started.tokens_before == 1_200 + cost([assistant("Done.")]) + 100
        assert completed.source_count == 5  # the user's last message is sent again
        assert contents(step)[1:] == ["And now?", "Done."]
        await run.after_model_call(contextbus.Report(status="failed"))
        run.append(user("More."))
        await run.before_model_call(model=SMALL)  # the value died with the prefix that it was measured on
        assert (await kinds(bus, run)).count("started") == 1


@pytest.mark.rule("P.J.2")
@pytest.mark.parametrize(("keep", "left"), [(1, 2), (3, 3)])
async def test_how_many_last_messages_stay_is_the_hosts_to_say(keep: int, left: int) -> None:
    async with held(keep_last_messages=keep) as (_, run):
        run.append(*talk(2))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(1_200))
        step = await run.before_model_call(model=SMALL)
        assert len(contents(step)) == 1 + left


@pytest.mark.rule("P.J.2")
async def test_with_both_numbers_the_larger_counts() -> None:
    async with held() as (bus, run):
        run.append(*talk(2))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(1))  # far below what the estimator says of what follows
        run.append(*talk(OVER))
        await run.before_model_call(model=SMALL)
        started = (await events_of(bus, run))[0]
        assert isinstance(started, CompactionStarted)
        assert started.trigger_index == 1
        assert started.tokens_before == cost([*talk(2), assistant("Done."), *talk(OVER)]) + 100


@pytest.mark.rule("P.J.3", "C.L.5", "C.D.8")
async def test_three_compiles_in_a_row_send_the_compacted_history_and_pay_for_one_summary() -> None:
    async with bus_writing(writer := Writing()) as bus:
        run = await bus.run("r", **options())
        call = ToolCall("c1", "look", "{}")
        history = talk(OVER)
        history[36:36] = [
            ChatMessage(role="assistant", content=(call,)),
            ChatMessage(role="tool", content=(ToolResult("c1", (Text("found"),)),)),
        ]
        run.append(*history)
        sent: list[list[str]] = []
        for _ in range(3):
            sent.append(contents(await run.before_model_call(model=SMALL)))
            await run.after_model_call(contextbus.Report(status="failed"))
        assert sent[0] == sent[1] == sent[2]
        assert len(writer.asked) == 1
        last = await bus.run("r", **options())  # a client that starts anew sends the same
        assert contents(await last.before_model_call(model=SMALL)) == sent[0]


# -- the host's own way


@pytest.mark.rule("P.J.4", "P.J.8", "C.L.1", "C.O.6", "D.W.4")
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_host_is_asked_first_and_what_it_gives_is_kept_and_counted_again(*, is_async: bool) -> None:
    asked: list[tuple[History, BudgetInfo]] = []

    def shorten(history: History, info: BudgetInfo) -> list[ChatMessage]:
        asked.append((history, info))
        return [*history[:1], user("(much was said)"), *history[-3:]]

    async def later(history: History, info: BudgetInfo) -> list[ChatMessage]:
        await asyncio.sleep(0)
        return shorten(history, info)

    async with bus_writing(writer := Writing()) as bus:
        told: list[Any] = []
        hook: Callable[..., Any] = later if is_async else shorten
        run = await bus.run("r", **options(on_budget_exceeded=hook, on_compress=told_all(told)))
        run.append(*talk(OVER))
        step = await run.before_model_call(model=SMALL, overhead_tokens=5)
        ((history, info),) = asked
        assert list(history) == talk(OVER)
        total = cost(talk(OVER))
        assert info == BudgetInfo(current_tokens=total + 105, limit=1_000, envelope_tokens=105, history_tokens=total)
        mine = said((talk(OVER)[0], user("(much was said)"), *talk(OVER)[-3:]))
        assert contents(step) == mine
        completed = (await events_of(bus, run))[-1]
        assert isinstance(completed, CompactionCompleted)
        assert (completed.host, completed.archive, completed.source_count) == (True, None, 38)
        assert completed.tokens.before == total + 105
        assert completed.tokens.after == step.manifest.budget.used_tokens + 100
        assert (writer.asked, told) == ([], [])
        assert [m for m in run.messages] == talk(OVER)  # noqa: C416  # the source messages are whole
        await run.after_model_call(DONE)
        again = await bus.run("r", **options(on_budget_exceeded=hook))
        again.append(user("More?"))
        assert contents(await again.before_model_call(model=SMALL)) == [*mine, "Done.", "More?"]
        assert len(asked) == 1
        assert (await kinds(bus, run)) == ["started", "completed", "restored"]
        assert (await bus.compactions("r"))[0].host
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.J.4", "P.J.8")
@pytest.mark.parametrize("answer", [None, "same"])
async def test_none_and_the_same_history_go_on(answer: str | None) -> None:
    def same(history: History, _: BudgetInfo) -> list[ChatMessage] | None:
        return None if answer is None else list(history)

    async with held(on_budget_exceeded=same) as (bus, run):
        run.append(*talk(OVER))
        step = await run.before_model_call(model=SMALL)
        completed = (await events_of(bus, run))[-1]
        assert isinstance(completed, CompactionCompleted)
        assert not completed.host
        assert "Short." in contents(step)[0]


@pytest.mark.rule("P.J.8", "P.J.4", "C.L.7")
async def test_what_is_still_too_large_is_compacted_and_the_host_is_not_asked_again() -> None:
    asked: list[History] = []

    def shorten(history: History, _: BudgetInfo) -> History:
        asked.append(history)
        return history[2:]

    async with bus_writing(writer := Writing()) as bus:
        run = await bus.run("r", **options(on_budget_exceeded=shorten))
        run.append(*talk(30))
        step = await run.before_model_call(model=SMALL)
        assert await kinds(bus, run) == ["started", "completed", "started", "completed"]
        assert (len(asked), len(writer.asked)) == (1, 1)
        assert said(writer.asked[0].messages)[0].startswith("Ask 1:")
        assert "Short." in contents(step)[0]
        assert len({e.evaluation for e in await events_of(bus, run)}) == 2
        host, own = [e for e in await events_of(bus, run) if isinstance(e, CompactionCompleted)]
        assert own.source_count > host.source_count > 0
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.J.8", "D.F.13", "P.D.4", "C.L.7")
async def test_blocks_stay_where_they_stand_also_that_of_the_step_itself() -> None:
    rag = Scripted([contextbus.candidate("0", "Deploys need CI.", 0.9)])
    seen: list[History] = []

    def shorten(history: History, _: BudgetInfo) -> History:
        seen.append(history)
        return tuple(user(f"{index}") if index > 1 else m for index, m in enumerate(history))

    async with held(rag, on_budget_exceeded=shorten) as (bus, run):
        run.append(user("First?"))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(DONE)
        rag.answer = [contextbus.candidate("1", "Rollbacks use tags.", 0.9)]
        run.append(*talk(OVER))
        step = await run.before_model_call(model=SMALL, refresh=True)
        assert all("CI" not in text for text in said(seen[0]))
        shown = contents(step)
        assert ("Deploys need CI." in shown[1], shown[0], shown[2:4]) == (True, "First?", ["Done.", "2"])
        assert "Rollbacks use tags." in shown[-1]
        await run.after_model_call(DONE)
        state = await state_of(bus, run)
        assert [block.position for block in state.blocks] == [1, 43]
        run.append(user("Next?"))
        after = contents(await run.before_model_call(model=SMALL))
        assert list(after) == [*shown, "Done.", "Next?"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.J.8", "D.W.4")
@pytest.mark.parametrize("answer", [[], "text", 5, [5], [{"role": "nobody"}]])
async def test_what_is_no_history_is_refused(answer: Any) -> None:
    async with held(on_budget_exceeded=answering(answer)) as (bus, run):
        run.append(*talk(OVER))
        with pytest.raises(HookFailedError) as raised:
            await run.before_model_call(model=SMALL)
        assert isinstance(raised.value.__cause__, InvalidTypeError)
        assert raised.value.origin == "on_budget_exceeded"
        assert await kinds(bus, run) == ["failed"]
        assert (await state_of(bus, run)).checkpoint is None


@pytest.mark.rule("D.W.4", "P.J.4")
async def test_a_hook_that_does_not_answer_in_time_counts_as_raised() -> None:
    async def hangs(*_: object) -> None:
        await asyncio.sleep(60)

    async with held(on_budget_exceeded=hangs) as (bus, run):
        run.append(*talk(OVER))
        with pytest.raises(CallbackTimeoutError, match="on_budget_exceeded"):
            await run.before_model_call(model=SMALL, seconds=0.2)
        assert await kinds(bus, run) == ["failed"]


@pytest.mark.rule("P.J.4", "D.W.4")
async def test_on_compress_is_told_once_it_is_durable() -> None:
    found: list[tuple[str, int, CompactionCompleted, bool]] = []

    async def told(summary: str, count: int, details: CompactionCompleted) -> None:
        stored = (await state_of(bus, run)).checkpoint
        found.append((summary, count, details, stored is not None and stored.replaced_by == details.replaced_by))

    async with held(on_compress=told) as (bus, run):
        run.append(*talk(OVER))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(DONE)
        await run.before_model_call(model=SMALL)
        ((summary, count, details, durable),) = found
        assert (summary, durable) == ("Short.", True)
        assert count == details.source_count == details.replaced_range.end


@pytest.mark.rule("P.J.5", "C.X.5")
async def test_a_summariser_that_fails_leaves_the_history_and_the_step_goes_on_where_it_fits() -> None:
    async with bus_writing(writer := Writing(RuntimeError("down"))) as bus:
        warned: list[str] = []
        window = options(trigger_ratio=0.5, keep_ratio=0.4)
        run = await bus.run("r", on_warning=lambda w: warned.append(w.code), **window)
        run.append(*talk(OVER - 8))
        step = await run.before_model_call(model=SMALL)
        assert contents(step) == said(talk(OVER - 8))
        assert (warned, len(writer.asked)) == (["compaction-failed"], 1)


@pytest.mark.rule("P.J.2", "P.J.8")
async def test_a_host_that_counts_counts_its_own_history_too() -> None:
    counted: list[History] = []

    def count(messages: History) -> int:
        counted.append(messages)
        return 100 * len(messages)

    def last(history: History, _: BudgetInfo) -> History:
        return history[-2:]

    async with held(count_tokens=count, on_budget_exceeded=last) as (bus, run):
        run.append(*talk(5))
        await run.before_model_call(model=SMALL)
        completed = (await events_of(bus, run))[-1]
        assert isinstance(completed, CompactionCompleted)
        assert (completed.tokens.before, completed.tokens.after, completed.host_counts) == (1_200, 300, (200,))
        assert [len(c) for c in counted] == [11, 2, 2]


@pytest.mark.broker
@pytest.mark.rule("P.J.3", "P.J.4", "C.L.5", "D.W.1")
async def test_on_a_server_what_was_compacted_is_there_after_a_restart(tmp_path: Path) -> None:
    def opened() -> Any:
        return contextbus.open(data=tmp_path, memory=False, durability="interval", summarisers=[Writing()])

    def shorten(history: History, _: BudgetInfo) -> History:
        return history[6:]

    async with opened() as bus:
        run = await bus.run("r", **options(on_budget_exceeded=shorten))
        run.append(*talk(30))
        first = contents(await run.before_model_call(model=SMALL))
        await run.after_model_call(DONE)
    async with opened() as bus:
        run = await bus.run("r", **options())
        run.append(user("And?"))
        assert contents(await run.before_model_call(model=SMALL)) == [*first, "Done.", "And?"]
        assert [i.status for i in await bus.compactions("r")] == ["completed", "completed", "restored"]
        assert (await bus.verify("r")).is_clean

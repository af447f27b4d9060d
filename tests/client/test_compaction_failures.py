"""Summaries that are refused or do not come: stop, continue, drop, pauses, cancellation (C.X.4, C.X.5, C.K, C.O)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from tests.client.compacting_runs import (
    DONE,
    SMALL,
    Writing,
    bus_writing,
    contents,
    events_of,
    kinds,
    roles,
    said,
    talk,
)
from tests.client.scripted import CHARACTERS, SCOPE, state_of

import contextbus.client as contextbus
from contextbus.client import Compaction, Window, compaction_log, messages_exceed, reading
from contextbus.client.compaction_options import CompactionEvent
from contextbus.client.triggers import TriggerFunction
from contextbus.summarisers.interface import Summary, SummaryRequest
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import ContextBudgetExceededError, NotFoundError, SummariserFailedError
from contextbus_protocol.events import CompactionCompleted, CompactionFailed, CompactionStarted
from contextbus_protocol.package import ContextWarning
from contextbus_protocol.values import Model, Usage

BIG = Model("openai", "gpt-test", 100_000, 1_000)
PAID = Usage(input_tokens=70, output_tokens=7)


def options(**given: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"triggers": [messages_exceed(6)], "target_tokens": 3_000, "summariser": "writing"} | given
    return {"scope": SCOPE, "estimator": CHARACTERS, "compaction": Compaction(**chosen)}


def refused(reason: str) -> Summary | str | BaseException:
    """What a summariser gives that comes to a reason."""
    answers: dict[str, Summary | str | BaseException] = {
        "empty-summary": Summary((SummaryPart("text", " \n"),), "stop", PAID),
        "incomplete-summary": Summary((SummaryPart("text", "Cut"),), "length", PAID),
        "summary-too-large": Summary((SummaryPart("text", "more " * 5_000),), "stop", PAID),
        "error": RuntimeError("down"),
    }
    return answers[reason]


async def fail_of(bus: contextbus.ContextBus, run: contextbus.Run) -> CompactionFailed:
    """The newest event, a failure."""
    event = (await events_of(bus, run))[-1]
    assert isinstance(event, CompactionFailed)
    return event


REASONS = ["empty-summary", "incomplete-summary", "summary-too-large", "error"]


@pytest.mark.rule("C.X.5", "C.K.4", "C.K.5", "C.G.4", "C.O.4")
@pytest.mark.parametrize("reason", REASONS)
async def test_stop_fails_the_step_and_leaves_the_history(reason: str) -> None:
    writer = Writing(refused(reason))
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options())
        run.append(*talk(4))
        with pytest.raises(SummariserFailedError) as raised:
            await run.before_model_call(model=BIG)
        event = await fail_of(bus, run)
        assert (event.phase, event.reason, event.summariser) == ("compact", reason, "writing")
        assert event.usage == (None if reason == "error" else PAID)
        assert raised.value.__cause__ is (writer.answer if reason == "error" else None)
        state = await state_of(bus, run)
        assert (state.history.count, state.checkpoint, state.last) == (9, None, None)
        assert state.usage.input_tokens == (0 if reason == "error" else 70)
        (info,) = await bus.compactions("r")
        assert (info.status, info.reason) == ("failed", reason)
        writer.answer = "Short."
        step = await run.before_model_call(model=BIG)
        assert "Short." in contents(step)[0]


@pytest.mark.rule("C.X.5", "P.J.5")
@pytest.mark.parametrize("reason", REASONS)
async def test_continue_goes_on_with_the_whole_history_and_a_warning(reason: str) -> None:
    warned: list[ContextWarning] = []
    async with bus_writing(Writing(refused(reason))) as bus:
        run = await bus.run("r", on_warning=warned.append, **options(on_failure="continue"))
        run.append(*talk(4))
        step = await run.before_model_call(model=BIG)
        assert contents(step) == said(talk(4))
        assert [w.code for w in warned] == ["compaction-failed"]
        assert (await fail_of(bus, run)).reason == reason
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.X.5")
@pytest.mark.parametrize("reason", REASONS)
async def test_drop_lets_the_range_go_without_a_summary(reason: str) -> None:
    told: list[tuple[Any, ...]] = []

    def keep(*given: object) -> None:
        told.append(given)

    given = options(on_failure="drop", on_compress=keep)
    async with bus_writing(Writing(refused(reason))) as bus:
        run = await bus.run("r", **given)
        run.append(*talk(4))
        step = await run.before_model_call(model=BIG)
        assert contents(step) == said(talk(4)[5:])
        event = (await events_of(bus, run))[-1]
        assert isinstance(event, CompactionCompleted)
        assert (event.dropped, event.summariser, told) == (True, "", [("", 5, event)])
        assert event.archive is not None
        assert len(await run.resolve(f"context://archive/{event.archive.removeprefix('sha256:')}")) == 5


@pytest.mark.rule("C.X.5", "C.O.4")
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
async def test_three_failures_in_a_row_pause_until_the_host_resets_it(on_failure: str) -> None:
    writer = Writing(refused("empty-summary"))
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options(on_failure=on_failure))
        run.append(*talk(4))

        async def step() -> str:
            try:
                await run.before_model_call(model=BIG)
            except SummariserFailedError as exc:
                return str(exc.origin_code)
            await run.after_model_call(contextbus.Report(status="failed"))
            return ""

        outcome = {"stop": "empty-summary", "continue": "", "drop": ""}[on_failure]
        assert [await step() for _ in range(5)] == [outcome] * 5
        if on_failure == "drop":
            assert len(writer.asked) == 1  # what was dropped leaves nothing to match
            return
        assert len(writer.asked) == 3
        found = await events_of(bus, run)
        paused = [e for e in found if isinstance(e, CompactionFailed) and e.reason == "paused"]
        assert [e.phase for e in paused] == ["evaluate"]
        assert (await kinds(bus, run)).count("started") == 3
        await run.reset_compaction()
        writer.answer = "Short."
        assert await step() == ""
        assert len(writer.asked) == 4
        assert (await kinds(bus, run))[-1] == "completed"


@pytest.mark.rule("C.X.5", "C.I.5")
async def test_a_pause_ends_once_the_history_has_grown_by_a_fifth() -> None:
    writer = Writing(refused("empty-summary"))
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options(on_failure="continue"))
        run.append(*talk(10))
        for _ in range(4):
            await run.before_model_call(model=BIG)
            await run.after_model_call(contextbus.Report(status="failed"))
        assert len(writer.asked) == 3
        run.append(*talk(1))
        await run.before_model_call(model=BIG)
        assert len(writer.asked) == 3
        run.append(*talk(1))
        await run.before_model_call(model=BIG)
        assert len(writer.asked) == 4


@pytest.mark.rule("C.X.5", "D.W.1")
async def test_reset_needs_a_run_and_another_client_may_ask_for_it() -> None:
    async with bus_writing(Writing(refused("error"))) as bus:
        run = await bus.run("r", **options(on_failure="continue"))
        with pytest.raises(NotFoundError):
            await run.reset_compaction()
        run.append(*talk(4))
        for _ in range(3):
            await run.before_model_call(model=BIG)
            await run.after_model_call(contextbus.Report(status="failed"))
        assert (await state_of(bus, run)).failures.paused_at is not None
        await (await bus.run("r", scope=SCOPE)).reset_compaction()
        assert (await state_of(bus, run)).failures.in_row == 0
        await run.before_model_call(model=BIG)


@pytest.mark.rule("C.X.5")
async def test_continue_fails_where_the_request_does_not_fit() -> None:
    async with bus_writing(Writing(refused("error"))) as bus:
        run = await bus.run("r", **options(on_failure="continue", target_tokens=800))
        run.append(*talk(40))
        with pytest.raises(ContextBudgetExceededError) as raised:
            await run.before_model_call(model=SMALL)
        assert (raised.value.available_tokens, raised.value.phase) == (900, "compaction")
        assert raised.value.required_tokens > 900


@pytest.mark.rule("C.K.8", "D.W.5", "C.O.11", "C.O.10")
async def test_a_cancelled_step_leaves_no_end_and_is_shown_as_interrupted() -> None:
    asked = asyncio.Event()

    async def hangs(_: SummaryRequest) -> str:
        asked.set()
        await asyncio.sleep(60)
        return "never"

    async with bus_writing(hangs) as bus:
        run = await bus.run("r", **options(summariser="hangs"))
        run.append(*talk(4))
        task = asyncio.create_task(run.before_model_call(model=BIG))
        await asyncio.wait_for(asked.wait(), 5)
        assert await kinds(bus, run) == ["started"]  # told at once, while the summariser is asked
        assert [c.status for c in await bus.compactions("r")] == ["started"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await kinds(bus, run) == ["started"]
        (info,) = await bus.compactions("r")
        assert (info.status, info.reason, info.estimated_after) == ("interrupted", None, None)
        state = await state_of(bus, run)
        assert (state.checkpoint, state.last, state.failures.in_row) == (None, None, 0)


@pytest.mark.rule("C.O.11", "C.O.13", "C.O.9")
async def test_the_evaluations_of_a_run_are_grouped_and_one_without_an_end_is_over_with_the_next_step() -> None:
    gate, first = asyncio.Event(), True

    async def once(_: SummaryRequest) -> str:
        nonlocal first
        if first:
            first = False
            await gate.wait()
        return "Short."

    async with bus_writing(once) as bus:
        run = await bus.run("r", **options(summariser="once"))
        run.append(*talk(4))
        task = asyncio.create_task(run.before_model_call(model=BIG))
        while not await kinds(bus, run):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await run.before_model_call(model=BIG)
        again = await bus.run("r", **options(summariser="once"))  # another host reads the same
        infos = await bus.compactions(again.id)
        assert [i.status for i in infos] == ["interrupted", "completed"]
        assert len({i.evaluation for i in infos}) == 2
        done = infos[1]
        assert done.estimated_before is not None
        assert done.estimated_after is not None
        assert done.estimated_after < done.estimated_before
        assert (done.scope, done.source_messages, done.replacement_messages, done.step) == ("request", 5, 1, 0)


@pytest.mark.rule("C.O.10", "C.O.13", "D.W.4")
async def test_observers_are_told_each_event_once_and_their_failure_changes_nothing() -> None:
    told: list[str] = []

    async def fails(*given: object) -> None:
        await asyncio.sleep(0)
        told.append(type(given[-1]).__name__)
        raise RuntimeError("the password is swordfish")

    with structlog.testing.capture_logs() as logged:
        async with bus_writing(Writing()) as bus:
            run = await bus.run("r", **options(on_event=fails, on_compress=fails))
            run.append(*talk(4))
            step = await run.before_model_call(model=BIG)
            await run.after_model_call(DONE)
            other = await bus.run("r", **options(on_event=fails))
            await other.before_model_call([*talk(4), assistant("Done.")], model=BIG)
            assert "Short." in contents(step)[0]
            assert told == ["CompactionStarted", "CompactionCompleted", "CompactionCompleted"]
            assert {line["event"] for line in logged} >= {"on_event_failed", "on_compress_failed"}
            assert "swordfish" not in str(logged)


@pytest.mark.rule("C.O.13", "D.W.4")
@pytest.mark.parametrize("fails", [False, True])
async def test_steps_that_evaluate_nothing_read_no_log_for_an_observer(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    reads: list[int] = []
    read_part = reading.read_part

    async def counted(*given: Any) -> Any:
        reads.append(given[-1])
        return await read_part(*given)

    monkeypatch.setattr(compaction_log, "read_part", counted)
    told: list[CompactionEvent] = []
    warned = 0
    writer = Writing(RuntimeError("down") if fails else "Short.")
    async with bus_writing(writer) as bus:
        given = options(triggers=[messages_exceed(20)], on_event=told.append, on_failure="continue")
        run = await bus.run("r", **given)
        for turn in range(15):
            run.append(user(f"Question {turn}"))
            for _ in range(3):  # a tool loop: steps within one turn
                step = await run.before_model_call(model=BIG)
                warned += ContextWarning("compaction-failed") in step.warnings
                await run.after_model_call(DONE)
            if len(run.messages) < 20:
                assert (told, reads) == ([], [])
        assert told == await events_of(bus, run)
        kinds_told = [type(event).__name__ for event in told]
        assert {"CompactionStarted", "CompactionFailed" if fails else "CompactionCompleted"} <= set(kinds_told)
        assert ("CompactionRestored" in kinds_told) == (not fails)
        # a step that is warned of a pause looks the same as one whose summary failed
        assert len(reads) == (warned if fails else len({event.evaluation for event in told})) < 45
        reopened = await bus.run("r", **given)
        reopened.append(user("Once more"))
        await reopened.before_model_call(model=BIG)
        assert told == (await events_of(bus, run))


@pytest.mark.rule("C.F.4", "C.O.7", "D.I.5")
@pytest.mark.parametrize("overflows", [False, True])
async def test_the_hosts_instructions_reach_the_summariser_and_no_log(*, overflows: bool) -> None:
    writer = Writing()
    async with bus_writing(writer) as bus:
        triggers = [messages_exceed(100 if overflows else 6)]
        run = await bus.run("r", **options(triggers=triggers, instructions="Keep every price of swordfish."))
        run.append(*talk(4))
        await run.before_model_call(model=BIG)
        if overflows:
            assert writer.asked == []
            await run.on_overflow()
        (asked,) = writer.asked
        assert asked.instructions.endswith("Keep every price of swordfish.")
        assert "swordfish" not in repr(await bus.log("r"))


@pytest.mark.rule("D.I.5", "C.M.11", "D.W.4")
async def test_an_overflow_asks_the_hosts_counter_and_no_trigger() -> None:
    counted: list[int] = []

    def count(messages: tuple[object, ...]) -> int:
        counted.append(len(messages))
        return 100 * len(messages)

    async with bus_writing(Writing()) as bus:
        told: list[CompactionEvent] = []
        triggers: list[TriggerFunction] = [messages_exceed(100), lambda snapshot: snapshot.tokens > 5_000]
        run = await bus.run("r", **options(triggers=triggers, count_tokens=count, on_event=told.append))
        run.append(*talk(4))
        await run.before_model_call(model=BIG)
        assert counted == [9]
        step = await run.on_overflow()
        assert counted == [9, 9, 5, 5, 5]
        assert [e.cause for e in told if isinstance(e, CompactionStarted)] == ["overflow"]
        assert "Short." in contents(step)[0]


@pytest.mark.rule("C.X.4", "C.X.5")
async def test_a_summary_that_does_not_shrink_is_refused_and_not_bought_again_each_turn() -> None:
    """google-gemini/gemini-cli#4557, Cloudgeni-ai/opengeni#271: a summary that was no smaller was bought each turn."""
    async with bus_writing(writer := Writing()) as bus:
        run = await bus.run("r", **options(target_tokens=10_000, on_failure="continue"))
        run.append(*talk(4))
        writer.answer = "so " * 400
        for _ in range(6):
            await run.before_model_call(model=BIG)
            await run.after_model_call(contextbus.Report(status="failed"))
        assert len(writer.asked) == 1
        found = [e.reason for e in await events_of(bus, run) if isinstance(e, CompactionFailed)]
        assert found == ["summary-too-large", "paused"]
        assert roles(run.messages) == roles(talk(4))


@pytest.mark.rule("C.G.5", "C.G.6", "C.X.5")
@pytest.mark.parametrize("reason", ["empty-summary", "incomplete-summary"])
async def test_an_empty_or_cut_summary_is_told_by_name_and_asked_for_a_bounded_number_of_times(reason: str) -> None:
    """justrach/codegraff#379, MoonshotAI/kimi-code#1214: each message bought an empty or cut summary."""
    async with bus_writing(writer := Writing(refused(reason))) as bus:
        run = await bus.run("r", **options(on_failure="continue"))
        run.append(*talk(20))
        for number in range(10):
            await run.before_model_call(model=BIG)
            await run.after_model_call(DONE)
            run.append(user(f"Go on {number}."))
        assert len(writer.asked) == 3
        reasons = [e.reason for e in await events_of(bus, run) if isinstance(e, CompactionFailed)]
        assert reasons == [reason] * 3 + ["paused"]


@pytest.mark.rule("C.X.5", "P.J.3")
async def test_one_recent_turn_above_the_threshold_is_no_loop() -> None:
    """can1357/oh-my-pi#3412: compaction went on without end."""
    warned: list[str] = []
    async with bus_writing(writer := Writing()) as bus:
        window = Window(trigger_ratio=0.5, keep_ratio=0.4, summariser="writing")
        run = await bus.run(
            "r", scope=SCOPE, estimator=CHARACTERS, compaction=window, on_warning=lambda w: warned.append(w.code)
        )
        run.append(*talk(4), user("long " * 480))  # the last turn alone takes 600 of 1,000 tokens
        for _ in range(6):
            await run.before_model_call(model=SMALL)
            await run.after_model_call(contextbus.Report(status="failed"))
        assert len(writer.asked) <= 1
        assert warned == ["compaction-failed"] * 6  # each step says once that it goes on with the whole history


@pytest.mark.rule("C.F.8", "D.I.5", "D.W.2")
async def test_what_a_summariser_raises_beside_an_overflow_is_the_cause() -> None:
    writer = Writing(RuntimeError("down"))
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options(triggers=[messages_exceed(100)]))
        run.append(*talk(4))
        await run.before_model_call(model=BIG)
        with pytest.raises(SummariserFailedError) as raised:
            await run.on_overflow()
        assert raised.value.__cause__ is writer.answer

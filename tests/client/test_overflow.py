"""``on_overflow``: the step compiled again for less, through a client (D.I, D.R.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, sent, state_of
from tests.client.test_kept_tails import OPUS, flat, hidden, request, take, thoughts

import contextbus.client as contextbus
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import ContextBudgetExceededError, InvalidTypeError, StaleStepError
from contextbus_protocol.values import StepOptions

BIG = contextbus.candidate("big", "word " * 400, 0.9)
SMALL = contextbus.candidate("small", "Deploys need CI.", 0.8)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run it.")])
OVERFLOW = contextbus.Report(status="overflow")


def told(step: contextbus.CompiledStep) -> dict[str, str]:
    return {e.record_id: e.reason for e in step.manifest.entries}


@pytest.mark.rule("D.I.1", "D.I.2", "D.I.4", "D.R.6", "D.W.8")
@pytest.mark.parametrize("reported", [False, True])
async def test_after_open_and_after_a_report_of_the_overflow(*, reported: bool) -> None:
    rag = Scripted([BIG, SMALL])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL)
        assert told(first) == {"big": "ranked", "small": "ranked"}
        if reported:
            await run.after_model_call(OVERFLOW)
        rag.answer, rag.asked = [contextbus.candidate("new", "New.", 1.0)], []
        used = first.manifest.budget.used_tokens
        step = await run.on_overflow(used + 700)
        assert (step.step, step.manifest.refresh, rag.asked) == (0, "overflow-retry", [])
        assert told(step) == {"big": "over-budget", "small": "ranked"}
        assert len(sent(step)) == 2
        await run.after_model_call(DONE)
        state = await state_of(bus, run)
        assert [(p.record_id, p.step) for p in state.placed] == [("small", 0)]
        run.append(user("And?"))
        after = await run.before_model_call(model=MODEL)
        assert sent(after)[:2] == sent(step)
        assert not after.manifest.cache_prefix_changed
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.I.1")
async def test_a_history_that_alone_is_too_large_stays_and_a_shorter_list_takes_the_steps_place() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        messages = [user("word " * 200), assistant("Yes."), user("How?")]
        first = await run.before_model_call(messages, model=MODEL)
        again = await run.on_overflow(100)
        budget = again.manifest.budget
        assert budget.used_tokens > budget.input_tokens == 100
        assert sent(again) == sent(first)
        shorter = await run.before_model_call(messages[2:], model=MODEL)
        assert shorter.manifest.budget.used_tokens < 100
        assert sent(shorter) == sent(first)[2:]


@pytest.mark.rule("D.I.5")
async def test_by_default_it_is_one_token_less_each_time() -> None:
    async with bus_with(Scripted([BIG, SMALL])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        for _ in range(2):
            size = step.manifest.budget.used_tokens + step.manifest.budget.selected_tokens
            step = await run.on_overflow()
            assert step.manifest.budget.input_tokens == size - 1
        assert step.manifest.budget.selected_tokens == 0
        assert (await bus.verify("r")).steps == 3


@pytest.mark.rule("D.I.3", "D.I.5", "D.T.1")
async def test_mandatory_content_that_does_not_fit_is_raised_with_its_phase() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy. " * 100)
        await run.before_model_call([user("How?")], model=MODEL)
        with pytest.raises(ContextBudgetExceededError) as raised:
            await run.on_overflow(50)
        assert raised.value.data.phase == "overflow-retry"
        assert (await run.on_overflow(5_000)).manifest.placement.tail


@pytest.mark.rule("D.I.6", "D.T.4")
async def test_without_a_step_it_is_a_type_error() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        with pytest.raises(TypeError, match="before_model_call"):
            await run.on_overflow()
        run.append(user("How?"))
        await run.flush()
        with pytest.raises(InvalidTypeError):
            await run.on_overflow()
        await run.before_model_call(model=MODEL)
        for limit in (-1, True, 2.5):
            with pytest.raises(InvalidTypeError):
                await run.on_overflow(limit)  # type: ignore[arg-type]  # what must be refused


@pytest.mark.rule("D.I.6")
async def test_a_step_that_is_over_is_stale() -> None:
    async with bus_with(Scripted([BIG])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        with pytest.raises(StaleStepError):
            await run.on_overflow()
        await run.before_model_call(model=MODEL)
        run.append(user("More?"))
        await run.flush()
        with pytest.raises(StaleStepError):
            await run.on_overflow()


@pytest.mark.rule("D.I.1", "D.W.1")
async def test_messages_that_were_not_handed_over_yet_are_no_part_of_it() -> None:
    async with bus_with(Scripted([BIG, SMALL])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        first = await run.before_model_call([user("How?")], model=MODEL)
        run.append(user("Later."))
        step = await run.on_overflow(first.manifest.budget.used_tokens + 900)
        assert "Later." not in str(sent(step))
        await run.after_model_call(DONE)
        after = await run.before_model_call(model=MODEL)
        said = [m["content"] for m in sent(after) if "<" not in m["content"]]
        assert said == ["How?", "Later.", "Run it."]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.I.1", "D.F.19")
async def test_a_list_that_was_refused_is_no_part_of_it_either() -> None:
    async with bus_with(Scripted([SMALL])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL)
        with pytest.raises(InvalidTypeError):
            await run.before_model_call([user("Otherwise?")], model=MODEL, overhead_tokens=-1)
        step = await run.on_overflow(first.manifest.budget.used_tokens + 900)
        assert sent(step) == sent(first)


@pytest.mark.broker
@pytest.mark.rule("D.I.1", "D.W.1", "D.R.13")
async def test_after_a_restart_the_logs_last_step_is_compiled_again(tmp_path: Path) -> None:
    def opened(*found: contextbus.Candidate) -> Any:
        source = check_source(Scripted(found))
        return contextbus.open(data=tmp_path, memory=False, durability="interval", sources=[source])

    async with opened(BIG, SMALL) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(OVERFLOW)
    async with opened() as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.on_overflow(first.manifest.budget.used_tokens + 700)
        assert (told(step), step.model) == ({"big": "over-budget", "small": "ranked"}, MODEL)
        assert "Deploys need CI." in str(sent(step))
        await run.after_model_call(DONE)
        again = await bus.run("r", scope=SCOPE, sources=["rag"])
        again.append(user("And?"))
        assert sent(await again.before_model_call(model=MODEL))[:2] == sent(step)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.I.1", "D.F.9", "D.F.20")
async def test_on_a_model_that_binds_thinking_the_smaller_request_is_what_stays() -> None:
    rag = Scripted([BIG, SMALL])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        await take(run, 0)
        run.append(user("Question 1?"))
        first = await run.before_model_call(model=OPUS, refresh=True)
        await run.after_model_call(OVERFLOW)
        step = await run.on_overflow(first.manifest.budget.used_tokens + 900)
        assert (thoughts(step), hidden(step)) == (["sig-0"], 0)
        await run.after_model_call(DONE)
        after = await take(run, 2)
        assert flat(request(after))[: len(flat(request(step)))] == flat(request(step))
        assert thoughts(after) == ["sig-0"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.I.5", "D.R.2", "D.W.7")
async def test_the_hosts_hook_is_not_run_again_and_what_it_gave_is_kept() -> None:
    calls: list[int] = []

    async def prepare(context: contextbus.StepContext) -> contextbus.PreparedStep:
        calls.append(context.step)
        return contextbus.PreparedStep(messages=[user("Prepared.")], overhead_tokens=50)

    async with bus_with(Scripted([BIG, SMALL])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], prepare_step=prepare)
        first = await run.before_model_call([user("How?")], model=MODEL)
        step = await run.on_overflow(first.manifest.budget.used_tokens + 700)
        assert len(calls) == 1
        assert step.manifest.budget.used_tokens == first.manifest.budget.used_tokens
        assert [m["content"] for m in sent(step)][:1] == ["Prepared."]
        state = await state_of(bus, run)
        assert state.last is not None
        assert isinstance(state.last.options, StepOptions)
        assert state.last.options.overhead_tokens == 50
        assert (await bus.verify("r")).is_clean

"""A forget that reaches a run, as its clients see it (D.J, D.R.9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.forgetting import forget
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, sent, state_of
from tests.client.test_kept_tails import OPUS, hidden, request, take, thoughts

import contextbus.client as contextbus
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import StaleStepError
from contextbus_protocol.values import RefreshOptions

SECRET, KEPT, FRESH = (
    contextbus.candidate("0", "The secret is tea.", 0.9),
    contextbus.candidate("1", "Deploys need CI.", 0.8),
    contextbus.candidate("2", "Use eu-west.", 0.7),
)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run it.")])


def told(step: contextbus.CompiledStep) -> list[tuple[str, str]]:
    return [(e.record_id, e.reason) for e in step.manifest.entries if e.selected]


def text(step: contextbus.CompiledStep) -> str:
    return str(sent(step))


async def run_with_block(bus: contextbus.ContextBus, **changes: Any) -> contextbus.Run:
    run = await bus.run("r", scope=SCOPE, sources=["rag"], **changes)
    await run.before_model_call([user("How?")], model=MODEL)
    await run.after_model_call(DONE)
    return run


@pytest.mark.rule("D.J.1", "D.J.2", "D.J.3", "D.J.5", "D.R.9", "D.R.14")
async def test_the_open_step_is_compiled_again_under_its_number() -> None:
    rag = Scripted([SECRET, KEPT])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], refresh=RefreshOptions(min_steps=99, max_passes=1))
        await run.before_model_call([user("How?")], model=MODEL)
        await forget(bus, "r", "0")
        rag.answer = [KEPT, FRESH]
        for who in (run, await bus.run("r", scope=SCOPE, sources=["rag"])):
            step = await who.before_model_call(model=MODEL)
            assert (step.step, step.manifest.refresh, step.manifest.pass_, step.manifest.redacted) == (
                0,
                "redacted",
                2,
                True,
            )
            assert told(step) == [("1", "ranked"), ("2", "ranked")]
            assert "tea" not in text(step)
        await run.after_model_call(DONE)
        assert [p.record_id for p in (await state_of(bus, run)).placed] == ["1", "2"]
        verdict = await bus.verify("r")
        assert [c.status for c in verdict.checks] == ["redacted", "same"]


@pytest.mark.rule("D.J.1", "D.J.4", "D.J.6", "D.F.22", "D.H.5", "D.W.1")
async def test_blocks_leave_at_the_next_compile_and_their_other_records_return_to_every_client() -> None:
    rag = Scripted([SECRET, KEPT])
    async with bus_with(rag) as bus:
        run = await run_with_block(bus)
        await run.before_model_call([*_said(run), user("And?")], model=MODEL)
        await run.after_model_call(DONE)
        (gone,) = await forget(bus, "r", "0")
        assert gone not in await bus.blobs(await bus.log("r"))
        rag.asked.clear()
        rag.answer = [FRESH]
        run.append(user("So?"))
        step = await run.before_model_call(model=MODEL)
        assert told(step) == [("1", "restored"), ("2", "ranked")]
        assert (step.manifest.refresh, len(rag.asked)) == ("redacted", 1)
        assert (step.manifest.redacted, step.manifest.cache_prefix_cause) == (True, "redacted")
        assert "tea" not in text(step)
        assert text(step).count("<retrieved_context") == 1
        other = await bus.run("r", scope=SCOPE, sources=["rag"])
        assert sent(await other.before_model_call(model=MODEL)) == sent(step)
        await other.after_model_call(DONE)
        run.append(user("Last?"))
        last = await run.before_model_call(model=MODEL)
        assert (told(last), text(last).count("<retrieved_context")) == ([], 1)
        assert (await bus.verify("r")).is_clean


def _said(run: contextbus.Run) -> list[contextbus.ChatMessage]:
    return [m for m in run.messages if isinstance(m, contextbus.ChatMessage)]


@pytest.mark.rule("D.J.4", "D.J.6")
async def test_a_call_under_way_when_the_forget_came_leaves_no_block() -> None:
    rag = Scripted([SECRET, KEPT])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert "tea" in text(step)
        await forget(bus, "r", "0")
        await run.after_model_call(DONE)
        rag.answer = []
        for who in (run, await bus.run("r", scope=SCOPE, sources=["rag"])):
            if who is run:
                who.append(user("And?"))
            step = await who.before_model_call(model=MODEL)
            assert "tea" not in text(step)
            assert told(step) == [("1", "restored")]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.20", "D.J.6")
async def test_on_a_model_that_binds_thinking_what_was_thought_behind_the_block_is_left_out_and_tails_stay() -> None:
    rag = Scripted()
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        await take(run, 0)
        rag.answer = [SECRET, KEPT]
        await take(run, 1, refresh=True)
        await take(run, 2)
        await forget(bus, "r", "0")
        rag.answer = [KEPT]
        step = await take(run, 3)
        assert (thoughts(step), hidden(step)) == (["sig-0"], 2)
        assert "tea" not in str(request(step))
        assert str(request(step)).count("<working_memory") == 4
        run.append(user("More?"))
        step = await run.before_model_call(model=OPUS)
        other = await bus.run("r", scope=SCOPE, sources=["rag"])
        again = await other.before_model_call(model=OPUS)
        assert again.payload("anthropic").json() == step.payload("anthropic").json()
        assert thoughts(step) == ["sig-0", "sig-3"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.20", "D.R.7", "D.J.6")
async def test_an_open_step_whose_history_was_touched_leaves_out_what_was_thought_behind_the_block_that_left() -> None:
    rag = Scripted([SECRET, KEPT])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await take(run, 0)
        run.append(user("And?"))
        step = await run.before_model_call(model=OPUS, command="one")
        assert thoughts(step) == ["sig-0"]
        await forget(bus, "r", "0")
        stored = await run.before_model_call(model=OPUS, command="one")  # its own package holds nothing of the record
        assert (stored.stored, stored.text, thoughts(stored), hidden(stored)) == (True, step.text, [], 1)
        rag.answer = [FRESH]
        for who in (run, await bus.run("r", scope=SCOPE, sources=["rag"])):
            again = await who.before_model_call(model=OPUS)
            assert (again.step, again.stored, again.manifest.refresh) == (1, who is not run, "redacted")
            assert again.manifest.cache_prefix_cause == "redacted"
            assert (thoughts(again), hidden(again)) == ([], 1)
            assert "tea" not in str(request(again))
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.J.4", "D.R.9")
async def test_a_retry_of_the_steps_command_never_brings_the_text_back() -> None:
    rag = Scripted([SECRET])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL, command="one")
        await forget(bus, "r", "0")
        rag.answer = [FRESH]
        again = await run.before_model_call([user("How?")], model=MODEL, command="one")
        assert (again.step, told(again), again.manifest.refresh) == (0, [("2", "ranked")], "redacted")
        await run.after_model_call(DONE)
        run.append(user("And?"))
        await run.before_model_call(model=MODEL)
        await forget(bus, "r", "2")
        with pytest.raises(StaleStepError):
            await (await bus.run("r", scope=SCOPE, sources=["rag"])).before_model_call(
                [user("How?")], model=MODEL, command="one"
            )


@pytest.mark.broker
@pytest.mark.rule("D.J.6", "D.R.9", "D.R.13", "D.H.5")
async def test_after_a_restart_the_log_knows_what_was_forgotten(tmp_path: Path) -> None:
    def opened(*found: contextbus.Candidate) -> Any:
        return contextbus.open(data=tmp_path, memory=False, durability="interval", sources=[source_of(*found)])

    async with opened(SECRET, KEPT) as bus:
        run = await run_with_block(bus)
        run.append(user("And?"))
        await run.before_model_call(model=MODEL, refresh=True)
    async with opened(FRESH) as bus:
        await forget(bus, "r", "0")
    async with opened(FRESH) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.before_model_call(model=MODEL)
        assert "tea" not in text(step)
        assert ("1", "restored") in told(step)
        assert step.manifest.cache_prefix_cause == "redacted"
        assert (await bus.verify("r")).is_clean


def source_of(*found: contextbus.Candidate) -> Any:
    return check_source(Scripted(found))

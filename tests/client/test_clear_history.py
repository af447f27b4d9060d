"""A new topic in a run (P.J.9)."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.compacting_runs import DONE, SMALL, Writing, bus_writing, cause_of, contents, kinds, reported, talk
from tests.client.scripted import CHARACTERS, SCOPE, Scripted, state_of

import contextbus.client as contextbus
from contextbus.client import Compaction, messages_exceed
from contextbus.core.run_state import CompactionFailures
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import user
from contextbus_protocol.errors import NotFoundError, StaleStepError

CI = contextbus.candidate("0", "Deploys need CI.", 0.9)
RULE = pytest.mark.rule


def compaction() -> Compaction:
    return Compaction(triggers=[messages_exceed(6)], target_tokens=900, summariser="writing", on_failure="continue")


@RULE("P.J.9")
async def test_all_of_the_history_is_emptied_and_the_rest_stays() -> None:
    rag = Scripted([CI])
    async with bus_writing(writer := Writing(), sources=[check_source(rag)]) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, sources=["rag"], compaction=compaction())
        await run.working_memory.create(goal="Deploy.")
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(500, write=5))
        run.append(*talk(2))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(500, write=5))
        writer.answer = RuntimeError("down")
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(500, write=5))
        before = await state_of(bus, run)
        assert before.checkpoint is not None
        assert before.failures.in_row == 1
        assert before.measured is not None
        assert (before.passes, bool(before.placed)) == (1, True)
        memory = await run.working_memory.read()

        await run.clear_history()
        state = await state_of(bus, run)
        assert (state.history.count, len(state.blocks), state.placed, state.owed) == (0, 0, (), ())
        assert (state.checkpoint, state.measured, state.failures) == (None, None, CompactionFailures())
        assert (len(state.segments), state.system_count, state.stale_thinking, state.skills) == (0, 0, (), ())
        assert (state.passes, state.usage) == (before.passes, before.usage)
        assert await run.working_memory.read() == memory
        assert run.messages == ()

        asked = len(rag.asked)
        run.append(user("Something else?"))
        step = await run.before_model_call(model=SMALL)
        assert (step.manifest.refresh, step.manifest.pass_, len(rag.asked)) == ("host-request", 2, asked + 1)
        assert contents(step)[0] == "Something else?"
        assert "Deploys need CI." in contents(step)[1]  # a record of the old topic may come with the new one
        assert "Deploy." in contents(step)[2]
        assert cause_of(step) == "history"
        await run.after_model_call(DONE)
        step = await run.before_model_call(model=SMALL)
        assert (step.manifest.refresh, len(rag.asked)) == ("reused", asked + 1)
        assert (await bus.verify("r")).is_clean


@RULE("P.J.9", "D.W.1")
async def test_other_clients_of_the_run_follow() -> None:
    async with bus_writing(Writing()) as bus:
        first = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, compaction=compaction())
        first.append(*talk(4))
        await first.before_model_call(model=SMALL)
        await first.after_model_call(DONE)
        second = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, compaction=compaction())
        await first.clear_history()
        second.append(user("New topic?"))
        assert contents(await second.before_model_call(model=SMALL)) == ["New topic?"]
        await second.after_model_call(DONE)
        first.append(user("And I?"))
        assert contents(await first.before_model_call(model=SMALL)) == ["New topic?", "Done.", "And I?"]


@RULE("P.J.9", "D.F.13", "D.H.5")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_step_that_was_open_leaves_nothing_of_its_block_to_the_new_topic(*, restarted: bool) -> None:
    async with bus_writing(sources=[check_source(Scripted([CI]))]) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        run.append(user("How?"))
        await run.before_model_call(model=SMALL)
        await run.clear_history()
        if restarted:
            run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.after_model_call(DONE)
        state = await state_of(bus, run)
        assert (state.owed, state.placed, len(state.blocks)) == ((), (), 0)
        again = await bus.run("r", scope=SCOPE)
        again.append(user("New?"))
        assert contents(await again.before_model_call(model=SMALL)) == ["Done.", "New?"]
        assert (await bus.verify("r")).is_clean


@RULE("P.J.9", "D.I.6")
async def test_the_step_before_cannot_be_compiled_again_and_what_was_not_handed_over_goes_too() -> None:
    async with bus_writing() as bus:
        run = await bus.run("r", scope=SCOPE)
        with pytest.raises(NotFoundError):
            await run.clear_history()
        run.append(user("How?"))
        await run.before_model_call(model=SMALL)
        run.append(user("Later."))
        await run.clear_history()
        with pytest.raises(StaleStepError):
            await run.on_overflow()
        run.append(user("New?"))
        assert contents(await run.before_model_call(model=SMALL)) == ["New?"]


@RULE("P.J.9", "C.K.9", "P.D.1")
async def test_a_list_that_is_handed_over_afterwards_is_the_history() -> None:
    async with bus_writing() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.before_model_call([user("How?")], model=SMALL)
        await run.after_model_call(DONE)
        await run.clear_history()
        await run.clear_history()
        step = await run.before_model_call([user("New?"), user("Newer?")], model=SMALL)
        assert contents(step) == ["New?", "Newer?"]
        assert (await state_of(bus, run)).history.count == 2


@RULE("P.J.9", "C.K.9")
async def test_it_waits_for_a_compaction_that_is_under_way() -> None:
    gate = asyncio.Event()

    async def slow(_: object) -> str:
        await gate.wait()
        return "Short."

    given = Compaction(triggers=[messages_exceed(6)], target_tokens=900, summariser="slow")
    async with bus_writing(slow) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, compaction=given)
        other = await bus.run("r", scope=SCOPE)
        run.append(*talk(4))
        step = asyncio.create_task(run.before_model_call(model=SMALL))
        while not await kinds(bus, run):
            await asyncio.sleep(0.01)
        clear = asyncio.create_task(other.clear_history())
        await asyncio.sleep(0.05)
        assert not clear.done()
        gate.set()
        await step
        await clear
        assert (await kinds(bus, run)) == ["started", "completed"]
        assert (await state_of(bus, run)).history.count == 0

"""Blocks in a run's history and the prompt cache: what joins, what stays, what changes the prefix (D.F)."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, state_of, text_in

import contextbus.client as contextbus
from contextbus.core.placed_blocks import PlacedBlocks
from contextbus_protocol.chat import assistant, system, user
from contextbus_protocol.values import Model

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])


@pytest.mark.rule("D.F.13", "D.R.4")
@pytest.mark.parametrize("outcome", ["failed", "cancelled", "overflow", None])
async def test_a_block_joins_the_history_only_when_its_call_succeeded(
    outcome: Literal["failed", "cancelled", "overflow"] | None,
) -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        first = await run.before_model_call([user("How?")], model=MODEL)
        assert len(sent(first)) == 2
        if outcome is not None:
            await run.after_model_call(contextbus.Report(status=outcome))
        state = await state_of(bus, run)
        assert (len(state.blocks), state.placed) == (0, ())
        run.append(user("Please?"))
        second = await run.before_model_call(model=MODEL, refresh=True)
        assert [(e.record_id, e.reason) for e in second.manifest.entries] == [("0", "ranked")]  # competes again
        assert [m["role"] for m in sent(second)] == ["user", "user", "user"]
        assert "retrieved_context" in sent(second)[2]["content"]
        assert second.manifest.cache_prefix_cause == "history"  # the last request ended with the lost block
        await run.after_model_call(DONE)
        state = await state_of(bus, run)
        assert [b.step for b in state.blocks] == [1]
        assert [p.record_id for p in state.placed] == ["0"]


@pytest.mark.rule("D.F.2", "D.F.3", "D.F.4", "D.F.5", "D.F.21", "D.R.5")
async def test_blocks_keep_their_bytes_and_the_one_tail_ends_each_request() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        await run.working_memory.create(goal="Deploy.")
        requests: list[list[dict[str, Any]]] = []
        for number in range(4):
            rag.answer = [contextbus.candidate(str(number), f"Record {number}.", 0.5)]
            run.append(user(f"Question {number}?"))
            step = await run.before_model_call(model=MODEL, refresh=True)
            requests.append(sent(step))
            await run.after_model_call(DONE)
            assert not step.manifest.cache_prefix_changed
        for before, after in itertools.pairwise(requests):
            assert "working_memory" in before[-1]["content"]
            assert after[: len(before) - 1] == before[:-1]  # all but the tail is the beginning of the next request
            tails = [m for m in after if "<working_memory" in str(m["content"])]
            assert tails == after[-1:]
        blocks = [m["content"] for m in requests[-1] if "<retrieved_context" in str(m["content"])]
        assert len(blocks) == 4
        assert not any("working_memory" in str(m) or "retrieved_context" in str(m) for m in run.messages)


@pytest.mark.rule("D.F.14", "D.F.15", "D.F.17", "D.F.19", "D.F.22", "D.H.5")
async def test_a_rewritten_history_takes_its_blocks_along_and_changes_the_prefix() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        first = await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        await run.before_model_call([user("How?"), assistant("Run the pipeline."), user("And?")], model=MODEL)
        await run.after_model_call(contextbus.Report(status="succeeded"))
        kept = await run.before_model_call([user("How?"), assistant("Otherwise.")], model=MODEL)
        assert (kept.manifest.cache_prefix_changed, kept.manifest.cache_prefix_cause) == (True, "history")
        assert [b.position for b in (await state_of(bus, run)).blocks] == [1]  # it stands before the change
        await run.after_model_call(contextbus.Report(status="succeeded"))
        gone = await run.before_model_call([user("What?"), user("Why?")], model=MODEL)
        assert gone.manifest.cache_prefix_cause == "history"
        assert (await state_of(bus, run)).blocks == PlacedBlocks()
        assert (await state_of(bus, run)).placed == ()
        assert len(sent(gone)) == 3  # its record returns with this step (D.H.5)
        assert [(e.record_id, e.reason) for e in gone.manifest.entries] == [("0", "restored")]
        await run.after_model_call(contextbus.Report(status="succeeded"))
        same = await run.before_model_call([user("What?"), user("Why?"), user("So?")], model=MODEL)
        assert not same.manifest.cache_prefix_changed
        assert (await bus.verify(run.id)).is_clean
        assert first.step == 0


@pytest.mark.rule("D.F.19")
async def test_our_own_blocks_in_a_list_that_is_handed_over_are_no_messages_of_the_user() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        await run.working_memory.create(goal="Deploy.")
        step = await run.before_model_call([user("How?")], model=MODEL)
        block, tail = (m for b in step.blocks for m in b.messages)
        await run.after_model_call(DONE)
        again = await run.before_model_call(
            [user("How?"), block, tail, assistant("Run the pipeline."), user("And?")], model=MODEL
        )
        assert run.messages == (user("How?"), assistant("Run the pipeline."), user("And?"))
        assert not again.manifest.cache_prefix_changed
        assert [text_in(block)] == [m["content"] for m in sent(again) if "<retrieved" in str(m["content"])]


@pytest.mark.rule("D.F.22", "D.Y.7", "D.D.16")
async def test_the_first_cause_that_applies_is_named() -> None:
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "deploy", "parameters": {}}}]
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, estimator=CHARACTERS)
        base = [system("Be brief."), user("How?")]
        told: list[str | None] = []

        async def step(
            messages: list[contextbus.ChatMessage], model: Model, tools: list[dict[str, Any]] | None = None
        ) -> None:
            compiled = await run.before_model_call(messages, model=model, tools=tools)
            told.append(compiled.manifest.cache_prefix_cause)
            assert compiled.manifest.cache_prefix_changed == (compiled.manifest.cache_prefix_cause is not None)
            await run.after_model_call(contextbus.Report(status="succeeded"))

        other = Model("openai", "gpt-other", 128_000, 8_000)
        await step(base, MODEL)
        await step([*base, user("1")], MODEL)
        await step([*base, user("2")], other, tools)  # model before tools before history
        await step([*base, user("2")], other)  # tools gone
        await step([system("Be long."), user("How?")], other)
        await step([system("Be long."), user("Why?")], other)
        await step([system("Be long."), user("Why?")], other)
    assert told == [None, None, "model", "tools", "system", "history", None]


@pytest.mark.rule("D.F.16")
async def test_the_first_request_changes_nothing() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"])
        assert not (await run.before_model_call([user("How?")], model=MODEL)).manifest.cache_prefix_changed

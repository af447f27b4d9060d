"""The order of a step, and what a process that comes after a crash finds of it (D.R.0 to D.R.3, D.R.7)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, state_of

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.client.callbacks import Callbacks
from contextbus.client.request_view import RequestView
from contextbus.client.step_hooks import HookFunctions, StepHooks
from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.sources.interface import check_source
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import ContextBudgetExceededError
from contextbus_protocol.events import StepCompiled, StepFailed
from contextbus_protocol.values import ContextBudget, EstimatorSpec, Model, SourceResult


async def read_nothing(_: object) -> RequestView:
    return RequestView()


CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
TINY = Model("openai", "gpt-tiny", 60, 20)
TOOLS: list[dict[str, Any]] = [{"name": "deploy"}]
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])


@pytest.mark.broker
@pytest.mark.rule("D.R.3", "D.R.7", "D.R.13", "D.H.11", "D.W.4")
async def test_after_a_crash_the_stored_request_is_sent_and_nobody_is_asked_again(tmp_path: Path) -> None:
    asked: list[str] = []
    requests: list[bytes] = []

    def prepare(step: StepContext) -> PreparedStep:
        asked.append(f"hook {len(asked)}")
        return PreparedStep(messages=[user(f"Prepared {len(asked)}."), *step.messages], tools=TOOLS)

    def rewrite(query: str, _: StepContext) -> str:
        asked.append(f"query {len(asked)}")
        return query

    rag = Scripted([CI])
    for _ in range(3):  # each process dies before its model call, and the next one comes with the same messages
        async with contextbus.open(
            data=tmp_path, sources=[check_source(rag)], memory=False, durability="interval"
        ) as bus:
            run = await bus.run(
                "r",
                scope=SCOPE,
                sources=["rag"],
                estimator=EstimatorSpec(calibrate=True),
                prepare_step=prepare,
                rewrite_query=rewrite,
            )
            step = await run.before_model_call([user("How?")], model=MODEL)
            requests.append(step.payload("anthropic").json(model="m", max_tokens=8))
            assert step.stored == (len(requests) > 1)
            assert (await bus.verify("r")).is_clean
    assert (asked, len(rag.asked)) == (["hook 0", "query 1"], 1)
    assert len(set(requests)) == 1
    assert b"Prepared 1." in requests[0]
    assert b'"deploy"' in requests[0]


@pytest.mark.rule("D.R.2", "D.R.3", "D.B.13", "D.B.15")
async def test_the_final_budget_is_that_of_the_chosen_model() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(
            "r", scope=SCOPE, sources=["rag"], estimator=CHARACTERS, prepare_step=lambda _: PreparedStep(model=TINY)
        )
        await run.working_memory.create(goal="Deploy " * 30)
        with pytest.raises(ContextBudgetExceededError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert caught.value.available_tokens == 40 - 6
        (failed,) = [e for c in (await bus.log("r")).commits for e in c.commit.events if isinstance(e, StepFailed)]
        assert failed.code == "context_budget_exceeded"
        plain = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        assert (await plain.before_model_call([user("How?")], model=MODEL)).step == 0


@pytest.mark.rule("D.R.2", "D.R.13", "D.D.18")
async def test_the_package_is_stored_with_the_run_before_the_caller_gets_it() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        (event,) = [e for c in (await bus.log("r")).commits for e in c.commit.events if isinstance(e, StepCompiled)]
        assert (event.package, event.step) == (step.reference, step.step)
        assert step.reference in await bus.blobs(await bus.log("r"))


@pytest.mark.rule("D.R.8", "D.R.0", "D.W.4")
async def test_a_reopened_step_with_other_messages_asks_the_hook_anew() -> None:
    asked: list[int] = []

    def prepare(step: StepContext) -> None:
        asked.append(len(step.messages))

    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, prepare_step=prepare)
        first = await run.before_model_call([user("How?")], model=MODEL)
        again = await run.before_model_call([user("How?")], model=MODEL)
        other = await run.before_model_call([user("How?"), user("And?")], model=MODEL)
        assert (asked, again.stored, other.stored, again.step) == ([1, 2], True, False, first.step)


@pytest.mark.rule("D.R.0", "D.W.4")
async def test_a_function_is_called_once_however_many_instances_ask() -> None:
    calls: list[int] = []

    async def prepare(step: StepContext) -> PreparedStep:
        calls.append(step.step)
        await asyncio.sleep(0)
        return PreparedStep(overhead_tokens=len(calls))

    async with bus_with() as bus:
        hooks = StepHooks(model=MODEL, functions=HookFunctions(prepare_step=prepare))
        callbacks = Callbacks(bus.host, "r", hooks.answerers(), read_nothing)
        answers: list[CallbackAnswered] = []
        for tokens in (("t1", "t2"), ("t3",)):
            waiting: list[asyncio.Future[Any]] = []
            for token in tokens:
                address, future = bus.host.reply_address()
                waiting.append(future)
                callbacks.take(
                    AskCallback(
                        run="r",
                        command="c",
                        token=token,
                        reply_to=address,
                        name="prepare-step",
                        step=4,
                        seconds_left=5.0,
                    )
                )
            answers += await asyncio.gather(*waiting)
        callbacks.close()
    assert calls == [4]
    assert [(a.token, a.overhead_tokens) for a in answers] == [("t1", 1), ("t2", 1), ("t3", 1)]


@pytest.mark.rule("D.R.11", "D.R.1", "D.G.24")
async def test_a_host_may_compile_by_itself_in_the_hook_and_place_the_blocks() -> None:
    found = SourceResult("own", "rag", candidates=(CI,))

    def prepare(step: StepContext) -> PreparedStep:
        package = compile_context(
            ContextInput(
                run_id=step.run,
                step=step.step,
                input_tokens=step.model.context_window - step.model.max_output_tokens,
                used_tokens=100,
                results=(found,),
                query="deploy",
                refresh="initial",
                pass_=1,
            )
        )
        return PreparedStep(messages=[*step.messages, *(m for block in package.blocks for m in block.messages)])

    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, prepare_step=prepare)
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert [m["role"] for m in sent(step)] == ["user", "user"]
        assert "Deploys need a green CI run." in sent(step)[1]["content"]
        await run.after_model_call(DONE)
        assert run.messages == (user("How?"), assistant("Run the pipeline."))
        assert len((await state_of(bus, run)).blocks) == 0
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.G.1", "D.G.3", "D.G.7", "D.G.12", "D.I.1")
async def test_a_run_compiles_compiles_again_asks_for_a_refresh_and_tells_its_state() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL)
        smaller = await run.on_overflow(input_tokens=5_000)
        assert (first.step, smaller.step, smaller.manifest.budget.input_tokens) == (0, 0, 5_000)
        await run.after_model_call(DONE)
        await run.request_refresh()
        second = await run.before_model_call(model=MODEL)
        assert (second.manifest.refresh, len(rag.asked)) == ("host-request", 2)
        await run.load()
        assert (run.state.passes, run.state.last_refresh_step) == (2, 1)
        assert [p.record_id for p in run.state.placed] == ["0"]


@pytest.mark.rule("D.R.1", "D.G.2", "D.B.7")
async def test_the_options_of_a_run_are_those_of_its_steps() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(
            "r",
            scope=SCOPE,
            sources=["rag"],
            budget={"ratio": 0.5, "max_tokens": 100},
            refresh=contextbus.RefreshOptions(min_steps=2, max_passes=3, candidates_per_source=5),
            estimator=CHARACTERS,
        )
        await run.working_memory.create(goal="Deploy.")
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert step.manifest.budget.context_tokens == 100
        assert step.manifest.placement.tail
        (event,) = [e for c in (await bus.log("r")).commits for e in c.commit.events if isinstance(e, StepCompiled)]
        options = event.options
        assert (options.budget, options.estimator) == (ContextBudget(ratio=0.5, max_tokens=100), CHARACTERS)
        assert (options.refresh.min_steps, options.refresh.max_passes, options.refresh.candidates_per_source) == (
            2,
            3,
            5,
        )

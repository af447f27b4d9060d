"""What ``prepare_step`` may change for one request, and what it never does to the run (D.R.2, D.W.7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, state_of, text_in

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.core.targets.tools import tools_text
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.values import Model

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
SMALL = Model("openai", "gpt-small", 20_000, 2_000)
CLAUDE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "deploy", "parameters": {}}}]
OTHERS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "search_everything", "parameters": {}}}]


async def events_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[StepCompiled]:
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepCompiled)]


@pytest.mark.rule("D.W.7", "D.R.0", "D.R.4", "D.B.3")
async def test_given_messages_are_sent_in_place_of_the_history_and_counted_for_it() -> None:
    given = [user("Sum: we deploy."), user("How?")]
    long = [user("word " * 500), assistant("Hm."), user("How?")]
    hooks: list[StepContext] = []

    def prepare(step: StepContext) -> PreparedStep | None:
        hooks.append(step)
        return PreparedStep(messages=given) if step.step == 0 else None

    async with bus_with(Scripted([CI])) as bus:
        plain = await bus.run(scope=SCOPE, estimator=CHARACTERS)
        small = await plain.before_model_call(given, model=MODEL)
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS, prepare_step=prepare)
        step = await run.before_model_call(long, model=MODEL)
        block = text_in(step.messages_of("append")[0])
        assert [m["content"] for m in sent(step)] == ["Sum: we deploy.", "How?", block]
        assert step.manifest.budget.used_tokens == small.manifest.budget.used_tokens
        await run.after_model_call(DONE)
        assert run.messages == (*long, assistant("Run the pipeline."))
        after = await run.before_model_call(model=MODEL)
        told = [m["content"] for m in sent(after)]
        assert told == ["word " * 500, "Hm.", "How?", block, "Run the pipeline."]  # it joined the run's history
        assert [(s.step, s.messages) for s in hooks] == [(0, tuple(long)), (1, run.messages)]
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.R.3", "D.W.7")
async def test_the_request_is_for_the_model_that_was_chosen() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=lambda _: PreparedStep(model=SMALL))
        step = await run.before_model_call([user("How?")], model=CLAUDE)
        assert (step.model, step.manifest.budget.input_tokens) == (SMALL, 18_000)
        assert sent(step)[0] == {"role": "user", "content": "How?"}
        (event,) = await events_of(bus, run)
        assert event.prepared is not None
        assert (event.options.model, event.prepared.model) == (CLAUDE, SMALL)
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.R.2", "D.G.3", "D.M.15", "D.M.8", "D.F.22")
@pytest.mark.parametrize("tools", [OTHERS, []])
async def test_chosen_tools_are_sent_counted_and_compared_with_the_last_ones(tools: list[dict[str, Any]]) -> None:
    async with bus_with() as bus:
        plain = await bus.run(scope=SCOPE, estimator=CHARACTERS)
        expected = await plain.before_model_call([user("How?")], model=CLAUDE, tools=tools)
        prepared = PreparedStep(tools=tools)
        run = await bus.run(scope=SCOPE, estimator=CHARACTERS, prepare_step=lambda s: prepared if s.step else None)
        first = await run.before_model_call([user("How?")], model=CLAUDE, tools=TOOLS)
        await run.after_model_call(contextbus.Report(status="succeeded"))
        run.append(user("And?"))
        step = await run.before_model_call(model=CLAUDE, tools=TOOLS)
        assert first.payload("anthropic").copy()["tools"] != step.payload("anthropic").copy().get("tools")
        assert step.payload("anthropic").copy().get("tools") == expected.payload("anthropic").copy().get("tools")
        extra = -(-(72 + 5 * len("And?")) // 18)
        assert abs(step.manifest.budget.used_tokens - expected.manifest.budget.used_tokens - extra) <= 1
        assert step.manifest.cache_prefix_cause == "tools"
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.G.3", "D.W.7")
async def test_overhead_that_somebody_names_is_not_counted_again() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, estimator=CHARACTERS, prepare_step=lambda _: PreparedStep(tools=OTHERS))
        step = await run.before_model_call([user("How?")], model=CLAUDE, overhead_tokens=1_000)
        both = PreparedStep(tools=OTHERS, overhead_tokens=7)
        other = await bus.run(scope=SCOPE, estimator=CHARACTERS, prepare_step=lambda _: both)
        hooked = await other.before_model_call([user("How?")], model=CLAUDE, tools=TOOLS)
        bare = await (await bus.run(scope=SCOPE, estimator=CHARACTERS)).before_model_call([user("How?")], model=CLAUDE)
        used = bare.manifest.budget.used_tokens
        assert (step.manifest.budget.used_tokens, hooked.manifest.budget.used_tokens) == (used + 1_000, used + 7)


@pytest.mark.rule("D.W.4", "D.R.7", "D.R.3", "D.D.25")
async def test_another_client_sends_what_the_recorded_hook_made_of_the_step() -> None:
    calls: list[int] = []

    def prepare(step: StepContext) -> PreparedStep:
        calls.append(step.step)
        return PreparedStep(messages=[user("Only this.")], model=CLAUDE, tools=OTHERS, overhead_tokens=50)

    async with bus_with(Scripted([CI])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"], prepare_step=prepare)
        first = await one.before_model_call([user("How?")], model=MODEL, tools=TOOLS, command="c")
        later = [await bus.run("r", scope=SCOPE, sources=["rag"], prepare_step=hook) for hook in (prepare, None)]
        for other, command in ((later[0], "c"), (later[1], None)):
            again = await other.before_model_call(model=MODEL, tools=TOOLS, command=command)
            assert (again.stored, again.text, again.model) == (True, first.text, CLAUDE)
            assert again.payload().json() == first.payload().json()
        assert calls == [0]
        (event,) = await events_of(bus, one)
        assert event.prepared is not None
        assert event.prepared.tools_digest == digest_text(tools_text(OTHERS) or "")
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.R.0", "D.R.2")
async def test_the_hook_is_asked_once_a_step_and_not_for_a_step_compiled_again() -> None:
    calls: list[int] = []

    async def prepare(step: StepContext) -> PreparedStep:
        calls.append(step.step)
        await asyncio.sleep(0)
        return PreparedStep(messages=[user("Only this, " + "word " * 50)])

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=prepare)
        first = await run.before_model_call([user("How?")], model=MODEL)
        again = await run.on_overflow()
        assert (again.manifest.refresh, again.step, calls) == ("overflow-retry", 0, [0])
        assert sent(again)[0] == sent(first)[0]
        await run.after_model_call(DONE)
        await run.before_model_call(model=MODEL)
        assert calls == [0, 1]
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.R.3", "D.G.5")
async def test_the_hook_runs_before_sources_are_asked() -> None:
    rag, order = Scripted([CI]), list[str]()

    def prepare(_: StepContext) -> None:
        order.append(f"hook, {len(rag.asked)} asked")

    def rewrite(query: str, _: StepContext) -> str:
        order.append(f"query, {len(rag.asked)} asked")
        return query

    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=prepare, rewrite_query=rewrite)
        await run.before_model_call([user("How?")], model=MODEL)
    assert (order, len(rag.asked)) == (["hook, 0 asked", "query, 0 asked"], 1)


@pytest.mark.rule("D.F.15", "D.F.17", "D.F.22")
async def test_the_prefix_is_compared_with_what_was_really_sent() -> None:
    front = user("Always first.")
    mode = ["keep"]

    def prepare(step: StepContext) -> PreparedStep | None:
        match mode[0]:
            case "front":
                return PreparedStep(messages=[front, *step.messages])
            case "last":
                return PreparedStep(messages=step.messages[-1:])
            case "same":
                return PreparedStep(messages=step.messages)
            case _:
                return None

    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, prepare_step=prepare)
        told: list[tuple[str, str | None]] = []
        for number, mode[0] in enumerate(["keep", "same", "front", "front", "last", "keep", "keep"]):
            run.append(user(f"Question {number}?"))
            step = await run.before_model_call(model=MODEL)
            told.append((mode[0], step.manifest.cache_prefix_cause))
            await run.after_model_call(DONE)
        assert told == [
            ("keep", None),
            ("same", None),
            ("front", "history"),
            ("front", None),
            ("last", "history"),
            ("keep", "history"),
            ("keep", None),
        ]
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.F.15", "D.F.17")
async def test_a_block_that_is_not_among_given_messages_changes_the_prefix() -> None:
    async with bus_with(Scripted([CI])) as bus:
        blocks: list[contextbus.ChatMessage] = []

        def prepare(step: StepContext) -> PreparedStep:
            return PreparedStep(messages=[*step.messages[:1], *blocks, *step.messages[1:]])

        for keeps in (False, True):
            run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=prepare)
            blocks = []
            first = await run.before_model_call([user("How?")], model=MODEL)
            await run.after_model_call(DONE)
            blocks = [*first.messages_of("append")] if keeps else []
            step = await run.before_model_call(model=MODEL)
            assert step.manifest.cache_prefix_cause == (None if keeps else "history")
            assert len(sent(step)) == (3 if keeps else 2)
            assert (await state_of(bus, run)).history.count == 2
            assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.W.7")
async def test_messages_may_be_given_as_a_providers_dicts() -> None:
    dicts = [{"role": "user", "content": "A dict."}]
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, prepare_step=lambda _: PreparedStep(messages=dicts))
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert sent(step) == dicts
        broken = await bus.run(scope=SCOPE, prepare_step=lambda _: PreparedStep(messages=[user("half \ud83d")]))
        step = await broken.before_model_call([user("How?")], model=MODEL)
        assert sent(step) == [{"role": "user", "content": "half \ufffd"}]
        assert (await bus.verify(broken.id)).is_clean

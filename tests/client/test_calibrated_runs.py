"""A run that learns from reported usage how its estimates compare (D.M.3, D.M.5, D.M.11)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, state_of

import contextbus.client as contextbus
from contextbus.core.calibration import calibrate_factor
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.events import RunStarted
from contextbus_protocol.values import EstimatorSpec, Usage

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
LEARNING = EstimatorSpec(name="characters", calibrate=True)
TEXT = "word " * 200


def done(usage: Any = None, status: Any = "succeeded") -> contextbus.Report:
    return contextbus.Report(status=status, messages=[assistant("So.")], usage=usage)


def size_of(step: contextbus.CompiledStep) -> int:
    """The counted size of the step's request, in tokens."""
    budget = step.manifest.budget
    return budget.used_tokens + budget.selected_tokens


async def factor_of(bus: contextbus.ContextBus, run: contextbus.Run) -> int:
    estimator = (await state_of(bus, run)).estimator
    assert estimator is not None
    return estimator.factor


@pytest.mark.rule("D.M.3", "D.M.5", "D.M.11", "D.D.11")
@pytest.mark.parametrize("name", ["characters", "classes"])
async def test_a_run_learns_its_factor_from_usage_and_says_so_from_then_on(name: str) -> None:
    async with bus_with(Scripted([CI])) as bus:
        plain = await bus.run(scope=SCOPE, estimator=EstimatorSpec(name=name))
        run = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=EstimatorSpec(name=name, calibrate=True))
        first = await run.before_model_call([user(TEXT)], model=MODEL)
        assert not first.manifest.estimator.calibrated
        await run.after_model_call(done(Usage(input_tokens=2 * size_of(first))))
        expected = calibrate_factor(10_000, 2 * size_of(first), size_of(first))
        assert (expected, await factor_of(bus, run)) == (13_000, 13_000)
        second = await run.before_model_call(model=MODEL)
        assert second.manifest.estimator.calibrated
        same = await plain.before_model_call([user(TEXT), *first.messages_of("append"), assistant("So.")], model=MODEL)
        base = same.manifest.budget.used_tokens
        assert second.manifest.budget.used_tokens in range(int(base * 1.3) - 2, int(base * 1.3) + 3)
        await run.after_model_call(done(Usage(input_tokens=size_of(second))))
        assert await factor_of(bus, run) == 13_000  # what was estimated is what was used
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.M.1", "D.M.11")
async def test_candidates_and_working_memory_are_counted_with_what_was_learned() -> None:
    costs: dict[bool, list[int]] = {}
    for learns in (False, True):
        async with bus_with(Scripted([CI])) as bus:
            spec = EstimatorSpec(name="characters", calibrate=learns)
            run = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=spec)
            await run.working_memory.create(goal="Deploy " * 20)
            first = await run.before_model_call([user(TEXT)], model=MODEL)
            await run.after_model_call(done(Usage(input_tokens=4 * size_of(first))))
            run.append(user("And?"))
            await run.before_model_call([user("Another history.")], model=MODEL, refresh=True)
            await run.after_model_call(contextbus.Report(status="failed"))
            step = await run.before_model_call(model=MODEL, refresh=True)
            costs[learns] = [entry.tokens for entry in step.manifest.entries if entry.selected]
            assert (await bus.verify("r")).is_clean
    assert len(costs[False]) == len(costs[True]) == 2
    assert all(more > 1.5 * less for less, more in zip(costs[False], costs[True], strict=True))


@pytest.mark.rule("D.M.5")
async def test_cached_tokens_are_part_of_what_was_used() -> None:
    async with bus_with() as bus:
        factors: list[int] = []
        for usage in (
            Usage(input_tokens=600),
            Usage(input_tokens=100, cache_read_tokens=300, cache_write_tokens=200),
            {"input_tokens": 100, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 200},
        ):
            run = await bus.run(scope=SCOPE, estimator=LEARNING)
            await run.before_model_call([user(TEXT)], model=MODEL)
            await run.after_model_call(done(usage))
            factors.append(await factor_of(bus, run))
    assert len(set(factors)) == 1
    assert factors[0] > 10_000


@pytest.mark.rule("D.M.5", "D.M.11")
@pytest.mark.parametrize(
    ("spec", "report"),
    [
        (EstimatorSpec(name="characters"), done(Usage(input_tokens=5_000))),
        (LEARNING, done()),
        (LEARNING, done(Usage())),
        (LEARNING, done(Usage(output_tokens=5_000))),
        (LEARNING, done(Usage(input_tokens=5_000), "failed")),
        (LEARNING, done(Usage(input_tokens=5_000), "overflow")),
    ],
)
async def test_nothing_is_learned_without_the_option_without_usage_or_from_a_call_that_failed(
    spec: EstimatorSpec, report: contextbus.Report
) -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, estimator=spec)
        await run.before_model_call([user(TEXT)], model=MODEL)
        await run.after_model_call(report)
        run.append(user("And?"))
        step = await run.before_model_call(model=MODEL)
        assert not step.manifest.estimator.calibrated
        assert await factor_of(bus, run) == 10_000
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.M.5")
async def test_the_factor_stays_within_its_bounds_whatever_is_reported() -> None:
    async with bus_with() as bus:
        for tokens, bound in ((10**9, 20_000), (1, 5_000)):
            run = await bus.run(scope=SCOPE, estimator=LEARNING)
            for _ in range(8):
                run.append(user(TEXT))
                await run.before_model_call(model=MODEL)
                await run.after_model_call(done(Usage(input_tokens=tokens)))
            assert await factor_of(bus, run) == bound
            assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.M.11", "D.W.1", "D.R.13")
async def test_what_one_client_learned_every_client_counts_with() -> None:
    async with bus_with(Scripted([CI])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=LEARNING)
        first = await one.before_model_call([user(TEXT)], model=MODEL)
        await one.after_model_call(done(Usage(input_tokens=2 * size_of(first))))
        other = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=EstimatorSpec(name="characters"))
        other.append(user("And?"))
        second = await other.before_model_call(model=MODEL)  # asks for no calibration: the run was started with it
        assert second.manifest.estimator.calibrated
        await other.after_model_call(done(Usage(input_tokens=3 * size_of(second))))
        expected = calibrate_factor(13_000, 3 * size_of(second), size_of(second))
        assert await factor_of(bus, one) == expected
        await one.load()
        one.append(user("So?"))
        third = await one.before_model_call(model=MODEL)
        assert third.manifest.budget.used_tokens > second.manifest.budget.used_tokens
        (started,) = [e for c in (await bus.log("r")).commits for e in c.commit.events if isinstance(e, RunStarted)]
        assert started.estimator == LEARNING  # the log says what it was started with; the fold what was learned
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.M.11", "D.M.14")
async def test_a_run_that_counts_with_a_tokenizer_learns_too() -> None:
    spec = EstimatorSpec(kind="tokenizer", name="cl100k_base", calibrate=True)
    async with contextbus.open("memory:", memory=False, tokenizers=["cl100k_base"]) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=spec)
        first = await run.before_model_call([user(TEXT)], model=MODEL)
        assert (first.manifest.estimator.kind, first.manifest.estimator.calibrated) == ("tokenizer", False)
        await run.after_model_call(done(Usage(input_tokens=2 * size_of(first))))
        second = await run.before_model_call(model=MODEL)
        assert second.manifest.estimator.calibrated
        assert second.manifest.budget.used_tokens >= 1.29 * size_of(first)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.M.10", "D.M.16")
async def test_the_label_of_a_step_wins_and_changes_no_count() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, estimator=LEARNING)
        first = await run.before_model_call([user(TEXT)], model=MODEL, estimator_kind="mine")
        other = await bus.run(scope=SCOPE, estimator=LEARNING)
        second = await other.before_model_call([user(TEXT)], model=MODEL)
        assert (first.manifest.estimator.kind, second.manifest.estimator.kind) == ("mine", "heuristic")
        assert first.manifest.budget == second.manifest.budget


@pytest.mark.rule("D.M.11", "D.I.1")
async def test_usage_is_held_against_the_request_that_was_sent() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=LEARNING)
        first = await run.before_model_call([user(TEXT)], model=MODEL)
        again = await run.on_overflow(input_tokens=size_of(first) - 1)
        assert size_of(again) < size_of(first)
        await run.after_model_call(done(Usage(input_tokens=2 * size_of(again))))
        assert await factor_of(bus, run) == 13_000
        assert (await bus.verify("r")).is_clean

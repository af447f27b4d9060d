"""Measured input and cache evidence, from what calls report (C.M, C.N)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.compacting_runs import SMALL, Writing, bus_writing, kinds, reported, talk
from tests.client.scripted import CHARACTERS, SCOPE, state_of

import contextbus.client as contextbus
from contextbus.client import Compaction, CompactionSnapshot, cache_likely_cold, messages_exceed
from contextbus.core.estimate import make_estimator
from contextbus.runtime.clock import read_milliseconds
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.values import Model

CLAUDE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
HOUR = 3_600_000
OLD: dict[str, Any] = {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}


class Looking:
    """A trigger that never matches and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[CompactionSnapshot] = []

    def __call__(self, snapshot: CompactionSnapshot) -> bool:
        self.seen.append(snapshot)
        return False

    @property
    def tokens(self) -> list[int]:
        return [snapshot.tokens for snapshot in self.seen]


def options(*triggers: Any, **given: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"target_tokens": 600, "summariser": "writing"} | given
    return {"scope": SCOPE, "estimator": CHARACTERS, "compaction": Compaction(triggers=triggers, **chosen)}


def cost(*texts: str) -> int:
    """What messages of these texts are estimated at."""
    estimator = make_estimator(CHARACTERS)
    return estimator.tokens(sum(estimator.message(user(text)) for text in texts))


@pytest.mark.rule("C.M.1", "C.M.2", "C.M.4", "C.M.5", "C.M.13")
async def test_the_last_steps_input_is_the_baseline_and_what_came_since_is_added() -> None:
    look = Looking()
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        run.append(user("Hi."))
        await run.before_model_call(model=SMALL, overhead_tokens=30)
        await run.after_model_call(reported(200, read=40, write=2))
        run.append(user("And?"))
        await run.before_model_call(model=SMALL, overhead_tokens=30)
        assert look.tokens == [cost("Hi.") + 30, 242 + cost("Done.", "And?")]
        await run.after_model_call(reported(300))  # one step's usage, never a sum
        await run.before_model_call(model=SMALL, overhead_tokens=30)
        assert look.tokens[2] == 300 + cost("Done.")


@pytest.mark.rule("C.M.3", "C.M.7")
@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"tool_choice": "none", "effort": "high"}},
        {"settings": None},
        {"output_schema": {"type": "number"}},
        {"tools": [{"name": "other", "input_schema": {"type": "object"}}]},
        {"model": Model("openai", "gpt-other", 1_000, 100)},
    ],
)
async def test_other_settings_end_the_baseline(changed: dict[str, Any]) -> None:
    look = Looking()
    same: dict[str, Any] = {
        "model": SMALL,
        "settings": {"effort": "low", "tool_choice": "auto"},
        "output_schema": {"type": "string"},
        "tools": [{"name": "deploy", "input_schema": {"type": "object"}}],
        "overhead_tokens": 30,
    }
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        run.append(user("Hi."))
        await run.before_model_call(**same)
        await run.after_model_call(reported(500))
        reordered: dict[str, Any] = same | {"settings": {"tool_choice": "auto", "effort": "low"}}
        await run.before_model_call(**reordered)
        assert look.tokens[1] == 500 + cost("Done.")
        await run.after_model_call(reported(500))
        await run.before_model_call(**(same | changed))
        assert look.tokens[2] == cost("Hi.", "Done.", "Done.") + 30


@pytest.mark.rule("C.M.3", "C.M.7")
@pytest.mark.parametrize("edit", [0, 1])
async def test_a_changed_prefix_ends_the_baseline(edit: int) -> None:
    look = Looking()
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        history = [user("Hi."), assistant("Ho."), user("And?")]
        await run.before_model_call(history, model=SMALL)
        await run.after_model_call(reported(500))
        history[edit] = user("Else.")
        await run.before_model_call([*history, assistant("Done.")], model=SMALL)
        assert look.tokens[1] < 100


@pytest.mark.rule("C.M.8", "C.M.12")
@pytest.mark.parametrize(
    ("report", "keeps"),
    [
        (contextbus.Report(status="succeeded", messages=[assistant("Done.")]), False),
        (contextbus.Report(status="failed"), True),
        (contextbus.Report(status="cancelled"), True),
    ],
)
async def test_missing_usage_ends_it_and_a_call_that_failed_leaves_it(
    report: contextbus.Report, *, keeps: bool
) -> None:
    look = Looking()
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        run.append(user("Hi."))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(reported(500))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(report)
        run.append(user("More."))
        await run.before_model_call(model=SMALL)
        assert (look.tokens[2] > 500) is keeps


@pytest.mark.rule("C.M.14")
async def test_the_tail_that_was_measured_is_taken_off() -> None:
    look = Looking()
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        await run.working_memory.create(goal="Deploy the service to production.")
        run.append(user("Hi."))
        step = await run.before_model_call(model=SMALL)
        tail = make_estimator(CHARACTERS).tokens((await state_of(bus, run)).last.tail_eighteenths)  # type: ignore[union-attr]  # a step was compiled
        assert tail > 10
        assert step.manifest.placement.tail
        await run.after_model_call(reported(500))
        await run.before_model_call(model=SMALL)
        coming = look.tokens[0] - cost("Hi.")
        assert coming > 0
        assert look.tokens[1] == 500 - tail + coming + cost("Done.")


@pytest.mark.rule("C.M.6", "C.M.7", "C.N.12", "C.L.9")
async def test_a_compaction_ends_baseline_and_cache_age_and_a_later_baseline_holds_for_another_client() -> None:
    look = Looking()
    given = options(messages_exceed(7), look)
    async with contextbus.open("memory:", summarisers=[Writing()], memory=False) as bus:
        run = await bus.run("r", **given)
        run.append(*talk(1))
        await run.before_model_call(model=CLAUDE)
        await run.after_model_call(reported(5_000, write=10, request_body=OLD))
        run.append(*talk(2))
        await run.before_model_call(model=CLAUDE)
        assert (await kinds(bus, run))[-1] == "completed"
        state = await state_of(bus, run)
        assert state.measured is None
        await run.after_model_call(reported(700, read=1, request_body=OLD))
        again = await bus.run("r", **given)
        again.append(user("After."))
        await again.before_model_call(model=CLAUDE)
        assert look.seen[-1].tokens == 701 + cost("Done.", "After.")
        assert look.seen[-1].cache_age_ms is not None
        assert (await kinds(bus, run)) == ["started", "completed", "restored"]


@pytest.mark.rule("C.N.1", "C.N.2", "C.N.3", "C.N.4")
@pytest.mark.parametrize(("read", "write", "known"), [(5, 0, True), (0, 5, True), (0, 0, False)])
async def test_a_call_that_used_the_cache_has_an_age(read: int, write: int, *, known: bool) -> None:
    look = Looking()
    async with bus_writing() as bus:
        run = await bus.run("r", **options(look))
        run.append(user("Hi."))
        await run.before_model_call(model=CLAUDE)
        began = read_milliseconds() - 7_000
        await run.after_model_call(reported(100, read=9, started_at=began, request_body=OLD))
        run.append(user("And?"))
        await run.before_model_call(model=CLAUDE)  # appending keeps it
        assert look.seen[1].cache_age_ms is not None
        assert 7_000 <= look.seen[1].cache_age_ms < 60_000
        assert look.seen[1].cache_retention_ms == 300_000
        await run.after_model_call(reported(100, read=read, write=write, started_at=began, request_body=OLD))
        await run.before_model_call(model=CLAUDE)
        assert (look.seen[2].cache_age_ms is not None) is known
        await run.after_model_call(reported(100, read=1, started_at=read_milliseconds() + HOUR, request_body=OLD))
        await run.before_model_call(model=CLAUDE)
        assert look.seen[3].cache_age_ms is None


@pytest.mark.rule("C.H.5", "C.N.4", "C.N.10", "C.N.12")
async def test_a_cold_cache_compacts_once() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(cache_likely_cold()))
        run.append(*talk(4))
        await run.before_model_call(model=CLAUDE)
        await run.after_model_call(reported(100, write=5, started_at=read_milliseconds() - HOUR, request_body=OLD))
        await run.before_model_call(model=CLAUDE)
        assert await kinds(bus, run) == ["started", "completed"]
        await run.after_model_call(contextbus.Report(status="failed"))
        run.append(user("Again?"))
        await run.before_model_call(model=CLAUDE)
        assert (await kinds(bus, run)).count("started") == 1


@pytest.mark.rule("C.N.10", "C.H.6")
@pytest.mark.parametrize(("retention", "compacts"), [(None, False), (1_000, True)])
async def test_an_unknown_retention_leaves_it_inactive_and_an_override_works(
    retention: int | None, *, compacts: bool
) -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(cache_likely_cold(retention)))
        run.append(*talk(4))
        await run.before_model_call(model=Model("gemini", "gemini-2.5-pro", 100_000, 8_000))
        await run.after_model_call(reported(100, read=5, started_at=read_milliseconds() - HOUR))
        await run.before_model_call(model=Model("gemini", "gemini-2.5-pro", 100_000, 8_000))
        assert bool(await kinds(bus, run)) is compacts

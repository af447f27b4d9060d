"""Runs whose compactions verify, whatever their options, models and forgets were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.compacting_runs import Writing, bus_writing, talk

import contextbus.client as contextbus
from contextbus.client import Compaction, Report, Window, messages_exceed
from contextbus.runtime import telling
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.values import Model, Scope, Usage

SCOPE = Scope(user_id="ada")
LARGE = Model("openai", "gpt-a", 3_000, 300)
SMALL = Model("openai", "gpt-b", 1_000, 300)


LOOK: dict[str, Any] = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
OTHERS: list[tuple[Model, dict[str, Any]]] = [
    (SMALL, {}),
    (LARGE, {"settings": {"temperature": 1}}),
    (LARGE, {"tools": [LOOK]}),
]


async def is_clean(bus: contextbus.ContextBus, run: contextbus.Run) -> bool:
    return (await bus.verify(run.id)).is_clean


@pytest.mark.broker
@pytest.mark.parametrize(
    "compaction",
    [
        Window(trigger_ratio=1),
        Window(keep_ratio=1),
        Compaction(triggers=[messages_exceed(4)], target_tokens=5_000, min_shrink=0, keep_last_messages=1),
    ],
)
async def test_a_whole_number_for_a_share_reads_back_as_it_was_written(compaction: Any, tmp_path: Path) -> None:
    async with contextbus.open(data=tmp_path, memory=False, durability="interval") as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compaction, budget={"ratio": 1})
        run.append(*talk(4))
        await run.before_model_call(model=LARGE)
        assert await is_clean(bus, run)


@pytest.mark.rule("C.M.3", "C.M.7")
@pytest.mark.parametrize(("model", "more"), OTHERS)
async def test_a_count_of_another_request_decides_neither_live_nor_again(model: Model, more: dict[str, Any]) -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=Window(summariser="writing"))
        run.append(*talk(3))
        await run.before_model_call(model=LARGE)
        await run.after_model_call(Report(status="succeeded", messages=[assistant("A")], usage=Usage(3_500, 3)))
        run.append(*talk(12))
        await run.before_model_call(model=model, **more)
        assert await is_clean(bus, run)


@pytest.mark.rule("C.X.5", "C.X.11")
async def test_dropped_ranges_that_share_what_replaces_them_are_told_apart() -> None:
    async with contextbus.open("memory:", summarisers=[Writing(ValueError("down"))]) as bus:
        gone = await bus.memories.remember("She likes why tea", scope=SCOPE)
        options = Compaction(
            triggers=[messages_exceed(4)],
            target_tokens=6_000,
            keep_last_messages=1,
            summariser="writing",
            on_failure="drop",
        )
        run = await bus.run("r", scope=SCOPE, sources=["memory"], compaction=options)
        for turn in range(8):
            run.append(user(f"why tea {turn}?" + " why" * 20))
            await run.before_model_call(model=LARGE)
            await run.after_model_call(Report(status="succeeded", messages=[assistant(f"a{turn} " * 10)]))
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        dropped = [found for found in await bus.compactions(run.id) if found.dropped]
        assert len(dropped) > 1
        assert await is_clean(bus, run)


@pytest.mark.rule("D.W.4")
async def test_who_is_told_and_hangs_holds_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "TELLING_SECONDS", 0.05)

    async def hang(*_: object) -> None:
        await asyncio.sleep(60)

    async with bus_writing(Writing()) as bus:
        options = Compaction(
            triggers=[messages_exceed(4)], target_tokens=6_000, summariser="writing", on_compress=hang, on_event=hang
        )
        run = await bus.run("r", scope=SCOPE, compaction=options)
        run.append(*talk(8))
        step = await asyncio.wait_for(run.before_model_call(model=LARGE), 10)
        assert "Previous conversation summary" in str(step.payload().copy())

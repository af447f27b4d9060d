"""Triggers of a run: in order, over one estimate, the host's own in its process (C.H, C.I, D.W.4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.client.compacting_runs import (
    DONE,
    SMALL,
    Writing,
    bus_writing,
    contents,
    events_of,
    failures_of,
    kinds,
    roles,
    said,
    talk,
)
from tests.client.scripted import CHARACTERS, SCOPE, Scripted, sent

import contextbus.client as contextbus
from contextbus.client import Compaction, CompactionSnapshot, messages_exceed, tokens_exceed
from contextbus.client.compaction_options import CompactionEvent
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import user
from contextbus_protocol.errors import CallbackTimeoutError, HookFailedError
from contextbus_protocol.events import CompactionFailed, CompactionStarted
from contextbus_protocol.values import Model, OnFailure

Trigger = Callable[[CompactionSnapshot], object]


def options(*triggers: Trigger, **given: Any) -> dict[str, Any]:
    """The options of a run that compacts."""
    chosen: dict[str, Any] = {"target_tokens": 600, "summariser": "writing"} | given
    return {"scope": SCOPE, "estimator": CHARACTERS, "compaction": Compaction(triggers=triggers, **chosen)}


@pytest.mark.rule("C.H.3", "C.I.5", "C.O.6", "C.I.1")
async def test_forty_one_short_messages_match_whatever_the_target_is() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(40), target_tokens=4_000))
        run.append(*talk(20, 1)[:-1])
        await run.before_model_call(model=SMALL)
        assert await kinds(bus, run) == []
        await run.after_model_call(DONE)
        step = await run.before_model_call(model=SMALL)
        assert await kinds(bus, run) == ["started", "completed"]
        assert contents(step)[0].startswith("Previous conversation summary:\nShort.\n")
        assert len(contents(step)) == 5 + (step.manifest.placement.tail is True)


@pytest.mark.rule("C.I.7", "C.I.1")
async def test_without_a_match_nothing_happens_and_without_the_option_nothing_is_evaluated() -> None:
    writer = Writing()
    async with bus_writing(writer) as bus:
        plain: dict[str, Any] = {"scope": SCOPE, "estimator": CHARACTERS}
        for given in (options(messages_exceed(5)), plain):
            run = await bus.run(**given)
            run.append(*talk(2))
            step = await run.before_model_call(model=SMALL)
            assert [m["content"] for m in sent(step)] == said(talk(2))
            assert await kinds(bus, run) == []
    assert writer.asked == []


@pytest.mark.rule("C.I.3", "C.I.4", "C.H.9")
async def test_the_first_match_wins_and_all_see_one_estimate() -> None:
    seen: list[tuple[str, int]] = []

    def say(name: str, answer: object) -> Trigger:
        def trigger(snapshot: CompactionSnapshot) -> object:
            seen.append((name, snapshot.tokens))
            return answer

        return trigger

    async with bus_writing(Writing()) as bus:
        triggers = (say("a", 0), messages_exceed(100), say("b", "yes"), say("c", answer=True))
        run = await bus.run("r", **options(*triggers))
        run.append(*talk(3))
        await run.before_model_call(model=SMALL, overhead_tokens=50)
        started = (await events_of(bus, run))[0]
        assert isinstance(started, CompactionStarted)
        assert (started.trigger_index, started.matched) == (2, ((0, False), (2, True)))
        assert seen == [("a", started.tokens_before), ("b", started.tokens_before)]
        assert started.envelope_tokens == 50
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.H.8")
@pytest.mark.parametrize(("answer", "matches"), [(1, True), ("", False), ([], False), (None, False), ((0,), True)])
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_trigger_gives_counts_by_its_truth(*, answer: object, matches: bool, is_async: bool) -> None:
    async def later(_: CompactionSnapshot) -> object:
        await asyncio.sleep(0)
        return answer

    async with bus_writing(Writing()) as bus:
        run = await bus.run(**options(later if is_async else lambda _: answer))
        run.append(*talk(3))
        await run.before_model_call(model=SMALL)
        assert bool(await kinds(bus, run)) is matches


@pytest.mark.rule("C.H.1", "C.H.10")
async def test_the_snapshot_is_the_history_as_the_model_gets_it_and_cannot_be_changed() -> None:
    seen: list[CompactionSnapshot] = []

    def look(snapshot: CompactionSnapshot) -> bool:
        seen.append(snapshot)
        return len(seen) == 3

    rag = check_source(Scripted([contextbus.candidate("0", "Deploys need CI.", 0.9)]))
    async with bus_writing(Writing(), sources=[rag]) as bus:
        run = await bus.run("r", sources=["rag"], **options(look))
        for number in range(4):
            run.append(user(f"Question {number}"))
            step = await run.before_model_call(model=SMALL)
            texts = said(seen[-1].messages)
            if number != 2:  # with the compaction the step sends less than the trigger saw
                block = 1 if number == 0 else 0
                assert texts == contents(step)[: len(contents(step)) - block]
            await run.after_model_call(DONE)
    assert isinstance(seen[0].messages, tuple)
    assert [len(s.messages) for s in seen[:3]] == [1, 4, 6]
    assert "Deploys need CI." in str(seen[1].messages[1])
    with pytest.raises(AttributeError):
        seen[0].tokens = 5  # type: ignore[misc]  # what must be refused


@pytest.mark.rule("C.H.10", "D.W.1")
async def test_a_client_that_is_behind_reads_the_run_before_its_trigger_sees_it() -> None:
    seen: list[CompactionSnapshot] = []
    async with bus_writing(Writing()) as bus:
        first = await bus.run("r", **options(messages_exceed(6)))
        first.append(*talk(2))
        second = await bus.run("r", **options(seen.append))
        await first.before_model_call(model=SMALL)
        await first.after_model_call(DONE)
        first.append(user("More?"))
        await first.before_model_call(model=SMALL)  # compacts, which the other client knows nothing of
        await first.after_model_call(DONE)
        second.append(user("And I?"))
        step = await second.before_model_call(model=SMALL)
        assert await kinds(bus, first) == ["started", "completed", "restored"]
        assert said(seen[-1].messages) == contents(step)


@pytest.mark.rule("C.I.6", "C.K.4", "D.W.4", "C.O.6", "C.O.7")
async def test_a_trigger_that_raises_stops_the_step_before_anything_is_sent() -> None:
    error = KeyError("the password is swordfish")

    def fails(_: CompactionSnapshot) -> bool:
        raise error

    writer = Writing()
    told: list[CompactionEvent] = []
    async with bus_writing(writer) as bus:
        run = await bus.run("r", **options(tokens_exceed(10_000), fails, messages_exceed(1), on_event=told.append))
        run.append(*talk(3))
        with pytest.raises(HookFailedError) as raised:
            await run.before_model_call(model=SMALL)
        assert raised.value.__cause__ is error
        assert (raised.value.origin, raised.value.origin_type) == ("compaction_trigger", "KeyError")
        (failed,) = await events_of(bus, run)
        assert isinstance(failed, CompactionFailed)
        assert (failed.phase, failed.reason) == ("evaluate", "error")
        assert told == [failed]
        assert "swordfish" not in repr(await bus.log("r"))
        assert writer.asked == []
        assert [f.code for f in await failures_of(bus, run)] == ["hook_failed"]
        assert (await bus.compactions("r"))[0].status == "failed"


@pytest.mark.rule("D.W.4")
async def test_a_trigger_that_does_not_answer_in_time_counts_as_raised() -> None:
    async def hangs(_: CompactionSnapshot) -> bool:
        await asyncio.sleep(60)
        return True

    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(hangs))
        run.append(*talk(3))
        with pytest.raises(CallbackTimeoutError, match="compaction_trigger"):
            await run.before_model_call(model=SMALL, seconds=0.5)
        assert await kinds(bus, run) == ["failed"]


@pytest.mark.rule("C.K.1", "C.K.7")
async def test_each_step_is_evaluated_also_within_one_turn() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(messages_exceed(6), keep_last_messages=2))
        run.append(*talk(2))
        for _ in range(8):
            await run.before_model_call(model=SMALL)
            await run.after_model_call(DONE)
        found = await kinds(bus, run)
        assert found.count("completed") >= 2
        assert "restored" not in found
        assert roles(run.messages).count("user") == 3


@pytest.mark.rule("D.R.3", "D.R.2")
async def test_prepare_step_sees_the_compacted_history() -> None:
    seen: list[contextbus.StepContext] = []
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", prepare_step=seen.append, **options(messages_exceed(6)))
        run.append(*talk(3))
        step = await run.before_model_call(model=SMALL)
        assert said(seen[-1].messages) == contents(step)
        assert "summary" in contents(step)[0]


@pytest.mark.broker
@pytest.mark.rule("C.H.10", "D.W.4", "C.M.11", "C.K.3")
async def test_on_a_server_trigger_and_counter_are_asked_in_the_clients_process(tmp_path: Path) -> None:
    seen: list[CompactionSnapshot] = []

    def look(snapshot: CompactionSnapshot) -> bool:
        seen.append(snapshot)
        return len(snapshot.messages) == 7 and len(seen) == 1

    def count(messages: tuple[object, ...]) -> int:
        return 50 * len(messages)

    given = options(look, count_tokens=count)
    async with contextbus.open(data=tmp_path, memory=False, durability="interval", summarisers=[Writing()]) as bus:
        run = await bus.run("r", **given)
        run.append(*talk(3))
        step = await run.before_model_call(model=SMALL)
        assert (len(seen[0].messages), seen[0].tokens) == (7, 350)
        assert await kinds(bus, run) == ["started", "completed"]
        await run.after_model_call(DONE)
        again = await bus.run("r", **given)
        again.append(user("More?"))
        assert contents(await again.before_model_call(model=SMALL)) == [*contents(step), "Done.", "More?"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.L.6")
async def test_after_a_restore_a_trigger_looks_at_what_stands_in_place_of_the_history() -> None:
    seen: list[CompactionSnapshot] = []

    def look(snapshot: CompactionSnapshot) -> bool:
        seen.append(snapshot)
        return False

    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", **options(look, messages_exceed(8)))
        run.append(*talk(4))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(DONE)
        whole = seen[0]
        assert await kinds(bus, run) == ["started", "completed"]
        run.append(user("Next?"))
        seen.clear()
        await run.before_model_call(model=SMALL)
        restored = seen[0]
        assert "restored" in await kinds(bus, run)
        assert said(restored.messages)[0].startswith("Previous conversation summary:\nShort.\n")
        assert said(restored.messages)[-1] == "Next?"
        assert len(restored.messages) < len(whole.messages)
        assert restored.tokens < whole.tokens
        again = await bus.run("r", **options(look, messages_exceed(8)))  # another host
        again.append(user("And then?"))
        seen.clear()
        await again.before_model_call(model=SMALL)
        assert said(seen[0].messages)[:-1] == said(restored.messages)


NATIVE = {"context_management", "compaction", "truncation", "compact_threshold", "transforms", "contextManagement"}
"""Members by which a provider is told to shorten a history itself."""


def members(value: object) -> set[str]:
    """The names of every member of a body, at any depth."""
    if isinstance(value, dict):
        given = cast("dict[str, object]", value)
        return set(given).union(*map(members, given.values()))
    if isinstance(value, list):
        return set[str]().union(*map(members, cast("list[object]", value)))
    return set()


@pytest.mark.rule("C.M.15")
@pytest.mark.parametrize("target", ["anthropic", "openai"])
@pytest.mark.parametrize("limit", [6, 100])
@pytest.mark.parametrize("on_failure", ["stop", "continue", "drop"])
async def test_no_payload_turns_on_a_providers_own_compaction(target: str, limit: int, on_failure: OnFailure) -> None:
    model = Model("anthropic" if target == "anthropic" else "openai", "any", 1_000, 100)
    for more in ({}, {"media": "placeholder", "summary_input_tokens": 200, "min_shrink": 0.0}):
        async with bus_writing(Writing()) as bus:
            given = options(messages_exceed(limit), on_failure=on_failure, **more)
            run = await bus.run("r", **given)
            run.append(*talk(4))
            settings: dict[str, object] = {"temperature": 0, "truncation": "auto", "context_management": {"edits": []}}
            for _ in range(2):
                step = await run.before_model_call(model=model, settings=settings)
                body = json.loads(step.payload(target).json())
                assert body["messages"]
                assert not members(body) & NATIVE
                await run.after_model_call(DONE)
            assert ("completed" in await kinds(bus, run)) == (limit == 6)

"""Models that bind their thinking to the prefix: what a request keeps, byte for byte (D.F.8-D.F.11, D.F.20)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.client.scripted import SCOPE, Scripted, bus_with, state_of, text_in

import contextbus.client as contextbus
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, user
from contextbus_protocol.values import Model, ModelPrefix
from contextbus_protocol.working_memory import AddObservation

OPUS = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)
LOOSE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


def thought(number: int) -> ChatMessage:
    """An answer with thinking that only the very prefix makes valid."""
    thinking = Reasoning(text=f"Thought {number}.", signature=f"sig-{number}")
    return ChatMessage(role="assistant", content=(thinking, Text(text=f"Answer {number}.")))


def request(step: contextbus.CompiledStep) -> list[dict[str, Any]]:
    body = json.loads(step.payload("anthropic").json())
    messages: list[dict[str, Any]] = body["messages"]
    return messages


def flat(messages: list[dict[str, Any]]) -> list[str]:
    """The parts of all messages in order: neighbours that a provider wants merged are one message there."""
    parts: list[str] = []
    for message in messages:
        content = message["content"]
        items = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts += [json.dumps([message["role"], item], sort_keys=True) for item in items]
    return parts


def thoughts(step: contextbus.CompiledStep) -> list[str]:
    return [p["signature"] for m in request(step) for p in m["content"] if isinstance(p, dict) and "signature" in p]


def hidden(step: contextbus.CompiledStep) -> int:
    return sum(1 for r in step.payload("anthropic").repairs if r.code == "thinking")


async def take(run: contextbus.Run, number: int, *, model: Model = OPUS, **changes: Any) -> contextbus.CompiledStep:
    """A step with a question, and its answer with thinking."""
    run.append(user(f"Question {number}?"))
    step = await run.before_model_call(model=model, **changes)
    await run.after_model_call(contextbus.Report(status="succeeded", messages=[thought(number)]))
    return step


@pytest.mark.rule("D.F.9", "D.F.20", "D.F.10", "D.F.4", "D.F.21", "D.R.5")
async def test_what_a_step_sent_stays_and_each_request_begins_as_the_one_before_to_the_byte() -> None:
    rag = Scripted()
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        before: list[str] = []
        sent: list[contextbus.CompiledStep] = []
        raw = b""
        for number in range(5):
            rag.answer = [contextbus.candidate(str(number), f"Record {number}.", 0.5)]
            step = await take(run, number, refresh=number != 3)
            sent.append(step)
            assert step.manifest.placement.tail_kept
            assert [b.placement for b in step.blocks][-1] == "ephemeral-tail"
            parts = flat(request(step))
            assert "<working_memory" in parts[-1]
            assert parts[: len(before)] == before  # the whole request of the step before, its tail included
            assert sum("<working_memory" in p for p in parts) == number + 1
            assert not step.manifest.cache_prefix_changed
            before = parts
            data = step.payload("anthropic").json()
            assert data.startswith(raw)
            assert data.endswith(b"]}")
            raw = data[:-2]
            await run.working_memory.patch(
                AddObservation(text=f"Seen {number}."), expected_revision=number, writer="host"
            )
        assert thoughts(sent[-1]) == [f"sig-{n}" for n in range(4)]
        assert hidden(sent[-1]) == 0
        assert not any("working_memory" in str(m) for m in run.messages)
        kinds = [b.fact.placement for b in (await state_of(bus, run)).blocks]
        assert kinds == ["append", "ephemeral-tail"] * 3 + ["ephemeral-tail"] + ["append", "ephemeral-tail"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.9", "D.F.20", "D.W.1", "D.R.13")
async def test_another_client_renders_the_same_bytes() -> None:
    rag = Scripted([contextbus.candidate("0", "Record.", 0.5)])
    async with bus_with(rag) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"])
        await one.working_memory.create(goal="Deploy.")
        for number in range(3):
            await take(one, number)
        one.append(user("Last?"))
        step = await one.before_model_call(model=OPUS)
        other = await bus.run("r", scope=SCOPE, sources=["rag"])
        again = await other.before_model_call(model=OPUS)
        assert (again.stored, again.step) == (True, step.step)
        assert again.payload("anthropic").json() == step.payload("anthropic").json()
        await other.after_model_call(contextbus.Report(status="succeeded", messages=[thought(3)]))
        other.append(user("More?"))
        later = await other.before_model_call(model=OPUS)
        await one.load()
        assert (await one.before_model_call(model=OPUS)).payload("anthropic").json() == later.payload(
            "anthropic"
        ).json()


@pytest.mark.broker
@pytest.mark.rule("D.F.9", "D.F.20", "D.R.7", "D.H.11")
async def test_a_restart_renders_the_same_bytes(tmp_path: Path) -> None:
    async with contextbus.open(data=tmp_path, memory=False, durability="interval") as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy.")
        for number in range(2):
            await take(run, number)
        await take(run, 2, tools=[{"name": "x", "input_schema": {"type": "object"}}])
        run.append(user("Last?"))
        sent = (await run.before_model_call(model=OPUS)).payload("anthropic").json()
    async with contextbus.open(data=tmp_path, memory=False, durability="interval") as bus:
        run = await bus.run("r", scope=SCOPE)
        step = await run.before_model_call(model=OPUS)
        assert step.stored
        assert step.payload("anthropic").json() == sent
        assert hidden(step) == 3
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.13", "D.F.9", "D.F.20")
@pytest.mark.parametrize("outcome", ["failed", "cancelled", "overflow", None])
async def test_the_tail_of_a_step_without_success_does_not_stay(
    outcome: Literal["failed", "cancelled", "overflow"] | None,
) -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy.")
        await take(run, 0)
        run.append(user("Question 1?"))
        await run.before_model_call(model=OPUS)
        if outcome is not None:
            await run.after_model_call(contextbus.Report(status=outcome))
        run.append(thought(1), user("Question 2?"))  # what came of it all the same
        step = await run.before_model_call(model=OPUS)
        assert sum("<working_memory" in p for p in flat(request(step))) == 2
        assert (thoughts(step), hidden(step)) == (["sig-0"], 1)
        assert step.manifest.cache_prefix_cause == "history"
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.B.3", "D.F.9")
async def test_kept_tails_count_as_used() -> None:
    async with bus_with() as bus:
        runs = [await bus.run(name, scope=SCOPE) for name in ("bound", "loose")]
        used: list[int] = []
        for run, model in zip(runs, (OPUS, LOOSE), strict=True):
            await run.working_memory.create(goal="Deploy.")
            await take(run, 0, model=model)
            used.append((await take(run, 1, model=model)).manifest.budget.used_tokens)
        (tail,) = (await state_of(bus, runs[0])).blocks.items.rest[:1]
        assert abs(used[0] - used[1] - tail.fact.eighteenths / 18) < 1


@pytest.mark.rule("D.F.20", "D.F.22")
async def test_thinking_is_left_out_behind_a_change_and_stays_before_it() -> None:
    tools = [{"name": "deploy", "input_schema": {"type": "object"}}]
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy.")
        for number in range(3):
            await take(run, number)
        messages = [m for m in run.messages if isinstance(m, ChatMessage)]
        messages[3] = thought(9)  # the second answer, rewritten
        step = await run.before_model_call([*messages, user("And?")], model=OPUS)
        assert (thoughts(step), hidden(step)) == (["sig-0"], 2)
        assert step.manifest.cache_prefix_cause == "history"
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[thought(3)]))
        step = await take(run, 4)
        assert thoughts(step) == ["sig-0", "sig-3"]  # what was written behind the new bytes is sent
        step = await take(run, 5, tools=tools)
        assert (thoughts(step), hidden(step)) == ([], 5)
        assert step.manifest.cache_prefix_cause == "tools"
        step = await take(run, 6, tools=tools)
        assert thoughts(step) == ["sig-5"]
        assert sum("Answer" in p for p in flat(request(step))) == 6  # what it said stays
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.20")
async def test_what_was_thought_behind_a_tail_that_left_is_not_sent_to_a_bound_model() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy.")
        await take(run, 0, model=LOOSE)
        step = await take(run, 1, model=LOOSE)
        assert (thoughts(step), step.manifest.placement.tail_kept) == (["sig-0"], False)
        step = await take(run, 2)
        assert (thoughts(step), hidden(step)) == ([], 2)
        assert thoughts(await take(run, 3)) == ["sig-2"]


@pytest.mark.rule("D.F.11", "D.F.9")
async def test_what_a_host_that_keeps_its_own_list_has_to_keep_is_given() -> None:
    async with bus_with(Scripted([contextbus.candidate("0", "Record.", 0.5)])) as bus:
        for model, kept in ((OPUS, 2), (LOOSE, 1)):
            run = await bus.run(scope=SCOPE, sources=["rag"])
            await run.working_memory.create(goal="Deploy.")
            step = await run.before_model_call([user("How?")], model=model)
            blocks = [m for b in step.blocks for m in b.messages]
            assert list(step.placed_messages()) == blocks[:kept]


@pytest.mark.rule("D.F.12")
async def test_a_model_of_the_users_own_table_keeps_its_tails() -> None:
    async with bus_with() as bus:
        rows = (ModelPrefix("anthropic", "claude-opus-4"),)
        run = await bus.run("r", scope=SCOPE, bound_models=rows)
        await run.working_memory.create(goal="Deploy.")
        await take(run, 0, model=LOOSE)
        step = await take(run, 1, model=LOOSE)
        assert step.manifest.placement.tail_kept
        assert sum("<working_memory" in p for p in flat(request(step))) == 2


@pytest.mark.rule("D.F.19", "D.G.33")
async def test_a_kept_tail_in_a_list_that_is_handed_over_is_no_message_of_the_user() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Deploy.")
        step = await take(run, 0)
        (tail,) = step.messages_of("ephemeral-tail")
        assert "Deploy." in text_in(tail)
        other = await bus.run("r", scope=SCOPE)
        for who in (run, other):
            await who.before_model_call([user("Question 0?"), tail, thought(0), user("And?")], model=OPUS)
            assert list(who.messages) == [user("Question 0?"), thought(0), user("And?")]

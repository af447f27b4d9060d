"""What a caller gets back is what the caller gave, and what is sent is what was given (D.W.3, D.A)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, text_in
from tests.core.conversations import WILD_HISTORIES

import contextbus.client as contextbus
from contextbus.core.history import digest_message
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.working_memory import AddObservation, WorkingMemorySnapshot

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "deploy", "description": "Deploy.", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.mark.rule("D.W.3")
async def test_the_callers_own_messages_are_handed_back() -> None:
    given_messages = [user("How do I deploy?"), assistant("Run the pipeline."), user("And back?")]
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.before_model_call(given_messages, model=MODEL)
        assert all(a is b for a, b in zip(run.messages, given_messages, strict=True))
        await run.load()  # what was read from the log is equal, and not what the caller gave
        assert all(a is b for a, b in zip(run.messages, given_messages, strict=True))
        answer = assistant("Roll back.")
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[answer]))
        assert run.messages[3] is answer


@pytest.mark.rule("D.W.3", "D.F.17")
async def test_through_a_bus_the_same_object_is_the_same_digest() -> None:
    async with bus_with() as bus:
        one, other = await bus.run("r", scope=SCOPE), await bus.run("r", scope=SCOPE)
        message = user("How do I deploy?")
        step = await one.before_model_call([message], model=MODEL)
        await other.load()
        (read,) = other.messages
        assert isinstance(read, ChatMessage)
        assert digest_message(read) == digest_message(message)
        again = await other.before_model_call(model=MODEL)
        assert (again.stored, again.reference, again.text) == (True, step.reference, step.text)


@pytest.mark.rule("D.A.4", "D.W.3")
async def test_a_run_keeps_a_working_memory_beside_its_steps() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        made = await run.working_memory.create(goal="Deploy.")
        assert isinstance(made, WorkingMemorySnapshot)
        answer = await run.working_memory.patch(AddObservation(text="CI is red."), expected_revision=0, writer="model")
        assert (answer.status, answer.ids) == ("applied", ("observations-1-0",))
        step = await run.before_model_call([user("How?")], model=MODEL)
        (tail,) = step.messages_of("ephemeral-tail")
        assert "Deploy." in text_in(tail)
        assert "CI is red." in text_in(tail)
        assert await run.working_memory.read() == answer.snapshot


@pytest.mark.rule("D.A.8", "D.F.1", "D.B.3", "D.M.15")
async def test_tools_are_counted_and_sent_as_they_are() -> None:
    before = copy.deepcopy(TOOLS)
    async with bus_with() as bus:
        plain = await (await bus.run(scope=SCOPE)).before_model_call([user("How?")], model=MODEL)
        run = await bus.run(scope=SCOPE)
        step = await run.before_model_call([user("How?")], model=MODEL, tools=TOOLS)
        given_count = await (await bus.run(scope=SCOPE)).before_model_call(
            [user("How?")], model=MODEL, tools=TOOLS, overhead_tokens=77
        )
    assert before == TOOLS
    assert step.payload().body["tools"] == TOOLS
    assert "tools" not in plain.payload().body
    used = [s.manifest.budget.used_tokens for s in (plain, step, given_count)]
    assert used[1] == used[0] + contextbus.estimate_overhead(TOOLS, None, "openai")
    assert used[2] == used[0] + 77


@pytest.mark.rule("D.A.9", "D.G.16")
async def test_the_query_is_not_rewritten() -> None:
    rag = Scripted()
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("how do i DEPLOY??  ")], model=MODEL)
    assert [q.text for q in rag.asked] == ["how do i DEPLOY??  "]


@pytest.mark.rule("D.A.2", "D.A.7")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=WILD_HISTORIES)
async def test_with_nothing_set_the_request_is_the_messages_that_were_given(messages: list[ChatMessage]) -> None:
    before = copy.deepcopy(messages)
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        step = await run.before_model_call(messages, model=MODEL)
        log = await bus.log("r")
    assert messages == before
    manifest = step.manifest
    assert (step.blocks, manifest.entries, manifest.sources) == ((), (), ())
    assert (manifest.budget.selected_tokens, manifest.budget.working_memory_tokens) == (0, 0)
    assert len(log.commits) == 1
    assert log.memory == ()
    assert [type(m) for m in run.messages] == [ChatMessage] * len(messages)
    assert msgspec.json.encode([digest_message(m) for m in messages]) == msgspec.json.encode(
        [digest_message(m) for m in run.messages if isinstance(m, ChatMessage)]
    )

"""Consecutive requests begin with the same bytes up to the append point, but where the manifest says why not.

The append point of a request is the end of its append block: system layer, tools and history are before it, the tail
is behind it.  Breakpoints are computed for each request and no part of what a cache compares, so bytes are compared
without ``cache_control``.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import pytest
from benchmarks.long_run import (
    BOUND,
    CALLS,
    PLAIN,
    TARGETS,
    RunStep,
    Script,
    cut_tail,
    keeps_prefix,
    made_script,
    real_script,
    sent_bytes,
    take_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted import SCOPE, Scripted, bus_with, text_in

import contextbus.client as contextbus
from contextbus.core.payload import Payload
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import Model
from contextbus_protocol.working_memory import AddObservation

Data = Literal["made", "real"]
Change = Literal["tools", "system", "model", "history", "failed", "answer"]

CLAUDE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
OTHER = Model("anthropic", "claude-sonnet-4-5", 200_000, 8_000)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])
TOOL = {"name": "look", "description": "Look it up.", "input_schema": {"type": "object"}}
DATA = ["made", pytest.param("real", marks=pytest.mark.data)]
MARKED = [pytest.param(False, id="without breakpoints"), pytest.param(True, id="with breakpoints")]


def script_of(data: Data) -> Script:
    script = made_script() if data == "made" else real_script()
    if script is None:
        pytest.skip("the folder of shared conversations is not at hand")
    return script


@cache
def steps_of(data: Data, model: Model = PLAIN, *, marked: bool = False) -> tuple[RunStep, ...]:
    """The 50 steps of a run; it is taken once for all tests that look at it."""
    return tuple(asyncio.run(take_run(script_of(data), model, cache=marked)))


def texts_of(messages: tuple[ChatMessage, ...]) -> list[bytes]:
    """The texts of messages as they stand in JSON."""
    return [json.dumps(text_in(message), ensure_ascii=False).encode() for message in messages]


def sent_messages(payload: Payload) -> list[Any]:
    """The messages of a request, without breakpoints."""
    return cast("list[Any]", json.loads(sent_bytes(payload))[payload.list_name])


@pytest.mark.rule("P.A.4", "D.F.2", "D.F.3", "D.F.15", "D.F.17", "D.F.22")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("data", DATA)
def test_a_request_begins_with_the_one_before_up_to_its_append_point(data: Data, marked: bool, target: str) -> None:
    steps = steps_of(data, marked=marked)
    for before, after in pairwise(steps):
        assert keeps_prefix(before.points[target], after.requests[target]) == (after.cause is None)
        assert after.is_changed == (after.cause is not None)
    assert len(steps) == CALLS
    causes = [step.cause for step in steps if step.cause is not None]
    assert len(causes) >= 2
    assert set(causes) == {"compaction"}
    assert sum(bool(step.blocks) for step in steps) >= 2


@pytest.mark.rule("D.F.4", "D.F.5", "P.A.3", "P.A.4")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("data", DATA)
def test_what_changes_stands_behind_the_append_point(data: Data, target: str) -> None:
    """The point is no shorter than the history with its block, and no longer; the rest is the tail, once."""
    for step in steps_of(data):
        point, request = sent_bytes(step.points[target]), sent_bytes(step.requests[target])
        assert keeps_prefix(step.points[target], step.requests[target])
        assert all(text in point for text in texts_of(step.blocks))
        memory, state, output = texts_of(step.tail)
        places = [request.find(text, len(point.rstrip(b"]}"))) for text in (memory, state, output)]
        assert -1 < places[0] < places[1] < places[2]
        assert b"<working_memory" not in point
        assert b"<dynamic_state>" not in point
        assert request.count(b"<dynamic_state>") == 1
    states = [texts_of(step.tail)[1] for step in steps_of(data)]
    assert len(set(states)) == CALLS


@pytest.mark.rule("D.F.8", "D.F.9", "D.F.20", "D.F.15")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("data", DATA)
def test_where_thinking_is_bound_the_whole_request_is_a_prefix_of_the_next(
    data: Data, marked: bool, target: str
) -> None:
    steps = steps_of(data, BOUND, marked=marked)
    for before, after in pairwise(steps):
        assert keeps_prefix(before.requests[target], after.requests[target]) == (after.cause is None)
    causes = [step.cause for step in steps if step.cause is not None]
    assert len(causes) >= 2
    assert set(causes) == {"compaction"}


@pytest.mark.rule("P.E.4")
@pytest.mark.parametrize("data", DATA)
def test_breakpoints_are_an_overlay_over_the_same_bytes(data: Data) -> None:
    """System layer and newest message have one in each request; without them the bytes are as if nobody had asked."""
    compacted = False
    for plain, marked in zip(steps_of(data), steps_of(data, marked=True), strict=True):
        assert b'"cache_control"' not in plain.requests["anthropic"].json()
        body = json.loads(marked.requests["anthropic"].json())
        assert marked.requests["anthropic"].json().count(b'"cache_control"') <= 4
        assert "cache_control" in body["system"][-1]
        behind = len(marked.blocks) + len(marked.tail)
        assert "cache_control" in body["messages"][-1]["content"][-behind - 1]
        # from then on a summary names an archive, whose digest covers what was asked for
        compacted = compacted or marked.cause == "compaction"
        for target in () if compacted else TARGETS:
            assert sent_bytes(plain.requests[target]) == sent_bytes(marked.requests[target])
    assert compacted


@pytest.mark.rule("P.A.4", "B49")
@pytest.mark.parametrize("model", [PLAIN, BOUND])
async def test_two_compiles_of_one_input_are_byte_identical(model: Model) -> None:
    """Public report B49: a time, an id or a counter in the prefix; here another run's requests are the same bytes."""
    first = await take_run(made_script(), model)
    await asyncio.sleep(0.002)
    second = await take_run(made_script(), model, name="another")
    for one, other in zip(first, second, strict=True):
        for target in TARGETS:
            assert one.points[target].json() == other.points[target].json()
            assert one.requests[target].json() == other.requests[target].json()


@pytest.mark.rule("P.A.4", "D.F.3", "B50")
async def test_a_memory_written_between_two_calls_leaves_the_prefix() -> None:
    """Public report B50: memory in the system prompt bills the whole history again at each write."""
    async with contextbus.open("memory:") as bus:
        run = await bus.run(scope=SCOPE, sources=["memory"])
        before: contextbus.CompiledStep | None = None
        for number in range(5):
            await bus.memories.remember(f"Deploy {number} needs approval of team {number}.", scope=SCOPE)
            run.append(user(f"Who approves deploy {number}?"))
            step = await run.before_model_call(model=CLAUDE, refresh=True)
            assert f"approval of team {number}" in text_in(step.messages_of("append")[0])
            assert step.manifest.cache_prefix_cause is None
            for target in TARGETS:
                point = cut_tail(step, target)
                assert before is None or keeps_prefix(cut_tail(before, target), point)
            await run.after_model_call(DONE)
            before = step


@pytest.mark.rule("P.A.4", "D.F.15", "B50")
async def test_memories_that_are_written_all_along_break_no_prefix() -> None:
    """Public report B50 over a long run: only compaction changes what a request begins with."""
    steps = await take_run(made_script(), memories=True)
    assert any(b"The customer was called" in text for step in steps for text in texts_of(step.blocks))
    for before, after in pairwise(steps):
        for target in TARGETS:
            assert keeps_prefix(before.points[target], after.requests[target]) == (after.cause is None)
    assert {step.cause for step in steps} == {None, "compaction"}


@pytest.mark.rule("D.F.3", "D.F.14", "B51")
@pytest.mark.parametrize("target", ["openai", "openai-responses"])
@pytest.mark.parametrize("data", DATA)
def test_nothing_is_cleared_in_place(data: Data, target: str) -> None:
    """Public report B51: old tool results are cleared at each turn; here all stays until a compaction."""
    steps = steps_of(data)
    starts = [0, *(index for index, step in enumerate(steps) if step.cause is not None), len(steps)]
    for start, end in pairwise(starts):
        for step in steps[start:end]:
            sent = sent_messages(step.points[target])
            assert sent_messages(steps[end - 1].points[target])[: len(sent)] == sent


@pytest.mark.rule("D.F.15", "D.F.22", "B51")
async def test_a_host_that_clears_its_oldest_result_at_each_step_is_told_each_time() -> None:
    """Public report B51: the rewrite is the host's, and the manifest names it."""
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        said: list[ChatMessage] = []
        causes: list[CachePrefixCause | None] = []
        for number in range(5):
            if number > 1:
                said[2 * (number - 2)] = user("[cleared]")
            said.append(user(f"Result {number}: " + "rows " * 20))
            step = await run.before_model_call(said, model=CLAUDE)
            causes.append(step.manifest.cache_prefix_cause)
            await run.after_model_call(DONE)
            said.append(assistant("Run the pipeline."))
        assert causes == [None, None, "history", "history", "history"]


CAUSES: dict[Change, CachePrefixCause] = {
    "model": "model",
    "tools": "tools",
    "system": "system",
    "history": "history",
    "failed": "history",
}
"""Why a change breaks the prefix, the first that is named first; an edited answer stands behind the append point."""


def read_message(message: object) -> ChatMessage:
    assert isinstance(message, ChatMessage)
    return message


async def take_changes(changes: list[list[Change]]) -> list[tuple[contextbus.CompiledStep, dict[str, Payload]]]:
    """A run with these changes before its steps; each step retrieves a record of its own."""
    source = Scripted()
    taken: list[tuple[contextbus.CompiledStep, dict[str, Payload]]] = []
    async with bus_with(source) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], refresh={"max_passes": 99})
        await run.working_memory.create(goal="Ship it.")
        tools, systems, model = [TOOL], ["You deploy."], CLAUDE
        for number, changed in enumerate(changes):
            messages = [*map(read_message, run.messages), user(f"{number}?")]
            if "history" in changed:
                messages[0] = user(f"Edited at {number}.")
            if "answer" in changed and messages[-2].role == "assistant":
                messages[-2] = assistant(f"Edited at {number}.")
            if "tools" in changed:
                tools = [*tools, {**TOOL, "name": f"look_{number}"}]
            if "system" in changed:
                systems = [*systems, f"Rule {number}."]
            if "model" in changed:
                model = OTHER if model is CLAUDE else CLAUDE
            await run.working_memory.patch(AddObservation(text=f"Seen {number}."), expected_revision=number)
            source.answer = [contextbus.candidate(str(number), f"Record {number} is about deploys.", 0.9)]
            prompt = contextbus.Prompt().system(*systems).state({"step": number}, {"type": "object"}).tools(tools)
            step = await run.before_model_call(messages, model=model, prompt=prompt, refresh=True)
            assert step.messages_of("append")
            taken.append((step, {target: cut_tail(step, target) for target in TARGETS}))
            failed = number + 1 < len(changes) and "failed" in changes[number + 1]
            await run.after_model_call(contextbus.Report(status="failed") if failed else DONE)
        assert (await bus.verify(run.id)).is_clean
    return taken


@pytest.mark.rule("D.F.13", "D.F.15", "D.F.16", "D.F.22", "P.A.4")
@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from(get_args(Change)), unique=True, max_size=2), min_size=3, max_size=6))
def test_every_other_beginning_has_a_cause_and_every_cause_another_beginning(drawn: list[list[Change]]) -> None:
    """A change of model is the only one that no byte shows: a provider keeps a cache for each model."""
    changes: list[list[Change]] = [[], *drawn]
    taken = asyncio.run(take_changes(changes))
    assert taken[0][0].manifest.cache_prefix_cause is None
    for changed, (_, points), (after, _) in zip(drawn, taken, taken[1:], strict=False):
        expected = next((cause for change, cause in CAUSES.items() if change in changed), None)
        assert after.manifest.cache_prefix_cause == expected
        for target in TARGETS:
            assert keeps_prefix(points[target], after.payload(target)) == (not set(changed) - {"model", "answer"})


@pytest.mark.rule("D.F.14", "D.F.22", "D.J.6")
async def test_a_forgotten_record_leaves_the_prefix_and_is_named() -> None:
    async with contextbus.open("memory:") as bus:
        run = await bus.run(scope=SCOPE, sources=["memory"])
        kept = await bus.memories.remember("Deploys need approval of the release team.", scope=SCOPE)
        run.append(user("Who approves deploys?"))
        first = await run.before_model_call(model=CLAUDE)
        assert first.messages_of("append")
        await run.after_model_call(DONE)
        await bus.memories.forget(kept.record_id, scope=SCOPE)
        steps: list[contextbus.CompiledStep] = []
        for _ in range(2):
            run.append(user("Who approves deploys?"))
            steps.append(await run.before_model_call(model=CLAUDE))
            await run.after_model_call(DONE)
        assert [step.manifest.cache_prefix_cause for step in steps] == ["redacted", None]
        for target in TARGETS:
            assert not keeps_prefix(cut_tail(first, target), steps[0].payload(target))
            assert keeps_prefix(cut_tail(steps[0], target), steps[1].payload(target))

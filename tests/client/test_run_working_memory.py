"""The model's tools in a run: over the bus and the log, with others beside and after a restart (D.Q, D.R.12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.client.scripted import MODEL, SCOPE
from tests.client.test_snapshot_tools import ADD, READ, UPDATE, answer_of, code_of, note

import contextbus.client as contextbus
from contextbus.client.snapshot_tools import working_memory_tools
from contextbus.client.working_memory import KnownCalls, RunWorkingMemory
from contextbus.core.handle import RunHandle
from contextbus.core.working_memory_patch import PatchResult
from contextbus_protocol.chat import ChatMessage, ToolCall, user
from contextbus_protocol.events import StepCompiled, WorkingMemoryPatched
from contextbus_protocol.working_memory import (
    AddObservation,
    RecordAttempt,
    Task,
    TaskList,
    TasksInput,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
)

Buses = tuple[contextbus.ContextBus, contextbus.ContextBus]


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.broker)])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Buses]:
    """Two clients: of one bus in memory, or of a server with an instance of each actor in each of them."""
    if request.param == "memory":
        async with contextbus.open("memory:", memory=False) as bus:
            yield bus, bus
        return
    async with (
        contextbus.open(data=tmp_path, memory=False, durability="interval") as one,
        contextbus.open(data=tmp_path, memory=False, durability="interval") as other,
    ):
        yield one, other


async def open_run(bus: contextbus.ContextBus) -> contextbus.Run:
    return await bus.run("r", scope=SCOPE, sources=[])


def calls(*ids: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=tuple(ToolCall(id=i, name="search") for i in ids))


async def events(bus: contextbus.ContextBus) -> list[WorkingMemoryPatched]:
    log = await bus.log("r")
    return [e for c in log.memory for e in c.commit.events if isinstance(e, WorkingMemoryPatched)]


@pytest.mark.rule("D.Q.7", "D.Q.8", "D.Q.11", "D.Q.12")
async def test_a_repeated_call_gets_the_answer_that_the_commit_holds_from_any_client(buses: Buses) -> None:
    one, other = [await open_run(bus) for bus in buses]
    await one.working_memory.create(goal="Deploy.")
    items = {"items": [{"kind": "decision", "text": "a"}, {"kind": "attempt", "text": "b"}]}
    first = answer_of(await one.working_memory.tools().call(ADD, items, call_id="c1", step=4))
    assert first == {"status": "applied", "revision": 1, "ids": ["decisions-1-0", "attempts-1-1"]}
    await other.working_memory.tools().call(ADD, note(), call_id="c2", step=4)
    for run in (one, other):
        again = answer_of(await run.working_memory.tools().call(ADD, items, call_id="c1", step=4))
        assert again == {**first, "status": "duplicate"}
    patched, _ = await events(buses[0])
    assert (patched.patch.operation_id, patched.revision, list(patched.ids)) == (f"{ADD}:4:c1", 1, first["ids"])
    assert patched.patch.writer == "model"
    assert (await buses[1].verify("r")).is_clean


@pytest.mark.broker
@pytest.mark.rule("D.Q.8", "D.Q.12")
async def test_a_call_that_is_replayed_after_a_restart_has_no_second_effect(tmp_path: Path) -> None:
    def opened() -> Any:
        return contextbus.open(data=tmp_path, memory=False, durability="interval")

    change = {"changes": [{"action": "drop", "id": "questions-1-0"}]}
    question = {"items": [{"kind": "question", "text": "Why?"}]}
    async with opened() as bus:
        run = await open_run(bus)
        await run.working_memory.create()
        tools = run.working_memory.tools(step=lambda: 2)
        await tools.call(ADD, question, call_id="c1")
        first = answer_of(await tools.call(UPDATE, change, call_id="c2"))
    async with opened() as bus:
        run = await open_run(bus)
        tools = run.working_memory.tools(step=lambda: 2)
        assert answer_of(await tools.call(UPDATE, change, call_id="c2")) == {**first, "status": "duplicate"}
        assert answer_of(await tools.call(ADD, question, call_id="c1"))["revision"] == 1
        snapshot = await run.working_memory.current()
        assert snapshot is not None
        assert (snapshot.revision, len(snapshot.questions)) == (2, 1)
        assert len(await events(bus)) == 2


class Contended:
    """A run's working memory beside which another client writes between reading and applying."""

    def __init__(self, memory: RunWorkingMemory, other: RunWorkingMemory, races: int) -> None:
        self.memory = memory
        self.other = other
        self.races = races

    async def current(self) -> WorkingMemorySnapshot | None:
        return await self.memory.current()

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        if self.races:
            self.races -= 1
            seen = await self.other.read()
            assert seen is not None
            done = await self.other.patch(AddObservation(text="theirs"), expected_revision=seen.revision)
            assert done.status == "applied"
        return await self.memory.apply(patch)


@pytest.mark.rule("D.Q.9")
@pytest.mark.parametrize("races", [2, 3])
async def test_a_write_that_loses_the_race_to_another_client_is_tried_three_times(buses: Buses, races: int) -> None:
    one, other = [await open_run(bus) for bus in buses]
    await one.working_memory.create()
    tools = working_memory_tools(Contended(one.working_memory, other.working_memory, races))
    result = await tools.call(ADD, note("mine"), call_id="c1", step=0)
    assert (code_of(result) if result.error else answer_of(result)["revision"]) == (
        3 if races == 2 else "revision_conflict"
    )
    snapshot = await other.working_memory.read()
    assert snapshot is not None
    assert [o.text for o in snapshot.observations] == ["theirs"] * races + ["mine"] * (races == 2)


@pytest.mark.rule("D.Q.9")
async def test_two_clients_that_write_at_once_lose_nothing_and_write_nothing_twice(buses: Buses) -> None:
    runs = [await open_run(bus) for bus in buses]
    await runs[0].working_memory.create()
    applied: list[str] = []

    async def write(run: contextbus.Run, who: str) -> None:
        tools = run.working_memory.tools()
        for number in range(12):
            result = await tools.call(ADD, note(f"{who}{number}"), call_id=f"{who}{number}", step=number)
            if result.error:
                assert code_of(result) == "revision_conflict"
            else:
                assert answer_of(result)["status"] == "applied"
                applied.append(f"{who}{number}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, runs[0], "a")
        tasks.start_soon(write, runs[1], "b")
    assert applied
    for run in runs:
        snapshot = await run.working_memory.read()
        assert snapshot is not None
        assert sorted(o.text for o in snapshot.observations) == sorted(applied)
    assert (await buses[0].verify("r")).is_clean


@pytest.mark.rule("D.Q.10")
async def test_a_sub_agent_reads_the_run_and_does_not_write_to_it(buses: Buses) -> None:
    run = await open_run(buses[0])
    await run.working_memory.create(goal="Deploy.")
    tools = run.working_memory.tools()
    refused = await tools.call(ADD, note(), call_id="c1", step=0, agent_path=["researcher"])
    assert code_of(refused) == "forbidden"
    shown = answer_of(await tools.call(READ, {}, call_id="c2", step=0, agent_path=["researcher"]))
    assert shown["goal"]["text"] == "Deploy."
    assert await events(buses[0]) == []


@pytest.mark.rule("D.Q.14")
async def test_evidence_is_a_tool_call_of_the_runs_history(buses: Buses) -> None:
    one, other = [await open_run(bus) for bus in buses]
    await one.working_memory.create()
    one.append(user("Is CI green?"), calls("c1", "c2"))
    tools = one.working_memory.tools()
    assert code_of(await tools.call(ADD, note(evidence=["c9"]), call_id="c3", step=0)) == "not_found"
    assert answer_of(await tools.call(ADD, note(evidence=["c1", "c2"]), call_id="c3", step=0))["revision"] == 1
    (patched,) = await events(buses[0])
    (operation,) = patched.patch.operations
    assert isinstance(operation, AddObservation)
    assert [(s.kind, s.id) for s in operation.sources] == [("tool-call", "c1"), ("tool-call", "c2")]
    await one.flush()
    await other.load()  # another client knows the calls from the log
    result = await other.working_memory.tools().call(ADD, note(evidence=["c2"]), call_id="c4", step=0)
    assert answer_of(result)["revision"] == 2


@pytest.mark.rule("D.Q.14")
def test_known_calls_follow_the_history() -> None:
    handle = RunHandle()
    known = KnownCalls(lambda: handle)
    assert "c1" not in known
    handle = handle.append([user("a"), calls("c1")])
    assert "c1" in known
    handle = handle.append([user("b") for _ in range(100)]).append([calls("c2", "c3")])
    assert ("c1" in known, "c3" in known, "c4" in known) == (True, True, False)
    handle = handle.hand_over([user("a"), calls("c4")])
    assert ("c1" in known, "c3" in known, "c4" in known) == (False, False, True)
    handle = handle.hand_over([user("x"), *[calls(f"d{n}") for n in range(150)]])
    assert ("c4" in known, "d149" in known, 3 in known) == (False, True, False)


@pytest.mark.rule("D.Q.12")
async def test_the_steps_commit_names_the_revision_that_it_used(buses: Buses) -> None:
    bus = buses[0]
    run = await open_run(bus)
    await run.working_memory.create(goal="Deploy.")
    await run.working_memory.tools().call(ADD, note("CI is green."), call_id="c1", step=0)
    run.append(user("How?"))
    step = await run.before_model_call(model=MODEL, tools=run.working_memory.tools().definitions("openai"))
    assert "CI is green." in step.text
    log = await bus.log("r")
    (compiled,) = [e for c in log.commits for e in c.commit.events if isinstance(e, StepCompiled)]
    assert compiled.working_memory is not None
    assert (compiled.working_memory.revision, compiled.working_memory.sequence) == (1, log.memory[-1].sequence)


async def test_tools_of_a_run_without_working_memory_say_so() -> None:
    async with contextbus.open("memory:", memory=False) as bus:
        tools = (await open_run(bus)).working_memory.tools()
        for name, arguments in ((READ, {}), (ADD, note())):
            assert code_of(await tools.call(name, arguments, call_id="c1", step=0)) == "not_found"


@pytest.mark.rule("D.R.12")
@pytest.mark.parametrize(
    "create",
    [
        {"goal": "Other."},
        {"goal": ""},
        {"constraints": ["a"]},
        {"tasks": TasksInput(TaskList("g", (Task("a", "A"),)))},
        {"goal_ref": "g"},
        {"scope": "acme"},
    ],
)
async def test_a_snapshot_and_what_a_new_one_is_made_of_are_not_given_together(create: dict[str, Any]) -> None:
    snapshot = contextbus.create_working_memory(scope="acme", now=5, goal="Deploy.")
    async with contextbus.open("memory:", memory=False) as bus:
        run = await open_run(bus)
        with pytest.raises(TypeError, match="not both"):
            await run.working_memory.create(snapshot=snapshot, **create)
        assert await run.working_memory.read() is None
        taken = await run.working_memory.create(snapshot=msgspec.structs.replace(snapshot, operation_ids=("x",)))
        assert (taken.scope, taken.goal) == ("acme", snapshot.goal)
        again = await run.working_memory.patch(AddObservation(text="a"), expected_revision=0, operation_id="x")
        assert (again.status, again.revision) == ("duplicate", None)


async def test_a_word_that_is_a_default_is_the_same_patch_in_the_log(buses: Buses) -> None:
    run = await open_run(buses[0])
    await run.working_memory.create()
    word: Any = "-".join(["in", "progress"])  # not the very text that is the default
    await run.working_memory.patch(RecordAttempt(text="a", outcome=word), expected_revision=0)
    assert (await buses[0].verify("r")).is_clean


async def test_a_client_that_only_reads_sees_what_others_write(buses: Buses) -> None:
    one, other = [await open_run(bus) for bus in buses]
    await one.working_memory.create()
    assert await other.working_memory.read() is not None
    written = await one.working_memory.patch(AddObservation(text="a"), expected_revision=0)
    assert await other.working_memory.current() == written.snapshot

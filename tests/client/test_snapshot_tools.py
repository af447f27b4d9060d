"""The model's tools over a snapshot in this process: calls never raise, refusals write nothing (D.Q)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.client.snapshot_tools import SnapshotHandle, WorkingMemoryTools, working_memory_tools
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_patch import PatchResult, apply_working_memory_patch
from contextbus_protocol.chat import Text, ToolResult
from contextbus_protocol.errors import ConflictError, DeadlineExceededError, InvalidTypeError
from contextbus_protocol.working_memory import AddObservation, WorkingMemoryPatch, WorkingMemorySnapshot

ADD = "working_memory_add"
UPDATE = "working_memory_update"
READ = "working_memory_read"


def handle() -> SnapshotHandle:
    made = create_working_memory(scope="s", now=5, goal="Deploy.", constraints=["No Fridays."])
    return SnapshotHandle(made, now=lambda: 7)


def text_of(result: ToolResult) -> str:
    (part,) = result.content
    assert isinstance(part, Text)
    return part.text


def answer_of(result: ToolResult) -> Any:
    assert not result.error, text_of(result)
    return json.loads(text_of(result))


def code_of(result: ToolResult) -> str:
    assert result.error
    return text_of(result).partition(":")[0]


def note(text: str = "seen", **fields: Any) -> dict[str, Any]:
    return {"items": [{"kind": "observation", "text": text, **fields}]}


@pytest.mark.rule("D.Q.1", "D.Q.2")
async def test_the_tools_are_made_over_a_handle() -> None:
    tools = working_memory_tools(handle())
    assert tools.names == (READ, ADD, UPDATE)
    assert tools.agent_path == ()
    assert [tools.handles(n) for n in (READ, ADD, UPDATE, "search")] == [True, True, True, False]
    assert [t["name"] for t in tools.definitions("anthropic")] == list(tools.names)
    assert working_memory_tools(handle(), "notes", ["root", "sub"]).agent_path == ("root", "sub")


@pytest.mark.rule("D.Q.6", "D.Q.11")
async def test_what_is_added_can_be_read_and_changed() -> None:
    memory = handle()
    tools = working_memory_tools(memory)
    items = [{"kind": "question", "text": "Green?"}, {"kind": "attempt", "text": "Retry"}]
    added = await tools.call(ADD, {"items": items}, call_id="c1", step=0)
    assert (added.id, added.name) == ("c1", ADD)
    assert answer_of(added) == {"status": "applied", "revision": 1, "ids": ["questions-1-0", "attempts-1-1"]}
    changes = [
        {"action": "answer", "id": "questions-1-0", "answer": "Yes.", "evidence": ["c1"]},
        {"action": "attempt", "id": "attempts-1-1", "outcome": "failed"},
    ]
    changed = await tools.call(UPDATE, json.dumps({"changes": changes}), call_id="c2", step=1, known_calls={"c1"})
    assert answer_of(changed) == {"status": "applied", "revision": 2}
    shown = answer_of(await tools.call(READ, "", call_id="c3", step=2))
    assert (shown["revision"], shown["questions"][0]["answer"], shown["attempts"][0]["outcome"]) == (
        2,
        "Yes.",
        "failed",
    )
    items_ = (*memory.snapshot.questions, *memory.snapshot.attempts)
    assert {(i.writer, i.changed_by) for i in items_} == {("model", "model")}
    dropped = await tools.call(UPDATE, {"changes": [{"action": "remove", "id": "attempts-1-1"}]}, call_id="c4", step=2)
    assert answer_of(dropped)["revision"] == 3
    assert memory.snapshot.attempts == ()


@pytest.mark.rule("D.T.6", "D.Q.6")
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        (UPDATE, {"changes": [{"action": "remove", "id": "constraints-0-0"}]}, "forbidden"),
        (UPDATE, {"changes": [{"action": "drop", "id": "nothing"}]}, "not_found"),
        (UPDATE, {"changes": [{"action": "attempt", "id": "constraints-0-0", "outcome": "failed"}]}, "forbidden"),
        (ADD, {"items": []}, "invalid_type"),
        (ADD, "{", "invalid_type"),
        (ADD, note(evidence=["c0"]), "not_found"),
        (ADD, note(evidence=["c1"]), "not_found"),
        ("working_memory_drop", {}, "not_found"),
    ],
)
async def test_a_refused_write_is_a_tool_error_and_writes_nothing(name: str, arguments: Any, code: str) -> None:
    memory = handle()
    before = memory.snapshot
    result = await working_memory_tools(memory).call(name, arguments, call_id="c1", step=0, known_calls={"c1"})
    assert (code_of(result), result.id) == (code, "c1")
    assert memory.snapshot is before


@pytest.mark.rule("D.T.6", "D.Q.5")
async def test_all_of_a_call_is_written_or_nothing() -> None:
    memory = handle()
    tools = working_memory_tools(memory)
    for number in range(4):
        items = [{"kind": "question", "text": "?"}] * 15
        assert not (await tools.call(ADD, {"items": items}, call_id=str(number), step=0)).error
    before = memory.snapshot
    result = await tools.call(ADD, {"items": [{"kind": "question", "text": "?"}] * 5}, call_id="9", step=0)
    assert code_of(result) == "limit"
    assert memory.snapshot is before


@pytest.mark.rule("D.Q.7", "D.Q.8", "D.Q.12")
async def test_a_repeated_call_has_no_second_effect() -> None:
    memory = handle()
    assert WorkingMemoryTools.replay == "idempotent"
    first = answer_of(await working_memory_tools(memory).call(ADD, note(), call_id="c1", step=3))
    assert answer_of(await working_memory_tools(memory).call(ADD, note("b"), call_id="c2", step=3))["revision"] == 2
    again = answer_of(await working_memory_tools(memory).call(ADD, note(), call_id="c1", step=3))
    assert again == {**first, "status": "duplicate"}
    assert len(memory.snapshot.observations) == 2
    for name, step, call in ((ADD, 4, "c1"), (ADD, 3, "c3")):
        assert answer_of(await working_memory_tools(memory).call(name, note(), call_id=call, step=step))["ids"]
    # another handle on the stored snapshot knows the operation, and of its answer the revision it is at
    stored = SnapshotHandle(memory.snapshot)
    again = answer_of(await working_memory_tools(stored).call(ADD, note(), call_id="c1", step=3))
    assert again == {"status": "duplicate", "revision": 4}


@pytest.mark.rule("D.Q.10")
@pytest.mark.parametrize(("own", "caller"), [((), ["sub"]), (["sub"], ()), (["sub"], ["sub", "sub"]), (["a"], ["b"])])
async def test_another_agent_reads_and_does_not_write(own: Sequence[str], caller: Sequence[str]) -> None:
    memory = handle()
    tools = working_memory_tools(memory, agent_path=own)
    refused = await tools.call(ADD, note(), call_id="c1", step=0, agent_path=caller)
    assert code_of(refused) == "forbidden"
    assert code_of(await tools.call(UPDATE, "{", call_id="c2", step=0, agent_path=caller)) == "forbidden"
    assert memory.snapshot.revision == 0
    assert answer_of(await tools.call(READ, {}, call_id="c3", step=0, agent_path=caller))["goal"]["text"] == "Deploy."
    assert answer_of(await tools.call(ADD, note(), call_id="c1", step=0, agent_path=own))["revision"] == 1


class Contended:
    """A handle beside which others write between reading and applying, ``races`` times."""

    def __init__(self, races: int) -> None:
        self.memory = handle()
        self.races = races
        self.reads = 0

    async def current(self) -> WorkingMemorySnapshot:
        self.reads += 1
        return await self.memory.current()

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        if self.races:
            self.races -= 1
            other = WorkingMemoryPatch(
                operation_id=f"other-{self.races}",
                expected_revision=self.memory.snapshot.revision,
                writer="host",
                operations=(AddObservation(text="theirs"),),
            )
            assert (await self.memory.apply(other)).status == "applied"
        return await self.memory.apply(patch)


@pytest.mark.rule("D.Q.9")
@pytest.mark.parametrize("races", [0, 1, 2, 3, 9])
async def test_a_write_that_loses_the_race_is_tried_three_times_in_all(races: int) -> None:
    contended = Contended(races)
    result = await working_memory_tools(contended).call(ADD, note("mine"), call_id="c1", step=0)
    assert contended.reads == min(races + 1, 3)
    mine = [o for o in contended.memory.snapshot.observations if o.text == "mine"]
    if races < 3:
        assert answer_of(result)["revision"] == races + 1
        assert len(mine) == 1
    else:
        assert code_of(result) == "revision_conflict"
        assert mine == []


class Failing:
    """A handle whose writes fail on their way."""

    def __init__(self, *errors: Exception) -> None:
        self.memory = handle()
        self.errors = list(errors)

    async def current(self) -> WorkingMemorySnapshot:
        return await self.memory.current()

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        if self.errors:
            raise self.errors.pop(0)
        return await self.memory.apply(patch)


@pytest.mark.rule("D.Q.9")
async def test_a_bus_that_gives_up_a_race_is_a_race_and_silence_is_said_to_be_unknown() -> None:
    result = await working_memory_tools(Failing(ConflictError("x"), ConflictError("x"))).call(
        ADD, note(), call_id="c1", step=0
    )
    assert answer_of(result)["revision"] == 1
    result = await working_memory_tools(Failing(*[ConflictError("x")] * 3)).call(ADD, note(), call_id="c1", step=0)
    assert code_of(result) == "revision_conflict"
    tools = working_memory_tools(Failing(DeadlineExceededError("x")))
    result = await tools.call(ADD, note(), call_id="c1", step=0)
    assert code_of(result) == "deadline_exceeded"
    assert "may be there or not" in text_of(result)
    assert answer_of(await tools.call(ADD, note(), call_id="c1", step=0))["revision"] == 1


async def test_a_mistake_of_the_host_is_an_exception() -> None:
    tools = working_memory_tools(handle())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"call_id": "", "step": 0}, "call_id"),
        ({"call_id": None, "step": 0}, "call_id"),
        ({"call_id": "c"}, "step"),
        ({"call_id": "c", "step": -1}, "step"),
        ({"call_id": "c", "step": True}, "step"),
        ({"call_id": "c", "step": 0, "agent_path": "sub"}, "agent_path"),
        ({"call_id": "c", "step": 0, "agent_path": [1]}, "agent_path"),
    ]
    for fields, match in wrong:
        with pytest.raises(InvalidTypeError, match=match):
            await tools.call(READ, {}, **fields)
    with pytest.raises(InvalidTypeError, match="malformed snapshot"):
        SnapshotHandle(msgspec.structs.replace(handle().snapshot, revision=-1))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
JUNK = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
ENTRIES = st.dictionaries(
    st.sampled_from(["kind", "action", "id", "text", "evidence", "answer", "outcome"]),
    st.sampled_from(["observation", "drop", "failed", "constraints-0-0", ""]) | JUNK,
)
ARGUMENTS = st.one_of(
    JUNK,
    st.text(),
    st.dictionaries(st.sampled_from(["items", "changes"]), JUNK | st.lists(ENTRIES, max_size=3)),
    st.dictionaries(st.sampled_from(["items", "changes"]), st.lists(ENTRIES, max_size=3)).map(
        lambda value: json.dumps(value, default=str)
    ),
)


@pytest.mark.rule("D.T.6", "D.Q.5")
@given(st.sampled_from((READ, ADD, UPDATE, "other")), ARGUMENTS)
async def test_whatever_a_model_writes_is_answered_and_a_refusal_writes_nothing(name: str, arguments: Any) -> None:
    memory = handle()
    before = memory.snapshot
    result = await working_memory_tools(memory).call(name, arguments, call_id="c1", step=0)
    if result.error or name == READ:
        assert memory.snapshot is before
    else:
        patch = answer_of(result)
        assert (patch["status"], patch["revision"], memory.snapshot.revision) == ("applied", 1, 1)
        again = WorkingMemoryPatch(
            operation_id=f"{name}:0:c1", expected_revision=1, writer="model", operations=(AddObservation(text="x"),)
        )
        assert apply_working_memory_patch(memory.snapshot, again, now=9).status == "duplicate"

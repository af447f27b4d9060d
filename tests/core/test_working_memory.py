"""Working memory: what a snapshot may be, and how one is made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_checks import decode_snapshot
from contextbus.core.working_memory_items import active_task
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.working_memory import Task, TaskList, TasksInput, WorkingMemorySnapshot

NOW = 1_750_000_000_000
TASKS: dict[str, Any] = {
    "list": {"goal": "Ship it", "tasks": [{"id": "t1", "title": "Build"}, {"id": "t2", "title": "Test", "notes": "x"}]},
    "activeTaskId": "t2",
}


def plain(snapshot: WorkingMemorySnapshot) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(snapshot), type=dict[str, Any])


@pytest.mark.rule("D.N.1", "D.N.2", "D.N.3", "D.N.4", "D.N.5", "D.N.6", "D.N.13", "D.N.14")
def test_first_snapshot_is_the_hosts_and_has_revision_0() -> None:
    snapshot = create_working_memory(
        scope="acme", now=NOW, goal="Deploy.", constraints=["No Friday.", "No Monday."], tasks=TASKS, goal_ref="goal-7"
    )
    stamp = {"writer": "host", "revision": 0, "changedAt": NOW}
    assert plain(snapshot) == {
        "version": 1,
        "scope": "acme",
        "revision": 0,
        "goal": {"text": "Deploy.", **stamp},
        "constraints": [
            {"id": "constraints-0-0", "text": "No Friday.", **stamp},
            {"id": "constraints-0-1", "text": "No Monday.", **stamp},
        ],
        "tasks": {**TASKS, "listRevision": 1, **stamp},
        "goalRef": "goal-7",
    }
    assert snapshot.tasks is not None
    assert snapshot.tasks.list.tasks[0].status == "pending"


@pytest.mark.rule("D.N.5", "D.N.6")
def test_tasks_may_be_given_as_an_object_and_the_active_one_is_found() -> None:
    tasks = TasksInput(TaskList("g", (Task("a", "A"), Task("b", "B", "done"))), "b")
    snapshot = create_working_memory(scope="acme", now=NOW, tasks=tasks)
    assert active_task(snapshot) == Task("b", "B", "done")
    assert active_task(create_working_memory(scope="acme", now=NOW)) is None
    assert active_task(create_working_memory(scope="acme", now=NOW, tasks=TasksInput(tasks.list))) is None


@pytest.mark.rule("D.N.7", "D.N.11", "D.N.12", "D.U.3", "D.T.4", "D.W.6")
@pytest.mark.parametrize(
    "options",
    [
        {"scope": 1},
        {"now": True},
        {"now": 1.5},
        {"now": 2**53},
        {"goal": b"bytes"},
        {"goal": ""},
        {"goal": "x" * 4001},
        {"constraints": "one text"},
        {"constraints": [1]},
        {"constraints": [""]},
        {"constraints": ["x" * 2001]},
        {"constraints": ["x"] * 33},
        {"goal_ref": 3},
        {"tasks": "tasks"},
        {"tasks": {"list": {"goal": "g"}}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A", "status": "open"}]}}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A"}]}, "activeTaskId": "b"}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A"}] * 2}}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": "", "title": "A"}]}}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": f"{n}", "title": "A"} for n in range(101)]}}},
        {"tasks": {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A" * 2001}]}}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_malformed_options_are_a_type_error_of_ours(options: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"scope": "acme", "now": NOW}
    with pytest.raises(InvalidTypeError) as raised:
        create_working_memory(**(defaults | options))
    assert isinstance(raised.value, TypeError)
    assert "xxx" not in str(raised.value)


@pytest.mark.rule("D.N.7")
def test_an_active_task_that_is_not_in_the_list_is_said_of_the_tasks_that_were_given() -> None:
    tasks = {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A"}]}, "activeTaskId": "b"}
    with pytest.raises(InvalidTypeError, match=r"^malformed tasks: activeTaskId is no task of the list$"):
        create_working_memory(scope="acme", now=NOW, tasks=tasks)


@pytest.mark.rule("D.N.12", "D.U.3")
def test_limits_themselves_are_allowed_and_characters_are_code_points() -> None:
    tasks = {"list": {"goal": "g" * 4000, "tasks": [{"id": f"{n}", "title": "A" * 2000} for n in range(100)]}}
    snapshot = create_working_memory(
        scope="acme", now=NOW, goal="😀" * 4000, constraints=["é" * 2000] * 32, tasks=tasks
    )
    assert len(snapshot.constraints) == 32


@pytest.mark.rule("D.M.7")
def test_lone_surrogates_do_not_get_in_so_every_snapshot_can_be_stored() -> None:
    snapshot = create_working_memory(scope="a\ud800", now=NOW, goal="x\udc00y")
    assert (snapshot.scope, snapshot.goal and snapshot.goal.text) == ("a\ufffd", "x\ufffdy")
    assert decode_snapshot(msgspec.json.encode(snapshot)) == snapshot


@pytest.mark.rule("D.N.1", "D.A.5")
def test_snapshot_survives_json_and_comes_back_frozen() -> None:
    snapshot = create_working_memory(scope="acme", now=NOW, goal="g", constraints=["c"], tasks=TASKS)
    again = decode_snapshot(plain(snapshot))
    assert again == snapshot
    assert msgspec.json.encode(again) == msgspec.json.encode(snapshot)
    assert isinstance(again.constraints, tuple)
    assert decode_snapshot(snapshot) == snapshot


def change(path: str, value: object) -> dict[str, Any]:
    snapshot = create_working_memory(scope="acme", now=NOW, goal="g", constraints=["c", "d"], tasks=TASKS)
    data = plain(snapshot)
    node: Any = data
    *parents, last = path.split(".")
    for name in parents:
        node = node[int(name) if name.isdigit() else name]
    node[last] = value
    return data


@pytest.mark.rule("D.N.11", "D.T.4")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("revision", -1),
        ("revision", True),
        ("scope", None),
        ("goal.text", ""),
        ("goal.writer", "robot"),
        ("goal.sources", [{"kind": "host", "id": ""}]),
        ("goal.sources", [{"kind": "web", "id": "x"}]),
        ("goal.sources", [{"kind": "host", "id": "x", "revision": -1}]),
        ("goal.sources", [{"kind": "host", "id": "x"}] * 17),
        ("constraints.0.id", "constraints-0-1"),
        ("constraints.0.id", ""),
        ("constraints.0.changedAt", 2**53),
        ("constraints.0.revision", -1),
        ("tasks.activeTaskId", "t9"),
        ("tasks.listRevision", -1),
        ("tasks.list.tasks", [{"id": "t2", "title": "A"}] * 2),
        ("tasks.list.tasks", [{"id": "t2", "title": "A"}, {"id": "", "title": "B"}]),
        ("observations", [{"id": "o", "text": "x" * 2001, "writer": "host", "revision": 0, "changedAt": 0}]),
        ("hypotheses", [{"id": "h", "text": "x", "writer": "host", "revision": 0, "changedAt": 0, "status": "open"}]),
    ],
)
def test_malformed_snapshot_is_refused(path: str, value: object) -> None:
    with pytest.raises(InvalidTypeError):
        decode_snapshot(change(path, value))


@pytest.mark.rule("D.N.11", "D.W.6")
@pytest.mark.parametrize("path", ["goal.changedAt", "tasks.changedAt", "constraints.1.changedAt"])
def test_a_time_of_a_snapshot_that_is_none_is_named(path: str) -> None:
    for time in (2**53, -(2**53)):
        with pytest.raises(InvalidTypeError, match=r"^malformed snapshot: changedAt is an integer, milliseconds"):
            decode_snapshot(change(path, time))
    assert decode_snapshot(change(path, -NOW)) != decode_snapshot(change(path, NOW))


@pytest.mark.rule("D.N.11")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"version":1}', {}])
def test_what_is_no_snapshot_is_refused(data: bytes | dict[str, Any]) -> None:
    with pytest.raises(InvalidTypeError):
        decode_snapshot(data)


@pytest.mark.rule("D.W.6")
def test_unknown_field_on_the_wire_is_ignored_and_unknown_keyword_is_a_type_error() -> None:
    data = plain(create_working_memory(scope="acme", now=NOW))
    assert decode_snapshot({**data, "addedLater": 1}) == create_working_memory(scope="acme", now=NOW)
    with pytest.raises(TypeError):
        create_working_memory(scope="acme", now=NOW, colour="red")  # type: ignore[call-arg]  # the case under test

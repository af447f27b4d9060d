"""Patches: authority, existence, limits, ids, and the order in which they are checked."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_checks import decode_patch
from contextbus.core.working_memory_patch import PatchResult, apply_working_memory_patch, operation_digest
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.working_memory import (
    AddObservation,
    SetActiveTask,
    SourceRef,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
)

TASKS: dict[str, Any] = {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A"}, {"id": "b", "title": "B"}]}}


def patch(writer: str, *operations: dict[str, Any], revision: int = 0, operation_id: str = "p") -> dict[str, Any]:
    return {
        "operationId": operation_id,
        "expectedRevision": revision,
        "writer": writer,
        "operations": list(operations),
    }


def apply(snapshot: WorkingMemorySnapshot, writer: str, *operations: dict[str, Any]) -> PatchResult:
    """Apply a patch that is new and expects the revision as it is."""
    number = snapshot.revision
    request = patch(writer, *operations, revision=number, operation_id=f"p{number}")
    return apply_working_memory_patch(snapshot, request, now=100 + number)


def applied(snapshot: WorkingMemorySnapshot, writer: str, *operations: dict[str, Any]) -> WorkingMemorySnapshot:
    result = apply(snapshot, writer, *operations)
    assert (result.status, result.reason) == ("applied", None)
    return result.snapshot


def reason(snapshot: WorkingMemorySnapshot, writer: str, *operations: dict[str, Any]) -> str | None:
    result = apply(snapshot, writer, *operations)
    assert result.status == "rejected"
    assert result.snapshot is snapshot
    return result.reason


def new() -> WorkingMemorySnapshot:
    return create_working_memory(scope="acme", now=0, goal="g", constraints=["c"], tasks=TASKS)


def by_host() -> WorkingMemorySnapshot:
    """One item of each kind by the host, ids ``<list>-1-<index>``."""
    return applied(new(), "host", *ADDITIONS)


ADDITIONS: tuple[dict[str, Any], ...] = (
    {"op": "add-observation", "text": "o"},
    {"op": "add-hypothesis", "text": "h"},
    {"op": "add-decision", "text": "d", "rationale": "why"},
    {"op": "add-question", "text": "q"},
    {"op": "record-attempt", "text": "a", "detail": "how"},
)
CHANGES: tuple[dict[str, Any], ...] = (
    {"op": "remove-item", "id": "observations-1-0"},
    {"op": "remove-item", "id": "hypotheses-1-1"},
    {"op": "remove-item", "id": "decisions-1-2"},
    {"op": "answer-question", "id": "questions-1-3", "answer": "yes"},
    {"op": "drop-question", "id": "questions-1-3"},
    {"op": "update-attempt", "id": "attempts-1-4", "outcome": "failed"},
)
HOST_ONLY: tuple[dict[str, Any], ...] = (
    {"op": "set-goal", "text": "x"},
    {"op": "add-constraint", "text": "x"},
    {"op": "remove-constraint", "id": "constraints-0-0"},
    {"op": "set-tasks", **TASKS},
    {"op": "set-hypothesis-status", "id": "hypotheses-1-1", "status": "confirmed"},
    {"op": "set-decision-status", "id": "decisions-1-2", "status": "accepted"},
)


def name(operation: dict[str, Any]) -> str:
    return str(operation["op"])


@pytest.mark.rule("D.O.7", "D.O.13", "D.N.2", "D.N.8", "D.N.9")
@pytest.mark.parametrize("writer", ["host", "model"])
def test_both_writers_may_add(writer: str) -> None:
    snapshot = applied(new(), writer, *ADDITIONS)
    items = [snapshot.observations, snapshot.hypotheses, snapshot.decisions, snapshot.questions, snapshot.attempts]
    assert [item.id for (item,) in items] == [
        "observations-1-0",
        "hypotheses-1-1",
        "decisions-1-2",
        "questions-1-3",
        "attempts-1-4",
    ]
    assert all(
        (item.writer, item.revision, item.changed_at, item.changed_by) == (writer, 1, 100, None) for (item,) in items
    )
    assert (snapshot.hypotheses[0].status, snapshot.decisions[0].status) == ("proposed", "proposed")
    assert (snapshot.questions[0].status, snapshot.attempts[0].outcome) == ("open", "in-progress")
    assert (snapshot.decisions[0].rationale, snapshot.attempts[0].detail) == ("why", "how")


@pytest.mark.rule("D.O.8", "D.T.5")
@pytest.mark.parametrize("operation", HOST_ONLY, ids=name)
def test_host_only_operations(operation: dict[str, Any]) -> None:
    snapshot = applied(new(), "model", *ADDITIONS)
    assert reason(snapshot, "model", operation) == "forbidden"
    assert reason(snapshot, "model", {"op": "add-observation", "text": "first"}, operation) == "forbidden"
    assert applied(snapshot, "host", operation).revision == 2


@pytest.mark.rule("D.O.9")
@pytest.mark.parametrize("operation", CHANGES, ids=name)
def test_items_of_the_host_are_closed_to_a_model(operation: dict[str, Any]) -> None:
    assert reason(by_host(), "model", operation) == "forbidden"
    assert applied(applied(new(), "model", *ADDITIONS), "model", operation).revision == 2
    assert applied(by_host(), "host", operation).revision == 2


@pytest.mark.rule("D.O.10", "D.N.15")
def test_only_the_host_may_cite_the_host() -> None:
    sources = [{"kind": "tool-call", "id": "call-1"}, {"kind": "host", "id": "memo", "revision": 2}]
    operation = {"op": "add-observation", "text": "o", "sources": sources}
    assert reason(new(), "model", operation) == "forbidden"
    snapshot = applied(new(), "host", operation)
    assert snapshot.observations[0].sources == (SourceRef("tool-call", "call-1"), SourceRef("host", "memo", 2))
    snapshot = applied(new(), "model", {"op": "add-question", "text": "q"})
    answer = {"op": "answer-question", "id": "questions-1-0", "answer": "a", "sources": sources}
    assert reason(snapshot, "model", answer) == "forbidden"


@pytest.mark.rule("D.O.20")
def test_change_stamps_the_item_keeps_its_author_and_leaves_others_alone() -> None:
    snapshot = applied(new(), "model", *ADDITIONS)
    after = applied(snapshot, "host", {"op": "set-decision-status", "id": "decisions-1-2", "status": "accepted"})
    (decision,) = after.decisions
    assert (decision.status, decision.writer, decision.changed_by) == ("accepted", "model", "host")
    assert (decision.revision, decision.changed_at, decision.rationale) == (2, 101, "why")
    assert after.hypotheses == snapshot.hypotheses
    assert after.goal == snapshot.goal
    # The model wrote it, so the model may still take it back.
    assert applied(after, "model", {"op": "remove-item", "id": "decisions-1-2"}).decisions == ()


@pytest.mark.rule("D.O.7", "D.N.8")
def test_questions_and_attempts_go_their_way() -> None:
    sources = [{"kind": "document", "id": "d1"}, {"kind": "document", "id": "d2"}]
    snapshot = applied(new(), "model", {"op": "add-question", "text": "q", "sources": sources[:1]}, ADDITIONS[4])
    after = applied(
        snapshot,
        "model",
        {"op": "answer-question", "id": "questions-1-0", "answer": "yes", "sources": sources},
        {"op": "update-attempt", "id": "attempts-1-1", "outcome": "failed"},
    )
    (question,) = after.questions
    assert (question.status, question.answer) == ("answered", "yes")
    assert [source.id for source in question.sources] == ["d1", "d2"]
    assert (after.attempts[0].outcome, after.attempts[0].detail) == ("failed", "how")
    last = applied(
        after,
        "model",
        {"op": "drop-question", "id": "questions-1-0"},
        {"op": "update-attempt", "id": "attempts-1-1", "outcome": "succeeded", "detail": "at last"},
    )
    assert (last.questions[0].status, last.attempts[0].detail) == ("dropped", "at last")


@pytest.mark.rule("D.O.5")
def test_later_operation_may_use_what_an_earlier_one_made() -> None:
    result = apply(
        new(),
        "model",
        {"op": "add-question", "text": "q"},
        {"op": "answer-question", "id": "questions-1-0", "answer": "a"},
        {"op": "add-observation", "text": "o"},
        {"op": "remove-item", "id": "observations-1-2"},
    )
    assert result.snapshot.questions[0].answer == "a"
    assert result.snapshot.observations == ()
    assert result.ids == ("questions-1-0", "observations-1-2")


@pytest.mark.rule("D.O.5", "D.O.17", "D.O.21")
@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove-item", "id": "nothing"},
        {"op": "remove-item", "id": "constraints-0-0"},
        {"op": "remove-constraint", "id": "observations-1-0"},
        {"op": "answer-question", "id": "attempts-1-4", "answer": "a"},
        {"op": "drop-question", "id": ""},
        {"op": "update-attempt", "id": "questions-1-3", "outcome": "failed"},
        {"op": "set-hypothesis-status", "id": "decisions-1-2", "status": "rejected"},
        {"op": "set-decision-status", "id": "hypotheses-1-1", "status": "reverted"},
        {"op": "set-active-task", "id": "z"},
    ],
    ids=name,
)
def test_unknown_id_rejects_the_whole_patch(operation: dict[str, Any]) -> None:
    snapshot = by_host()
    before = msgspec.json.encode(snapshot)
    assert reason(snapshot, "host", {"op": "set-goal", "text": "changed"}, operation) == "not-found"
    assert msgspec.json.encode(snapshot) == before


@pytest.mark.rule("D.O.11", "D.O.12", "D.N.5")
@pytest.mark.parametrize("writer", ["host", "model"])
def test_active_task_is_open_to_both_and_survives_a_list_that_still_has_it(writer: str) -> None:
    snapshot = applied(new(), writer, {"op": "set-active-task", "id": "b"})
    assert snapshot.tasks is not None
    assert (snapshot.tasks.active_task_id, snapshot.tasks.revision, snapshot.tasks.list_revision) == ("b", 1, 1)
    assert snapshot.tasks.writer == "host"
    kept = applied(snapshot, "host", {"op": "set-tasks", **TASKS, "sources": [{"kind": "host", "id": "plan"}]}).tasks
    assert kept is not None
    assert (kept.active_task_id, kept.list_revision, kept.sources) == ("b", 2, (SourceRef("host", "plan"),))
    only_a = {"goal": "", "tasks": [{"id": "a", "title": "A"}]}
    cleared = applied(snapshot, "host", {"op": "set-tasks", "list": only_a}).tasks
    assert cleared is not None
    assert cleared.active_task_id is None
    none = applied(snapshot, writer, {"op": "set-active-task", "id": None}).tasks
    assert none is not None
    assert none.active_task_id is None


@pytest.mark.rule("D.O.22")
@pytest.mark.parametrize("task", ["a", None])
def test_without_a_task_list(task: str | None) -> None:
    bare = create_working_memory(scope="acme", now=0)
    assert reason(bare, "host", {"op": "set-active-task", "id": task}) == "not-found"
    tasks = applied(bare, "host", {"op": "set-tasks", **TASKS}).tasks
    assert tasks is not None
    assert (tasks.list_revision, tasks.active_task_id) == (1, None)


@pytest.mark.rule("D.O.17", "D.N.12", "D.U.3")
@pytest.mark.parametrize(
    "operation",
    [
        {"op": "set-goal", "text": "x" * 4001},
        {"op": "set-goal", "text": ""},
        {"op": "add-constraint", "text": "x" * 2001},
        {"op": "add-observation", "text": ""},
        {"op": "add-observation", "text": "x", "sources": [{"kind": "message", "id": f"{n}"} for n in range(17)]},
        {"op": "add-observation", "text": "x", "sources": [{"kind": "message", "id": "y" * 2001}]},
        {"op": "add-decision", "text": "x", "rationale": "y" * 2001},
        {"op": "record-attempt", "text": "x", "detail": "y" * 2001},
        {"op": "answer-question", "id": "questions-1-3", "answer": "y" * 2001},
        {"op": "answer-question", "id": "questions-1-3", "answer": ""},
        {"op": "set-tasks", "list": {"goal": "x" * 4001, "tasks": []}},
        {"op": "set-tasks", "list": {"goal": "", "tasks": [{"id": "a", "title": ""}]}},
        {"op": "set-tasks", "list": {"goal": "", "tasks": [{"id": "a", "title": "x", "notes": "y" * 2001}]}},
        {"op": "set-tasks", "list": {"goal": "", "tasks": [{"id": f"{n}", "title": "x"} for n in range(101)]}},
    ],
)
def test_text_limits(operation: dict[str, Any]) -> None:
    assert reason(by_host(), "host", operation) == "limit"


@pytest.mark.rule("D.O.17", "D.N.12", "D.U.3")
@pytest.mark.parametrize("operation", [{"op": "add-constraint", "text": "c"}, *ADDITIONS], ids=name)
def test_list_limits(operation: dict[str, Any]) -> None:
    allowed = 31 if operation["op"] == "add-constraint" else 64
    snapshot = new()
    for _ in range(allowed // 8):
        snapshot = applied(snapshot, "host", *[operation] * 8)
    for _ in range(allowed % 8):
        snapshot = applied(snapshot, "host", operation)
    assert reason(snapshot, "host", operation) == "limit"


@pytest.mark.rule("D.O.17")
def test_full_list_takes_an_item_when_the_same_patch_makes_room() -> None:
    snapshot = new()
    for _ in range(8):
        snapshot = applied(snapshot, "model", *[ADDITIONS[0]] * 8)
    after = applied(snapshot, "model", ADDITIONS[0], {"op": "remove-item", "id": "observations-1-0"})
    assert len(after.observations) == 64


@pytest.mark.rule("D.O.2", "D.O.18", "D.T.4", "D.W.6")
@pytest.mark.parametrize(
    "change",
    [
        {"operations": []},
        {"operations": [ADDITIONS[0]] * 17},
        {"operations": "add"},
        {"operations": [{"op": "replace", "path": "/goal", "value": "x"}]},
        {"operations": [{"text": "no op"}]},
        {"operations": [{"op": "add-observation"}]},
        {"operations": [{"op": "add-observation", "text": 1}]},
        {"operations": [{"op": "add-observation", "text": b"bytes"}]},
        {"operations": [{"op": "add-observation", "text": "x", "sources": [{"kind": "host", "id": ""}]}]},
        {"operations": [{"op": "add-observation", "text": "x", "sources": [{"kind": "web", "id": "x"}]}]},
        {
            "operations": [
                {"op": "add-observation", "text": "x", "sources": [{"kind": "user", "id": "x", "revision": -1}]}
            ]
        },
        {"operations": [{"op": "set-active-task"}]},
        {"operations": [{"op": "set-hypothesis-status", "id": "h", "status": "open"}]},
        {"operations": [{"op": "set-tasks", "list": {"goal": "", "tasks": [{"id": "a", "title": "A"}] * 2}}]},
        {"operations": [{"op": "set-tasks", "list": {"goal": "", "tasks": [{"id": "", "title": "A"}]}}]},
        {"operationId": ""},
        {"operationId": None},
        {"expectedRevision": True},
        {"expectedRevision": -1},
        {"expectedRevision": 1.5},
        {"expectedRevision": "0"},
        {"expectedRevision": 2**53},
        {"writer": "robot"},
    ],
)
def test_malformed_patch_is_a_type_error_of_ours(change: dict[str, Any]) -> None:
    request = {**patch("host", ADDITIONS[0]), **change}
    with pytest.raises(InvalidTypeError) as raised:
        apply_working_memory_patch(new(), request, now=1)
    assert isinstance(raised.value, TypeError)
    missing = {key: value for key, value in request.items() if key not in change}
    with pytest.raises(InvalidTypeError):
        decode_patch(missing)


@pytest.mark.rule("D.O.18")
def test_patch_object_is_checked_as_wire_data_is() -> None:
    good = WorkingMemoryPatch(
        operation_id="p",
        expected_revision=0,
        writer="host",
        operations=(SetActiveTask(id=None), AddObservation(text="x")),
    )
    assert decode_patch(good) == good
    assert decode_patch(msgspec.json.encode(good)) == good
    for field, value in (("writer", "robot"), ("operations", (object(),)), ("operation_id", b"p"), ("operations", ())):
        with pytest.raises(InvalidTypeError):
            decode_patch(msgspec.structs.replace(good, **{field: value}))
    for data in (b"", b"{", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(InvalidTypeError):
            decode_patch(data)


@pytest.mark.rule("D.M.7")
def test_half_a_character_is_replaced_and_nothing_else_of_the_patch_changes() -> None:
    source = {"kind": "message", "id": "m", "revision": 3}
    operation = {"op": "add-observation", "text": "half \ud83d", "sources": [source]}
    read = decode_patch(patch("model", operation, revision=7))
    assert (read.operation_id, read.expected_revision, read.writer) == ("p", 7, "model")
    assert read.operations == (AddObservation(text="half \ufffd", sources=(SourceRef("message", "m", 3),)),)


@pytest.mark.rule("D.O.18")
def test_error_of_a_malformed_patch_names_the_place_and_no_content() -> None:
    with pytest.raises(InvalidTypeError, match=r"operations\[0\]\.text") as raised:
        decode_patch(patch("host", {"op": "add-observation", "text": ["the secret"]}))
    assert "secret" not in str(raised.value)


@pytest.mark.rule("D.N.11", "D.W.6")
def test_malformed_snapshot_or_time_is_a_type_error_of_ours() -> None:
    broken = msgspec.structs.replace(new(), revision=-1)
    with pytest.raises(InvalidTypeError):
        apply_working_memory_patch(broken, patch("host", ADDITIONS[0]), now=1)
    for now in (True, 1.5, 2**53):
        with pytest.raises(InvalidTypeError):
            apply_working_memory_patch(new(), patch("host", ADDITIONS[0]), now=now)  # type: ignore[arg-type]  # the case under test


@pytest.mark.rule("D.O.19", "D.O.15", "D.O.16")
def test_checks_come_in_their_order() -> None:
    done = applied(new(), "host", {"op": "add-observation", "text": "o"})
    forbidden = {"op": "set-goal", "text": "x"}
    unknown = {"op": "remove-item", "id": "nothing"}
    too_long = {"op": "add-observation", "text": "x" * 2001}

    def outcome(operation_id: str, revision: int, *operations: dict[str, Any]) -> str:
        request = patch("model", *operations, revision=revision, operation_id=operation_id)
        result = apply_working_memory_patch(done, request, now=1)
        return result.reason or result.status

    with pytest.raises(InvalidTypeError):
        outcome("p0", 0, {"op": "nonsense"})
    assert outcome("p0", 0, too_long, unknown, forbidden) == "duplicate"
    assert outcome("new", 0, too_long, unknown, forbidden) == "revision-conflict"
    assert outcome("new", 1, too_long, unknown, forbidden) == "forbidden"
    assert outcome("new", 1, too_long, unknown) == "not-found"
    assert outcome("new", 1, too_long) == "limit"


@pytest.mark.rule("D.O.14")
def test_generated_ids_of_the_host() -> None:
    ids = iter(["one", "two"])
    request = patch("model", ADDITIONS[0], ADDITIONS[1])
    result = apply_working_memory_patch(new(), request, now=1, generate_id=lambda: next(ids))
    assert result.ids == ("one", "two")
    for taken in ("constraints-0-0", "same"):
        with pytest.raises(InvalidTypeError, match="is taken"):
            apply_working_memory_patch(new(), request, now=1, generate_id=partial(str, taken))
    for none in ("", "half \ud83d", 5):
        with pytest.raises(InvalidTypeError, match="generate_id makes a text"):
            apply_working_memory_patch(new(), request, now=1, generate_id=lambda none=none: none)  # type: ignore[misc]  # what a host may write


@pytest.mark.rule("D.O.23", "D.N.10", "D.O.21")
def test_snapshot_of_a_host_remembers_the_last_512_operations() -> None:
    snapshot = create_working_memory(scope="acme", now=0, goal="g")
    for _ in range(514):
        snapshot = applied(snapshot, "host", {"op": "set-goal", "text": "g"})
    assert len(snapshot.operation_ids) == 512
    assert snapshot.operation_ids[0] == "p2"
    replay = patch("host", {"op": "set-goal", "text": "g"}, operation_id="p2")
    assert apply_working_memory_patch(snapshot, replay, now=1).status == "duplicate"
    forgotten = {**replay, "operationId": "p1"}
    assert apply_working_memory_patch(snapshot, forgotten, now=1).reason == "revision-conflict"


@pytest.mark.rule("D.O.23")
def test_run_remembers_all_operations_outside_the_snapshot() -> None:
    seen: set[bytes] = set()

    def known(operation_id: str) -> bool:
        return operation_digest(operation_id) in seen

    snapshot = create_working_memory(scope="acme", now=0, goal="g")
    for number in range(600):
        request = patch("host", {"op": "set-goal", "text": "g"}, revision=number, operation_id=f"p{number}")
        result = apply_working_memory_patch(snapshot, request, now=1, known=known)
        assert result.status == "applied"
        snapshot = result.snapshot
        seen.add(operation_digest(f"p{number}"))
    assert snapshot.operation_ids == ()
    first = patch("host", {"op": "set-goal", "text": "g"}, operation_id="p0")
    assert apply_working_memory_patch(snapshot, first, now=1, known=known).status == "duplicate"
    assert {len(digest) for digest in seen} == {16}


@pytest.mark.rule("D.O.23")
def test_run_that_took_a_snapshot_over_still_knows_its_operations() -> None:
    taken_over = applied(new(), "host", ADDITIONS[0])
    replay = patch("host", ADDITIONS[0], operation_id="p0")
    assert apply_working_memory_patch(taken_over, replay, now=1, known=lambda _: False).status == "duplicate"

"""Vector V3: a model proposes, the host judges, a replay changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_patch import PatchResult, apply_working_memory_patch
from contextbus_protocol.working_memory import WorkingMemorySnapshot

T = 1_750_000_000_000

PROPOSE: dict[str, Any] = {
    "operationId": "step-3:call-7",
    "expectedRevision": 0,
    "writer": "model",
    "operations": [
        {"op": "add-hypothesis", "text": "The flaky test depends on the time zone."},
        {"op": "record-attempt", "text": "Ran the suite again under UTC.", "outcome": "succeeded"},
    ],
}
SET_GOAL: dict[str, Any] = {
    "operationId": "step-4:call-9",
    "expectedRevision": 1,
    "writer": "model",
    "operations": [{"op": "set-goal", "text": "Skip the flaky test."}],
}
CONFIRM: dict[str, Any] = {
    "operationId": "review-1",
    "expectedRevision": 1,
    "writer": "host",
    "operations": [{"op": "set-hypothesis-status", "id": "hypotheses-1-0", "status": "confirmed"}],
}


def first() -> WorkingMemorySnapshot:
    return create_working_memory(
        scope="acme", goal="Make the nightly build green.", constraints=["Leave the release branch alone."], now=T
    )


def proposed() -> PatchResult:
    return apply_working_memory_patch(first(), PROPOSE, now=T + 1)


def confirmed() -> PatchResult:
    return apply_working_memory_patch(proposed().snapshot, CONFIRM, now=T + 3)


@pytest.mark.rule("D.V3.1", "D.N.3", "D.N.4")
def test_v3_1_first_snapshot() -> None:
    snapshot = first()
    assert snapshot.revision == 0
    assert snapshot.goal is not None
    assert snapshot.goal.writer == "host"
    assert [constraint.id for constraint in snapshot.constraints] == ["constraints-0-0"]
    assert "listRevision" not in msgspec.json.encode(snapshot).decode()


@pytest.mark.rule("D.V3.2", "D.O.4", "D.O.13", "D.N.9")
def test_v3_2_model_proposes() -> None:
    result = proposed()
    assert (result.status, result.reason, result.snapshot.revision) == ("applied", None, 1)
    assert result.ids == ("hypotheses-1-0", "attempts-1-1")
    (hypothesis,) = result.snapshot.hypotheses
    assert (hypothesis.id, hypothesis.status, hypothesis.writer) == ("hypotheses-1-0", "proposed", "model")
    assert (hypothesis.revision, hypothesis.changed_at) == (1, T + 1)
    (attempt,) = result.snapshot.attempts
    assert (attempt.id, attempt.outcome, attempt.writer) == ("attempts-1-1", "succeeded", "model")


@pytest.mark.rule("D.V3.3", "D.O.1")
def test_v3_3_input_is_left_as_it_was() -> None:
    snapshot = first()
    before = msgspec.json.encode(snapshot)
    assert apply_working_memory_patch(snapshot, PROPOSE, now=T + 1).status == "applied"
    assert msgspec.json.encode(snapshot) == before
    assert snapshot.revision == 0


@pytest.mark.rule("D.V3.4", "D.O.8", "D.O.21")
def test_v3_4_model_may_not_set_the_goal() -> None:
    snapshot = proposed().snapshot
    result = apply_working_memory_patch(snapshot, SET_GOAL, now=T + 2)
    assert (result.status, result.reason) == ("rejected", "forbidden")
    assert result.snapshot is snapshot
    assert result.snapshot.operation_ids == ("step-3:call-7",)


@pytest.mark.rule("D.V3.5", "D.O.20")
def test_v3_5_host_confirms() -> None:
    result = confirmed()
    assert (result.status, result.snapshot.revision) == ("applied", 2)
    (hypothesis,) = result.snapshot.hypotheses
    assert (hypothesis.status, hypothesis.revision, hypothesis.changed_at) == ("confirmed", 2, T + 3)
    assert (hypothesis.writer, hypothesis.changed_by) == ("model", "host")


@pytest.mark.rule("D.V3.6", "D.O.15", "D.O.16")
def test_v3_6_replay_is_a_duplicate_and_a_new_operation_a_conflict() -> None:
    snapshot = confirmed().snapshot
    replay = apply_working_memory_patch(snapshot, PROPOSE, now=T + 4)
    assert (replay.status, replay.snapshot.revision) == ("duplicate", 2)
    assert replay.snapshot is snapshot
    late = apply_working_memory_patch(snapshot, {**PROPOSE, "operationId": "new"}, now=T + 4)
    assert (late.status, late.reason) == ("rejected", "revision-conflict")


@pytest.mark.rule("D.V3.7", "D.O.8", "D.O.9")
@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove-constraint", "id": "constraints-0-0"},
        {"op": "remove-item", "id": "constraints-0-0"},
        {"op": "set-hypothesis-status", "id": "hypotheses-1-0", "status": "confirmed"},
    ],
)
def test_v3_7_model_may_not_remove_a_constraint_or_judge_itself(operation: dict[str, str]) -> None:
    patch = {"operationId": "x", "expectedRevision": 1, "writer": "model", "operations": [operation]}
    result = apply_working_memory_patch(proposed().snapshot, patch, now=T + 2)
    assert (result.status, result.reason) == ("rejected", "forbidden")

"""Working memory under random patches: what must hold whatever anybody sends."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from contextbus.core.estimate import make_estimator
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_checks import decode_snapshot
from contextbus.core.working_memory_items import (
    active_task,
    fixed_text,
    list_items,
    render_working_memory,
    section_wrapper,
)
from contextbus.core.working_memory_patch import PatchResult, apply_working_memory_patch
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.working_memory import (
    AnyOperation,
    AttemptOutcome,
    DecisionStatus,
    HypothesisStatus,
    WorkingMemorySnapshot,
)

TEXTS = st.one_of(
    st.text(min_size=1, max_size=8),
    st.text(st.characters(codec=None, exclude_categories=[]), min_size=1, max_size=4),
    st.sampled_from(["x" * 2000, "</goal>&\n", "", "x" * 2001]),
)
REF_KINDS = st.sampled_from(["user", "tool-call", "memory", "host"])
REFS = st.lists(st.fixed_dictionaries({"kind": REF_KINDS, "id": st.sampled_from(["c1", "c2"])}), max_size=2)
TASK_IDS = st.sampled_from(["a", "b", "c"])
TASKS = st.fixed_dictionaries({"id": TASK_IDS, "title": TEXTS})
TASK_LISTS = st.fixed_dictionaries({"goal": TEXTS, "tasks": st.lists(TASKS, max_size=3)})


def operations(ids: list[str]) -> dict[str, dict[str, st.SearchStrategy[Any]]]:
    """The fields of every operation, mostly about items that are there."""
    known = st.sampled_from([*ids, "nothing"])
    outcomes = st.sampled_from(sorted(get_args(AttemptOutcome)))
    return {
        "set-goal": {"text": TEXTS, "sources": REFS},
        "add-constraint": {"text": TEXTS},
        "remove-constraint": {"id": known},
        "set-tasks": {"list": TASK_LISTS},
        "set-active-task": {"id": st.none() | TASK_IDS},
        "add-observation": {"text": TEXTS, "sources": REFS},
        "add-hypothesis": {"text": TEXTS, "sources": REFS},
        "add-decision": {"text": TEXTS, "rationale": TEXTS},
        "add-question": {"text": TEXTS},
        "answer-question": {"id": known, "answer": TEXTS, "sources": REFS},
        "drop-question": {"id": known},
        "record-attempt": {"text": TEXTS, "outcome": outcomes},
        "update-attempt": {"id": known, "outcome": outcomes, "detail": TEXTS},
        "set-hypothesis-status": {"id": known, "status": st.sampled_from(sorted(get_args(HypothesisStatus)))},
        "set-decision-status": {"id": known, "status": st.sampled_from(sorted(get_args(DecisionStatus)))},
        "remove-item": {"id": known},
    }


HOST_ONLY = {
    "set-goal",
    "add-constraint",
    "remove-constraint",
    "set-tasks",
    "set-hypothesis-status",
    "set-decision-status",
}


def draw_operation(data: st.DataObject, ids: list[str], writer: str) -> dict[str, Any]:
    fields = operations(ids)
    # A model that only asks for what it may not do would change nothing.
    names = sorted(set(fields) - HOST_ONLY) if writer == "model" and data.draw(st.integers(0, 9)) else sorted(fields)
    op = data.draw(st.sampled_from(names))
    return {"op": op, **data.draw(st.fixed_dictionaries(fields[op]))}


def items_of(snapshot: WorkingMemorySnapshot) -> dict[str, Any]:
    lists = (
        snapshot.constraints,
        snapshot.observations,
        snapshot.hypotheses,
        snapshot.decisions,
        snapshot.questions,
        snapshot.attempts,
    )
    pairs = [(item.id, item) for items in lists for item in items]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


class WorkingMemoryMachine(RuleBasedStateMachine):
    """A host and a model that patch one snapshot and sometimes repeat themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = create_working_memory(scope="acme", now=0)
        self.sent: list[dict[str, Any]] = []
        self.applied = 0

    @initialize(tasks=st.booleans())
    def start(self, tasks: bool) -> None:
        """Create a snapshot, with tasks or without."""
        given = {"list": {"goal": "g", "tasks": [{"id": "a", "title": "A"}]}, "activeTaskId": "a"} if tasks else None
        self.snapshot = create_working_memory(scope="acme", now=0, goal="g", constraints=["c", "d"], tasks=given)

    def send(self, request: dict[str, Any]) -> PatchResult | None:
        """Apply a patch and check what holds for each; None if it was malformed."""
        before = self.snapshot
        encoded = msgspec.json.encode(before)
        try:
            result = apply_working_memory_patch(before, request, now=self.applied)
        except InvalidTypeError:
            assert msgspec.json.encode(before) == encoded
            return None
        assert msgspec.json.encode(before) == encoded
        assert apply_working_memory_patch(before, request, now=self.applied) == result
        if result.status == "applied":
            assert result.snapshot.revision == before.revision + 1
            assert result.snapshot.operation_ids == (*before.operation_ids, request["operationId"])
            self.applied += 1
        else:
            assert result.snapshot is before
            assert (result.reason is not None) == (result.status == "rejected")
        self.snapshot = result.snapshot
        return result

    @rule(data=st.data(), writer=st.sampled_from(["host", "model"]), late=st.integers(0, 6))
    def patch(self, data: st.DataObject, writer: str, late: int) -> None:
        """Send a new patch, now and then for a revision that is gone."""
        items = items_of(self.snapshot).values()
        ids = sorted(item.id for item in items if item.writer == writer or late < 2)
        ops = [draw_operation(data, ids, writer) for _ in range(data.draw(st.integers(1, 3)))]
        request = {
            "operationId": f"p{len(self.sent)}",
            "expectedRevision": self.snapshot.revision - (late == 6 and self.snapshot.revision > 0),
            "writer": writer,
            "operations": ops,
        }
        before = self.snapshot
        self.sent.append(request)
        result = self.send(request)
        if result is not None and result.status == "applied" and writer == "model":
            self.check_that_the_hosts_part_is_untouched(before)

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Send again what was sent before."""
        if not self.sent:
            return
        request = data.draw(st.sampled_from(self.sent))
        known = request["operationId"] in self.snapshot.operation_ids
        result = self.send(request)
        if known:
            assert result is not None
            assert result.status == "duplicate"

    @invariant()
    def snapshot_is_whole_and_survives_json(self) -> None:
        """Whatever was applied, the snapshot can be stored and read."""
        assert decode_snapshot(msgspec.json.encode(self.snapshot)) == self.snapshot
        assert self.snapshot.revision == self.applied
        for item in items_of(self.snapshot).values():
            assert 1 <= len(item.text) <= 2000
            assert item.revision <= self.snapshot.revision
            assert item.writer == "host" or all(source.kind != "host" for source in item.sources) or item.changed_by
        tasks = self.snapshot.tasks
        assert tasks is None or (tasks.active_task_id is None) == (active_task(self.snapshot) is None)

    @invariant()
    def block_is_the_sum_of_its_parts(self) -> None:
        """No character of the block is counted twice or not at all."""
        estimator = make_estimator()
        items = list_items(self.snapshot)
        wrappers = {item.section for item in items if not item.mandatory}
        parts = [fixed_text(items, self.snapshot.revision), *map(section_wrapper, wrappers)]
        parts.extend(item.rendered for item in items)
        block = render_working_memory(items, self.snapshot.revision)
        assert estimator.text(block) == sum(map(estimator.text, parts))

    def check_that_the_hosts_part_is_untouched(self, before: WorkingMemorySnapshot) -> None:
        """A model's patch changed nothing that is the host's."""
        after = items_of(self.snapshot)
        for item_id, item in items_of(before).items():
            if item.writer == "host":
                assert after[item_id] == item
        assert self.snapshot.goal == before.goal
        assert self.snapshot.constraints == before.constraints
        if before.tasks is not None:
            assert self.snapshot.tasks is not None
            assert self.snapshot.tasks.list == before.tasks.list
        judged: dict[str, str] = {hypothesis.id: hypothesis.status for hypothesis in before.hypotheses}
        judged |= {decision.id: decision.status for decision in before.decisions}
        for hypothesis in self.snapshot.hypotheses:
            assert hypothesis.status == judged.get(hypothesis.id, "proposed")
        for decision in self.snapshot.decisions:
            assert decision.status == judged.get(decision.id, "proposed")


@pytest.mark.rule("D.O.1", "D.O.4", "D.O.5", "D.O.6", "D.O.8", "D.O.9", "D.O.16", "D.O.21", "D.N.12", "D.M.13")
def test_working_memory_under_random_patches() -> None:
    run_state_machine_as_test(
        WorkingMemoryMachine, settings=settings(max_examples=60, stateful_step_count=20, deadline=None)
    )


@pytest.mark.rule("D.O.7")
def test_machine_knows_every_operation() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in get_args(AnyOperation)}
    assert len(tags) == 16
    assert set(operations([])) == tags

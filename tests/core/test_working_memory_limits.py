"""Lists and texts of a snapshot up to their limits, and one beyond (D.N.12, D.U.3)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from contextbus.core.working_memory_checks import within_limits
from contextbus.core.working_memory_items import active_task
from contextbus.core.working_memory_patch import apply_working_memory_patch
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.working_memory import (
    AddObservation,
    Attempt,
    Constraint,
    Decision,
    Goal,
    Hypothesis,
    Observation,
    Question,
    SourceRef,
    Task,
    TaskList,
    Tasks,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
)

EMPTY = WorkingMemorySnapshot(version=1, scope="s", revision=0)
ITEM: dict[str, Any] = {"id": "i", "writer": "host", "revision": 0, "changed_at": 0}


def refs(count: int, length: int = 1) -> tuple[SourceRef, ...]:
    return tuple(SourceRef(kind="memory", id="r" * length) for _ in range(count))


def goal(characters: int, sources: int = 0) -> dict[str, Any]:
    made = Goal(text="é" * characters, writer="host", revision=0, changed_at=0, sources=refs(sources))
    return {"goal": made}


def tasks(count: int = 1, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"goal": "g", "title": "t", "id": "i", "notes": None, "sources": ()} | fields
    listed = tuple(Task(told["id"], told["title"], notes=told["notes"]) for _ in range(count))
    return {
        "tasks": Tasks(
            list=TaskList(told["goal"], listed),
            list_revision=1,
            writer="host",
            revision=0,
            changed_at=0,
            sources=told["sources"],
        )
    }


def items(field: str, kind: type[Any], count: int = 1, **fields: Any) -> dict[str, Any]:
    return {field: (kind(**(ITEM | {"text": "t"} | fields)),) * count}


LISTS: list[tuple[str, type[Any]]] = [
    ("observations", Observation),
    ("hypotheses", Hypothesis),
    ("decisions", Decision),
    ("questions", Question),
    ("attempts", Attempt),
]
EVERY: list[tuple[str, type[Any]]] = [("constraints", Constraint), *LISTS]
ALLOWED: list[dict[str, Any]] = [
    {},
    goal(1),
    goal(4000),
    goal(1, sources=16),
    items("constraints", Constraint, 32),
    *(items(field, kind, 64) for field, kind in LISTS),
    *(items(field, kind, text="t" * 2000) for field, kind in EVERY),
    items("observations", Observation, id="i" * 2000),
    items("observations", Observation, sources=refs(16)),
    items("observations", Observation, sources=refs(1, 2000)),
    items("questions", Question, answer="a"),
    items("questions", Question, answer="a" * 2000),
    items("decisions", Decision, rationale="r" * 2000),
    items("attempts", Attempt, detail="d" * 2000),
    tasks(0),
    tasks(100),
    tasks(goal="g" * 4000),
    tasks(title="t" * 2000),
    tasks(id="i" * 2000),
    tasks(notes="n" * 2000),
    tasks(sources=refs(16)),
]
REFUSED: list[dict[str, Any]] = [
    goal(0),
    goal(4001),
    goal(1, sources=17),
    items("constraints", Constraint, 33),
    *(items(field, kind, 65) for field, kind in LISTS),
    *(items(field, kind, text="t" * 2001) for field, kind in EVERY),
    *(items(field, kind, text="") for field, kind in EVERY),
    items("observations", Observation, id="i" * 2001),
    items("observations", Observation, sources=refs(17)),
    items("observations", Observation, sources=refs(1, 2001)),
    items("questions", Question, answer=""),
    items("questions", Question, answer="a" * 2001),
    items("decisions", Decision, rationale="r" * 2001),
    items("attempts", Attempt, detail="d" * 2001),
    tasks(101),
    tasks(goal="g" * 4001),
    tasks(title=""),
    tasks(title="t" * 2001),
    tasks(id="i" * 2001),
    tasks(notes="n" * 2001),
    tasks(sources=refs(17)),
]


@pytest.mark.rule("D.N.12", "D.U.3")
@pytest.mark.parametrize("fields", ALLOWED)
def test_the_limit_itself_is_allowed(fields: dict[str, Any]) -> None:
    assert within_limits(msgspec.structs.replace(EMPTY, **fields)) is True


@pytest.mark.rule("D.N.12", "D.U.3")
@pytest.mark.parametrize("fields", REFUSED)
def test_one_beyond_is_not(fields: dict[str, Any]) -> None:
    assert within_limits(msgspec.structs.replace(EMPTY, **fields)) is False


@pytest.mark.rule("D.N.7")
def test_without_an_active_task_there_is_none() -> None:
    assert active_task(EMPTY) is None
    assert active_task(msgspec.structs.replace(EMPTY, **tasks())) is None


@pytest.mark.rule("D.W.6")
def test_a_time_that_is_none_is_named() -> None:
    patch = WorkingMemoryPatch(
        operation_id="o", expected_revision=0, writer="host", operations=(AddObservation(text="t"),)
    )
    with pytest.raises(InvalidTypeError, match=r"^now is an integer, milliseconds"):
        apply_working_memory_patch(EMPTY, patch, now=cast("int", 0.5))

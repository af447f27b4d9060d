"""Working memory: the goal, constraints, decisions and attempts that a long task must not lose (D.N).

A snapshot is made here and changes only through ``apply_working_memory_patch`` (D.O.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from contextbus.core.working_memory_checks import (
    check_active,
    check_task_ids,
    check_time,
    decode_snapshot,
    read_value,
)
from contextbus_protocol.working_memory import Constraint, Goal, Tasks, TasksInput, WorkingMemorySnapshot


def create_working_memory(
    *,
    scope: str,
    now: int,
    goal: str | None = None,
    constraints: Sequence[str] = (),
    tasks: TasksInput | Mapping[str, Any] | None = None,
    goal_ref: str | None = None,
) -> WorkingMemorySnapshot:
    """Make the first snapshot, revision 0; all in it is the host's (D.N.3, D.N.4).

    Args:
        scope: a label, as a rule the tenant's name (D.N.14).
        now: the time, in milliseconds since the epoch.
        goal: what the work is for, 1 to 4000 characters.
        constraints: at most 32 texts of 1 to 2000 characters; their ids are ``constraints-0-<i>``.
        tasks: a task list, and which of its tasks is active; ``list_revision`` starts at 1 (D.N.5).
        goal_ref: links to a goal that is kept elsewhere; carried along, never rendered (D.N.13).

    Raises:
        InvalidTypeError: an argument has another type or is beyond a limit; the active task is not in the list (D.N.7).
    """
    given = read_value(
        {"scope": scope, "goal": goal, "constraints": constraints, "tasks": tasks, "goal_ref": goal_ref},
        _Options,
        "working memory",
    )
    check_time(now, "now")
    return decode_snapshot(
        WorkingMemorySnapshot(
            version=1,
            scope=given.scope,
            revision=0,
            goal=None if given.goal is None else Goal(text=given.goal, writer="host", revision=0, changed_at=now),
            constraints=tuple(
                Constraint(id=f"constraints-0-{index}", text=text, writer="host", revision=0, changed_at=now)
                for index, text in enumerate(given.constraints)
            ),
            tasks=None if given.tasks is None else _make_tasks(given.tasks, now),
            goal_ref=given.goal_ref,
        )
    )


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments as they have to be."""

    scope: str
    goal: str | None
    constraints: tuple[str, ...]
    tasks: TasksInput | None
    goal_ref: str | None


def _make_tasks(given: TasksInput, now: int) -> Tasks:
    check_task_ids(given.list, "malformed tasks")
    check_active(given.list, given.active_task_id, "malformed tasks")
    return Tasks(
        list=given.list,
        list_revision=1,
        writer="host",
        revision=0,
        changed_at=now,
        active_task_id=given.active_task_id,
    )

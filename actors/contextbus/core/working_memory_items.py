"""Working memory as the items of its block: what each costs, in which order they are filled in, how they read.

An item is taken in whole or left out.  The critical ones (goal, constraints, active task) come first and are never cut
(D.P.1); the others follow in fill order (D.P.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from contextbus.core.escape import escape_attribute, escape_text
from contextbus_protocol.digests import digest_text
from contextbus_protocol.working_memory import Item, Task, Tasks, WorkingMemorySnapshot

WORKING_MEMORY_SOURCE: Final = "working-memory"
"""The source, and the kind, of entries for working-memory items (D.D.4, D.D.26)."""

WORKING_MEMORY_PREAMBLE: Final = (
    "The state of the work as it stands now; this copy supersedes all earlier copies. Goal and constraints are set by "
    "the host; items marked proposed have not been verified."
)
"""The line that opens every working-memory block, byte for byte (D.E.11)."""

_SECTIONS: Final = (
    "goal",
    "constraints",
    "active-task",
    "tasks",
    "decisions",
    "questions",
    "attempts",
    "hypotheses",
    "observations",
)
_PLACE: Final[Mapping[str, int]] = MappingProxyType({section: place for place, section in enumerate(_SECTIONS)})
_WITHOUT_WRAPPER: Final = frozenset({"goal", "active-task"})
_CLOSE: Final = "</working_memory>"

# The order in which the statuses of a list are filled in (D.P.2); a status that is not here is never rendered.
_DECISIONS: Final = ("accepted", "proposed", "reverted")
_QUESTIONS: Final = ("open", "answered")
_ATTEMPTS: Final = ("in-progress", "failed", "abandoned", "succeeded")
_HYPOTHESES: Final = ("confirmed", "proposed", "rejected")

T = TypeVar("T", bound=Item)


class MemoryItem(msgspec.Struct, frozen=True):
    """One item as selection and rendering use it.

    ``digest`` is of ``rendered``, so it changes with whatever the model would see.  ``rendered`` is the item's line,
    for goal and active task its element, escaped and with its newline (D.M.13).
    """

    record_id: str
    digest: str
    revision: int
    mandatory: bool
    section: str
    rendered: str


def active_task(snapshot: WorkingMemorySnapshot) -> Task | None:
    """The active task, if one is set."""
    tasks = snapshot.tasks
    if tasks is None or tasks.active_task_id is None:
        return None
    return next((task for task in tasks.list.tasks if task.id == tasks.active_task_id), None)


def list_items(snapshot: WorkingMemorySnapshot) -> tuple[MemoryItem, ...]:
    """Every item that may be rendered, critical ones first, then in fill order (D.P.1, D.P.2, D.P.4).

    Constraints keep the host's order; inside a status the newest revision comes first, then the id by code point.
    Dropped questions are absent (D.P.3).
    """
    items: list[MemoryItem] = []
    if snapshot.goal is not None:
        rendered = f"<goal>{escape_text(snapshot.goal.text)}</goal>\n"
        items.append(_make("goal", snapshot.goal.revision, "goal", rendered, mandatory=True))
    for constraint in snapshot.constraints:
        record_id = f"constraint/{constraint.id}"
        line = _line(constraint)
        items.append(_make(record_id, constraint.revision, "constraints", line, mandatory=True))
    if snapshot.tasks is not None:
        items.extend(_list_tasks(snapshot, snapshot.tasks))
    for decision in _in_fill_order(snapshot.decisions, [d.status for d in snapshot.decisions], _DECISIONS):
        line = _line(decision, decision.status, "rationale", decision.rationale)
        items.append(_make(f"decision/{decision.id}", decision.revision, "decisions", line))
    for question in _in_fill_order(snapshot.questions, [q.status for q in snapshot.questions], _QUESTIONS):
        line = _line(question, question.status, "answer", question.answer)
        items.append(_make(f"question/{question.id}", question.revision, "questions", line))
    for attempt in _in_fill_order(snapshot.attempts, [a.outcome for a in snapshot.attempts], _ATTEMPTS):
        line = _line(attempt, attempt.outcome, "detail", attempt.detail)
        items.append(_make(f"attempt/{attempt.id}", attempt.revision, "attempts", line))
    for hypothesis in _in_fill_order(snapshot.hypotheses, [h.status for h in snapshot.hypotheses], _HYPOTHESES):
        line = _line(hypothesis, hypothesis.status)
        items.append(_make(f"hypothesis/{hypothesis.id}", hypothesis.revision, "hypotheses", line))
    newest_first = sorted(snapshot.observations, key=lambda item: (-item.revision, item.id))
    items.extend(_make(f"observation/{o.id}", o.revision, "observations", _line(o)) for o in newest_first)
    return tuple(items)


def section_wrapper(section: str) -> str:
    """The two lines that open and close a section, nothing for goal and active task.

    The wrapper of constraints belongs to the block's fixed text; that of an optional section is charged with the first
    item of it that is taken (D.M.13).
    """
    return "" if section in _WITHOUT_WRAPPER else f"<{section}>\n</{section}>\n"


def fixed_text(items: Iterable[MemoryItem], revision: int) -> str:
    """All characters of a block that belong to no item and to no optional section (D.M.13).

    Root, preamble, and the wrapper of constraints if one of the items is a constraint.
    """
    wrapper = section_wrapper("constraints") if any(item.section == "constraints" for item in items) else ""
    return f"{_open(revision)}{wrapper}{_CLOSE}"


def render_working_memory(items: Iterable[MemoryItem], revision: int) -> str:
    """Render the block's text (D.E.11-D.E.16), with no newline at the end.

    Args:
        items: the selected items; sections come in their fixed order (D.E.14), items of one section in the order given.
        revision: the snapshot's revision.
    """
    lines: list[list[str]] = [[] for _ in _SECTIONS]
    for item in items:
        lines[_PLACE[item.section]].append(item.rendered)
    parts = [_open(revision)]
    for section, rendered in zip(_SECTIONS, lines, strict=True):
        if not rendered:
            continue
        if section in _WITHOUT_WRAPPER:
            parts.extend(rendered)
        else:
            parts.extend((f"<{section}>\n", *rendered, f"</{section}>\n"))
    parts.append(_CLOSE)
    return "".join(parts)


def _open(revision: int) -> str:
    return f'<working_memory revision="{revision}">\n{WORKING_MEMORY_PREAMBLE}\n'


def _make(record_id: str, revision: int, section: str, rendered: str, *, mandatory: bool = False) -> MemoryItem:
    return MemoryItem(record_id, digest_text(rendered), revision, mandatory, section, rendered)


def _in_fill_order(items: Sequence[T], statuses: Sequence[str], order: tuple[str, ...]) -> list[T]:
    """Sort the items of a list by status, newest revision, id; statuses outside the order are left out."""
    rank = {status: place for place, status in enumerate(order)}
    ranked = [(rank[status], item) for item, status in zip(items, statuses, strict=True) if status in rank]
    ranked.sort(key=lambda pair: (pair[0], -pair[1].revision, pair[1].id))
    return [item for _, item in ranked]


def _list_tasks(snapshot: WorkingMemorySnapshot, tasks: Tasks) -> list[MemoryItem]:
    """The active task, which is critical, and the whole list as one item."""
    items: list[MemoryItem] = []
    active = active_task(snapshot)
    if active is not None:
        opening = f'<active_task id="{escape_attribute(active.id)}" status="{active.status}">'
        rendered = f"{opening}{_inline(_describe(active))}</active_task>\n"
        items.append(_make("active-task", tasks.revision, "active-task", rendered, mandatory=True))
    if tasks.list.tasks:
        lines = [f"goal: {_inline(tasks.list.goal)}\n"] if tasks.list.goal else []
        lines.extend(
            f"- [{_inline(task.id)}] ({task.status}) {_inline(_describe(task))}\n" for task in tasks.list.tasks
        )
        items.append(_make("tasks", tasks.revision, "tasks", "".join(lines)))
    return items


def _describe(task: Task) -> str:
    return f"{task.title}; notes: {task.notes}" if task.notes else task.title


def _line(item: Item, status: str = "", label: str = "", more: str | None = None) -> str:
    """One line of a list: id, status (D.E.16), text, and what was noted beside it."""
    shown = f"({status}) " if status else ""
    beside = f"; {label}: {_inline(more)}" if more else ""
    return f"- [{_inline(item.id)}] {shown}{_inline(item.text)}{beside}\n"


def _inline(text: str) -> str:
    """Escape a text so that it stays on its line: a newline in it could pass for another item."""
    return escape_text(text).replace("\n", "&#10;")

"""Patches: the only way in which working memory changes (D.O).

Checks come in a fixed order (D.O.19): malformed, duplicate, revision, authority, existence, limits.  The first four
look at the whole patch before anything is applied; the operations are then applied one by one to a draft, so a later
one may use what an earlier one made, and the draft counts only if all of them went well (D.O.5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import msgspec

from contextbus.core.working_memory_checks import (
    REMEMBERED_OPERATIONS,
    TEXT_CHARACTERS,
    check_time,
    decode_patch,
    decode_snapshot,
    list_all,
    within_limits,
)
from contextbus_protocol.digests import clean_text, encode_text
from contextbus_protocol.errors import InvalidTypeError, NotFoundError
from contextbus_protocol.working_memory import (
    AddConstraint,
    AddDecision,
    AddHypothesis,
    AddObservation,
    AddQuestion,
    AnswerQuestion,
    AnyOperation,
    Attempt,
    Constraint,
    Decision,
    DropQuestion,
    Goal,
    Hypothesis,
    Item,
    Observation,
    Question,
    RecordAttempt,
    RemoveConstraint,
    RemoveItem,
    SetActiveTask,
    SetDecisionStatus,
    SetGoal,
    SetHypothesisStatus,
    SetTasks,
    Tasks,
    UpdateAttempt,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
    Writer,
)

PatchStatus = Literal["applied", "duplicate", "rejected"]
PatchReason = Literal["revision-conflict", "forbidden", "not-found", "limit"]

_HOST_ONLY: Final = (SetGoal, AddConstraint, RemoveConstraint, SetTasks, SetHypothesisStatus, SetDecisionStatus)
_CHANGES_ITEM: Final = (AnswerQuestion, DropQuestion, UpdateAttempt, RemoveItem)

_Addition = AddConstraint | AddObservation | AddHypothesis | AddDecision | AddQuestion | RecordAttempt
# Every field of an addition is a field of the item that it adds.
_KINDS: Final[Mapping[type[_Addition], tuple[str, type[Item]]]] = MappingProxyType(
    {
        AddConstraint: ("constraints", Constraint),
        AddObservation: ("observations", Observation),
        AddHypothesis: ("hypotheses", Hypothesis),
        AddDecision: ("decisions", Decision),
        AddQuestion: ("questions", Question),
        RecordAttempt: ("attempts", Attempt),
    }
)

ItemT = TypeVar("ItemT", bound=Item)


class PatchResult(msgspec.Struct, frozen=True):
    """What became of a patch (D.O.3).

    ``snapshot`` is the very one that was given unless ``applied``; ``reason`` is set only when ``rejected``; ``ids``
    are those of the items that the patch added, in the order of its operations.  ``revision`` is the one that the patch
    produced.  Of a ``duplicate`` both are those of the first time where whoever applies patches remembers them, as a
    run does.
    """

    status: PatchStatus
    snapshot: WorkingMemorySnapshot
    reason: PatchReason | None = None
    ids: tuple[str, ...] = ()
    revision: int | None = None


def operation_digest(operation_id: str) -> bytes:
    """The 16 bytes by which a run remembers an operation id for good (D.O.23)."""
    return hashlib.sha256(encode_text(operation_id)).digest()[:16]


def apply_working_memory_patch(
    snapshot: WorkingMemorySnapshot,
    patch: WorkingMemoryPatch | Mapping[str, Any],
    *,
    now: int,
    generate_id: Callable[[], str] | None = None,
    known: Callable[[str], bool] | None = None,
) -> PatchResult:
    """Apply a patch to a snapshot, all of it or nothing (D.O.1); neither argument changes.

    Args:
        snapshot: the working memory as it stands.
        patch: the operations, as an object or as the JSON object of the wire.
        now: the time of the change, in milliseconds since the epoch.
        generate_id: makes the id of each added item, in place of ``<list>-<revision>-<index>`` (D.O.13).
        known: tells whether an operation id was applied before.  A run passes the set it folds from its log, which
            forgets nothing; the caller then adds the id of an applied patch to that set (``operation_digest`` is its
            short form), and the snapshot's own ``operation_ids`` are read but no longer grow.  Without it the snapshot
            remembers the newest 512 (D.O.23).

    Raises:
        InvalidTypeError: patch, snapshot or ``now`` is malformed, or an id that ``generate_id`` made is taken.
    """
    checked = decode_patch(patch)
    return _apply(decode_snapshot(snapshot), snapshot, checked, now, generate_id, known)


def patch_sound_snapshot(
    snapshot: WorkingMemorySnapshot, patch: WorkingMemoryPatch, *, now: int, known: Callable[[str], bool]
) -> PatchResult:
    """As ``apply_working_memory_patch`` for a snapshot that came of it: what this code made is not checked again.

    Raises:
        InvalidTypeError: patch or ``now`` is malformed.
    """
    return _apply(snapshot, snapshot, decode_patch(patch), now, None, known)


def _apply(
    whole: WorkingMemorySnapshot,
    snapshot: WorkingMemorySnapshot,
    checked: WorkingMemoryPatch,
    now: int,
    generate_id: Callable[[], str] | None,
    known: Callable[[str], bool] | None,
) -> PatchResult:
    """Apply a checked patch to ``whole``, which is the checked form of ``snapshot``."""
    check_time(now, "now")
    if checked.operation_id in snapshot.operation_ids or (known is not None and known(checked.operation_id)):
        return PatchResult("duplicate", snapshot)
    if checked.expected_revision != snapshot.revision:
        return PatchResult("rejected", snapshot, "revision-conflict")
    if checked.writer == "model" and _is_forbidden_to_model(snapshot, checked.operations):
        return PatchResult("rejected", snapshot, "forbidden")
    draft = _Draft(whole, checked.writer, now, generate_id)
    try:
        for index, operation in enumerate(checked.operations):
            draft.apply(index, operation)
    except NotFoundError:
        return PatchResult("rejected", snapshot, "not-found")
    operation_ids = snapshot.operation_ids
    if known is None:
        operation_ids = (*operation_ids, checked.operation_id)[-REMEMBERED_OPERATIONS:]
    changed = draft.finish(operation_ids)
    if len(checked.operation_id) > TEXT_CHARACTERS or not within_limits(changed):
        return PatchResult("rejected", snapshot, "limit")
    return PatchResult("applied", changed, ids=tuple(draft.added), revision=changed.revision)


def _is_forbidden_to_model(snapshot: WorkingMemorySnapshot, operations: tuple[AnyOperation, ...]) -> bool:
    """Whether a model may not do one of these: host-only, on an item of the host, citing the host (D.O.8-D.O.10)."""
    by_host = {item.id for item in list_all(snapshot) if item.writer == "host"}
    for operation in operations:
        if isinstance(operation, _HOST_ONLY):
            return True
        if isinstance(operation, _CHANGES_ITEM) and operation.id in by_host:
            return True
        if any(source.kind == "host" for source in getattr(operation, "sources", ())):
            return True
    return False


@dataclass
class _Draft:
    """The snapshot while a patch is applied to it; lives inside one call."""

    base: WorkingMemorySnapshot
    writer: Writer
    now: int
    generate_id: Callable[[], str] | None
    added: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.revision = self.base.revision + 1
        self.goal = self.base.goal
        self.tasks = self.base.tasks
        self.items: dict[str, Item] = {item.id: item for item in list_all(self.base)}

    def apply(self, index: int, operation: AnyOperation) -> None:
        """Apply one operation.

        Raises:
            NotFoundError: it names what is not there.
        """
        match operation:
            case SetGoal():
                self._set_goal(operation)
            case SetTasks():
                self._set_tasks(operation)
            case SetActiveTask():
                self._set_active_task(operation)
            case RemoveConstraint():
                del self.items[self._find(operation.id, Constraint).id]
            case RemoveItem():
                self._remove(operation)
            case AnswerQuestion() | DropQuestion():
                self._change_question(operation)
            case UpdateAttempt() | SetHypothesisStatus() | SetDecisionStatus():
                self._change(operation)
            case _:
                self._add(index, operation)

    def finish(self, operation_ids: tuple[str, ...]) -> WorkingMemorySnapshot:
        """The snapshot that the operations made; every list keeps the order in which its items were added."""
        return msgspec.structs.replace(
            self.base,
            revision=self.revision,
            goal=self.goal,
            tasks=self.tasks,
            operation_ids=operation_ids,
            constraints=self._list(Constraint),
            observations=self._list(Observation),
            hypotheses=self._list(Hypothesis),
            decisions=self._list(Decision),
            questions=self._list(Question),
            attempts=self._list(Attempt),
        )

    def _list(self, kind: type[ItemT]) -> tuple[ItemT, ...]:
        return tuple(item for item in self.items.values() if isinstance(item, kind))

    def _find(self, item_id: str, kind: type[ItemT]) -> ItemT:
        item = self.items.get(item_id)
        if not isinstance(item, kind):
            raise NotFoundError("no such item")
        return item

    def _set_goal(self, operation: SetGoal) -> None:
        self.goal = Goal(
            text=operation.text,
            writer=self.writer,
            revision=self.revision,
            changed_at=self.now,
            sources=operation.sources,
        )

    def _set_tasks(self, operation: SetTasks) -> None:
        """Replace the list; the active task stays if the new list still has it (D.O.12, D.O.22)."""
        active = None if self.tasks is None else self.tasks.active_task_id
        self.tasks = Tasks(
            list=operation.list,
            list_revision=1 if self.tasks is None else self.tasks.list_revision + 1,
            writer=self.writer,
            revision=self.revision,
            changed_at=self.now,
            active_task_id=active if any(task.id == active for task in operation.list.tasks) else None,
            sources=operation.sources,
        )

    def _set_active_task(self, operation: SetActiveTask) -> None:
        tasks = self.tasks
        if tasks is None or (operation.id is not None and all(task.id != operation.id for task in tasks.list.tasks)):
            raise NotFoundError("no such task")
        self.tasks = msgspec.structs.replace(
            tasks, active_task_id=operation.id, revision=self.revision, changed_at=self.now
        )

    def _remove(self, operation: RemoveItem) -> None:
        if isinstance(self._find(operation.id, Item), Constraint):
            raise NotFoundError("a constraint is removed by its own operation")
        del self.items[operation.id]

    def _change_question(self, operation: AnswerQuestion | DropQuestion) -> None:
        question = self._find(operation.id, Question)
        if isinstance(operation, DropQuestion):
            self._replace(question, status="dropped")
        else:
            # What the answer rests on comes behind what the question rested on, each reference once.
            sources = tuple(dict.fromkeys((*question.sources, *operation.sources)))
            self._replace(question, status="answered", answer=operation.answer, sources=sources)

    def _change(self, operation: UpdateAttempt | SetHypothesisStatus | SetDecisionStatus) -> None:
        match operation:
            case UpdateAttempt():
                attempt = self._find(operation.id, Attempt)
                detail = attempt.detail if operation.detail is None else operation.detail
                self._replace(attempt, outcome=operation.outcome, detail=detail)
            case SetHypothesisStatus():
                self._replace(self._find(operation.id, Hypothesis), status=operation.status)
            case SetDecisionStatus():
                self._replace(self._find(operation.id, Decision), status=operation.status)

    def _replace(self, item: Item, **changes: object) -> None:
        """Change an item in its place; who wrote it stays, who changed it is noted beside (D.O.20)."""
        self.items[item.id] = msgspec.structs.replace(
            item, revision=self.revision, changed_at=self.now, changed_by=self.writer, **changes
        )

    def _add(self, index: int, operation: _Addition) -> None:
        name, kind = _KINDS[type(operation)]
        item_id = self._make_id(name, index)
        given = {field: getattr(operation, field) for field in operation.__struct_fields__}
        self.items[item_id] = kind(id=item_id, writer=self.writer, revision=self.revision, changed_at=self.now, **given)
        self.added.append(item_id)

    def _make_id(self, name: str, index: int) -> str:
        """An id that no item has (D.O.13, D.O.14)."""
        item_id = f"{name}-{self.revision}-{index}" if self.generate_id is None else _check_id(self.generate_id())
        if item_id in self.items:
            raise InvalidTypeError(f"item id {item_id!r} is taken")
        return item_id


def _check_id(item_id: object) -> str:
    if not isinstance(item_id, str) or not item_id or clean_text(item_id) != item_id:
        raise InvalidTypeError("generate_id makes a text that is not empty")
    return item_id

"""What working memory may hold: shapes, limits, and values that came from outside (D.N.11, D.O.18, D.U.3)."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec

from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import MAX_SAFE_INTEGER
from contextbus_protocol.working_memory import Item, SetTasks, SourceRef, TaskList, WorkingMemoryPatch
from contextbus_protocol.working_memory import WorkingMemorySnapshot as Snapshot

TEXT_CHARACTERS: Final = 2000
GOAL_CHARACTERS: Final = 4000
CONSTRAINTS: Final = 32
LIST_ITEMS: Final = 64
TASKS: Final = 100
OPERATIONS: Final = 16
SOURCES: Final = 16
REMEMBERED_OPERATIONS: Final = 512

# msgspec would write these as text; where text is asked for they are a mistake.
_NO_TEXT: Final = (
    bytes,
    bytearray,
    memoryview,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)

T = TypeVar("T")


def read_value(value: object, type_: type[T], what: str) -> T:
    """Read a value that came from outside: JSON bytes, a JSON object, or an object of the type itself.

    An object of the type is checked as well, for constructors check nothing; lists in it become tuples, so that
    nothing in the result can change.  Lone surrogates become U+FFFD, since the wire cannot carry them.

    Raises:
        InvalidTypeError: the value has another shape; the message names the place, not the content.
    """
    try:
        plain = msgspec.json.decode(value) if isinstance(value, bytes) else value
        plain = msgspec.to_builtins(plain, builtin_types=_NO_TEXT)
        return msgspec.convert(plain if _is_clean(plain) else _clean(plain), type_)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        place = f": {exc}" if isinstance(exc, msgspec.ValidationError) else f": {type(exc).__name__}"
        raise InvalidTypeError(f"malformed {what}{place}") from None


def decode_patch(data: bytes | Mapping[str, Any] | WorkingMemoryPatch) -> WorkingMemoryPatch:
    """Read a patch and check all that can be checked without a snapshot (D.O.2, D.O.18).

    Raises:
        InvalidTypeError: unknown operation or writer, wrong type, no operation or more than 16, empty operation id,
            a task list whose ids are not unique.
    """
    patch = read_value(data, WorkingMemoryPatch, "patch")
    if not patch.operation_id:
        raise InvalidTypeError("malformed patch: operationId is empty")
    check_integer(patch.expected_revision, "malformed patch: expectedRevision")
    if not 1 <= len(patch.operations) <= OPERATIONS:
        raise InvalidTypeError(f"malformed patch: 1 to {OPERATIONS} operations, not {len(patch.operations)}")
    for operation in patch.operations:
        if isinstance(operation, SetTasks):
            check_task_ids(operation.list, "malformed patch")
        check_sources(getattr(operation, "sources", ()), "malformed patch")
    return patch


def decode_snapshot(data: bytes | Mapping[str, Any] | Snapshot) -> Snapshot:
    """Read a snapshot and check that it is whole: version, types, limits, ids that occur once (D.N.11).

    Raises:
        InvalidTypeError: the snapshot is malformed, or larger than working memory may be.
    """
    snapshot = read_value(data, Snapshot, "snapshot")
    check_integer(snapshot.revision, "malformed snapshot: revision")
    seen: set[str] = set()
    for item in list_all(snapshot):
        if not item.id or item.id in seen:
            raise InvalidTypeError("malformed snapshot: an item id is empty or occurs twice")
        seen.add(item.id)
    for stamped in (snapshot.goal, snapshot.tasks, *list_all(snapshot)):
        if stamped is not None:
            check_integer(stamped.revision, "malformed snapshot: revision of an item")
            check_time(stamped.changed_at, "malformed snapshot: changedAt")
            check_sources(stamped.sources, "malformed snapshot")
    if snapshot.tasks is not None:
        check_integer(snapshot.tasks.list_revision, "malformed snapshot: listRevision")
        check_task_ids(snapshot.tasks.list, "malformed snapshot")
        check_active(snapshot.tasks.list, snapshot.tasks.active_task_id, "malformed snapshot")
    if not within_limits(snapshot):
        raise InvalidTypeError("malformed snapshot: a list or text is longer than allowed, or a text is empty")
    return snapshot


def check_integer(value: int, what: str) -> None:
    """Refuse what is no non-negative safe integer (D.W.6)."""
    if type(value) is not int or not 0 <= value <= MAX_SAFE_INTEGER:
        raise InvalidTypeError(f"{what} is a non-negative integer")


def check_time(value: int, what: str) -> None:
    """Refuse what is no time in milliseconds since the epoch (D.W.6)."""
    if type(value) is not int or abs(value) > MAX_SAFE_INTEGER:
        raise InvalidTypeError(f"{what} is an integer, milliseconds since the epoch")


def check_task_ids(tasks: TaskList, what: str) -> None:
    """Refuse a task list whose ids are empty or occur twice."""
    ids = [task.id for task in tasks.tasks]
    if "" in ids or len(set(ids)) < len(ids):
        raise InvalidTypeError(f"{what}: a task id is empty or occurs twice")


def check_active(tasks: TaskList, active: str | None, what: str) -> None:
    """Refuse an active task that the list does not hold (D.N.7)."""
    if active is not None and all(task.id != active for task in tasks.tasks):
        raise InvalidTypeError(f"{what}: activeTaskId is no task of the list")


def check_sources(sources: Iterable[SourceRef], what: str) -> None:
    """Refuse a source reference without id or with a revision that is none (D.N.15)."""
    for source in sources:
        if not source.id:
            raise InvalidTypeError(f"{what}: a source has no id")
        if source.revision is not None:
            check_integer(source.revision, f"{what}: revision of a source")


def list_all(snapshot: Snapshot) -> Iterator[Item]:
    """Every item of every list; ids are unique among all of them."""
    yield from snapshot.constraints
    yield from snapshot.observations
    yield from snapshot.hypotheses
    yield from snapshot.decisions
    yield from snapshot.questions
    yield from snapshot.attempts


def within_limits(snapshot: Snapshot) -> bool:
    """Whether lists and texts keep to the limits (D.N.12, D.U.3); characters are code points."""
    lists = (
        snapshot.observations,
        snapshot.hypotheses,
        snapshot.decisions,
        snapshot.questions,
        snapshot.attempts,
    )
    if len(snapshot.constraints) > CONSTRAINTS or any(len(items) > LIST_ITEMS for items in lists):
        return False
    if snapshot.goal is not None and not _fits(snapshot.goal.text, snapshot.goal.sources, GOAL_CHARACTERS):
        return False
    if snapshot.tasks is not None and not _tasks_fit(snapshot.tasks.list, snapshot.tasks.sources):
        return False
    if any(
        question.answer is not None and not 1 <= len(question.answer) <= TEXT_CHARACTERS
        for question in snapshot.questions
    ):
        return False
    if any(len(decision.rationale or "") > TEXT_CHARACTERS for decision in snapshot.decisions):
        return False
    if any(len(attempt.detail or "") > TEXT_CHARACTERS for attempt in snapshot.attempts):
        return False
    return all(_fits(item.text, item.sources) and len(item.id) <= TEXT_CHARACTERS for item in list_all(snapshot))


def _fits(text: str, sources: tuple[SourceRef, ...], characters: int = TEXT_CHARACTERS) -> bool:
    if not 1 <= len(text) <= characters or len(sources) > SOURCES:
        return False
    return all(len(source.id) <= TEXT_CHARACTERS for source in sources)


def _tasks_fit(tasks: TaskList, sources: tuple[SourceRef, ...]) -> bool:
    if len(tasks.tasks) > TASKS or len(tasks.goal) > GOAL_CHARACTERS or len(sources) > SOURCES:
        return False
    return all(
        1 <= len(task.title) <= TEXT_CHARACTERS
        and len(task.id) <= TEXT_CHARACTERS
        and len(task.notes or "") <= TEXT_CHARACTERS
        for task in tasks.tasks
    )


def _is_clean(value: object) -> bool:
    """Whether no text of a JSON value holds a lone surrogate; encoding finds that out in C."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _clean(value: object) -> object:
    """Replace lone surrogates in every text of a JSON value."""
    if isinstance(value, str):
        return value if value.isascii() else clean_text(value)
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {_clean(key): _clean(field) for key, field in fields.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(entry) for entry in cast("Iterable[object]", value)]
    return value

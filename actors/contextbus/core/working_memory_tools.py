"""The model's tools over working memory: what their calls mean and what they answer (D.Q).

Pure: arguments become operations of a patch, results of patches become answers.  Every refusal is an error of ours that
the host shows to the model as a failed call (D.T.6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from contextbus.core import json_text
from contextbus.core.working_memory_checks import OPERATIONS, SOURCES, TEXT_CHARACTERS, read_value
from contextbus.core.working_memory_patch import PatchReason, PatchResult
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import (
    ContextBusError,
    ForbiddenError,
    InvalidTypeError,
    LimitError,
    NotFoundError,
    RevisionConflictError,
)
from contextbus_protocol.working_memory import (
    AddDecision,
    AddHypothesis,
    AddObservation,
    AddQuestion,
    AnswerQuestion,
    AnyOperation,
    AttemptOutcome,
    DropQuestion,
    RecordAttempt,
    RemoveItem,
    SourceRef,
    UpdateAttempt,
    WorkingMemorySnapshot,
)

DEFAULT_PREFIX: Final = "working_memory"
"""What the names of the tools begin with (D.Q.1)."""

ENTRIES: Final = OPERATIONS
"""The most items or changes of one call: each is an operation of one patch (D.Q.3, D.Q.4)."""

ToolAction = Literal["read", "add", "update"]

_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,57}")  # with the longest ending it is a name that every provider takes
_QUOTED: Final = 200
_FORMS: Final[Mapping[ToolAction, str]] = {
    "read": "this tool takes no arguments",
    "add": (
        f"items: 1 to {ENTRIES} of {{kind, text, evidence?}}, with kind decision also rationale?, with kind attempt "
        f"also outcome? and detail?; texts have 1 to {TEXT_CHARACTERS} characters"
    ),
    "update": (
        f"changes: 1 to {ENTRIES} of {{action, id}}, with action answer also answer and evidence?, with action attempt "
        f"also outcome and detail?; texts have 1 to {TEXT_CHARACTERS} characters"
    ),
}


class ToolNames(NamedTuple):
    """The names of the three tools (D.Q.2)."""

    read: str
    add: str
    update: str

    def find(self, name: str) -> ToolAction | None:
        """What the tool of a name does; None if it is none of these."""
        return _ACTIONS[self.index(name)] if name in self else None


_ACTIONS: Final[tuple[ToolAction, ...]] = ("read", "add", "update")


def name_tools(prefix: str = DEFAULT_PREFIX) -> ToolNames:
    """The names of the tools under a prefix (D.Q.2).

    Raises:
        InvalidTypeError: the prefix is not of 1 to 57 ASCII letters, digits, ``_`` or ``-``.
    """
    if not _is_prefix(prefix):
        raise InvalidTypeError("prefix: 1 to 57 ASCII letters, digits, _ or -, for that is what providers take")
    return ToolNames(*(f"{prefix}_{action}" for action in _ACTIONS))


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and _PREFIX.fullmatch(value) is not None


# -- what a model writes; the schemas in working_memory_tool_schemas say the same

_Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS)]
_Note = Annotated[str, Meta(max_length=TEXT_CHARACTERS)]
_Evidence = Annotated[tuple[_Text, ...], Meta(max_length=SOURCES)]


class _Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    text: _Text
    evidence: _Evidence = ()


class _Observation(_Item, frozen=True, kw_only=True, tag="observation"):
    pass


class _Hypothesis(_Item, frozen=True, kw_only=True, tag="hypothesis"):
    pass


class _Question(_Item, frozen=True, kw_only=True, tag="question"):
    pass


class _Decision(_Item, frozen=True, kw_only=True, tag="decision"):
    rationale: _Note | UnsetType = UNSET


class _Attempt(_Item, frozen=True, kw_only=True, tag="attempt"):
    outcome: AttemptOutcome = "in-progress"
    detail: _Note | UnsetType = UNSET


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    id: _Text


class _Answer(_Change, frozen=True, kw_only=True, tag="answer"):
    answer: _Text
    evidence: _Evidence = ()


class _Drop(_Change, frozen=True, kw_only=True, tag="drop"):
    pass


class _UpdatedAttempt(_Change, frozen=True, kw_only=True, tag="attempt"):
    outcome: AttemptOutcome
    detail: _Note | UnsetType = UNSET


class _Remove(_Change, frozen=True, kw_only=True, tag="remove"):
    pass


_AnyItem = _Observation | _Hypothesis | _Question | _Decision | _Attempt
_AnyChange = _Answer | _Drop | _UpdatedAttempt | _Remove


class _ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _AddArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[tuple[_AnyItem, ...], Meta(min_length=1, max_length=ENTRIES)]


class _UpdateArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    changes: Annotated[tuple[_AnyChange, ...], Meta(min_length=1, max_length=ENTRIES)]


_ARGUMENTS: Final[Mapping[ToolAction, type[_ReadArguments | _AddArguments | _UpdateArguments]]] = {
    "read": _ReadArguments,
    "add": _AddArguments,
    "update": _UpdateArguments,
}


def read_operations(
    action: ToolAction, arguments: str | Mapping[str, object] | None, is_known_call: Callable[[str], bool]
) -> tuple[AnyOperation, ...]:
    """The operations that a call asks for; none for ``read`` (D.Q.3-D.Q.5, D.Q.13, D.Q.14).

    Args:
        action: what the tool does.
        arguments: as the model wrote them: JSON text, or what was read from it; nothing at all is an empty object.
        is_known_call: whether an id is one of an earlier tool call.

    Raises:
        InvalidTypeError: the arguments are no JSON object or not as the tool's schema says.
        NotFoundError: the evidence is no earlier tool call.
    """
    match _read_arguments(action, arguments):
        case _AddArguments(items=items):
            return tuple(_add(item, is_known_call) for item in items)
        case _UpdateArguments(changes=changes):
            return tuple(_update(change, is_known_call) for change in changes)
        case _:
            return ()


def _read_arguments(action: ToolAction, arguments: object) -> _ReadArguments | _AddArguments | _UpdateArguments:
    if isinstance(arguments, Mapping):
        value: object = dict(cast("Mapping[object, object]", arguments))
    else:
        text = json_text.sound_object((arguments or "{}") if isinstance(arguments, str | None) else "")
        if text is None:
            raise InvalidTypeError(f"the arguments are not a JSON object; {_FORMS[action]}")
        value = text.encode()
    try:
        return read_value(value, _ARGUMENTS[action], "arguments")
    except InvalidTypeError as exc:
        raise InvalidTypeError(f"{_shorten(exc.message)}; {_FORMS[action]}") from None


def _add(item: _AnyItem, is_known_call: Callable[[str], bool]) -> AnyOperation:
    sources = _cite(item.evidence, is_known_call)
    match item:
        case _Observation():
            return AddObservation(text=item.text, sources=sources)
        case _Hypothesis():
            return AddHypothesis(text=item.text, sources=sources)
        case _Question():
            return AddQuestion(text=item.text, sources=sources)
        case _Decision():
            return AddDecision(text=item.text, rationale=_given(item.rationale), sources=sources)
        case _Attempt():
            return RecordAttempt(text=item.text, outcome=item.outcome, detail=_given(item.detail), sources=sources)


def _update(change: _AnyChange, is_known_call: Callable[[str], bool]) -> AnyOperation:
    match change:
        case _Answer():
            return AnswerQuestion(id=change.id, answer=change.answer, sources=_cite(change.evidence, is_known_call))
        case _Drop():
            return DropQuestion(id=change.id)
        case _UpdatedAttempt():
            return UpdateAttempt(id=change.id, outcome=change.outcome, detail=_given(change.detail))
        case _Remove():
            return RemoveItem(id=change.id)


def _given(note: str | UnsetType) -> str | None:
    return None if note is UNSET else note


def _cite(evidence: tuple[str, ...], is_known_call: Callable[[str], bool]) -> tuple[SourceRef, ...]:
    """Sources of the cited calls, each once (D.Q.14)."""
    ids = tuple(dict.fromkeys(evidence))
    for call in ids:
        if not is_known_call(call):
            raise NotFoundError(
                f"evidence {call!r} is no earlier tool call; cite ids of earlier calls, or leave it out"
            )
    return tuple(SourceRef("tool-call", call) for call in ids)


def _shorten(text: str) -> str:
    """What is quoted of a model's own words: they are in its context already."""
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"


def make_operation_id(name: str, step: int, call: str) -> str:
    """The operation id of a tool call, the same whenever it is replayed (D.Q.7).

    The name of a tool has no colon and a step is digits, so two calls never share an id.
    """
    return f"{name}:{step}:{call}"


# -- what a model reads

_REFUSALS: Final[Mapping[PatchReason, tuple[type[ContextBusError], str]]] = {
    "forbidden": (ForbiddenError, "the host wrote an item that this would change, and it is closed to you"),
    "not-found": (
        NotFoundError,
        "an id is not there, or of another kind than the action needs; read working memory for the ids it holds",
    ),
    "limit": (
        LimitError,
        f"a list, a text or its sources ({SOURCES} at most) would be too long; remove or shorten something first",
    ),
    "revision-conflict": (
        RevisionConflictError,
        "others changed working memory at the same time; read it, then call again if the change is still needed",
    ),
}


class WriteAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a write answers (D.Q.6); ``ids`` are those of the items that ``add`` made, in the order of its items."""

    status: Literal["applied", "duplicate"]
    revision: int
    ids: tuple[str, ...] = ()


def answer_write(result: PatchResult) -> WriteAnswer:
    """What a write answers.

    Raises:
        ForbiddenError: an item of the host would be changed.
        NotFoundError: an id is not there.
        LimitError: working memory would be too large.
        RevisionConflictError: others were faster.
    """
    if result.status == "rejected":
        error, text = _REFUSALS[result.reason or "revision-conflict"]
        raise error(f"nothing was written: {text}")
    revision = result.snapshot.revision if result.revision is None else result.revision
    return WriteAnswer(result.status, revision, result.ids)


def show_snapshot(snapshot: WorkingMemorySnapshot) -> str:
    """What ``read`` answers: the snapshot as JSON, without the operation ids, which mean nothing to a model."""
    return encode_json(msgspec.structs.replace(snapshot, operation_ids=())).decode()

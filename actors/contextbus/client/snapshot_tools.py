"""The model's tools over working memory, for a host's agent loop (D.Q)."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import anyio

from contextbus.core import json_text
from contextbus.core.working_memory_checks import REMEMBERED_OPERATIONS, decode_snapshot
from contextbus.core.working_memory_patch import PatchResult, apply_working_memory_patch
from contextbus.core.working_memory_tool_schemas import ToolShape, define_tools
from contextbus.core.working_memory_tools import (
    DEFAULT_PREFIX,
    ToolNames,
    answer_write,
    make_operation_id,
    name_tools,
    read_operations,
    show_snapshot,
)
from contextbus.runtime.clock import read_milliseconds
from contextbus_protocol.chat import Text, ToolResult
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import (
    ConflictError,
    ContextBusError,
    DeadlineExceededError,
    ForbiddenError,
    InvalidTypeError,
    NotFoundError,
    RevisionConflictError,
)
from contextbus_protocol.values import MAX_SAFE_INTEGER
from contextbus_protocol.working_memory import AnyOperation, WorkingMemoryPatch, WorkingMemorySnapshot

ATTEMPTS: Final = 3
"""How often a write is tried in all while others change working memory at the same time (D.Q.9)."""


class WorkingMemoryHandle(Protocol):
    """What the tools need of a working memory (D.Q.1); ``Run.working_memory`` is one."""

    async def current(self) -> WorkingMemorySnapshot | None:
        """The snapshot as it stands; None while there is none."""
        ...

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        """Apply a patch; an operation id that was applied before is a duplicate (D.O.16)."""
        ...


class SnapshotHandle:
    """A working memory in this process, for a host without a run; ``snapshot`` is it as it stands.

    Args:
        snapshot: what to begin with.
        now: reads the clock, in milliseconds since the epoch.

    Raises:
        InvalidTypeError: the snapshot is malformed (D.N.11).
    """

    def __init__(self, snapshot: WorkingMemorySnapshot, *, now: Callable[[], int] = read_milliseconds) -> None:
        self.snapshot = decode_snapshot(snapshot)
        self._now = now
        self._results: dict[str, PatchResult] = {}

    async def current(self) -> WorkingMemorySnapshot:
        """The snapshot as it stands."""
        return self.snapshot

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        """Apply a patch (D.O.3).

        Raises:
            InvalidTypeError: the patch is malformed (D.O.18).
        """
        result = apply_working_memory_patch(self.snapshot, patch, now=self._now())
        first = self._results.get(patch.operation_id)
        if result.status == "duplicate" and first is not None:
            return PatchResult("duplicate", self.snapshot, ids=first.ids, revision=first.revision)
        if result.status == "applied":
            self.snapshot = result.snapshot
            self._results[patch.operation_id] = PatchResult(
                "duplicate", result.snapshot, ids=result.ids, revision=result.revision
            )
            if len(self._results) > REMEMBERED_OPERATIONS:
                del self._results[next(iter(self._results))]
        return result


class WorkingMemoryTools:
    """Three tools of a model: read, add, update; made by ``working_memory_tools`` and ``Run.working_memory``.

    They keep nothing (D.Q.12).  ``replay`` tells that a call may be made again after a crash without a second effect,
    given the same step and call id (D.Q.8).

    Args:
        memory: the working memory.
        prefix: what the names begin with (D.Q.1).
        agent_path: the agent that may write; any other one only reads (D.Q.10).
        step: tells the model step whose tool calls are being answered, where a call does not.
        known_calls: ids of the tool calls so far, where a call does not give them.

    Raises:
        InvalidTypeError: prefix or agent path is malformed.
    """

    replay: Final[Literal["idempotent"]] = "idempotent"

    def __init__(
        self,
        memory: WorkingMemoryHandle,
        prefix: str = DEFAULT_PREFIX,
        agent_path: Sequence[str] = (),
        *,
        step: Callable[[], int] | None = None,
        known_calls: Container[str] = (),
    ) -> None:
        self.names: ToolNames = name_tools(prefix)
        self.agent_path = _read_path(agent_path)
        self._memory = memory
        self._step = step
        self._known_calls = known_calls
        self._writing = anyio.Lock()

    def definitions(self, provider: ToolShape) -> list[dict[str, Any]]:
        """The definitions as the ``tools`` of a provider's request take them.

        Raises:
            InvalidRequestError: the provider is none of ``anthropic``, ``openai``, ``openai-responses``, ``gemini``.
        """
        return define_tools(self.names, provider)

    def handles(self, name: str) -> bool:
        """Whether a tool call of this name is for these tools."""
        return self.names.find(name) is not None

    async def call(
        self,
        name: str,
        arguments: str | Mapping[str, object] | None,
        *,
        call_id: str,
        step: int | None = None,
        agent_path: Sequence[str] = (),
        known_calls: Container[str] | None = None,
    ) -> ToolResult:
        """Answer a tool call of the model; a refusal is a result marked as an error (D.T.6).

        Args:
            name: the tool's name.
            arguments: as the model wrote them: JSON text, or what was read from it.
            call_id: the id of the tool call.
            step: the model step that the call came from; after a crash it must be the same (D.Q.7).
            agent_path: the agent whose model called (D.Q.10).
            known_calls: ids of the tool calls so far, which evidence may name (D.Q.14).

        Raises:
            InvalidTypeError: ``call_id``, ``step`` or ``agent_path`` is malformed: a mistake of the host, not the
                model's.
        """
        path, number = _read_path(agent_path), self._read_step(step)
        if not _is_name(call_id):
            raise InvalidTypeError("call_id: a text that is not empty; give calls of a provider without ids one")
        calls = self._known_calls if known_calls is None else known_calls
        try:
            text = await self._answer(name, arguments, call_id, number, path, calls)
        except ContextBusError as exc:
            return _result(call_id, name, _explain(exc), error=True)
        return _result(call_id, name, text)

    async def _answer(
        self,
        name: str,
        arguments: str | Mapping[str, object] | None,
        call_id: str,
        step: int,
        path: tuple[str, ...],
        calls: Container[str],
    ) -> str:
        action = self.names.find(name)
        if action is None:
            raise NotFoundError(f"there is no such tool; there are {', '.join(self.names)}")
        if action != "read" and path != self.agent_path:
            raise ForbiddenError("this working memory is another agent's: you may read it, not write to it")
        operations = read_operations(action, arguments, lambda call: call != call_id and call in calls)
        if action == "read":
            return show_snapshot(await self._current())
        result = await self._write(make_operation_id(name, step, call_id), operations)
        return encode_json(answer_write(result)).decode()

    async def _write(self, operation_id: str, operations: tuple[AnyOperation, ...]) -> PatchResult:
        """Apply the operations to the snapshot as it stands, three times at most while others are faster (D.Q.9)."""
        async with self._writing:  # the calls of one turn do not race each other
            return await self._try_write(operation_id, operations)

    async def _try_write(self, operation_id: str, operations: tuple[AnyOperation, ...]) -> PatchResult:
        for _ in range(ATTEMPTS):
            snapshot = await self._current()
            patch = WorkingMemoryPatch(
                operation_id=operation_id,
                expected_revision=snapshot.revision,
                writer="model",
                operations=operations,
            )
            try:
                result = await self._memory.apply(patch)
            except ConflictError:
                continue
            if result.reason != "revision-conflict":
                return result
        raise RevisionConflictError(
            "nothing was written: others changed working memory at the same time; "
            "read it, then call again if the change is still needed"
        )

    async def _current(self) -> WorkingMemorySnapshot:
        snapshot = await self._memory.current()
        if snapshot is None:
            raise NotFoundError("there is no working memory; the host has to create it first")
        return snapshot

    def _read_step(self, step: int | None) -> int:
        if step is None:
            if self._step is None:
                raise InvalidTypeError("step: give the number of the model step that the call came from")
            step = self._step()
        if type(step) is not int or not 0 <= step <= MAX_SAFE_INTEGER:
            raise InvalidTypeError("step: a non-negative integer, the model step that the call came from")
        return step


def working_memory_tools(
    memory: WorkingMemoryHandle, prefix: str = DEFAULT_PREFIX, agent_path: Sequence[str] = ()
) -> WorkingMemoryTools:
    """The model's tools over a working memory (D.Q.1).

    Args:
        memory: ``run.working_memory``, a ``SnapshotHandle``, or a handle of your own.
        prefix: what the names of the tools begin with: ``<prefix>_read``, ``_add`` and ``_update``.
        agent_path: the agent that may write; a call from another one may only read (D.Q.10).

    Raises:
        InvalidTypeError: prefix or agent path is malformed.
    """
    return WorkingMemoryTools(memory, prefix, agent_path)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _read_path(path: object) -> tuple[str, ...]:
    names = json_text.as_list(path)
    texts = () if names is None else tuple(name for name in names if isinstance(name, str))
    if names is None or len(texts) < len(names):
        raise InvalidTypeError("agent_path: a list of the names of agents, outermost first; empty for the main agent")
    return texts


def _explain(error: ContextBusError) -> str:
    """The text of a failed call: the code, and what to do."""
    if isinstance(error, DeadlineExceededError):
        return f"{error.code}: no answer came in time, so the change may be there or not; read working memory to see"
    return f"{error.code}: {error.message}"


def _result(call_id: str, name: str, text: str, *, error: bool = False) -> ToolResult:
    return ToolResult(id=call_id, name=name, content=(Text(text=text),), error=error)

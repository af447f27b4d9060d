"""The working memory of a run as its client holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from contextbus.client.sending import DEFAULT_SECONDS, Sender, new_id
from contextbus.client.snapshot_tools import WorkingMemoryTools
from contextbus.core.handle import RunHandle
from contextbus.core.history import Entry, SourceHistory
from contextbus.core.working_memory_checks import decode_patch
from contextbus.core.working_memory_patch import PatchResult
from contextbus.core.working_memory_tools import DEFAULT_PREFIX
from contextbus_protocol.chat import ToolCall
from contextbus_protocol.commands import (
    AnyCommand,
    CreateWorkingMemory,
    PatchWorkingMemory,
    ReadWorkingMemory,
    WorkingMemoryState,
)
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.working_memory import (
    AnyOperation,
    TasksInput,
    WorkingMemoryPatch,
    WorkingMemorySnapshot,
    Writer,
)


class RunWorkingMemory:
    """The working memory of one run; ``Run.working_memory`` is it, and a handle for the model's tools (D.Q.1)."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._known_calls = KnownCalls(lambda: sender.handle)

    async def create(
        self,
        *,
        scope: str | None = None,
        goal: str | None = None,
        constraints: Sequence[str] = (),
        tasks: TasksInput | None = None,
        goal_ref: str | None = None,
        snapshot: WorkingMemorySnapshot | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> WorkingMemorySnapshot:
        """Create the run's working memory (D.N.3), or take over a snapshot.

        Args:
            scope: a label (D.N.14), ``default`` without one.
            goal: what the work is for.
            constraints: limits that no model may change.
            tasks: a task list, and which of its tasks is active.
            goal_ref: links to a goal that is kept elsewhere.
            snapshot: a snapshot to go on with, in place of all the others.
            seconds: how long an attempt may take.

        Raises:
            InvalidTypeError: ``snapshot`` is given together with what a new one is made of (D.R.12).
            InvalidRequestError: the run has a working memory.
            DeadlineExceededError: no answer came.
        """
        constraints = tuple(constraints)
        given = constraints or any(value is not None for value in (scope, goal, tasks, goal_ref))
        if snapshot is not None and given:
            raise InvalidTypeError("give a snapshot, or what a new working memory is made of, not both")
        create = CreateWorkingMemory(
            **self._sender.head(None, seconds),
            scope=(scope or "default") if snapshot is None else snapshot.scope,
            goal=goal,
            constraints=constraints,
            tasks=tasks,
            goal_ref=goal_ref,
            snapshot=snapshot,
        )
        answer = await self._ask(create)
        assert answer.snapshot is not None
        return answer.snapshot

    async def patch(
        self,
        *operations: AnyOperation,
        expected_revision: int,
        writer: Writer = "host",
        operation_id: str | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> WorkingMemoryState:
        """Apply a patch; what became of it is in the answer's ``status`` and ``reason`` (D.O.3).

        Raises:
            InvalidTypeError: the patch is malformed (D.O.18).
            NotFoundError: the run has no working memory.
            DeadlineExceededError: no answer came; with an ``operation_id`` the patch may be sent again (D.O.23).
        """
        patch = WorkingMemoryPatch(
            operation_id=operation_id or new_id(),
            expected_revision=expected_revision,
            writer=writer,
            operations=operations,
        )
        return await self._send(patch, seconds)

    async def current(self) -> WorkingMemorySnapshot | None:
        """The snapshot as it stands, for the model's tools (D.Q.1).

        Raises:
            DeadlineExceededError: no answer came.
        """
        return await self.read()

    async def apply(self, patch: WorkingMemoryPatch) -> PatchResult:
        """Apply a patch, for the model's tools (D.Q.1).

        An operation id that the log holds has no second effect, whoever applied it and however long ago: the answer is
        ``duplicate`` with the revision and the ids of the first time (D.Q.12).

        Raises:
            InvalidTypeError: the patch is malformed (D.O.18).
            NotFoundError: the run has no working memory.
            DeadlineExceededError: no answer came; the patch may be applied again.
        """
        answer = await self._send(patch, DEFAULT_SECONDS)
        match answer:
            case WorkingMemoryState(
                status="applied" | "duplicate" | "rejected" as status, snapshot=WorkingMemorySnapshot() as snapshot
            ):
                return PatchResult(status, snapshot, answer.reason, answer.ids, answer.revision)
            case _:
                raise InvalidTypeError(f"working-memory answered a patch with {answer.status!r}; same release?")

    def tools(
        self,
        prefix: str = DEFAULT_PREFIX,
        agent_path: Sequence[str] = (),
        *,
        step: Callable[[], int] | None = None,
    ) -> WorkingMemoryTools:
        """The model's tools over this working memory (D.Q.1); evidence is checked against the run's history (D.Q.14).

        Args:
            prefix: what the names of the tools begin with.
            agent_path: the agent that may write (D.Q.10).
            step: tells the model step whose tool calls are being answered; without it every call has to name it.

        Raises:
            InvalidTypeError: prefix or agent path is malformed.
        """
        return WorkingMemoryTools(self, prefix, agent_path, step=step, known_calls=self._known_calls)

    async def read(self, *, seconds: float = DEFAULT_SECONDS) -> WorkingMemorySnapshot | None:
        """The snapshot as the log holds it now, whoever wrote last; None while there is none.

        Raises:
            DeadlineExceededError: no answer came.
        """
        # an attempt after the first looks at the log, for what others wrote by another instance
        head = self._sender.head(None, seconds)
        head["attempt"] = 2
        return (await self._ask(ReadWorkingMemory(**head))).snapshot

    async def _send(self, patch: WorkingMemoryPatch, seconds: float) -> WorkingMemoryState:
        # read anew, it is what another process reads from the log, down to which default stands for which word
        command = PatchWorkingMemory(**self._sender.head(None, seconds), patch=decode_patch(patch))
        return await self._ask(command)

    async def _ask(self, command: AnyCommand) -> WorkingMemoryState:
        answer = await self._sender.ask("working-memory", command, WorkingMemoryState)
        self._sender.handle = self._sender.handle.see_memory(answer.sequence)
        return answer


class KnownCalls:
    """The ids of the tool calls in a run's history, as its client knows it.

    Only messages that came since the last look are read, unless the history was replaced.
    """

    def __init__(self, handle: Callable[[], RunHandle]) -> None:
        self._handle = handle
        self._history = SourceHistory()
        self._ids: set[str] = set()

    def __contains__(self, call: object) -> bool:
        """Whether a tool call of this id is in the history."""
        history, known = self._handle().history, self._history
        if history.chain != known.chain:
            if history.count < known.count or history.keep(known.count).chain != known.chain:
                known, self._ids = SourceHistory(), set()
            self._ids.update(_list_calls(history[known.count :]))
            self._history = history
        return call in self._ids


def _list_calls(entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        if entry.message is not None:
            yield from (part.id for part in entry.message.content if isinstance(part, ToolCall))

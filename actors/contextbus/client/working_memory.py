"""The working memory of a run as its client holds it."""

from __future__ import annotations

from collections.abc import Sequence

from contextbus.client.sending import DEFAULT_SECONDS, Sender, new_id
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
    """The working memory of one run; ``Run.working_memory`` is it."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def create(
        self,
        *,
        scope: str = "default",
        goal: str | None = None,
        constraints: Sequence[str] = (),
        tasks: TasksInput | None = None,
        goal_ref: str | None = None,
        snapshot: WorkingMemorySnapshot | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> WorkingMemorySnapshot:
        """Create the run's working memory (D.N.3), or take over a snapshot; ``seconds`` bound one attempt.

        Raises:
            InvalidTypeError: ``snapshot`` is given together with what a new one is made of (D.R.12).
            InvalidRequestError: the run has a working memory.
            DeadlineExceededError: no answer came.
        """
        if snapshot is not None and (goal or constraints or tasks or goal_ref):
            raise InvalidTypeError("give a snapshot, or what a new working memory is made of, not both")
        create = CreateWorkingMemory(
            **self._sender.head(None, seconds),
            scope=scope,
            goal=goal,
            constraints=tuple(constraints),
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
        return await self._ask(PatchWorkingMemory(**self._sender.head(None, seconds), patch=patch))

    async def read(self, *, seconds: float = DEFAULT_SECONDS) -> WorkingMemorySnapshot | None:
        """The snapshot; None while there is none.

        Raises:
            DeadlineExceededError: no answer came.
        """
        return (await self._ask(ReadWorkingMemory(**self._sender.head(None, seconds)))).snapshot

    async def _ask(self, command: AnyCommand) -> WorkingMemoryState:
        answer = await self._sender.ask("working-memory", command, WorkingMemoryState)
        self._sender.handle = self._sender.handle.see_memory(answer.sequence)
        return answer

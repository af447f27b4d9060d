"""What a host asks of a run beside its steps: a refresh, a new topic, an end of a pause, an archived span."""

from __future__ import annotations

from contextbus.client.archive import read_archive
from contextbus.client.run_history import RunHistory
from contextbus.client.sending import DEFAULT_SECONDS, OpenCommands, Sender
from contextbus.runtime.drive import JournalDriver
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import ClearHistory, Recorded, RequestRefresh, ResetCompaction


class RunRequests:
    """The part of a run that needs no model call."""

    def __init__(self, driver: JournalDriver, run: str, sender: Sender) -> None:
        self.id = run
        self._driver = driver
        self._sender = sender
        self._history = RunHistory(driver, sender, run)
        self._commands = OpenCommands()

    async def request_refresh(self, *, seconds: float = DEFAULT_SECONDS, command: str | None = None) -> None:
        """Ask the sources again at the next step (D.G.5).

        Args:
            seconds: how long an attempt may take.
            command: the command's id; without it that of the request before, if its answer was lost and no step came.

        Raises:
            NotFoundError: the run has no step yet.
            DeadlineExceededError: no answer came; ask again, without a second effect.
        """
        head = self._sender.head(self._commands.id_of(("refresh",), command), seconds)
        answer = await self._sender.ask("selection", RequestRefresh(**head), Recorded)
        self._commands.close(("refresh",))
        self._history.acknowledge(answer)

    async def reset_compaction(self, *, seconds: float = DEFAULT_SECONDS, command: str | None = None) -> None:
        """End a pause of compaction: the next step asks the summariser again (C.X.5).

        Args:
            seconds: how long an attempt may take.
            command: the command's id; without it that of the request before, if its answer was lost and no step came.

        Raises:
            NotFoundError: the run has no log yet.
            DeadlineExceededError: no answer came; ask again, without a second effect.
        """
        head = self._sender.head(self._commands.id_of(("reset",), command), seconds)
        answer = await self._sender.ask("selection", ResetCompaction(**head), Recorded)
        self._commands.close(("reset",))
        self._history.acknowledge(answer)

    async def clear_history(self, *, seconds: float = DEFAULT_SECONDS, command: str | None = None) -> None:
        """Begin a new topic (P.J.9).

        History, placed blocks and checkpoint are empty then, what was appended and not handed over yet too; working
        memory and the number of passes stay, and the next step asks the sources again.

        Args:
            seconds: how long an attempt may take.
            command: the command's id; without it that of the request before, if its answer was lost and no step came.

        Raises:
            NotFoundError: the run has no log yet.
            DeadlineExceededError: no answer came; ask again, without a second effect.
        """
        head = self._sender.head(self._commands.id_of(("clear",), command), seconds)
        answer = await self._sender.ask("selection", ClearHistory(**head), Recorded)
        self._commands.close(("clear",))
        self._history.clear(answer)

    async def resolve(self, uri: str) -> tuple[ChatMessage, ...]:
        """The messages that a compaction replaced, by the address at the end of its summary (C.X.8).

        Raises:
            InvalidRequestError: it is no such address.
            NotFoundError: the run has no such span, or a forget took it.
            DeadlineExceededError: log or store do not answer.
        """
        return await read_archive(self._driver, self.id, uri)

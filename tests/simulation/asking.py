"""A simulated client's side of the bus: one command at a time over the real retry machine."""

from __future__ import annotations

from collections.abc import Callable

from contextbus.actors import client as retry
from contextbus_protocol import subjects
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.commands import (
    AnyCommand,
    CancelCommand,
    CreateWorkingMemory,
    PatchWorkingMemory,
    ReadWorkingMemory,
)
from contextbus_protocol.messages import AnyMessage
from tests.simulation.world import TENANT, World


class Asker:
    """Sends its next command once the one before is answered or given up.

    Args:
        world: where it lives.
        name: its name, which is its reply address.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.asking: retry.Asking | None = None
        self._settle: Callable[[AnyMessage], None] = lambda _: None
        self._wake = 0
        world.receivers[name] = self

    def ask(self, command: AnyCommand, settle: Callable[[AnyMessage], None]) -> None:
        """Send a command; ``settle`` takes its answer."""
        self._settle = settle
        self._operate(*retry.begin(command))

    def give_up(self) -> None:
        """Cancel the command under way; what is committed stays (D.W.5)."""
        if self.asking is None:
            return
        command = self.asking.command
        self.asking = None
        cancel = CancelCommand(run=command.run, tenant=TENANT, command=command.command)
        self.world.send(subjects.command(actor_of(command), TENANT), cancel)

    def answer_callback(self, ask: AskCallback) -> None:
        """Answer for a function of the host; a client without any never does (D.W.4)."""

    def receive(self, message: AnyMessage) -> None:
        """Take an answer; one of an earlier command changes nothing."""
        asking = self.asking
        if asking is None or getattr(message, "command", None) != asking.command.command:
            return
        if isinstance(message, AskCallback):
            self.answer_callback(message)
            return
        self._operate(*retry.advance(asking, retry.Answered(message)))

    def _operate(self, asking: retry.Asking, operation: retry.Operation) -> None:
        self.asking = asking
        match operation:
            case retry.Transmit(command, wake_after):
                self.world.send(subjects.command(actor_of(command), TENANT), command)
                self._sleep(wake_after)
            case retry.WakeAfter(seconds):
                self._sleep(seconds)
            case retry.Resolve(answer):
                self.asking = None
                self._settle(answer)
            case None:
                pass

    def _sleep(self, seconds: float) -> None:
        self._wake += 1
        wake = self._wake

        def silent() -> None:
            if self.asking is not None and wake == self._wake:
                self._operate(*retry.advance(self.asking, retry.Silent()))

        self.world.at(seconds, silent)


def actor_of(command: AnyCommand) -> subjects.ActorName:
    """Who takes a command."""
    match command:
        case CreateWorkingMemory() | PatchWorkingMemory() | ReadWorkingMemory():
            return "working-memory"
        case _:
            return "selection"

"""The clients of the state machine: their commands are chosen for them, their answers noted."""

from __future__ import annotations

from contextbus.core.handle import RunHandle
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, Composition
from contextbus_protocol.commands import ErrorReply, Recorded, StepCompiled, WorkingMemoryState
from contextbus_protocol.messages import AnyMessage
from tests.simulation.asking import Asker
from tests.simulation.clients import Acknowledged, acknowledged, read_messages
from tests.simulation.compacting import count_composition
from tests.simulation.world import World

RUN = "run-0"
RECORDED = frozenset({"source_failed", "context_budget_exceeded", "summariser_failed", "request_overhead"})
ALLOWED = RECORDED | frozenset(
    {
        "conflict",
        "stale_step",
        "deadline_exceeded",
        "not_found",
        "invalid_type",
        "limit",
    }
)


class MachineClient(Asker):
    """A client whose commands the machine chooses."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.run = RUN
        self.handle = RunHandle()
        self.revision = 0
        self.serial = 0
        self.compiled: StepCompiled | None = None
        self.answer: AnyMessage | None = None
        self.counting: float | None = None
        self.acknowledged: list[Acknowledged] = []
        self.recorded: list[Recorded] = []
        self.patched: list[tuple[str, int]] = []

    def answer_callback(self, ask: AskCallback) -> None:
        """Count a candidate, if this host counts, in so many seconds (C.M.11)."""
        if self.counting is not None and ask.name == "count-tokens":
            messages = [e.message for e in self.handle.history if e.message is not None]
            count = count_composition(messages, ask.composition or Composition())
            answer = CallbackAnswered(run=RUN, token=ask.token, name=ask.name, count=count)
            self.world.at(self.counting, lambda: self.world.send(ask.reply_to, answer))

    def take(self, answer: AnyMessage) -> None:
        """Note an answer, as a run's handle does."""
        self.answer = answer
        match answer:
            case StepCompiled():
                self.handle = self.handle.acknowledge(answer.sequence, answer.count, answer.chain)
                self.compiled = answer
                self.acknowledged.append(acknowledged(answer))
            case Recorded():
                self.handle = self.handle.acknowledge(answer.sequence, answer.count, answer.chain)
                self.recorded.append(answer)
            case WorkingMemoryState():
                self.handle = self.handle.see_memory(answer.sequence)
                self.revision = 0 if answer.snapshot is None else answer.snapshot.revision
                if answer.status == "applied":
                    self.patched.append((answer.command, answer.sequence))
            case ErrorReply(code=code, message=message):
                assert code in ALLOWED, f"{code}: {message}"
                if code in {"conflict", "stale_step", "deadline_exceeded"}:
                    self.handle = self.handle.rebase(*read_messages(self.world, RUN))
            case _:
                raise AssertionError(f"an answer of type {type(answer).__name__}")

"""Simulated clients: scripts of commands over the real retry machine and the real run handle."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import msgspec

from contextbus.actors import client as retry
from contextbus.client.sending import CommandHead
from contextbus.core.handle import RunHandle
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.chat import ChatMessage, ToolCall, ToolResult, assistant, user
from contextbus_protocol.chat import Text as TextPart
from contextbus_protocol.commands import (
    AnyCommand,
    AppendMessages,
    CancelCommand,
    CompileStep,
    CreateWorkingMemory,
    ErrorReply,
    PatchWorkingMemory,
    Recorded,
    ReportStep,
    RequestRefresh,
    StepCompiled,
    WorkingMemoryState,
)
from contextbus_protocol.events import HistoryReplaced, MessagesAppended
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import Model, RefreshOptions, Scope, StepOptions, Usage
from contextbus_protocol.working_memory import (
    AddHypothesis,
    AddObservation,
    SetActiveTask,
    SetGoal,
    Task,
    TaskList,
    TasksInput,
    WorkingMemoryPatch,
)
from tests.simulation.callbacks import answer_question, draw_names
from tests.simulation.sources import SOURCES
from tests.simulation.world import TENANT, World

SECONDS: Final = (0.3, 1.0, 3.0)
"""The times that a client may give its commands, in simulated seconds: short ones make attempts overlap."""

MODEL = Model("anthropic", "claude-opus-4-6", 20_000, 2_000)


class Acknowledged(msgspec.Struct, frozen=True):
    """A step that a client was told is stored."""

    command: str
    sequence: int
    commit: str
    reference: str
    package: str
    stored: bool
    options: StepOptions | None
    prepared: tuple[ChatMessage, ...] | None
    tools: str | None


class Client:
    """One client of one run; it sends its next command once the one before is answered or given up."""

    def __init__(self, world: World, name: str, run: str, steps: int) -> None:
        self.world = world
        self.name = name
        self.run = run
        self.left = steps
        self.handle = RunHandle()
        self.acknowledged: list[Acknowledged] = []
        self.recorded: list[Recorded] = []
        self.rewrites: set[str] = set()
        self.revision = 0
        self.patched: list[tuple[str, int]] = []
        self.errors: dict[str, int] = {}
        self.compiled: StepCompiled | None = None
        self._random = random.Random(f"{world.random.random()}/{name}")
        self._seconds = self._random.choice(SECONDS)
        self._asking: retry.Asking | None = None
        self._serial = 0
        self._wake = 0
        self._words = 0
        self._step_seen = 0
        self._rewriting = False
        self._last: CompileStep | None = None
        self._expected: type[AnyMessage] | None = None
        world.receivers[name] = self

    def start(self) -> None:
        """Send the first command."""
        self.world.at(self._random.random() * 0.01, self._next)

    @property
    def is_done(self) -> bool:
        """Whether every command was answered or given up."""
        return self.left <= 0 and self._asking is None

    # -- the script

    def _next(self) -> None:
        if self.left <= 0:
            return
        self._serial += 1
        draw = self._random.random()
        if self._serial == 1:
            self._ask(self._create(), "working-memory")
        elif self.compiled is not None and draw < 0.7:
            self._ask(self._report(self.compiled), "selection")
        elif draw < 0.78:
            self._ask(self._patch(), "working-memory")
        elif draw < 0.82 and self.handle.seen:
            self._ask(RequestRefresh(**self._head()), "selection")
        elif draw < 0.84 and self._last is not None:
            self._ask(self._used_again(self._last), "selection")
        elif draw < 0.88:
            self.handle = self.handle.append((assistant(self._text()),))
            append = AppendMessages(**self._head(), scope=self._scope(), history=self.handle.new_messages())
            self._ask(append, "selection")
        else:
            self.left -= 1
            self._last = self._step()
            self._ask(self._last, "selection")

    def _used_again(self, last: CompileStep) -> CompileStep:
        """The last step's command once more: as it was, or its id for something else."""
        again = msgspec.structs.replace(last, seen=self.handle.seen, seen_memory=self.handle.seen_memory)
        if self._random.random() < 0.5:
            return again
        return msgspec.structs.replace(
            again, user_text=last.user_text + " and more", history=self.handle.new_messages()
        )

    def _head(self) -> CommandHead:
        return CommandHead(
            run=self.run,
            tenant=TENANT,
            command=f"{self.run}/{self.name}/{self._serial}",
            attempt=1,
            reply_to=self.world.inbox(self.name),
            seconds_left=self._seconds,
            now=1_700_000_000_000 + int(self.world.now * 1000),
            seen=self.handle.seen,
            seen_memory=self.handle.seen_memory,
        )

    def _scope(self) -> Scope:
        return Scope(user_id="ada")

    def _text(self) -> str:
        self._words += 1
        return f"{self.name} says {self._words} " + "something " * self._random.randrange(6)

    def _messages(self) -> tuple[ChatMessage, ...]:
        draw = self._random.random()
        if draw < 0.15:
            return ()
        if draw < 0.7:
            return (user(self._text()),)
        if draw < 0.75:
            return (user("   "),)
        call = f"call-{self._words}"
        return (
            ChatMessage(role="assistant", content=(ToolCall(id=call, name="look", arguments='{"a":1}'),)),
            ChatMessage(role="tool", content=(ToolResult(id=call, content=(TextPart(text=self._text()),)),)),
        )

    def _step(self) -> CompileStep:
        draw = self._random.random()
        if draw < 0.06 and self.handle.history.count > 2:
            kept = [e.message for e in self.handle.history[: self.handle.history.count - 2]]
            self._rewriting = True
            rewritten = [m for m in kept if m is not None] + [user(self._text())]
            self.handle = self.handle.hand_over(rewritten)
        else:
            self.handle = self.handle.append(self._messages())
        head = self._head()
        return CompileStep(
            **head,
            callbacks=draw_names(head["command"], self.world.faults.callback),
            history=self.handle.new_messages(),
            user_text=self.handle.history.user_text,
            options=StepOptions(
                scope=self._scope(),
                model=MODEL if draw < 0.95 else Model("anthropic", "claude-opus-4-6", 4_000, 3_900),
                sources=SOURCES,
                refresh=RefreshOptions(min_steps=2, max_passes=30, candidates_per_source=6),
            ),
            refresh=self._random.random() < 0.3,
            step=self._number(),
        )

    def _number(self) -> int | None:
        """The number that a client may give its step: none, the next, the same, one that is over, one further on."""
        if self._random.random() < 0.6:
            return None
        return max(0, self._step_seen + self._random.choice((-1, 0, 1, 1, 1, 2)))

    def _report(self, compiled: StepCompiled) -> ReportStep:
        self.compiled = None
        succeeded = self._random.random() < 0.8
        if succeeded:
            self.handle = self.handle.append((assistant(self._text()),))
        return ReportStep(
            **self._head(),
            step=compiled.step,
            status="succeeded" if succeeded else "failed",
            history=self.handle.new_messages() if succeeded else None,
            usage=Usage(100, 10),
        )

    def _create(self) -> CreateWorkingMemory:
        tasks = TaskList("ship", (Task("a", "Deploy billing"), Task("b", "Tell support")))
        return CreateWorkingMemory(
            **self._head(),
            scope="acme",
            goal="Deploy the billing service.",
            constraints=("No deploys on Friday.",),
            tasks=TasksInput(tasks, "a"),
        )

    def _patch(self) -> PatchWorkingMemory:
        head = self._head()
        choices = (
            AddObservation(text=self._text()),
            AddHypothesis(text=self._text()),
            SetActiveTask(id=self._random.choice(("a", "b", None))),
            SetGoal(text=self._text()),
        )
        operation = self._random.choice(choices)
        patch = WorkingMemoryPatch(
            operation_id=head["command"],
            expected_revision=self.revision,
            writer="host",
            operations=(operation,),
        )
        return PatchWorkingMemory(**head, patch=patch)

    # -- the retry machine

    def _ask(self, command: AnyCommand, actor: subjects.ActorName) -> None:
        self._actor: subjects.ActorName = actor
        match command:
            case CompileStep():
                self._expected = StepCompiled
            case CreateWorkingMemory() | PatchWorkingMemory():
                self._expected = WorkingMemoryState
            case _:
                self._expected = Recorded
        if self._rewriting:
            self.rewrites.add(command.command)
        self._operate(*retry.begin(command))
        if self._random.random() < 0.05:
            self.world.at(self._random.random() * 0.02, lambda: self._cancel(command))

    def _cancel(self, command: AnyCommand) -> None:
        """Give a command up and go on; what is committed stays (D.W.5)."""
        if self._asking is None or self._asking.command.command != command.command:
            return
        self._asking = None
        cancel = CancelCommand(run=self.run, tenant=TENANT, command=command.command)
        self.world.send(subjects.command(self._actor, TENANT), cancel)
        self._read_again()
        self.world.at(self._random.random() * 0.01, self._next)

    def receive(self, message: AnyMessage) -> None:
        """Take an answer, or a question to a function; one of an earlier command changes nothing."""
        asking = self._asking
        if asking is None or getattr(message, "command", None) != asking.command.command:
            return
        if isinstance(message, AskCallback):
            for delay, answer in answer_question(message, self.world.random, self.world.faults.source):
                self.world.at(delay, partial(self.world.send, message.reply_to, answer))
            return
        self._operate(*retry.advance(asking, retry.Answered(message)))

    def _operate(self, asking: retry.Asking, operation: retry.Operation) -> None:
        self._asking = asking
        match operation:
            case retry.Transmit(command, wake_after):
                self.world.send(subjects.command(self._actor, TENANT), command)
                self._sleep(wake_after)
            case retry.WakeAfter(seconds):
                self._sleep(seconds)
            case retry.Resolve(answer):
                self._asking = None
                self._settle(answer)
            case None:
                pass

    def _sleep(self, seconds: float) -> None:
        self._wake += 1
        wake = self._wake

        def silent() -> None:
            if self._asking is not None and wake == self._wake:
                self._operate(*retry.advance(self._asking, retry.Silent()))

        self.world.at(seconds, silent)

    def _settle(self, answer: AnyMessage) -> None:
        expected = self._expected
        assert expected is not None
        assert isinstance(answer, ErrorReply | expected), f"{type(answer).__name__} for a {expected.__name__}"
        assert not isinstance(answer, ErrorReply) or answer.code != "internal", answer.message
        match answer:
            case StepCompiled():
                self.handle = self.handle.acknowledge(answer.sequence, answer.count, answer.chain)
                self.compiled = answer
                self._step_seen = answer.step
                self.acknowledged.append(
                    Acknowledged(
                        answer.command,
                        answer.sequence,
                        answer.commit,
                        answer.reference,
                        answer.package,
                        answer.stored,
                        answer.options,
                        answer.prepared,
                        answer.tools,
                    )
                )
            case Recorded():
                self.handle = self.handle.acknowledge(answer.sequence, answer.count, answer.chain)
                self.recorded.append(answer)
            case WorkingMemoryState():
                self.handle = self.handle.see_memory(answer.sequence)
                revision = 0 if answer.snapshot is None else answer.snapshot.revision
                if answer.status == "applied":
                    self.patched.append((answer.command, answer.sequence))
                self.revision = revision
            case ErrorReply():
                self.errors[answer.code] = self.errors.get(answer.code, 0) + 1
                if answer.code in {"conflict", "stale_step", "deadline_exceeded"}:
                    self._read_again()
            case _:
                raise AssertionError(f"an answer of type {type(answer).__name__}")
        self._rewriting = self._rewriting and self.handle.kept < self.handle.base_count
        self.world.at(self._random.random() * 0.01, self._next)

    def _read_again(self) -> None:
        """Read the run from the log, as a client does that others overtook."""
        self._rewriting = False
        messages, sequence = read_messages(self.world, self.run)
        self.handle = self.handle.rebase(messages, sequence)


def read_messages(world: World, run: str) -> tuple[list[ChatMessage], int]:
    """All source messages that the log of a run holds, and the sequence of its last commit."""
    messages: list[ChatMessage] = []
    last = 0
    for sequence, data in world.server.records(subjects.log(TENANT, run, "run")):
        last = sequence
        for event in codec.decode_commit(data).events:
            if isinstance(event, HistoryReplaced):
                del messages[event.keep :]
            elif isinstance(event, MessagesAppended):
                messages.extend(blobs.decode_input(world.server.blobs[run, event.inputs]).messages)
    return messages, last

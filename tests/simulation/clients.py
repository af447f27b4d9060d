"""Simulated clients: scripts of commands over the real retry machine and the real run handle."""

from __future__ import annotations

import random
from functools import partial
from typing import Final, Literal

import msgspec

from contextbus.client.sending import CommandHead
from contextbus.core.handle import RunHandle
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.commands import (
    AnyCommand,
    AppendMessages,
    CompileStep,
    CreateWorkingMemory,
    ErrorReply,
    OverflowStep,
    PatchWorkingMemory,
    Recorded,
    ReportStep,
    RequestRefresh,
    StepCompiled,
    WorkingMemoryState,
)
from contextbus_protocol.events import HistoryCleared, HistoryReplaced, MessagesAppended
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import EstimatorSpec, Scope, StepOptions
from contextbus_protocol.working_memory import WorkingMemoryPatch
from tests.simulation import scripts
from tests.simulation.asking import Asker
from tests.simulation.world import TENANT, World

SECONDS: Final = (0.3, 1.0, 3.0)
"""The times that a client may give its commands, in simulated seconds: short ones make attempts overlap."""


class Acknowledged(msgspec.Struct, frozen=True):
    """A step that a client was told is stored."""

    command: str
    sequence: int
    commit: str
    reference: str
    package: str
    stored: bool
    blocks: str
    stale_thinking: tuple[tuple[int, int], ...]
    checkpoint: str


def acknowledged(answer: StepCompiled) -> Acknowledged:
    """What a client remembers of an answer."""
    return Acknowledged(
        answer.command,
        answer.sequence,
        answer.commit,
        answer.reference,
        answer.package,
        answer.stored,
        answer.blocks,
        answer.stale_thinking,
        answer.checkpoint,
    )


class Client(Asker):
    """One client of one run; it sends its next command once the one before is answered or given up."""

    def __init__(self, world: World, name: str, run: str, steps: int) -> None:
        super().__init__(world, name)
        self.run = run
        self.left = steps
        self.handle = RunHandle()
        self.acknowledged: list[Acknowledged] = []
        self.recorded: list[Recorded] = []
        self.rewrites: set[str] = set()
        self.revision = 0
        self.patched: list[tuple[str, int]] = []
        self.errors: dict[str, int] = {}
        self.functions: dict[str, tuple[CallbackName, ...]] = {}
        self.prompts: dict[str, PromptParts | None] = {}
        self.given: dict[str, list[CallbackAnswered]] = {}
        self.compiled: StepCompiled | None = None
        self._random = random.Random(f"{world.random.random()}/{name}")
        self._seconds = self._random.choice(SECONDS)
        self._serial = 0
        self._words = 0
        self._step_seen = 0
        self._rewriting = False
        self._overflowed: int | None = None
        self._last: CompileStep | None = None
        self._expected: type[AnyMessage] | None = None

    def start(self) -> None:
        """Send the first command."""
        self.world.at(self._random.random() * 0.01, self._next)

    @property
    def is_done(self) -> bool:
        """Whether every command was answered or given up."""
        return self.left <= 0 and self.asking is None

    # -- the script

    def _next(self) -> None:
        if self.left <= 0:
            return
        self._serial += 1
        draw = self._random.random()
        if self._serial == 1:
            self._ask(self._create())
        elif self._overflowed is not None and draw < 0.8:
            self._ask(self._overflow(self._overflowed))
        elif self.compiled is not None and draw < 0.7:
            self._ask(self._report(self.compiled))
        elif self.compiled is not None and draw < 0.76:
            self._ask(self._overflow(self.compiled.step))
        elif draw < 0.78:
            self._ask(self._patch())
        elif draw < 0.82 and self.handle.seen:
            self._ask(RequestRefresh(**self._head()))
        elif draw < 0.84 and self._last is not None:
            self._ask(self._used_again(self._last))
        elif draw < 0.88:
            self.handle = self.handle.append((assistant(self._text()),))
            self._ask(self._append())
        else:
            self.left -= 1
            self._last = self._step()
            self._ask(self._last)

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

    def _text(self) -> str:
        self._words += 1
        return scripts.text_of(self._random, self.name, self._words)

    def _messages(self) -> tuple[ChatMessage, ...]:
        self._words += 1
        return scripts.messages_of(self._random, self.name, self._words)

    def _append(self) -> AppendMessages:
        estimator = EstimatorSpec(calibrate=self.run == scripts.CALIBRATES)
        history = self.handle.new_messages()
        return AppendMessages(**self._head(), scope=Scope(user_id="ada"), estimator=estimator, history=history)

    def _step(self) -> CompileStep:
        self._overflowed = None
        count = self.handle.history.count
        if self._random.random() < 0.08 and count > 2:
            kept = [e.message for e in self.handle.history[: self._random.choice((count - 2, count - 1, count // 2))]]
            self._rewriting = True
            rewritten = [m for m in kept if m is not None] + [user(self._text())]
            self.handle = self.handle.hand_over(rewritten)
        else:
            self.handle = self.handle.append(self._messages())
        return CompileStep(
            **self._head(),
            history=self.handle.new_messages(),
            user_text=self.handle.history.user_text,
            options=self._options(),
            refresh=self._random.random() < 0.3,
            step=self._number(),
            callbacks=self._callbacks(),
            prompt=scripts.prompt_of(self._random, self._text()),
        )

    def _options(self) -> StepOptions:
        return scripts.options_of(self._random, self.run)

    def _callbacks(self) -> tuple[CallbackName, ...]:
        return scripts.callbacks_of(self._random)

    def _number(self) -> int | None:
        """The number that a client may give its step: none, the next, the same, one that is over, one further on."""
        if self._random.random() < 0.6:
            return None
        return max(0, self._step_seen + self._random.choice((-1, 0, 1, 1, 1, 2)))

    def _overflow(self, step: int) -> OverflowStep:
        self._overflowed = None
        limit = self._random.choice((None, None, 2_000, 100))
        return OverflowStep(**self._head(), step=step, input_tokens=limit)

    def _report(self, compiled: StepCompiled) -> ReportStep:
        self.compiled = None
        draw = self._random.random()
        status: Literal["succeeded", "overflow", "failed"] = (
            "succeeded" if draw < 0.75 else "overflow" if draw < 0.85 else "failed"
        )
        if status == "succeeded":
            self.handle = self.handle.append((scripts.answer_of(self._text()),))
        elif status == "overflow":
            self._overflowed = compiled.step
        return ReportStep(
            **self._head(),
            step=compiled.step,
            status=status,
            history=self.handle.new_messages() if status == "succeeded" else None,
            usage=scripts.usage_of(self._random),
        )

    def _create(self) -> CreateWorkingMemory:
        return CreateWorkingMemory(
            **self._head(),
            scope="acme",
            goal="Deploy the billing service.",
            constraints=("No deploys on Friday.",),
            tasks=scripts.tasks(),
        )

    def _patch(self) -> PatchWorkingMemory:
        head = self._head()
        patch = WorkingMemoryPatch(
            operation_id=head["command"],
            expected_revision=self.revision,
            writer="host",
            operations=(scripts.operation_of(self._random, self._text()),),
        )
        return PatchWorkingMemory(**head, patch=patch)

    # -- answers

    def _ask(self, command: AnyCommand) -> None:
        match command:
            case CompileStep() | OverflowStep():
                self._expected = StepCompiled
                self.prompts[command.command] = command.prompt if isinstance(command, CompileStep) else None
                self.functions[command.command] = command.callbacks if isinstance(command, CompileStep) else ()
            case CreateWorkingMemory() | PatchWorkingMemory():
                self._expected = WorkingMemoryState
            case _:
                self._expected = Recorded
        if self._rewriting:
            self.rewrites.add(command.command)
        self.ask(command, self._take)
        if self._random.random() < 0.05:
            self.world.at(self._random.random() * 0.02, lambda: self._cancel(command))

    def _cancel(self, command: AnyCommand) -> None:
        """Give a command up and go on; what is committed stays (D.W.5)."""
        if self.asking is None or self.asking.command.command != command.command:
            return
        self.give_up()
        self._read_again()
        self.world.at(self._random.random() * 0.01, self._next)

    def answer_callback(self, ask: AskCallback) -> None:
        """Answer for the host: mostly once, at times late, twice, never, or with a failure."""
        for delay, answer in scripts.answer_callback(ask, self.run, self._random, self.world.faults.callback):
            self.world.at(delay, partial(self.world.send, ask.reply_to, answer))
            if (answer.name, answer.token) == (ask.name, ask.token):
                self.given.setdefault(ask.command, []).append(answer)

    def _take(self, answer: AnyMessage) -> None:
        expected = self._expected
        assert expected is not None
        assert isinstance(answer, ErrorReply | expected), f"{type(answer).__name__} for a {expected.__name__}"
        assert not isinstance(answer, ErrorReply) or answer.code != "internal", answer.message
        match answer:
            case StepCompiled():
                self.handle = self.handle.acknowledge(answer.sequence, answer.count, answer.chain)
                self.compiled = answer
                self._step_seen = answer.step
                self.acknowledged.append(acknowledged(answer))
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
            elif isinstance(event, HistoryCleared):
                messages.clear()
            elif isinstance(event, MessagesAppended):
                messages.extend(blobs.decode_input(world.server.blobs[run, event.inputs]).messages)
    return messages, last

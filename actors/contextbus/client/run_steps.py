"""What the calls of a run around its model calls are made of: its options, its open step, the way to an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from contextbus.client.callbacks import Callbacks
from contextbus.client.compaction_log import CompactionTeller
from contextbus.client.compiled import CompiledStep
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.reading import read_blobs
from contextbus.client.run_options import OpenBus, RunOptions
from contextbus.client.run_requests import RunRequests
from contextbus.client.sending import Sender
from contextbus.client.step_hooks import StepHooks
from contextbus.client.working_memory import RunWorkingMemory
from contextbus.core.run import find_command
from contextbus.core.run_state import LastStep, RunState
from contextbus.core.targets.tools import tools_text
from contextbus.runtime.clock import SystemClock
from contextbus.runtime.telemetry import report_compile
from contextbus.runtime.telling import tell_warnings
from contextbus_protocol.blobs import decode_layer
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import (
    StepCompiled,
)
from contextbus_protocol.errors import (
    ContextBusError,
    HookFailedError,
    NotFoundError,
    SourceFailedError,
    SummariserFailedError,
)
from contextbus_protocol.package import ContextWarning, Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

_clock = SystemClock()


class RunSteps(RunRequests):
    """The part of a run that its steps share."""

    def __init__(self, bus: OpenBus, run: str, options: RunOptions) -> None:
        super().__init__(bus.driver, run, Sender(bus.host, bus.tenant, run))
        self.scope = options.scope
        self.sources = options.sources
        self._bus = bus
        self._options = options
        self.working_memory = RunWorkingMemory(self._sender)
        self._teller = CompactionTeller(bus.driver, run, options.compaction)
        self._open: CompiledStep | None = None
        self._reported: int | None = None  # the step whose report was not acknowledged yet
        self._compiled: CompiledStep | None = None  # the last one, which an overflow may have compiled again

    @property
    def messages(self) -> tuple[object, ...]:
        """The source messages that this client knows of."""
        return tuple(self._sender.handle.history.messages())

    @property
    def state(self) -> RunState:
        """The run as its log said when it was read last."""
        return self._history.content.state

    async def load(self, at_least: int = 0) -> None:
        """Read the run from the log; messages that were not handed over yet stay behind what is read.

        Raises:
            DeadlineExceededError: log or store do not answer.
            NotFoundError: messages of the run are no longer stored.
        """
        first = not self.state.sequence
        await self._history.load(at_least)
        if first:
            self._teller.sequence = self.state.sequence

    def append(self, *messages: GivenMessage) -> None:
        """Add source messages to the history: user input, tool results, answers.

        They travel with the next step; nothing is sent now.

        Raises:
            InvalidTypeError: a message cannot be read; the text names it.
        """
        self._history.append(read_given(messages))

    def _model_of(self, step: int) -> Model | None:
        """The model of the open step: of this client's, or after a restart of the log's (D.W.1)."""
        if self._open is not None:
            return self._open.model
        last = self.state.last
        return last.options.model if last is not None and last.step == step else None

    def _is_recorded(self, command: str, status: str) -> bool:
        """Whether the log was read since a report whose acknowledgement was lost, and holds it with its messages."""
        last = self.state.last
        return last is not None and last.status == status and find_command(self.state, command) is not None

    def _open_number(self) -> int | None:
        """The log's last step, if it is open and nothing came after what was read, or its report is on its way."""
        state = self.state
        is_open = state.last is not None and state.last.status == "open" and state.sequence == self._sender.handle.seen
        return state.last.step if is_open and state.last is not None else self._reported

    def _last_step(self) -> int:
        """The number of the step whose model call made a tool call or overflowed, also after a restart."""
        if self._compiled is not None:
            return self._compiled.step
        last = self.state.last
        return 0 if last is None else last.step

    def _callbacks(self, hooks: StepHooks | None) -> Callbacks:
        """What answers for the host's functions while a step is compiled; its hooks are not run again (D.I.5)."""
        answerers = self._options.compaction_answerers()
        if hooks is not None:
            answerers.update(hooks.answerers())
        return Callbacks(self._bus.host, self.id, answerers, self._history.view)

    async def _await_step(self, asked: Awaitable[StepCompiled], command: str, callbacks: Callbacks) -> StepCompiled:
        """A step's answer; what it failed with has the original exception as its cause in one process (D.W.2)."""
        try:
            answer = await asked
        except ContextBusError as exc:
            await self._teller.tell(command)
            if isinstance(exc, SourceFailedError | SummariserFailedError):
                raise exc from self._bus.failure_of(self.id, exc.origin) or callbacks.error
            if isinstance(exc, HookFailedError):
                raise exc from callbacks.error
            raise
        except BaseException:
            self._teller.expect()
            raise
        finally:
            callbacks.close()
            self._bus.note_over(self.id, command)
        await self._teller.tell_step(command, answer, self._sender.handle.history)
        return answer

    async def _read_layer(self, last: LastStep) -> PromptParts | None:
        """What the prompt of the log's last step put beside its tail, after a restart."""
        reference = None if last.prompt is None else last.prompt.layer
        if reference is None:
            return None
        data = (await read_blobs(self._driver, self.id, (reference,))).get(reference)
        if data is None:
            raise NotFoundError("the system layer of the run's last step is no longer stored; compile the step anew")
        return decode_layer(data).parts

    async def _take_step(
        self, answer: StepCompiled, model: Model, tools: str | None, prompt: PromptParts | None
    ) -> CompiledStep:
        package = decode_json(answer.package, Package)
        rendered = await self._history.take_step(answer, package)
        self._commands.clear()
        self._reported = None
        self._open = self._compiled = CompiledStep(
            run=self.id,
            step=answer.step,
            command=answer.command,
            sequence=answer.sequence,
            commit=answer.commit,
            reference=answer.reference,
            text=answer.package,
            package=package,
            model=model if answer.options is None else answer.options.model,
            tools=tools if answer.tools is None else tools_text(answer.tools),
            stored=answer.stored,
            durability=answer.durability,
            histories=rendered,
            codes=answer.warnings,
            prompt=prompt,
        )
        return self._open

    async def _tell(self, compiled: CompiledStep, warnings: Iterable[ContextWarning], seconds: float) -> None:
        """Tell observer and host of a step that was compiled now; their failure changes nothing (D.S.5, D.W.4)."""
        if not compiled.stored:
            report_compile(self._bus.observer, compiled.manifest, seconds)
            await tell_warnings(self._options.on_warning, warnings, run=self.id, step=compiled.step)

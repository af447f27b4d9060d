"""A run as its client holds it: compile before each model call, report after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from contextbus.client.compiled import CompiledStep, Tools
from contextbus.client.evidence import read_evidence
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.prompt import Prompt, parts_of
from contextbus.client.report import Report, read_report
from contextbus.client.run_steps import RunSteps
from contextbus.client.sending import DEFAULT_SECONDS, new_id
from contextbus.client.snapshot_tools import WorkingMemoryTools
from contextbus.client.step_hooks import StepHooks
from contextbus.core.budget import require_count
from contextbus.core.targets.tools import tools_text
from contextbus.core.working_memory_tools import DEFAULT_PREFIX
from contextbus.runtime.clock import SystemClock
from contextbus_protocol.commands import (
    CompileStep,
    OverflowStep,
    Recorded,
    ReportStep,
    StepCompiled,
)
from contextbus_protocol.errors import (
    InvalidRequestError,
    InvalidTypeError,
)
from contextbus_protocol.package import ContextWarning
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

_clock = SystemClock()


class Run(RunSteps):
    """One run; made by ``ContextBus.run``.  ``working_memory`` creates, patches and reads its working memory.

    Calls of one run are made one after the other; several clients may hold the same run.
    """

    async def before_model_call(
        self,
        messages: Sequence[GivenMessage] | None = None,
        *,
        model: Model,
        step: int | None = None,
        overhead_tokens: int | None = None,
        tools: Tools = None,
        prompt: Prompt | PromptParts | None = None,
        output_schema: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
        refresh: bool = False,
        estimator_kind: str | None = None,
        seconds: float = DEFAULT_SECONDS,
        command: str | None = None,
    ) -> CompiledStep:
        """Compile the context of the next model call (D.R.0, D.W.7).

        Args:
            messages: the whole history; without it what was appended, or in a new run the prompt's.  A list that is
                handed over again is compared with what is known of it, and only what is behind is read: 1-2 ns a
                message of ours, about 100 ns a provider's dict, which may be changed in between.
            model: the model that will be called.
            step: the step's number; without it the run's next.
            overhead_tokens: tokens of tool schemas, output schema and framing; counted from ``tools`` and
                ``output_schema`` when not given (D.M.15).
            tools: the tool definitions of the call; by default the prompt's.
            prompt: what the request holds beside the history: system messages, state, guardrails (P.A.3).
            output_schema: the JSON Schema of the answer.
            settings: what else the request is sent with, such as provider options, tool choice, active tools: a
                measured count holds only as long as they are the same (C.M.3).
            refresh: ask the sources again with this step (D.G.5).
            estimator_kind: a label for the manifest (D.M.16).
            seconds: how long an attempt may take.
            command: an id to ask for the same step again without a second effect.

        Raises:
            ContextBudgetExceededError: mandatory content does not fit (D.B.15).
            SourceFailedError: a required source failed; the source's own exception is its cause in one process.
            SummariserFailedError: no summary came that can be used, and the run stops for that (C.K.4).
            RequestOverheadError: what is sent beside the messages leaves no room under the target (C.J.5).
            InvalidRequestError: the prompt has a history and the run another.
            HookFailedError: a function of the host failed; what it raised is the cause (D.W.4).
            CallbackTimeoutError: it gave nothing within four fifths of ``seconds``.
            StaleStepError: the run already has this step or a later one.
            ScopeConflictError: the scope lies outside the run's pinned one.
            PayloadTooLargeError: the new messages are larger than the store takes at once (64 MiB): append and flush
                fewer of them.
            DeadlineExceededError: no answer came; the same ``command`` may be sent again.
        """
        parts = parts_of(prompt)
        if isinstance(prompt, Prompt):
            if messages is None and prompt.messages:
                if self._sender.handle.history.count and self._sender.handle.history.messages() != [*prompt.messages]:
                    raise InvalidRequestError(
                        "the run has a history of its own: hand messages over, or leave the prompt without a history"
                    )
                messages = prompt.messages
            tools = prompt.definitions if tools is None else tools
        definitions = tools_text(tools)
        counter = partial(self._options.count_overhead, self._bus.tokenizers, output_schema)
        count = None if overhead_tokens is not None else counter
        if overhead_tokens is None:
            overhead_tokens = counter(definitions, model.provider)
        options = self._options.step_options(
            model,
            overhead_tokens,
            definitions,
            output_schema=output_schema,
            settings=settings,
            estimator_kind=estimator_kind,
        )
        hooks = StepHooks(
            model=model,
            functions=self._options.hooks,
            tools=definitions,
            count_overhead=count,
            prompt=parts,
            state=prompt.state_value if isinstance(prompt, Prompt) else None,
        )
        taken = None if messages is None else self._history.hand_over(messages)
        callbacks = self._callbacks(hooks)
        command = command or new_id()
        begin = _clock.elapsed()
        await self._history.make_room(self._options, seconds)

        def make() -> CompileStep:
            if taken is not None:
                self._history.hand_over_again(taken)
            return CompileStep(
                **self._sender.head(command, seconds + self._options.summary_seconds),
                step=step,
                history=self._sender.handle.new_messages(),
                user_text=self._sender.handle.history.user_text,
                options=options,
                refresh=refresh,
                callbacks=callbacks.names,
                parent=self._options.parent,
                instructions=self._options.instructions,
                summary_seconds=self._options.summary_seconds,
                prompt=parts,
            )

        asked = self._sender.race(make, StepCompiled, self.load, callbacks.take)
        answer = await self._await_step(asked, command, callbacks)
        compiled = await self._take_step(answer, model, definitions, parts)
        await self._tell(compiled, compiled.warnings, _clock.elapsed() - begin)
        return compiled

    async def on_overflow(
        self, input_tokens: int | None = None, *, seconds: float = DEFAULT_SECONDS, command: str | None = None
    ) -> CompiledStep:
        """Compile the last step again for less, after the provider refused its request as too large (D.I.1, D.R.6).

        No source is asked; what was retrieved for the step competes for the smaller room.  The history is never cut:
        where it alone is over the limit (``manifest.budget.used_tokens > input_tokens``) the request stays as it is,
        and the host hands a shorter list of messages to ``before_model_call``.

        Args:
            input_tokens: the limit that the request must keep to; by default one token below the counted size of the
                request that was too large (D.I.5).
            seconds: how long an attempt may take.
            command: the command's id; without it that of the same call before, if its answer was lost.

        Raises:
            InvalidTypeError: the run has no compiled step (D.I.6), or the limit is no count.
            ContextBudgetExceededError: mandatory content does not fit, phase ``overflow-retry`` (D.I.3).
            StaleStepError: the step's outcome is recorded, or the history went on.
            DeadlineExceededError: no answer came; call it again.
        """
        if input_tokens is not None:
            require_count("input_tokens", input_tokens)
        before, last = self._compiled, self.state.last
        if before is not None:
            model, tools, prompt = before.model, before.tools, before.prompt
        elif last is not None:  # after a restart the log's last step; the texts of its tools are not in it (D.W.1)
            model, tools, prompt = last.options.model, None, await self._read_layer(last)
        else:
            raise InvalidTypeError("no step was compiled; before_model_call comes before on_overflow")
        asks = ("overflow", self._last_step(), input_tokens)
        command = self._commands.id_of(asks, command)
        callbacks = self._callbacks(None)
        begin = _clock.elapsed()
        again = OverflowStep(
            **self._sender.head(command, seconds + self._options.summary_seconds),
            step=self._last_step(),
            input_tokens=input_tokens,
            callbacks=callbacks.names,
            instructions=self._options.instructions,
            summary_seconds=self._options.summary_seconds,
        )
        asked = self._sender.ask("selection", again, StepCompiled, callbacks.take)
        answer = await self._await_step(asked, command, callbacks)
        compiled = await self._take_step(answer, model, tools, prompt)
        codes = map(ContextWarning, compiled.codes)  # of a source that failed the host was told when it was asked
        await self._tell(compiled, codes, _clock.elapsed() - begin)
        return compiled

    async def after_model_call(
        self, report: Report, *, seconds: float = DEFAULT_SECONDS, command: str | None = None
    ) -> None:
        """Record how the model call of the last step went; on success its block joins the history (D.F.13, D.R.4).

        Args:
            report: how it went.
            seconds: how long an attempt may take.
            command: the command's id; without it that of the step's report before, if its answer was lost.

        Raises:
            InvalidRequestError: no step is open: none of this client, nor the last one of the log as it was read.
            InvalidTypeError: a field of the report cannot be read; the message names it.
            StaleStepError: the run went on, or the outcome is recorded already.
            CommandMismatchError: the answer to a report was lost, the log has it, and this one says something else.
            DeadlineExceededError: no answer came; report again, without a second effect.
        """
        step = self._open
        number = self._open_number() if step is None else step.step
        if number is None:
            raise InvalidRequestError("no step is open: call before_model_call first")
        succeeded = report.status == "succeeded"
        added = read_given(report.messages) if succeeded else ()
        fields = read_report(report)
        rendered = None if step is None else step.rendered.payload
        evidence = read_evidence(report, added, self._model_of(number), rendered)
        asks, self._reported = ("report", number), number
        command = self._commands.id_of(asks, command)

        def make() -> ReportStep:
            handle = self._sender.handle
            history = handle.new_messages() if handle.history.count > handle.kept else None
            head = self._sender.head(command, seconds)
            return ReportStep(**head, step=number, history=history, **fields, **evidence)

        if not self._is_recorded(command, report.status):
            before = self._sender.handle
            self._history.append(added)
            try:
                answer = await self._sender.race(make, Recorded, self.load)
            except BaseException:
                self._history.take_back(before, len(added))  # the caller reports again, with the messages
                raise
            self._history.acknowledge(answer)
            if step is None:
                await self.load()  # the step was another client's: its block is in the log
            elif succeeded:
                self._history.place(step)
        self._commands.close(asks)
        self._open = self._reported = None

    def working_memory_tools(
        self, *, prefix: str = DEFAULT_PREFIX, agent_path: Sequence[str] = ()
    ) -> WorkingMemoryTools:
        """The model's tools over the run's working memory (D.Q.1); append the assistant's message before calling them.

        Args:
            prefix: what their names begin with.
            agent_path: the agent that may write; others read only (D.Q.10).

        Raises:
            InvalidTypeError: the prefix is no part of a tool's name.
        """
        return self.working_memory.tools(prefix, agent_path, step=self._last_step)

    async def flush(self, *, seconds: float = DEFAULT_SECONDS) -> None:
        """Record appended messages now, without a step.

        Raises:
            ConflictError: others changed the history faster than this could be recorded.
            PayloadTooLargeError: the messages are too large for one commit: flush after fewer of them.
            DeadlineExceededError: no answer came; what the log has by then is not recorded again.
        """
        await self._history.flush(self._options, seconds)

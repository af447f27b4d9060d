"""Functions of the host that a step asks for: run here, answered to the actor that asked (D.W.4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from contextbus.client.compiled import Tools
from contextbus.client.given import GivenMessage, read_given
from contextbus.core.history import SourceHistory, normalise
from contextbus.core.prepared import validate_answer
from contextbus.core.targets.tools import tools_text
from contextbus.runtime.bus import BusUnavailableError
from contextbus.runtime.host import Host
from contextbus.runtime.logs import get_logger
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import encode_message
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import LONGEST_WORD, ContextBusError, InvalidTypeError, word_of
from contextbus_protocol.values import Model

_log = get_logger(__name__)


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a function of the host gets to see of a step: its source messages as this client knows them."""

    run: str
    step: int
    messages: tuple[ChatMessage, ...]
    model: Model


class PreparedStep(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prepare_step`` may change for one step; what is left out stays (D.W.7).

    ``messages`` take the place of the history for this request only; ``tools`` are definitions in any provider's shape.
    """

    messages: Sequence[GivenMessage] | None = None
    model: Model | None = None
    tools: Tools = None
    overhead_tokens: int | None = None


PrepareStep = Callable[[StepContext], "PreparedStep | Awaitable[PreparedStep | None] | None"]
RewriteQuery = Callable[[str, StepContext], "str | Awaitable[str]"]
CountOverhead = Callable[[str | None, str], int]
"""Tokens of tool definitions as JSON text, output schema and framing for a provider."""


class Callbacks:
    """The functions of the host for one command; each is called once, however often actors ask.

    Args:
        host: carries the answers.
        prepare_step: may change messages, model, tools and overhead of the step.
        rewrite_query: makes the query that sources are asked (D.A.9).
        context: the step as the functions see it; its number and messages are filled in when one is asked.
        tools: the tool definitions of the step as JSON text.
        count_overhead: counts the overhead of other tools, or of a model of another provider; None where the caller
            named the overhead.
    """

    def __init__(
        self,
        host: Host,
        prepare_step: PrepareStep | None,
        rewrite_query: RewriteQuery | None,
        context: StepContext,
        tools: str | None = None,
        count_overhead: CountOverhead | None = None,
    ) -> None:
        self.error: BaseException | None = None
        self._tools = tools
        self._count_overhead = count_overhead
        self._host = host
        self._prepare_step = prepare_step
        self._rewrite_query = rewrite_query
        self._context = context
        self._history = SourceHistory()
        self._answers: dict[CallbackName, asyncio.Task[CallbackAnswered]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> tuple[CallbackName, ...]:
        """The functions that there are."""
        names: list[CallbackName] = []
        if self._prepare_step is not None:
            names.append("prepare-step")
        if self._rewrite_query is not None:
            names.append("rewrite-query")
        return tuple(names)

    def see(self, history: SourceHistory) -> None:
        """Note the history that the functions get to see; nothing is made of it before one is asked."""
        self._history = history

    def take(self, question: AskCallback) -> None:
        """Answer a question in a task of its own; of another run, or for a function that is not there, none."""
        if question.run != self._context.run or question.name not in self.names:
            return
        task = asyncio.get_running_loop().create_task(self._answer(question))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        """Stop what still runs: nobody waits for it any more."""
        for task in (*self._sending, *self._answers.values()):
            task.cancel()

    async def _answer(self, question: AskCallback) -> None:
        made = self._answers.get(question.name)
        if made is None:
            made = self._answers[question.name] = asyncio.get_running_loop().create_task(self._make(question))
        answer = msgspec.structs.replace(await asyncio.shield(made), token=question.token)
        error = self._deliver(question, answer)
        if error is not None and answer.code is None:  # such as a value that no message can hold
            self.error = error
            error = self._deliver(question, _failure(question, error))
        if error is not None:
            _log.warning("callback_answer_lost", run=question.run, error=type(error).__name__)

    def _deliver(self, question: AskCallback, answer: CallbackAnswered) -> Exception | None:
        try:
            self._host.deliver(question.reply_to, answer)
        except (BusUnavailableError, ContextBusError) as exc:
            return exc
        return None

    async def _make(self, question: AskCallback) -> CallbackAnswered:
        messages = tuple(m for m in self._history.messages() if m is not None)
        context = msgspec.structs.replace(self._context, step=question.step, messages=messages)
        try:
            if question.name == "prepare-step":
                return await self._prepare(question, context)
            return await self._rewrite(question, context)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.error = exc  # nobody cancels us: the function let out a cancellation of its own
            return _failure(question, exc)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # whatever a function of the host raises is a fact of the step
            self.error = exc
            return _failure(question, exc)

    async def _prepare(self, question: AskCallback, context: StepContext) -> CallbackAnswered:
        given = None if self._prepare_step is None else await _settle(self._prepare_step(context))
        prepared = PreparedStep() if given is None else given
        if not isinstance(prepared, PreparedStep):
            raise InvalidTypeError(f"prepare_step gives a PreparedStep or None, not {type(prepared).__name__}")
        model, overhead = prepared.model, prepared.overhead_tokens
        if model is not None and not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"prepare_step gives a Model, not {type(model).__name__}")
        tools = None if prepared.tools is None else tools_text(prepared.tools) or "[]"
        if overhead is None and self._count_overhead is not None and (tools is not None or model is not None):
            overhead = self._count_overhead(self._tools if tools is None else tools, (model or context.model).provider)
        answer = CallbackAnswered(
            run=question.run,
            token=question.token,
            name=question.name,
            messages=None if prepared.messages is None else tuple(map(normalise, read_given(prepared.messages))),
            model=model,
            overhead_tokens=overhead,
            tools=tools,
        )
        validate_answer(answer)
        encode_message(answer)  # what no bus can carry is a failure of the function, on every bus
        return answer

    async def _rewrite(self, question: AskCallback, context: StepContext) -> CallbackAnswered:
        text: object = question.query
        if self._rewrite_query is not None:
            text = await _settle(self._rewrite_query(question.query, context))
        if not isinstance(text, str):
            raise InvalidTypeError(f"rewrite_query gives a text, not {type(text).__name__}")
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, text=clean_text(text))


def _failure(question: AskCallback, error: BaseException) -> CallbackAnswered:
    """The answer that a function of the host failed: code and type, no text (D.W.2)."""
    return CallbackAnswered(
        run=question.run,
        token=question.token,
        name=question.name,
        code="hook_failed",
        origin_code=word_of(getattr(error, "code", None)),
        origin_type=type(error).__name__[:LONGEST_WORD],
    )


async def _settle(value: object) -> object:
    """What a function gave, awaited if need be; whatever it said that it gives."""
    return await value if inspect.isawaitable(value) else value

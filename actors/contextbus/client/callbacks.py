"""Functions of the host that a step asks for: run here, answered to the actor that asked (D.W.4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from contextbus.client.request_view import RequestView
from contextbus.core.prepared import validate_answer
from contextbus.runtime.bus import BusUnavailableError
from contextbus.runtime.host import Host
from contextbus.runtime.logs import get_logger
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName, HistoryState
from contextbus_protocol.codec import encode_json, encode_message
from contextbus_protocol.errors import LONGEST_WORD, ContextBusError, word_of

Answerer = Callable[[AskCallback, RequestView], Awaitable[CallbackAnswered]]
"""Answers a question for one function, over the request history that it is about."""

ReadView = Callable[[HistoryState | None], Awaitable[RequestView]]
"""Gives the request history that a question is about, read from the log where this client is behind."""

_log = get_logger(__name__)


class Callbacks:
    """The functions of the host for one command; each is called once for a question, however often actors ask.

    Args:
        host: carries the answers.
        run: the run whose questions they answer.
        answerers: the functions that there are, by name.
        read_view: gives the history that a question is about.
    """

    def __init__(self, host: Host, run: str, answerers: Mapping[CallbackName, Answerer], read_view: ReadView) -> None:
        self.error: BaseException | None = None
        self._host = host
        self._run = run
        self._answerers = dict(answerers)
        self._read_view = read_view
        self._answers: dict[object, asyncio.Task[CallbackAnswered]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> tuple[CallbackName, ...]:
        """The functions that there are."""
        return tuple(self._answerers)

    def take(self, question: AskCallback) -> None:
        """Answer a question in a task of its own; of another run, or for a function that is not there, none."""
        if question.run != self._run or question.name not in self._answerers:
            return
        task = asyncio.get_running_loop().create_task(self._answer(question))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        """Stop what still runs: nobody waits for it any more."""
        for task in (*self._sending, *self._answers.values()):
            task.cancel()

    async def _answer(self, question: AskCallback) -> None:
        asks = _asks(question)
        made = self._answers.get(asks)
        if made is None:
            made = self._answers[asks] = asyncio.get_running_loop().create_task(self._make(question))
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
        try:
            answer = await self._answerers[question.name](question, await self._read_view(question.history))
            validate_answer(answer)
            encode_message(answer)  # what no bus can carry is a failure of the function, on every bus
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
        return answer


def _asks(question: AskCallback) -> object:
    """What is asked for: the same question is answered once, whichever actor asks at which state of the log.

    About another request history it is another question: an answer may hold a text that was forgotten since, or lack a
    message that somebody added (D.F.19, D.J.4).
    """
    history = None if question.history is None else msgspec.structs.replace(question.history, sequence=0)
    return encode_json(
        (question.name, question.query, question.trigger, question.composition, question.budget, history)
    )


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


async def settle_value(value: object) -> object:
    """What a function gave, awaited if need be; whatever it said that it gives."""
    return await value if inspect.isawaitable(value) else value

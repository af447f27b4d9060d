"""Calls of workers' functions in this process: whatever they do, exactly one answer comes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

from contextbus.runtime.logs import get_logger
from contextbus.runtime.worker_answers import A, Q, WorkerKind
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.errors import origin_of
from contextbus_protocol.questions import Query

CONCURRENCY = 64

SourceHandler = Callable[[Query], Awaitable[object]]
"""Returns `Offered` or `Failed`; whatever else it returns or raises becomes a failure."""

SummariserHandler = Callable[[Summarise], Awaitable[object]]
"""Returns `Summarised` or `SummaryFailed`; whatever else it returns or raises becomes a failure."""

_log = get_logger(__name__)


class LocalWorker(Generic[Q, A]):
    """One source or summariser and the calls of it that are under way.

    Args:
        kind: Which of the two it is.
        name: Its id.
        handler: Answers a question.  It may raise, hang or return anything.
        concurrency: How many calls may be under way; more are answered with ``busy``.
        keep: Keeps the task of a call until it ends.
    """

    def __init__(
        self,
        kind: WorkerKind[Q, A],
        name: str,
        handler: Callable[[Q], Awaitable[object]],
        concurrency: int,
        keep: Callable[[asyncio.Task[object]], None],
    ) -> None:
        self.kind = kind
        self.name = name
        self._handler = handler
        self._concurrency = concurrency
        self._active = 0
        self._calls: dict[tuple[str, str], _Call[Q, A]] = {}
        self.keep = keep

    def call(self, question: Q, answer: Callable[[A], None]) -> None:
        """Start a call; ``answer`` is called once, in a later turn of the event loop or at once for ``busy``."""
        if self._active >= self._concurrency:
            answer(self.kind.fail(question, "busy"))
            return
        if not question.seconds_left > 0:
            answer(self.kind.fail(question, "timeout"))
            return
        self._active += 1
        call = self._calls[question.run, question.token] = _Call(self, question, answer)
        call.start()

    def cancel(self, run: str, token: str) -> None:
        """Stop the call of a question that nobody waits for any more; it gets no answer (C.F.9, D.W.5)."""
        call = self._calls.get((run, token))
        if call is not None:
            call.cancel()

    async def invoke(self, question: Q) -> object:
        """Call the function; what it returns is not to be trusted."""
        return await self._handler(question)

    def release(self, call: _Call[Q, A]) -> None:
        """Make room for another call."""
        self._active -= 1
        key = call.question.run, call.question.token
        if self._calls.get(key) is call:
            del self._calls[key]

    def judge(self, question: Q, task: asyncio.Task[object]) -> A:
        """Turn what came of a call into an answer."""
        if task.cancelled():
            return self.kind.fail(question, "error", None, "CancelledError")
        error = task.exception()
        if error is not None:
            code, type_ = origin_of(error)
            self._warn("raised", question, error=type_)
            return self.kind.fail(question, "error", code, type_)
        result = self.kind.check(task.result())
        if result is None or not self.kind.fits(question, result):
            self._warn("answered_garbage", question, type=type(task.result()).__name__)
            return self.kind.fail(question, "malformed")
        return result

    def expire(self, question: Q) -> A:
        """Answer for a call that takes too long."""
        self._warn("timed_out", question)
        return self.kind.fail(question, "timeout")

    def _warn(self, what: str, question: Q, **facts: str) -> None:
        word = self.kind.word
        _log.warning(f"{word}_{what}", **{word: self.name}, run=question.run, **facts)


class _Call(Generic[Q, A]):
    """One call: the task of the function, and the timer that answers when it hangs."""

    def __init__(self, worker: LocalWorker[Q, A], question: Q, answer: Callable[[A], None]) -> None:
        self._worker = worker
        self.question = question
        self._answer: Callable[[A], None] | None = answer

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._worker.invoke(self.question))
        self._timer = loop.call_later(self.question.seconds_left, self._expire)
        self._worker.keep(self._task)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        self._answer = None
        self._timer.cancel()
        self._task.cancel()

    def _expire(self) -> None:
        # The answer does not wait for the function: it may swallow its cancellation.
        self._task.cancel()
        self._settle(self._worker.expire(self.question))

    def _finish(self, task: asyncio.Task[object]) -> None:
        self._timer.cancel()
        self._worker.release(self)
        if self._answer is not None:
            self._settle(self._worker.judge(self.question, task))
        elif not task.cancelled():
            task.exception()  # seen, so that the loop does not report it

    def _settle(self, result: A) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(result)

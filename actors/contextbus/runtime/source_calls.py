"""Calls of source functions in this process: whatever they do, exactly one answer comes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from contextbus.core.candidates import CheckedCandidates
from contextbus.runtime.logs import get_logger
from contextbus_protocol import codec
from contextbus_protocol.errors import ContextBusError, origin_of, word_of
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import LONGEST_MODEL, SOURCE_KINDS, SourceSpec, SourceUsage

CONCURRENCY = 64

SourceHandler = Callable[[Query], Awaitable[object]]
"""Returns `Offered` or `Failed`; whatever else it returns or raises becomes a failure."""

Answer = Callable[[Offered | Failed], None]

_log = get_logger(__name__)


class LocalSource:
    """One source and the calls of it that are under way.

    Args:
        spec: The source.
        handler: Finds candidates.  It may raise, hang or return anything.
        concurrency: How many calls may be under way; more are answered with ``busy``.
        keep: Keeps the task of a call until it ends.
    """

    def __init__(
        self, spec: SourceSpec, handler: SourceHandler, concurrency: int, keep: Callable[[asyncio.Task[object]], None]
    ) -> None:
        self.spec = spec
        self._handler = handler
        self._concurrency = concurrency
        self._active = 0
        self.keep = keep

    def call(self, query: Query, answer: Answer) -> None:
        """Start a call; ``answer`` is called once, in a later turn of the event loop or at once for ``busy``."""
        if self._active >= self._concurrency:
            answer(self._failed(query, "busy"))
            return
        if not query.seconds_left > 0:
            answer(self._failed(query, "timeout"))
            return
        self._active += 1
        _Call(self, query, answer).start()

    async def invoke(self, query: Query) -> object:
        """Call the function; what it returns is not to be trusted."""
        return await self._handler(query)

    def release(self) -> None:
        """Make room for another call."""
        self._active -= 1

    def judge(self, query: Query, task: asyncio.Task[object]) -> Offered | Failed:
        """Turn what came of a call into an answer."""
        if task.cancelled():
            return self._failed(query, "error", "CancelledError")
        error = task.exception()
        if error is not None:
            code, kind = origin_of(error)
            _log.warning("source_raised", source=self.spec.id, run=query.run, error=kind)
            return self._failed(query, "error", kind, code)
        result = _checked(task.result())
        if result is None or not fits(query, result):
            _log.warning(
                "source_answered_garbage", source=self.spec.id, run=query.run, type=type(task.result()).__name__
            )
            return self._failed(query, "malformed")
        return result

    def expire(self, query: Query) -> Failed:
        """Answer for a call that takes too long."""
        _log.warning("source_timed_out", source=self.spec.id, run=query.run)
        return self._failed(query, "timeout")

    def _failed(
        self, query: Query, code: str, origin_type: str | None = None, origin_code: str | None = None
    ) -> Failed:
        return Failed(
            run=query.run,
            token=query.token,
            source=self.spec.id,
            code=code,
            origin_type=origin_type,
            origin_code=origin_code,
        )


class _Call:
    """One call: the task of the function, and the timer that answers when it hangs."""

    def __init__(self, source: LocalSource, query: Query, answer: Answer) -> None:
        self._source = source
        self._query = query
        self._answer: Answer | None = answer

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._source.invoke(self._query))
        self._timer = loop.call_later(self._query.seconds_left, self._expire)
        self._source.keep(self._task)
        self._task.add_done_callback(self._finish)

    def _expire(self) -> None:
        # The answer does not wait for the function: it may swallow its cancellation.
        self._task.cancel()
        self._settle(self._source.expire(self._query))

    def _finish(self, task: asyncio.Task[object]) -> None:
        self._timer.cancel()
        self._source.release()
        if self._answer is not None:
            self._settle(self._source.judge(self._query, task))
        elif not task.cancelled():
            task.exception()  # seen, so that the loop does not report it

    def _settle(self, result: Offered | Failed) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(result)


def _checked(result: object) -> Offered | Failed | None:
    """Read an answer as if it had crossed the bus: a Struct made in Python may hold anything."""
    if not isinstance(result, Offered | Failed):
        return None
    if type(result) is Offered and type(result.candidates) is CheckedCandidates and result.kind in SOURCE_KINDS:
        return result  # a handler of ours has looked at every field
    try:
        checked = codec.decode_message(codec.encode_message(result))
    except ContextBusError:
        return None
    if not isinstance(checked, Offered | Failed) or not all(map(_is_model, checked.usage)):
        return None
    if isinstance(checked, Offered):
        return checked
    # What a source calls its failure is a word, or is not told: content must not leak through it.
    return msgspec.structs.replace(
        checked,
        code=word_of(checked.code) or "error",
        origin_code=word_of(checked.origin_code),
        origin_type=word_of(checked.origin_type),
    )


def _is_model(usage: SourceUsage) -> bool:
    return 0 < len(usage.model) <= LONGEST_MODEL and usage.model.isprintable()


def fits(query: Query, answer: Offered | Failed) -> bool:
    """Whether an answer belongs to a query."""
    return answer.run == query.run and answer.token == query.token and answer.source == query.source

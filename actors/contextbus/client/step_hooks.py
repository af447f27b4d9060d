"""What ``prepare_step`` and ``rewrite_query`` make of a step (D.A.9, D.R.2, D.W.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from contextbus.client.callbacks import Answerer, settle_value
from contextbus.client.compiled import Tools
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.request_view import RequestView
from contextbus.core.history import normalise
from contextbus.core.targets.tools import tools_text
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Model


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a function of the host gets to see of a step: its messages as this client knows them, without blocks.

    A compacted history begins with its summary (D.R.3).
    """

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


class StepHooks(msgspec.Struct, frozen=True, kw_only=True):
    """The two functions, and what they are called with.

    ``tools`` are the tool definitions of the step as JSON text.  ``count_overhead`` counts the overhead of other tools,
    or of a model of another provider; None where the caller named the overhead.
    """

    model: Model
    prepare_step: PrepareStep | None = None
    rewrite_query: RewriteQuery | None = None
    tools: str | None = None
    count_overhead: CountOverhead | None = None

    def answerers(self) -> dict[CallbackName, Answerer]:
        """What answers for each of the functions that there are."""
        found: dict[CallbackName, Answerer] = {}
        if self.prepare_step is not None:
            found["prepare-step"] = self._prepare
        if self.rewrite_query is not None:
            found["rewrite-query"] = self._rewrite
        return found

    def _context(self, question: AskCallback, view: RequestView) -> StepContext:
        return StepContext(run=question.run, step=question.step, messages=view.without_blocks(), model=self.model)

    async def _prepare(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        context = self._context(question, view)
        given = None if self.prepare_step is None else await settle_value(self.prepare_step(context))
        prepared = PreparedStep() if given is None else given
        if not isinstance(prepared, PreparedStep):
            raise InvalidTypeError(f"prepare_step gives a PreparedStep or None, not {type(prepared).__name__}")
        model, overhead = prepared.model, prepared.overhead_tokens
        if model is not None and not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"prepare_step gives a Model, not {type(model).__name__}")
        tools = None if prepared.tools is None else tools_text(prepared.tools) or "[]"
        if overhead is None and self.count_overhead is not None and (tools is not None or model is not None):
            overhead = self.count_overhead(self.tools if tools is None else tools, (model or self.model).provider)
        return CallbackAnswered(
            run=question.run,
            token=question.token,
            name=question.name,
            messages=None if prepared.messages is None else tuple(map(normalise, read_given(prepared.messages))),
            model=model,
            overhead_tokens=overhead,
            tools=tools,
        )

    async def _rewrite(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        text: object = question.query
        if self.rewrite_query is not None:
            text = await settle_value(self.rewrite_query(question.query, self._context(question, view)))
        if not isinstance(text, str):
            raise InvalidTypeError(f"rewrite_query gives a text, not {type(text).__name__}")
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, text=clean_text(text))

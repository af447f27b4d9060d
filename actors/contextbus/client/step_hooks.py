"""What the host's functions make of a step before it is compiled (D.A.9, D.R.2, D.W.7, P.D)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import takewhile
from typing import cast

import msgspec

from contextbus.client.callbacks import Answerer, settle_value
from contextbus.client.compiled import Tools
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.request_view import RequestView
from contextbus.core.history import digest_message, normalise
from contextbus.core.targets.tools import tools_text
from contextbus.core.transformed import place_blocks
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.prompt import PromptParts
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


class CompileContext(msgspec.Struct, frozen=True, kw_only=True):
    """What ``before_compile`` gets to see of a step: nothing of it can be changed (P.D.4).

    ``system`` are the messages of the system layer, ``history`` those behind it without our blocks.  ``state`` is what
    the prompt was given, ``state_xml`` how the model gets it; None without state.
    """

    run: str
    step: int
    system: tuple[ChatMessage, ...]
    history: tuple[ChatMessage, ...]
    state: object | None
    state_xml: str | None
    model: Model


BeforeCompile = Callable[[CompileContext], "str | Awaitable[str | None] | None"]
TransformContext = Callable[[tuple[ChatMessage, ...]], "Sequence[GivenMessage] | Awaitable[Sequence[GivenMessage]]"]
PrepareStep = Callable[[StepContext], "PreparedStep | Awaitable[PreparedStep | None] | None"]
RewriteQuery = Callable[[str, StepContext], "str | Awaitable[str]"]
CountOverhead = Callable[[str | None, str], int]
"""Tokens of tool definitions as JSON text, output schema and framing for a provider."""


class HookFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of the host that take part in a step, in the order in which they are asked (P.D.4)."""

    prepare_step: PrepareStep | None = None
    before_compile: BeforeCompile | None = None
    transform_context: TransformContext | None = None
    rewrite_query: RewriteQuery | None = None


class _Given(msgspec.Struct):
    """What ``prepare_step`` gave, for the functions behind it."""

    messages: tuple[ChatMessage, ...] | None = None
    model: Model | None = None


class StepHooks(msgspec.Struct, frozen=True, kw_only=True):
    """The functions, and what they are called with.

    ``tools`` are the tool definitions of the step as JSON text.  ``count_overhead`` counts the overhead of other tools,
    or of a model of another provider; None where the caller named the overhead.  ``prompt`` is what the host adds to
    the request, ``state`` the state in it as it was given.
    """

    model: Model
    functions: HookFunctions = HookFunctions()
    tools: str | None = None
    count_overhead: CountOverhead | None = None
    prompt: PromptParts | None = None
    state: object | None = None
    given: _Given = msgspec.field(default_factory=_Given)

    def answerers(self) -> dict[CallbackName, Answerer]:
        """What answers for each of the functions that there are."""
        functions = self.functions
        answerers: tuple[tuple[CallbackName, object, Answerer], ...] = (
            ("prepare-step", functions.prepare_step, self._prepare),
            ("before-compile", functions.before_compile, self._before),
            ("transform-context", functions.transform_context, self._transform),
            ("rewrite-query", functions.rewrite_query, self._rewrite),
        )
        return {name: answer for name, function, answer in answerers if function is not None}

    def _context(self, question: AskCallback, view: RequestView) -> StepContext:
        return StepContext(run=question.run, step=question.step, messages=view.without_blocks(), model=self.model)

    async def _prepare(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        context = self._context(question, view)
        function = self.functions.prepare_step
        given = None if function is None else await settle_value(function(context))
        prepared = PreparedStep() if given is None else given
        if not isinstance(prepared, PreparedStep):
            raise InvalidTypeError(f"prepare_step gives a PreparedStep or None, not {type(prepared).__name__}")
        model, overhead = prepared.model, prepared.overhead_tokens
        if model is not None and not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"prepare_step gives a Model, not {type(model).__name__}")
        tools = None if prepared.tools is None else tools_text(prepared.tools) or "[]"
        if overhead is None and self.count_overhead is not None and (tools is not None or model is not None):
            overhead = self.count_overhead(self.tools if tools is None else tools, (model or self.model).provider)
        messages = None if prepared.messages is None else tuple(map(normalise, read_given(prepared.messages)))
        self.given.messages, self.given.model = messages, model
        return CallbackAnswered(
            run=question.run,
            token=question.token,
            name=question.name,
            messages=messages,
            model=model,
            overhead_tokens=overhead,
            tools=tools,
        )

    async def _before(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        """The text that ``before_compile`` adds; nothing or an empty one adds nothing (P.D.1)."""
        messages = self.given.messages
        if messages is None:
            messages = view.without_blocks()
        model = self.given.model or self.model
        context = see_compile(question.run, question.step, messages, self.prompt, self.state, model)
        text = await ask_before(self.functions.before_compile, context)
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, text=text)

    async def _transform(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        """What ``transform_context`` makes of the history, our blocks where they belong; None where nothing changes."""
        own = {digest_message(block) for _, block in view.blocks.items}
        request = view.messages() if self.given.messages is None else self.given.messages
        messages = await ask_transform(self.functions.transform_context, request, own)
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, messages=messages)

    async def _rewrite(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        text = await ask_rewrite(self.functions.rewrite_query, question.query, self._context(question, view))
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, text=text)


def see_compile(
    run: str,
    step: int,
    messages: tuple[ChatMessage, ...],
    prompt: PromptParts | None,
    state: object | None,
    model: Model,
) -> CompileContext:
    """What ``before_compile`` gets to see (P.D.1, P.D.4).

    Args:
        run: the run's name.
        step: the number of the step.
        messages: the host's messages, without our blocks.
        prompt: what the host adds to the request.
        state: the state in the prompt as it was given.
        model: the model of the call.
    """
    start = len([*takewhile(lambda message: message.role == "system", messages)])
    return CompileContext(
        run=run,
        step=step,
        system=messages[:start] + (() if prompt is None else prompt.system),
        history=messages[start:],
        state=state,
        state_xml=None if prompt is None else prompt.state_xml,
        model=model,
    )


async def ask_before(function: BeforeCompile | None, context: CompileContext) -> str | None:
    """The text that ``before_compile`` adds; nothing and a blank one add nothing (P.D.1).

    Raises:
        InvalidTypeError: it gave something else than a text.
    """
    text: object = None if function is None else await settle_value(function(context))
    if text is not None and not isinstance(text, str):
        raise InvalidTypeError(f"before_compile gives a text or None, not {type(text).__name__}")
    return clean_text(text) if text and text.strip() else None


async def ask_transform(
    function: TransformContext | None, request: Sequence[ChatMessage], own: Collection[str]
) -> tuple[ChatMessage, ...] | None:
    """What ``transform_context`` makes of a request, our blocks put among it; None where nothing changes (P.D.4).

    Args:
        function: the host's function, if there is one.
        request: the messages, blocks included.
        own: the digests of the blocks.

    Raises:
        InvalidTypeError: it gave something else than messages, or none.
    """
    history = tuple(message for message in request if digest_message(message) not in own)
    given: object = history if function is None else await settle_value(function(history))
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"transform_context gives a list of messages, not {type(given).__name__}")
    messages = tuple(map(normalise, read_given(cast("Sequence[GivenMessage]", given))))
    if messages == history:
        return None
    if not messages:
        raise InvalidTypeError("transform_context gave an empty history")
    return place_blocks(request, own, messages)


async def ask_rewrite(function: RewriteQuery | None, query: str, context: StepContext) -> str:
    """The query that ``rewrite_query`` makes of ours; ours without the function (D.A.9).

    Raises:
        InvalidTypeError: it gave something else than a text.
    """
    text: object = query if function is None else await settle_value(function(query, context))
    if not isinstance(text, str):
        raise InvalidTypeError(f"rewrite_query gives a text, not {type(text).__name__}")
    return clean_text(text)

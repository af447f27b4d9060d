"""The functions of the host in a step of a compiler without a run, asked in this process (D.A.9, P.D)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio
import msgspec

from contextbus.client.step_hooks import (
    HookFunctions,
    StepContext,
    ask_before,
    ask_rewrite,
    ask_transform,
    see_compile,
)
from contextbus.core.compiler_step import StepRequest
from contextbus.core.prompt import implicit_message
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import CallbackTimeoutError, ErrorData

Given = TypeVar("Given")


class CompilerHooks(msgspec.Struct, frozen=True):
    """The functions of one step, and how many seconds each may take.

    What a function raises comes out as the very object (D.W.2).  One that is not async cannot be stopped.
    """

    functions: HookFunctions
    seconds: float

    async def ask_implicit(self, request: StepRequest, state: object | None) -> ChatMessage | None:
        """The message of what ``before_compile`` adds to the tail, if it adds something (P.D.1).

        Args:
            request: the step, with the host's messages.
            state: the state in the prompt as it was given.

        Raises:
            CallbackTimeoutError: the function gave nothing in time.
            InvalidTypeError: it gave something else than a text.
        """
        function = self.functions.before_compile
        if function is None:
            return None
        messages = _without_blocks(request)
        context = see_compile(request.run_id, request.step, messages, request.prompt, state, request.model)
        text = await self._in_time("before_compile", ask_before(function, context))
        return implicit_message(text) if text else None

    async def ask_history(self, request: StepRequest) -> tuple[ChatMessage, ...] | None:
        """What ``transform_context`` makes of the messages, blocks included; None where it changes nothing (P.D.4).

        Raises:
            CallbackTimeoutError: the function gave nothing in time.
            InvalidTypeError: it gave something else than messages, or none.
        """
        function = self.functions.transform_context
        if function is None:
            return None
        messages = [message for message in request.request.history.messages() if message is not None]
        own = frozenset(request.request.present)
        return await self._in_time("transform_context", ask_transform(function, messages, own))

    async def ask_query(self, query: str, request: StepRequest) -> str | None:
        """The query that ``rewrite_query`` makes of ours; None without the function (D.A.9).

        Raises:
            CallbackTimeoutError: the function gave nothing in time.
            InvalidTypeError: it gave something else than a text.
        """
        function = self.functions.rewrite_query
        if function is None:
            return None
        seen = StepContext(
            run=request.run_id, step=request.step, messages=_without_blocks(request), model=request.model
        )
        return await self._in_time("rewrite_query", ask_rewrite(function, query, seen))

    async def _in_time(self, name: str, asked: Awaitable[Given]) -> Given:
        with anyio.move_on_after(self.seconds):
            return await asked
        raise CallbackTimeoutError(f"{name} of the host did not answer in time", ErrorData(origin=name))


def _without_blocks(request: StepRequest) -> tuple[ChatMessage, ...]:
    """The host's messages without our blocks, as those of a run are (P.D.4)."""
    own = frozenset(request.request.present)
    messages = (entry.message for entry in request.request.history if entry.digest not in own)
    return tuple(message for message in messages if message is not None)

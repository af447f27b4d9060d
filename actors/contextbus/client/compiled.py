"""A compiled step: its package, and the payload that it makes of the run's history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from contextbus.core.manifest import context_warnings
from contextbus.core.payload import Payload, Request, assemble
from contextbus.core.rendering import Rendering
from contextbus.core.targets import find_target
from contextbus.core.targets.tools import tools_text
from contextbus.core.wire import Target
from contextbus_protocol.chat import Cache, ChatMessage
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.package import Block, ContextManifest, ContextWarning, Package, WarningCode
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

Tools = Iterable[Mapping[str, object]] | str | None


def messages_of(package: Package, placement: str) -> tuple[ChatMessage, ...]:
    """The messages of the blocks with a placement: ``append`` or ``ephemeral-tail``."""
    return tuple(message for block in package.blocks if block.placement == placement for message in block.messages)


class RenderedPayload:
    """Holds the payload that a step rendered last, which its report may tell from (C.N.13)."""

    __slots__ = ("payload",)

    def __init__(self) -> None:
        self.payload: Payload | None = None


class CompiledStep(msgspec.Struct, frozen=True, kw_only=True):
    """What ``before_model_call`` gives back.

    ``sequence`` and ``commit`` name the step in the log, ``reference`` its package in the store.  ``text`` is the
    package's JSON, byte for byte as stored.  ``stored`` tells that the step was in the log already, and is sent again.
    ``durability`` names what the acknowledgement rests on.  ``codes`` are warnings beside the manifest's, ``prompt``
    is what the host adds to the request, ``rendered`` holds what ``payload`` gave last.
    """

    run: str
    step: int
    command: str
    sequence: int
    commit: str
    reference: str
    text: str
    package: Package
    model: Model
    tools: str | None = None
    stored: bool = False
    durability: str = ""
    histories: Mapping[Target, Rendering]
    codes: tuple[WarningCode, ...] = ()
    prompt: PromptParts | None = None
    rendered: RenderedPayload = msgspec.field(default_factory=RenderedPayload)

    @property
    def manifest(self) -> ContextManifest:
        """The manifest with the reference of its package, which the blob itself cannot hold (D.D.18)."""
        return msgspec.structs.replace(self.package.manifest, package=self.reference)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the package: append first, then the tail (D.E.2)."""
        return self.package.blocks

    @property
    def warnings(self) -> tuple[ContextWarning, ...]:
        """What a host should know (D.D.20)."""
        return (*context_warnings(self.package.manifest), *map(ContextWarning, self.codes))

    def messages_of(self, placement: str) -> tuple[ChatMessage, ...]:
        """The messages of the blocks with a placement: ``append`` or ``ephemeral-tail``."""
        return messages_of(self.package, placement)

    def placed_messages(self) -> tuple[ChatMessage, ...]:
        """What joins the history once the call succeeded: the append block, and a tail that is kept (D.F.9, D.R.4)."""
        tail = self.messages_of("ephemeral-tail") if self.package.manifest.placement.tail_kept else ()
        return (*self.messages_of("append"), *tail)

    def payload(self, target: str | None = None, tools: Tools = None, *, cache: Cache = False) -> Payload:
        """The request for a provider: the run's history with its blocks, this step's block, then the tail (D.F.4).

        Args:
            target: ``anthropic``, ``openai``, ``openai-responses`` or ``gemini``; without it the model's provider
                decides (P.A.7).
            tools: tool definitions in any provider's shape; by default those that the step was compiled with.
            cache: asks for a cache breakpoint behind all that stays from step to step, before the tail: True, ``"5m"``
                or ``"1h"`` (P.E.4).  Providers that cache by themselves need none.

        Raises:
            InvalidTypeError: there is no such target, or a tool definition cannot be read.
            InvalidRequestError: other tools than the step's, on a model that binds its thinking to them (D.F.20).
            EmptyHistoryError: there is no message but system ones.
        """
        given = None if tools is None else tools_text(tools)
        if tools is not None and given != self.tools and self.manifest.placement.tail_kept:
            raise InvalidRequestError(
                "this model binds its thinking to the tools: give other tools to before_model_call, which compares them"
            )
        history = self.histories[find_target(target, self.model)]
        payload = assemble(
            Request(
                history=history,
                system=() if self.prompt is None else self.prompt.system,
                prefill=self.package.prefill,
                blocks=self.messages_of("append"),
                tail=self.messages_of("ephemeral-tail"),
                tools=self.tools if tools is None else given,
                cache=cache,
            )
        )
        self.rendered.payload = payload
        return payload

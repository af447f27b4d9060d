"""A prompt as a host hands it over: its rendered parts, or what renders them."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import msgspec

from contextbus.core.history import normalise
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.prompt import PromptParts


@runtime_checkable
class RendersParts(Protocol):
    """What is built part by part and renders them, as a ``Prompt`` does."""

    @property
    def state_value(self) -> object | None:
        """The state as it was given; None without any."""
        ...

    def parts(self) -> PromptParts:
        """The rendered parts."""
        ...


GivenPrompt = PromptParts | RendersParts


class ReadPrompt(msgspec.Struct, frozen=True):
    """The parts of a prompt, normalised (P.A.5), and the state in it as it was given, as far as it is known."""

    parts: PromptParts | None = None
    state: object | None = None


def read_prompt(given: GivenPrompt | None) -> ReadPrompt:
    """The parts of what a host gave.

    Raises:
        InvalidTypeError: it is no prompt, its system layer holds another message than one of the role system, or its
            tail another than a user message (D.F.21).
    """
    if given is None:
        return ReadPrompt()
    state: object | None = None
    parts = cast("object", given)
    if isinstance(given, RendersParts):
        state, parts = given.state_value, given.parts()
    if not isinstance(parts, PromptParts):
        raise InvalidTypeError(f"prompt is a PromptParts or what has parts(), not {type(parts).__name__}")
    read = msgspec.structs.replace(
        parts,
        system=_read("system", parts.system, "system"),
        state=_read("state", parts.state, "user"),
        guardrails=_read("guardrails", parts.guardrails, "user"),
    )
    return ReadPrompt(read, state)


def _read(name: str, messages: tuple[ChatMessage, ...], role: str) -> tuple[ChatMessage, ...]:
    for place, message in enumerate(messages):
        if message.role != role:
            raise InvalidTypeError(f"prompt.{name}[{place}].role: expected {role}, not {message.role}")
    return tuple(map(normalise, messages))

"""Chat messages: deeply frozen, provider-neutral.

Tool arguments and provider data are JSON *text*, so that a message has no mutable leaf and opaque provider
bytes round-trip exactly.  What a provider sent and we do not model stays in ``provider_data`` (P.A.5).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Cache = bool | Literal["5m", "1h"]
"""Whether a cache breakpoint is asked for, and how long the provider is to keep what is before it; True is 5m."""


class ProviderData(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Fields of one provider that we keep but do not interpret; ``data`` is the JSON text of an object.

    ``model`` is the id of the model that issued them, where that is known (P.E.5).
    """

    provider: str
    data: str
    model: str | None = None


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="type", kw_only=True):
    """Base of all message parts.  ``cache`` asks for a cache breakpoint behind the part (P.E.4)."""

    cache: Cache = False
    provider_data: ProviderData | None = None


class Text(Part, frozen=True, tag="text"):
    """Plain text."""

    text: str


class Image(Part, frozen=True, tag="image"):
    """An image: exactly one of ``data`` (base64), ``url`` or ``file_id``."""

    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class Document(Part, frozen=True, tag="document"):
    """A file: ``text``, ``data`` (base64), ``url`` or ``file_id``."""

    media_type: str | None = None
    title: str | None = None
    text: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class Reasoning(Part, frozen=True, tag="reasoning"):
    """The model's thinking: never edited; signatures go back only to the issuer."""

    text: str = ""
    signature: str | None = None
    redacted: str | None = None


class ToolCall(Part, frozen=True, tag="tool-call"):
    """A call of a tool; ``arguments`` is the raw JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


class Unknown(Part, frozen=True, tag="unknown"):
    """A part of a type we do not know: ``data`` is its compact JSON text (D.M.4)."""

    data: str


ResultPart = Text | Image | Document | Unknown


class ToolResult(Part, frozen=True, tag="tool-result"):
    """What a tool returned for the call with the same id; ``error`` marks a failed call."""

    id: str
    content: tuple[ResultPart, ...] = ()
    name: str | None = None
    error: bool = False


class ApprovalRequest(Part, frozen=True, tag="approval-request"):
    """A call that waits for a human's consent."""

    id: str
    call_id: str


class ApprovalResponse(Part, frozen=True, tag="approval-response"):
    """The human's answer to an approval request."""

    id: str
    approved: bool
    reason: str | None = None


AnyPart = Text | Image | Document | Reasoning | ToolCall | ToolResult | ApprovalRequest | ApprovalResponse | Unknown


class ChatMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One message: a role and its parts.  ``name`` is the participant's name where a provider has one."""

    role: Role
    content: tuple[AnyPart, ...]
    name: str | None = None
    cache: Cache = False
    provider_data: ProviderData | None = None


def system(text: str) -> ChatMessage:
    """Make a system message of one text."""
    return ChatMessage(role="system", content=(Text(text=text),))


def user(text: str) -> ChatMessage:
    """Make a user message of one text."""
    return ChatMessage(role="user", content=(Text(text=text),))


def assistant(text: str) -> ChatMessage:
    """Make an assistant message of one text."""
    return ChatMessage(role="assistant", content=(Text(text=text),))

"""Functions of the host that a step asks for: the actor asks at the step's reply address (D.W.4)."""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.envelope import Message
from contextbus_protocol.values import Model

CallbackName = Literal["prepare-step", "rewrite-query"]


class AskCallback(Message, frozen=True, kw_only=True, tag="ask-callback"):
    """Ask for what a function of the host makes of a step (selection to the client, D.W.4).

    ``reply_to`` is the address of the instance that asks; ``query`` is the query to rewrite, at most 2000 code points.
    """

    command: str
    token: str
    reply_to: str
    name: CallbackName
    step: int
    seconds_left: float
    query: str = ""


class CallbackAnswered(Message, frozen=True, kw_only=True, tag="callback-answered"):
    """What the function gave, or the code of its failure (client to selection, D.W.4).

    ``text`` is the rewritten query; the rest is what ``prepare_step`` changes, each absent where it stays.  ``tools``
    are the tool definitions as JSON text; their digest follows from it where ``tools_digest`` is absent.
    """

    token: str
    name: CallbackName
    code: str | None = None
    origin_code: str | None = None
    origin_type: str | None = None
    text: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    model: Model | None = None
    overhead_tokens: int | None = None
    tools_digest: str | None = None
    tools: str | None = None

"""What a host's prompt comes to in one step: its system layer, its messages of the tail, its prefill (P.A.3, P.A.6)."""

from __future__ import annotations

from functools import reduce
from typing import Final

import msgspec

from contextbus.core.blocks import user_block
from contextbus.core.estimate import Estimator
from contextbus.core.guardrails import prefill_degrades, prefill_message
from contextbus.core.history import digest_message
from contextbus.core.wire import element
from contextbus_protocol import digests
from contextbus_protocol.blobs import encode_layer
from contextbus_protocol.chat import ChatMessage, assistant
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import PromptFact
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import StepOptions

IMPLICIT_CONTEXT: Final = "implicit_context"
"""The element around what ``before_compile`` adds (P.D.1)."""

replace = msgspec.structs.replace


def digest_parts(parts: PromptParts | None) -> str:
    """What tells two prompts apart; empty for none."""
    return "" if parts is None else digests.digest_bytes(encode_json(parts))


def implicit_message(text: str) -> ChatMessage:
    """The message of the tail with what ``before_compile`` gave (P.D.1)."""
    return user_block(element(IMPLICIT_CONTEXT, text))


def place_prompt(
    parts: PromptParts | None, implicit: ChatMessage | None, options: StepOptions, estimator: Estimator
) -> PlacedPrompt | None:
    """Lay out and count a prompt for a step; None where there is nothing of one.

    The tail's order is that of P.A.3: state, implicit context, guardrails, and last a prefill that the model does not
    take (P.C.2, P.C.4).

    Args:
        parts: what the client rendered.
        implicit: the message of what ``before_compile`` gave, if it gave something (P.D.1).
        options: what the step is compiled for, with what ``prepare_step`` changed.
        estimator: the counter of the step.
    """
    if parts is None and implicit is None:
        return None
    given = PromptParts() if parts is None else parts
    between = () if implicit is None else (implicit,)
    tail = (*given.state, *between, *given.guardrails)
    fact = PromptFact(
        digest=digest_parts(parts), state=len(given.state), implicit=bool(between), guardrails=len(given.guardrails)
    )
    prefill = given.prefill if given.prefill and given.prefill.strip() else None
    cost = 0
    if prefill is not None:
        if prefill_degrades(options.model, given.thinking, options.bound_models):
            fact = replace(fact, prefill="degraded")
            tail = (*tail, prefill_message(prefill))
        else:
            fact = replace(fact, prefill="sent")
            cost = estimator.message(assistant(prefill))
    beside = replace(given, state=(), guardrails=())
    layer = None if beside == PromptParts() else encode_layer(beside)
    fact = replace(
        fact,
        system=reduce(extend_chain, map(digest_message, given.system), EMPTY_CHAIN),
        layer=None if layer is None else digests.digest_bytes(layer),
        system_eighteenths=sum(map(estimator.message, given.system)),
        tail_eighteenths=sum(map(estimator.message, tail)) + cost,
    )
    return PlacedPrompt(
        fact=fact, system=given.system, tail=tail, prefill=prefill if fact.prefill == "sent" else None, layer=layer
    )


def prompt_again(fact: PromptFact, package: Package) -> PlacedPrompt:
    """What a prompt came to in a stored step, from its package: for a step that is compiled again (D.I.1)."""
    return PlacedPrompt(fact=fact, tail=_tail_of(fact, package), prefill=package.prefill)


def recorded_parts(
    fact: PromptFact, package: Package, layer: PromptParts | None
) -> tuple[PromptParts | None, ChatMessage | None]:
    """The parts of a recorded step's prompt and the message of ``before_compile``: what ``place_prompt`` was given.

    Args:
        fact: what the log says of it.
        package: the step's package.
        layer: what the blob of ``fact.layer`` holds.

    Raises:
        InvalidTypeError: the package does not hold what the log says.
    """
    tail = _tail_of(fact, package)
    rest = tail[fact.state :]
    implicit = None
    if fact.implicit:
        implicit, rest = rest[0], rest[1:]
    if not fact.digest:
        return None, implicit
    parts = PromptParts() if layer is None else layer
    return replace(parts, state=tail[: fact.state], guardrails=rest[: fact.guardrails]), implicit


def _tail_of(fact: PromptFact, package: Package) -> tuple[ChatMessage, ...]:
    """The prompt's messages of a package's tail: the last ones."""
    count = fact.state + fact.implicit + fact.guardrails + (fact.prefill == "degraded")
    if not count:
        return ()
    messages = [
        message for block in package.blocks if block.placement == "ephemeral-tail" for message in block.messages
    ]
    if len(messages) < count:
        raise InvalidTypeError("the package does not hold the messages of its prompt")
    return tuple(messages[-count:])

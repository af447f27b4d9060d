"""What the host's ``prepare_step`` makes of a step (D.W.4, D.W.7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.events import PreparedFact, PreparedMessages
from contextbus_protocol.values import StepOptions


def prepared_fact(answer: CallbackAnswered, estimator: Estimator) -> PreparedFact | None:
    """What the hook changed, as the commit says it; None where it changed nothing."""
    messages = None if answer.messages is None else fold_prepared(answer.messages, estimator)
    fact = PreparedFact(
        messages=messages,
        model=answer.model,
        overhead_tokens=answer.overhead_tokens,
        tools_digest=answer.tools_digest,
    )
    return None if fact == PreparedFact() else fact


def fold_prepared(messages: Sequence[ChatMessage], estimator: Estimator) -> PreparedMessages:
    """Number, chain digest and cost of messages that the hook gave."""
    chain = EMPTY_CHAIN
    for message in messages:
        chain = extend_chain(chain, digest_message(message))
    return PreparedMessages(len(messages), chain, sum(map(estimator.message, messages)))


def prepared_options(options: StepOptions, prepared: PreparedFact | None) -> StepOptions:
    """The options of a step with what the hook changed."""
    if prepared is None:
        return options
    return msgspec.structs.replace(
        options,
        model=options.model if prepared.model is None else prepared.model,
        overhead_tokens=options.overhead_tokens if prepared.overhead_tokens is None else prepared.overhead_tokens,
        tools_digest=options.tools_digest if prepared.tools_digest is None else prepared.tools_digest,
    )

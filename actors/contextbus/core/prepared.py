"""What the host's functions make of a step: ``prepare_step`` and ``rewrite_query`` (D.A.9, D.W.4, D.W.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.core.budget import require_count, usable_input_tokens
from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message, latest_user_text
from contextbus.core.prefix import system_chain
from contextbus.core.projection import applied
from contextbus.core.run_state import RunState
from contextbus.core.targets.tools import read_tools
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import EMPTY_CHAIN, digest_text, extend_chain
from contextbus_protocol.errors import LONGEST_WORD, InvalidTypeError, word_of
from contextbus_protocol.events import PreparedFact, PreparedMessages
from contextbus_protocol.values import StepOptions

_GIVES_HISTORY: Final = {"budget-exceeded": "on_budget_exceeded", "transform-context": "transform_context"}

NO_TOOLS = ""
"""The digest of tool definitions in a fact when the hook left none of them."""


def check_answer(answer: CallbackAnswered) -> CallbackAnswered:
    """The answer, whoever gave it: one that cannot be used counts as raised (D.W.4), and no text passes for a code."""
    if answer.code is None:
        try:
            validate_answer(answer)
        except InvalidTypeError as exc:
            failed = CallbackAnswered(run=answer.run, token=answer.token, name=answer.name, code="hook_failed")
            return msgspec.structs.replace(failed, origin_code=exc.code, origin_type=type(exc).__name__)
        return answer
    type_ = None if answer.origin_type is None else answer.origin_type[:LONGEST_WORD]
    return msgspec.structs.replace(answer, origin_code=word_of(answer.origin_code), origin_type=type_)


def validate_answer(answer: CallbackAnswered) -> None:
    """Refuse what no step can be made with.

    Raises:
        InvalidTypeError: the model's numbers, the overhead or what the host counted are no counts, or a tool definition
            cannot be read.
    """
    if answer.name == "count-tokens":
        require_count("count_tokens", answer.count)
    if answer.name in _GIVES_HISTORY and answer.messages is not None and not answer.messages:
        raise InvalidTypeError(f"{_GIVES_HISTORY[answer.name]} gave an empty history")
    if answer.model is not None:
        usable_input_tokens(answer.model)
    if answer.overhead_tokens is not None:
        require_count("overhead_tokens", answer.overhead_tokens)
    if answer.tools is not None:
        read_tools(answer.tools)


def prepared_fact(answer: CallbackAnswered, estimator: Estimator) -> PreparedFact | None:
    """What the hook changed, as the commit says it; None where it changed nothing."""
    messages = None if answer.messages is None else fold_prepared(answer.messages, estimator)
    fact = PreparedFact(
        messages=messages,
        model=answer.model,
        overhead_tokens=answer.overhead_tokens,
        tools_digest=answer.tools_digest if answer.tools is None else digest_tools(answer.tools),
    )
    return None if fact == PreparedFact() else fact


def digest_tools(tools: str) -> str:
    """The digest of tool definitions that the hook gave, ``NO_TOOLS`` for an empty list."""
    return digest_text(tools) if read_tools(tools) else NO_TOOLS


def fold_prepared(messages: Sequence[ChatMessage], estimator: Estimator) -> PreparedMessages:
    """Number, chain digest and cost of messages that the hook gave."""
    chain = EMPTY_CHAIN
    for message in messages:
        chain = extend_chain(chain, digest_message(message))
    return PreparedMessages(len(messages), chain, sum(map(estimator.message, messages)), system_chain(messages))


def prepared_user_text(state: RunState, messages: Sequence[ChatMessage]) -> str:
    """The latest user text of messages that the hook gave; blocks of the run in them are none (D.G.17, D.G.33)."""
    own = {block.fact.digest for block in state.blocks}
    checkpoint = applied(state)
    if checkpoint is not None:
        own.update(fact.digest for fact in checkpoint.replacement if fact.own)
    if state.last is not None:
        own.update(fact.digest for fact in (state.last.block, *state.last.tail) if fact is not None)
    return latest_user_text(messages, own)


def prepared_options(options: StepOptions, prepared: PreparedFact | None) -> StepOptions:
    """The options of a step with what the hook changed."""
    if prepared is None:
        return options
    return msgspec.structs.replace(
        options,
        model=options.model if prepared.model is None else prepared.model,
        overhead_tokens=options.overhead_tokens if prepared.overhead_tokens is None else prepared.overhead_tokens,
        tools_digest=options.tools_digest if prepared.tools_digest is None else prepared.tools_digest or None,
    )

"""The request's prefix: why it does not begin as the last one did, and what that does to thinking (D.F.15, D.F.20)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from itertools import islice, takewhile
from typing import Final, get_args

import msgspec

from contextbus.core.history import digest_message
from contextbus.core.projection import request_digests
from contextbus.core.run_state import LastStep, RunState
from contextbus_protocol.chat import ChatMessage, Reasoning
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.events import PreparedMessages, PromptFact
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import StepOptions

_CAUSES: Final[tuple[CachePrefixCause, ...]] = get_args(CachePrefixCause)
MOST_RANGES: Final = 64
"""So many ranges of stale thinking are told apart."""

_WITHHELD: Final = Reasoning()

replace = msgspec.structs.replace


def break_prefix(state: RunState, cause: CachePrefixCause, position: int) -> RunState:
    """The state once what the last request began with was changed behind ``position`` source messages (D.F.22)."""
    causes = (cause, state.broken_prefix)
    return replace(
        state,
        measured=None,
        broken_prefix=first_cause(causes),
        broken_at=position if state.broken_at is None else min(position, state.broken_at),
    )


def first_cause(causes: Collection[CachePrefixCause | None]) -> CachePrefixCause | None:
    """The cause that is named where several apply (D.F.22); None for none."""
    return next((cause for cause in _CAUSES if cause in causes), None)


def prefix_cause(
    state: RunState,
    options: StepOptions,
    messages: Sequence[ChatMessage] | None = None,
    prompt: PromptFact | None = None,
) -> CachePrefixCause | None:
    """Why the request does not begin as the last one did (D.F.15, D.F.16, D.F.22); None when it does.

    Args:
        state: the run with the step's messages, before the step.
        options: what the step is compiled for.
        messages: what the host's hook gave in place of the history, if it did.
        prompt: what the host's prompt adds.
    """
    last = state.last
    if last is None:
        return None
    causes: list[CachePrefixCause | None] = [state.broken_prefix]
    model, before = options.model, last.options.model
    if (before.provider, before.model_id) != (model.provider, model.model_id):
        causes.append("model")
    if last.options.tools_digest != options.tools_digest:
        causes.append("tools")
    if last.system != _system_of(prompt):
        causes.append("system")
    if last.block is not None and not state.blocks.holds_append(last.step):
        # the last request ended with a block whose call did not succeed (D.F.13), or that a forget took (D.J.6)
        causes.append("redacted" if last.redacted else "history")
    if last.tail and last.status != "succeeded":
        causes.append("history")  # where tails stay they are part of what is compared (D.F.17)
    given = None if last.prepared is None else last.prepared.messages
    if messages is not None or given is not None:
        causes.append(_compare_given(state, last, given, messages))
    return first_cause(causes)


def _compare_given(
    state: RunState, last: LastStep, before: PreparedMessages | None, messages: Sequence[ChatMessage] | None
) -> CachePrefixCause | None:
    """How the request differs from all of the last one but its tail, where a hook gave either of them (D.F.17)."""
    own = state.history.keep(state.system_count).chain
    now = own if messages is None else system_chain(messages)
    then = own if before is None else before.system  # the history's own were compared as it changed
    if now != then:
        return "system"
    request = iter(request_digests(state) if messages is None else map(digest_message, messages))
    if before is None:
        blocks = [*request_digests(state, last.count, last.step)]
        if [*islice(request, len(blocks))] != blocks:
            return "history"
    elif reduce(extend_chain, islice(request, before.count), EMPTY_CHAIN) != before.chain:
        return "history"
    placed = last.tail if last.block is None else (last.block, *last.tail)
    return None if all(next(request, None) == fact.digest for fact in placed) else "history"


def _system_of(prompt: PromptFact | None) -> str:
    return EMPTY_CHAIN if prompt is None else prompt.system


def system_chain(messages: Iterable[ChatMessage]) -> str:
    """The chain digest of the system messages that a list begins with."""
    leading = takewhile(lambda message: message.role == "system", messages)
    return reduce(extend_chain, map(digest_message, leading), EMPTY_CHAIN)


def stale_ranges(
    state: RunState, options: StepOptions, count: int, prompt: PromptFact | None = None
) -> tuple[tuple[int, int], ...]:
    """Ranges of source messages whose thinking was written behind other bytes than a request now has (D.F.20).

    Args:
        state: the run with the step's messages, before the step.
        options: what the step is compiled for.
        count: how many source messages the request holds.
        prompt: what the host's prompt adds.
    """
    last = state.last
    if last is None:
        return state.stale_thinking
    starts = [] if state.broken_at is None else [state.broken_at]
    if last.options.tools_digest != options.tools_digest or last.system != _system_of(prompt):
        starts.append(0)
    prepared = last.prepared is not None and last.prepared.messages is not None
    if prepared or last.loose_tail or (last.status != "succeeded" and (last.block is not None or last.tail)):
        starts.append(last.count)  # what came behind that request was written behind what no longer stands there
    if not starts or min(starts) >= count:
        return state.stale_thinking
    start = min(starts)
    kept = [(first, end) for first, end in state.stale_thinking if end < start]
    joined = [first for first, end in state.stale_thinking if end >= start]
    ranges = (*kept, (min([start, *joined]), count))
    if len(ranges) > MOST_RANGES:  # the oldest become one: leaving out more thinking is always taken
        ranges = ((ranges[0][0], ranges[1][1]), *ranges[2:])
    return ranges


def withhold_given(
    given: Sequence[ChatMessage], request: Iterable[tuple[str, int | None]], stale: Sequence[tuple[int, int]]
) -> tuple[ChatMessage, ...]:
    """The messages that a hook gave, for a model that binds thinking (D.F.20, P.E.5).

    Only as far as they are the run's request history do they stand behind what they were written behind: thinking from
    the first difference on is left out, and before it that of the stale ranges.

    Args:
        given: what the hook gave in place of the history.
        request: the request history as (digest, index of the source message), None for what is none.
        stale: ranges of source messages whose thinking is left out.
    """
    known = iter(request)
    same, kept = True, list[ChatMessage]()
    for message in given:
        digest, source = next(known, ("", None)) if same else ("", None)
        same = same and digest == digest_message(message)
        is_stale = source is not None and any(start <= source < end for start, end in stale)
        kept.append(message if same and not is_stale else withhold_thinking(message))
    return tuple(kept)


def withhold_thinking(message: ChatMessage) -> ChatMessage:
    """The message with its thinking emptied, so that every target leaves it out and lists the repair (D.F.20)."""
    if not any(isinstance(part, Reasoning) for part in message.content):
        return message
    content = tuple(_WITHHELD if isinstance(part, Reasoning) else part for part in message.content)
    return replace(message, content=content)

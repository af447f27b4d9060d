"""The request's prefix: why it does not begin as the last one did, and what that does to thinking (D.F.15, D.F.20)."""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from contextbus.core.run_state import RunState
from contextbus_protocol.chat import ChatMessage, Reasoning
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import StepOptions

_CAUSES: Final[tuple[CachePrefixCause, ...]] = get_args(CachePrefixCause)
_WITHHELD: Final = Reasoning()

replace = msgspec.structs.replace


def break_prefix(state: RunState, cause: CachePrefixCause, position: int) -> RunState:
    """The state once what the last request began with was changed behind ``position`` source messages (D.F.22)."""
    causes = (cause, state.broken_prefix)
    return replace(
        state,
        broken_prefix=next(c for c in _CAUSES if c in causes),
        broken_at=position if state.broken_at is None else min(position, state.broken_at),
    )


def prefix_cause(state: RunState, options: StepOptions) -> CachePrefixCause | None:
    """Why the request does not begin as the last one did (D.F.15, D.F.16, D.F.22); None when it does."""
    last = state.last
    if last is None:
        return None
    model, before = options.model, last.options.model
    if (before.provider, before.model_id) != (model.provider, model.model_id):
        return "model"
    if last.options.tools_digest != options.tools_digest:
        return "tools"
    if state.broken_prefix is not None:
        return state.broken_prefix
    if last.block is not None and not state.blocks.holds_append(last.step):
        # the last request ended with a block whose call did not succeed (D.F.13), or that a forget took (D.J.6)
        return "redacted" if last.redacted else "history"
    return None


def stale_ranges(state: RunState, options: StepOptions, count: int) -> tuple[tuple[int, int], ...]:
    """Ranges of source messages whose thinking was written behind other bytes than a request now has (D.F.20).

    Args:
        state: the run with the step's messages, before the step.
        options: what the step is compiled for.
        count: how many source messages the request holds.
    """
    last = state.last
    if last is None:
        return state.stale_thinking
    starts = [] if state.broken_at is None else [state.broken_at]
    if last.options.tools_digest != options.tools_digest:
        starts.append(0)
    prepared = last.prepared is not None and last.prepared.messages is not None
    if prepared or (last.status != "succeeded" and (last.block is not None or last.tail)):
        starts.append(last.count)  # what came behind that request was written behind what no longer stands there
    if not starts or min(starts) >= count:
        return state.stale_thinking
    start = min(starts)
    kept = [(first, end) for first, end in state.stale_thinking if end < start]
    joined = [first for first, end in state.stale_thinking if end >= start]
    return (*kept, (min([start, *joined]), count))


def withhold_thinking(message: ChatMessage) -> ChatMessage:
    """The message with its thinking emptied, so that every target leaves it out and lists the repair (D.F.20)."""
    if not any(isinstance(part, Reasoning) for part in message.content):
        return message
    content = tuple(_WITHHELD if isinstance(part, Reasoning) else part for part in message.content)
    return replace(message, content=content)

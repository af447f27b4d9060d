"""What takes the place of a summary that a forget took: its messages again, or the history behind them (C.X.11)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from contextbus.core.compaction.request_items import placed_records, source_messages
from contextbus.core.compaction.saving import Saved
from contextbus.core.estimate import Estimator
from contextbus.core.history import is_only_results
from contextbus.core.projection import request_eighteenths
from contextbus.core.run_state import RunState
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionStarted,
    ReplacedRange,
    ReplacementFact,
    TokenChange,
)


def forgotten_boundary(state: RunState, started: CompactionStarted) -> int | None:
    """How many source messages the summary stood for that a forget took; None where none is to be replaced."""
    checkpoint = state.checkpoint
    due = started.cause == "redacted" and state.compaction_due
    return checkpoint.source_count if due and checkpoint is not None and checkpoint.forgotten else None


def is_only_forgotten(state: RunState, boundary: int, missing: Collection[str]) -> bool:
    """Whether all that is missing of the history stands before the boundary.

    Args:
        state: the run.
        boundary: a number of source messages.
        missing: blobs of source messages that are gone.
    """
    return all(segment.end <= boundary for segment in state.segments.backwards() if segment.inputs in missing)


def drop_forgotten(
    state: RunState,
    boundary: int,
    texts: Mapping[str, tuple[ChatMessage, ...]],
    started: CompactionStarted,
    estimator: Estimator,
) -> Saved:
    """The event by which the history goes on from a boundary, since nothing can be summarised before it (C.X.11).

    Leading system messages and the user's last message stay as in every composition (C.E.1), as far as they are stored.
    Nothing is archived.

    Args:
        state: the run.
        boundary: how many source messages the summary stood for.
        texts: the messages of the blobs that are there.
        started: what the evaluation began with.
        estimator: the run's counter.

    Raises:
        NotFoundError: messages behind the boundary are gone too.
    """
    bodies = source_messages(state, 0, texts)
    if any(index not in bodies for index in range(boundary, state.history.count)):
        raise NotFoundError("messages of the run are no longer stored")
    start = min(state.system_count, boundary)
    kept = [index for index in range(start) if index in bodies]
    asked = (index for index, message in bodies.items() if message.role == "user" and not is_only_results(message))
    last = max(asked, default=boundary)
    if start <= last < boundary:
        kept.append(last)
    facts = tuple(
        ReplacementFact(digest=entry.digest, eighteenths=entry.eighteenths, source=index)
        for index in kept
        for entry in (state.history.entry(index),)
    )
    gone = [block.fact.eighteenths for block in state.blocks if block.position <= boundary]
    placed = placed_records(state)[: len(gone) + 1]
    records = tuple(dict.fromkeys(record for some in placed for record in some))
    data = blobs.encode_replacement(tuple(bodies[index] for index in kept), records)
    before, prefix = request_eighteenths(state), state.history.keep(boundary)
    after = before - prefix.eighteenths - sum(gone) + sum(fact.eighteenths for fact in facts)
    event = CompactionCompleted(
        evaluation=started.evaluation,
        tokens=TokenChange(
            estimator.tokens(before) + started.envelope_tokens, estimator.tokens(after) + started.envelope_tokens
        ),
        replaced_range=ReplacedRange(start, boundary + len(gone)),
        source_count=boundary,
        source_hash=prefix.chain,
        replacement=facts,
        replaced_by=digests.digest_bytes(data),
        records=records,
        dropped=True,
        token_scope="request",
    )
    return Saved(event, ((event.replaced_by, data),))

"""A history that the host gave in place of the run's, as a checkpoint (P.J.4, P.J.8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.compaction.saving import Saved
from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message, normalise
from contextbus.core.run_state import RunState
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage, Reasoning
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionStarted,
    ReplacedRange,
    ReplacementFact,
    TokenChange,
)


class HostReplacement(msgspec.Struct, frozen=True):
    """What stands in place of the first ``source_count`` source messages; the messages behind them stay.

    ``facts`` say of each message which of the run's it is, if it is one; ``same`` is how many of them stand where they
    stood before.
    """

    messages: tuple[ChatMessage, ...]
    facts: tuple[ReplacementFact, ...]
    source_count: int
    same: int


def replace_history(request: RequestItems, messages: Sequence[ChatMessage], estimator: Estimator) -> HostReplacement:
    """Find what of a history that the host gave is the run's own, and up to where it differs.

    Messages are the same where their digests are (D.W.3): those at the beginning and at the end that did not change,
    and of the others the nearest in order.

    Args:
        request: the run's request history.
        messages: the history that the host gave, without blocks.
        estimator: counts the messages that are new.

    Raises:
        InvalidTypeError: it is empty.
    """
    given = tuple(map(normalise, messages))
    if not given:
        raise InvalidTypeError("on_budget_exceeded gave an empty history")
    known = [(fact, cover) for fact, cover in zip(request.facts, request.covers, strict=True) if fact is not None]
    texts = [digest_message(message) for message in given]
    before = [fact.digest for fact, _ in known]
    same = _common(texts, before)
    first = known[0][1] if known else 0
    movable = sum(1 for _, cover in known if cover > first)  # what stands behind at least one source message
    rest = min(_common(texts[same:][::-1], before[same:][::-1]), movable)
    behind = len(known) - rest
    facts = [fact for fact, _ in known[:same]]
    places: dict[str, deque[int]] = {}
    for index in range(same, behind):
        places.setdefault(before[index], deque()).append(index)
    place = same
    for message, digest in zip(given[same : len(given) - rest], texts[same : len(texts) - rest], strict=True):
        left = places.get(digest, deque())
        while left and left[0] < place:  # the place only moves on, so what it passed is never looked at again
            left.popleft()
        if left:
            place = left.popleft() + 1
            facts.append(known[place - 1][0])
        else:
            facts.append(ReplacementFact(digest=digest, eighteenths=estimator.message(message)))
    source_count = known[behind - 1][1] if behind else 0
    return HostReplacement(given[: len(given) - rest], tuple(facts), source_count, same)


def save_history(
    state: RunState,
    request: RequestItems,
    started: CompactionStarted,
    given: HostReplacement,
    *,
    estimator: Estimator,
    counted: int | None = None,
) -> Saved:
    """The event of a checkpoint that the host gave, with its blob.

    Args:
        state: the run as it is replaced in.
        request: its request history.
        started: what the evaluation began with.
        given: what stands in place of source messages.
        estimator: the run's counter.
        counted: what the host counted of the messages, where it counts (C.M.11).
    """
    if counted is None:
        blocks = sum(item.cost for item in request.items if item.own == "block")
        behind = state.history.eighteenths - state.history.keep(given.source_count).eighteenths
        counted = estimator.tokens(sum(fact.eighteenths for fact in given.facts) + behind + blocks)
    end = next((i for i, c in enumerate(request.covers) if c > given.source_count), len(request.covers))
    records = request.records_before(end)
    data = blobs.encode_replacement(given.messages, records)
    reference = digests.digest_bytes(data)
    event = CompactionCompleted(
        evaluation=started.evaluation,
        tokens=TokenChange(started.tokens_before, counted + started.envelope_tokens),
        replaced_range=ReplacedRange(0, end),
        source_count=given.source_count,
        source_hash=state.history.keep(given.source_count).chain,
        replacement=given.facts,
        replaced_by=reference,
        thinking=_find_thinking(given) if started.binds_thinking else (),
        records=records,
        host=True,
        host_counts=() if started.host_tokens is None else (counted,),
        token_scope="request",
    )
    return Saved(event, ((reference, data),))


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """How many first items are equal."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))


def _find_thinking(given: HostReplacement) -> tuple[tuple[int, int], ...]:
    """Source messages among the replacement whose thinking was written behind other bytes (C.X.6)."""
    pairs = zip(given.messages[given.same :], given.facts[given.same :], strict=True)
    return tuple(
        (fact.source, fact.source + 1)
        for message, fact in pairs
        if fact.source is not None and any(isinstance(part, Reasoning) for part in message.content)
    )

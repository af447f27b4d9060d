"""What a passed reduction comes to in a run's log: the event, and the blobs that it names (C.L.1, C.O.3, C.X.8)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.reduction import Reduced, add_usages
from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.compaction.summariser_input import archived_span
from contextbus.core.compaction.survival import count_survivors
from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message
from contextbus.core.run_state import RunState
from contextbus.core.working_memory_items import list_items
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage, Reasoning
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionStarted,
    IdentifierCounts,
    ReplacedRange,
    ReplacementFact,
    TokenChange,
)
from contextbus_protocol.working_memory import Item as MemoryEntry
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class Saved(msgspec.Struct, frozen=True):
    """The event of a checkpoint with its blobs."""

    event: CompactionCompleted
    blobs: tuple[tuple[str, bytes], ...]


class Archive(msgspec.Struct, frozen=True):
    """The archived span of a range: indices, reference and bytes (C.X.8)."""

    start: int
    end: int
    reference: str
    data: bytes


def archive_of(request: RequestItems, start: int, end: int) -> Archive:
    """The archived span of a range; it is encoded and hashed, so whoever counts several candidates keeps it."""
    data = blobs.encode_archive(archived_span(request.items, start, end), request.records_before(end))
    return Archive(start, end, digests.digest_bytes(data), data)


def save(
    state: RunState,
    request: RequestItems,
    started: CompactionStarted,
    outcome: Reduced,
    *,
    estimator: Estimator,
    working_memory: WorkingMemorySnapshot | None,
    host_counts: tuple[int, ...] = (),
    archive: Archive | None = None,
) -> Saved:
    """The event of a reduction that passed.

    Args:
        state: the run as it is replaced in.
        request: its request history.
        started: what the evaluation began with.
        outcome: the range and its summary.
        estimator: the run's counter.
        working_memory: the state of the working memory that the step is of (C.X.7).
        host_counts: what the host counted, in the order of the requests.
        archive: the range's, where it was made already.
    """
    start, end = outcome.start, outcome.end
    archive = archive or archive_of(request, start, end)
    messages, indices = compose(request, outcome, archive.reference)
    facts = tuple(_fact(request, message, index, estimator) for message, index in zip(messages, indices, strict=True))
    source_count = request.source_count(end)
    records = request.records_before(end)
    data = blobs.encode_replacement(messages, records)
    reference = digests.digest_bytes(data)
    event = CompactionCompleted(
        evaluation=started.evaluation,
        tokens=TokenChange(outcome.before + started.envelope_tokens, outcome.after + started.envelope_tokens),
        replaced_range=ReplacedRange(start, end),
        source_count=source_count,
        source_hash=state.history.keep(source_count).chain,
        replacement=facts,
        replaced_by=reference,
        archive=archive.reference,
        summariser="" if outcome.summary is None else started.options.summariser,
        usage=add_usages(outcome.usages),
        pieces=outcome.pieces,
        identifiers=_count_identifiers(request, outcome, working_memory),
        thinking=find_thinking(request, end) if started.binds_thinking else (),
        records=records,
        dropped=outcome.summary is None,
        host_counts=host_counts,
        token_scope="request",
    )
    return Saved(event, ((reference, data), (archive.reference, archive.data)))


def compose(
    request: RequestItems, outcome: Reduced, archive: str
) -> tuple[tuple[ChatMessage, ...], tuple[int | None, ...]]:
    """What stands in place of source messages: leading system ones, summary, the user's last message (C.E.1).

    Returns:
        the messages, and which of the request's each is; None for the summary.
    """
    pairs: list[tuple[ChatMessage | None, int | None]] = [
        (request.items[index].message, index) for index in range(outcome.start)
    ]
    if outcome.summary is not None:
        pairs.append((summary_message(outcome.summary, archive), None))
    if outcome.replayed is not None:
        pairs.append((request.items[outcome.replayed].message, outcome.replayed))
    for index in range(outcome.end, len(request.items)):  # what stood in place of the same messages already
        if request.covers[index] > request.source_count(outcome.end):
            break
        pairs.append((request.items[index].message, index))
    kept = [(message, index) for message, index in pairs if message is not None]
    return tuple(message for message, _ in kept), tuple(index for _, index in kept)


def _fact(request: RequestItems, message: ChatMessage, index: int | None, estimator: Estimator) -> ReplacementFact:
    if index is None:
        return ReplacementFact(digest=digest_message(message), eighteenths=estimator.message(message), own="summary")
    fact = request.facts[index]
    assert fact is not None
    return fact


def find_thinking(request: RequestItems, end: int) -> tuple[tuple[int, int], ...]:
    """Ranges of source messages behind the boundary that hold thinking: it was written before it (C.X.6)."""
    ranges: list[tuple[int, int]] = []
    for item, fact in zip(request.items[end:], request.facts[end:], strict=True):
        if item.message is None or fact is None or fact.source is None:
            continue
        if not any(isinstance(part, Reasoning) for part in item.message.content):
            continue
        if ranges and ranges[-1][1] == fact.source:
            ranges[-1] = (ranges[-1][0], fact.source + 1)
        else:
            ranges.append((fact.source, fact.source + 1))
    return tuple(ranges)


def _count_identifiers(
    request: RequestItems, outcome: Reduced, working_memory: WorkingMemorySnapshot | None
) -> IdentifierCounts:
    span = archived_span(request.items, outcome.start, outcome.end)
    texts = () if working_memory is None else tuple(item.rendered for item in list_items(working_memory))
    seen, kept = count_survivors(span, outcome.summary or "", texts, _cited_calls(working_memory))
    return IdentifierCounts(seen, kept)


def _cited_calls(working_memory: WorkingMemorySnapshot | None) -> tuple[str, ...]:
    """The ids of tool calls that items of the working memory rest on."""
    if working_memory is None:
        return ()
    lists: tuple[Sequence[MemoryEntry], ...] = (
        working_memory.constraints,
        working_memory.observations,
        working_memory.hypotheses,
        working_memory.decisions,
        working_memory.questions,
        working_memory.attempts,
    )
    cited = (ref.id for items in lists for item in items for ref in item.sources if ref.kind == "tool-call")
    return tuple(dict.fromkeys(cited))

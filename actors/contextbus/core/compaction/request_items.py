"""A run's request history as compaction sees it: what each message is, what it costs, what it stands for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contextbus.core.compaction.items import Item
from contextbus.core.projection import applied, order_replacement
from contextbus.core.run_state import RunState
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.events import RecordReference, ReplacementFact


class RequestItems(msgspec.Struct, frozen=True):
    """The messages of a request history, with blocks among them.

    ``facts`` are what a checkpoint says of each, None for blocks.  ``covers`` is the number of source messages that
    stand up to and with each.  The first ``replaced`` of them stand in place of ``base`` source messages.  ``records``
    are those of an earlier checkpoint, then those of each block, in order.
    """

    items: tuple[Item, ...]
    facts: tuple[ReplacementFact | None, ...]
    covers: tuple[int, ...]
    replaced: int = 0
    base: int = 0
    records: tuple[tuple[RecordReference, ...], ...] = ()

    def source_count(self, end: int) -> int:
        """How many source messages the first ``end`` messages stand for (C.L.7)."""
        return self.covers[end - 1] if end else 0

    def records_before(self, end: int) -> tuple[RecordReference, ...]:
        """The records of every block among the first ``end`` messages, and of an earlier checkpoint (C.X.11)."""
        passed = 1 + sum(item.own == "block" for item in self.items[:end])
        return tuple(dict.fromkeys(record for records in self.records[:passed] for record in records))


def placed_records(state: RunState) -> tuple[tuple[RecordReference, ...], ...]:
    """The records of an earlier checkpoint, then those of each block in the history, in order.

    A checkpoint's are there whether it applies or not: its blocks left with it, and messages that were written behind
    them may still be there.  What a forget took is not among them.
    """
    steps: dict[int, list[RecordReference]] = {}
    for entry in state.placed:
        steps.setdefault(entry.step, []).append(RecordReference(entry.source, entry.record_id, entry.revision))
    earlier = () if state.checkpoint is None else state.checkpoint.records
    return (earlier, *(tuple(steps.get(block.step, ())) for block in state.blocks))


def missing_blobs(state: RunState, known: Mapping[str, object] | frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The blobs that hold the texts of the request history: a checkpoint's replacement, and the messages behind it."""
    checkpoint = applied(state)
    start = 0 if checkpoint is None else checkpoint.source_count
    wanted = [] if checkpoint is None else [checkpoint.replaced_by]
    behind: list[str] = []
    for segment in state.segments.backwards():
        if segment.end <= start:
            break
        behind.append(segment.inputs)
    return tuple(reference for reference in dict.fromkeys((*wanted, *reversed(behind))) if reference not in known)


def request_items(state: RunState, texts: Mapping[str, tuple[ChatMessage, ...]]) -> RequestItems:
    """The request history of a run.

    Args:
        state: the run.
        texts: the messages of each blob of ``missing_blobs``.

    Raises:
        NotFoundError: a blob is missing, or does not hold what the log says.
    """
    checkpoint = applied(state)
    start = 0 if checkpoint is None else checkpoint.source_count
    blocks = [(block.position, _Entry(Item(None, "block", block.fact.eighteenths))) for block in state.blocks]
    entries: list[_Entry] = []
    if checkpoint is not None:
        messages = texts.get(checkpoint.replaced_by, ())
        facts = checkpoint.replacement
        if len(messages) != len(facts):
            raise NotFoundError("the texts of the run's checkpoint are no longer stored")
        replaced = [
            _Entry(Item(message, fact.own, fact.eighteenths), fact)
            for fact, message in zip(facts, messages, strict=True)
        ]
        among = [block for block in blocks if block[0] <= start]
        entries = order_replacement(replaced, [fact.source for fact in facts], start, among)
        blocks = blocks[len(among) :]
    covers = [start] * len(entries)
    replaced_count = len(entries)
    bodies = source_messages(state, start, texts)
    place = 0
    for index, entry in enumerate(state.history[start:], start):
        while place < len(blocks) and blocks[place][0] <= index:
            entries.append(blocks[place][1])
            covers.append(index)
            place += 1
        body = bodies.get(index)
        if body is None:
            raise NotFoundError("messages of the run are no longer stored")
        fact = ReplacementFact(digest=entry.digest, eighteenths=entry.eighteenths, source=index)
        entries.append(_Entry(Item(body, "", entry.eighteenths), fact))
        covers.append(index + 1)
    entries += [block for _, block in blocks[place:]]
    covers += [state.history.count] * (len(entries) - len(covers))
    return RequestItems(
        tuple(e.item for e in entries),
        tuple(e.fact for e in entries),
        tuple(covers),
        replaced_count,
        start,
        placed_records(state),
    )


class _Entry(msgspec.Struct, frozen=True):
    item: Item
    fact: ReplacementFact | None = None


def source_messages(
    state: RunState, start: int, texts: Mapping[str, tuple[ChatMessage, ...]]
) -> dict[int, ChatMessage]:
    """The source messages behind the first ``start`` by index, as far as they are at hand."""
    found: dict[int, ChatMessage] = {}
    for segment in state.segments.backwards():
        if segment.end <= start:
            break
        messages = texts.get(segment.inputs, ())
        found.update(enumerate(messages[: segment.end - segment.start], segment.start))
    return found

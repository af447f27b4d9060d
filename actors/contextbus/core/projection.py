"""The request history of a run: a checkpoint's replacement, the source messages behind it, and blocks (C.L.3, D.F.19).

Numbers of it are running values of the fold; only a comparison of digests walks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import TypeVar

from contextbus.core.run_state import Checkpoint, RunState

T = TypeVar("T")


def applied(state: RunState) -> Checkpoint | None:
    """The checkpoint that stands in place of the history's beginning; None where none does."""
    checkpoint = state.checkpoint
    return checkpoint if checkpoint is not None and checkpoint.applies else None


def request_eighteenths(state: RunState) -> int:
    """What the request history costs, in eighteenths of a token: messages and blocks."""
    checkpoint = applied(state)
    saved = 0 if checkpoint is None else checkpoint.covered - checkpoint.eighteenths
    return state.history.eighteenths - saved + state.blocks.eighteenths


def request_count(state: RunState) -> int:
    """The number of messages of the request history, blocks included (C.H.10)."""
    checkpoint = applied(state)
    fewer = 0 if checkpoint is None else checkpoint.source_count - len(checkpoint.replacement)
    return state.history.count - fewer + len(state.blocks)


def suffix_eighteenths(state: RunState, count: int) -> int:
    """What the source messages behind the first ``count`` cost, in eighteenths of a token."""
    return state.history.eighteenths - state.history.keep(min(count, state.history.count)).eighteenths


def order_replacement(
    items: Sequence[T], sources: Sequence[int | None], source_count: int, blocks: Iterable[tuple[int, T]]
) -> list[T]:
    """A checkpoint's messages with the blocks that stand among them (P.D.4).

    A block stands behind the message that it was placed behind, or where that is gone behind the nearest earlier one.

    Args:
        items: the messages of the replacement.
        sources: the index of the source message that each is, None where it is none.
        source_count: how many source messages they stand for.
        blocks: position and block, in order, within the first ``source_count`` source messages.
    """
    waiting = list(blocks)
    place = 0
    ordered: list[T] = []

    def put(until: int) -> None:
        nonlocal place
        while place < len(waiting) and waiting[place][0] <= until:
            ordered.append(waiting[place][1])
            place += 1

    following = [source for source in sources if source is not None]
    following.append(source_count)
    put(following[0] if len(following) > 1 else -1)
    passed = 0
    for item, source in zip(items, sources, strict=True):
        ordered.append(item)
        if source is not None:
            passed += 1
            put(following[passed])
    put(source_count)
    return ordered


def blocks_before(state: RunState, end: int) -> int:
    """How many blocks, oldest first, stand among the first ``end`` messages of the request history (C.E.9)."""
    checkpoint = applied(state)
    blocks = [(block.position, True) for block in state.blocks]
    start, before, inner = 0, 0, 0
    if checkpoint is not None:
        start = checkpoint.source_count
        among = [*takewhile(lambda block: block[0] <= start, blocks)]
        facts = checkpoint.replacement
        ordered = order_replacement([False] * len(facts), [fact.source for fact in facts], start, among)
        if end <= len(ordered):
            return sum(ordered[:end])
        before, inner = len(ordered), len(among)
    behind = enumerate(position for position, _ in blocks[inner:])
    return inner + sum(1 for index, position in behind if before + position - start + index < end)


def request_digests(state: RunState, count: int | None = None, before: int | None = None) -> Iterator[str]:
    """Digests of the request history's messages, in order.

    Args:
        state: the run.
        count: only the first so many source messages, and what stands for or among them.
        before: only blocks of steps before this one.
    """
    checkpoint = applied(state)
    blocks = iter([(b.position, b.fact.digest) for b in state.blocks if before is None or b.step < before])
    stop = state.history.count if count is None else count
    start = 0
    if checkpoint is not None:
        start = checkpoint.source_count
        rest = list(blocks)
        inner = list(takewhile(lambda block: block[0] <= start, rest))
        facts = checkpoint.replacement
        yield from order_replacement([f.digest for f in facts], [f.source for f in facts], start, inner)
        blocks = iter(rest[len(inner) :])
    block = next(blocks, None)
    for index, entry in enumerate(state.history[start:stop], start):
        while block is not None and block[0] <= index:
            yield block[1]
            block = next(blocks, None)
        yield entry.digest
    if block is not None:
        yield from (digest for position, digest in chain((block,), blocks) if position <= stop)

"""The run's request history, rendered for each target that was asked for; a step costs its new messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from operator import itemgetter

import msgspec

from contextbus.core.history import SourceHistory, digest_message
from contextbus.core.payload import interleave
from contextbus.core.persistent import Vector
from contextbus.core.placed_blocks import link_block
from contextbus.core.prefix import withhold_thinking
from contextbus.core.projection import order_replacement
from contextbus.core.rendering import Rendering
from contextbus.core.wire import Target
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.package import Package

PositionedBlock = tuple[int, ChatMessage]


class BlocksInPlace(msgspec.Struct, frozen=True):
    """The blocks in a run's history, each behind the first n source messages, in order.

    ``chain`` is the fold's chain digest of them: two sides with the same one hold the same blocks.
    """

    items: Vector[PositionedBlock] = Vector()
    chain: str = ""

    def add(self, position: int, messages: Mapping[str, ChatMessage]) -> BlocksInPlace:
        """These blocks with more behind them, by digest, all behind the first ``position`` source messages."""
        chain = self.chain
        for digest in messages:
            chain = link_block(chain, position, digest)
        return BlocksInPlace(self.items.extend((position, message) for message in messages.values()), chain)

    def keep(self, count: int) -> BlocksInPlace:
        """The blocks that stand within the first ``count`` source messages (D.F.14)."""
        if all(position <= count for position, _ in self.items):
            return self
        kept = BlocksInPlace()
        for position, message in self.items:
            if position <= count:
                kept = kept.add(position, {digest_message(message): message})
        return kept

    def before(self, count: int, package: Package) -> BlocksInPlace:
        """The blocks that a step of ``count`` messages was compiled behind: neither its own nor those of later steps.

        A stored step may be asked for again once its call has succeeded (D.R.7).
        """
        first = package.blocks[:1]  # an append block is like no other; a tail may be
        own = {digest_message(message) for block in first for message in block.messages}
        found = BlocksInPlace()
        for position, message in self.items:
            digest = digest_message(message)
            if position > count or (position == count and digest in own):
                break
            found = found.add(position, {digest: message})
        return self if found.chain == self.chain else found


class CheckpointInPlace(msgspec.Struct, frozen=True):
    """What stands in place of the first ``source_count`` source messages (C.L.1); ``blob`` names it.

    ``sources`` are the indices of the source messages that its messages are, None where one is none.
    """

    blob: str
    source_count: int
    messages: tuple[ChatMessage, ...]
    sources: tuple[int | None, ...]
    own: tuple[str, ...] = ()


class _State(msgspec.Struct, frozen=True):
    """The rendering of the first ``count`` source messages with the first ``placed`` blocks."""

    count: int
    placed: int
    rendering: Rendering


class RenderedHistory(Mapping[Target, Rendering]):
    """Renderings by target of one state of a history; made when asked for, grown from a state before.

    States of the past are kept at distances from the end that double, so that an edit costs what is behind it, up to
    four times over, and not the whole history.

    Args:
        history: the source messages.
        blocks: the blocks in it.
        before: the renderings of an earlier state.
        stale: ranges of source messages whose thinking is left out (D.F.20).
        checkpoint: what stands in place of the first of them.
    """

    def __init__(
        self,
        history: SourceHistory,
        blocks: BlocksInPlace,
        before: RenderedHistory | None = None,
        stale: tuple[tuple[int, int], ...] = (),
        checkpoint: CheckpointInPlace | None = None,
    ) -> None:
        self.history = history
        self.blocks = blocks
        self.stale = stale
        self.checkpoint = checkpoint
        self._made: dict[Target, Rendering] = {}
        self._states = {} if before is None else before.states_of(history, blocks, stale, checkpoint)

    def states_of(
        self,
        history: SourceHistory,
        blocks: BlocksInPlace,
        stale: tuple[tuple[int, int], ...],
        checkpoint: CheckpointInPlace | None = None,
    ) -> dict[Target, tuple[_State, ...]]:
        """The states of this history that a later one begins with, by target."""
        if _blob(checkpoint) != _blob(self.checkpoint):
            return {}
        count = self.history.count if history.begins_with(self.history) else history.count_common(self.history)
        known, later = self.blocks.items, blocks.items
        placed = len(known)
        if not later.begins_with(known):
            placed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, later, strict=False)))

        def stands(state: _State) -> bool:
            if state.count > count or state.placed > placed:
                return False
            if any(position < state.count for position, _ in islice(later.behind(state.placed), 1)):
                return False
            return stale == self.stale or _until(stale, state.count) == _until(self.stale, state.count)

        return {target: tuple(filter(stands, states)) for target, states in self._states.items()}

    def __getitem__(self, target: Target) -> Rendering:
        made = self._made.get(target)
        if made is None:
            states = self._states.get(target) or (self._begin(target),)
            states = self._grow(states)
            self._states[target] = states
            made = self._made[target] = states[-1].rendering
        return made

    def _grow(self, states: tuple[_State, ...]) -> tuple[_State, ...]:
        """States up to the whole history."""
        end, last = self.history.count, states[-1]
        start, base = last.count, last.rendering
        new = [e.message for e in self.history[start:] if e.message is not None]
        for first, behind in self.stale:
            for index in range(max(first, start), min(behind, start + len(new))):
                new[index - start] = withhold_thinking(new[index - start])
        blocks = list(self.blocks.items.behind(last.placed))
        grown, place, placed = [*states], start, 0
        for stop in _stops(start, end):
            until = len(blocks) if stop == end else bisect_left(blocks, stop, lo=placed, key=itemgetter(0))
            among = [(position - place, block) for position, block in blocks[placed:until]]
            base = base.extend(interleave(new[place - start : stop - start], among))
            place, placed = stop, until
            grown.append(_State(place, last.placed + placed, base))
        return _thin(grown, end)

    def _begin(self, target: Target) -> _State:
        """The rendering of what stands in place of the first source messages, with the blocks among them."""
        base, checkpoint = Rendering(target=target), self.checkpoint
        if checkpoint is None:
            return _State(0, 0, base)
        count = checkpoint.source_count
        among = [block for block in self.blocks.items if block[0] <= count]
        messages = [
            withhold_thinking(message) if source is not None and self._is_stale(source) else message
            for message, source in zip(checkpoint.messages, checkpoint.sources, strict=True)
        ]
        rendering = base.extend(order_replacement(messages, checkpoint.sources, count, among))
        return _State(count, len(among), rendering)

    def _is_stale(self, index: int) -> bool:
        return any(start <= index < end for start, end in self.stale)

    def __iter__(self) -> Iterator[Target]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def _blob(checkpoint: CheckpointInPlace | None) -> str:
    return "" if checkpoint is None else checkpoint.blob


def _until(stale: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    """The ranges within the first ``count`` messages."""
    return tuple((start, min(end, count)) for start, end in stale if start < count)


def _stops(start: int, end: int) -> list[int]:
    """The end, and before it places at distances from it that double."""
    distances = (1 << power for power in reversed(range((end - start).bit_length())))
    return [*(end - distance for distance in distances if end - distance > start), end]


def _thin(states: Iterable[_State], end: int) -> tuple[_State, ...]:
    """Of states as far from the end, to the power of two, the oldest; the last one is kept."""
    kept: dict[int, _State] = {}
    for state in states:
        distance = end - state.count
        if distance:
            kept.setdefault(distance.bit_length(), state)
        else:
            kept[0] = state
    return tuple(kept.values())

"""The run's request history, rendered for each target that was asked for; a step costs its new messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


class RenderedHistory(Mapping[Target, Rendering]):
    """Renderings by target of one state of a history; made when asked for, grown from the state before.

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
        self.made: dict[Target, Rendering] = {}
        self.base: tuple[int, int, dict[Target, Rendering]] = (0, 0, {})
        if before is not None and before.is_prefix_of(history, blocks, stale, checkpoint):
            grown = {name: before[name] for name in before.made} or before.base[2]
            at = (before.history.count, len(before.blocks.items)) if before.made else before.base[:2]
            self.base = (*at, grown)

    def is_prefix_of(
        self,
        history: SourceHistory,
        blocks: BlocksInPlace,
        stale: tuple[tuple[int, int], ...],
        checkpoint: CheckpointInPlace | None = None,
    ) -> bool:
        """Whether a later state only adds behind this one."""
        mine = self.history
        if stale != self.stale or _blob(checkpoint) != _blob(self.checkpoint) or not history.begins_with(mine):
            return False
        known = len(self.blocks.items)
        later = blocks.items
        return later.begins_with(self.blocks.items) and all(p >= mine.count for p, _ in later.behind(known))

    def __getitem__(self, target: Target) -> Rendering:
        made = self.made.get(target)
        if made is None:
            count, placed, grown = self.base
            base = grown.get(target)
            if base is None:
                count, placed, base = self._begin(target)
            new = [e.message for e in self.history[count:] if e.message is not None]
            for start, end in self.stale:
                for index in range(max(start, count), min(end, count + len(new))):
                    new[index - count] = withhold_thinking(new[index - count])
            blocks = [(position - count, block) for position, block in self.blocks.items.behind(placed)]
            made = self.made[target] = base.extend(interleave(new, blocks))
        return made

    def _begin(self, target: Target) -> tuple[int, int, Rendering]:
        """The rendering of what stands in place of the first source messages, with the blocks among them."""
        base, checkpoint = Rendering(target=target), self.checkpoint
        if checkpoint is None:
            return 0, 0, base
        count = checkpoint.source_count
        among = [block for block in self.blocks.items if block[0] <= count]
        messages = [
            withhold_thinking(message) if source is not None and self._is_stale(source) else message
            for message, source in zip(checkpoint.messages, checkpoint.sources, strict=True)
        ]
        return count, len(among), base.extend(order_replacement(messages, checkpoint.sources, count, among))

    def _is_stale(self, index: int) -> bool:
        return any(start <= index < end for start, end in self.stale)

    def __iter__(self) -> Iterator[Target]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def _blob(checkpoint: CheckpointInPlace | None) -> str:
    return "" if checkpoint is None else checkpoint.blob

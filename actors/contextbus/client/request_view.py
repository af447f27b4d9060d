"""The request history of a run as its host gets to see it: checkpoint, source messages and blocks (C.H.10)."""

from __future__ import annotations

import msgspec

from contextbus.client.rendered import BlocksInPlace, CheckpointInPlace
from contextbus.core.history import SourceHistory
from contextbus.core.payload import interleave
from contextbus.core.projection import order_replacement
from contextbus_protocol.callbacks import Composition
from contextbus_protocol.chat import ChatMessage


class RequestView(msgspec.Struct, frozen=True):
    """One state of a run's request history, with its texts."""

    history: SourceHistory = SourceHistory()
    blocks: BlocksInPlace = BlocksInPlace()
    checkpoint: CheckpointInPlace | None = None

    def messages(self) -> tuple[ChatMessage, ...]:
        """The history as the model gets it: append blocks and kept tails included (C.H.10)."""
        return (*self._replacement(self.blocks), *self._behind(self._covered(), None, self.blocks))

    def without_blocks(self) -> tuple[ChatMessage, ...]:
        """The history without our blocks; a summary is part of it (P.D.4)."""
        none = BlocksInPlace()
        return (*self._replacement(none), *self._behind(self._covered(), None, none))

    def compose(self, composition: Composition) -> tuple[ChatMessage, ...]:
        """The complete candidate that the host is to count (C.C.4)."""
        start = composition.source_count
        if start is None:
            return self.messages()
        if start < self._covered():  # nothing is left out: a checkpoint stands in place of what it covers
            behind = self._behind(self._covered(), composition.until, self.blocks)
            return (*composition.replacement, *self._replacement(self.blocks), *behind)
        return (*composition.replacement, *self._behind(start, composition.until, self.blocks))

    def _covered(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.source_count

    def _replacement(self, blocks: BlocksInPlace) -> list[ChatMessage]:
        """What stands in place of the first source messages, with the blocks among them."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return []
        among = [block for block in blocks.items if block[0] <= checkpoint.source_count]
        return order_replacement(checkpoint.messages, checkpoint.sources, checkpoint.source_count, among)

    def _behind(self, start: int, until: int | None, blocks: BlocksInPlace) -> tuple[ChatMessage, ...]:
        """The source messages behind the first ``start``, with the blocks behind them."""
        end = self.history.count if until is None else until
        messages = [message for message in self.history.messages()[start:end] if message is not None]
        return interleave(messages, [(at - start, block) for at, block in blocks.items if start < at <= end])

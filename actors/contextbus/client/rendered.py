"""The run's request history, rendered for each target that was asked for; a step costs its new messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contextbus.core.history import SourceHistory
from contextbus.core.payload import interleave, start_rendering
from contextbus.core.rendering import Rendering
from contextbus_protocol.chat import ChatMessage

PositionedBlock = tuple[int, ChatMessage]


class RenderedHistory(Mapping[str, Rendering]):
    """Renderings by target of one state of a history; made when asked for, grown from the state before.

    Args:
        history: the source messages.
        blocks: the blocks that were placed, each behind the first n source messages, in order.
        before: the renderings of an earlier state.
    """

    def __init__(
        self, history: SourceHistory, blocks: tuple[PositionedBlock, ...], before: RenderedHistory | None = None
    ) -> None:
        self.history = history
        self.blocks = blocks
        self.made: dict[str, Rendering] = {}
        self.base: tuple[int, int, dict[str, Rendering]] = (0, 0, {})
        if before is not None and before.is_prefix_of(history, blocks):
            grown = {name: before[name] for name in before.made} or before.base[2]
            at = (before.history.count, len(before.blocks)) if before.made else before.base[:2]
            self.base = (*at, grown)

    def is_prefix_of(self, history: SourceHistory, blocks: tuple[PositionedBlock, ...]) -> bool:
        """Whether a later state only adds behind this one."""
        mine = self.history
        if not history.begins_with(mine):
            return False
        known = len(self.blocks)
        return blocks[:known] == self.blocks and all(p >= mine.count for p, _ in blocks[known:])

    def __getitem__(self, target: str) -> Rendering:
        made = self.made.get(target)
        if made is None:
            count, placed, grown = self.base
            base = grown.get(target)
            if base is None:
                count, placed, base = 0, 0, start_rendering(target)
            new = [e.message for e in self.history[count:] if e.message is not None]
            blocks = [(position - count, block) for position, block in self.blocks[placed:]]
            made = self.made[target] = base.extend(interleave(new, blocks))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

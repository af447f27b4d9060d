"""The blocks in a run's request history: which step's block stands there (D.F.2, D.F.13)."""

from __future__ import annotations

import pytest

from contextbus.core.placed_blocks import PlacedBlock, PlacedBlocks
from contextbus_protocol.events import BlockFact


@pytest.mark.rule("D.F.2", "D.F.13")
def test_the_append_block_of_a_step_is_neither_its_tail_nor_the_block_of_a_later_step() -> None:
    append, tail = BlockFact("append", "sha256:block", 90), BlockFact("ephemeral-tail", "sha256:tail", 90)
    placed = [(0, append), (0, tail), (2, tail), (3, append)]
    blocks = PlacedBlocks().add(*(PlacedBlock(step, step + 1, step, fact, "sha256:package") for step, fact in placed))
    assert [step for step in range(5) if blocks.holds_append(step)] == [0, 3]
    assert not PlacedBlocks().holds_append(0)

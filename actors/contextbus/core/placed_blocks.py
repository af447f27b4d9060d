"""The blocks of ours that stand in a run's request history, in order, with running values (D.F.2, D.F.20)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from contextbus.core.persistent import Vector
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.events import BlockFact


class PlacedBlock(msgspec.Struct, frozen=True):
    """A block in the request history: it stands behind the first ``position`` source messages.

    An append block, or on a model that binds thinking the tail of its step (D.F.9).  ``package`` is the blob that holds
    its text.
    """

    step: int
    pass_: int
    position: int
    fact: BlockFact
    package: str


class PlacedBlocks(msgspec.Struct, frozen=True):
    """All of them, oldest first.

    ``eighteenths`` is their cost in eighteenths of a token; ``chain`` links position and digest of each, empty without
    any, so that two sides can tell whether they hold the same blocks.
    """

    items: Vector[PlacedBlock] = Vector()
    eighteenths: int = 0
    chain: str = ""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[PlacedBlock]:
        return iter(self.items)

    def add(self, *blocks: PlacedBlock) -> PlacedBlocks:
        """These blocks with more behind them."""
        chain, cost = self.chain, self.eighteenths
        for block in blocks:
            chain = link_block(chain, block.position, block.fact.digest)
            cost += block.fact.eighteenths
        return PlacedBlocks(self.items.extend(blocks), cost, chain)

    def drop(self, leaves: Callable[[PlacedBlock], bool]) -> tuple[PlacedBlocks, tuple[PlacedBlock, ...]]:
        """These blocks without some, and those; the cost is that of all blocks (D.F.14)."""
        gone = tuple(block for block in self.items if leaves(block))
        if not gone:
            return self, ()
        return PlacedBlocks().add(*(block for block in self.items if not leaves(block))), gone

    def replace(self, package: str, other: str) -> PlacedBlocks:
        """These blocks with the text of some in another blob (D.J.6)."""
        changed = (
            msgspec.structs.replace(block, package=other) if block.package == package else block for block in self.items
        )
        return msgspec.structs.replace(self, items=Vector[PlacedBlock]().extend(changed))

    def holds_append(self, step: int) -> bool:
        """Whether the append block of a step, one of the newest, stands in the history."""
        for block in self.items.backwards():
            if block.step < step:
                return False
            if block.step == step and block.fact.placement == "append":
                return True
        return False


def link_block(chain: str, position: int, digest: str) -> str:
    """The chain digest with one more block behind it."""
    return extend_chain(chain or EMPTY_CHAIN, f"{position}:{digest}")

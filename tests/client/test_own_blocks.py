"""Which blocks are known as ours: those in the history and those that can still be handed back (D.F.19, D.G.33)."""

from __future__ import annotations

import pytest

from contextbus.client.own_blocks import OwnBlocks


@pytest.mark.rule("D.F.19", "D.G.33")
def test_a_block_is_known_while_it_can_be_handed_back() -> None:
    own = OwnBlocks(kept_steps=3)
    assert not own
    own.send(["append 0", "tail 0"])
    own.place(["append 0"])
    for step in range(1, 4):
        own.send([f"tail {step}"])
    assert sorted(own) == ["append 0", "tail 1", "tail 2", "tail 3"]  # what stands in the history is always known
    assert "tail 1" in own  # handed back, so it is known for three more steps
    for step in range(4, 6):
        own.send([f"tail {step}"])
    assert sorted(own) == ["append 0", "tail 1", "tail 3", "tail 4", "tail 5"]
    own.replace(["append 9"])  # the history went another way: what left it can be handed back for a while
    assert sorted(own) == ["append 0", "append 9", "tail 1", "tail 3", "tail 4", "tail 5"]
    for step in range(6, 9):
        own.send([f"tail {step}"])
    assert sorted(own) == ["append 9", "tail 6", "tail 7", "tail 8"]


@pytest.mark.rule("D.G.33")
def test_what_is_known_does_not_grow_with_the_steps() -> None:
    own = OwnBlocks()
    for step in range(2_000):
        own.send([f"append {step}", f"tail {step}"])
    assert len(own) == len(list(own)) == 512


@pytest.mark.rule("D.F.19")
def test_a_host_that_keeps_every_tail_has_all_of_them_known() -> None:
    own, handed = OwnBlocks(kept_steps=4), list[str]()
    for step in range(50):
        assert all(tail in own for tail in handed)
        own.send([f"tail {step}"])
        handed.append(f"tail {step}")
    assert len(own) == 50

"""Working memory's part of the budget: what the tail must hold and what else it takes (D.B.8, D.B.20, D.P)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.blocks import user_block
from contextbus.core.estimate import Estimator
from contextbus.core.working_memory_items import MemoryItem, fixed_text, section_wrapper


class TailCost(msgspec.Struct, frozen=True):
    """What the tail costs before optional items, in tokens.

    ``fixed`` is its fixed text with its message; ``mandatory`` is M of D.B.20, 0 without a mandatory item.
    """

    fixed: int = 0
    mandatory: int = 0


class TailFill(msgspec.Struct, frozen=True):
    """Which items are in the tail, and the cost of each in tokens; both parallel to the items.

    ``tokens`` is what the tail takes in all, its fixed text included.
    """

    selected: tuple[bool, ...] = ()
    costs: tuple[int, ...] = ()
    tokens: int = 0


def measure_tail(items: Sequence[MemoryItem], revision: int, estimator: Estimator) -> TailCost:
    """Cost of the tail's fixed text and of its mandatory items, each rounded up by itself (D.B.20, D.M.13)."""
    if not items:
        return TailCost()
    fixed = estimator.tokens(estimator.message(user_block(fixed_text(items, revision))))
    mandatory = [estimator.count(item.rendered) for item in items if item.mandatory]
    return TailCost(fixed, fixed + sum(mandatory) if mandatory else 0)


def fill_tail(items: Sequence[MemoryItem], cost: TailCost, room: int, estimator: Estimator) -> TailFill:
    """Take all mandatory items, and optional ones in fill order while they fit ``room`` tokens (D.B.20, D.P.5).

    The wrapper of an optional section is paid by the first item taken from it, the tail's fixed text by the first
    optional item if no item is mandatory.
    """
    selected: list[bool] = []
    costs: list[int] = []
    unpaid = 0 if cost.mandatory else cost.fixed
    taken = 0
    opened: set[str] = set()
    for item in items:
        if item.mandatory:
            selected.append(True)
            costs.append(estimator.count(item.rendered))
            continue
        wrapper = "" if item.section in opened else section_wrapper(item.section)
        tokens = estimator.tokens(estimator.text(wrapper) + estimator.text(item.rendered))
        fits = taken + unpaid + tokens <= room
        selected.append(fits)
        costs.append(tokens)
        if fits:
            opened.add(item.section)
            taken += unpaid + tokens
            unpaid = 0
    return TailFill(tuple(selected), tuple(costs), cost.mandatory + taken)

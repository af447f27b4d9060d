"""The ids that calls have in a request: injective, and once given they stay (P.E.7, P.E.21)."""

from __future__ import annotations

from typing import Final

import msgspec

from contextbus.core.persistent import Counts
from contextbus.core.wire import RepairCode, Target, digest_hex

_SUFFIX: Final = 8
"""Code points kept free for the number of a repeated id."""


class CallIds(msgspec.Struct, frozen=True):
    """How often each id was seen, and the wire ids that are given."""

    seen: Counts = Counts()
    given: Counts = Counts()

    def mint(self, call_id: str, target: Target) -> tuple[CallIds, str, tuple[RepairCode, ...]]:
        """A wire id that no other call has: the id itself where it can be, else one made from it.

        Returns:
            The ids with this one, the wire id, and the repairs it took.
        """
        number = self.seen.get(call_id) + 1
        seen = self.seen.set(call_id, number)
        made = f"call_{digest_hex(call_id)[:24]}"
        taken = target.takes_id(call_id)
        wire_id = call_id if taken else made
        codes: tuple[RepairCode, ...] = () if taken else ("id",)
        if self.given.get(wire_id):
            codes = (*codes, "repeated-id")
            base = wire_id if target.takes_id(wire_id + "-" * _SUFFIX) else made
            number = max(number, 2)
            while self.given.get(wire_id := f"{base}-{number}"):
                number += 1
        return CallIds(seen, self.given.set(wire_id, 1)), wire_id, codes

"""What a host counts."""

from __future__ import annotations

import msgspec


class HostStats(msgspec.Struct):
    """Counters since the host was made.

    Attributes:
        handled: Messages that a rule took.
        ignored: Of these, the ones that changed nothing and caused nothing: duplicates and answers to dead flights.
        late: Answers and timers dropped because nobody waits for them any more.
        unroutable: Messages dropped because their address does not exist here.
        refused: Messages that were not let in.
        raised: Messages on which a rule raised.
        unsent: Messages that the bus did not take; they are not kept for later.
    """

    handled: int = 0
    ignored: int = 0
    late: int = 0
    unroutable: int = 0
    refused: int = 0
    raised: int = 0
    unsent: int = 0

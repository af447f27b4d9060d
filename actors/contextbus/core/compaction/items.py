"""One message of a request history, as compaction sees it."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.chat import ChatMessage


class Item(msgspec.Struct, frozen=True):
    """One message of a request history as compaction sees it.

    ``own`` tells blocks of ours: ``block`` an append block or kept tail, ``summary`` an earlier summary (D.G.33,
    C.E.9).  ``message`` is None for a block whose text is not at hand; ``cost`` is in eighteenths of a token where an
    estimator counts, else 0.
    """

    message: ChatMessage | None
    own: Literal["", "block", "summary"] = ""
    cost: int = 0

"""The messages that are to be summarised, as the one text that a model gets (C.F.4)."""

from __future__ import annotations

from collections.abc import Sequence

from contextbus.core.ai_sdk import serialise
from contextbus.core.compaction.summariser_input import strip_provider_data
from contextbus_protocol.chat import ChatMessage


def write_prompt(messages: Sequence[ChatMessage]) -> str:
    """JSON of these messages without what is a provider's own: signatures, encrypted reasoning, cache marks."""
    # A compaction hands over bare messages already, since summarisers read them too; a request that somebody makes by
    # hand may hold raw ones, and nothing of a provider's own may reach another.
    return serialise(map(strip_provider_data, messages))

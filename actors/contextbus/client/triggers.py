"""When a history is to be compacted: predicates on a snapshot, by themselves or as triggers of a run (C.H)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from contextbus.core.compaction.policy import check_positive
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import Trigger


class CompactionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger looks at (C.H.1).

    ``messages`` are the history as the model gets it; ``tokens`` is what the caller counted, in a run an estimate of
    the whole request (C.H.9).  ``cache_age_ms`` is the age of the last call that used the provider's cache, and
    ``cache_retention_ms`` how long that keeps, in milliseconds, None where unknown.
    """

    messages: tuple[ChatMessage, ...] = ()
    tokens: int = 0
    cache_age_ms: int | None = None
    cache_retention_ms: int | None = None


TriggerFunction = Callable[[CompactionSnapshot], Awaitable[object] | object]
"""A trigger of the host's own, async or not; what it gives counts by its truth (C.H.8)."""


class DataTrigger(msgspec.Struct, frozen=True):
    """A trigger that a run evaluates without its host; called, it says whether it matches a snapshot."""

    trigger: Trigger

    def __call__(self, snapshot: CompactionSnapshot) -> bool:
        """Whether it matches."""
        limit = self.trigger.limit
        match self.trigger.kind:
            case "tokens-exceed":
                return limit is not None and snapshot.tokens > limit
            case "messages-exceed":
                return limit is not None and len(snapshot.messages) > limit
            case _:
                retention = snapshot.cache_retention_ms if limit is None else limit
                age = snapshot.cache_age_ms
                return age is not None and retention is not None and age >= retention


def tokens_exceed(n: int) -> DataTrigger:
    """More than ``n`` tokens (C.H.2).

    Raises:
        RangeError: it is no positive safe integer (C.H.4).
    """
    return DataTrigger(Trigger(kind="tokens-exceed", limit=check_positive("tokens_exceed", n)))


def messages_exceed(n: int) -> DataTrigger:
    """More than ``n`` messages of the model's, summaries and tool messages included (C.H.3).

    Raises:
        RangeError: it is no positive safe integer (C.H.4).
    """
    return DataTrigger(Trigger(kind="messages-exceed", limit=check_positive("messages_exceed", n)))


def cache_likely_cold(retention_ms: int | None = None) -> DataTrigger:
    """The provider's cache is likely gone: its age is known and not below its retention (C.H.5, C.H.6).

    Args:
        retention_ms: how long it is kept, in milliseconds, in place of what the request told.

    Raises:
        RangeError: it is no positive safe integer.
    """
    if retention_ms is not None:
        check_positive("retention_ms", retention_ms)
    return DataTrigger(Trigger(kind="cache-likely-cold", limit=retention_ms))


def protocol_triggers(triggers: tuple[TriggerFunction, ...]) -> tuple[Trigger, ...]:
    """The triggers as a run's options have them; one of the host's own is asked for by its index."""
    return tuple(t.trigger if isinstance(t, DataTrigger) else Trigger(kind="custom") for t in triggers)

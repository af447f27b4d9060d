"""Interest in a subject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import nats.aio.subscription
import nats.errors

from contextbus.runtime.nats_client import Client, Delivery, Handler


class Subscription:
    """Interest in a subject, kept over reconnects."""

    def __init__(self, subject: str, queue: str, handler: Handler) -> None:
        self.subject = subject
        self.queue = queue
        self._handler = handler
        self._bound: nats.aio.subscription.Subscription | None = None

    async def bind(self, client: Client) -> None:
        """Make the subscription at a client."""
        self._bound = await client.subscribe(
            self.subject, self.queue, future=Delivery(self._handler)
        )

    async def drain(self) -> None:
        """End the interest; messages that the server has already given out are still delivered."""
        if self._bound is not None:
            bound, self._bound = self._bound, None
            drain: Callable[[], Awaitable[None]] = bound.drain
            try:
                await drain()
            except nats.errors.Error:
                return  # the client is gone, and the interest with it

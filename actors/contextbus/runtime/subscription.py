"""Interest in a subject."""

from __future__ import annotations

from contextlib import suppress

import nats.aio.subscription
import nats.errors

from contextbus.runtime.nats_client import Client, Delivery, Handler

DRAIN_SECONDS = 10.0


class Subscription:
    """Interest in a subject, kept over reconnects."""

    def __init__(self, subject: str, queue: str, handler: Handler) -> None:
        self.subject = subject
        self.queue = queue
        self._handler = handler
        self._client: Client | None = None
        self._bound: nats.aio.subscription.Subscription | None = None

    async def bind(self, client: Client) -> None:
        """Make the subscription at a client."""
        self._client = client
        self._bound = await client.subscribe(self.subject, self.queue, future=Delivery(self._handler))

    async def drain(self) -> None:
        """End the interest; messages that the server has already given out are still delivered."""
        client, bound, self._bound = self._client, self._bound, None
        if client is not None and bound is not None:
            # A client that is gone took the interest with it.
            with suppress(nats.errors.Error):
                await client.unlisten(bound, DRAIN_SECONDS)

"""How a memory source has redactions recorded: it asks selection over a host, as a client does."""

from __future__ import annotations

from contextbus.client.asking import ask
from contextbus.runtime.host import Host
from contextbus.sources.forgetting import Redact
from contextbus_protocol.commands import Recorded, RedactPackages
from contextbus_protocol.errors import InvalidTypeError


def redact_over(host: Host) -> Redact:
    """Make what asks selection to record redactions, over as many attempts as the client's machine allows.

    Args:
        host: Whom it asks over: selection of the same process, or one on the bus.
    """

    async def redact(command: RedactPackages) -> Recorded:
        answer = await ask(host, "selection", command)
        if not isinstance(answer, Recorded):
            raise InvalidTypeError(f"selection answered with {type(answer).__name__}, not Recorded; same release?")
        return answer

    return redact

#!/usr/bin/env python3
"""Exit 0 when a service of the given name answers NATS service discovery, else 1 with the reason.

Usage: contextbus-healthcheck SERVICE.  Reads CTX_NATS (servers) and CTX_TENANT (inbox prefix).
"""

import asyncio
import os
import sys

import nats
from nats.errors import Error

ANSWER_SECONDS = 2.0


async def ping(service: str) -> None:
    """Ask service discovery for one instance of a service.

    Args:
        service: the name under which the actor or worker has registered.

    Raises:
        nats.errors.Error: nobody answered, or the servers cannot be reached.
        OSError: the servers cannot be reached.
        TimeoutError: connecting took longer than the answer time.
    """
    connection = await asyncio.wait_for(
        nats.connect(
            os.environ["CTX_NATS"].split(","),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            inbox_prefix=f"ctx.inbox.{os.environ.get('CTX_TENANT', 'default')}.health".encode(),
        ),
        timeout=ANSWER_SECONDS,
    )
    try:
        await connection.request(f"$SRV.PING.{service}", timeout=ANSWER_SECONDS)
    finally:
        await connection.close()


if __name__ == "__main__":
    try:
        asyncio.run(ping(sys.argv[1]))
    except (Error, OSError, TimeoutError) as error:
        sys.exit(f"{sys.argv[1]} does not answer: {type(error).__name__}")

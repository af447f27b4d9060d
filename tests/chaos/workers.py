"""Source workers for processes of their own: ``contextbus worker tests/chaos/workers.py``.

What they find depends on the query alone.  ``CHAOS_DELAY_<ID>`` delays a source by seconds; ``CHAOS_HANG`` names one
that takes a query and never answers; ``CHAOS_SEEN`` is a folder in which a process leaves a file for each source whose
query it took.
"""

from __future__ import annotations

import hashlib
import os

import anyio

from contextbus.sources.interface import candidate, source
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate


async def find(name: str, query: Query) -> list[Candidate]:
    """Records drawn from the query's text."""
    seen = os.environ.get("CHAOS_SEEN")
    if seen:
        await anyio.Path(seen, f"{name}.{os.getpid()}").touch()
    if os.environ.get("CHAOS_HANG") == name:
        await anyio.sleep(3600)
    await anyio.sleep(float(os.environ.get(f"CHAOS_DELAY_{name.upper()}", "0")))
    word = hashlib.sha256(f"{name}/{query.text}".encode()).hexdigest()[:12]
    return [
        candidate(f"{name}-{n}", f"{name} record {n} on {word}: " + "detail " * (3 + n), 1 / (n + 1))
        for n in range(min(query.limit, 6))
    ]


@source(id="notes", kind="memory")
async def notes(query: Query) -> list[Candidate]:
    """Records of kind memory."""
    return await find("notes", query)


@source(id="manual", kind="rag")
async def manual(query: Query) -> list[Candidate]:
    """Records of kind rag."""
    return await find("manual", query)


@source(id="chats", kind="transcript")
async def chats(query: Query) -> list[Candidate]:
    """Records of kind transcript."""
    return await find("chats", query)


@source(id="tickets", kind="rag")
async def tickets(query: Query) -> list[Candidate]:
    """More records of kind rag."""
    return await find("tickets", query)


ALL = (notes, manual, chats, tickets)

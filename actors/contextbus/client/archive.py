"""What a compaction replaced, read back by its address (C.X.8)."""

from __future__ import annotations

import re
from typing import Final

from contextbus.client.reading import read_blobs, read_part
from contextbus.core.compaction.composition import ARCHIVE_SCHEME
from contextbus.runtime.drive import JournalDriver
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError, NotFoundError
from contextbus_protocol.events import CompactionCompleted, SummaryRedacted

_URI: Final = re.compile(re.escape(ARCHIVE_SCHEME) + r"([0-9a-f]{64})")


async def read_archive(driver: JournalDriver, run: str, uri: str) -> tuple[ChatMessage, ...]:
    """The messages of an archived span of a run.

    Args:
        driver: reads the tenant's log and packages.
        run: the run that was compacted.
        uri: the address at the end of a summary.

    Raises:
        InvalidRequestError: it is no such address.
        NotFoundError: the run has no such span, or a forget took it.
        InvalidTypeError: its bytes are damaged.
        DeadlineExceededError: log or store do not answer.
    """
    found = _URI.fullmatch(uri)
    if found is None:
        raise InvalidRequestError(f"an archived span has the address {ARCHIVE_SCHEME} and 64 hex digits")
    reference = f"sha256:{found[1]}"
    events = [event for logged in await read_part(driver, run, "run") for event in logged.commit.events]
    if not any(isinstance(event, CompactionCompleted) and event.archive == reference for event in events):
        raise NotFoundError(f"run {run!r} has no archived span of this address")
    data = (await read_blobs(driver, run, (reference,))).get(reference)
    if data is None:
        forgotten = any(isinstance(event, SummaryRedacted) and event.archive == reference for event in events)
        why = "a forget took what is archived here" if forgotten else "what is archived here is no longer stored"
        raise NotFoundError(why)
    if digests.digest_bytes(data) != reference:
        raise InvalidTypeError("what is archived here is damaged: its digest is another")
    return blobs.decode_archive(data).messages

"""What stays of a stored package when a record is taken out of it, and which blobs hold what a record said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from contextbus_protocol import blobs, codec
from contextbus_protocol.commands import StepCompiled
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.package import Block, Package
from contextbus_protocol.questions import Offered
from contextbus_protocol.values import Candidate, SourceResult

RECORD_ID: Final = re.compile(rb"m-[0-9a-f]{32}")
"""The ids that a memory store gives (D.K.24)."""

# Messages that travel by reference and can hold what a memory record said; the others hold what users said.
_CARRIERS: Final = (Offered, Place, StepCompiled)
_BEGINNING: Final = re.compile(
    rb'\{(?:"type":"[a-z-]+",)?"version":\d+,"(messages|entries|package|redacts|records|replacement|archived)":'
)
_COMPACTED: Final = (b"records", b"replacement", b"archived")
_KEPT: Final = (b"messages", b"entries")


def redact_output(data: bytes | None, reference: str, *, source: str, record_id: str, placed: bool) -> bytes:
    """The blob that takes the place of a step's output, without one record of a source (D.J.4, D.J.6).

    The user's text, the queries and what callbacks returned go with the old blob (D.D.25).

    Args:
        data: The blob as it is stored: a whole output, or what an earlier forget left of one; None if it is gone.
        reference: The reference of that blob.
        source: The source of the record.
        record_id: The record.
        placed: Whether the step placed it: then its block held it, and goes (D.J.6).
    """
    results, kept = _read(data)
    results = tuple(_without(result, source, record_id) for result in results)
    if placed:
        kept = tuple(block for block in kept if block.placement != "append")
    return blobs.encode_redacted(reference, results, kept)


def _read(data: bytes | None) -> tuple[tuple[SourceResult, ...], tuple[Block, ...]]:
    if data is None:
        return (), ()
    try:
        output = blobs.decode_output(data)
        return _merge(output.results, output.restored), codec.decode_json(bytes(output.package), Package).blocks
    except ContextBusError:
        pass
    try:
        left = blobs.decode_redacted(data)
    except ContextBusError:
        return (), ()  # damaged: nothing of it can be used
    return left.results, left.blocks


def _merge(results: tuple[SourceResult, ...], restored: Sequence[SourceResult]) -> tuple[SourceResult, ...]:
    """One answer for each source: what it offered now, then what it had offered before that was restored (D.H.5)."""
    merged = {result.source: result for result in results}
    for result in restored:
        known = merged.get(result.source)
        if known is None:
            merged[result.source] = result
            continue
        ids = {(candidate.record_id, candidate.digest) for candidate in known.candidates}
        more = tuple(one for one in result.candidates if (one.record_id, one.digest) not in ids)
        merged[result.source] = msgspec.structs.replace(known, candidates=known.candidates + more)
    return tuple(merged.values())


def _without(result: SourceResult, source: str, record_id: str) -> SourceResult:
    kept: Iterable[Candidate] = result.candidates
    if result.source == source:
        kept = (candidate for candidate in kept if candidate.record_id != record_id)
    bare = tuple(msgspec.structs.replace(candidate, query=None) for candidate in kept)
    return msgspec.structs.replace(result, candidates=bare)


def named_records(data: bytes) -> frozenset[str]:
    """The memory records whose text a blob may hold: none for source messages and for facts (D.J.7)."""
    found = frozenset(name.decode() for name in RECORD_ID.findall(data))
    if not found or is_kept(data):
        return frozenset()
    listed = _listed_records(data)
    if listed is not None:
        return found & listed
    message = _message_of(data)
    return found if message is None or _carries(message) else frozenset()


def _listed_records(data: bytes) -> frozenset[str] | None:
    """The records that the blob of a checkpoint lists (C.X.11); None for any other bytes."""
    found = _BEGINNING.match(data)
    if found is None or found[1] not in _COMPACTED:
        return None
    for decode in (blobs.decode_replacement, blobs.decode_archive):
        try:
            return frozenset(record.record_id for record in decode(data).records)
        except ContextBusError:
            continue
    return None


def _carries(message: AnyMessage) -> bool:
    """Whether a message that travels by reference can hold what a record said: a summary is not the user's words."""
    return isinstance(message, _CARRIERS) or (isinstance(message, Record) and bool(message.blobs))


def is_kept(data: bytes) -> bool:
    """Whether a blob, or the first chunk of one, holds source messages or facts, which no forget touches."""
    found = _BEGINNING.match(data)
    return found is not None and found[1] in _KEPT


def begins_blob(data: bytes) -> bool:
    """Whether a chunk is the first of a blob that a step stores."""
    return _BEGINNING.match(data) is not None


def _message_of(data: bytes) -> AnyMessage | None:
    for content_type in (codec.MSGPACK, codec.JSON):
        try:
            return codec.decode_message(data, content_type)
        except ContextBusError:
            continue
    return None

"""Blobs that no commit names: a step that died may have left a record's text in one, or in chunks without a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby

from contextbus.runtime.journal import Journal
from contextbus.runtime.package_store import CHUNK_BYTES, PackageStore
from contextbus.sources import memory_log
from contextbus.sources.citations import Uncommitted
from contextbus.sources.redaction import begins_blob, named_records
from contextbus_protocol import subjects

Found = list[tuple[int, frozenset[str]]]
"""Sequences of blobs, each with the memory records that it names."""


async def read_uncommitted(
    journal: Journal, packages: PackageStore, tenant: str, blobs: Sequence[Uncommitted]
) -> Found:
    """Look into blobs; one that is gone, or that no forget touches, names no record.

    Args:
        journal: The streams.
        packages: The package store over them.
        tenant: The tenant.
        blobs: The blobs in the order of their stream.

    Raises:
        DeadlineExceededError: the store does not answer.
    """
    found: Found = []
    listed: set[tuple[str, str]] = set()
    for blob in blobs:
        if blob.size >= CHUNK_BYTES:
            continue
        chunks = await memory_log.insist(partial(packages.chunks_of, blob.run, blob.reference))
        if chunks:
            listed.update((blob.run, chunk) for chunk in chunks)
            whole = await memory_log.insist(partial(packages.get, blob.run, (blob.reference,)))
            found.append((blob.sequence, named_records(whole[0][1]) if whole else frozenset()))
    done = {sequence for sequence, _ in found}
    # A chunk of a listed blob is erased with its list.
    found += [(blob.sequence, frozenset()) for blob in blobs if (blob.run, blob.reference) in listed]
    done.update(sequence for sequence, _ in found)
    left = [blob for blob in blobs if blob.sequence not in done]
    left.sort(key=lambda blob: (blob.run, blob.command, blob.sequence))
    for _, group in groupby(left, key=lambda blob: (blob.run, blob.command)):
        found += await _read_group(journal, tenant, tuple(group))
    return found


async def _read_group(journal: Journal, tenant: str, blobs: tuple[Uncommitted, ...]) -> Found:
    """Look into what one command stored: chunks without a list are read together, for a name may stand across two."""
    found: Found = []
    joined: list[tuple[int, bytes]] = []
    for blob in blobs:
        data = await memory_log.insist(partial(journal.get, subjects.blob(tenant, blob.run, blob.reference)))
        if data is None:
            found.append((blob.sequence, frozenset()))
            continue
        if joined and (begins_blob(data) or len(joined[-1][1]) < CHUNK_BYTES):
            found += _name(joined)
            joined = []
        joined.append((blob.sequence, data))
    return found + _name(joined)


def _name(chunks: Iterable[tuple[int, bytes]]) -> Found:
    chunks = tuple(chunks)
    data = b"".join(part for _, part in chunks)
    names = named_records(data)
    return [(sequence, names) for sequence, _ in chunks]

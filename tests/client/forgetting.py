"""Forget a record of a run as a memory worker does it: put what stays, tell the run, erase what was."""

from __future__ import annotations

from typing import Any

import msgspec

import contextbus.client as contextbus
from contextbus.actors.append import BlobsPut
from contextbus.client.asking import ask
from contextbus.client.sending import Sender
from contextbus.runtime.journal import Journal
from contextbus.runtime.package_store import PackageStore
from contextbus_protocol import blobs, digests, subjects
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import RedactedPackage, RedactPackages
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.package import Package
from contextbus_protocol.values import SourceResult


async def forget(bus: contextbus.ContextBus, run: str, record: str, source: str = "rag") -> tuple[str, ...]:
    """Take a record out of every package of a run that holds it; the references of the packages that are gone."""
    log = await bus.log(run)
    stored = await bus.blobs(log)
    store = PackageStore(journal_of(bus), bus.tenant)
    done: list[RedactedPackage] = []
    for logged in log.commits:
        for event in logged.commit.events:
            data = stored.get(event.package) if isinstance(event, StepCompiled) else None
            if data is None or not isinstance(event, StepCompiled):
                continue
            output = blobs.decode_output(data)
            offers = (*output.results, *output.restored)
            if not any(r.source == source and c.record_id == record for r in offers for c in r.candidates):
                continue
            package = decode_json(bytes(output.package), Package)
            carried = any(e.selected and (e.source, e.record_id) == (source, record) for e in event.entries)
            kept = tuple(b for b in package.blocks if not carried or b.placement != "append")
            left = blobs.encode_redacted(event.package, tuple(_without(r, source, record) for r in offers), kept)
            reference = digests.digest_bytes(left)
            assert isinstance(await store.put(run, ((reference, left),), "forget"), BlobsPut)
            done.append(RedactedPackage(event.step, event.package, reference))
    head = Sender(bus.host, bus.tenant, run).head(None, 10.0)
    await ask(
        bus.host,
        "selection",
        RedactPackages(**head, source=source, record_id=record, erasure=0, packages=tuple(done)),
    )
    for gone in done:
        await erase_blob(bus, run, gone.package)
    return tuple(gone.package for gone in done)


def journal_of(bus: Any) -> Journal:
    """The journal of a bus, which is its own."""
    journal: Journal = bus._journal
    return journal


async def erase_blob(bus: contextbus.ContextBus, run: str, reference: str) -> None:
    """Erase a blob of a run, as a forget or retention does."""
    journal, subject = journal_of(bus), subjects.blob(bus.tenant, run, reference)
    sequences = await journal.sequences(subject)
    assert isinstance(sequences, tuple)
    assert sequences, subject
    for sequence in sequences:
        assert await journal.erase(subject, sequence) is True


def _without(result: SourceResult, source: str, record: str) -> SourceResult:
    if result.source != source:
        return result
    return msgspec.structs.replace(result, candidates=tuple(c for c in result.candidates if c.record_id != record))

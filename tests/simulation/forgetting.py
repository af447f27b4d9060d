"""A simulated forget: tombstone, redactions of every package that holds the record, erased blobs (design: section 3).

It reads the log as it stands instead of an index, and goes on until nothing is due, whatever was committed meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from contextbus import __version__
from contextbus.core.step import POLICY
from contextbus_protocol import blobs, codec, digests, subjects
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import ErrorReply, Recorded, RedactedPackage, RedactedSummary, RedactPackages
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import (
    Commit,
    CompactionCompleted,
    PackageRedacted,
    RecordErased,
    StepCompiled,
    SummaryRedacted,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.package import Block, Package
from contextbus_protocol.values import SourceResult
from tests.simulation.asking import Asker
from tests.simulation.world import TENANT, World


class Citation(NamedTuple):
    """A stored package that still holds a record; ``placed`` tells that its append block does."""

    step: int
    package: str
    placed: bool
    sequence: int


def citations(world: World, run: str, source: str, record_id: str) -> list[Citation]:
    """The packages of a run that hold a record and were not redacted for it, each by its present blob."""
    found: dict[str, Citation] = {}
    for sequence, data in world.server.records(subjects.log(TENANT, run, "run")):
        for event in codec.decode_commit(data).events:
            if isinstance(event, StepCompiled):
                cited = [e for e in event.entries if (e.source, e.record_id) == (source, record_id)]
                if cited:
                    found[event.package] = Citation(event.step, event.package, any(e.selected for e in cited), sequence)
            elif isinstance(event, PackageRedacted) and event.package in found:
                known = found.pop(event.package)
                if (event.source, event.record_id) != (source, record_id):
                    found[event.replacement] = known._replace(package=event.replacement)
    return list(found.values())


class Summary(NamedTuple):
    """A stored summary that may tell of a record."""

    replaced_by: str
    archive: str | None
    sequence: int


def summaries(world: World, run: str, source: str, record_id: str) -> list[Summary]:
    """The summaries of a run that may tell of a record and were not redacted for it (C.X.11)."""
    found: dict[str, Summary] = {}
    for sequence, data in world.server.records(subjects.log(TENANT, run, "run")):
        for event in codec.decode_commit(data).events:
            if isinstance(event, CompactionCompleted):
                if any((r.source, r.record_id) == (source, record_id) for r in event.records):
                    found[event.replaced_by] = Summary(event.replaced_by, event.archive, sequence)
            elif isinstance(event, SummaryRedacted) and (event.source, event.record_id) == (source, record_id):
                found.pop(event.replaced_by, None)
    return list(found.values())


def current_blob(world: World, run: str, package: str) -> str:
    """The blob that has taken the place of a package by now."""
    for _, data in world.server.records(subjects.log(TENANT, run, "run")):
        for event in codec.decode_commit(data).events:
            if isinstance(event, PackageRedacted) and event.package == package:
                package = event.replacement
    return package


class Forgetter(Asker):
    """Forgets records of one memory source in some runs."""

    def __init__(self, world: World, runs: tuple[str, ...]) -> None:
        super().__init__(world, "forgetter")
        self.runs = runs
        self.forgotten: dict[tuple[str, str], int] = {}
        self.errors: list[str] = []
        self._serial = 0
        self._due: list[tuple[str, str, str]] = []

    def forget(self, source: str, record_id: str) -> None:
        """Forget a record: its source no longer offers it, and every package that holds it is redacted."""
        key = (source, record_id)
        if key in self.forgotten:
            return
        subject = subjects.erasures(TENANT)
        records = self.world.server.records(subject)
        event = RecordErased(source=source, record_id=record_id, digests=self.world.records.digests(*key))
        commit = Commit(
            version=codec.COMMIT_VERSION,
            tenant=TENANT,
            run="",
            part="erasures",
            command=f"forget/{source}/{record_id}",
            command_digest="",
            attempt=1,
            engine=__version__,
            policy=POLICY,
            previous=digests.digest_bytes(records[-1][1]) if records else "",
            at=0,
            events=(event,),
        )
        self.forgotten[key] = self.world.server.write(subject, codec.encode_commit(commit), commit.command)
        self.world.records.forgotten.add(key)
        self.settle()

    def settle(self) -> None:
        """Begin with whatever is due, unless something is under way already."""
        if not self._due and self.asking is None:
            self._due = [
                (run, *key)
                for key in self.forgotten
                for run in self.runs
                if citations(self.world, run, *key) or summaries(self.world, run, *key)
            ]
            self._go_on()

    def erase_spent(self) -> None:
        """Erase the blobs that redactions replaced, also those that a late attempt put once more."""
        for run in self.runs:
            for _, data in self.world.server.records(subjects.log(TENANT, run, "run")):
                for event in codec.decode_commit(data).events:
                    if isinstance(event, PackageRedacted):
                        self.world.server.erase(run, event.package)
            self._erase_summaries(run)

    def _erase_summaries(self, run: str) -> None:
        """Erase the texts of summaries that were redacted, unless the same text was made anew."""
        gone: dict[str, None] = {}
        for _, data in self.world.server.records(subjects.log(TENANT, run, "run")):
            for event in codec.decode_commit(data).events:
                if isinstance(event, SummaryRedacted):
                    gone |= {blob: None for blob in (event.replaced_by, event.archive) if blob is not None}
                elif isinstance(event, CompactionCompleted):
                    gone.pop(event.replaced_by, None)
                    gone.pop(event.archive or "", None)
        for blob in gone:
            self.world.server.erase(run, blob)

    def _go_on(self) -> None:
        while self._due:
            run, source, record_id = self._due[0]
            found = citations(self.world, run, source, record_id)
            told = summaries(self.world, run, source, record_id)
            if found or told:
                self._redact(run, source, record_id, found, told)
                return
            self._due.pop(0)

    def _redact(self, run: str, source: str, record_id: str, found: list[Citation], told: list[Summary]) -> None:
        packages: list[RedactedPackage] = []
        for cited in found:
            data = self.world.server.blobs.get((run, cited.package))
            replacement = redact_blob(data, cited, source, record_id)
            reference = digests.digest_bytes(replacement)
            self.world.server.blobs[run, reference] = replacement
            packages.append(RedactedPackage(cited.step, cited.package, reference))
        self._serial += 1
        command = RedactPackages(
            run=run,
            tenant=TENANT,
            command=f"{run}/{self.name}/{self._serial}",
            attempt=1,
            reply_to=self.world.inbox(self.name),
            seconds_left=2.0,
            now=1_700_000_000_000 + int(self.world.now * 1000),
            seen=max([*(c.sequence for c in found), *(t.sequence for t in told)]),
            source=source,
            record_id=record_id,
            erasure=self.forgotten[source, record_id],
            packages=tuple(packages),
            summaries=tuple(RedactedSummary(summary.replaced_by, summary.archive) for summary in told),
        )

        def settle(answer: AnyMessage) -> None:
            assert isinstance(answer, Recorded | ErrorReply), answer
            if isinstance(answer, ErrorReply):
                assert answer.code in {"deadline_exceeded", "conflict", "limit", "busy"}, answer
                self.errors.append(answer.code)
            self.erase_spent()
            self.world.at(0.01, self._go_on)

        self.ask(command, settle)


def redact_blob(data: bytes | None, cited: Citation, source: str, record_id: str) -> bytes:
    """What a step's blob says without one record (D.J.4, D.J.6)."""
    results: tuple[SourceResult, ...] = ()
    kept: tuple[Block, ...] = ()
    if data is not None:
        try:
            output = blobs.decode_output(data)
            results = (*output.results, *output.restored)
            kept = decode_json(bytes(output.package), Package).blocks
        except ContextBusError:
            left = blobs.decode_redacted(data)
            results, kept = left.results, left.blocks
    rest = tuple(
        msgspec.structs.replace(
            r,
            candidates=tuple(
                msgspec.structs.replace(c, query=None)
                for c in r.candidates
                if (r.source, c.record_id) != (source, record_id)
            ),
        )
        for r in results
    )
    if cited.placed:
        kept = tuple(block for block in kept if block.placement != "append")
    return blobs.encode_redacted(cited.package, rest, kept)

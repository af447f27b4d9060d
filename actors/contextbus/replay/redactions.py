"""What the log says of forgets: which package held the record, and what took its place (D.J.6)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from contextbus.replay.checks import Check, CheckStatus, FetchBlob
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus_protocol import digests
from contextbus_protocol.events import PackageRedacted, StepCompiled


class CitedPackage(msgspec.Struct, frozen=True):
    """A package by what its step says of it; ``records`` are unknown where the step has too many for its commit."""

    step: int
    records: frozenset[tuple[str, str]] | None


class Redactions(msgspec.Struct, frozen=True):
    """The packages of a run by reference, replacements included, and the references that a forget erased."""

    packages: dict[str, CitedPackage]
    erased: frozenset[str]


def find_redactions(log: RunLog) -> Redactions:
    """What a run's log says of its packages."""
    packages: dict[str, CitedPackage] = {}
    erased: set[str] = set()
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, StepCompiled):
                records = frozenset((e.source, e.record_id) for e in event.entries)
                packages[event.package] = CitedPackage(event.step, records if event.facts is None else None)
            elif isinstance(event, PackageRedacted):
                erased.add(event.package)
                if event.package in packages:
                    packages[event.replacement] = packages[event.package]
    return Redactions(packages, frozenset(erased))


def check_redaction(
    logged: LoggedCommit, event: PackageRedacted, fetch: FetchBlob, redactions: Redactions
) -> Iterator[Check]:
    """Whether a redaction names a step that held the record, and the blob that stands in the package's place."""
    known = redactions.packages.get(event.package)
    step = "no such package" if known is None else str(known.step)
    if step != str(event.step):
        yield Check(logged.sequence, "different", event.step, "packageRedacted.step", str(event.step), step)
    elif known is not None and known.records is not None and (event.source, event.record_id) not in known.records:
        got = "a package without that record"
        yield Check(logged.sequence, "different", event.step, "packageRedacted.recordId", event.record_id, got)
    if event.replacement in redactions.erased:
        return  # another forget took that one too
    data = fetch(event.replacement)
    got = "no blob" if data is None else digests.digest_bytes(data)
    if got != event.replacement:
        status: CheckStatus = "missing" if data is None else "different"
        yield Check(logged.sequence, status, None, "replacement", event.replacement, got)

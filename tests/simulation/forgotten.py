"""What must hold of forgotten records, of revisions, and of what sources charged, read from the log by hand."""

from __future__ import annotations

from contextbus.replay.run_log import RunLog
from contextbus_protocol.events import (
    CallSucceeded,
    EntryFact,
    HistoryCleared,
    PackageRedacted,
    StepCompiled,
    StepFailed,
)
from tests.simulation.forgetting import Forgetter, citations, current_blob, summaries
from tests.simulation.sources import FORGETTING
from tests.simulation.world import World

FRESH = frozenset({"ranked", "reallocated"})


def check_forgotten(world: World, log: RunLog, forgetter: Forgetter) -> None:
    """A forgotten record is in no package that is left, and in none after its redaction was recorded (D.J.4, D.J.6)."""
    for (source, record_id), erased in forgetter.forgotten.items():
        left = citations(world, log.run, source, record_id)
        assert not left, f"{record_id} is forgotten and still held by {left}"
        told = summaries(world, log.run, source, record_id)
        assert not told, f"{record_id} is forgotten, and {told} may tell of it"
        texts = [text.encode() for text in world.records.texts(source, record_id)]
        for (run, digest), data in world.server.blobs.items():
            if run == log.run and data.startswith(b'{"version":1,"package"') and any(t in data for t in texts):
                assert not _is_named(log, digest), f"{record_id} is forgotten and stands in {digest}"
        _check_placements(log, source, record_id, erased)


def _is_named(log: RunLog, digest: str) -> bool:
    """Whether a commit names a blob: those of lost attempts are erased by age, which no test waits for."""
    return any(isinstance(e, StepCompiled) and e.package == digest for c in log.commits for e in c.commit.events)


def _check_placements(log: RunLog, source: str, record_id: str, erased: int) -> None:
    redacted = False
    citing: set[str] = set()
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, PackageRedacted):
                if (event.source, event.record_id) == (source, record_id):
                    redacted = True
                elif event.package in citing:
                    citing.add(event.replacement)
                citing.discard(event.package)
            elif isinstance(event, StepCompiled):
                cited = [e for e in event.entries if (e.source, e.record_id) == (source, record_id)]
                taken = [e for e in cited if e.selected]
                seen = event.erasures is not None and event.erasures >= erased
                where = f"step {event.step} at {logged.sequence}"
                fresh = [e for e in taken if e.reason in FRESH]
                assert not (fresh and (seen or redacted)), f"{where} places {record_id}, which it knew to be forgotten"
                if taken and logged.sequence > erased and not fresh:
                    assert citing or not (seen or redacted), f"{where} places {record_id} again, which nothing holds"
                if cited:
                    citing.add(event.package)


def check_revisions(log: RunLog) -> None:
    """No older revision of a record is placed behind a newer one (D.C.18, D.H.9)."""
    placed: dict[tuple[str, str], int] = {}
    last: StepCompiled | None = None
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, StepCompiled):
                last = event
                for entry in _revised(event):
                    newest = placed.get((entry.source, entry.record_id), -1)
                    assert (entry.revision or 0) >= newest, (
                        f"step {event.step} places revision {entry.revision} of {entry.record_id} behind {newest}"
                    )
            elif isinstance(event, CallSucceeded) and last is not None and last.step == event.step:
                for entry in _revised(last):
                    key = entry.source, entry.record_id
                    placed[key] = max(entry.revision or 0, placed.get(key, -1))
            elif isinstance(event, PackageRedacted):
                placed.pop((event.source, event.record_id), None)
            elif isinstance(event, HistoryCleared):
                placed, last = {}, None  # a new topic knows of no placement (P.J.9)


def _revised(event: StepCompiled) -> list[EntryFact]:
    return [e for e in event.entries if e.selected and e.source == FORGETTING and e.revision is not None]


def check_usage(log: RunLog) -> None:
    """What sources charge is recorded once for each query, and its warning given once a run (D.L.3, D.L.6)."""
    ids: list[str] = []
    held = warned = False
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, StepCompiled | StepFailed):
                ids += [u.request_id for u in event.usage]
                held = held or any(not u.reported for u in event.usage)
            if isinstance(event, StepCompiled):
                told = event.warnings.count("unaccounted-usage")
                assert told == (held and not warned), f"step {event.step} warns {told} times of unaccounted usage"
                warned = warned or told > 0
    assert len(ids) == len(set(ids)), "a query was charged twice"


def is_current(world: World, run: str, package: str) -> bool:
    """Whether nothing has taken the place of a package."""
    return current_blob(world, run, package) == package

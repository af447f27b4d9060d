"""Records that a run is owed: their block left the history, and they may return (D.H.5-D.H.10, D.J.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from contextbus.core.placed_blocks import PlacedBlock
from contextbus.core.prefix import break_prefix
from contextbus.core.run_state import LastStep, OwedEntry, RunState
from contextbus_protocol.events import PackageRedacted
from contextbus_protocol.values import Candidate, PlacedEntry, SourceKind, SourceResult

REMEMBERED_REDACTIONS = 256
"""So many references of redacted packages are remembered, for retries of their commands."""

replace = msgspec.structs.replace


def owe_entries(state: RunState, gone: Iterable[PlacedBlock]) -> RunState:
    """The state once blocks have left the history: their records are no longer placed, but owed (D.H.5)."""
    packages = {block.step: block.package for block in gone if block.fact.placement == "append"}
    if not packages:
        return state
    left = [entry for entry in state.placed if entry.step in packages]
    placed = tuple(entry for entry in state.placed if entry.step not in packages)
    owed = (*state.owed, *(OwedEntry(entry, packages[entry.step]) for entry in left))
    return replace(state, placed=placed, owed=still_owed(owed, placed))


def still_owed(owed: Iterable[OwedEntry], placed: Iterable[PlacedEntry]) -> tuple[OwedEntry, ...]:
    """The newest placement of each record, unless the history has it or a newer one (D.H.9)."""
    owed = tuple(owed)
    if not owed:
        return ()
    newest: dict[tuple[str, str], OwedEntry] = {}
    for item in owed:
        known = newest.get((item.entry.source, item.entry.record_id))
        if known is None or is_newer(item.entry, known.entry):
            newest[item.entry.source, item.entry.record_id] = item
    for entry in placed:
        item_ = newest.get((entry.source, entry.record_id))
        if item_ is not None and is_newer(entry, item_.entry):
            del newest[entry.source, entry.record_id]
    return tuple(newest.values())


def is_newer(entry: PlacedEntry, known: PlacedEntry) -> bool:
    """Whether of two placements of a record one is the newer, or as new: by revision, then by step (D.H.9)."""
    return _age(entry) >= _age(known)


def _age(entry: PlacedEntry) -> tuple[int, int]:
    return (-1 if entry.revision is None else entry.revision, entry.step)


def restore_results(
    owed: Iterable[OwedEntry], offers: Mapping[str, tuple[SourceResult, ...]], sources: Sequence[str]
) -> tuple[tuple[SourceResult, ...], tuple[OwedEntry, ...]]:
    """The recorded offers of owed records by source, and the records whose text is gone (D.H.5, D.H.7).

    Args:
        owed: the records.
        offers: what each package's blob holds of its step's offers, by reference.
        sources: the order of the step's sources; others come behind them, by id.
    """
    found: list[tuple[str, SourceKind, Candidate]] = []
    missing: list[OwedEntry] = []
    for item in owed:
        offer = _find_offer(item.entry, offers.get(item.package, ()))
        if offer is None:
            missing.append(item)
            continue
        result, candidate = offer
        found.append((result.source, result.kind, replace(candidate, mandatory=item.entry.mandatory)))
    return group_offers(found, sources), tuple(missing)


def group_offers(
    found: Iterable[tuple[str, SourceKind, Candidate]], sources: Sequence[str]
) -> tuple[SourceResult, ...]:
    """Recorded offers by source, in the order of the step's sources; others come behind them, by id (D.H.5)."""
    candidates: dict[str, list[Candidate]] = {}
    kinds: dict[str, SourceKind] = {}
    for source, kind, candidate in found:
        kinds.setdefault(source, kind)
        candidates.setdefault(source, []).append(candidate)
    order = {source: index for index, source in enumerate(sources)}
    names = sorted(candidates, key=lambda name: (order.get(name, len(order)), name))
    return tuple(SourceResult(name, kinds[name], candidates=tuple(candidates[name])) for name in names)


def demand_missing(missing: Iterable[OwedEntry], sources: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The records without text that a step cannot wait for, as (source, record id) (D.H.8)."""
    return tuple(
        (o.entry.source, o.entry.record_id) for o in missing if o.entry.mandatory and o.entry.source in sources
    )


def _find_offer(entry: PlacedEntry, results: Iterable[SourceResult]) -> tuple[SourceResult, Candidate] | None:
    wanted = (entry.record_id, entry.revision, entry.digest)
    for result in results:
        if result.source == entry.source:
            for candidate in result.candidates:
                if (candidate.record_id, candidate.revision, candidate.digest) == wanted:
                    return result, candidate
    return None


def redact_package(state: RunState, event: PackageRedacted) -> RunState:
    """The state once a forget took a record out of a stored package (D.J.4-D.J.6).

    A block that carries the record leaves the history; its other records are owed to the run.
    """

    def carries(block: PlacedBlock) -> bool:
        is_its = block.package == event.package and block.fact.placement == "append"
        return is_its and any(e.step == block.step and _is_forgotten(e, event) for e in state.placed)

    blocks, gone = state.blocks.drop(carries)
    before = state
    state = replace(
        state,
        blocks=blocks.replace(event.package, event.replacement),
        placed=tuple(e for e in state.placed if not (_is_forgotten(e, event) and any(e.step == b.step for b in gone))),
        redacted_packages=(*state.redacted_packages, event.package)[-REMEMBERED_REDACTIONS:],
        redactions=(*state.redactions, (event.package, event.source, event.record_id))[-REMEMBERED_REDACTIONS:],
    )
    state = owe_entries(state, gone)
    state = replace(
        state, owed=_redact_owed(state.owed, event), last=_redact_last(state.last, event, history=bool(gone))
    )
    for block in gone:
        state = break_prefix(state, "redacted", block.position)
    state = drop_record(state, event.source, event.record_id)
    last = before.last
    reopens = last is not None and last.package == event.package and last.status == "open"
    return replace(state, redaction_due=state.redaction_due or bool(gone) or reopens)


def drop_record(state: RunState, source: str, record_id: str) -> RunState:
    """The state whose checkpoint, if a forget took its summary, passes this record on to no later one (C.X.11)."""
    checkpoint = state.checkpoint
    if checkpoint is None or not checkpoint.forgotten:
        return state
    kept = tuple(r for r in checkpoint.records if (r.source, r.record_id) != (source, record_id))
    return replace(state, checkpoint=replace(checkpoint, records=kept))


def _is_forgotten(entry: PlacedEntry, event: PackageRedacted) -> bool:
    return (entry.source, entry.record_id) == (event.source, event.record_id)


def _redact_owed(owed: Iterable[OwedEntry], event: PackageRedacted) -> tuple[OwedEntry, ...]:
    kept = (item for item in owed if not _is_forgotten(item.entry, event))
    return tuple(replace(o, package=event.replacement) if o.package == event.package else o for o in kept)


def _redact_last(last: LastStep | None, event: PackageRedacted, *, history: bool) -> LastStep | None:
    if last is None:
        return None
    last = replace(last, owed=_redact_owed(last.owed, event), history_forgotten=last.history_forgotten or history)
    if last.package != event.package:
        return last
    entries = tuple(e for e in last.entries if not _is_forgotten(e, event))
    return replace(
        last,
        package=event.replacement,
        redacted=True,
        entries=entries,
        block_forgotten=last.block_forgotten or len(entries) < len(last.entries),
    )

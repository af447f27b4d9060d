"""The manifest: one entry for each item and candidate with the reason for its fate; never any content (D.D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contextbus.core.candidates import Offer
from contextbus.core.selection import SELECTED_REASONS
from contextbus.core.tail import TailFill
from contextbus.core.working_memory_items import WORKING_MEMORY_SOURCE, MemoryItem
from contextbus_protocol.package import (
    ContextEntry,
    ContextManifest,
    ContextWarning,
    EntryReason,
    EstimatorSummary,
    SourceSummary,
)
from contextbus_protocol.values import EstimatorSpec, SourceResult, SourceStatus


def list_entries(
    items: Sequence[MemoryItem],
    tail: TailFill,
    offers: Sequence[Offer],
    costs: Sequence[int],
    reasons: Sequence[EntryReason | None],
) -> tuple[ContextEntry, ...]:
    """One entry for each item and offer, working memory first, without queries (D.D.1, D.D.6, D.D.26)."""
    entries = [
        ContextEntry(
            source=WORKING_MEMORY_SOURCE,
            kind="working-memory",
            record_id=item.record_id,
            digest=item.digest,
            tokens=tokens,
            selected=selected,
            reason="mandatory" if item.mandatory else "ranked" if selected else "over-budget",
            revision=item.revision,
        )
        for item, tokens, selected in zip(items, tail.costs, tail.selected, strict=True)
    ]
    for offer, tokens, reason in zip(offers, costs, reasons, strict=True):
        candidate = offer.candidate
        entries.append(
            ContextEntry(
                source=offer.source,
                kind=offer.kind,
                record_id=candidate.record_id,
                digest=candidate.digest,
                tokens=tokens,
                selected=reason in SELECTED_REASONS,
                reason=reason or "over-budget",
                revision=candidate.revision,
            )
        )
    return tuple(entries)


def summarise_sources(
    results: Sequence[SourceResult], entries: Sequence[ContextEntry], ignored: Mapping[str, int]
) -> tuple[SourceSummary, ...]:
    """What came of each source asked, in source order (D.D.7, D.D.24).

    ``tokens`` is what its selected records cost; ``excluded`` includes what was cut beyond the limit (D.C.16).
    """
    selected = dict.fromkeys((result.source for result in results), 0)
    excluded = dict(selected)
    tokens = dict(selected)
    for entry in entries:
        if entry.source in selected:
            if entry.selected:
                selected[entry.source] += 1
                tokens[entry.source] += entry.tokens
            else:
                excluded[entry.source] += 1
    return tuple(
        SourceSummary(
            source=result.source,
            status=result.status,
            selected=selected[result.source],
            excluded=excluded[result.source] + result.truncated,
            tokens=tokens[result.source],
            error=(result.error or "failed") if result.status is SourceStatus.FAILED else None,
            truncated=result.truncated,
            tokens_ignored=ignored.get(result.source, 0),
        )
        for result in results
    )


def describe_estimator(spec: EstimatorSpec, kind: str | None) -> EstimatorSummary:
    """What the counts rest on; ``kind`` only labels it (D.D.11, D.M.16)."""
    return EstimatorSummary(kind=kind or spec.kind, calibrated=spec.calibrated, name=spec.name, version=spec.version)


def context_warnings(manifest: ContextManifest) -> tuple[ContextWarning, ...]:
    """One ``context-source-failed`` for each failed optional source (D.D.20).

    A required source that fails leaves no manifest, so every failed one in a manifest is optional.
    """
    return tuple(
        ContextWarning("context-source-failed", source=summary.source, error=summary.error)
        for summary in manifest.sources
        if summary.status is SourceStatus.FAILED
    )

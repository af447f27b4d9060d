"""Placement: the blocks of a decided step, and its package (D.D.22, D.E, D.F.4, D.F.7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.blocks import render_records, render_retrieved, user_block
from contextbus.core.candidates import Offer, order_offers
from contextbus.core.working_memory_items import MemoryItem, list_items, render_working_memory
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.package import Block, ContextEntry, Package, StepDecision
from contextbus_protocol.values import SourceResult
from contextbus_protocol.working_memory import WorkingMemorySnapshot


def place(
    decision: StepDecision,
    results: Sequence[SourceResult],
    snapshot: WorkingMemorySnapshot | None,
    query: str,
    restored: Sequence[SourceResult] = (),
    prompt: PlacedPrompt | None = None,
) -> Package:
    """Render what a decision selected, and nothing else (D.E).

    Args:
        decision: What ``decide`` returned.
        results: The answers it was made from.
        snapshot: The working memory it was made from.
        query: What the sources were asked; entries get it unless their candidate names its own (D.D.25).
        restored: The recorded offers it was made from.
        prompt: What the host's prompt comes to: its messages of the tail stand behind working memory (P.A.3).

    Raises:
        InvalidRequestError: Results or snapshot are not those of the decision.
    """
    items = () if snapshot is None else list_items(snapshot)
    offers = order_offers(results, restored)
    _require_match(decision, items, offers)
    entries = decision.manifest.entries[len(items) :]
    records = render_records(
        (offer.source, offer.kind, offer.candidate)
        for offer, entry in zip(offers, entries, strict=True)
        if entry.selected
    )
    return assemble(decision, render_tail(decision, items, snapshot), offers, records, query, prompt)


def render_tail(decision: StepDecision, items: Sequence[MemoryItem], snapshot: WorkingMemorySnapshot | None) -> str:
    """The text of the ephemeral tail with the selected items; empty if there are none (D.F.6, D.F.7)."""
    entries = decision.manifest.entries[: len(items)]
    selected = [item for item, entry in zip(items, entries, strict=True) if entry.selected]
    return render_working_memory(selected, snapshot.revision) if snapshot is not None and selected else ""


def assemble(
    decision: StepDecision,
    tail: str,
    offers: Sequence[Offer],
    records: Sequence[str],
    query: str,
    prompt: PlacedPrompt | None = None,
) -> Package:
    """Make a package of what is rendered already: the tail, and the selected records in entry order (D.E.2, D.E.9)."""
    manifest = decision.manifest
    blocks: list[Block] = []
    if records:
        blocks.append(Block("append", (user_block(render_retrieved(manifest.pass_, manifest.step, records)),)))
    messages: tuple[ChatMessage, ...] = (user_block(tail),) if tail else ()
    if prompt is not None:
        messages += prompt.tail
    if messages:
        blocks.append(Block("ephemeral-tail", messages))
    return Package(
        version=1,
        run_id=manifest.run_id,
        step=manifest.step,
        blocks=tuple(blocks),
        manifest=msgspec.structs.replace(manifest, entries=_write_queries(manifest.entries, offers, query)),
        prefill=None if prompt is None else prompt.prefill,
    )


def _require_match(decision: StepDecision, items: Sequence[MemoryItem], offers: Sequence[Offer]) -> None:
    made_from = [item.digest for item in items] + [offer.candidate.digest for offer in offers]
    if made_from != [entry.digest for entry in decision.manifest.entries]:
        raise InvalidRequestError("the results or the working memory are not those that the decision was made from")


def _write_queries(entries: tuple[ContextEntry, ...], offers: Sequence[Offer], query: str) -> tuple[ContextEntry, ...]:
    behind = len(entries) - len(offers)
    asked = clean_text(query) or None
    written = list(entries[:behind])
    for entry, offer in zip(entries[behind:], offers, strict=True):
        own = offer.candidate.query
        text = clean_text(own) if own else None if offer.restored else asked
        written.append(entry if text is None else msgspec.structs.replace(entry, query=text))
    return tuple(written)

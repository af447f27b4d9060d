"""The decision of a step: budget, working memory and candidates, in the order of D.B.20."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.core.blocks import render_records, render_retrieved, user_block
from contextbus.core.budget import available_tokens, context_tokens, split_by_kind
from contextbus.core.candidates import Offer, exclude_offers, order_offers
from contextbus.core.context_input import ContextInput
from contextbus.core.estimate import Estimator
from contextbus.core.manifest import describe_estimator, list_entries, summarise_sources
from contextbus.core.selection import admit_mandatory, cost_records, rank_offers
from contextbus.core.tail import fill_tail, measure_tail
from contextbus.core.working_memory_items import MemoryItem, list_items
from contextbus_protocol.errors import ContextBudgetExceededError, ErrorData, InvalidRequestError
from contextbus_protocol.package import BudgetSummary, ContextManifest, Fallback, PlacementSummary, StepDecision
from contextbus_protocol.values import ContextBudget, SourceKind, SourceResult, SourceStatus
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class Selection(msgspec.Struct, frozen=True):
    """What ``select`` decided: a decision, and what it had to render and order on the way.

    ``offers`` and ``records`` run parallel to the manifest's entries behind those of ``items``.
    """

    decision: StepDecision
    items: tuple[MemoryItem, ...]
    offers: list[Offer]
    records: list[str]


def decide(given: ContextInput, estimator: Estimator) -> StepDecision:
    """Decide a step: what is taken, what is left out, and why, without rendering blocks.

    The manifest's entries have no query yet; ``place`` writes it.  Candidates are taken as valid
    (``validate_candidates``) and within the limit (``cut_result``).

    Raises:
        ContextBudgetExceededError: Mandatory content does not fit what the request leaves (D.B.15).
        InvalidRequestError: A required source failed (D.G.28).
    """
    return select(given, estimator).decision


def select(given: ContextInput, estimator: Estimator) -> Selection:
    """Decide a step and keep the rendered records at hand; see ``decide``."""
    _refuse_failed(given.results)
    available = available_tokens(given.input_tokens, given.used_tokens)
    context = context_tokens(given.budget, available)
    snapshot = given.working_memory
    items = () if snapshot is None else list_items(snapshot)
    tail_cost = measure_tail(items, 0 if snapshot is None else snapshot.revision, estimator)

    offers = order_offers(given.results, given.restored)
    records = render_records((offer.source, offer.kind, offer.candidate) for offer in offers)
    costs, ignored = cost_records(offers, records, estimator)
    reasons = exclude_offers(offers, given.placed, given.owed)
    owed = admit_mandatory(offers, costs, reasons)
    frame = _measure_frame(given, estimator) if offers else 0
    required = tail_cost.mandatory + (0 if owed is None else owed + frame)
    _require_fit(required, available, given.phase)

    tail = fill_tail(items, tail_cost, _tail_room(given.budget, tail_cost.mandatory, context, required), estimator)
    rest = max(0, context - required - (tail.tokens - tail_cost.mandatory))
    if owed is None:
        rest -= frame  # below zero nothing may be taken, not even what costs nothing: the frame would not fit
    if offers:
        rank_offers(offers, costs, reasons, split_by_kind(given.budget.shares, rest), rest)

    entries = list_entries(items, tail, offers, costs, reasons)
    chosen = [entry.tokens for entry in entries[len(items) :] if entry.selected]
    append = sum(chosen) + frame if chosen else 0
    manifest = ContextManifest(
        version=1,
        run_id=given.run_id,
        step=given.step,
        refresh=given.refresh,
        pass_=given.pass_,
        budget=BudgetSummary(
            input_tokens=given.input_tokens,
            used_tokens=given.used_tokens,
            context_tokens=context,
            selected_tokens=append + tail.tokens,
            working_memory_tokens=tail.tokens,
        ),
        estimator=describe_estimator(estimator.spec, given.estimator_kind),
        entries=entries,
        sources=summarise_sources(given.results, entries, ignored),
        placement=PlacementSummary(
            append=bool(chosen), tail=any(tail.selected) or given.tail_given, tail_kept=given.tail_kept
        ),
        cache_prefix_changed=given.cache_prefix_changed,
        cache_prefix_cause=given.cache_prefix_cause,
        fallback=_fallback(given),
        redacted=given.redacted,
    )
    decision = StepDecision(
        manifest=manifest,
        scores=(*(None for _ in items), *(float(offer.candidate.score) for offer in offers)),
        mandatory=(*(item.mandatory for item in items), *(offer.candidate.mandatory for offer in offers)),
        counts=estimator.counts,
    )
    return Selection(decision, items, offers, records)


def _measure_frame(given: ContextInput, estimator: Estimator) -> int:
    """The fixed text of the append block with its message, in tokens (D.M.13)."""
    return estimator.tokens(estimator.message(user_block(render_retrieved(given.pass_, given.step, ()))))


def share_hints(
    input_tokens: int,
    used_tokens: int,
    budget: ContextBudget,
    working_memory: WorkingMemorySnapshot | None,
    estimator: Estimator,
) -> dict[SourceKind, int]:
    """``budget_tokens`` of a query by kind: the share of what working memory leaves (D.B.20, D.G.23).

    Nothing is offered yet, so mandatory candidates do not count.
    """
    context = context_tokens(budget, available_tokens(input_tokens, used_tokens))
    taken = 0
    if working_memory is not None:
        items = list_items(working_memory)
        cost = measure_tail(items, working_memory.revision, estimator)
        room = _tail_room(budget, cost.mandatory, context, cost.mandatory)
        taken = fill_tail(items, cost, room, estimator).tokens
    return split_by_kind(budget.shares, max(0, context - taken))


def _tail_room(budget: ContextBudget, mandatory: int, context: int, required: int) -> int:
    return max(0, min(budget.working_memory_tokens - mandatory, context - required))


def _refuse_failed(results: Sequence[SourceResult]) -> None:
    for result in results:
        if result.required and result.status is SourceStatus.FAILED:
            raise InvalidRequestError(
                f"required source {result.source!r} failed; compile without it only if it is not required",
                ErrorData(origin=result.source, origin_code=result.origin_code, origin_type=result.origin_type),
            )


def _require_fit(required: int, available: int, phase: str) -> None:
    if required > available:
        raise ContextBudgetExceededError(
            f"mandatory content needs {required} tokens and the request leaves {available}: shorten it, the messages "
            "or the output reservation, or use a model with a larger window",
            ErrorData(required_tokens=required, available_tokens=available, phase=phase),
        )


def _fallback(given: ContextInput) -> Fallback | None:
    failed = any(result.status is SourceStatus.FAILED for result in given.results)
    return "source-failed" if failed else given.fallback

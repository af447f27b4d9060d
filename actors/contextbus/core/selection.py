"""Selection: what each record costs, and which of the competing ones are taken (D.B.20, D.C.5-D.C.8, D.M.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contextbus.core.candidates import Offer
from contextbus.core.estimate import Estimator
from contextbus_protocol.package import EntryReason
from contextbus_protocol.values import MAX_SAFE_INTEGER, SOURCE_KINDS, SourceKind

SELECTED_REASONS: Final[frozenset[EntryReason]] = frozenset({"mandatory", "ranked", "reallocated", "restored"})
"""The reasons of entries that are in the package (D.Y.1)."""


def cost_records(
    offers: Sequence[Offer], records: Sequence[str], estimator: Estimator
) -> tuple[list[int], dict[str, int]]:
    """Cost of each record in tokens, and how many own counts of each source were ignored (D.K.22, D.M.13)."""
    costs: list[int] = []
    ignored: dict[str, int] = {}
    for offer, whole in zip(offers, estimator.texts(records), strict=True):
        claimed: object = offer.candidate.tokens
        if claimed is None:
            costs.append(estimator.tokens(whole))
            continue
        text = estimator.text(offer.candidate.text)
        if type(claimed) is int and 0 < claimed <= MAX_SAFE_INTEGER and 2 * claimed >= estimator.tokens(text):
            costs.append(claimed + estimator.tokens(max(0, whole - text)))
        else:
            costs.append(estimator.tokens(whole))
            ignored[offer.source] = ignored.get(offer.source, 0) + 1
    return costs, ignored


def admit_mandatory(offers: Sequence[Offer], costs: Sequence[int], reasons: list[EntryReason | None]) -> int | None:
    """Take all mandatory offers that nothing excludes; their cost in tokens, ``None`` without any (D.B.12, D.C.9)."""
    owed: int | None = None
    for index, offer in enumerate(offers):
        if offer.candidate.mandatory and reasons[index] is None:
            reasons[index] = "mandatory"
            owed = (owed or 0) + costs[index]
    return owed


def rank_offers(
    offers: Sequence[Offer],
    costs: Sequence[int],
    reasons: list[EntryReason | None],
    allowances: Mapping[SourceKind, int],
    rest: int,
) -> None:
    """Give every undecided offer its reason, in two passes of first fit (D.C.5-D.C.8, D.C.13)."""
    ranks = [(-offer.candidate.score, offer.order, offer.candidate.record_id) for offer in offers]
    order = sorted((index for index, reason in enumerate(reasons) if reason is None), key=ranks.__getitem__)
    for reason in ("ranked", "reallocated"):
        left = dict(allowances) if reason == "ranked" else dict.fromkeys(SOURCE_KINDS, rest)
        passed: list[int] = []
        for index in order:
            offer, cost = offers[index], costs[index]
            if cost <= left[offer.kind] and cost <= rest:
                reasons[index] = "restored" if offer.restored else reason
                left[offer.kind] -= cost
                rest -= cost
            else:
                passed.append(index)
        order = passed
    for index in order:
        reasons[index] = "over-budget"

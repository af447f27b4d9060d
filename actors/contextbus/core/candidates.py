"""What sources offer: checks, cutting, order, and who may compete (D.C.1-D.C.4, D.C.10-D.C.18, D.K.21, D.K.27)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, cast

import msgspec

from contextbus_protocol.digests import digest_bytes, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import EntryReason
from contextbus_protocol.values import (
    MAX_SAFE_INTEGER,
    Candidate,
    PlacedEntry,
    Provenance,
    SourceKind,
    SourceResult,
    SourceStatus,
)


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A candidate with where it comes from.

    ``order`` is the position of its source; ``restored`` marks a record of an earlier package whose block left the
    history (D.H.5).
    """

    source: str
    kind: SourceKind
    order: int
    candidate: Candidate
    restored: bool = False


class CheckedCandidates(tuple[Candidate, ...]):
    """Candidates that are known to be well formed, in every field.

    Only ``check_candidates`` makes one.  Decoding makes plain tuples: what crossed a bus is checked where it arrives.
    """

    __slots__ = ()


def check_candidates(candidates: Iterable[object]) -> CheckedCandidates | None:
    """The candidates as checked ones; None if any of them needs a closer look (``validate_candidates``)."""
    items = tuple(candidates)
    if not all(map(_is_plain, items)):
        return None
    return CheckedCandidates(cast("tuple[Candidate, ...]", items))


_FIELDS: Final = attrgetter("text", "record_id", "score", "digest", "revision", "tokens", "mandatory")
_LABELS: Final = attrgetter("query", "match", "provenance")
_NO_LABELS: Final = (None, None, None)


def _is_plain(candidate: object) -> bool:
    """Whether a candidate is well formed and of the usual kind, in few steps: it is asked of every one of an answer."""
    if type(candidate) is not Candidate:
        return False
    # Annotations are promises of anybody's code: nothing is taken for granted.
    text, record_id, score, digest, revision, tokens, mandatory = cast("tuple[object, ...]", _FIELDS(candidate))
    if type(text) is not str or not text:
        return False
    try:
        known = digest_bytes(text.encode())
    except UnicodeEncodeError:
        return False
    return (
        digest == known
        and type(record_id) is str
        and record_id != ""
        and record_id.isascii()
        and type(score) is float
        and math.isfinite(score)
        and (revision is None or (type(revision) is int and 0 <= revision <= MAX_SAFE_INTEGER))
        and (tokens is None or type(tokens) is int)
        and type(mandatory) is bool
        and (_LABELS(candidate) == _NO_LABELS or _has_plain_labels(candidate))
    )


def _has_plain_labels(candidate: Candidate) -> bool:
    texts: list[object] = [text for text in (candidate.query, candidate.match) if text is not None]
    provenance: object = candidate.provenance
    if type(provenance) is Provenance:
        kinds: object = provenance.source_kinds
        if type(kinds) is not tuple:
            return False
        texts += kinds if provenance.origin is None else (provenance.origin, *kinds)
    elif provenance is not None:
        return False
    return all(type(text) is str and text.isascii() for text in texts)


def validate_candidates(candidates: Iterable[Candidate]) -> None:
    """Refuse an answer with a malformed candidate (D.C.4, D.C.17, D.C.18, D.K.21, D.K.27).

    Raises:
        InvalidTypeError: A score is not finite, a text or id is empty, a revision is no count, a label has the wrong
            type, or a digest is not that of its text.  The message holds no content.
    """
    if type(candidates) is CheckedCandidates:
        return
    for position, candidate in enumerate(candidates):
        if _is_plain(candidate):
            continue
        fault = _fault_of(candidate) if type(candidate) is Candidate else "it is no Candidate"
        if fault is not None:
            raise InvalidTypeError(f"candidate {position} is malformed: {fault}")


def _fault_of(candidate: Candidate) -> str | None:
    text: object = candidate.text
    score: object = candidate.score
    revision: object = candidate.revision
    if type(text) is not str or not text:
        return "text must be a string that is not empty"
    if not is_id(candidate.record_id):
        return "record_id must be a string that is not empty and has no lone surrogate"
    if not is_score(score):
        return "score must be a finite number, if an integer at most 2^53 - 1"
    if revision is not None and (type(revision) is not int or not 0 <= revision <= MAX_SAFE_INTEGER):
        return "revision must be an integer from 0 to 2^53 - 1"
    if candidate.digest != digest_text(text):
        return "digest must be that of the text: sha256: and 64 hex digits"
    return _label_fault(candidate)


def is_score(value: object) -> bool:
    """Whether a value can rank: a finite float, or an integer that a float holds exactly (D.C.4, D.W.6)."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER


def is_id(value: object) -> bool:
    """Whether a value can be the id of a source or record: text that UTF-8 can carry, not empty."""
    if type(value) is not str or not value:
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _label_fault(candidate: Candidate) -> str | None:
    mandatory: object = candidate.mandatory
    query: object = candidate.query
    provenance: object = candidate.provenance
    if type(mandatory) is not bool:
        return "mandatory must be true or false"
    if query is not None and type(query) is not str:
        return "query must be a string"
    if provenance is None:
        return None
    if type(provenance) is not Provenance:
        return "provenance must be a Provenance"
    origin: object = provenance.origin
    kinds: tuple[object, ...] = provenance.source_kinds
    if origin is not None and type(origin) is not str:
        return "provenance.origin must be a string"
    for kind in kinds:
        if type(kind) is not str:
            return "provenance.source_kinds must be strings"
    return None


def cut_result(result: SourceResult, limit: int) -> SourceResult:
    """Cut an answer to its first ``limit`` candidates, in the source's own order (D.C.16)."""
    extra = len(result.candidates) - limit
    if extra <= 0:
        return result
    return msgspec.structs.replace(result, candidates=result.candidates[:limit], truncated=result.truncated + extra)


def order_offers(results: Sequence[SourceResult], restored: Sequence[SourceResult] = ()) -> list[Offer]:
    """All candidates in entry order: by source, then score descending, then id by code point (D.C.1-D.C.3, D.D.6).

    Entries of one record with one score go newest revision first, then by digest, so that the order in which a
    source gives them does not matter.  A record to restore that its source offers again, unchanged, counts once, as
    the fresh offer.
    """
    again = {result.source: result for result in restored}
    offers: list[Offer] = []
    for order, result in enumerate(results):
        if result.status is not SourceStatus.SKIPPED:  # as if it were not there: nothing records one that was not asked
            offers += _order_source(result, again.pop(result.source, None), order)
    for order, result in enumerate(again.values(), len(results)):
        offers += _order_source(None, result, order)
    return offers


def _order_source(fresh: SourceResult | None, again: SourceResult | None, order: int) -> list[Offer]:
    offers: list[Offer] = []
    if fresh is not None and fresh.status is SourceStatus.OK:
        source, kind = fresh.source, fresh.kind
        offers = [Offer(source, kind, order, candidate) for candidate in fresh.candidates]
    if again is not None:
        known = {(offer.candidate.record_id, offer.candidate.revision, offer.candidate.digest) for offer in offers}
        offers += [
            Offer(again.source, again.kind, order, candidate, restored=True)
            for candidate in again.candidates
            if (candidate.record_id, candidate.revision, candidate.digest) not in known
        ]
    offers.sort(key=_rank)
    return offers


def _rank(offer: Offer) -> tuple[float, str, int, str]:
    candidate = offer.candidate
    return -candidate.score, candidate.record_id, -(candidate.revision or 0), candidate.digest


def exclude_offers(
    offers: Sequence[Offer], placed: Sequence[PlacedEntry], owed: Sequence[PlacedEntry] = ()
) -> list[EntryReason | None]:
    """Why an offer may not compete, or ``None`` where it may, parallel to ``offers`` in entry order.

    ``superseded``: an older revision than one offered by the same source or placed before, whether that placement still
    stands or is ``owed`` (D.C.15, D.C.18).
    ``already-placed``: an earlier package placed it, unchanged (D.C.10, D.C.11).  ``duplicate``: another offer has
    the same digest and goes first (D.C.14); one that is placed already goes before others that are not mandatory, so
    that no text is sent twice.
    """
    present = {(entry.source, entry.record_id, entry.revision, entry.digest) for entry in placed}
    newest = _newest_revisions(offers, (*placed, *owed))
    reasons: list[EntryReason | None] = []
    digests: set[str] = set()
    live = 0
    for offer in offers:
        source, candidate = offer.source, offer.candidate
        record_id, revision, digest = candidate.record_id, candidate.revision, candidate.digest
        if revision is not None and revision < newest[source, record_id]:
            reasons.append("superseded")
            continue
        live += 1
        digests.add(digest)
        reasons.append("already-placed" if present and (source, record_id, revision, digest) in present else None)
    if len(digests) < live:
        _mark_duplicates(offers, reasons)
    return reasons


def _newest_revisions(offers: Sequence[Offer], placed: Sequence[PlacedEntry]) -> dict[tuple[str, str], int]:
    newest: dict[tuple[str, str], int] = {}
    for entry in placed:
        if entry.revision is not None:
            key = entry.source, entry.record_id
            if entry.revision > newest.get(key, -1):
                newest[key] = entry.revision
    for offer in offers:
        revision = offer.candidate.revision
        if revision is not None:
            key = offer.source, offer.candidate.record_id
            if revision > newest.get(key, -1):
                newest[key] = revision
    return newest


def _mark_duplicates(offers: Sequence[Offer], reasons: list[EntryReason | None]) -> None:
    def precedence(index: int) -> tuple[bool, bool, int, str]:
        offer = offers[index]
        return (
            not offer.candidate.mandatory,
            reasons[index] is None,
            offer.order,
            offer.candidate.record_id,
        )

    held: set[str] = set()
    for index in sorted((i for i, reason in enumerate(reasons) if reason != "superseded"), key=precedence):
        digest = offers[index].candidate.digest
        if digest in held and reasons[index] is None:
            reasons[index] = "duplicate"
        held.add(digest)

"""A source's answer as selection uses it, for a run and for a compiler without one (D.C.16, D.G.14, D.K.27)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from contextbus.core.candidates import validate_candidates
from contextbus_protocol.errors import ContextBusError, word_of
from contextbus_protocol.questions import Failed, Offered
from contextbus_protocol.values import Candidate, SourceResult, SourceSpec, SourceStatus


def merge_answers(
    sources: Sequence[SourceSpec], answers: Iterable[SourceResult], *, skipped: bool
) -> tuple[SourceResult, ...]:
    """The answers in source order, so that timing changes nothing (D.G.25); with an empty query the rest is skipped.

    What is owed is asked for even then: the query says nothing about it (D.G.21, D.H.8).
    """
    by_source = {answer.source: answer for answer in answers}
    if skipped:
        for spec in sources:
            rest = SourceResult(spec.id, spec.kind, SourceStatus.SKIPPED, required=spec.required)
            by_source.setdefault(spec.id, rest)
    return tuple(by_source[spec.id] for spec in sources if spec.id in by_source)


def read_answer(
    spec: SourceSpec,
    answer: Offered | Failed,
    limit: int,
    records: Sequence[str] = (),
    *,
    only_records: bool = False,
) -> SourceResult:
    """A source's answer, cut to the limit, and failed as a whole if any of it is malformed (D.C.16, D.K.27).

    What was asked for by id does not count towards the limit, each record once, as far as it really came back.

    Args:
        spec: the source.
        answer: what it said.
        limit: the most candidates that it may offer besides (D.G.23).
        records: the ids that it was asked for whatever the query says (D.H.8, D.K.26).
        only_records: whether it was asked for nothing else: the rest of its answer is dropped (D.G.14).
    """
    if isinstance(answer, Failed):
        return SourceResult(
            source=spec.id,
            kind=spec.kind,
            status=SourceStatus.FAILED,
            required=spec.required,
            error=word_of(answer.code) or "error",
            origin_code=word_of(answer.origin_code),
            origin_type=word_of(answer.origin_type),
        )
    candidates, truncated = answer.candidates, 0
    try:
        if only_records or len(candidates) > limit:
            candidates, truncated = _cut(candidates, limit, records, only_records=only_records)
        validate_candidates(candidates)
    except ContextBusError:
        return SourceResult(spec.id, spec.kind, SourceStatus.FAILED, required=spec.required, error="malformed")
    # An empty answer of this process is a tuple of its own, which would be stored other than one off the bus.
    return SourceResult(spec.id, spec.kind, SourceStatus.OK, candidates or (), spec.required, truncated=truncated)


def _cut(
    candidates: Sequence[Candidate], limit: int, records: Collection[str], *, only_records: bool
) -> tuple[tuple[Candidate, ...], int]:
    """What is kept, in the source's own order, and how many of the others are beyond the limit."""
    kept: list[Candidate] = []
    owed = set(records)
    offered = truncated = 0
    for candidate in candidates:
        if candidate.record_id in owed:
            owed.discard(candidate.record_id)
        elif only_records and candidate.record_id not in records:
            continue
        elif offered < limit:
            offered += 1
        else:
            truncated += 1
            continue
        kept.append(candidate)
    return tuple(kept), truncated

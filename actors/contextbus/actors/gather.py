"""The gather of a step: which sources are asked, and what their answers come to (design: section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.actors.effects import Cancel
from contextbus.actors.flight import Flight, Prepared
from contextbus.core.answers import read_answer
from contextbus.core.budget import require_count
from contextbus.core.decision import share_hints
from contextbus.core.estimate import Estimator
from contextbus.core.working_memory_items import WORKING_MEMORY_SOURCE
from contextbus_protocol import codec, subjects
from contextbus_protocol.errors import (
    ErrorData,
    InvalidRequestError,
    InvalidTypeError,
    SourceFailedError,
    word_of,
)
from contextbus_protocol.events import RecordAllowed, RecordErased, SourceFact, StepFailed, UsageFact
from contextbus_protocol.outcomes import Loaded
from contextbus_protocol.questions import Accounting, Failed, Offered, Query
from contextbus_protocol.values import (
    MAX_SAFE_INTEGER,
    Candidate,
    SourceResult,
    SourceSpec,
    SourceStatus,
    SourceUsage,
    StepOptions,
)

NOT_TAKEN: Final = ("busy", "absent")
"""What a source's failure is called when nobody took the query."""

MOST_CANDIDATES: Final = 10_000
"""The most candidates that one step takes from all its sources."""

MOST_USAGES: Final = 64
"""So many charges of one answer are recorded."""

LARGEST_OFFERS: Final = 24 * 1024 * 1024
"""Bytes of JSON of all candidates of a step: they are stored with its package, which may quote all of them."""

_LONGEST_ESCAPE: Final = 6
"""Bytes that one character may take in JSON."""

replace = msgspec.structs.replace


def check_sources(options: StepOptions) -> None:
    """Refuse sources that cannot be asked, a list that names one twice (D.G.4), or more than a step takes.

    Raises:
        InvalidTypeError: two sources have one id, an id fits no subject, or it is the one of working memory.
        InvalidRequestError: sources x candidates_per_source is above 10,000.
    """
    ids = [s.id for s in options.sources]
    for index, name in enumerate(ids):
        subjects.encode_name(name)
        if name == WORKING_MEMORY_SOURCE:
            raise InvalidTypeError(f"no source may have the id {name!r}; give it another")
        if name in ids[:index]:
            raise InvalidTypeError(f"two sources have the id {name!r}; give each its own")
    require_count("candidates_per_source", options.refresh.candidates_per_source)
    if len(ids) * options.refresh.candidates_per_source > MOST_CANDIDATES:
        raise InvalidRequestError(f"a step takes at most {MOST_CANDIDATES} candidates; lower candidates_per_source")


def half_token(flight: Flight) -> str:
    """The token of the timer at half the gather's time."""
    return flight.token + "#half"


def end_token(flight: Flight) -> str:
    """The token of the timer that ends the gather."""
    return flight.token + "#end"


def cancel_timers(flight: Flight) -> tuple[Cancel, ...]:
    """Forget both timers of the gather."""
    run = flight.command.run
    return Cancel(run, half_token(flight)), Cancel(run, end_token(flight))


def first_queries(
    flight: Flight,
    prepared: Prepared,
    demands: Sequence[tuple[str, str]],
    tenant: str,
    inbox: str,
    estimator: Estimator,
) -> tuple[Query, ...]:
    """The queries of a step: one for each source (D.G.23), or where none is due only for what is owed (D.H.8).

    Args:
        flight: the step.
        prepared: what is settled for it.
        demands: the records that the run is owed, as (source, record id).
        tenant: whose run it is.
        inbox: where the answers go.
        estimator: the counter of the step.
    """
    snapshot = None if flight.items is None else flight.items.snapshot
    plan, options = prepared.plan, prepared.options
    hints = share_hints(plan.input_tokens, plan.used_tokens, options.budget, snapshot, estimator)
    # a state that was dropped counts its flights anew: the sequence of the log tells them apart (D.L.6)
    gather = f"{flight.token}/{prepared.sequence}/{flight.gathers}"
    queries: list[Query] = []
    for spec in options.sources:
        records = tuple(record for source, record in demands if source == spec.id)
        if not plan.refresh.retrieve and not records:
            continue
        queries.append(
            Query(
                run=flight.command.run,
                tenant=tenant,
                command=flight.command.command,
                token=flight.token,
                reply_to=inbox,
                source=spec.id,
                step=plan.step,
                text=plan.query,
                scope=prepared.scope,
                limit=options.refresh.candidates_per_source,
                budget_tokens=hints[spec.kind],
                seconds_left=flight.command.seconds_left,
                records=records,
                only_records=not plan.refresh.retrieve,
                accounting=Accounting(flight.command.run, f"{gather}/{spec.id}"),
            )
        )
    return tuple(queries)


def ask_missing(flight: Flight) -> tuple[Flight, tuple[Query, ...]]:
    """The same queries once more for every source that has not answered."""
    answered = [r.source for r in flight.results]
    queries = tuple(q for q in flight.queries if q.source not in answered)
    return replace(flight, asked_half=tuple(q.source for q in queries)), queries


def take_refusal(flight: Flight, failed: Failed) -> tuple[Flight, tuple[Query, ...]] | None:
    """The flight after nobody took a query of a source, and the query to ask again; None when that is its answer.

    A busy source is asked again once, at once: another worker of its group may have room.  While an earlier query of
    the source is still under way, its answer is waited for.
    """
    source = failed.source
    if failed.code not in NOT_TAKEN or any(r.source == source for r in flight.results):
        return None
    query = next((q for q in flight.queries if q.source == source), None)
    if query is None:
        return None
    flight = replace(flight, refused=(*flight.refused, source))
    if failed.code == "busy" and source not in flight.asked_again:
        return replace(flight, asked_again=(*flight.asked_again, source)), (query,)
    sent = 1 + (source in flight.asked_again) + (source in flight.asked_half)
    return (flight, ()) if flight.refused.count(source) < sent else None


def add_result(flight: Flight, message: Offered | Failed) -> Flight:
    """The flight with a source's answer; the first answer of a source counts, others change nothing."""
    query = next((q for q in flight.queries if q.source == message.source), None)
    spec = next((s for s in _sources(flight) if s.id == message.source), None)
    if query is None or spec is None or any(r.source == message.source for r in flight.results):
        return flight
    return replace(flight, results=(*flight.results, _result(spec, message, query)))


def _result(spec: SourceSpec, message: Offered | Failed, query: Query) -> SourceResult:
    result = read_answer(spec, message, query.limit, query.records, only_records=query.only_records)
    erasures = message.erasures if isinstance(message, Offered) and result.status is SourceStatus.OK else None
    return replace(result, usage=_usage_of(message), erasures=erasures)


def _usage_of(message: Offered | Failed) -> tuple[SourceUsage, ...]:
    """What the answer cost, as the log may hold it: a model's name is a word, a count is one (D.D.25, D.L.6)."""
    return tuple(
        SourceUsage(word_of(usage.model) or "unnamed", usage.tokens, usage.reported)
        for usage in message.usage[:MOST_USAGES]
        if 0 <= usage.tokens <= MAX_SAFE_INTEGER
    )


def is_complete(flight: Flight) -> bool:
    """Whether every source that was asked has answered."""
    return len(flight.results) == len(flight.queries)


def time_out(flight: Flight) -> Flight:
    """The flight with ``timeout`` as the answer of every source that is still missing."""
    answered = {r.source for r in flight.results}
    asked = {q.source for q in flight.queries} - answered
    missing = tuple(
        SourceResult(s.id, s.kind, SourceStatus.FAILED, required=s.required, error="timeout")
        for s in _sources(flight)
        if s.id in asked
    )
    return replace(flight, results=flight.results + missing)


def _sources(flight: Flight) -> tuple[SourceSpec, ...]:
    return () if flight.prepared is None else flight.prepared.options.sources


def drop_erased(flight: Flight, loaded: Loaded) -> Flight:
    """The flight without the candidates that were forgotten since their source answered (design: section 3)."""
    erased: dict[str, set[str]] = {}
    for _, _, commit in loaded.commits:
        for event in commit.events:
            if isinstance(event, RecordErased):
                erased.setdefault(event.source, set()).update(event.digests)
            elif isinstance(event, RecordAllowed):
                erased.setdefault(event.source, set()).difference_update(event.digests)
    reached = max((sequence for sequence, _, _ in loaded.commits), default=loaded.after)
    if not any(erased.values()):
        return replace(flight, erasures=reached)

    def left_of(results: tuple[SourceResult, ...]) -> tuple[SourceResult, ...]:
        return tuple(
            replace(r, candidates=tuple(c for c in r.candidates if c.digest not in erased.get(r.source, ())))
            for r in results
        )

    offers = tuple(replace(o, results=left_of(o.results)) for o in flight.offers)
    return replace(flight, results=left_of(flight.results), offers=offers, erasures=reached)


def oldest_erasures(flight: Flight) -> int | None:
    """The sequence of the tenant's erasures that all answers are as of; None if no source can forget."""
    return min((r.erasures for r in flight.results if r.erasures is not None), default=None)


def usage_of(flight: Flight) -> tuple[UsageFact, ...]:
    """What the sources charged, once for each query, also for answers that were forgotten again (D.L.6)."""
    ids = {q.source: q.accounting.request_id for q in flight.queries if q.accounting is not None}
    charged = tuple(
        UsageFact(ids[r.source], r.source, usage.model, usage.tokens, usage.reported)
        for r in flight.results
        for usage in r.usage
        if r.source in ids
    )
    return flight.usage + charged


def drop_charged(flight: Flight, loaded: Loaded) -> Flight:
    """The flight without what the log has as charged: its own step failed, and the acknowledgement was lost (D.L.6)."""
    facts = (e for _, _, commit in loaded.commits for e in commit.events if isinstance(e, StepFailed))
    charged = {usage.request_id for fact in facts for usage in fact.usage}
    sources = {q.source for q in flight.queries if q.accounting is not None and q.accounting.request_id in charged}
    if not sources:
        return flight
    return replace(flight, results=tuple(replace(r, usage=()) if r.source in sources else r for r in flight.results))


def in_order(flight: Flight, options: StepOptions) -> tuple[SourceResult, ...]:
    """The answers in the order of the run's sources, so that timing never changes the outcome (D.G.25)."""
    by_source = {r.source: replace(r, usage=(), erasures=None) for r in flight.results}  # facts of the commit
    results = tuple(by_source[s.id] for s in options.sources if s.id in by_source)
    characters = sum(_count_characters(c) for r in results for c in r.candidates)
    return results if characters * _LONGEST_ESCAPE < LARGEST_OFFERS else _drop_excess(results)


def _drop_excess(results: Sequence[SourceResult]) -> tuple[SourceResult, ...]:
    """The answers as far as they fit; a source whose answer does not has failed."""
    kept: list[SourceResult] = []
    size = 0
    for result in results:
        more = len(codec.encode_json(result.candidates))
        if size + more <= LARGEST_OFFERS:
            size += more
            kept.append(result)
        else:
            failed = SourceResult(result.source, result.kind, SourceStatus.FAILED, required=result.required)
            kept.append(replace(failed, error="error", origin_code="payload_too_large"))
    return tuple(kept)


def _count_characters(candidate: Candidate) -> int:
    labels = len(candidate.query or "") + len(candidate.match or "")
    if candidate.provenance is not None:
        labels += len(candidate.provenance.origin or "") + sum(map(len, candidate.provenance.source_kinds))
    return len(candidate.text) + len(candidate.record_id) + labels


def check_required(results: Sequence[SourceResult]) -> None:
    """Refuse to go on without a required source (D.G.27).

    Raises:
        SourceFailedError: the first required source that failed, with its own code as ``origin_code``.
    """
    for result in results:
        if result.required and result.status is SourceStatus.FAILED:
            data = ErrorData(
                origin=result.source,
                origin_code=result.origin_code or result.error,
                origin_type=result.origin_type,
            )
            raise SourceFailedError(f"required source {result.source!r} failed: {result.error}", data)


def facts_of(results: Sequence[SourceResult]) -> tuple[SourceFact, ...]:
    """The answers as facts: counts and codes, no content."""
    return tuple(
        SourceFact(
            source=r.source,
            kind=r.kind,
            required=r.required,
            status=r.status,
            offered=len(r.candidates) + r.truncated,
            truncated=r.truncated,
            error=r.error,
            origin_code=r.origin_code,
            origin_type=r.origin_type,
        )
        for r in results
    )

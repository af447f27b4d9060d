"""The gather of a step: which sources are asked, and what their answers come to (design: section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.actors.flight import Flight, Prepared
from contextbus.core.candidates import cut_result, validate_candidates
from contextbus.core.compile import share_hints
from contextbus.core.estimate import Estimator
from contextbus_protocol.errors import (
    ContextBusError,
    ErrorData,
    InvalidRequestError,
    InvalidTypeError,
    SourceFailedError,
)
from contextbus_protocol.events import SourceFact
from contextbus_protocol.messages import CompileStep, Failed, Offered, Query
from contextbus_protocol.values import SourceResult, SourceSpec, SourceStatus, StepOptions

MOST_CANDIDATES: Final = 10_000
"""The most candidates that one step takes from all its sources."""

replace = msgspec.structs.replace


def check_sources(options: StepOptions) -> None:
    """Refuse a list of sources that names one twice (D.G.4), or could offer more than a step takes.

    Raises:
        InvalidTypeError: two sources have one id.
        InvalidRequestError: sources x candidates_per_source is above 10,000.
    """
    ids = [s.id for s in options.sources]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise InvalidTypeError(f"two sources have the id {name!r}; give each its own")
    if len(ids) * options.refresh.candidates_per_source > MOST_CANDIDATES:
        raise InvalidRequestError(f"a step takes at most {MOST_CANDIDATES} candidates; lower candidates_per_source")


def half_token(flight: Flight) -> str:
    """The token of the timer at half the gather's time."""
    return flight.token + "#half"


def end_token(flight: Flight) -> str:
    """The token of the timer that ends the gather."""
    return flight.token + "#end"


def first_queries(
    flight: Flight,
    command: CompileStep,
    prepared: Prepared,
    tenant: str,
    inbox: str,
    estimator: Estimator,
) -> tuple[Query, ...]:
    """The queries of a step, one for each source (D.G.23)."""
    snapshot = None if flight.items is None else flight.items.snapshot
    plan = prepared.plan
    hints = share_hints(plan.input_tokens, plan.used_tokens, command.options.budget, snapshot, estimator)
    return tuple(
        _query(flight, command, prepared, spec, hints[spec.kind], tenant, inbox) for spec in command.options.sources
    )


def missing_queries(flight: Flight, tenant: str, inbox: str) -> tuple[Query, ...]:
    """The same queries once more for every source that has not answered."""
    answered = {r.source for r in flight.results}
    command, prepared = flight.command, flight.prepared
    assert isinstance(command, CompileStep)
    assert prepared is not None
    return tuple(
        _query(flight, command, prepared, spec, 0, tenant, inbox)
        for spec in command.options.sources
        if spec.id not in answered
    )


def queries_again(flight: Flight, source: str, tenant: str, inbox: str) -> tuple[Query, ...]:
    """The query of one source once more: another worker of the group may have room."""
    return tuple(q for q in missing_queries(flight, tenant, inbox) if q.source == source)


def _query(
    flight: Flight,
    command: CompileStep,
    prepared: Prepared,
    spec: SourceSpec,
    budget_tokens: int,
    tenant: str,
    inbox: str,
) -> Query:
    return Query(
        run=command.run,
        tenant=tenant,
        command=command.command,
        token=flight.token,
        reply_to=inbox,
        source=spec.id,
        step=prepared.plan.step,
        text=prepared.plan.query,
        scope=prepared.scope,
        limit=command.options.refresh.candidates_per_source,
        budget_tokens=budget_tokens,
        seconds_left=command.seconds_left,
    )


def may_ask_again(flight: Flight, failed: Failed) -> bool:
    """Whether a busy source is asked once more."""
    return failed.code == "busy" and failed.source not in flight.asked_again


def add_result(flight: Flight, message: Offered | Failed) -> Flight:
    """The flight with a source's answer; the first answer of a source counts, others change nothing."""
    command = flight.command
    assert isinstance(command, CompileStep)
    spec = next((s for s in command.options.sources if s.id == message.source), None)
    if spec is None or any(r.source == message.source for r in flight.results):
        return flight
    limit = command.options.refresh.candidates_per_source
    return replace(flight, results=(*flight.results, _result(spec, message, limit)))


def _result(spec: SourceSpec, message: Offered | Failed, limit: int) -> SourceResult:
    if isinstance(message, Failed):
        return SourceResult(
            source=spec.id,
            kind=spec.kind,
            status=SourceStatus.FAILED,
            required=spec.required,
            error=message.code,
            origin_code=message.origin_code,
            origin_type=message.origin_type,
        )
    result = SourceResult(spec.id, spec.kind, SourceStatus.OK, message.candidates, spec.required)
    try:
        result = cut_result(result, limit)
        validate_candidates(result.candidates)
    except ContextBusError:
        # one malformed candidate fails the source's whole answer (D.K.27)
        return SourceResult(spec.id, spec.kind, SourceStatus.FAILED, required=spec.required, error="malformed")
    return result


def is_complete(flight: Flight) -> bool:
    """Whether every source has answered."""
    command = flight.command
    assert isinstance(command, CompileStep)
    return len(flight.results) == len(command.options.sources)


def time_out(flight: Flight) -> Flight:
    """The flight with ``timeout`` as the answer of every source that is still missing."""
    command = flight.command
    assert isinstance(command, CompileStep)
    answered = {r.source for r in flight.results}
    missing = tuple(
        SourceResult(s.id, s.kind, SourceStatus.FAILED, required=s.required, error="timeout")
        for s in command.options.sources
        if s.id not in answered
    )
    return replace(flight, results=flight.results + missing)


def in_order(flight: Flight, options: StepOptions) -> tuple[SourceResult, ...]:
    """The answers in the order of the run's sources, so that timing never changes the outcome (D.G.25)."""
    by_source = {r.source: r for r in flight.results}
    return tuple(by_source[s.id] for s in options.sources if s.id in by_source)


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

"""What a step needs before it can be decided, one thing after the other (D.R.2).

A pure function of fold and flight: whatever arrives is noted in the flight, and the next need is asked for again, also
when the fold moved meanwhile.
"""

from __future__ import annotations

import msgspec

from contextbus.actors import decided, gather, settle
from contextbus.actors.evaluating import AskHost, EvaluationNeed, check_compacted, check_restored, next_evaluation
from contextbus.actors.flight import Flight, Offers
from contextbus.actors.recorded import Tokenizers
from contextbus.core.projection import history_state
from contextbus.core.run_state import RunState
from contextbus_protocol import blobs
from contextbus_protocol.callbacks import CallbackAnswered, CallbackName, HistoryState
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.errors import (
    CallbackTimeoutError,
    ContextBusError,
    ErrorData,
    HookFailedError,
    NotFoundError,
)

replace = msgspec.structs.replace


class ReadOffers(msgspec.Struct, frozen=True):
    """Read the recorded offers of earlier packages (D.H.5, D.I.1)."""

    packages: tuple[str, ...]


class AskSources(msgspec.Struct, frozen=True):
    """Ask sources: for candidates, or only for what the run is owed (D.G.23, D.H.8)."""

    demands: tuple[tuple[str, str], ...] = ()


class ReadErasures(msgspec.Struct, frozen=True):
    """Read what was forgotten since the sources answered (design: section 3)."""

    after: int


class Decide(msgspec.Struct, frozen=True):
    """All is at hand."""


Need = EvaluationNeed | ReadOffers | AskSources | ReadErasures | Decide


def next_need(fold: RunState, flight: Flight, tokenizers: Tokenizers) -> tuple[Flight, Need]:
    """The flight settled at this fold, and what it lacks.

    Raises:
        ContextBusError: the step cannot be compiled; the class says why.
    """
    command = flight.command
    callbacks = command.callbacks if isinstance(command, CompileStep) else ()
    flight = settle.settle_step(fold, flight, tokenizers)
    check_restored(flight)
    _check_answer(flight.evaluation)
    evaluation = next_evaluation(fold, flight, tokenizers)
    if evaluation is not None:
        return flight, evaluation
    check_compacted(fold, flight)
    if "prepare-step" in callbacks and flight.hook is None:
        return flight, AskHost("prepare-step")
    _check_answer(flight.hook)
    if "before-compile" in callbacks and flight.implicit is None:
        return flight, AskHost("before-compile")
    _check_answer(flight.implicit)
    prepared = flight.prepared
    assert prepared is not None
    if flight.transformed is not None and flight.transformed_for != request_of(prepared.after):
        # the history or a block in it moved: what was made of the one before would lack or hold what it should not
        flight = settle.settle_step(fold, replace(flight, transformed=None, prepared=None), tokenizers)
    if "transform-context" in callbacks and flight.transformed is None:
        return flight, AskHost("transform-context")
    _check_answer(flight.transformed)
    prepared = flight.prepared
    assert prepared is not None
    refresh = prepared.plan.refresh
    if "rewrite-query" in callbacks and refresh.retrieve and flight.rewrite is None:
        return flight, AskHost("rewrite-query", prepared.plan.query)
    _check_answer(flight.rewrite)
    packages = _packages_of(fold, flight)
    known = {offers.package for offers in flight.offers}
    missing = tuple(dict.fromkeys(package for package in packages if package not in known))
    if missing:
        return flight, ReadOffers(missing)
    _, demands = decided.restored_of(flight, prepared)
    if refresh.retrieve and flight.gathered != "all":
        return flight, AskSources(demands)
    asked = {(query.source, record) for query in flight.queries for record in query.records}
    if not asked.issuperset(demands):  # also what came to be owed while the sources were asked
        return flight, AskSources(demands)
    after = gather.oldest_erasures(flight)
    if after is not None and flight.erasures is None:
        return flight, ReadErasures(after)
    return flight, Decide()


def request_of(after: RunState) -> HistoryState:
    """Which request history a run has, whatever else its log holds."""
    return replace(history_state(after), sequence=0)


def _packages_of(fold: RunState, flight: Flight) -> tuple[str, ...]:
    if isinstance(flight.command, OverflowStep):
        return () if fold.last is None else (fold.last.package,)
    assert flight.prepared is not None
    return tuple(owed.package for owed in flight.prepared.plan.restore)


def _check_answer(answer: CallbackAnswered | None) -> None:
    """Refuse to go on after the host's function failed (D.W.4)."""
    if answer is None or answer.code is None:
        return
    name = function_name(answer.name)
    data = ErrorData(origin=name, origin_code=answer.origin_code or "error", origin_type=answer.origin_type)
    raise HookFailedError(f"{name} of the host failed", data)


def function_name(name: CallbackName) -> str:
    """A function of the host as its option is called."""
    return "on_budget_exceeded" if name == "budget-exceeded" else name.replace("-", "_")


def late_callback(flight: Flight) -> CallbackTimeoutError:
    """The failure of a step whose host did not answer the question under way (D.W.4)."""
    name = function_name(flight.asked or "prepare-step")
    return CallbackTimeoutError(f"{name} of the host did not answer in time", ErrorData(origin=name))


def note_offers(flight: Flight, packages: tuple[str, ...], found: dict[str, bytes]) -> Flight:
    """The flight with what the blobs of earlier packages hold; one that is gone or damaged holds nothing (D.H.7).

    Raises:
        NotFoundError: the offers of the step to compile again are gone.
    """
    offers = tuple(_read_offers(package, found.get(package)) for package in packages)
    if isinstance(flight.command, OverflowStep) and any(o.output is None for o in offers):
        raise NotFoundError("the step's recorded offers are no longer stored; compile the step anew")
    return replace(flight, offers=(*flight.offers, *offers), prepared=None)


def _read_offers(package: str, data: bytes | None) -> Offers:
    if data is None:
        return Offers(package)
    try:
        output = blobs.decode_output(data)
    except ContextBusError:
        try:
            return Offers(package, blobs.decode_redacted(data).results)
        except ContextBusError:
            return Offers(package)
    return Offers(package, (*output.results, *output.restored), output)

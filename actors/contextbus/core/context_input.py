"""What a compile depends on, all of it (D.A.6)."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from contextbus.core.budget import DEFAULT_CONTEXT_BUDGET, require_count, validate_budget
from contextbus.core.candidates import cut_result, is_id, validate_candidates
from contextbus.core.working_memory_items import WORKING_MEMORY_SOURCE
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import CachePrefixCause, Fallback, RefreshReason
from contextbus_protocol.values import SOURCE_KINDS, ContextBudget, PlacedEntry, SourceResult, SourceStatus
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class ContextInput(msgspec.Struct, frozen=True, kw_only=True):
    """All that one compile depends on (D.A.6).

    Token counts are in tokens.  ``results`` are the answers of the sources asked now, in source order, and
    ``restored`` the recorded offers of records whose block left the history (D.H.5), in source order too; ``placed``
    are the entries that still stand in it, ``owed`` those that left it: no older revision may follow them (D.C.18).
    ``pass_`` counts the retrievals so far, this one included (D.D.23).
    ``candidates_per_source`` makes ``compile_context`` cut longer answers (D.C.16).  ``estimator_kind`` only labels
    the manifest (D.M.16); ``tail_kept`` says that the model is one of D.F.8, ``tail_given`` that messages of the host's
    prompt stand in the tail, counted in ``used_tokens`` (P.A.6).
    """

    run_id: str
    step: int
    input_tokens: int
    used_tokens: int
    budget: ContextBudget = DEFAULT_CONTEXT_BUDGET
    results: tuple[SourceResult, ...] = ()
    restored: tuple[SourceResult, ...] = ()
    working_memory: WorkingMemorySnapshot | None = None
    placed: tuple[PlacedEntry, ...] = ()
    owed: tuple[PlacedEntry, ...] = ()
    query: str = ""
    refresh: RefreshReason = "initial"
    pass_: int = 1
    fallback: Fallback | None = None
    redacted: bool = False
    cache_prefix_changed: bool = False
    cache_prefix_cause: CachePrefixCause | None = None
    estimator_kind: str | None = None
    tail_kept: bool = False
    tail_given: bool = False
    candidates_per_source: int | None = None
    phase: Literal["compile", "overflow-retry"] = "compile"


def cut_results(given: ContextInput) -> ContextInput:
    """Cut all answers to ``candidates_per_source``, if it is given (D.C.16).

    Raises:
        InvalidTypeError: The limit is no count, or ``results`` holds something else than answers (D.T.4).
    """
    for name in ("results", "restored"):
        _check_types(name, getattr(given, name))
    limit = given.candidates_per_source
    if limit is None:
        return given
    require_count("candidates_per_source", limit)
    return msgspec.structs.replace(given, results=tuple(cut_result(result, limit) for result in given.results))


def validate_input(given: ContextInput) -> None:
    """Refuse an input that is not one.

    Raises:
        InvalidTypeError: A count, the budget or a candidate is malformed, two results have one source id (D.T.4), or
            the cause of a changed prefix is given without the change or the other way round (D.D.16).
    """
    for name, count in (
        ("step", given.step),
        ("pass_", given.pass_),
        ("input_tokens", given.input_tokens),
        ("used_tokens", given.used_tokens),
    ):
        require_count(name, count)
    validate_budget(given.budget)
    if given.cache_prefix_changed != (given.cache_prefix_cause is not None):
        raise InvalidTypeError("cache_prefix_cause goes with cache_prefix_changed: give both or none")
    for results in (given.results, given.restored):
        _validate_results(results)


def _check_types(name: str, results: object) -> None:
    if not isinstance(results, tuple | list):
        raise InvalidTypeError(f"{name} must be a tuple of SourceResult, not {type(results).__name__}")
    for position, result in enumerate(cast("tuple[object, ...]", results)):
        if not isinstance(result, SourceResult):
            raise InvalidTypeError(f"{name}[{position}] must be a SourceResult, not {type(result).__name__}")
        candidates = cast("object", result.candidates)
        if not isinstance(candidates, tuple | list):
            raise InvalidTypeError(f"{name}[{position}].candidates must be a tuple, not {type(candidates).__name__}")


def _validate_results(results: tuple[SourceResult, ...]) -> None:
    seen: set[str] = set()
    for result in results:
        if not is_id(result.source):
            raise InvalidTypeError("the id of a source must be a string that is not empty and has no lone surrogate")
        if result.kind not in SOURCE_KINDS:
            raise InvalidTypeError(f"source {result.source!r} has kind {result.kind!r}; give {', '.join(SOURCE_KINDS)}")
        if result.source in seen:
            raise InvalidTypeError(f"two sources have the id {result.source!r}; ids must differ")
        if result.source == WORKING_MEMORY_SOURCE:
            raise InvalidTypeError(f"no source may have the id {WORKING_MEMORY_SOURCE!r}")
        status = cast("object", result.status)
        if not isinstance(status, SourceStatus):
            known = ", ".join(f"SourceStatus.{known.name}" for known in SourceStatus)
            raise InvalidTypeError(f"source {result.source!r} has status {status!r}; give {known}")
        seen.add(result.source)
        if result.status is SourceStatus.OK:
            validate_candidates(result.candidates)

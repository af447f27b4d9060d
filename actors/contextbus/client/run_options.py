"""What a run is held with, as checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from contextbus.client.callbacks import PrepareStep, RewriteQuery
from contextbus.core.budget import merge_budget, merge_refresh
from contextbus.core.observer import Observer
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.host import Host
from contextbus.runtime.telling import OnWarning
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import (
    CompactionOptions,
    ContextBudget,
    EstimatorSpec,
    ModelPrefix,
    ParentRun,
    RefreshOptions,
    Scope,
    SourceSpec,
)


class OpenBus(Protocol):
    """What a run needs of the bus that it was made by."""

    tenant: str
    host: Host
    driver: JournalDriver
    tokenizers: dict[str, Callable[[str], int]]
    observer: Observer | None

    def failure_of(self, run: str, origin: str | None) -> BaseException | None:
        """What a source or summariser of this process raised last for a run."""
        ...


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run; ``ContextBus.run`` documents each."""

    scope: Scope
    sources: tuple[SourceSpec, ...]
    budget: ContextBudget
    refresh: RefreshOptions
    estimator: EstimatorSpec
    parent: ParentRun | None = None
    compaction: CompactionOptions | None = None
    bound_models: tuple[ModelPrefix, ...] = ()
    prepare_step: PrepareStep | None = None
    rewrite_query: RewriteQuery | None = None
    on_warning: OnWarning | None = None


def read_options(
    *,
    scope: Scope,
    sources: tuple[SourceSpec, ...],
    budget: ContextBudget | Mapping[str, object] | None,
    refresh: RefreshOptions | Mapping[str, object] | None,
    estimator: EstimatorSpec | None,
    parent: ParentRun | None,
    compaction: CompactionOptions | None = None,
    bound_models: Sequence[ModelPrefix],
    prepare_step: PrepareStep | None,
    rewrite_query: RewriteQuery | None,
    on_warning: OnWarning | None,
) -> RunOptions:
    """The options of a run, what is given in part merged over the defaults.

    Raises:
        InvalidTypeError: an option is malformed; the message names it.
    """
    functions = {"prepare_step": prepare_step, "rewrite_query": rewrite_query, "on_warning": on_warning}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidTypeError(f"{name} must be a function, not {type(function).__name__}")
    options = RunOptions(
        scope=scope,
        sources=sources,
        budget=merge_budget(budget),
        refresh=merge_refresh(refresh),
        estimator=estimator or EstimatorSpec(),
        parent=parent,
        compaction=compaction,
        bound_models=tuple(bound_models),
        prepare_step=prepare_step,
        rewrite_query=rewrite_query,
        on_warning=on_warning,
    )
    for name, kind in (("scope", Scope), ("estimator", EstimatorSpec)):
        value: object = getattr(options, name)
        if not isinstance(value, kind):
            raise InvalidTypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    # as the log will have it, to the byte
    return msgspec.structs.replace(options, estimator=decode_json(encode_json(options.estimator), EstimatorSpec))

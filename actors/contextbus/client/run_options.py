"""What a run is held with, as checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from contextbus.client.callbacks import Answerer
from contextbus.client.compaction_hooks import CompactionHooks
from contextbus.client.compaction_options import Compaction, CompactionSetup
from contextbus.client.step_hooks import HookFunctions
from contextbus.client.window import Window
from contextbus.core.budget import merge_budget, merge_refresh
from contextbus.core.estimate import estimate_overhead, make_estimator
from contextbus.core.observer import Observer
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.host import Host
from contextbus.runtime.telling import OnWarning
from contextbus_protocol.callbacks import CallbackName
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.digests import digest_bytes, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import (
    CompactionOptions,
    ContextBudget,
    EstimatorSpec,
    Model,
    ModelPrefix,
    ParentRun,
    RefreshOptions,
    Scope,
    SourceSpec,
    StepOptions,
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

    def note_over(self, run: str, command: str) -> None:
        """Keep that a step is over, however it ended (C.O.11)."""
        ...


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run; ``ContextBus.run`` documents each."""

    scope: Scope
    sources: tuple[SourceSpec, ...]
    budget: ContextBudget
    refresh: RefreshOptions
    estimator: EstimatorSpec
    parent: ParentRun | None = None
    compaction: CompactionSetup | None = None
    bound_models: tuple[ModelPrefix, ...] = ()
    hooks: HookFunctions = HookFunctions()
    on_warning: OnWarning | None = None

    @property
    def instructions(self) -> str | None:
        """What the host asks of a summary."""
        return None if self.compaction is None else self.compaction.instructions

    @property
    def summary_seconds(self) -> float:
        """How long a summary may take beside a step's own time, in seconds."""
        return 0.0 if self.compaction is None else self.compaction.seconds

    def compaction_answerers(self) -> dict[CallbackName, Answerer]:
        """What answers for the host's functions of a compaction."""
        return {} if self.compaction is None else CompactionHooks(self.compaction).answerers()

    def count_overhead(
        self,
        tokenizers: Mapping[str, Callable[[str], int]],
        output_schema: Mapping[str, object] | None,
        tools: str | None,
        provider: str,
    ) -> int:
        """Tokens of tool definitions as JSON text, output schema and framing (D.M.15)."""
        estimator = make_estimator(self.estimator, tokenizers)
        schemas = () if tools is None else msgspec.json.decode(tools)
        return estimate_overhead(schemas, output_schema, provider, estimator=estimator)

    def step_options(
        self,
        model: Model,
        overhead_tokens: int,
        tools: str | None,
        *,
        output_schema: Mapping[str, object] | None,
        settings: Mapping[str, object] | None,
        estimator_kind: str | None,
    ) -> StepOptions:
        """What one step is compiled for and with; ``tools`` are the tool definitions as JSON text.

        Raises:
            InvalidTypeError: the settings cannot be written as JSON.
        """
        return StepOptions(
            scope=self.scope,
            model=model,
            overhead_tokens=overhead_tokens,
            sources=self.sources,
            budget=self.budget,
            refresh=self.refresh,
            estimator=self.estimator,
            estimator_kind=estimator_kind,
            tools_digest=None if tools is None else digest_text(tools),
            bound_models=self.bound_models,
            compaction=None if self.compaction is None else self.compaction.options,
            settings_digest=_digest_settings(settings, output_schema),
        )


def _digest_settings(settings: Mapping[str, object] | None, output_schema: Mapping[str, object] | None) -> str | None:
    """What else of a request its measured count depends on, as a digest (C.M.3)."""
    if settings is None and output_schema is None:
        return None
    if settings is not None and not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"settings must be a mapping, not {type(settings).__name__}")
    given = [None if each is None else dict(each) for each in (settings, output_schema)]
    return digest_bytes(encode_json(given))


def read_options(
    *,
    scope: Scope,
    sources: tuple[SourceSpec, ...],
    budget: ContextBudget | Mapping[str, object] | None,
    refresh: RefreshOptions | Mapping[str, object] | None,
    estimator: EstimatorSpec | None,
    parent: ParentRun | None,
    compaction: Compaction | Window | None = None,
    bound_models: Sequence[ModelPrefix],
    hooks: HookFunctions,
    on_warning: OnWarning | None,
) -> RunOptions:
    """The options of a run, what is given in part merged over the defaults.

    Raises:
        InvalidTypeError: an option is malformed; the message names it.
    """
    functions = {**msgspec.structs.asdict(hooks), "on_warning": on_warning}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidTypeError(f"{name} must be a function, not {type(function).__name__}")
    if compaction is not None and not isinstance(compaction, Compaction | Window):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"compaction must be a Compaction or a Window, not {type(compaction).__name__}")
    options = RunOptions(
        scope=scope,
        sources=sources,
        budget=merge_budget(budget),
        refresh=merge_refresh(refresh),
        estimator=estimator or EstimatorSpec(),
        parent=parent,
        compaction=None if compaction is None else compaction.setup(),
        bound_models=tuple(bound_models),
        hooks=hooks,
        on_warning=on_warning,
    )
    for name, kind in (("scope", Scope), ("estimator", EstimatorSpec)):
        value: object = getattr(options, name)
        if not isinstance(value, kind):
            raise InvalidTypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    # as the log will have it, to the byte
    setup = options.compaction
    if setup is not None:
        setup = msgspec.structs.replace(setup, options=decode_json(encode_json(setup.options), CompactionOptions))
    return msgspec.structs.replace(
        options,
        budget=decode_json(encode_json(options.budget), ContextBudget),
        estimator=decode_json(encode_json(options.estimator), EstimatorSpec),
        compaction=setup,
    )

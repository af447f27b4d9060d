"""The sources of a compiler that is used without a bus: asked all at once, in this process (D.G.23-D.G.27)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import anyio

from contextbus.core.compiler_step import CompilerPlan, StepRequest
from contextbus.core.scope import require_scope, require_within
from contextbus.core.working_memory_items import WORKING_MEMORY_SOURCE
from contextbus.sources.answers import handler
from contextbus.sources.interface import Source, check_source, scope_read
from contextbus_protocol.errors import ErrorData, InvalidTypeError, SourceFailedError
from contextbus_protocol.package import ContextWarning
from contextbus_protocol.questions import Accounting, Failed, Offered, Query
from contextbus_protocol.values import Scope, SourceKind, SourceResult, SourceSpec, SourceStatus

MAX_STEPS_AT_ONCE: Final = 10_000
"""How many queries of one source may be under way: a step has one, so that no host ever meets ``busy`` here."""

Account = Callable[[str], Accounting]
"""Names who pays for a query of a source, given the source's id, with a request id of its own each time (D.L.5)."""


class CompilerSources:
    """The sources of one compiler, and what they raised in the present step.

    ``warnings`` are those of unaccounted usage that nobody was told yet (D.L.3).

    Args:
        sources: the sources in their order.
        scope: the compiler's own scope.
        parent_scope: the memory scope of the run that the compiler works under, if it does (D.K.5).

    Raises:
        InvalidTypeError: one of them is no source, or two have one id (D.G.4, D.K.20).
        ScopeConflictError: a scope that is read lies outside the parent's, or the scopes of a source and of the
            compiler differ (D.K.3, D.K.7).
    """

    def __init__(self, sources: Sequence[Source], scope: Scope | None, parent_scope: Scope | None) -> None:
        checked = [check_source(source) for source in sources]
        self.specs = tuple(SourceSpec(s.id, s.kind, s.required) for s in checked)
        ids = [spec.id for spec in self.specs]
        for index, name in enumerate(ids):
            if name == WORKING_MEMORY_SOURCE:
                raise InvalidTypeError(f"no source may have the id {name!r}; give it another")
            if name in ids[:index]:
                raise InvalidTypeError(f"two sources have the id {name!r}; give each its own")
        self._scope = Scope() if scope is None else require_scope(scope)
        if parent_scope is not None:
            require_within(self._scope, parent_scope)
        for source in checked:
            read = scope_read(source, self._scope)
            if parent_scope is not None:
                require_within(read, parent_scope)
        self.warnings: list[ContextWarning] = []
        self._raised: dict[str, BaseException] = {}
        self._handlers = {
            source.id: handler(
                source, concurrency=MAX_STEPS_AT_ONCE, on_error=self._note, on_warning=self.warnings.append
            )
            for source in checked
        }

    async def ask(
        self,
        request: StepRequest,
        plan: CompilerPlan,
        hints: dict[SourceKind, int],
        *,
        limit: int,
        seconds: float,
        account: Account | None,
    ) -> list[tuple[SourceSpec, Offered | Failed]]:
        """Ask what the plan says, all at once; the answers are in source order whatever comes first (D.G.25).

        Args:
            request: the step.
            plan: what is asked.
            hints: the tokens that each kind may take (D.G.23).
            limit: the most candidates of an answer.
            seconds: how long a source may take; less if the caller's own deadline ends sooner.
            account: who pays, if anybody does.
        """
        self._raised.clear()
        seconds = min(seconds, anyio.current_effective_deadline() - anyio.current_time())
        asked = [spec for spec in self.specs if plan.refresh.retrieve or plan.records_of(spec.id)]
        answers: dict[str, Offered | Failed] = {}

        async def ask_one(query: Query) -> None:
            answers[query.source] = await self._handlers[query.source](query)

        async with anyio.create_task_group() as group:
            for spec in asked:
                records = plan.records_of(spec.id)
                query = Query(
                    run=request.run_id,
                    tenant="",
                    command="",
                    token=spec.id,
                    reply_to="",
                    source=spec.id,
                    step=request.step,
                    text=plan.query,
                    scope=self._scope,
                    limit=limit,
                    budget_tokens=hints[spec.kind],
                    seconds_left=seconds,
                    records=records,
                    only_records=not plan.refresh.retrieve,
                    accounting=None if account is None else account(spec.id),
                )
                group.start_soon(ask_one, query)
        return [(spec, answers[spec.id]) for spec in asked]

    def check_required(self, results: Iterable[SourceResult]) -> None:
        """Raise what the first required source that failed raised, the very object (D.G.27, D.W.2).

        Raises:
            SourceFailedError: it raised nothing: it took too long, or its answer is malformed or too large.
        """
        for result in results:
            if not result.required or result.status is not SourceStatus.FAILED:
                continue
            error = self._raised.pop(result.source, None)
            if error is not None:
                raise error
            data = ErrorData(
                origin=result.source, origin_code=result.origin_code or result.error, origin_type=result.origin_type
            )
            raise SourceFailedError(f"required source {result.source!r} failed: {result.error}", data)

    def _note(self, query: Query, error: BaseException) -> None:
        self._raised[query.source] = error

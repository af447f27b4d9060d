"""The context compiler as a library: one object in this process, no bus and no run (D.A.5, D.G.1).

The host places the blocks of each package in its own list of messages: the append block once, behind the messages it
was compiled for, the tail behind that and for this request only; on a model of D.F.8 the tail stays as well (D.F.11).
Packages and state across a restart are the host's to keep (D.H.12, D.R.13).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import anyio
import msgspec

from contextbus.client.compiled import Tools
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.sending import DEFAULT_SECONDS
from contextbus.client.source_queries import Account, CompilerSources
from contextbus.client.step_hooks import RewriteQuery, StepContext
from contextbus.client.token_estimator import TokenEstimator
from contextbus.core.answers import merge_answers, read_answer
from contextbus.core.budget import DEFAULT_CONTEXT_BUDGET, DEFAULT_CONTEXT_REFRESH, merge_budget, require_count
from contextbus.core.compile import compile_context
from contextbus.core.compiler_state import Texts, drop_waiting, keep_texts, read_state, settle
from contextbus.core.compiler_step import (
    CompilerOptions,
    CompilerPlan,
    StepRequest,
    check_request,
    compile_input,
    is_reopened,
    outcome_of,
    plan_overflow,
    plan_step,
)
from contextbus.core.decision import share_hints
from contextbus.core.estimate import Estimator
from contextbus.core.history import latest_user_text
from contextbus.core.manifest import context_warnings
from contextbus.core.observer import Observer
from contextbus.core.request_history import RequestHistory, take_request
from contextbus.core.targets.tools import tools_text
from contextbus.runtime.telemetry import report_compile
from contextbus.runtime.telling import OnWarning, tell_warnings
from contextbus.sources.interface import Source
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.compiler_state import ContextCompilerState
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError
from contextbus_protocol.package import ContextManifest, Package
from contextbus_protocol.values import (
    ContextBudget,
    EstimatorSpec,
    Model,
    ModelPrefix,
    RefreshOptions,
    Scope,
    SourceResult,
)
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class _Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The last step as this object compiled it: enough to compile it again from what was retrieved (D.I.1).

    ``sent`` are the messages of its newest compile.
    """

    request: StepRequest
    sent: RequestHistory
    plan: CompilerPlan
    results: tuple[SourceResult, ...]
    before: ContextCompilerState
    texts: Texts
    package: Package


class Compiler:
    """Decides what each model call of one agent run gets to see, outside a run of ours (D.G.1, D.R.11).

    Its API is a preview and may change; the formats of manifest and state are versioned (D.A.5).  Steps are compiled
    one after the other.

    Args:
        sources: the sources in their order, which breaks ties (D.C.2).
        budget: a budget, or what of the default is to be changed (D.B.7).
        refresh: when it retrieves (D.G.2).
        scope: whose data sources may read; each narrows it to its own (D.K.2).
        estimator: what counts tokens: one of ``create_token_estimator``, to share, or the name of a heuristic.
        estimator_kind: a label for manifests (D.M.16).
        state: what ``state()`` of an earlier compiler returned, as a value or as its JSON object (D.H.2).
        observer: hears of each compile; what it raises changes nothing (D.S.5).
        on_warning: told of each failed optional source (D.G.26), and once of usage that no source reported (D.L.3);
            async or not.
        rewrite_query: makes the query of a retrieval, given ours and the step as its functions see it (D.A.9).
        bound_models: further models that bind thinking to the prefix (D.F.12).
        parent_scope: the memory scope of the run that this compiler works under: its scope and those of its sources
            lie within it (D.K.5-D.K.7).
        clock: seconds, for the observer alone (D.G.32).

    Raises:
        InvalidTypeError: two sources have one id (D.G.4), or an option or the state is malformed (D.H.3, D.T.4).
        ScopeConflictError: a scope lies outside the parent's, or those of compiler and source differ (D.K.3, D.K.7).
    """

    def __init__(
        self,
        *,
        sources: Iterable[Source] = (),
        budget: ContextBudget | Mapping[str, object] | None = None,
        refresh: RefreshOptions | None = None,
        scope: Scope | None = None,
        estimator: TokenEstimator | EstimatorSpec | None = None,
        estimator_kind: str | None = None,
        state: ContextCompilerState | Mapping[str, Any] | None = None,
        observer: Observer | None = None,
        on_warning: OnWarning | None = None,
        rewrite_query: RewriteQuery | None = None,
        bound_models: Iterable[ModelPrefix] = (),
        parent_scope: Scope | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = CompilerSources(tuple(sources), scope, parent_scope)
        self._options = CompilerOptions(
            sources=self._sources.specs,
            budget=merge_budget(DEFAULT_CONTEXT_BUDGET if budget is None else budget),
            refresh=DEFAULT_CONTEXT_REFRESH if refresh is None else refresh,
            bound_models=tuple(bound_models),
        )
        for name in ("min_steps", "max_passes", "candidates_per_source"):
            require_count(f"refresh.{name}", getattr(self._options.refresh, name))
        if not isinstance(estimator, TokenEstimator):
            estimator = TokenEstimator(EstimatorSpec() if estimator is None else estimator)
        self._estimator = estimator
        self._estimator_kind = estimator_kind
        self._state = read_state(state)
        self._observer = observer
        self._on_warning = on_warning
        self._rewrite_query = rewrite_query
        self._clock = clock
        self._lock = anyio.Lock()
        self._request = RequestHistory()
        self._texts: Texts = {}
        self._last: _Compiled | None = None

    def state(self) -> ContextCompilerState:
        """What a later compiler goes on from (D.H.1): frozen, and plain JSON by ``encode_json``.

        It holds no text.  A compiler made from it compiles the same; only a record whose block left the history waits
        for the next retrieval, unless it is mandatory (D.H.7, D.H.8).
        """
        return self._state

    def request_refresh(self) -> None:
        """Ask the sources again at the next step, whatever its number (D.G.5, D.G.7)."""
        self._state = msgspec.structs.replace(self._state, refresh_requested=True)

    async def before_model_call(
        self,
        *,
        run_id: str,
        step: int,
        messages: Sequence[GivenMessage],
        model: Model,
        overhead_tokens: int = 0,
        working_memory: WorkingMemorySnapshot | None = None,
        refresh: bool = False,
        redacted: bool = False,
        estimator_kind: str | None = None,
        tools: Tools = None,
        seconds: float = DEFAULT_SECONDS,
        accounting: Account | None = None,
    ) -> Package:
        """Compile the context of the next model call (D.G.3).

        The last step again with the same input gives the same package, and nothing is asked; with another input it is
        compiled anew.  A call that raises changes nothing: what was due stays due (D.G.27).

        Args:
            run_id: the host's name of the run, for the manifest.
            step: the number of the model step; it never goes back.
            messages: all messages of the request, with the blocks of earlier steps where the host placed them.
            model: the model that will be called.
            overhead_tokens: tokens of tool schemas, output schema and framing; ``estimate_overhead`` counts them.
            working_memory: the working memory as it stands now.
            refresh: ask the sources again with this step (D.G.5).
            redacted: the step's stored package was redacted by a forget: ask again, and let nothing that was retrieved
                before come back by itself (D.J.1-D.J.5).
            estimator_kind: a label for this manifest; it wins over the compiler's (D.M.10).
            tools: the tool definitions of the call, for the comparison of the cache prefix (D.F.22).
            seconds: how long a source may take; less if the caller's own deadline ends sooner.
            accounting: names who pays for the query of a source (D.L.5).

        Raises:
            ContextBudgetExceededError: mandatory content does not fit (D.B.15).
            InvalidTypeError: the input is malformed, or the step lies before the last one.
            SourceFailedError: a required source failed without an exception of its own; one that it raised is raised
                as it is (D.G.27, D.W.2).
        """
        async with self._lock:
            began, before, estimator = self._clock(), self._state, self._estimator.for_step()
            request = StepRequest(
                run_id=run_id,
                step=step,
                request=RequestHistory(),
                user_text="",
                model=model,
                overhead_tokens=overhead_tokens,
                working_memory=working_memory,
                refresh=refresh,
                redacted=redacted,
                estimator_kind=self._estimator_kind if estimator_kind is None else estimator_kind,
                tools_digest=_digest_tools(tools),
            )
            check_request(request)
            request = self._with_messages(request, read_given(messages), estimator)
            if is_reopened(before, step) and self._is_unchanged(request):
                assert self._last is not None
                return self._last.package
            try:
                package = await self._compile(request, before, estimator, seconds, accounting)
            except BaseException:  # a cancelled caller's refresh stays due as well (D.G.27, D.W.5)
                if refresh:
                    self.request_refresh()
                raise
            report_compile(self._observer, package.manifest, self._clock() - began)
            await self._warn(package.manifest)
            return package

    def on_overflow(
        self,
        *,
        run_id: str,
        step: int,
        input_tokens: int,
        messages: Sequence[GivenMessage] | None = None,
        overhead_tokens: int | None = None,
        working_memory: WorkingMemorySnapshot | None = None,
    ) -> Package:
        """Compile the last step again under a smaller limit, from what was retrieved for it; no source is asked (D.I).

        The new package takes the place of the step's first one, which the host drops.

        Args:
            run_id: the host's name of the run.
            step: the number of the step whose request was too large.
            input_tokens: the limit of now, in tokens.
            messages: the messages of the request, if they were compacted since; those of the step by default.
            overhead_tokens: as in ``before_model_call``; that of the step by default.
            working_memory: the working memory of now; that of the step by default.

        Raises:
            ContextBudgetExceededError: mandatory content does not fit, phase ``overflow-retry`` (D.I.3).
            InvalidRequestError: a step is being compiled.
            InvalidTypeError: this object has not compiled that step last (D.I.6), or the input is malformed.
        """
        if self._lock.statistics().locked:
            raise InvalidRequestError("a step is being compiled; wait for it")
        last = self._last
        if last is None or (last.request.run_id, last.request.step) != (run_id, step):
            raise InvalidTypeError(f"step {step} was not the last that this compiler compiled: before_model_call first")
        require_count("input_tokens", input_tokens)
        began, estimator = self._clock(), self._estimator.for_step()
        request = msgspec.structs.replace(
            last.request,
            input_tokens=input_tokens,
            overhead_tokens=last.request.overhead_tokens if overhead_tokens is None else overhead_tokens,
            working_memory=last.request.working_memory if working_memory is None else working_memory,
        )
        check_request(request)
        if messages is not None:
            request = self._with_messages(request, read_given(messages), estimator)
        again = plan_step(last.before, request, self._options, last.texts, estimator)
        plan = plan_overflow(last.plan, again)
        package = self._settle(request, plan, last.results, last.before, last.texts, estimator)
        # The first compile stays what a second overflow starts from.
        self._last = msgspec.structs.replace(last, package=package, sent=request.request)
        report_compile(self._observer, package.manifest, self._clock() - began)
        return package

    def _with_messages(
        self, request: StepRequest, messages: tuple[ChatMessage, ...], estimator: Estimator
    ) -> StepRequest:
        own = {block.digest for block in self._state.blocks}
        self._request = take_request(self._request, messages, own, estimator)
        return msgspec.structs.replace(
            request, request=self._request, user_text=latest_user_text(messages, self._request.present)
        )

    def _is_unchanged(self, request: StepRequest) -> bool:
        """Whether the last step is asked for again as it was, so that its package is the answer (D.R.7)."""
        if self._last is None or request.refresh or request.redacted or self._state.refresh_requested:
            return False
        known = self._last.request
        if not known.request.equals(request.request):
            return False
        same = msgspec.structs.replace(
            request, request=known.request, user_text=known.user_text, refresh=known.refresh, redacted=known.redacted
        )
        return same == known

    async def _compile(
        self,
        request: StepRequest,
        before: ContextCompilerState,
        estimator: Estimator,
        seconds: float,
        accounting: Account | None,
    ) -> Package:
        if request.redacted:
            # Which record was forgotten is not said: only what the sources offer now may be sent (D.J.4).
            self._texts, self._last = {}, None
        options, texts = self._options, self._texts
        last = self._last
        if last is not None and not is_reopened(before, request.step) and not last.sent.equals(request.request):
            # something came of the last step: with the very same messages its call would not have succeeded (D.F.13)
            texts = drop_waiting(texts, last.plan.restored, before)
        plan = plan_step(before, request, options, texts, estimator)
        if plan.is_due and self._rewrite_query is not None:
            rewritten = self._rewrite_query(plan.query, _seen_by_host(request))
            text = cast("object", await rewritten if inspect.isawaitable(rewritten) else rewritten)
            if not isinstance(text, str):
                raise InvalidTypeError("rewrite_query must return the query, a text")
            plan = plan_step(before, request, options, texts, estimator, text)
        results: tuple[SourceResult, ...] = ()
        if plan.refresh.retrieve or plan.demands:
            budget, memory = options.budget, request.working_memory
            answers = await self._sources.ask(
                request,
                plan,
                share_hints(plan.input_tokens, plan.used_tokens, budget, memory, estimator),
                limit=options.refresh.candidates_per_source,
                seconds=seconds,
                account=accounting,
            )
            limit, only = options.refresh.candidates_per_source, not plan.refresh.retrieve
            results = tuple(
                read_answer(spec, answer, limit, plan.records_of(spec.id), only_records=only)
                for spec, answer in answers
            )
            self._sources.check_required(results)
        results = merge_answers(options.sources, results, skipped=plan.refresh.skipped)
        package = self._settle(request, plan, results, before, texts, estimator)
        self._last = _Compiled(
            request=request,
            sent=request.request,
            plan=plan,
            results=results,
            before=before,
            texts=texts,
            package=package,
        )
        return package

    def _settle(
        self,
        request: StepRequest,
        plan: CompilerPlan,
        results: tuple[SourceResult, ...],
        before: ContextCompilerState,
        texts: Texts,
        estimator: Estimator,
    ) -> Package:
        package = compile_context(compile_input(request, plan, self._options, results), estimator)
        state = settle(before, outcome_of(before, request, plan, results, package))
        if self._state is not before and self._state.refresh_requested:
            state = msgspec.structs.replace(state, refresh_requested=True)  # asked for while this step was compiled
        self._texts = keep_texts(texts, results, plan.standing.live, state)
        self._state = state
        return package

    async def _warn(self, manifest: ContextManifest) -> None:
        warnings = (*context_warnings(manifest), *self._sources.warnings)
        self._sources.warnings.clear()
        await tell_warnings(self._on_warning, warnings, run=manifest.run_id, step=manifest.step)


def _seen_by_host(request: StepRequest) -> StepContext:
    """The step as a function of the host sees it: the messages without our blocks, as those of a run are."""
    own = frozenset(request.request.present)
    messages = (e.message for e in request.request.history if e.digest not in own)
    return StepContext(
        run=request.run_id,
        step=request.step,
        messages=tuple(m for m in messages if m is not None),
        model=request.model,
    )


def _digest_tools(tools: Tools) -> str | None:
    text = tools_text(tools)
    return None if text is None else digest_text(text)

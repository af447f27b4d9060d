"""The context compiler as a library: one object in this process, no bus and no run (D.A.5, D.G.1).

The host places the blocks of each package in its own list of messages: the append block once, behind the messages it
was compiled for, the tail behind that and for this request only; on a model of D.F.8 the tail stays as well (D.F.11).
Packages and state across a restart are the host's to keep (D.H.12, D.R.13).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from contextbus.client.compiled import Tools
from contextbus.client.compiler_hooks import CompilerHooks
from contextbus.client.compiler_steps import CompilerSteps
from contextbus.client.given import GivenMessage
from contextbus.client.prompt import Prompt, parts_of
from contextbus.client.sending import DEFAULT_SECONDS
from contextbus.client.source_queries import Account, CompilerSources
from contextbus.client.step_hooks import BeforeCompile, HookFunctions, RewriteQuery, TransformContext
from contextbus.client.token_estimator import TokenEstimator
from contextbus.core.budget import DEFAULT_CONTEXT_BUDGET, DEFAULT_CONTEXT_REFRESH, merge_budget, require_count
from contextbus.core.compiler_state import read_state
from contextbus.core.compiler_step import (
    CompilerOptions,
    StepRequest,
    check_request,
    is_reopened,
    plan_overflow,
    plan_step,
)
from contextbus.core.observer import Observer
from contextbus.core.request_history import RequestHistory
from contextbus.core.targets.tools import tools_text
from contextbus.runtime.telemetry import report_compile
from contextbus.runtime.telling import OnWarning
from contextbus.sources.interface import Source
from contextbus_protocol.compiler_state import ContextCompilerState
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import (
    ContextBudget,
    EstimatorSpec,
    Model,
    ModelPrefix,
    RefreshOptions,
    Scope,
)
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class Compiler(CompilerSteps):
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
        on_warning: told of each failed optional source (D.G.26), once of usage that no source reported (D.L.3), and
            once of state in the system layer (P.B.4); async or not.
        before_compile: gives a text for the tail, once for each step that is compiled; async or not (P.D.1).
        transform_context: gives the messages that this request is sent with, made of those without our blocks; async
            or not (P.D.4).  ``payload`` sends them.
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
        before_compile: BeforeCompile | None = None,
        transform_context: TransformContext | None = None,
        rewrite_query: RewriteQuery | None = None,
        bound_models: Iterable[ModelPrefix] = (),
        parent_scope: Scope | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        asked = CompilerSources(tuple(sources), scope, parent_scope)
        options = CompilerOptions(
            sources=asked.specs,
            budget=merge_budget(DEFAULT_CONTEXT_BUDGET if budget is None else budget),
            refresh=DEFAULT_CONTEXT_REFRESH if refresh is None else refresh,
            bound_models=tuple(bound_models),
        )
        for name in ("min_steps", "max_passes", "candidates_per_source"):
            require_count(f"refresh.{name}", getattr(options.refresh, name))
        if not isinstance(estimator, TokenEstimator):
            estimator = TokenEstimator(EstimatorSpec() if estimator is None else estimator)
        functions = HookFunctions(
            before_compile=before_compile, transform_context=transform_context, rewrite_query=rewrite_query
        )
        super().__init__(asked, options, functions, read_state(state), on_warning)
        self._estimator = estimator
        self._estimator_kind = estimator_kind
        self._observer = observer
        self._clock = clock
        self._lock = anyio.Lock()

    async def before_model_call(
        self,
        *,
        run_id: str,
        step: int,
        messages: Sequence[GivenMessage] | None = None,
        model: Model,
        overhead_tokens: int = 0,
        working_memory: WorkingMemorySnapshot | None = None,
        prompt: Prompt | PromptParts | None = None,
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
            messages: all messages of the request, with the blocks of earlier steps where the host placed them; without
                it the prompt's.
            model: the model that will be called.
            overhead_tokens: tokens of tool schemas, output schema and framing; ``estimate_overhead`` counts them.
            working_memory: the working memory as it stands now.
            prompt: what the request holds beside the messages: system messages, state, guardrails, a prefill (P.A.3).
                Its tail is the package's, its prefill too where the model takes one; its system messages stand behind
                those that the messages begin with.
            refresh: ask the sources again with this step (D.G.5).
            redacted: the step's stored package was redacted by a forget: ask again, and let nothing that was retrieved
                before come back by itself (D.J.1-D.J.5).
            estimator_kind: a label for this manifest; it wins over the compiler's (D.M.10).
            tools: the tool definitions of the call, for ``payload`` and for the comparison of the cache prefix
                (D.F.22); by default the prompt's.
            seconds: how long a source or a function of the host may take; less if the caller's own deadline ends
                sooner.
            accounting: names who pays for the query of a source (D.L.5).

        Raises:
            CallbackTimeoutError: a function of the host gave nothing in time (P.D.2).
            ContextBudgetExceededError: mandatory content does not fit (D.B.15).
            InvalidTypeError: the input is malformed, or the step lies before the last one.
            SourceFailedError: a required source failed without an exception of its own; one that it raised is raised
                as it is, and so is one that a function of the host raised (D.G.27, P.D.3, D.W.2).
        """
        parts, state = parts_of(prompt), None
        if isinstance(prompt, Prompt):
            messages = prompt.messages if messages is None else messages
            tools, state = prompt.definitions if tools is None else tools, prompt.state_value
        if messages is None:
            raise InvalidTypeError("messages: give those of the request, or a prompt with a history")
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
                prompt=parts,
                refresh=refresh,
                redacted=redacted,
                estimator_kind=self._estimator_kind if estimator_kind is None else estimator_kind,
                tools=tools_text(tools),
            )
            check_request(request)
            request = self._with_messages(request, messages, estimator)
            hooks = CompilerHooks(self._functions, seconds)
            if is_reopened(before, step) and self._is_unchanged(request):
                assert self._last is not None
                return self._last.package
            try:
                self._forget(request)
                request = await self._ask_hooks(request, hooks, state, estimator)
                package = await self._compile(request, before, estimator, hooks, accounting)
            except BaseException:  # a cancelled caller's refresh stays due as well (D.G.27, D.W.5)
                if refresh:
                    self.request_refresh()
                raise
            report_compile(self._observer, package.manifest, self._clock() - began)
            await self._warn(package.manifest, request)
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
        prompt: Prompt | PromptParts | None = None,
    ) -> Package:
        """Compile the last step again under a smaller limit, from what was retrieved for it; no source is asked (D.I).

        What ``before_compile`` and ``transform_context`` gave for the step stays; they are not asked again.  The new
        package takes the place of the step's first one, which the host drops.

        Args:
            run_id: the host's name of the run.
            step: the number of the step whose request was too large.
            input_tokens: the limit of now, in tokens.
            messages: the messages of the request, if they were compacted since; without it the prompt's, if it has a
                history, or those of the step.  A compiler with ``transform_context`` takes no others here.
            overhead_tokens: as in ``before_model_call``; that of the step by default.
            working_memory: the working memory of now; that of the step by default.
            prompt: the prompt of now; that of the step by default.

        Raises:
            ContextBudgetExceededError: mandatory content does not fit, phase ``overflow-retry`` (D.I.3).
            InvalidRequestError: a step is being compiled, or there are other messages, which ``transform_context``
                would have to change: hand them to ``before_model_call``.
            InvalidTypeError: this object has not compiled that step last (D.I.6), or the input is malformed.
        """
        if self._lock.statistics().locked:
            raise InvalidRequestError("a step is being compiled; wait for it")
        last = self._last
        if last is None or (last.request.run_id, last.request.step) != (run_id, step):
            raise InvalidTypeError(f"step {step} was not the last that this compiler compiled: before_model_call first")
        require_count("input_tokens", input_tokens)
        if isinstance(prompt, Prompt) and messages is None:
            messages = prompt.messages or None
        began, estimator = self._clock(), self._estimator.for_step()
        request = msgspec.structs.replace(
            last.request,
            input_tokens=input_tokens,
            overhead_tokens=last.request.overhead_tokens if overhead_tokens is None else overhead_tokens,
            working_memory=last.request.working_memory if working_memory is None else working_memory,
            prompt=last.request.prompt if prompt is None else parts_of(prompt),
        )
        check_request(request)
        if messages is not None:
            request = self._with_other_messages(request, messages, estimator)
        again = plan_step(last.before, request, self._options, last.texts, estimator)
        plan = plan_overflow(last.plan, again)
        package = self._settle(request, plan, last.results, last.before, last.texts, estimator)
        # The first compile stays what a second overflow starts from.
        self._last = msgspec.structs.replace(last, package=package, newest=request)
        report_compile(self._observer, package.manifest, self._clock() - began)
        return package

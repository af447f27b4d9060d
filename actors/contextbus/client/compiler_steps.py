"""What the steps of a compiler without a run are made of: what it remembers, its functions, the way to a package."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.client.compiled import Tools, messages_of
from contextbus.client.compiler_hooks import CompilerHooks
from contextbus.client.given import GivenMessage
from contextbus.client.given_history import GivenHistory
from contextbus.client.rendered import BlocksInPlace, RenderedHistory
from contextbus.client.source_queries import Account, CompilerSources
from contextbus.client.step_hooks import HookFunctions
from contextbus.core.answers import merge_answers, read_answer
from contextbus.core.compile import compile_context
from contextbus.core.compiler_state import Texts, drop_waiting, keep_texts, settle
from contextbus.core.compiler_step import (
    CompilerOptions,
    CompilerPlan,
    StepRequest,
    compile_input,
    is_reopened,
    outcome_of,
    plan_step,
    warnings_once,
)
from contextbus.core.decision import share_hints
from contextbus.core.estimate import Estimator
from contextbus.core.history import SourceHistory, latest_user_text
from contextbus.core.manifest import context_warnings
from contextbus.core.payload import Payload, Request, assemble
from contextbus.core.request_history import RequestHistory, take_request
from contextbus.core.targets import find_target
from contextbus.core.targets.tools import tools_text
from contextbus.runtime.telling import OnWarning, tell_warnings
from contextbus_protocol.chat import Cache
from contextbus_protocol.compiler_state import ContextCompilerState
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.package import ContextManifest, ContextWarning, Package
from contextbus_protocol.values import SourceResult


class CompiledLast(msgspec.Struct, frozen=True, kw_only=True):
    """The last step as this object compiled it: enough to compile it again from what was retrieved (D.I.1).

    ``newest`` is what it was compiled for last, by an overflow or not.
    """

    request: StepRequest
    newest: StepRequest
    plan: CompilerPlan
    results: tuple[SourceResult, ...]
    before: ContextCompilerState
    texts: Texts
    package: Package


class CompilerSteps:
    """The part of a compiler that its calls share.

    Args:
        sources: what is asked.
        options: what the compiler was made with.
        functions: the functions of the host.
        state: what it goes on from.
        on_warning: told of warnings.
    """

    def __init__(
        self,
        sources: CompilerSources,
        options: CompilerOptions,
        functions: HookFunctions,
        state: ContextCompilerState,
        on_warning: OnWarning | None,
    ) -> None:
        self._sources = sources
        self._options = options
        self._functions = functions
        self._state = state
        self._on_warning = on_warning
        self._given = GivenHistory()
        self._request = self._transformed = RequestHistory()
        self._rendered = RenderedHistory(SourceHistory(), BlocksInPlace())
        self._texts: Texts = {}
        self._last: CompiledLast | None = None

    def state(self) -> ContextCompilerState:
        """What a later compiler goes on from (D.H.1): frozen, and plain JSON by ``encode_json``.

        It holds no text.  A compiler made from it compiles the same; only a record whose block left the history waits
        for the next retrieval, unless it is mandatory (D.H.7, D.H.8).
        """
        return self._state

    def request_refresh(self) -> None:
        """Ask the sources again at the next step, whatever its number (D.G.5, D.G.7)."""
        self._state = msgspec.structs.replace(self._state, refresh_requested=True)

    def payload(self, target: str | None = None, *, tools: Tools = None, cache: Cache = False) -> Payload:
        """The request of the step that was compiled last, for a provider (P.A.3).

        It begins with the host's messages, or with what ``transform_context`` made of them; what the package and the
        prompt add is placed as in a run.  None of it but the blocks joins the host's own list.  On a model that binds
        thinking, the thinking from before the last change of the prefix is left out, and is listed in ``repairs``
        (D.F.20).

        Args:
            target: ``anthropic``, ``openai``, ``openai-responses`` or ``gemini``; without it the model's provider
                decides (P.A.7).
            tools: tool definitions in any provider's shape; by default those that the step was compiled with.
            cache: asks for a cache breakpoint before the tail: True, ``"5m"`` or ``"1h"`` (P.E.4).

        Raises:
            EmptyHistoryError: there is no message but system ones.
            InvalidRequestError: this object has compiled no step, or the last one was redacted and failed.
            InvalidTypeError: there is no such target, or a tool definition cannot be read.
        """
        if self._last is None:
            raise InvalidRequestError("no step was compiled; before_model_call comes first")
        request, package = self._last.newest, self._last.package
        stale = self._state.stale_thinking
        ranges = ((0, stale),) if stale else ()
        self._rendered = RenderedHistory(request.sent, BlocksInPlace(), self._rendered, ranges)
        return assemble(
            Request(
                history=self._rendered[find_target(target, request.model)],
                system=() if request.prompt is None else request.prompt.system,
                prefill=package.prefill,
                blocks=messages_of(package, "append"),
                tail=messages_of(package, "ephemeral-tail"),
                tools=request.tools if tools is None else tools_text(tools),
                cache=cache,
            )
        )

    def _with_messages(self, request: StepRequest, given: Sequence[GivenMessage], estimator: Estimator) -> StepRequest:
        self._given.read(given if isinstance(given, list) else list(given))
        messages, own = self._given.messages, {block.digest for block in self._state.blocks}
        self._request = take_request(self._request, messages, own, estimator)
        return msgspec.structs.replace(
            request, request=self._request, user_text=latest_user_text(messages, self._request.present)
        )

    def _with_other_messages(
        self, request: StepRequest, messages: Sequence[GivenMessage], estimator: Estimator
    ) -> StepRequest:
        """The step of an overflow with its messages of now; no function is asked what is sent of them (D.I.1)."""
        given = self._with_messages(request, messages, estimator)
        if self._functions.transform_context is None:
            return given
        if not given.request.equals(request.request):
            raise InvalidRequestError("transform_context is not asked here; hand these messages to before_model_call")
        return request

    def _is_unchanged(self, request: StepRequest) -> bool:
        """Whether the last step is asked for again as it was, so that its package is the answer (D.R.7)."""
        if self._last is None or request.refresh or request.redacted or self._state.refresh_requested:
            return False
        known = self._last.request
        if not known.request.equals(request.request) or request.prompt != self._last.newest.prompt:
            return False
        same = msgspec.structs.replace(
            request,
            request=known.request,
            user_text=known.user_text,
            refresh=known.refresh,
            redacted=known.redacted,
            prompt=known.prompt,
            implicit=known.implicit,
            transformed=known.transformed,
        )
        return same == known

    def _forget(self, request: StepRequest) -> None:
        if request.redacted:
            # Which record was forgotten is not said: only what the sources offer now may be sent (D.J.4).
            self._texts, self._last = {}, None

    async def _ask_hooks(
        self, request: StepRequest, hooks: CompilerHooks, state: object | None, estimator: Estimator
    ) -> StepRequest:
        """The step with what the functions of the host make of it, before the selection (P.D.4)."""
        implicit = await hooks.ask_implicit(request, state)
        messages = await hooks.ask_history(request)
        if messages is None:
            return msgspec.structs.replace(request, implicit=implicit)
        own = frozenset(request.request.present)
        self._transformed = take_request(self._transformed, messages, own, estimator)
        return msgspec.structs.replace(
            request,
            implicit=implicit,
            transformed=self._transformed,
            user_text=latest_user_text(messages, own),
        )

    async def _compile(
        self,
        request: StepRequest,
        before: ContextCompilerState,
        estimator: Estimator,
        hooks: CompilerHooks,
        accounting: Account | None,
    ) -> Package:
        options, texts = self._options, self._texts
        last = self._last
        if (
            last is not None
            and not is_reopened(before, request.step)
            and not last.newest.request.equals(request.request)
        ):
            # something came of the last step: with the very same messages its call would not have succeeded (D.F.13)
            texts = drop_waiting(texts, last.plan.restored, before)
        plan = plan_step(before, request, options, texts, estimator)
        text = await hooks.ask_query(plan.query, request) if plan.is_due else None
        if text is not None:
            plan = plan_step(before, request, options, texts, estimator, text)
        results: tuple[SourceResult, ...] = ()
        if plan.refresh.retrieve or plan.demands:
            budget, memory = options.budget, request.working_memory
            answers = await self._sources.ask(
                request,
                plan,
                share_hints(plan.input_tokens, plan.used_tokens, budget, memory, estimator),
                limit=options.refresh.candidates_per_source,
                seconds=hooks.seconds,
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
        self._last = CompiledLast(
            request=request,
            newest=request,
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
        package = compile_context(compile_input(request, plan, self._options, results), estimator, plan.prompt)
        state = settle(before, outcome_of(before, request, plan, results, package))
        if self._state is not before and self._state.refresh_requested:
            state = msgspec.structs.replace(state, refresh_requested=True)  # asked for while this step was compiled
        state = msgspec.structs.replace(state, warned=self._state.warned)  # an overflow begins with an older state
        self._texts = keep_texts(texts, results, plan.standing.live, state)
        self._state = state
        return package

    async def _warn(self, manifest: ContextManifest, request: StepRequest) -> None:
        codes = warnings_once(self._state, request)
        self._state = msgspec.structs.replace(self._state, warned=self._state.warned + codes)
        warnings = (*context_warnings(manifest), *self._sources.warnings, *map(ContextWarning, codes))
        self._sources.warnings.clear()
        await tell_warnings(self._on_warning, warnings, run=manifest.run_id, step=manifest.step)

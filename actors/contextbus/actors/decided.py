"""A step that lacks nothing: with which offers it is decided, and what placement gets (design: section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.actors import gather
from contextbus.actors.evaluating import restored_event
from contextbus.actors.flight import Flight, Prepared
from contextbus.actors.recorded import Tokenizers, estimator_of, head_of
from contextbus.actors.settle import hook_of, snapshot_of
from contextbus.core.owed import demand_missing, restore_results
from contextbus.core.prefix import stale_ranges
from contextbus.core.projection import applied
from contextbus.core.run_state import RunState
from contextbus.core.step import StepPlan, decide_step, warn_of_state, warn_of_usage
from contextbus_protocol.blobs import StepOutput
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.commit_requests import Place, PlacedPrompt, WorkingMemoryInput
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.events import WorkingMemoryUsed
from contextbus_protocol.package import WarningCode
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import SourceResult

replace = msgspec.structs.replace


def restored_of(flight: Flight, prepared: Prepared) -> tuple[tuple[SourceResult, ...], tuple[tuple[str, str], ...]]:
    """The recorded offers that compete again, and all that the run is owed of its sources (D.H.5, D.H.8)."""
    command, plan = flight.command, prepared.plan
    if isinstance(command, OverflowStep):
        output = stored_output(flight)
        return () if output is None else output.restored, ()
    if not plan.restore:
        return (), plan.demands
    offers = {o.package: o.results for o in flight.offers}
    sources = [s.id for s in prepared.options.sources]
    restored, missing = restore_results(plan.restore, offers, sources)
    return restored, plan.demands + demand_missing(missing, sources)


def place_of(
    fold: RunState,
    flight: Flight,
    results: Sequence[SourceResult],
    tenant: str,
    inbox: str,
    tokenizers: Tokenizers,
) -> Place:
    """Decide a settled step with the answers at hand: what placement is to render and commit.

    Raises:
        ContextBudgetExceededError: mandatory content does not fit (D.B.15).
        InvalidRequestError: the flight is not a settled step.
    """
    command, prepared = flight.command, flight.prepared
    if not isinstance(command, CompileStep | OverflowStep) or prepared is None:
        raise InvalidRequestError("only a settled step is placed")
    items, plan = flight.items, prepared.plan
    snapshot = snapshot_of(flight)
    restored, demands = restored_of(flight, prepared)
    decision = decide_step(
        prepared.after,
        plan,
        options=prepared.options,
        results=results,
        restored=restored,
        snapshot=snapshot,
        estimator=estimator_of(fold, prepared.options.estimator, tokenizers),
    )
    used = None
    if items is not None and snapshot is not None:
        used = WorkingMemoryInput(
            WorkingMemoryUsed(items.sequence, snapshot.revision, items.digest),
            replace(snapshot, operation_ids=()),
        )
    usage = gather.usage_of(flight)
    checkpoint = applied(prepared.after)
    place = Place(
        run=command.run,
        head=head_of(fold, flight, tenant, inbox),
        history=prepared.history,
        options=prepared.options,
        decision=decision,
        results=tuple(results),
        restored=restored,
        query=plan.query if plan.refresh.retrieve else "",
        active_task_id=plan.active_task_id,
        working_memory=used,
        prepared_fact=prepared.hook,
        demanded=demands,
        erasures=flight.erasures,
        usage=usage,
        warnings=(*warn_of_usage(fold, usage), *_warn_of_compaction(flight), *warn_of_state(fold, _parts_of(command))),
        blocks=prepared.after.blocks.chain,
        checkpoint="" if checkpoint is None else checkpoint.replaced_by,
        checkpoint_restored=restored_event(fold, flight),
        stale_thinking=_stale_ranges(prepared),
        prompt=_prompt_to_place(fold, plan),
    )
    if isinstance(command, OverflowStep):
        output = stored_output(flight)
        return replace(
            place,
            query=plan.query,
            user_text="" if output is None else output.user_text,
            prepared=None if output is None else output.prepared,
            tools=None if output is None else output.tools,
            overflow=plan.input_tokens,
        )
    hook = hook_of(flight)
    return replace(
        place,
        options=command.options,  # as the command has them: what the hook changed is a fact of its own
        user_text=command.user_text,
        host_request=command.refresh,
        # a query that the host emptied is a fact too: it is why no source was asked (D.G.21)
        rewritten=flight.rewrite is not None and (plan.refresh.retrieve or plan.refresh.skipped),
        prepared=None if hook is None else hook.messages,
        tools=None if flight.hook is None else flight.hook.tools,
    )


def _stale_ranges(prepared: Prepared) -> tuple[tuple[int, int], ...]:
    plan = prepared.plan
    if not plan.tail_kept:
        return ()
    prompt = None if plan.prompt is None else plan.prompt.fact
    return stale_ranges(prepared.after, prepared.options, prepared.history.count, prompt)


def _prompt_to_place(fold: RunState, plan: StepPlan) -> PlacedPrompt | None:
    """What the prompt comes to; a layer that the last step's commit names is stored already."""
    prompt, last = plan.prompt, None if fold.last is None else fold.last.prompt
    if prompt is None or last is None or last.layer != prompt.fact.layer:
        return prompt
    return replace(prompt, layer=None)


def _parts_of(command: CompileStep | OverflowStep) -> PromptParts | None:
    return command.prompt if isinstance(command, CompileStep) else None


def _warn_of_compaction(flight: Flight) -> tuple[WarningCode, ...]:
    """The warning of a step that goes on with its whole history (C.X.5)."""
    ended = flight.compacted
    return ("compaction-failed",) if ended is not None and ended.status == "failed" else ()


def results_of(flight: Flight) -> tuple[SourceResult, ...]:
    """The answers that a step is decided with: what was gathered if it is due, or those of the step compiled again."""
    prepared = flight.prepared
    if isinstance(flight.command, OverflowStep):
        output = stored_output(flight)
        return () if output is None else output.results
    if prepared is None or flight.gathered == "nothing":
        return ()
    results = gather.in_order(flight, prepared.options)
    if prepared.plan.refresh.retrieve:
        return results
    # asked for what is owed, or another step served the refresh meanwhile: nothing else is taken (D.G.14, D.G.31)
    demands = restored_of(flight, prepared)[1]
    owed = {source for source, _ in demands}
    return tuple(_only(r, demands) for r in results if r.source in owed)


def _only(result: SourceResult, demands: tuple[tuple[str, str], ...]) -> SourceResult:
    """A source's answer with the records alone that it was asked for by id."""
    candidates = tuple(c for c in result.candidates if (result.source, c.record_id) in demands)
    if len(candidates) == len(result.candidates):
        return result
    return replace(result, candidates=candidates)


def stored_output(flight: Flight) -> StepOutput | None:
    """What the step to compile again has stored (D.I.1)."""
    return next((o.output for o in flight.offers if o.output is not None), None)

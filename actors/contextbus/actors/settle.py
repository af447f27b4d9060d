"""What selection settles for a command at one state of the fold: is it known, what does its step come to.

Pure functions of fold and flight: the same at any instance, and again when the fold moved under the flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.actors import gather
from contextbus.actors.effects import Load
from contextbus.actors.flight import Flight, Prepared, RunCommand, digest_command
from contextbus.actors.recorded import Tokenizers, estimator_of, head_of
from contextbus.core.budget import require_count, validate_budget
from contextbus.core.run import CommandFact, RunState, find_command
from contextbus.core.scope import narrow
from contextbus.core.step import decide_step, plan_step, take_messages
from contextbus_protocol import blobs
from contextbus_protocol.commands import CompileStep, Recorded, StepCompiled
from contextbus_protocol.commit_requests import Place, WorkingMemoryInput
from contextbus_protocol.errors import CommandMismatchError, InvalidRequestError, StaleStepError
from contextbus_protocol.events import WorkingMemoryUsed
from contextbus_protocol.questions import AskItems
from contextbus_protocol.values import SourceResult

replace = msgspec.structs.replace


def load_of(fold: RunState, token: str, at_least: int) -> Load:
    """A read of what the log holds behind the fold."""
    return Load(fold.run, "run", fold.sequence, token, at_least)


def ask_of(fold: RunState, command: CompileStep, token: str, tenant: str, inbox: str) -> AskItems:
    """The question for working memory: not older than what the client or any step of the run has seen."""
    return AskItems(
        run=command.run,
        tenant=tenant,
        token=token,
        reply_to=inbox,
        seen=max(command.seen_memory, fold.memory_sequence),
        load=command.attempt > 1,
    )


def look_up(fold: RunState, flight: Flight) -> CommandFact | None:
    """The command, if the log holds it; also a step that is reopened (D.R.7)."""
    command = flight.command
    found = find_command(fold, command.command)
    if found is not None:
        if found.command_digest != digest_command(command):
            raise CommandMismatchError(f"command id {command.command!r} was used for another command; take a new id")
        return found
    last = fold.last
    if not isinstance(command, CompileStep) or last is None:
        return None
    if command.step is not None and command.step < last.step:
        raise StaleStepError(f"the run is at step {last.step}; step {command.step} is over")
    if command.step not in {None, last.step}:
        return None
    same = last.status == "open" and last.chain == command.history.chain == fold.history.chain
    if same and fold.scope is not None:  # a stored package is for its effective scope only (D.K.3)
        same = narrow(fold.scope, command.options.scope) == narrow(fold.scope, last.scope)
    asked = command.refresh or fold.refresh_requested
    if same and not asked and not flight.anew and flight.conflicts == 0:
        return CommandFact(
            command=command.command,
            command_digest="",
            sequence=last.sequence,
            digest=last.digest,
            step=last.step,
            package=last.package,
            count=last.count,
            chain=last.chain,
        )
    if command.step == last.step and (flight.conflicts > 0 or last.status != "open"):
        raise StaleStepError(f"the run already has step {last.step}; the next is {last.step + 1}")
    return None


def check_step(command: CompileStep) -> None:
    """Refuse a step whose numbers or sources are none, whoever sent it (D.B.19, D.G.4, D.W.6).

    Raises:
        InvalidTypeError: a number is no count, the budget is none, or a source cannot be asked.
        InvalidRequestError: the sources could offer more than a step takes.
    """
    options = command.options
    counts = (
        ("step", command.step or 0),
        ("overhead_tokens", options.overhead_tokens),
        ("min_steps", options.refresh.min_steps),
        ("max_passes", options.refresh.max_passes),
    )
    for name, count in counts:
        require_count(name, count)
    validate_budget(options.budget)
    gather.check_sources(options)


def settle_step(fold: RunState, flight: Flight, command: CompileStep, tokenizers: Tokenizers) -> Flight:
    """The flight with its step settled at this fold; settled there already, it comes back as it is."""
    if flight.prepared is not None and flight.prepared.sequence == fold.sequence:
        return flight
    estimator = estimator_of(fold, command.options.estimator, tokenizers)
    options = command.options
    scope = options.scope if fold.scope is None else narrow(fold.scope, options.scope)
    after, history = take_messages(fold, command.history, scope, estimator)
    step = command.step
    if step is None:
        step = 0 if fold.last is None else fold.last.step + 1
    plan = plan_step(
        after,
        step=step,
        options=options,
        host_request=command.refresh,
        user_text=command.user_text,
        snapshot=None if flight.items is None else flight.items.snapshot,
        estimator=estimator,
    )
    return replace(flight, prepared=Prepared(fold.sequence, after, history, plan, scope))


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
    if not isinstance(command, CompileStep) or prepared is None:
        raise InvalidRequestError("only a settled step is placed")
    items = flight.items
    snapshot = None if items is None else items.snapshot
    decision = decide_step(
        prepared.after,
        prepared.plan,
        options=command.options,
        results=results,
        snapshot=snapshot,
        estimator=estimator_of(fold, command.options.estimator, tokenizers),
    )
    used = None
    if items is not None and snapshot is not None:
        used = WorkingMemoryInput(
            WorkingMemoryUsed(items.sequence, snapshot.revision, items.digest),
            replace(snapshot, operation_ids=()),
        )
    return Place(
        run=command.run,
        head=head_of(fold, flight, tenant, inbox),
        history=prepared.history,
        options=command.options,
        decision=decision,
        results=tuple(results),
        query=prepared.plan.query if prepared.plan.refresh.retrieve else "",
        user_text=command.user_text,
        active_task_id=prepared.plan.active_task_id,
        host_request=command.refresh,
        working_memory=used,
    )


def stored_record(command: RunCommand, found: CommandFact, durability: str) -> Recorded:
    """The answer to a command that the log holds and that has no package."""
    return Recorded(
        run=command.run,
        command=command.command,
        sequence=found.sequence,
        commit=found.digest,
        count=found.count,
        chain=found.chain,
        durability=durability,
    )


def stored_step(command: RunCommand, found: CommandFact, data: bytes, durability: str) -> StepCompiled:
    """The answer to a step that the log holds: its stored package, byte for byte (D.R.7).

    Raises:
        InvalidTypeError: the blob is damaged.
    """
    return StepCompiled(
        run=command.run,
        command=command.command,
        step=found.step or 0,
        sequence=found.sequence,
        commit=found.digest,
        count=found.count,
        chain=found.chain,
        reference=found.package or "",
        package=bytes(blobs.decode_output(data).package).decode(),
        stored=True,
        durability=durability,
    )

"""What selection settles for a command at one state of the fold: is it known, what does its step come to.

Pure functions of fold and flight: the same at any instance, and again when the fold moved under the flight.
"""

from __future__ import annotations

import msgspec

from contextbus.actors import gather
from contextbus.actors.effects import Load
from contextbus.actors.flight import Flight, Prepared, StepCommand, digest_command
from contextbus.actors.recorded import Tokenizers, estimator_of, pinned_scope
from contextbus.core.budget import require_count, validate_budget
from contextbus.core.estimate import Estimator
from contextbus.core.new_messages import take_messages
from contextbus.core.prepared import prepared_fact, prepared_options, prepared_user_text
from contextbus.core.prompt import digest_parts, implicit_message, place_prompt, prompt_again
from contextbus.core.run import find_command
from contextbus.core.run_state import CommandFact, LastStep, RunState
from contextbus.core.scope import narrow
from contextbus.core.step import overflow_limit, plan_overflow, plan_step
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.commit_requests import HistoryFact, PlacedPrompt
from contextbus_protocol.errors import CommandMismatchError, InvalidRequestError, InvalidTypeError, StaleStepError
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.questions import AskItems
from contextbus_protocol.values import StepOptions
from contextbus_protocol.working_memory import WorkingMemorySnapshot

replace = msgspec.structs.replace


def load_of(fold: RunState, token: str, at_least: int) -> Load:
    """A read of what the log holds behind the fold."""
    return Load(fold.run, "run", fold.sequence, token, at_least)


def ask_of(fold: RunState, command: StepCommand, token: str, tenant: str, inbox: str) -> AskItems:
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
    """The command, if the log holds it; also a step that is reopened (D.R.7).

    What a forget took is not answered again: the step is compiled anew, as long as it is the run's last (D.R.9).
    """
    command = flight.command
    last = fold.last
    found = find_command(fold, command.command)
    if found is not None:
        if found.command_digest != digest_command(command):
            raise CommandMismatchError(f"command id {command.command!r} was used for another command; take a new id")
        if found.package is None or not (found.sequence == flight.gone or found.package in fold.redacted_packages):
            return found
        if last is None or last.step != found.step or last.status != "open":
            raise StaleStepError("the step's package was redacted and the run went on; compile the next step")
        return None
    if not isinstance(command, CompileStep) or last is None:
        return None
    if command.step is not None and command.step < last.step:
        raise StaleStepError(f"the run is at step {last.step}; step {command.step} is over")
    if command.step not in {None, last.step}:
        return None
    same = is_reopened(fold, command)
    asked = command.refresh or fold.refresh_requested
    gone = is_forgotten(last) or last.sequence == flight.gone
    if same and not asked and not gone and flight.conflicts == 0:
        return CommandFact(
            command=command.command,
            command_digest="",
            sequence=last.sequence,
            digest=last.digest,
            step=last.step,
            package=last.package,
            count=last.count,
            chain=last.chain,
            prepared=last.prepared,
        )
    if command.step == last.step and (flight.conflicts > 0 or last.status != "open") and not (same and gone):
        raise StaleStepError(f"the run already has step {last.step}; the next is {last.step + 1}")
    return None


def is_reopened(fold: RunState, command: CompileStep) -> bool:
    """Whether a step is the run's last one once more: the same messages, no outcome, the same scope (D.R.7)."""
    last = fold.last
    if last is None or last.status != "open" or not last.chain == command.history.chain == fold.history.chain:
        return False
    if digest_parts(command.prompt) != ("" if last.prompt is None else last.prompt.digest):
        return False  # the package holds the state and guardrails of another prompt (P.A.3)
    # a stored package is for its effective scope only (D.K.3)
    return fold.scope is None or narrow(fold.scope, command.options.scope) == narrow(fold.scope, last.scope)


def is_forgotten(last: LastStep) -> bool:
    """Whether a forget touched a step's package or its history since it was compiled (D.R.9).

    A retrieval that is due after a forget is no such thing: with an empty query a step that follows it has its package,
    and the retrieval stays due (D.G.21).
    """
    return last.redacted or last.history_forgotten


def number_step(fold: RunState, flight: Flight, command: CompileStep) -> int:
    """The number of a step: the one it asks for, the last one's where its package is to be made anew, else the next."""
    if command.step is not None:
        return command.step
    last = fold.last
    if last is None:
        return 0
    known = find_command(fold, command.command)
    lost = flight.gone in (last.sequence, None if known is None else known.sequence)
    gone = is_forgotten(last) or lost
    again = gone and (is_reopened(fold, command) or (known is not None and known.step == last.step))
    return last.step if again else last.step + 1


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


def settle_step(fold: RunState, flight: Flight, tokenizers: Tokenizers) -> Flight:
    """The flight with its step settled at this fold; settled there already, it comes back as it is."""
    prepared = flight.prepared
    if prepared is not None and prepared.sequence == fold.sequence:
        return flight
    match flight.command:
        case CompileStep() as command:
            return replace(flight, prepared=_settle_compile(fold, flight, command, tokenizers))
        case OverflowStep() as command:
            return replace(flight, prepared=_settle_overflow(fold, flight, command, tokenizers))
        case _:
            raise InvalidRequestError("only a step is settled")


def hook_of(flight: Flight) -> CallbackAnswered | None:
    """What the host's functions changed of a step: the messages of ``transform_context`` are the last word (P.D.4)."""
    hook, transformed = flight.hook, flight.transformed
    if transformed is None or transformed.messages is None:
        return hook
    return transformed if hook is None else replace(hook, messages=transformed.messages)


def prompt_of(
    parts: PromptParts | None, flight: Flight, options: StepOptions, estimator: Estimator
) -> PlacedPrompt | None:
    """What the prompt of a step comes to, as far as it is known by now."""
    text = None if flight.implicit is None else flight.implicit.text
    return place_prompt(parts, implicit_message(text) if text else None, options, estimator)


def _settle_compile(fold: RunState, flight: Flight, command: CompileStep, tokenizers: Tokenizers) -> Prepared:
    estimator = estimator_of(fold, command.options.estimator, tokenizers)
    scope = pinned_scope(fold, command.options.scope, command.parent)
    after, history = take_messages(fold, command.history, scope, estimator, command.parent)
    answer = hook_of(flight)
    hook = None if answer is None else prepared_fact(answer, estimator)
    options = prepared_options(command.options, hook)
    messages = None if answer is None else answer.messages
    plan = plan_step(
        after,
        step=number_step(fold, flight, command),
        options=options,
        host_request=command.refresh,
        user_text=command.user_text if messages is None else prepared_user_text(after, messages),
        snapshot=snapshot_of(flight),
        estimator=estimator,
        rewritten=None if flight.rewrite is None else flight.rewrite.text,
        prepared=hook,
        messages=messages,
        prompt=prompt_of(command.prompt, flight, options, estimator),
    )
    return Prepared(fold.sequence, after, history, plan, scope, options, hook)


def _settle_overflow(fold: RunState, flight: Flight, command: OverflowStep, tokenizers: Tokenizers) -> Prepared:
    last = check_overflow(fold, command)
    estimator = estimator_of(fold, last.options.estimator, tokenizers)
    plan = plan_overflow(
        fold,
        input_tokens=overflow_limit(fold, command.input_tokens),
        query=_stored_query(flight, last.package),
        estimator=estimator,
        snapshot=snapshot_of(flight),
        prompt=_stored_prompt(flight, last),
    )
    history = HistoryFact(chain=fold.history.chain, count=fold.history.count)
    scope = last.scope if fold.scope is None else narrow(fold.scope, last.scope)
    return Prepared(fold.sequence, fold, history, plan, scope, last.options, last.prepared)


def _stored_prompt(flight: Flight, last: LastStep) -> PlacedPrompt | None:
    """What the prompt of the step that is compiled again came to, once its package was read (D.I.1)."""
    output = next((o.output for o in flight.offers if o.output is not None), None)
    if last.prompt is None or output is None:
        return None
    return prompt_again(last.prompt, decode_json(bytes(output.package), Package))


def check_overflow(fold: RunState, command: OverflowStep) -> LastStep:
    """The step that a command asks to compile again (D.I.6).

    Raises:
        InvalidTypeError: the run has no such compiled step.
        StaleStepError: the step is over, or the history is another by now.
    """
    last = fold.last
    if last is None or command.step > last.step:
        raise InvalidTypeError(f"step {command.step} was not compiled; before_model_call comes before on_overflow")
    if last.step != command.step or last.status not in ("open", "overflow"):
        raise StaleStepError(f"step {command.step} is over; the run is at step {last.step}")
    if last.redacted or last.chain != fold.history.chain:
        raise StaleStepError(f"the run is another than step {command.step} was compiled for; compile it anew")
    return last


def _stored_query(flight: Flight, package: str) -> str:
    """The query that a stored step's offers were found with: entries name it unless their candidate has its own."""
    offers = next((o for o in flight.offers if o.package == package), None)
    output = None if offers is None else offers.output
    if output is None:
        return ""
    if output.query is not None:
        return output.query
    own = {(r.source, c.record_id): c.query for r in output.results for c in r.candidates}
    entries = decode_json(bytes(output.package), Package).manifest.entries
    return next(
        (e.query for e in entries if e.query is not None and own.get((e.source, e.record_id)) is None),
        "",
    )


def snapshot_of(flight: Flight) -> WorkingMemorySnapshot | None:
    """The working memory that the step is of, if there is one."""
    return None if flight.items is None else flight.items.snapshot

"""Answers from the log: what a command came to that is stored already (D.R.7)."""

from __future__ import annotations

from contextbus.actors.flight import RunCommand
from contextbus.core.bound_models import binds_thinking
from contextbus.core.prefix import stale_ranges
from contextbus.core.prepared import prepared_options
from contextbus.core.projection import applied
from contextbus.core.run_state import CommandFact, LastStep, RunState
from contextbus_protocol import blobs
from contextbus_protocol.commands import CompileStep, Recorded, StepCompiled
from contextbus_protocol.values import StepOptions


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


def stored_step(fold: RunState, command: RunCommand, found: CommandFact, data: bytes, durability: str) -> StepCompiled:
    """The answer to a step that the log holds: its stored package, byte for byte (D.R.7).

    Raises:
        InvalidTypeError: the blob is damaged.
    """
    output = blobs.decode_output(data)
    last, checkpoint = fold.last, applied(fold)
    is_last = last is not None and last.step == found.step
    bound = last is not None and is_last and binds_thinking(last.options.model, last.options.bound_models)
    return StepCompiled(
        run=command.run,
        command=command.command,
        step=found.step or 0,
        sequence=found.sequence,
        commit=found.digest,
        count=found.count,
        chain=found.chain,
        reference=found.package or "",
        package=bytes(output.package).decode(),
        stored=True,
        durability=durability,
        blocks=fold.blocks.chain,
        checkpoint="" if checkpoint is None else checkpoint.replaced_by,
        stale_thinking=stale_ranges(fold, last.options, found.count, last.prompt) if bound and last is not None else (),
        warnings=found.warnings,
        options=_hooked_options(last if is_last else None, command, found),
        prepared=output.prepared,
        tools=output.tools,
    )


def _hooked_options(last: LastStep | None, command: RunCommand, found: CommandFact) -> StepOptions | None:
    """The options that the host's hook made of the step's, if it changed any."""
    if found.prepared is None:
        return None
    if last is not None:
        return last.options
    return prepared_options(command.options, found.prepared) if isinstance(command, CompileStep) else None

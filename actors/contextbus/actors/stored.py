"""Answers from the log: what a command came to that is stored already (D.R.7)."""

from __future__ import annotations

from contextbus.actors.flight import RunCommand
from contextbus.core.bound_models import binds_thinking
from contextbus.core.run_state import CommandFact, RunState
from contextbus_protocol import blobs
from contextbus_protocol.commands import Recorded, StepCompiled


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
    last = fold.last
    is_last = last is not None and last.step == found.step
    hooked = last is not None and is_last and last.prepared is not None
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
        stale_thinking=fold.stale_thinking if bound else (),
        options=last.options if hooked and last is not None else None,
        prepared=output.prepared,
    )

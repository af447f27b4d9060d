"""Read a run from its log: the client's side of catch-up, replay and verify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from contextbus.actors import append
from contextbus.actors.effects import Fetch, Load
from contextbus.client.rendered import BlocksInPlace, CheckpointInPlace
from contextbus.core.history import digest_message
from contextbus.core.projection import applied
from contextbus.core.run import fold_commit
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.runtime.drive import JournalDriver
from contextbus_protocol import blobs, subjects
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import decode_json
from contextbus_protocol.errors import InvalidTypeError, NotFoundError, error_of
from contextbus_protocol.events import HistoryCleared, HistoryReplaced, MessagesAppended, StepCompiled
from contextbus_protocol.package import Block, Package

AT_ONCE: Final = 64


class RunContent(msgspec.Struct, frozen=True):
    """A run with its texts: the fold, the source messages, the placed blocks with their positions, and a checkpoint.

    ``sent`` are the digests of the blocks that the steps of this reading sent, tails included (D.G.33): where a run is
    read on, those of the commits behind what was known.  A message is None where its text is gone and nothing needs it:
    the history goes on behind it (C.X.11).
    """

    state: RunState
    messages: tuple[ChatMessage | None, ...] = ()
    blocks: BlocksInPlace = BlocksInPlace()
    sent: tuple[str, ...] = ()
    checkpoint: CheckpointInPlace | None = None


async def read_part(
    driver: JournalDriver, run: str, part: subjects.Part, after: int = 0, at_least: int = 0
) -> tuple[LoggedCommit, ...]:
    """The commits of one part of a run's log after a sequence.

    Raises:
        DeadlineExceededError: the log does not answer.
        InvalidTypeError: a commit is damaged.
        UnsupportedVersionError: a newer release wrote one.
    """
    load = Load(run, part, after, "", at_least)
    loaded = await driver.load(load)
    if loaded.code is not None:
        raise error_of(loaded.code, f"the log of run {run!r} could not be read; {append.LOOK}")
    return tuple(LoggedCommit(sequence, digest, commit) for sequence, digest, commit in loaded.commits)


async def read_log(driver: JournalDriver, run: str) -> RunLog:
    """Both parts of a run's log.

    Raises:
        DeadlineExceededError: the log does not answer.
    """
    return RunLog(run, await read_part(driver, run, "run"), await read_part(driver, run, "working-memory"))


async def read_blobs(driver: JournalDriver, run: str, references: Iterable[str]) -> dict[str, bytes]:
    """Blobs of a run by reference; one that is gone is left out.

    Raises:
        DeadlineExceededError: the store does not answer.
    """
    wanted = list(dict.fromkeys(references))
    found: dict[str, bytes] = {}
    for start in range(0, len(wanted), AT_ONCE):
        fetched = await driver.fetch(Fetch(run, tuple(wanted[start : start + AT_ONCE]), ""))
        if fetched.code is not None:
            raise error_of(fetched.code, "the package store does not answer; is the nats-server running?")
        found.update(fetched.blobs)
    return found


async def read_run(driver: JournalDriver, known: RunContent, at_least: int = 0) -> RunContent:
    """A run with its texts, from what is known of it and the commits behind that.

    Args:
        driver: reads the tenant's log and packages.
        known: the run as it was read before; ``RunContent(RunState(run))`` reads it from the start.
        at_least: a sequence that is known to exist.

    Raises:
        NotFoundError: messages of the run are no longer stored.
        DeadlineExceededError: log or store do not answer.
    """
    run = known.state.run
    commits = await read_part(driver, run, "run", known.state.sequence, at_least)
    state = known.state
    events = [e for logged in commits for e in logged.commit.events]
    inputs = await read_blobs(driver, run, (e.inputs for e in events if isinstance(e, MessagesAppended)))
    messages = list(known.messages)
    for logged in commits:
        state = fold_commit(state, logged.sequence, logged.digest, logged.commit)
    for event in events:
        if isinstance(event, HistoryReplaced):
            del messages[event.keep :]
        elif isinstance(event, HistoryCleared):
            messages.clear()
        elif isinstance(event, MessagesAppended):
            data = inputs.get(event.inputs)
            messages.extend((None,) * len(event.messages) if data is None else blobs.decode_input(data).messages)
    if None in messages[_needed_from(state) :]:
        raise NotFoundError(f"messages of run {run!r} are no longer stored; start a new run")
    try:
        blocks = await _read_blocks(driver, state, known)
        checkpoint = await _read_checkpoint(driver, state, known)
    except NotFoundError:
        # A forget may have come between log and blobs: it says so in the log before it erases anything (D.J.6, C.X.11).
        if not await read_part(driver, run, "run", state.sequence):
            raise
        return await read_run(driver, known, at_least)
    sent = tuple(block.digest for e in events if isinstance(e, StepCompiled) for block in e.blocks)
    return RunContent(state, tuple(messages), blocks, sent, checkpoint)


def _needed_from(state: RunState) -> int:
    """How many messages stand before the first whose text is needed: a checkpoint does without, or is due (C.X.11)."""
    checkpoint = state.checkpoint
    return checkpoint.source_count if checkpoint is not None and (checkpoint.applies or state.compaction_due) else 0


async def _read_checkpoint(driver: JournalDriver, state: RunState, known: RunContent) -> CheckpointInPlace | None:
    """The texts of what stands in place of the history's beginning; known ones are not read again."""
    checkpoint = applied(state)
    if checkpoint is None:
        return None
    if known.checkpoint is not None and known.checkpoint.blob == checkpoint.replaced_by:
        return known.checkpoint
    data = (await read_blobs(driver, state.run, (checkpoint.replaced_by,))).get(checkpoint.replaced_by)
    if data is None:
        raise NotFoundError(
            f"the summary of run {state.run!r} is no longer stored; clear its history or start a new run"
        )
    return CheckpointInPlace(
        blob=checkpoint.replaced_by,
        source_count=checkpoint.source_count,
        messages=blobs.decode_replacement(data).messages,
        sources=tuple(fact.source for fact in checkpoint.replacement),
        own=tuple(fact.digest for fact in checkpoint.replacement if fact.own),
    )


async def _read_blocks(driver: JournalDriver, state: RunState, known: RunContent) -> BlocksInPlace:
    """The texts of the blocks in the history; those that are known are not read again."""
    if state.blocks.chain == known.blocks.chain:
        return known.blocks
    texts = {digest_message(message): message for _, message in known.blocks.items}
    missing = [b.package for b in state.blocks if b.fact.digest not in texts]
    for data in (await read_blobs(driver, state.run, missing)).values():
        texts.update((digest_message(m), m) for block in _blocks_of(data) for m in block.messages)
    placed = BlocksInPlace()
    for block in state.blocks:
        message = texts.get(block.fact.digest)
        if message is None:
            raise NotFoundError(f"a package of run {state.run!r} is no longer stored; start a new run")
        placed = placed.add(block.position, {block.fact.digest: message})
    return placed


def _blocks_of(data: bytes) -> tuple[Block, ...]:
    """The blocks that a step's output holds, or what a forget left of it."""
    try:
        return decode_json(bytes(blobs.decode_output(data).package), Package).blocks
    except InvalidTypeError:
        return blobs.decode_redacted(data).blocks

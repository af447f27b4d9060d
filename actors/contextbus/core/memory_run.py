"""The fold of a run's working-memory part: the snapshot as its log says it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contextbus.core.applied_operations import AppliedOperations
from contextbus.core.recent import Recent
from contextbus.core.run import ChainBrokenError
from contextbus.core.working_memory_patch import (
    PatchResult,
    apply_working_memory_patch,
    patch_sound_snapshot,
)
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    UnknownEvent,
    WorkingMemoryCreated,
    WorkingMemoryPatched,
)
from contextbus_protocol.working_memory import WorkingMemoryPatch, WorkingMemorySnapshot


class MemoryCommandFact(msgspec.Struct, frozen=True):
    """A command that the log holds: the revision that its patch produced, and the ids of the items that it added."""

    command: str
    command_digest: str
    revision: int | None = None
    ids: tuple[str, ...] = ()


class MemoryState(msgspec.Struct, frozen=True):
    """The working memory of a run as of a commit.

    ``applied`` are the operation ids of the whole run, as 16-byte digests, with what each came to (D.O.23, D.Q.12); the
    snapshot itself carries none, so that what a step uses does not grow with them.  ``snapshot_digest`` is over the
    snapshot's JSON bytes.
    ``sound`` tells that the snapshot came of a patch of ours, so that the next one need not check it whole.
    """

    run: str
    sequence: int = 0
    digest: str = ""
    snapshot: WorkingMemorySnapshot | None = None
    snapshot_digest: str = ""
    sound: bool = False
    applied: AppliedOperations = AppliedOperations()
    recent: Recent[MemoryCommandFact] = Recent()


def fold_memory_commit(state: MemoryState, sequence: int, digest: str, commit: Commit) -> MemoryState:
    """The state after one more commit.

    Raises:
        ChainBrokenError: the commit does not follow the state's last one.
    """
    if commit.previous != state.digest:
        raise ChainBrokenError(f"commit {sequence} of run does not follow commit {state.sequence}")
    revision: int | None = None
    ids: tuple[str, ...] = ()
    for event in commit.events:
        state, result = fold_memory_event(state, event)
        if result is not None:
            revision, ids = result.revision, ids + result.ids
    fact = MemoryCommandFact(commit.command, commit.command_digest, revision, ids)
    return msgspec.structs.replace(
        state,
        sequence=sequence,
        digest=digest,
        recent=state.recent.add(fact),
    )


def fold_memory_commits(state: MemoryState, commits: Iterable[tuple[int, str, Commit]]) -> MemoryState:
    """The state after further commits, each (sequence, digest of its bytes, commit); known ones change nothing.

    Raises:
        ChainBrokenError: a commit is missing or was changed.
        InvalidTypeError: a patch in the log is malformed.
    """
    for sequence, digest, commit in commits:
        if sequence > state.sequence:
            state = fold_memory_commit(state, sequence, digest, commit)
    return state


def fold_memory_event(state: MemoryState, event: AnyEvent | UnknownEvent) -> tuple[MemoryState, PatchResult | None]:
    """The state after one event, and what it applied, if it did."""
    match event:
        case WorkingMemoryCreated(snapshot=snapshot):
            applied = state.applied
            for operation_id in snapshot.operation_ids:
                applied = applied.take_over(operation_id)
            return _with_snapshot(msgspec.structs.replace(state, applied=applied, sound=False), snapshot), None
        case WorkingMemoryPatched(patch=patch, now=now):
            result = try_patch(state, patch, now)
            if result is None or result.status != "applied":
                return state, None
            applied = state.applied.add(patch.operation_id, result.snapshot.revision, result.ids)
            state = msgspec.structs.replace(state, applied=applied, sound=True)
            return _with_snapshot(state, result.snapshot), result
        case _:
            return state, None


def try_patch(state: MemoryState, patch: WorkingMemoryPatch, now: int) -> PatchResult | None:
    """What a patch would come to; None while there is no working memory.

    Of a duplicate, revision and ids are those that the operation came to when it was applied (D.Q.12).

    Raises:
        InvalidTypeError: the patch is malformed (D.O.18).
    """
    if state.snapshot is None:
        return None

    def known(operation_id: str) -> bool:
        return state.applied.find(operation_id) is not None

    if state.sound:
        result = patch_sound_snapshot(state.snapshot, patch, now=now, known=known)
    else:
        result = apply_working_memory_patch(state.snapshot, patch, now=now, known=known)
    found = state.applied.find(patch.operation_id) if result.status == "duplicate" else None
    return result if found is None else msgspec.structs.replace(result, revision=found.revision, ids=found.ids)


def find_memory_command(state: MemoryState, command: str) -> MemoryCommandFact | None:
    """The newest remembered commit of a command."""
    return state.recent.find(command)


def _with_snapshot(state: MemoryState, snapshot: WorkingMemorySnapshot) -> MemoryState:
    bare = msgspec.structs.replace(snapshot, operation_ids=())
    return msgspec.structs.replace(state, snapshot=bare, snapshot_digest=digests.digest_bytes(encode_json(bare)))

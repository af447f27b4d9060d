"""A run's log as plain values, and what folding it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from contextbus.core.memory_run import MemoryState, fold_memory_commit
from contextbus.core.run import fold_commit
from contextbus.core.run_state import RunState
from contextbus_protocol import codec, digests
from contextbus_protocol.events import Commit


class LoggedCommit(msgspec.Struct, frozen=True):
    """One commit as the log holds it: its sequence in the stream, the digest of its bytes, and what they say."""

    sequence: int
    digest: str
    commit: Commit


class RunLog(msgspec.Struct, frozen=True):
    """Both parts of a run's log, each oldest first."""

    run: str
    commits: tuple[LoggedCommit, ...] = ()
    memory: tuple[LoggedCommit, ...] = ()


def read_commits(records: Iterable[tuple[int, bytes]]) -> tuple[LoggedCommit, ...]:
    """Read commits from stored bytes.

    Raises:
        InvalidTypeError: a commit's bytes are damaged.
        UnsupportedVersionError: a newer release wrote it.
    """
    return tuple(
        LoggedCommit(sequence, digests.digest_bytes(data), codec.decode_commit(data)) for sequence, data in records
    )


def replay_run(log: RunLog) -> RunState:
    """The run's state from its log alone.

    Raises:
        ChainBrokenError: a commit is missing or was changed.
    """
    return replay_states(log)[-1][1] if log.commits else RunState(log.run)


def replay_states(log: RunLog) -> Sequence[tuple[LoggedCommit, RunState]]:
    """The state after every commit, oldest first.

    Raises:
        ChainBrokenError: a commit is missing or was changed.
    """
    states: list[tuple[LoggedCommit, RunState]] = []
    state = RunState(log.run)
    for logged in log.commits:
        state = fold_commit(state, logged.sequence, logged.digest, logged.commit)
        states.append((logged, state))
    return states


def replay_memory(log: RunLog) -> Sequence[tuple[LoggedCommit, MemoryState]]:
    """The working memory after every commit of its part, oldest first.

    Raises:
        ChainBrokenError: a commit is missing or was changed.
    """
    states: list[tuple[LoggedCommit, MemoryState]] = []
    state = MemoryState(log.run)
    for logged in log.memory:
        state = fold_memory_commit(state, logged.sequence, logged.digest, logged.commit)
        states.append((logged, state))
    return states

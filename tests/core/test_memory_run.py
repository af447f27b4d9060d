"""The fold of working memory: what its part of the log says, and operation ids that are never forgotten (D.O.23)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.logs import commit_to_memory, make_commit

from contextbus.core.memory_run import (
    MemoryState,
    find_memory_command,
    fold_memory_commit,
    fold_memory_commits,
    try_patch,
)
from contextbus.core.run import ChainBrokenError
from contextbus.core.working_memory import create_working_memory
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import RefreshRequested, UnknownEvent, WorkingMemoryCreated, WorkingMemoryPatched
from contextbus_protocol.working_memory import AddObservation, Observation, SetGoal, WorkingMemoryPatch

EMPTY = MemoryState("r")
CREATED = WorkingMemoryCreated(snapshot=create_working_memory(scope="s", now=5, goal="Deploy."))


def patch(number: int, revision: int) -> WorkingMemoryPatch:
    return WorkingMemoryPatch(
        operation_id=f"op-{number}",
        expected_revision=revision,
        writer="model",
        operations=(AddObservation(text=f"observation {number}"),),
    )


def patched(number: int, revision: int) -> WorkingMemoryPatched:
    return WorkingMemoryPatched(patch=patch(number, revision), revision=revision + 1, now=7)


def test_nothing_is_there_before_it_was_created() -> None:
    assert try_patch(EMPTY, patch(0, 0), 7) is None
    assert commit_to_memory(EMPTY, patched(0, 0)).snapshot is None


@pytest.mark.rule("D.O.3", "D.O.4", "D.O.6")
def test_every_result_carries_the_snapshot_and_a_rejection_its_reason() -> None:
    state = commit_to_memory(EMPTY, CREATED)
    applied = try_patch(state, patch(0, 0), 7)
    assert applied is not None
    assert (applied.status, applied.reason, applied.snapshot.revision) == ("applied", None, 1)
    rejected = try_patch(state, patch(0, 4), 7)
    assert rejected is not None
    assert (rejected.status, rejected.reason) == ("rejected", "revision-conflict")
    assert rejected.snapshot == state.snapshot
    after = commit_to_memory(state, patched(0, 0))
    duplicate = try_patch(after, patch(0, 0), 9)
    assert duplicate is not None
    assert (duplicate.status, duplicate.reason, duplicate.snapshot) == ("duplicate", None, after.snapshot)


@pytest.mark.rule("D.O.23", "D.O.16")
def test_an_operation_is_a_duplicate_however_long_ago_it_was() -> None:
    state = commit_to_memory(EMPTY, CREATED)
    for number in range(60):  # 64 observations fit
        state = commit_to_memory(state, patched(number, number), command=str(number))
    for number in range(60):
        result = try_patch(state, patch(number, 0), 9)
        assert result is not None
        assert result.status == "duplicate"
    assert state.snapshot is not None
    assert state.snapshot.operation_ids == ()  # they do not grow what a step uses
    assert state.snapshot.revision == 60


@pytest.mark.rule("D.Q.12")
def test_a_duplicate_names_what_the_operation_came_to_at_first() -> None:
    state = commit_to_memory(EMPTY, CREATED)
    for number in range(40):
        state = commit_to_memory(state, patched(number, number), command=str(number))
    for number in range(40):
        result = try_patch(state, patch(number, 3), 9)
        assert result is not None
        assert (result.status, result.revision) == ("duplicate", number + 1)
        assert result.ids == (f"observations-{number + 1}-0",)
        assert result.snapshot is state.snapshot
    applied = try_patch(state, patch(40, 40), 9)
    assert applied is not None
    assert (applied.status, applied.revision, applied.ids) == ("applied", 41, ("observations-41-0",))
    rejected = try_patch(state, patch(40, 39), 9)
    assert rejected is not None
    assert (rejected.revision, rejected.ids) == (None, ())


def test_a_command_is_remembered_with_the_ids_that_it_added() -> None:
    state = commit_to_memory(commit_to_memory(EMPTY, CREATED, command="make"), patched(0, 0), command="patch")
    fact = find_memory_command(state, "patch")
    assert fact is not None
    assert (fact.revision, fact.ids) == (1, ("observations-1-0",))
    assert find_memory_command(state, "other") is None
    for number in range(600):
        state = commit_to_memory(state, RefreshRequested(), command=f"n{number}")
        assert (find_memory_command(state, "patch") is None) == state.recent.forgotten
        assert number >= 255 or not state.recent.forgotten
    assert state.recent.forgotten


def test_the_digest_is_over_the_bytes_of_the_snapshot() -> None:
    state = commit_to_memory(commit_to_memory(EMPTY, CREATED), patched(0, 0))
    assert state.snapshot_digest == digests.digest_bytes(encode_json(state.snapshot))


def test_taking_over_a_snapshot_takes_over_its_operation_ids() -> None:
    made = CREATED.snapshot
    given_ids = WorkingMemoryCreated(
        snapshot=type(made)(version=1, scope="s", revision=3, operation_ids=("op-0", "op-1"))
    )
    state = commit_to_memory(EMPTY, given_ids)
    result = try_patch(state, patch(1, 3), 7)
    assert result is not None
    assert (result.status, result.revision, result.ids) == ("duplicate", None, ())
    assert try_patch(state, patch(2, 3), 7) is not None


@pytest.mark.rule("D.O.18")
def test_a_snapshot_that_was_taken_over_is_checked_whole_whatever_was_patched_before() -> None:
    state = commit_to_memory(commit_to_memory(EMPTY, CREATED), patched(0, 0))
    assert state.sound
    nameless = Observation(id="", text="x", writer="model", revision=0, changed_at=5)
    foreign = msgspec.structs.replace(CREATED.snapshot, observations=(nameless,))
    state = commit_to_memory(state, WorkingMemoryCreated(snapshot=foreign))
    with pytest.raises(InvalidTypeError):
        try_patch(state, patch(1, 0), 9)


def test_events_of_other_parts_and_unknown_ones_change_nothing() -> None:
    state = commit_to_memory(EMPTY, CREATED)
    after = commit_to_memory(state, RefreshRequested(), UnknownEvent(name="x", data='{"type":"x"}'))
    assert (after.snapshot, after.applied) == (state.snapshot, state.applied)
    digest, commit = make_commit("sha256:another", CREATED, part="working-memory")
    with pytest.raises(ChainBrokenError):
        fold_memory_commit(state, 2, digest, commit)


@pytest.mark.rule("D.O.21")
def test_commits_that_are_known_change_nothing_when_they_are_read_again() -> None:
    digest, commit = make_commit("", CREATED, part="working-memory")
    further, patching = make_commit(digest, patched(0, 0), part="working-memory")
    commits = [(1, digest, commit), (2, further, patching)]
    state = fold_memory_commits(EMPTY, commits)
    assert (state.sequence, state.digest) == (2, further)
    assert fold_memory_commits(state, commits) is state


@pytest.mark.rule("D.O.1", "D.O.21")
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_fold_is_deterministic_and_only_applied_patches_count(patches: list[tuple[int, int]]) -> None:
    def fold() -> MemoryState:
        state = commit_to_memory(EMPTY, CREATED)
        for number, revision in patches:
            state = commit_to_memory(state, patched(number, revision))
        return state

    states = [commit_to_memory(EMPTY, CREATED)]
    for number, revision in patches:
        before = states[-1]
        expected = try_patch(before, patch(number, revision), 7)
        states.append(commit_to_memory(before, patched(number, revision)))
        assert expected is not None
        assert states[-1].snapshot == expected.snapshot
        if expected.status != "applied":
            assert (states[-1].applied, states[-1].snapshot) == (before.applied, before.snapshot)
    assert states[-1] == fold()


@pytest.mark.rule("D.O.8")
def test_what_a_model_may_not_do_is_not_in_the_fold_either() -> None:
    state = commit_to_memory(EMPTY, CREATED)
    forged = WorkingMemoryPatch(
        operation_id="x", expected_revision=0, writer="model", operations=(SetGoal(text="Mine."),)
    )
    after = commit_to_memory(state, WorkingMemoryPatched(patch=forged, revision=1, now=7))
    assert after.snapshot == state.snapshot


@pytest.mark.rule("D.O.23")
def test_the_snapshot_carries_no_operation_ids_but_they_are_known() -> None:
    snapshot = create_working_memory(scope="s", now=5, goal="Deploy.")
    given_ = msgspec.structs.replace(snapshot, operation_ids=("op-0", "op-1"))
    state = commit_to_memory(EMPTY, WorkingMemoryCreated(snapshot=given_))
    assert state.snapshot == snapshot
    assert state.snapshot_digest == digests.digest_bytes(encode_json(snapshot))
    again = try_patch(state, patch(1, 0), 7)
    assert again is not None
    assert again.status == "duplicate"
    assert (EMPTY.snapshot_digest, EMPTY.digest, EMPTY.sequence, EMPTY.sound) == ("", "", 0, False)

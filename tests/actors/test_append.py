"""The append algorithm: exactly once, whatever gets lost (design: section 3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.actors.bench import RUN, TENANT

from contextbus.actors import append
from contextbus.actors.append import (
    AppendCommit,
    Appended,
    BlobsPut,
    Finish,
    LastRead,
    PutBlobs,
    ReadLast,
    Refused,
    Unanswered,
    Wait,
    Waited,
)
from contextbus.actors.effects import Store
from contextbus_protocol import codec, digests, subjects
from contextbus_protocol.events import Commit, RefreshRequested, StepFailed
from contextbus_protocol.outcomes import Committed, Conflicted, Unstored

SUBJECT = subjects.log(TENANT, RUN, "run")


def commit(**changes: Any) -> Commit:
    made = Commit(
        version=1,
        tenant=TENANT,
        run=RUN,
        part="run",
        command="c1",
        command_digest="sha256:asked",
        attempt=1,
        engine="test",
        policy=1,
        previous="sha256:before",
        at=7,
        events=(RefreshRequested(),),
    )
    return msgspec.structs.replace(made, **changes)


STORE = Store(commit(), 4, "token")
BLOBS = (("sha256:b", b"bytes"),)


def at_last(store: Store = STORE) -> append.Appending:
    state, _ = append.begin(store)
    state, operation = append.advance(state, Refused(10071))
    assert operation == ReadLast(SUBJECT)
    return state


def result(operation: append.Operation) -> Committed | Conflicted | Unstored:
    assert isinstance(operation, Finish)
    return operation.result


def test_blobs_go_first_so_that_no_commit_names_one_that_is_not_there() -> None:
    state, operation = append.begin(msgspec.structs.replace(STORE, blobs=BLOBS))
    assert operation == PutBlobs(RUN, BLOBS)
    state, operation = append.advance(state, BlobsPut())
    assert isinstance(operation, AppendCommit)
    assert (operation.subject, operation.expected, operation.command) == (SUBJECT, 4, "c1")
    _, operation = append.advance(state, Appended(9))
    stored = result(operation)
    assert isinstance(stored, Committed)
    assert (stored.sequence, stored.token, stored.part) == (9, "token", "run")
    assert stored.digest == digests.digest_bytes(codec.encode_commit(STORE.commit))


def test_without_blobs_the_commit_is_the_first_operation() -> None:
    _, operation = append.begin(STORE)
    assert isinstance(operation, AppendCommit)


def test_the_message_id_is_one_of_its_own_for_run_part_place_command_and_attempt() -> None:
    others = [
        commit(tenant="u"),
        commit(run="run-2"),
        commit(part="working-memory"),
        commit(previous=""),
        commit(command="c2"),
        commit(attempt=2),
    ]
    assert len({append.message_id(c) for c in [commit(), *others]}) == 7
    assert append.message_id(commit(at=8)) == append.message_id(commit())


@pytest.mark.parametrize("code", append.WRONG_LAST_SEQUENCE)
def test_a_refused_expectation_asks_the_leader_what_stands_there(code: int) -> None:
    state, _ = append.begin(STORE)
    assert append.advance(state, Refused(code))[1] == ReadLast(SUBJECT)


def test_a_duplicate_is_no_success_before_the_log_shows_it() -> None:
    state, _ = append.begin(STORE)
    assert append.advance(state, Appended(5, duplicate=True))[1] == ReadLast(SUBJECT)


@pytest.mark.parametrize("phase", ["blobs", "commit", "last"])
def test_any_other_refusal_is_a_limit_of_the_log(phase: str) -> None:
    state, _ = append.begin(msgspec.structs.replace(STORE, blobs=BLOBS if phase == "blobs" else ()))
    if phase == "last":
        state = at_last()
    unstored = result(append.advance(state, Refused(10077, "maximum bytes exceeded"))[1])
    assert isinstance(unstored, Unstored)
    assert unstored.code == "limit"
    assert "free disk space" in unstored.message


def test_an_expectation_error_for_blobs_is_no_conflict() -> None:
    state, _ = append.begin(msgspec.structs.replace(STORE, blobs=BLOBS))
    assert isinstance(result(append.advance(state, Refused(10071))[1]), Unstored)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (LastRead(), Conflicted),
        (LastRead(4, b"old", "c1"), Conflicted),
        (LastRead(7, codec.encode_commit(STORE.commit), "c1"), Committed),
        (LastRead(7, codec.encode_commit(commit(command="c2")), "c2"), Conflicted),
        (LastRead(7, codec.encode_commit(commit(attempt=2)), "c1"), Committed),
        (LastRead(7, codec.encode_commit(commit(attempt=2, command_digest="sha256:else")), "c1"), Conflicted),
        (LastRead(7, codec.encode_commit(commit(attempt=2, events=(StepFailed(step=1, code="x"),))), "c1"), Conflicted),
        (LastRead(7, b"{damaged", "c1"), Unstored),
    ],
    ids=["erased", "not newer", "ours", "others", "other attempt", "id used again", "failed attempt", "damaged"],
)
def test_what_stands_there_decides(last: LastRead, kind: type) -> None:
    got = result(append.advance(at_last(), last)[1])
    assert isinstance(got, kind)
    assert got.token == "token"
    if isinstance(got, Committed):
        assert last.data is not None
        assert (got.sequence, got.digest) == (7, digests.digest_bytes(last.data))
        assert got.commit == codec.decode_commit(last.data)


def test_our_own_failed_step_is_ours() -> None:
    failed = commit(events=(StepFailed(step=1, code="source_failed"),))
    state = at_last(Store(failed, 4, "token"))
    assert isinstance(result(append.advance(state, LastRead(7, codec.encode_commit(failed), "c1"))[1]), Committed)


def test_silence_is_answered_by_the_same_operation_again_a_bounded_number_of_times() -> None:
    state, first = append.begin(STORE)
    waits: list[float] = []
    operation: append.Operation = first
    while not isinstance(operation, Finish):
        assert operation == first
        state, operation = append.advance(state, Unanswered("timeout"))
        if isinstance(operation, Wait):
            waits.append(operation.seconds)
            state, operation = append.advance(state, Waited())
    unstored = operation.result
    assert isinstance(unstored, Unstored)
    assert unstored.code == "deadline_exceeded"
    assert len(waits) == append.ATTEMPTS - 1
    assert waits == sorted(waits)
    assert waits[-1] <= 1.0


OUTCOMES = st.sampled_from(
    [
        Unanswered(),
        BlobsPut(),
        Appended(9),
        Appended(9, duplicate=True),
        Refused(10071),
        Refused(10164),
        Refused(10077),
        LastRead(),
        LastRead(7, codec.encode_commit(STORE.commit), "c1"),
        LastRead(7, codec.encode_commit(commit(command="c2")), "c2"),
        Waited(),
    ]
)


@given(st.lists(OUTCOMES, max_size=60), st.booleans())
def test_no_order_of_outcomes_raises(outcomes: list[append.Outcome], blobs: bool) -> None:
    state, operation = append.begin(msgspec.structs.replace(STORE, blobs=BLOBS if blobs else ()))
    for outcome in outcomes:
        if isinstance(operation, Finish):
            assert operation.result.token == "token"
            break
        state, operation = append.advance(state, outcome)

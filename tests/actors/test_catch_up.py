"""Catch-up: the commits after a sequence, whole and in order, from replicas that may be stale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.actors.bench import RUN, TENANT, Log

from contextbus.actors import catch_up
from contextbus.actors.append import LastRead, ReadLast, Unanswered, Wait, Waited
from contextbus.actors.catch_up import Caught, PageRead, ReadPage
from contextbus.actors.effects import Load
from contextbus_protocol import codec, subjects
from contextbus_protocol.events import RefreshRequested
from contextbus_protocol.outcomes import Loaded

SUBJECT = subjects.log(TENANT, RUN, "run")


def records(count: int) -> list[tuple[int, bytes]]:
    log = Log()
    for _ in range(count):
        log.add(RefreshRequested())
    return [(sequence, codec.encode_commit(commit)) for sequence, _, commit in log.commits]


def result(operation: catch_up.Operation) -> Loaded:
    assert isinstance(operation, Caught)
    return operation.result


def start(after: int = 0, at_least: int = 0) -> catch_up.CatchingUp:
    state, operation = catch_up.begin(Load(RUN, "run", after, "token", at_least), TENANT)
    assert operation == ReadPage(SUBJECT, after)
    return state


def test_one_page_is_all() -> None:
    loaded = result(catch_up.advance(start(), PageRead(tuple(records(3)), more=False))[1])
    assert [sequence for sequence, _, _ in loaded.commits] == [3, 6, 9]
    assert (loaded.token, loaded.part, loaded.after, loaded.code) == ("token", "run", 0, None)


def test_pages_follow_each_other_and_what_is_known_is_skipped() -> None:
    data = records(4)
    state, operation = catch_up.advance(start(3), PageRead(tuple(data[:2]), more=True))
    assert operation == ReadPage(SUBJECT, 6)
    loaded = result(catch_up.advance(state, PageRead(tuple(data[1:]), more=False))[1])
    assert [sequence for sequence, _, _ in loaded.commits] == [6, 9, 12]


def test_an_empty_log_is_an_answer() -> None:
    assert result(catch_up.advance(start(), PageRead((), more=False))[1]).commits == ()


def test_fewer_than_known_to_exist_is_a_stale_replica_until_the_leader_says_otherwise() -> None:
    data = records(2)
    state, operation = catch_up.advance(start(at_least=6), PageRead(tuple(data[:1]), more=False))
    assert operation == ReadLast(SUBJECT)
    again, operation = catch_up.advance(state, LastRead(6, data[1][1]))
    assert isinstance(operation, Wait)
    again, operation = catch_up.advance(again, Waited())
    assert operation == ReadPage(SUBJECT, 3)
    assert len(result(catch_up.advance(again, PageRead((data[1],), more=False))[1]).commits) == 2
    assert len(result(catch_up.advance(state, LastRead())[1]).commits) == 1
    assert len(result(catch_up.advance(state, LastRead(3, data[0][1]))[1]).commits) == 1


def test_a_page_that_promises_more_and_has_nothing_new_asks_the_leader() -> None:
    assert catch_up.advance(start(), PageRead((), more=True))[1] == ReadLast(SUBJECT)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{damaged", "invalid_type"),
        (records(1)[0][1].replace(b'"version":1', b'"version":99'), "unsupported_version"),
    ],
)
def test_a_commit_that_cannot_be_read_fails_the_load_without_its_content(data: bytes, code: str) -> None:
    loaded = result(catch_up.advance(start(), PageRead((records(1)[0], (6, data)), more=False))[1])
    assert (loaded.code, loaded.commits) == (code, ())


def test_an_unknown_event_is_no_failure() -> None:
    data = records(1)[0][1].replace(b"refresh-requested", b"something-newer")
    loaded = result(catch_up.advance(start(), PageRead(((3, data),), more=False))[1])
    assert loaded.code is None
    assert codec.encode_commit(loaded.commits[0][2]) == data


def test_silence_ends_and_progress_counts_anew() -> None:
    state, operation = start(), None
    for _ in range(catch_up.ATTEMPTS - 1):
        state, operation = catch_up.advance(state, Unanswered())
        assert isinstance(operation, Wait)
        assert operation.seconds <= 1.0
        state, operation = catch_up.advance(state, Waited())
    assert result(catch_up.advance(state, Unanswered())[1]).code == "deadline_exceeded"
    state, _ = catch_up.advance(state, PageRead((records(1)[0],), more=True))
    assert isinstance(catch_up.advance(state, Unanswered())[1], Wait)


def last_read(count: int) -> LastRead:
    return LastRead(3 * count, records(count)[-1][1])


def page(first: int, last: int, more: bool) -> PageRead:
    return PageRead(tuple(records(5)[min(first, last) : max(first, last)]), more)


OUTCOMES = st.one_of(
    st.just(Unanswered()),
    st.just(Waited()),
    st.integers(1, 4).map(last_read),
    st.just(LastRead()),
    st.builds(page, st.integers(0, 5), st.integers(0, 5), st.booleans()),
)


@given(st.lists(OUTCOMES, max_size=30), st.integers(0, 20))
def test_whatever_replicas_answer_the_result_is_in_order(outcomes: list[catch_up.Outcome], at_least: int) -> None:
    state, operation = catch_up.begin(Load(RUN, "run", 3, "token", at_least), TENANT)
    for outcome in outcomes:
        if isinstance(operation, Caught):
            sequences = [s for s, _, _ in operation.result.commits]
            assert sequences == sorted(set(sequences))
            assert all(s > 3 for s in sequences)
            break
        state, operation = catch_up.advance(state, outcome)

"""The client's retry: one id over all attempts, a bounded time, one answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.actors.bench import RUN, ask_refresh

from contextbus.actors import client
from contextbus.actors.client import Absent, Answered, Resolve, Silent, Transmit, WakeAfter
from contextbus_protocol.commands import ErrorReply, Recorded

COMMAND = ask_refresh(seconds=2.0)
DONE = Recorded(run=RUN, command="c1", sequence=3, commit="d", count=0, chain="")


def error(code: str) -> ErrorReply:
    return ErrorReply(run=RUN, command="c1", code=code, message="…")


def resolved(operation: client.Operation) -> str:
    assert isinstance(operation, Resolve)
    return operation.answer.code if isinstance(operation.answer, ErrorReply) else "done"


def test_it_is_sent_at_once_and_woken_when_the_time_and_a_second_are_over() -> None:
    _, operation = client.begin(COMMAND)
    assert operation == Transmit(COMMAND, 3.0)


@pytest.mark.parametrize("answer", [DONE, error("conflict"), error("stale_step"), error("internal")])
def test_an_answer_ends_it_and_later_ones_change_nothing(answer: Recorded | ErrorReply) -> None:
    state, _ = client.begin(COMMAND)
    state, operation = client.advance(state, Answered(answer))
    assert operation == Resolve(answer)
    for outcome in (Answered(DONE), Silent(), Absent()):
        assert client.advance(state, outcome) == (state, None)


@pytest.mark.parametrize("outcome", [Silent(), Answered(error("deadline_exceeded"))])
def test_it_is_asked_three_times_with_one_id(outcome: client.Outcome) -> None:
    state, operation = client.begin(COMMAND)
    seen: list[tuple[str, int]] = []
    while isinstance(operation, Transmit):
        seen.append((operation.command.command, operation.command.attempt))
        state, operation = client.advance(state, outcome)
    assert seen == [("c1", 1), ("c1", 2), ("c1", 3)]
    assert resolved(operation) == "deadline_exceeded"


@pytest.mark.parametrize("outcome", [Absent(), Answered(error("busy"))])
def test_nobody_there_or_no_room_is_waited_for_without_counting_an_attempt(outcome: client.Outcome) -> None:
    state, _ = client.begin(COMMAND)
    waited = 0.0
    state, operation = client.advance(state, outcome)
    while isinstance(operation, WakeAfter):
        waited += operation.seconds
        state, operation = client.advance(state, Silent())
        assert isinstance(operation, Transmit)
        assert operation.command.attempt == 1
        state, operation = client.advance(state, outcome)
    assert waited <= 3 * 3.0
    assert resolved(operation) == ("busy" if isinstance(outcome, Answered) else "deadline_exceeded")


def test_what_was_busy_once_and_is_silent_since_may_be_done() -> None:
    state, _ = client.begin(COMMAND)
    state, _ = client.advance(state, Answered(error("busy")))
    state, operation = client.advance(state, Silent())
    while isinstance(operation, Transmit):
        state, operation = client.advance(state, Silent())
    assert resolved(operation) == "deadline_exceeded"


OUTCOMES = st.sampled_from([Silent(), Absent(), Answered(error("busy")), Answered(error("deadline_exceeded"))])


@given(st.lists(OUTCOMES, min_size=200, max_size=200))
def test_it_always_ends(outcomes: list[client.Outcome]) -> None:
    state, operation = client.begin(COMMAND)
    for outcome in outcomes:
        if isinstance(operation, Resolve):
            break
        state, operation = client.advance(state, outcome)
    assert isinstance(operation, Resolve)

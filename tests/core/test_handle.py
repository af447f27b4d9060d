"""The client's side of a run: what it hands over, and what the log makes of it (D.F.19, D.W.3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.core.estimate import make_estimator
from contextbus.core.handle import RunHandle
from contextbus.core.history import digest_message
from contextbus.core.new_messages import take_messages
from contextbus.core.run_state import RunState
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.commands import NewMessages
from contextbus_protocol.digests import EMPTY_CHAIN
from contextbus_protocol.errors import ConflictError
from contextbus_protocol.values import Scope

ESTIMATOR = make_estimator()
SCOPE = Scope(user_id="ada")
A, B, C, D = user("a"), assistant("b"), user("c"), user("d")


class Log:
    """What a log holds of one run's messages: bodies, chain, and how often it was written."""

    def __init__(self) -> None:
        self.state = RunState("r")
        self.messages: tuple[ChatMessage, ...] = ()
        self.sequence = 0

    def take(self, new: NewMessages) -> None:
        """Take what a command brings.

        Raises:
            ConflictError: it was built on another history.
        """
        self.state, fact = take_messages(self.state, new, SCOPE, ESTIMATOR)
        self.messages = (*self.messages[: fact.start], *fact.messages)
        self.sequence += 1

    def acknowledge(self, handle: RunHandle) -> RunHandle:
        """What the answer tells the client."""
        return handle.acknowledge(self.sequence, self.state.history.count, self.state.history.chain)


def send(log: Log, handle: RunHandle) -> RunHandle:
    """One command of a client: on a conflict it reads the run and asks again."""
    try:
        log.take(handle.new_messages())
    except ConflictError:
        handle = handle.rebase(log.messages, log.sequence)
        log.take(handle.new_messages())
    return log.acknowledge(handle)


def bodies(handle: RunHandle) -> list[ChatMessage | None]:
    return handle.history.messages()


@pytest.mark.rule("D.F.19")
def test_only_what_the_log_does_not_hold_travels() -> None:
    log = Log()
    handle = RunHandle().append([A])
    assert handle.new_messages().messages == (A,)
    handle = send(log, handle).append([B, C])
    new = handle.new_messages()
    assert (new.base_count, new.keep, new.messages) == (1, 1, (B, C))
    handle = send(log, handle).hand_over([A, B, C, D])
    assert handle.new_messages().messages == (D,)
    assert send(log, handle).new_messages().messages == ()
    assert log.messages == (A, B, C, D)


@pytest.mark.rule("D.F.19", "D.F.14")
def test_a_rewritten_list_keeps_the_common_beginning() -> None:
    log = Log()
    handle = send(log, RunHandle().append([A, B, C])).hand_over([A, D])
    new = handle.new_messages()
    assert (new.base_count, new.keep, new.messages) == (3, 1, (D,))
    send(log, handle)
    assert log.messages == (A, D)


@pytest.mark.rule("D.F.19", "D.G.18")
def test_blocks_of_ours_are_no_messages() -> None:
    log = Log()
    block, tail = user("<retrieved_context/>"), user("<working_memory/>")
    own = {digest_message(block), digest_message(tail)}
    handle = send(log, RunHandle().append([A])).hand_over([A, block, B, tail], own)
    assert bodies(handle) == [A, B]
    assert handle.new_messages().messages == (B,)


@pytest.mark.rule("D.W.3")
def test_reading_again_keeps_the_callers_objects_and_adds_nothing_twice() -> None:
    log = Log()
    mine = [user("a"), assistant("b")]
    handle = RunHandle().append(mine)
    log.take(handle.new_messages())  # stored, and the answer is lost
    rebased = handle.rebase([user("a"), assistant("b"), user("other's")], 1)
    assert all(a is b for a, b in zip(bodies(rebased), mine, strict=False))
    assert bodies(rebased) == [A, B, user("other's")]
    assert rebased.new_messages().messages == ()


def test_what_was_added_stays_behind_what_is_read() -> None:
    handle = RunHandle().append([A]).rebase([B, C], 5)
    assert bodies(handle) == [B, C, A]
    assert (handle.base_count, handle.kept, handle.seen) == (2, 2, 5)
    assert handle.new_messages().messages == (A,)


@pytest.mark.rule("D.F.19")
def test_an_answer_about_anothers_history_never_replaces_it() -> None:
    log = Log()
    one = send(log, RunHandle().append([A]))
    other = RunHandle().rebase(log.messages, log.sequence).append([B])
    send(log, other)
    log.sequence += 1
    one = log.acknowledge(one)  # a report, say, that brought no messages
    one = send(log, one.append([C]))
    assert log.messages == (A, B, C)
    assert bodies(one) == [A, B, C]


def test_a_handle_claims_to_have_seen_no_more_than_what_the_log_holds() -> None:
    opened = RunHandle().rebase((), 0)
    assert (opened.seen, opened.seen_memory, opened.base_count) == (0, 0, 0)


def test_old_answers_and_sequences_change_nothing() -> None:
    log = Log()
    handle = send(log, RunHandle().append([A]))
    assert handle.acknowledge(0, 0, EMPTY_CHAIN) is handle
    assert handle.see_memory(4).see_memory(2).seen_memory == 4


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["append", "send", "lose", "read", "rewrite"])), max_size=16
)


@pytest.mark.rule("D.F.19")
@settings(deadline=None)
@given(STEPS)
def test_two_handles_converge_and_lose_nothing(steps: Sequence[tuple[int, str]]) -> None:
    log = Log()
    handles = [RunHandle(), RunHandle()]
    rewritten = False
    said: list[ChatMessage] = []
    for number, (who, action) in enumerate(steps):
        handle = handles[who]
        match action:
            case "append":
                said.append(user(f"{number} of {who}"))
                handle = handle.append(said[-1:])
            case "send":
                handle = send(log, handle)
            case "lose":  # the command is stored, its answer is lost, and sent again it is found
                try:
                    log.take(handle.new_messages())
                except ConflictError:
                    handle = handle.rebase(log.messages, log.sequence)
            case "read":
                handle = handle.rebase(log.messages, log.sequence)
            case _:
                rewritten = rewritten or bool(handle.history.count)
                handle = handle.hand_over([m for m in bodies(handle)[1:] if m is not None])
        handles[who] = handle
    for who in (0, 1, 0, 1):
        handles[who] = send(log, handles[who])
    handles = [handle.rebase(log.messages, log.sequence) for handle in handles]
    assert bodies(handles[0]) == bodies(handles[1]) == list(log.messages)
    assert handles[0].history.chain == log.state.history.chain
    if not rewritten:
        assert sorted(map(str, log.messages)) == sorted(map(str, said))

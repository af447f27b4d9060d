"""The client's side of a run: nothing of others is replaced unread (D.F.19)."""

from __future__ import annotations

import msgspec
import pytest
from tests.actors.bench import Bench, ask_refresh, more, refusal

from contextbus.core.handle import RunHandle
from contextbus_protocol.chat import assistant, user


def chain(*texts: str) -> str:
    return RunHandle().append([user(t) for t in texts]).history.chain


def known(*texts: str, seen: int = 3) -> RunHandle:
    handle = RunHandle().append([user(t) for t in texts])
    return handle.acknowledge(seen, len(texts), handle.history.chain)


def test_only_what_the_log_does_not_hold_travels() -> None:
    handle = known("a", "b").append([user("c")])
    new = handle.new_messages()
    assert (new.base_count, new.base_chain, new.keep) == (2, chain("a", "b"), 2)
    assert new.messages == (user("c"),)
    assert new.chain == chain("a", "b", "c")
    assert known("a").new_messages().messages == ()


def test_a_list_that_differs_keeps_its_common_prefix() -> None:
    new = known("a", "b").hand_over([user("a"), user("x")]).new_messages()
    assert (new.base_count, new.keep, new.messages) == (2, 1, (user("x"),))


def test_an_older_acknowledgement_changes_nothing() -> None:
    handle = known("a", seen=9)
    assert handle.acknowledge(8, 0, chain()) is handle


@pytest.mark.rule("D.F.19")
def test_messages_of_others_are_no_base_before_they_are_read() -> None:
    handle = known("a").append([user("mine")])
    told = handle.acknowledge(9, 2, chain("a", "theirs"))
    assert told.seen == 9
    assert told.new_messages() == handle.new_messages()
    read = told.rebase([user("a"), user("theirs")], 9)
    assert list(read.history.messages()) == [user("a"), user("theirs"), user("mine")]


@pytest.mark.rule("D.F.19")
def test_a_client_that_was_told_of_messages_it_has_not_read_cannot_replace_them() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    mine = known("a")
    bench.record(more("theirs", command="c1", after=bench.log.fold))
    bench.record(ask_refresh(command="c2"))
    fold = bench.log.fold
    mine = mine.acknowledge(fold.sequence, fold.history.count, fold.history.chain).append([assistant("mine")])
    command = msgspec.structs.replace(more(command="c3"), history=mine.new_messages())
    assert refusal(bench.begin(command)) == "conflict"


def test_sequences_of_the_working_memory_only_grow() -> None:
    assert RunHandle().see_memory(4).see_memory(2).seen_memory == 4

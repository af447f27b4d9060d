"""What selection settles at one state of the fold, as pure functions of fold and flight."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    DOCS,
    INBOX,
    TENANT,
    Bench,
    ask_refresh,
    candidate,
    more,
    new_messages,
    options,
    report,
    step,
)

from contextbus.actors import decided, settle
from contextbus.actors.flight import Flight, RunCommand, deadline_token, digest_command
from contextbus.actors.queueing import drop_waiting
from contextbus.core.run import find_command
from contextbus.core.run_state import RunState
from contextbus_protocol.chat import user
from contextbus_protocol.commands import CompileStep
from contextbus_protocol.errors import CommandMismatchError, InvalidRequestError, InvalidTypeError, StaleStepError
from contextbus_protocol.values import EstimatorSpec, Model, RefreshOptions, Scope, Usage


def compiled(number: int | None = None) -> RunState:
    bench = Bench()
    bench.compile(step("Hello", DOCS, number=number), candidate())
    return bench.log.fold


def flight(command: CompileStep, **changes: Any) -> Flight:
    return msgspec.structs.replace(Flight(command, "token"), **changes)


def reopen(fold: RunState, **changes: Any) -> CompileStep:
    return step("Hello", DOCS, command="c2", after=fold, add=False, **changes)


def test_a_command_of_the_log_is_found_and_another_of_its_id_is_refused() -> None:
    fold = compiled()
    assert settle.look_up(fold, flight(step("Hello", DOCS))) == find_command(fold, "c1")
    with pytest.raises(CommandMismatchError):
        settle.look_up(fold, flight(step("Other", DOCS)))


@pytest.mark.rule("D.R.7")
@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, True), ({"conflicts": 1}, False), ({"gone": 3}, False), ({"gone": 2}, True)],
    ids=["open", "lost a race", "package gone", "an older package gone"],
)
def test_a_step_is_reopened_when_nothing_came_in_between(changes: dict[str, Any], found: bool) -> None:
    fold = compiled()
    got = settle.look_up(fold, flight(reopen(fold), **changes))
    assert (got is not None) == found
    if got is not None:
        assert fold.last is not None
        assert (got.step, got.package, got.command_digest) == (0, fold.last.package, "")


@pytest.mark.rule("D.R.7", "D.K.2", "D.K.3")
@pytest.mark.parametrize("number", [None, 0])
def test_a_step_is_reopened_for_its_own_scope_only(number: int | None) -> None:
    fold = compiled()
    assert fold.last is not None
    narrower = msgspec.structs.replace(fold.last.scope, chat_id="c")

    def look_up(fold: RunState, scope: Scope) -> object:
        command = reopen(fold, number=number)
        command = msgspec.structs.replace(command, options=msgspec.structs.replace(command.options, scope=scope))
        return settle.look_up(fold, flight(command))

    assert look_up(fold, narrower) is None  # the package was made from what a wider scope finds
    narrow = msgspec.structs.replace(fold, last=msgspec.structs.replace(fold.last, scope=narrower))
    assert look_up(narrow, fold.last.scope) is None  # and this one from what a narrower scope finds
    assert look_up(narrow, narrower) is not None
    assert look_up(narrow, Scope(chat_id="c")) is not None  # the pinned scope stands: it comes to the same


@pytest.mark.rule("D.G.3")
@pytest.mark.parametrize(
    ("number", "conflicts", "stale"),
    [(4, 0, True), (5, 0, False), (5, 1, True), (6, 0, False), (6, 2, False), (None, 3, False)],
)
def test_the_number_decides(number: int | None, conflicts: int, stale: bool) -> None:
    fold = compiled(5)
    asked = flight(reopen(fold, number=number, refresh=True), conflicts=conflicts)
    if stale:
        with pytest.raises(StaleStepError):
            settle.look_up(fold, asked)
    else:
        assert settle.look_up(fold, asked) is None


def test_nothing_is_known_of_a_new_run_or_of_another_kind_of_command() -> None:
    assert settle.look_up(RunState("run-1"), flight(step("Hello"))) is None
    assert settle.look_up(compiled(), Flight(ask_refresh(command="c9"), "token")) is None


def test_a_settled_step_is_settled_once_for_each_state_of_the_fold() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    command = step("Hello", DOCS, after=bench.log.fold)
    one = settle.settle_step(bench.log.fold, flight(command), {})
    assert settle.settle_step(bench.log.fold, one, {}) is one
    bench.record(ask_refresh(command="r"))
    other = settle.settle_step(bench.log.fold, one, {})
    assert one.prepared is not None
    assert other.prepared is not None
    assert other.prepared.sequence > one.prepared.sequence


def test_only_a_settled_step_is_placed() -> None:
    for asked in (flight(step("Hello")), Flight(ask_refresh(), "token")):
        with pytest.raises(InvalidRequestError):
            decided.place_of(RunState("run-1"), asked, (), TENANT, INBOX, {})


@pytest.mark.rule("D.B.19", "D.W.6")
def test_check_step() -> None:
    settle.check_step(step("Hello", DOCS, number=3))
    for wrong in (step("x", number=2**53), step("x", options_=options(refresh=RefreshOptions(min_steps=-1)))):
        with pytest.raises(InvalidTypeError):
            settle.check_step(wrong)


BASE = step("Hello", DOCS, number=1)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"attempt": 2}, True),
        ({"reply_to": "elsewhere", "reply_as": "json"}, True),
        ({"seconds_left": 1.0, "now": 5, "seen": 9, "seen_memory": 9}, True),
        ({"step": 2}, False),
        ({"user_text": "Other"}, False),
        ({"refresh": True}, False),
        ({"options": options(DOCS, model=Model("p", "m", 1, 1))}, False),
        ({"history": new_messages(user("Other"))}, False),
    ],
)
def test_what_a_command_asks_for_is_its_digest(changes: dict[str, Any], same: bool) -> None:
    assert (digest_command(msgspec.structs.replace(BASE, **changes)) == digest_command(BASE)) == same


def test_commands_of_different_kinds_and_bodies_have_different_digests() -> None:
    commands: list[RunCommand] = [
        BASE,
        report(1),
        report(1, "failed"),
        report(2),
        msgspec.structs.replace(report(1), usage=Usage(1)),
        msgspec.structs.replace(report(1), finish_reason="stop"),
        report(1, history=new_messages(user("a"))),
        more("a"),
        more("b"),
        msgspec.structs.replace(more("a"), estimator=EstimatorSpec(name="characters")),
        ask_refresh(),
    ]
    assert len({digest_command(c) for c in commands}) == len(commands)


def test_a_command_that_waits_can_be_dropped() -> None:
    bench = Bench()
    bench.tell(ask_refresh(command="c0"), ask_refresh(command="c1"), ask_refresh(command="c2"))
    state, found = drop_waiting(bench.state, "c1")
    assert found is not None
    assert deadline_token(found) == "c1#deadline"
    assert [c.command for c in state.waiting] == ["c2"]
    assert drop_waiting(state, "c1") == (state, None)

"""A run that another one started: its scope lies within the parent's, whoever sent the command (D.K.5 to D.K.7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import CLIENT, DOCS, Bench, candidate, more, options, queries, refusal, sent, step

from contextbus.actors.effects import Send
from contextbus_protocol.commands import CompileStep, ErrorReply
from contextbus_protocol.events import RunStarted
from contextbus_protocol.questions import AskItems
from contextbus_protocol.values import ParentRun, Scope

ADA = Scope(user_id="ada")
ADA_CHAT = Scope(user_id="ada", chat_id="1")
PARENT = ParentRun("parent", ADA)


def child(scope: Scope, parent: ParentRun | None = PARENT, **arguments: Any) -> CompileStep:
    """A step of a child run."""
    return msgspec.structs.replace(step("How?", options_=options(DOCS, scope=scope), **arguments), parent=parent)


@pytest.mark.rule("D.K.5", "D.K.6", "D.K.7")
@pytest.mark.parametrize(
    ("scope", "parent"),
    [
        (Scope(user_id="eve"), PARENT),
        (Scope(chat_id="1"), PARENT),  # it leaves open what the parent sets
        (ADA, ParentRun("parent", ADA_CHAT)),
        (Scope(user_id="ada", chat_id="2"), ParentRun("parent", ADA_CHAT)),
    ],
)
def test_a_child_outside_its_parent_is_refused_before_anybody_is_asked(scope: Scope, parent: ParentRun) -> None:
    bench = Bench()
    command = msgspec.structs.replace(child(scope, parent), callbacks=("prepare-step",))
    effects = bench.open(command)
    error = sent(effects, ErrorReply, CLIENT)
    assert error.code == "scope_conflict"
    assert not {"ada", "eve"} & set(error.message.replace(",", " ").split())
    assert queries(effects) == ()
    messages = [e.message for e in effects if isinstance(e, Send)]
    assert {type(m) for m in messages} == {AskItems, ErrorReply}  # no function of the host either
    assert bench.log.commits == []


@pytest.mark.rule("D.K.5", "D.K.7")
def test_messages_alone_start_no_child_outside_its_parent() -> None:
    bench = Bench()
    wrong = msgspec.structs.replace(more("Hi.", scope=Scope(user_id="eve")), parent=PARENT)
    assert refusal(bench.begin(wrong)) == "scope_conflict"
    right = msgspec.structs.replace(more("Hi.", scope=ADA_CHAT, command="c2"), parent=PARENT)
    bench.record(right)
    assert bench.log.fold.parent == PARENT


@pytest.mark.rule("D.K.5")
@pytest.mark.parametrize("scope", [ADA, ADA_CHAT])
def test_a_child_within_its_parent_is_compiled_and_the_log_names_the_parent(scope: Scope) -> None:
    bench = Bench()
    bench.compile(child(scope), candidate())
    (started,) = [e for e in bench.log.commits[0][2].events if isinstance(e, RunStarted)]
    assert (started.parent, started.scope) == (PARENT, scope)


@pytest.mark.rule("D.K.5", "D.W.1")
def test_the_parent_of_the_log_counts_whatever_a_later_command_says() -> None:
    bench = Bench()
    bench.compile(child(Scope(user_id="ada")), candidate())
    for number, parent in enumerate([None, ParentRun("other", Scope(user_id="eve"))], 2):
        fresh = Bench(bench.log)
        wide = child(Scope(user_id="eve"), parent, after=bench.log.fold, command=f"c{number}")
        assert refusal(fresh.open(wide)) == "scope_conflict"
    fresh = Bench(bench.log)
    narrower = ParentRun("other", ADA_CHAT)  # what a run was started from does not change
    fresh.compile(child(ADA, narrower, after=bench.log.fold, command="c8"), candidate())
    fresh.compile(child(ADA_CHAT, None, after=bench.log.fold, command="c9"), candidate())
    assert fresh.log.fold.parent == PARENT


@pytest.mark.rule("D.K.5")
def test_a_run_without_a_parent_is_bound_by_its_own_scope_alone() -> None:
    bench = Bench()
    bench.compile(child(Scope(user_id="eve"), None), candidate())
    assert (bench.log.fold.parent, bench.log.fold.scope) == (None, Scope(user_id="eve"))

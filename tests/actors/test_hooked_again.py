"""What the host's functions gave, once the log moved under the step: kept, or asked for again (D.W.4, D.J.4)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.bench import CLIENT, DOCS, RUN, Bench, candidate, offer, queries, report, sent, step
from tests.actors.test_callbacks import answer, asked, finish, hooked

from contextbus.actors.effects import Effects
from contextbus_protocol import blobs
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.chat import user
from contextbus_protocol.commit_requests import Place
from contextbus_protocol.events import (
    AnyEvent,
    CallSucceeded,
    PackageRedacted,
    RefreshRequested,
    SummaryRedacted,
)
from contextbus_protocol.outcomes import Conflicted

HOOKS: Any = ("prepare-step", "before-compile", "transform-context", "rewrite-query")


def second(bench: Bench, *names: Any) -> Effects:
    """A second step with hooks, up to its first question."""
    return bench.open(hooked(*names, after=bench.log.fold, command="c2", refresh=True))


def answered(bench: Bench, effects: Effects, text: str = "one", **more: Any) -> tuple[Effects, list[str]]:
    """Answer all questions of a step: what it does then, and the names of what was asked."""
    names: list[str] = []
    while asked(effects):
        (name,) = asked(effects)
        names.append(name)
        what: dict[str, Any] = {}
        if name == "transform-context":
            what = {"messages": (user(f"transformed {text}"),)}
        elif name in ("before-compile", "rewrite-query"):
            what = {"text": f"{name} {text}"}
        effects = bench.tell(answer(effects, **what | more))
    if queries(effects):
        effects = bench.tell(*(offer(q, candidate(2)) for q in queries(effects)))
    return effects, names


def conflict(bench: Bench, effects: Effects, *events: AnyEvent) -> Effects:
    """Another commit comes first."""
    bench.log.add(*events)
    return bench.read(bench.tell(Conflicted(run=RUN, token=sent(effects, Place).head.token, part="run")))


def first(bench: Bench, *, placed: bool = True) -> PackageRedacted:
    """A step with a block, which joins the history if it is placed; the forget of its record."""
    event = finish(bench, bench.open(step("How do we deploy?", DOCS)), candidate())
    if placed:
        bench.commit(bench.begin(report(0, command="done")))
    return PackageRedacted(
        step=0, package=event.package, replacement="sha256:" + "1" * 64, source="docs", record_id="r1", erasure=0
    )


@pytest.mark.rule("D.J.4", "D.W.4", "P.D.4")
def test_after_a_forget_all_is_asked_again_and_nothing_of_before_is_stored() -> None:
    bench = Bench()
    forget = first(bench)
    effects, names = answered(bench, second(bench, *HOOKS), "with the forgotten")
    assert names == list(HOOKS)
    effects = conflict(bench, effects, forget)
    effects, names = answered(bench, effects, "without")
    assert names == list(HOOKS)
    event = finish(bench, effects)
    stored = bench.log.blobs[event.package]
    assert b"forgotten" not in stored
    assert blobs.decode_output(stored).prepared == (user("transformed without"),)


@pytest.mark.rule("D.J.4", "D.W.4")
def test_after_a_forget_of_a_summary_too() -> None:
    bench = Bench()
    first(bench)
    effects, _ = answered(bench, second(bench, *HOOKS), "forgotten")
    event = SummaryRedacted(replaced_by="sha256:" + "2" * 64, source="docs", record_id="r1", erasure=0)
    effects, names = answered(bench, conflict(bench, effects, event), "kept")
    assert names == list(HOOKS)
    assert b"forgotten" not in bench.log.blobs[finish(bench, effects).package]


@pytest.mark.rule("P.D.4", "D.F.13", "D.W.4")
def test_a_block_that_joined_the_history_meanwhile_is_put_among_what_is_given() -> None:
    bench = Bench()
    first(bench, placed=False)
    effects, names = answered(bench, second(bench, *HOOKS))
    effects = conflict(bench, effects, CallSucceeded(step=0))
    effects, names = answered(bench, effects, "two")
    assert names == ["transform-context"]  # the others saw no block
    assert blobs.decode_output(bench.log.blobs[finish(bench, effects).package]).prepared == (user("transformed two"),)


@pytest.mark.rule("D.W.4", "D.R.0")
def test_where_history_and_blocks_stand_nothing_is_asked_again() -> None:
    bench = Bench()
    first(bench)
    effects, _ = answered(bench, second(bench, *HOOKS))
    effects = conflict(bench, effects, RefreshRequested())
    assert asked(effects) == []
    assert blobs.decode_output(bench.log.blobs[finish(bench, effects).package]).prepared == (user("transformed one"),)


@pytest.mark.rule("D.W.4")
def test_an_answer_to_the_question_before_is_none_to_the_one_asked_again() -> None:
    bench = Bench()
    first(bench, placed=False)
    effects = second(bench, "transform-context")
    old, before = answer(effects, messages=(user("old"),)), sent(effects, AskCallback, CLIENT)
    effects = bench.tell(old)
    effects = bench.tell(*(offer(q, candidate(2)) for q in queries(effects)))
    effects = conflict(bench, effects, CallSucceeded(step=0))
    again = sent(effects, AskCallback, CLIENT)
    assert again.history != before.history
    assert bench.tell(old) == ()
    event = finish(bench, bench.tell(answer(effects, messages=(user("new"),))))
    assert blobs.decode_output(bench.log.blobs[event.package]).prepared == (user("new"),)

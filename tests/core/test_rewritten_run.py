"""A host that rewrites its history between a step and its outcome: what is owed, what stays loaded."""

from __future__ import annotations

import pytest
from tests.core.logs import append, commit_to, compiled

from contextbus.core.candidates import order_offers
from contextbus.core.run_state import RunState
from contextbus_protocol import digests
from contextbus_protocol.events import (
    CallFailed,
    CallSucceeded,
    HistoryReplaced,
    MessageFact,
    MessagesAppended,
    PackageRedacted,
    RunStarted,
    SkillCall,
)
from contextbus_protocol.values import Candidate, EstimatorSpec, Scope, SourceResult, SourceStatus


def started(*texts: str) -> RunState:
    state = RunState("r")
    return commit_to(state, RunStarted(scope=Scope(user_id="ada"), estimator=EstimatorSpec()), append(state, *texts))


def facts(state: RunState, *messages: MessageFact) -> MessagesAppended:
    chain = state.history.chain
    for fact in messages:
        chain = digests.extend_chain(chain, fact.digest)
    return MessagesAppended(start=state.history.count, messages=messages, chain=chain, inputs="sha256:inputs")


def owed(state: RunState) -> list[tuple[str, str, bool]]:
    return [(o.entry.record_id, o.package, o.waits) for o in state.owed]


@pytest.mark.rule("D.F.13", "D.F.14", "D.H.5")
def test_a_report_that_rewrites_what_the_step_saw_owes_its_records() -> None:
    state = started("a", "b")
    state = commit_to(state, compiled(state, 0, "x"))
    cut = commit_to(state, HistoryReplaced(keep=1))
    for rest in ((), ("c", "d")):
        told = commit_to(cut, append(cut, *rest, role="assistant"), CallSucceeded(step=0))
        assert (len(told.blocks), told.placed) == (0, ())
        assert owed(told) == [("x", "sha256:package-0", False)]


@pytest.mark.rule("D.F.2")
def test_a_report_that_brings_the_same_messages_back_places_the_block() -> None:
    state = started("a", "b")
    state = commit_to(state, compiled(state, 0, "x"))
    cut = commit_to(state, HistoryReplaced(keep=1))
    told = commit_to(cut, append(cut, "b"), CallSucceeded(step=0))
    assert [b.position for b in told.blocks] == [2]
    assert owed(told) == []


@pytest.mark.rule("D.H.10", "D.J.6")
def test_what_found_no_room_waits_also_when_its_package_was_redacted_meanwhile() -> None:
    state = started("a")
    state = commit_to(state, compiled(state, 0, "x", "y"), CallSucceeded(step=0))
    state = commit_to(state, append(state, "b"), HistoryReplaced(keep=0))
    state = commit_to(state, append(state, "c"))
    state = commit_to(state, compiled(state, 1, retrieved=False))
    event = PackageRedacted(
        step=0, package="sha256:package-0", replacement="sha256:left", source="docs", record_id="x", erasure=9
    )
    state = commit_to(state, event)
    assert owed(state) == [("y", "sha256:left", False)]
    assert owed(commit_to(state, CallSucceeded(step=1))) == [("y", "sha256:left", True)]
    assert owed(commit_to(state, CallFailed(step=1, status="failed"))) == [("y", "sha256:left", False)]


def call(number: int, skill: str = "pdf") -> MessageFact:
    return MessageFact(f"sha256:call-{number}", 72, "assistant", skill_calls=(SkillCall(f"c{number}", skill),))


def result(number: int) -> MessageFact:
    return MessageFact(f"sha256:result-{number}", 72, "tool", succeeded=(f"c{number}",))


@pytest.mark.rule("D.K.26")
def test_a_skill_loaded_twice_stays_loaded_while_its_first_result_stands() -> None:
    state = started("a")
    state = commit_to(state, facts(state, call(1), result(1), call(2), result(2)))
    assert [(s.skill, s.position) for s in commit_to(state, HistoryReplaced(keep=4)).skills] == [("pdf", 2)]
    assert commit_to(state, HistoryReplaced(keep=2)).skills == ()


@pytest.mark.rule("D.K.26")
def test_a_result_that_the_host_rewrote_loads_its_skill_again() -> None:
    state = started("a")
    state = commit_to(state, facts(state, call(1), result(1), MessageFact("sha256:next", 72, "assistant")))
    cut = commit_to(state, HistoryReplaced(keep=2))
    assert cut.skills == ()
    again = commit_to(cut, facts(cut, MessageFact("sha256:shorter", 72, "tool", succeeded=("c1",))))
    assert [s.skill for s in again.skills] == ["pdf"]
    over = commit_to(cut, facts(cut, MessageFact("sha256:other", 72, "assistant"), result(1)))
    assert over.skills == ()


@pytest.mark.rule("D.K.26")
def test_every_call_is_closed_by_the_assistants_next_message() -> None:
    state, next_turn = started("a"), MessageFact("sha256:next", 72, "assistant")
    for number in (1, 2, 3):
        state = commit_to(state, facts(state, call(number), next_turn, result(number)))
        assert state.skills == ()
    assert [c.closed for c in state.skill_calls] == [2, 5, 8]


@pytest.mark.rule("D.G.21", "D.H.5")
def test_a_source_that_was_skipped_has_no_place_in_the_order() -> None:
    """Placement gets the answers alone: it must find the order that the decision was made in."""

    def answer(source: str, status: SourceStatus = SourceStatus.OK) -> SourceResult:
        text = f"text of {source}"
        found = Candidate(record_id="r", text=text, score=1.0, digest=digests.digest_text(text))
        return SourceResult(source, "rag", status, (found,) if status is SourceStatus.OK else ())

    skipped, asked, restored = answer("a", SourceStatus.SKIPPED), answer("b"), answer("a")
    decided = [o.source for o in order_offers((skipped, asked), (restored,))]
    assert decided == [o.source for o in order_offers((asked,), (restored,))]

"""The gather: all sources at once, one deadline, the first answer of each (D.G.21-D.G.31)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    DOCS,
    INBOX,
    NOTES,
    RUN,
    SCOPE,
    TICKETS,
    Bench,
    candidate,
    more,
    offer,
    only,
    options,
    queries,
    refusal,
    report,
    sent,
    step,
)

from contextbus.actors import gather
from contextbus.actors.effects import Effects, Scatter, Send, Timer
from contextbus.core.run import find_command
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError
from contextbus_protocol.events import SourceFact, StepCompiled, StepFailed
from contextbus_protocol.outcomes import Elapsed
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Query
from contextbus_protocol.values import (
    Candidate,
    ContextBudget,
    Model,
    RefreshOptions,
    Scope,
    Shares,
    SourceSpec,
    SourceStatus,
)


def failed(query: Query, code: str, **changes: Any) -> Failed:
    return Failed(run=RUN, token=query.token, source=query.source, code=code, **changes)


def start(*sources: SourceSpec, **changes: Any) -> tuple[Bench, dict[str, Query], Effects]:
    bench = Bench()
    effects = bench.open(step("How do we deploy?", options_=options(*sources, **changes)))
    return bench, {q.source: q for q in queries(effects)}, effects


def half(bench: Bench) -> Effects:
    flight = bench.state.flight
    assert flight is not None
    return bench.tell(Elapsed(run=RUN, token=gather.half_token(flight)))


def end(bench: Bench) -> Effects:
    flight = bench.state.flight
    assert flight is not None
    return bench.tell(Elapsed(run=RUN, token=gather.end_token(flight)))


@pytest.mark.rule("D.G.23", "D.G.25", "D.B.20")
def test_all_sources_are_asked_in_one_flush_with_scope_limit_share_query_and_time() -> None:
    bench, asked, effects = start(NOTES, DOCS, TICKETS)
    assert len([e for e in effects if isinstance(e, Scatter)]) == 1
    assert list(asked) == ["memory", "docs", "tickets"]
    assert {(q.reply_to, q.text, q.scope, q.limit) for q in asked.values()} == {
        (INBOX, "How do we deploy?", SCOPE, RefreshOptions().candidates_per_source)
    }
    assert asked["docs"].budget_tokens == asked["tickets"].budget_tokens > asked["memory"].budget_tokens > 0
    assert all(0 < q.seconds_left <= 10.0 for q in asked.values())
    seconds = [e.seconds for e in effects if isinstance(e, Timer)][1:]
    assert seconds == [4.0, 8.0]
    assert not bench.selection.idle


@pytest.mark.rule("D.G.23", "D.K.2")
def test_a_query_carries_the_pinned_scope() -> None:
    bench = Bench()
    bench.record(more("a", command="c0", scope=Scope(user_id="ada", chat_id="7")))
    effects = bench.open(step("Hello", DOCS, after=bench.log.fold))
    assert queries(effects)[0].scope == Scope(user_id="ada", chat_id="7")


@pytest.mark.rule("D.G.25")
def test_the_order_of_the_answers_does_not_change_the_outcome() -> None:
    places: list[Place] = []
    for order in (("memory", "docs", "tickets"), ("tickets", "memory", "docs")):
        bench, asked, _ = start(NOTES, DOCS, TICKETS)
        answers = {s: offer(asked[s], candidate(n), candidate(n + 3)) for n, s in enumerate(sorted(asked), 1)}
        for source in order[:-1]:
            assert bench.tell(answers[source]) == ()
        places.append(sent(bench.tell(answers[order[-1]]), Place))
    assert places[0] == places[1]


@pytest.mark.rule("D.G.25", "D.G.27")
def test_the_facts_of_a_failed_step_are_in_source_order_too() -> None:
    records: list[Record] = []
    for order in (("docs", "tickets"), ("tickets", "docs")):
        bench, asked, _ = start(DOCS, TICKETS)
        effects: Effects = ()
        for source in order:
            effects = bench.tell(failed(asked[source], "error"))
        records.append(sent(effects, Record))
    assert records[0] == records[1]


@pytest.mark.rule("D.G.26", "D.G.29")
@pytest.mark.parametrize("code", ["error", "malformed", "timeout", "absent"])
def test_an_optional_source_that_fails_is_a_fact_and_the_step_goes_on(code: str) -> None:
    bench, asked, _ = start(NOTES, DOCS)
    bench.tell(failed(asked["memory"], code, origin_code="E1", origin_type="OSError"))
    bench.commit(bench.tell(offer(asked["docs"], candidate())))
    compiled = only(bench.log.commits[0][2].events, StepCompiled)
    assert compiled.sources[0] == SourceFact(
        source="memory",
        kind="memory",
        status=SourceStatus.FAILED,
        error=code,
        origin_code="E1",
        origin_type="OSError",
    )
    assert (compiled.fallback, compiled.pass_) == ("source-failed", 1)


@pytest.mark.rule("D.G.27", "D.W.2", "D.G.29")
def test_a_required_source_that_fails_fails_the_step_and_spends_nothing() -> None:
    bench, asked, _ = start(DOCS, TICKETS)
    bench.tell(offer(asked["docs"], candidate()))
    effects = bench.tell(failed(asked["tickets"], "error", origin_code="E1", origin_type="OSError"))
    answers = bench.commit(effects)
    failure = only(bench.log.commits[0][2].events, StepFailed)
    assert (failure.code, failure.origin, failure.origin_code, failure.origin_type) == (
        "source_failed",
        "tickets",
        "E1",
        "OSError",
    )
    assert [f.status for f in failure.sources] == [SourceStatus.OK, SourceStatus.FAILED]
    reply = sent(answers, ErrorReply)
    assert (reply.code, reply.data.origin, reply.data.origin_code) == ("source_failed", "tickets", "E1")
    fold = bench.log.fold
    assert (fold.passes, fold.history.count, fold.last, find_command(fold, "c1")) == (0, 0, None, None)
    again = bench.open(step("How do we deploy?", DOCS, TICKETS, attempt=2))
    assert len(queries(again)) == 2, "the refresh stays due and the command open"
    assert bench.selection.state.flight.prepared.plan.refresh.reason == "initial"


@pytest.mark.rule("D.G.27")
def test_without_a_code_of_its_own_the_kind_of_failure_is_the_origin_code() -> None:
    bench, asked, _ = start(TICKETS)
    assert asked
    answers = bench.commit(end(bench))
    assert sent(answers, ErrorReply).data.origin_code == "timeout"


@pytest.mark.rule("D.B.15")
def test_mandatory_content_that_does_not_fit_is_a_failed_step() -> None:
    bench, asked, _ = start(DOCS, model=Model("anthropic", "claude-opus-4-6", 400, 100))
    answers = bench.commit(bench.tell(offer(asked["docs"], candidate(1, 900, mandatory=True))))
    failure = only(bench.log.commits[0][2].events, StepFailed)
    assert failure.code == "context_budget_exceeded"
    assert failure.required_tokens is not None
    assert failure.available_tokens is not None
    assert failure.required_tokens > failure.available_tokens
    reply = sent(answers, ErrorReply)
    assert (reply.code, reply.data.required_tokens) == ("context_budget_exceeded", failure.required_tokens)
    assert bench.log.fold.history.count == 0


# -- time


@pytest.mark.rule("D.G.25")
def test_missing_answers_are_timeouts() -> None:
    bench, asked, _ = start(NOTES, DOCS)
    bench.tell(offer(asked["docs"], candidate()))
    place = sent(end(bench), Place)
    assert [(r.source, r.status, r.error) for r in place.results] == [
        ("memory", SourceStatus.FAILED, "timeout"),
        ("docs", SourceStatus.OK, None),
    ]
    assert set(bench.selection.timers) == {"c1#deadline"}


@pytest.mark.rule("D.G.23")
def test_at_half_the_time_what_has_not_answered_is_asked_once_more_with_the_same_query() -> None:
    bench, asked, _ = start(NOTES, DOCS)
    bench.tell(offer(asked["docs"], candidate()))
    assert queries(half(bench)) == (asked["memory"],)
    place = sent(bench.tell(offer(asked["memory"], candidate(2))), Place)
    assert [len(r.candidates) for r in place.results] == [1, 1]


def test_timers_that_go_off_after_the_gather_change_nothing() -> None:
    bench, asked, _ = start(DOCS)
    bench.tell(offer(asked["docs"], candidate()))
    before = bench.state
    assert half(bench) == ()
    assert end(bench) == ()
    assert bench.state == before


# -- no room


def test_a_busy_source_is_asked_again_at_once_and_once() -> None:
    bench, asked, _ = start(DOCS)
    query = asked["docs"]
    assert queries(bench.tell(failed(query, "busy"))) == (query,)
    place = sent(bench.tell(failed(query, "busy")), Place)
    assert place.results[0].error == "busy"


def test_a_busy_source_that_answers_the_second_time_has_answered() -> None:
    bench, asked, _ = start(DOCS)
    bench.tell(failed(asked["docs"], "busy"))
    assert sent(bench.tell(offer(asked["docs"], candidate())), Place).results[0].status is SourceStatus.OK


@pytest.mark.parametrize("codes", [("busy", "busy"), ("absent",), ("busy", "absent")])
def test_no_room_for_the_second_query_does_not_end_the_first(codes: tuple[str, ...]) -> None:
    bench, asked, _ = start(DOCS)
    query = asked["docs"]
    half(bench)
    for code in codes:
        assert not any(isinstance(e, Send) for e in bench.tell(failed(query, code)))
    place = sent(bench.tell(offer(query, candidate())), Place)
    assert place.results[0].status is SourceStatus.OK


def test_when_nobody_took_any_query_the_source_has_failed() -> None:
    bench, asked, _ = start(DOCS)
    half(bench)
    bench.tell(failed(asked["docs"], "absent"))
    assert sent(bench.tell(failed(asked["docs"], "absent")), Place).results[0].error == "absent"


def test_an_absent_source_is_a_fact_at_once() -> None:
    bench, asked, _ = start(DOCS)
    assert sent(bench.tell(failed(asked["docs"], "absent")), Place).results[0].error == "absent"


def test_the_first_answer_of_a_source_counts() -> None:
    bench, asked, _ = start(NOTES, DOCS)
    bench.tell(offer(asked["docs"], candidate(1)))
    for late in (offer(asked["docs"], candidate(2)), failed(asked["docs"], "error"), failed(asked["docs"], "busy")):
        assert bench.tell(late) == ()
    place = sent(bench.tell(offer(asked["memory"])), Place)
    assert [c.record_id for c in place.results[1].candidates] == ["r1"]


@pytest.mark.parametrize("code", ["busy", "error"])
def test_a_source_that_was_not_asked_is_not_heard(code: str) -> None:
    bench, asked, _ = start(DOCS)
    before = bench.state
    stranger = msgspec.structs.replace(asked["docs"], source="stranger")
    assert bench.tell(failed(stranger, code), offer(stranger, candidate())) == ()
    assert bench.state == before


# -- what is offered


@pytest.mark.rule("D.K.27", "D.K.19")
@pytest.mark.parametrize(
    ("candidates", "status"),
    [
        ((), SourceStatus.OK),
        ((candidate(),), SourceStatus.OK),
        ((candidate(), candidate(2, digest="sha256:" + "0" * 64)), SourceStatus.FAILED),
        ((candidate(score=float("nan")),), SourceStatus.FAILED),
        ((candidate(record_id=""),), SourceStatus.FAILED),
        ((candidate(revision=-1),), SourceStatus.FAILED),
    ],
)
def test_one_malformed_candidate_fails_the_whole_answer(
    candidates: tuple[Candidate, ...], status: SourceStatus
) -> None:
    bench, asked, _ = start(DOCS)
    result = sent(bench.tell(offer(asked["docs"], *candidates)), Place).results[0]
    assert result.status is status
    assert result.error == (None if status is SourceStatus.OK else "malformed")


def test_an_answer_is_cut_to_the_limit_and_the_cut_counted() -> None:
    bench, asked, _ = start(DOCS, refresh=RefreshOptions(candidates_per_source=2))
    bench.commit(bench.tell(offer(asked["docs"], *(candidate(n) for n in range(1, 6)))))
    fact = only(bench.log.commits[0][2].events, StepCompiled).sources[0]
    assert (fact.offered, fact.truncated) == (5, 3)


@pytest.mark.rule("D.G.21", "D.G.22")
def test_an_empty_query_asks_nobody_and_the_refresh_stays_due() -> None:
    bench = Bench()
    effects = bench.open(step("  \n", DOCS))
    assert not queries(effects)
    place = sent(effects, Place)
    assert (place.decision.manifest.refresh, place.decision.manifest.pass_) == ("initial", 0)
    assert [s.status for s in place.decision.manifest.sources] == [SourceStatus.SKIPPED]
    bench.commit(effects)
    assert queries(bench.open(step("Now", DOCS, command="c2", after=bench.log.fold)))


@pytest.mark.rule("D.G.13", "D.G.14", "D.G.31")
def test_nothing_due_asks_nobody() -> None:
    bench = Bench()
    bench.compile(step("Hello", DOCS), candidate())
    bench.record(report(0, command="r"))
    effects = bench.open(step("More", DOCS, command="c2", after=bench.log.fold))
    assert not queries(effects)
    assert sent(effects, Place).decision.manifest.refresh == "reused"


# -- what a step may ask for


@pytest.mark.rule("D.G.4", "D.B.19", "D.W.6")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sources": (DOCS, DOCS)}, "invalid_type"),
        ({"sources": (SourceSpec("", "rag"),)}, "invalid_type"),
        ({"sources": (SourceSpec("x" * 200, "rag"),)}, "invalid_type"),
        ({"sources": (SourceSpec("working-memory", "rag"),)}, "invalid_type"),
        ({"refresh": RefreshOptions(candidates_per_source=10_001)}, "invalid_request"),
        ({"refresh": RefreshOptions(candidates_per_source=-1)}, "invalid_type"),
        ({"refresh": RefreshOptions(min_steps=-1)}, "invalid_type"),
        ({"refresh": RefreshOptions(max_passes=-1)}, "invalid_type"),
        ({"overhead_tokens": -1}, "invalid_type"),
        ({"budget": ContextBudget(ratio=float("nan"))}, "invalid_type"),
        ({"budget": ContextBudget(shares=Shares(0, 0, 0, 0))}, "invalid_type"),
        ({"budget": ContextBudget(max_tokens=-1)}, "invalid_type"),
        ({"model": Model("p", "m", -1, 0)}, "invalid_type"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_anybody_is_asked(changes: dict[str, Any], code: str) -> None:
    bench = Bench()
    effects = bench.open(step("Hello", options_=options(**({"sources": (DOCS,)} | changes))))
    assert not queries(effects)
    assert refusal(effects) == code
    assert bench.selection.idle


def test_a_step_has_no_negative_number() -> None:
    assert refusal(Bench().open(step("Hello", number=-1))) == "invalid_type"


@pytest.mark.rule("D.G.4")
def test_check_sources_names_what_is_wrong() -> None:
    gather.check_sources(options(DOCS, NOTES))
    with pytest.raises(InvalidTypeError, match="two sources have the id 'docs'"):
        gather.check_sources(options(DOCS, NOTES, DOCS))
    with pytest.raises(InvalidRequestError, match="10000"):
        gather.check_sources(options(DOCS, NOTES, refresh=RefreshOptions(candidates_per_source=5_001)))


def test_a_working_memory_that_cannot_be_read_fails_the_step() -> None:
    bench = Bench()
    effects = bench.tell(step("Hello", DOCS))
    assert refusal(bench.tell(ItemsOffered(run=RUN, token=sent(effects, AskItems).token, code="busy"))) == "busy"


@pytest.mark.rule("D.G.25", "D.G.26")
@pytest.mark.parametrize("turned", [False, True])
def test_what_a_step_cannot_store_fails_the_sources_that_come_last_in_its_list(turned: bool) -> None:
    names = [f"s{number}" for number in range(5)]
    bench, asked, _ = start(*(SourceSpec(name, "rag") for name in names))
    text = "\u0001" * (gather.LARGEST_OFFERS // 6 // 4)  # six bytes each in JSON
    effects: Effects = ()
    for name in reversed(names) if turned else names:
        effects = bench.tell(offer(asked[name], candidate(text=text, digest=digest_text(text))))
    results = only([e.message for e in effects if isinstance(e, Send)], Place).results
    assert [r.source for r in results if r.status is SourceStatus.OK] == names[:3]
    assert {(r.error, r.origin_code, r.candidates) for r in results[3:]} == {("error", "payload_too_large", ())}

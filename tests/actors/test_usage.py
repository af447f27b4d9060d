"""What sources charged to a run, as selection has it committed: once for each query, whatever happens (D.L.6)."""

from __future__ import annotations

import msgspec
import pytest
from tests.actors.bench import DOCS, RUN, TICKETS, Bench, candidate, offer, queries, sent, step

from contextbus.actors.effects import Effects, Timer
from contextbus_protocol.commit_requests import Place
from contextbus_protocol.events import PackageRedacted, RefreshRequested, StepCompiled, StepFailed, UsageFact
from contextbus_protocol.outcomes import Conflicted, Elapsed
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import SourceUsage

SPENT = (SourceUsage("small", 7, reported=True),)


def paid(query: Query, *usage: SourceUsage) -> Offered:
    """The answer to a query with what it cost."""
    return msgspec.structs.replace(offer(query, candidate()), usage=usage or SPENT)


def recorded(bench: Bench) -> list[UsageFact]:
    """What the log says was spent."""
    events = [e for _, _, commit in bench.log.commits for e in commit.events]
    return [u for e in events if isinstance(e, StepCompiled | StepFailed) for u in e.usage]


def half(effects: Effects) -> Elapsed:
    """The timer at half the time of a gather, over."""
    (timer,) = [e for e in effects if isinstance(e, Timer) and e.token.endswith("#half")]
    return Elapsed(run=RUN, token=timer.token)


@pytest.mark.rule("D.L.6", "D.L.1")
def test_a_source_that_is_asked_twice_is_recorded_once() -> None:
    bench = Bench()
    effects = bench.open(step("How?", DOCS))
    (query,) = queries(effects)
    again = bench.tell(half(effects))
    (repeated,) = queries(again)
    assert repeated.accounting == query.accounting
    effects = bench.tell(paid(query), paid(repeated))
    bench.commit(effects)
    assert query.accounting is not None
    assert recorded(bench) == [UsageFact(query.accounting.request_id, "docs", "small", 7, reported=True)]


@pytest.mark.rule("D.L.6")
def test_each_source_and_each_attempt_has_an_id_of_its_own() -> None:
    ids: list[str] = []
    for attempt in (1, 2):
        for query in queries(Bench().open(step("How?", DOCS, TICKETS, attempt=attempt))):
            assert query.accounting is not None
            assert query.accounting.run == RUN
            ids.append(query.accounting.request_id)
    assert len(set(ids)) == 4


@pytest.mark.rule("D.L.6")
def test_a_step_that_is_decided_again_is_recorded_once() -> None:
    bench = Bench()
    effects = bench.tell(*map(paid, queries(bench.open(step("How?", DOCS)))))
    token = sent(effects, Place).head.token
    bench.log.add(RefreshRequested())
    effects = bench.read(bench.tell(Conflicted(run=RUN, token=token, part="run")))
    assert queries(effects) == ()
    bench.commit(effects)
    assert len(recorded(bench)) == 1


@pytest.mark.rule("D.L.6")
def test_what_was_spent_on_answers_that_a_forget_made_void_is_recorded_too() -> None:
    bench = Bench()
    first = bench.compile(step("How?", DOCS), candidate())
    assert isinstance(first, StepCompiled)
    effects = bench.open(step("And?", DOCS, after=bench.log.fold, command="c2", refresh=True))
    (query,) = queries(effects)
    effects = bench.tell(paid(query))
    token = sent(effects, Place).head.token
    bench.log.add(
        PackageRedacted(step=0, package=first.package, replacement="sha256:x", source="docs", record_id="r1", erasure=5)
    )
    effects = bench.read(bench.tell(Conflicted(run=RUN, token=token, part="run")))
    (second,) = queries(effects)
    assert second.accounting is not None
    assert query.accounting is not None
    effects = bench.tell(paid(second, SourceUsage("small", 9)))
    bench.commit(effects)
    assert [(u.request_id, u.tokens) for u in recorded(bench)] == [
        (query.accounting.request_id, 7),
        (second.accounting.request_id, 9),
    ]
    assert query.accounting != second.accounting


@pytest.mark.rule("D.L.6", "D.L.3")
def test_a_failed_step_records_usage_and_its_warning_waits_for_the_next_package() -> None:
    bench = Bench()
    docs, tickets = queries(bench.open(step("How?", DOCS, TICKETS)))
    effects = bench.tell(paid(docs, SourceUsage("small", 3)))
    failed = Failed(run=RUN, token=tickets.token, source="tickets", code="error", usage=SPENT)
    bench.commit(bench.tell(failed))
    assert effects == ()
    assert [(u.source, u.tokens, u.reported) for u in recorded(bench)] == [
        ("docs", 3, False),
        ("tickets", 7, True),
    ]
    told: list[tuple[str, ...]] = []
    for number in range(2):
        command = step("How?", after=bench.log.fold, command=f"c{number + 2}")
        effects = bench.open(command)
        bench.commit(effects)
        told += [e.warnings for e in bench.log.commits[-1][2].events if isinstance(e, StepCompiled)]
    assert told == [("unaccounted-usage",), ()]


@pytest.mark.rule("D.L.3")
def test_reported_usage_warns_of_nothing() -> None:
    bench = Bench()
    bench.commit(bench.tell(*map(paid, queries(bench.open(step("How?", DOCS))))))
    (event,) = [e for e in bench.log.commits[-1][2].events if isinstance(e, StepCompiled)]
    assert (event.warnings, [u.reported for u in event.usage]) == ((), [True])


@pytest.mark.rule("D.L.3", "D.K.27")
def test_a_malformed_answer_is_paid_for() -> None:
    bench = Bench()
    (query,) = queries(bench.open(step("How?", DOCS)))
    wrong = msgspec.structs.replace(paid(query), candidates=(candidate(digest="sha256:wrong"),))
    bench.commit(bench.tell(wrong))
    (event,) = [e for e in bench.log.commits[-1][2].events if isinstance(e, StepCompiled)]
    assert ([s.error for s in event.sources], len(event.usage)) == (["malformed"], 1)

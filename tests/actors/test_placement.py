"""Placement: renders, stores, commits; tells selection, then the client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    CLIENT,
    DOCS,
    INBOX,
    RUN,
    Actor,
    Bench,
    Log,
    ask_refresh,
    candidate,
    more,
    offer,
    only,
    options,
    queries,
    report,
    sent,
    step,
)

from contextbus.actors import gather
from contextbus.actors.effects import Effects, Fetch, Load, Send, Store
from contextbus.actors.placement import Placement
from contextbus.actors.step_event import LARGEST_FACTS
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import verify_run
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.commands import Recorded
from contextbus_protocol.commands import StepCompiled as StepAnswer
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.events import MessagesAppended, RefreshRequested, RunStarted, StepCompiled
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Unstored
from contextbus_protocol.values import EstimatorSpec, RefreshOptions


def placed(*sources: Any, count: int = 3, **changes: Any) -> Place:
    """A step that selection decided."""
    bench = Bench()
    command = step("Hello", *sources, **changes)
    effects = bench.open(command)
    if queries(effects):
        effects = bench.tell(*(offer(q, *(candidate(n) for n in range(1, count + 1))) for q in queries(effects)))
    return sent(effects, Place)


def recorded(**changes: Any) -> Record:
    return sent(Bench().begin(more("a", **changes)), Record)


def verify(log: Log) -> list[str]:
    commits = tuple(LoggedCommit(*c) for c in log.commits)
    return [c.status for c in verify_run(RunLog(RUN, commits), log.blobs.get).checks]


def test_a_step_is_one_commit_with_its_blobs_and_two_answers_in_order() -> None:
    actor, log = Actor(Placement(durability="fsync")), Log()
    place = placed(DOCS)
    store = only(actor.tell(place), Store)
    assert (store.expected, store.token) == (0, place.head.token)
    assert [type(e) for e in store.commit.events] == [RunStarted, MessagesAppended, StepCompiled]
    assert all(digest == digests.digest_bytes(data) for digest, data in store.blobs)
    assert len(store.blobs) == 2
    assert actor.state.jobs
    effects = actor.tell(log.store(store))
    assert [e.to for e in effects if isinstance(e, Send)] == [INBOX, CLIENT]
    answer = sent(effects, StepAnswer)
    event = only(log.commits[0][2].events, StepCompiled)
    assert answer.package == bytes(blobs.decode_output(log.blobs[event.package]).package).decode()
    assert (answer.sequence, answer.commit) == log.last
    assert (answer.step, answer.count, answer.reference, answer.durability) == (0, 1, event.package, "fsync")
    assert not answer.stored
    assert actor.idle
    assert verify(log) == ["same"]


def test_a_client_that_asked_in_json_is_answered_in_json() -> None:
    actor, log = Actor(Placement()), Log()
    record = recorded()
    record = msgspec.structs.replace(record, head=msgspec.structs.replace(record.head, reply_as="json"))
    effects = actor.tell(log.store(only(actor.tell(record), Store)))
    assert [e.encoding for e in effects if isinstance(e, Send) and e.to == CLIENT] == ["json"]


def test_the_same_request_again_while_its_commit_is_under_way_changes_nothing() -> None:
    actor = Actor(Placement())
    place = placed()
    actor.tell(place)
    before = actor.state
    assert actor.tell(place) == ()
    assert actor.state == before


@pytest.mark.parametrize(
    "outcome",
    [
        Conflicted(run=RUN, token="", part="run"),
        Unstored(run=RUN, token="", part="run", code="limit", message="text"),
    ],
)
def test_what_came_of_it_goes_to_selection_alone(outcome: Conflicted | Unstored) -> None:
    actor = Actor(Placement())
    store = only(actor.tell(placed()), Store)
    message = msgspec.structs.replace(outcome, token=store.token)
    assert actor.tell(message) == (Send(INBOX, message),)
    assert actor.idle
    assert actor.tell(message) == ()


@pytest.mark.parametrize(
    "message",
    [
        Fetched(run=RUN, token="x"),
        Conflicted(run=RUN, token="x", part="run"),
        Unstored(run=RUN, token="x", part="run", code="limit"),
        Log().add(RefreshRequested()),
        ask_refresh(),
    ],
)
def test_what_nobody_asked_for_changes_nothing(message: AnyMessage) -> None:
    actor = Actor(Placement())
    actor.tell(placed())
    before = actor.state
    assert actor.tell(message) == ()
    assert actor.state == before


# -- another attempt was first


def other_attempt() -> tuple[Actor, Store, Log]:
    """Two attempts of one command with different offers; the second is stored."""
    actor, log = Actor(Placement()), Log()
    store = only(actor.tell(placed(DOCS, count=3)), Store)
    log.store(only(Actor(Placement()).tell(placed(DOCS, count=5, attempt=2)), Store))
    return actor, store, log


def committed(store: Store, log: Log) -> Committed:
    sequence, digest, commit = log.commits[-1]
    return Committed(run=RUN, token=store.token, part="run", sequence=sequence, digest=digest, commit=commit)


def test_a_step_whose_other_attempt_was_stored_is_read_from_the_log() -> None:
    actor, store, log = other_attempt()
    conflicted = Conflicted(run=RUN, token=store.token, part="run")
    assert actor.tell(committed(store, log)) == (Send(INBOX, conflicted),)
    assert actor.idle


@pytest.mark.rule("D.W.4")
def test_the_answer_of_another_attempt_is_what_its_commit_says() -> None:
    """Not what the host's hook changed for this attempt."""
    bench, other = Bench(), Bench()
    asked = msgspec.structs.replace(step("Hello"), callbacks=("prepare-step",))
    effects = bench.open(asked)
    effects = bench.tell(callback(effects, overhead_tokens=7))
    store = only(bench.place(effects), Store)
    other.log = bench.log
    again = other.open(msgspec.structs.replace(asked, attempt=2))
    other.commit(other.tell(callback(again, overhead_tokens=9)))
    conflicted = sent(bench.placement.tell(committed(store, bench.log)), Conflicted, INBOX)
    fetch = only(bench.tell(bench.log.load(only(bench.tell(conflicted), Load))), Fetch)
    found = tuple((d, bench.log.blobs[d]) for d in fetch.digests)
    answer = sent(bench.tell(Fetched(run=RUN, token=fetch.token, blobs=found)), StepAnswer, CLIENT)
    assert answer.options is not None
    assert (answer.stored, answer.options.overhead_tokens) == (True, 9)
    assert bench.placement.idle


def callback(effects: Effects, **changes: Any) -> CallbackAnswered:
    ask = sent(effects, AskCallback, CLIENT)
    return CallbackAnswered(run=RUN, token=ask.token, name=ask.name, **changes)


def test_a_failed_step_whose_other_attempt_was_stored_answers_with_the_package() -> None:
    bench = Bench()
    asked = step("Hello", DOCS, options_=options(msgspec.structs.replace(DOCS, required=True)))
    bench.open(asked)
    assert bench.state.flight is not None
    effects = bench.tell(Elapsed(run=RUN, token=gather.end_token(bench.state.flight)))
    store = only(bench.place(effects), Store)
    Bench(bench.log).compile(msgspec.structs.replace(asked, attempt=2))
    conflicted = sent(bench.placement.tell(committed(store, bench.log)), Conflicted, INBOX)
    fetch = only(bench.tell(bench.log.load(only(bench.tell(conflicted), Load))), Fetch)
    found = ((fetch.digests[0], bench.log.blobs[fetch.digests[0]]),)
    assert sent(bench.tell(Fetched(run=RUN, token=fetch.token, blobs=found)), StepAnswer, CLIENT).step == 0


def test_a_record_whose_other_attempt_was_stored_elsewhere_is_read_from_the_log() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    store = only(bench.place(bench.begin(ask_refresh())), Store)
    other = Bench(bench.log)
    other.record(more("b", command="c2", after=bench.log.fold))
    other.record(ask_refresh(attempt=2))
    effects = bench.placement.tell(committed(store, bench.log))
    assert bench.placement.idle
    conflicted = sent(effects, Conflicted, INBOX)
    assert len(effects) == 1
    answer = sent(bench.tell(bench.log.load(only(bench.tell(conflicted), Load))), Recorded, CLIENT)
    assert (answer.sequence, answer.count) == (bench.log.last[0], 2)


# -- what cannot be rendered


def test_a_request_without_events_is_refused_to_selection() -> None:
    actor = Actor(Placement())
    record = msgspec.structs.replace(recorded(), history=None)
    assert sent(actor.tell(record), Unstored, INBOX).code == "invalid_type"
    assert actor.idle


def test_a_counter_that_is_not_at_hand_is_refused_to_selection() -> None:
    actor = Actor(Placement())
    place = placed()
    estimator = EstimatorSpec(kind="tokenizer", name="absent")
    place = msgspec.structs.replace(place, options=msgspec.structs.replace(place.options, estimator=estimator))
    assert sent(actor.tell(place), Unstored, INBOX).code == "invalid_request"


# -- many candidates


def test_facts_beyond_128_kib_go_to_a_blob_and_verify_stays_clean() -> None:
    count = 2_000
    many = options(DOCS, refresh=RefreshOptions(candidates_per_source=count))
    place = placed(options_=many, count=count)
    actor, log = Actor(Placement()), Log()
    store = only(actor.tell(place), Store)
    log.store(store)
    event = only(log.commits[0][2].events, StepCompiled)
    assert event.facts is not None
    facts = blobs.decode_facts(log.blobs[event.facts]).entries
    assert len(facts) == count
    assert event.entries == tuple(f for f in facts if f.selected) != ()
    assert len(codec.encode_commit(store.commit)) < LARGEST_FACTS
    assert b"word" not in log.blobs[event.facts]
    assert verify(log) == ["same"]
    bench = Bench(log)
    bench.record(report(0, command="r"))
    assert len(bench.log.fold.placed) == len(event.entries)


def test_few_facts_stand_in_the_commit() -> None:
    event = only(only(Actor(Placement()).tell(placed(DOCS)), Store).commit.events, StepCompiled)
    assert (event.facts, len(event.entries)) == (None, 3)


@pytest.mark.rule("D.D.25")
def test_a_query_is_its_digest_in_the_commit_and_text_in_the_package() -> None:
    store = only(Actor(Placement()).tell(placed(DOCS)), Store)
    event = only(store.commit.events, StepCompiled)
    assert (event.query_digest, event.query_length) == (digests.digest_text("Hello"), 5)
    assert b"Hello" not in codec.encode_commit(store.commit)
    assert b'"query":"Hello"' in dict(store.blobs)[event.package]

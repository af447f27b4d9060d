"""Selection: one command after the other, each once, and never longer than its time (design: section 3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import (
    CLIENT,
    DOCS,
    INBOX,
    RUN,
    SCOPE,
    TENANT,
    Actor,
    Bench,
    Log,
    ask_refresh,
    candidate,
    more,
    nothing_in_memory,
    offer,
    only,
    queries,
    refusal,
    report,
    sent,
    step,
)

from contextbus.actors.effects import Effects, Fetch, Load, Scatter, Send, Store, Timer
from contextbus.actors.queueing import LONGEST_QUEUE
from contextbus.actors.selection import CONFLICTS, Selection
from contextbus.core.recent import REMEMBERED_COMMANDS
from contextbus.core.run import find_command
from contextbus.core.working_memory import create_working_memory
from contextbus_protocol import codec
from contextbus_protocol.commands import CancelCommand, ErrorReply, Recorded, StepCompiled
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.events import (
    RefreshRequested,
    RunStarted,
    UnknownEvent,
)
from contextbus_protocol.events import (
    StepCompiled as StepCompiledEvent,
)
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import AskItems, ItemsOffered
from contextbus_protocol.values import EstimatorSpec


def conflicted(bench: Bench) -> Conflicted:
    assert bench.state.flight is not None
    return Conflicted(run=RUN, token=bench.state.flight.token, part="run")


def elapsed(command: str) -> Elapsed:
    return Elapsed(run=RUN, token=command + "#deadline")


def stored(bench: Bench, effects: Any) -> StepCompiled:
    """Answer the fetch of a stored package; what the client gets."""
    fetch = only(effects, Fetch)
    blobs = tuple((d, bench.log.blobs[d]) for d in fetch.digests if d in bench.log.blobs)
    return sent(bench.tell(Fetched(run=RUN, token=fetch.token, blobs=blobs)), StepCompiled, CLIENT)


def test_a_step_goes_from_the_log_over_memory_and_sources_to_placement() -> None:
    bench = Bench()
    effects = bench.tell(step("Hello", DOCS))
    assert [type(e) for e in effects] == [Timer, Load, Send]
    asked = sent(effects, AskItems)
    assert (asked.reply_to, asked.load) == (INBOX, False)
    assert bench.tell(bench.log.load(only(effects, Load))) == ()
    effects = bench.tell(nothing_in_memory(effects))
    effects = bench.tell(offer(queries(effects)[0], candidate()))
    place = sent(effects, Place)
    assert (place.head.expected, place.head.previous, place.decision.manifest.step) == (0, "", 0)
    answers = bench.commit(effects)
    assert sent(answers, StepCompiled, CLIENT).sequence == bench.log.last[0]
    assert bench.selection.idle
    assert bench.placement.idle
    assert bench.state.fold == bench.log.fold


def test_memory_may_answer_before_the_log_does() -> None:
    bench = Bench()
    effects = bench.tell(step("Hello", DOCS))
    assert bench.tell(nothing_in_memory(effects)) == ()
    assert queries(bench.tell(bench.log.load(only(effects, Load))))


@pytest.mark.parametrize(("seen", "attempt", "loads"), [(0, 1, 0), (3, 1, 0), (4, 1, 1), (0, 2, 1)])
def test_the_tail_is_read_for_what_a_client_has_seen_and_for_every_later_attempt(
    seen: int, attempt: int, loads: int
) -> None:
    bench = Bench()
    bench.record(more("a"))
    effects = bench.tell(step("x", command="c2", seen=seen, attempt=attempt, after=bench.log.fold))
    assert sum(isinstance(e, Load) for e in effects) == loads
    assert sent(effects, AskItems).load == (attempt > 1)


# -- the same command again


def test_a_retry_with_the_same_body_gets_the_stored_package() -> None:
    bench = Bench(durability="fsync")
    command = step("Hello", DOCS)
    first = bench.open(command)
    answers = bench.commit(bench.tell(offer(queries(first)[0], candidate())))
    again = bench.open(msgspec.structs.replace(command, attempt=2))
    answer = stored(bench, again)
    assert answer == msgspec.structs.replace(sent(answers, StepCompiled, CLIENT), stored=True)
    assert answer.durability == "fsync"
    assert not any(isinstance(e, Scatter) for e in again)
    assert len(bench.log.commits) == 1


def test_a_retry_is_known_at_an_instance_that_never_saw_the_command() -> None:
    bench = Bench()
    command = step("Hello")
    bench.compile(command)
    other = Bench(bench.log)
    assert stored(other, other.open(msgspec.structs.replace(command, attempt=2))).sequence == bench.log.last[0]


def test_a_record_again_is_answered_from_the_table() -> None:
    bench = Bench()
    bench.record(more("a"))
    bench.record(ask_refresh(command="c2"))
    answer = sent(bench.begin(msgspec.structs.replace(more("a"), attempt=2)), Recorded, CLIENT)
    assert (answer.sequence, answer.count) == (3, 1)
    assert len(bench.log.commits) == 2


@pytest.mark.parametrize(
    "other",
    [step("Other"), more("a"), ask_refresh(), report(1)],
    ids=["step", "append", "refresh", "report"],
)
def test_the_same_id_for_something_else_is_refused(other: Any) -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    assert refusal(bench.begin(other)) == "command_mismatch"
    assert len(bench.log.commits) == 1


@pytest.mark.parametrize("behind", [False, True], ids=["in flight", "waiting"])
def test_the_same_id_for_something_else_is_refused_while_the_first_is_here(behind: bool) -> None:
    bench = Bench()
    if behind:
        bench.tell(ask_refresh(command="c0"))
    bench.tell(step("Hello"))
    before = bench.state
    effects = bench.tell(step("Other", attempt=2, to=CLIENT + ".other"))
    assert refusal(effects, CLIENT + ".other") == "command_mismatch"
    assert bench.state == before


def test_a_retry_of_what_is_here_changes_where_it_is_answered_and_keeps_its_turn() -> None:
    bench = Bench()
    bench.tell(ask_refresh(command="c0"), more("a", command="c1"), more("b", command="c2"))
    effects = bench.tell(more("a", command="c1", attempt=2, to=CLIENT + ".2"))
    assert [c.command for c in bench.state.waiting] == ["c1", "c2"]
    assert bench.state.waiting[0].reply_to == CLIENT + ".2"
    assert [type(e) for e in effects] == [Timer]
    assert bench.tell(more("a", command="c1", attempt=1)) == ()
    bench.tell(ask_refresh(command="c0", attempt=3, to=CLIENT + ".3"))
    assert bench.state.flight is not None
    assert bench.state.flight.command.reply_to == CLIENT + ".3"


def test_older_than_the_table_the_step_number_decides() -> None:
    bench = Bench()
    command = step("Hello", number=1)
    bench.compile(command)
    for number in range(2 * REMEMBERED_COMMANDS):
        bench.record(ask_refresh(command=f"r{number}"))
    assert find_command(bench.state.fold, "c1") is None
    bench.compile(step("Next", command="later", number=2, after=bench.log.fold))
    assert refusal(bench.open(msgspec.structs.replace(command, attempt=2))) == "stale_step"


# -- reopened steps


@pytest.mark.rule("D.R.7", "D.G.3")
def test_the_same_messages_without_an_outcome_are_the_step_reopened() -> None:
    bench = Bench()
    first = bench.compile(step("Hello", DOCS), candidate())
    effects = bench.open(step("Hello", DOCS, command="c2", after=bench.log.fold, add=False))
    assert not queries(effects)
    answer = stored(bench, effects)
    assert (answer.step, answer.stored, answer.command) == (first.step, True, "c2")
    assert len(bench.log.commits) == 1


@pytest.mark.rule("D.R.7", "D.R.8", "D.G.5")
@pytest.mark.parametrize("why", ["asked with the step", "asked before", "other messages", "outcome known"])
def test_anything_else_is_the_next_step(why: str) -> None:
    bench = Bench()
    first = bench.compile(step("Hello", DOCS), candidate())
    if why == "asked before":
        bench.record(ask_refresh(command="r"))
    if why == "outcome known":
        bench.record(report(first.step, "failed", command="r"))
    command = step(
        "Hello",
        DOCS,
        command="c2",
        after=bench.log.fold,
        add=why == "other messages",
        refresh=why == "asked with the step",
    )
    assert bench.compile(command).step == first.step + 1


@pytest.mark.rule("D.R.8")
def test_a_number_with_other_messages_is_that_step_compiled_anew() -> None:
    bench = Bench()
    bench.compile(step("Hello", number=4))
    assert bench.compile(step("More", command="c2", number=4, after=bench.log.fold)).step == 4


def test_a_step_whose_package_retention_took_is_compiled_anew() -> None:
    bench = Bench()
    first = bench.compile(step("Hello", DOCS), candidate())
    bench.log.blobs.clear()
    effects = bench.open(step("Hello", DOCS, command="c2", after=bench.log.fold, add=False))
    effects = bench.tell(Fetched(run=RUN, token=only(effects, Fetch).token))
    effects = bench.tell(bench.log.load(only(effects, Load)))
    assert sent(effects, Place).decision.manifest.step == first.step


def test_memory_that_cannot_be_read_does_not_keep_a_stored_package_back() -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    effects = bench.tell(step("Hello", attempt=2))
    effects += bench.tell(bench.log.load(only(effects, Load)))
    assert bench.tell(ItemsOffered(run=RUN, token=sent(effects, AskItems).token, code="busy")) == ()
    assert stored(bench, effects).stored


def test_a_retry_whose_package_cannot_be_read_says_so() -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    fetch = only(bench.open(step("Hello", attempt=2)), Fetch)
    assert refusal(bench.tell(Fetched(run=RUN, token=fetch.token, code="deadline_exceeded"))) == "deadline_exceeded"
    assert bench.selection.idle


@pytest.mark.parametrize("went_on", [False, True])
def test_a_retry_whose_package_is_gone_is_compiled_anew_unless_the_run_went_on(*, went_on: bool) -> None:
    bench = Bench()
    first = bench.compile(step("Hello"))
    if went_on:
        bench.record(report(first.step, command="r"))
    fetch = only(bench.open(step("Hello", attempt=2)), Fetch)
    effects = bench.tell(Fetched(run=RUN, token=fetch.token))
    effects = bench.tell(bench.log.load(only(effects, Load)))
    if went_on:
        assert refusal(effects) == "stale_step"
    else:
        assert sent(effects, Place).decision.manifest.step == first.step


def test_a_damaged_package_is_no_answer() -> None:
    bench = Bench()
    bench.compile(step("Hello"))
    fetch = only(bench.open(step("Hello", attempt=2)), Fetch)
    effects = bench.tell(Fetched(run=RUN, token=fetch.token, blobs=((fetch.digests[0], b"{secret"),)))
    assert sent(effects, ErrorReply).code == "invalid_type"
    assert "secret" not in sent(effects, ErrorReply).message


@pytest.mark.rule("D.G.3")
@pytest.mark.parametrize(("number", "code"), [(4, "stale_step"), (5, "stale_step"), (6, None), (9, None)])
def test_numbers_never_go_back(number: int, code: str | None) -> None:
    bench = Bench()
    bench.compile(step("Hello", number=5))
    bench.record(report(5, command="r"))
    effects = bench.open(step("More", command="c2", number=number, after=bench.log.fold))
    if code is None:
        assert sent(effects, Place).decision.manifest.step == number
    else:
        assert refusal(effects) == code


# -- conflicts


def test_a_conflict_is_decided_again_with_the_offers_at_hand_five_times() -> None:
    bench = Bench()
    effects = bench.open(step("Hello", DOCS))
    effects = bench.tell(offer(queries(effects)[0], candidate()))
    for number in range(CONFLICTS):
        assert len(sent(effects, Place).results[0].candidates) == 1
        bench.log.add(RefreshRequested(), command=f"r{number}")
        load = only(bench.tell(conflicted(bench)), Load)
        assert load.at_least > load.after
        effects = bench.tell(bench.log.load(load))
        assert not queries(effects)
        assert sent(effects, Place).head.expected == bench.log.last[0]
    assert refusal(bench.tell(conflicted(bench))) == "conflict"
    assert bench.selection.idle
    assert not bench.state.loaded


def test_the_loser_of_its_own_retry_answers_with_what_is_stored() -> None:
    bench = Bench()
    command = step("Hello")
    effects = bench.open(command)
    Bench(bench.log).compile(msgspec.structs.replace(command, attempt=2))
    assert sent(effects, Place).head.expected == 0
    effects = bench.tell(bench.log.load(only(bench.tell(conflicted(bench)), Load)))
    assert stored(bench, effects).sequence == bench.log.last[0]


@pytest.mark.parametrize(("number", "code"), [(1, "stale_step"), (0, "stale_step"), (None, None)])
def test_the_loser_of_another_step_is_stale_or_the_next(number: int | None, code: str | None) -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    other = Bench(bench.log)
    fold = bench.log.fold
    bench.open(step("Hello", after=fold, add=False, number=number))
    other.compile(step("Hello", command="c2", after=fold, add=False, number=1))
    effects = bench.tell(bench.log.load(only(bench.tell(conflicted(bench)), Load)))
    if code is None:
        assert sent(effects, Place).decision.manifest.step == 2
    else:
        assert refusal(effects) == code


@pytest.mark.rule("D.G.14", "D.G.31")
def test_a_refresh_that_another_step_served_leaves_no_offers_in_the_loser() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    other = Bench(bench.log)
    fold = bench.log.fold
    asked = queries(bench.open(step("Hello", DOCS, after=fold, add=False)))
    other.compile(step("Hello", DOCS, command="c2", after=fold, add=False), candidate(2))
    bench.tell(offer(asked[0], candidate(1)))
    effects = bench.tell(bench.log.load(only(bench.tell(conflicted(bench)), Load)))
    place = sent(effects, Place)
    assert (place.decision.manifest.refresh, place.results) == ("reused", ())
    assert [e for e in place.decision.manifest.entries if e.kind == "rag"] == []


def test_a_log_that_was_erased_and_begun_again_is_read_from_its_start() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    bench.record(more("b", command="c1", after=bench.log.fold))
    bench.log.commits.clear()
    bench.log.add(RunStarted(scope=SCOPE, estimator=EstimatorSpec()))
    bench.begin(ask_refresh(command="n"))
    bench.tell(bench.log.load(only(bench.tell(conflicted(bench)), Load)))
    again = only(bench.tell(bench.log.load(only(bench.tell(conflicted(bench)), Load))), Load)
    assert again.after == 0
    assert sent(bench.tell(bench.log.load(again)), Record).head.expected == bench.log.last[0]


@pytest.mark.parametrize("damaged", [False, True], ids=["gap", "load failed"])
def test_a_log_that_does_not_fit_fails_the_command_and_is_read_anew(damaged: bool) -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    load = only(bench.tell(ask_refresh(seen=99)), Load)
    log = Log()
    log.commits = [(bench.log.last[0], "", bench.log.commits[0][2])]
    log.add(RefreshRequested(), previous="sha256:other")
    loaded = log.load(load)
    if damaged:
        loaded = Loaded(run=RUN, token=load.token, part="run", after=load.after, code="invalid_type")
    assert refusal(bench.tell(loaded)) == "invalid_type"
    assert bench.selection.idle
    if not damaged:
        assert only(bench.tell(ask_refresh(command="c2")), Load).after == 0


def test_unknown_events_of_the_log_are_skipped() -> None:
    bench = Bench()
    bench.log.add(
        RunStarted(scope=SCOPE, estimator=EstimatorSpec()),
        UnknownEvent(name="newer", data='{"type":"newer","x":1}'),
    )
    answers = bench.record(ask_refresh())
    assert sent(answers, Recorded, CLIENT).sequence == bench.log.last[0]
    assert codec.decode_commit(codec.encode_commit(bench.log.commits[0][2])) == bench.log.commits[0][2]


def test_a_working_memory_older_than_one_that_a_step_used_is_asked_for_once_more() -> None:
    bench = Bench()
    snapshot = create_working_memory(scope="acme", now=1, goal="Ship it.")

    def items(effects: Effects, sequence: int) -> ItemsOffered:
        token = sent(effects, AskItems).token
        return ItemsOffered(run=RUN, token=token, sequence=sequence, digest="sha256:x", snapshot=snapshot)

    effects = bench.tell(step("Hello"))
    bench.tell(bench.log.load(only(effects, Load)))
    bench.commit(bench.tell(items(effects, 9)))
    effects = bench.tell(step("More", command="c2", after=bench.log.fold))
    assert sent(effects, AskItems).seen == 9
    again = bench.tell(items(effects, 3))
    assert sent(again, AskItems).seen == 9
    place = sent(bench.tell(items(again, 9)), Place)
    assert place.working_memory is not None
    assert place.working_memory.used.sequence == 9


# -- what comes late, twice, or from elsewhere


@pytest.mark.parametrize("token", ["", "foreign"])
def test_answers_of_another_token_change_nothing(token: str) -> None:
    bench = Bench()
    bench.open(step("Hello", DOCS))
    before = bench.state
    messages = (
        Loaded(run=RUN, token=token, part="run", after=0, code="deadline_exceeded"),
        ItemsOffered(run=RUN, token=token, code="busy"),
        Conflicted(run=RUN, token=token, part="run"),
        Unstored(run=RUN, token=token, part="run", code="limit"),
        Fetched(run=RUN, token=token),
        Elapsed(run=RUN, token=token),
        Elapsed(run=RUN, token="other#deadline"),
        Recorded(run=RUN, command="c1", sequence=1, commit="", count=0, chain=""),
    )
    assert bench.tell(*messages) == ()
    assert bench.state == before


def test_answers_out_of_their_phase_change_nothing() -> None:
    bench = Bench()
    effects = bench.open(step("Hello", DOCS))
    token = queries(effects)[0].token
    before = bench.state
    messages = (
        Loaded(run=RUN, token=token, part="run", after=0, code="deadline_exceeded"),
        ItemsOffered(run=RUN, token=token, code="busy"),
        Conflicted(run=RUN, token=token, part="run"),
        Unstored(run=RUN, token=token, part="run", code="limit"),
        Fetched(run=RUN, token=token),
    )
    assert bench.tell(*messages) == ()
    assert bench.state == before
    bench.tell(offer(queries(effects)[0]))
    assert bench.tell(offer(queries(effects)[0], candidate())) == ()


def test_idle_nothing_but_commands_has_an_effect() -> None:
    bench = Bench()
    assert bench.tell(Elapsed(run=RUN, token="x"), Fetched(run=RUN, token="x")) == ()
    assert bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1")) == ()
    assert bench.selection.idle


def test_a_commit_of_a_flight_that_was_given_up_moves_the_fold() -> None:
    bench = Bench()
    place = bench.place(bench.begin(more("a")))
    committed = bench.log.store(only(place, Store))
    assert refusal(bench.tell(elapsed("c1"))) == "deadline_exceeded"
    assert not bench.state.loaded
    assert bench.tell(committed) == ()
    assert bench.state.fold == bench.log.fold
    assert bench.tell(msgspec.structs.replace(committed, part="working-memory"), committed) == ()
    far = msgspec.structs.replace(committed, sequence=99)
    assert bench.tell(far) == ()
    assert not bench.state.loaded


def test_a_fold_that_moves_during_the_gather_is_decided_on() -> None:
    bench = Bench()
    bench.record(more("a", command="c0"))
    effects = bench.open(step("Hello", DOCS, after=bench.log.fold, add=False))
    bench.tell(bench.log.add(RefreshRequested()))
    place = sent(bench.tell(offer(queries(effects)[0], candidate())), Place)
    assert place.head.expected == bench.log.last[0]


def test_a_retry_of_another_instance_that_commits_during_the_gather_is_the_answer() -> None:
    bench = Bench()
    command = step("Hello", DOCS)
    effects = bench.open(command)
    other = Bench(bench.log)
    other.compile(msgspec.structs.replace(command, attempt=2), candidate())
    sequence, digest, commit = bench.log.commits[0]
    bench.tell(Committed(run=RUN, token="x", part="run", sequence=sequence, digest=digest, commit=commit))
    assert stored(bench, bench.tell(offer(queries(effects)[0], candidate(2)))).sequence == sequence


@pytest.mark.parametrize("code", ["limit", "deadline_exceeded", "payload_too_large", "of-a-newer-peer"])
def test_what_the_log_refuses_the_client_is_told(code: str) -> None:
    bench = Bench()
    effects = bench.begin(more("a"))
    token = sent(effects, Record).head.token
    expected = "internal" if code == "of-a-newer-peer" else code
    assert refusal(bench.tell(Unstored(run=RUN, token=token, part="run", code=code))) == expected
    assert not bench.state.loaded
    assert bench.selection.idle


# -- time, turns, cancellation


@pytest.mark.parametrize("phase", ["load", "items", "gather", "commit", "stored"])
def test_the_time_of_a_command_ends_it_in_every_phase(phase: str) -> None:
    bench = Bench()
    if phase == "stored":
        bench.compile(step("Hello", DOCS), candidate())
        bench.open(step("Hello", DOCS, attempt=2))
    else:
        effects = bench.tell(step("Hello", DOCS))
        if phase != "load":
            effects += bench.tell(bench.log.load(only(effects, Load)))
        if phase in {"gather", "commit"}:
            effects = bench.tell(nothing_in_memory(effects))
        if phase == "commit":
            bench.tell(offer(queries(effects)[0], candidate()))
    assert bench.selection.timers["c1#deadline"] == 10.0
    assert refusal(bench.tell(elapsed("c1"))) == "deadline_exceeded"
    assert bench.selection.idle


def test_the_time_of_a_command_that_waits_runs_from_its_arrival() -> None:
    bench = Bench()
    bench.tell(ask_refresh(command="c0"))
    effects = bench.tell(more("a", seconds=2.0), more("b", command="c2"))
    assert only(effects[:1], Timer).seconds == 2.0
    assert refusal(bench.tell(elapsed("c1"))) == "deadline_exceeded"
    assert [c.command for c in bench.state.waiting] == ["c2"]
    effects = bench.tell(elapsed("c0"))
    assert bench.state.flight is not None
    assert bench.state.flight.command.command == "c2"
    assert not any(isinstance(e, Timer) for e in effects)


def test_a_queue_has_an_end() -> None:
    bench = Bench()
    bench.tell(*(more("a", command=f"c{n}") for n in range(LONGEST_QUEUE + 1)))
    assert refusal(bench.tell(more("a", command="one-more"))) == "busy"
    assert len(bench.state.waiting) == LONGEST_QUEUE
    for number in range(LONGEST_QUEUE + 1):
        bench.tell(elapsed(f"c{number}"))
    assert bench.state.flight is None


@pytest.mark.rule("D.W.5")
@pytest.mark.parametrize("phase", ["load", "gather", "waiting", "stored"])
def test_a_cancelled_command_stops_before_its_next_effect(phase: str) -> None:
    bench = Bench()
    if phase == "stored":
        bench.compile(step("Hello"))
        bench.open(step("Hello", attempt=2))
    elif phase == "waiting":
        bench.tell(ask_refresh(command="c0"), step("Hello"))
    elif phase == "gather":
        bench.open(step("Hello", DOCS))
    else:
        bench.tell(step("Hello"))
    effects = bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1"))
    assert not any(isinstance(e, Send) for e in effects)
    assert "c1#deadline" not in bench.selection.timers
    if phase == "waiting":
        assert bench.state.waiting == ()
        bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c0"))
    assert bench.selection.idle


@pytest.mark.rule("D.W.5")
def test_what_is_being_committed_stays() -> None:
    bench = Bench()
    command = step("Hello")
    effects = bench.open(command)
    assert bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1")) == ()
    bench.commit(effects)
    assert stored(bench, bench.open(msgspec.structs.replace(command, attempt=2))).stored


def test_a_state_that_was_dropped_is_built_again_from_the_log() -> None:
    bench = Bench()
    bench.compile(step("Hello", DOCS), candidate())
    bench.record(report(0, command="r"))
    before = bench.state.fold
    bench.selection.state = bench.selection.rule.initial(RUN)
    bench.compile(step("More", DOCS, command="c2", after=before))
    assert bench.state.fold == bench.log.fold
    assert [type(e) for e in bench.log.commits[-1][2].events if isinstance(e, StepCompiledEvent)] == [StepCompiledEvent]


def test_tokens_of_two_instances_differ() -> None:
    bench = Bench()
    bench.tell(ask_refresh())
    other = Actor(Selection(TENANT, INBOX + "-2"))
    other.tell(ask_refresh())
    assert bench.state.flight is not None
    assert other.state.flight.token != bench.state.flight.token


@pytest.mark.rule("D.R.7", "D.W.5")
@pytest.mark.parametrize("phase", ["load", "gather", "commit"])
def test_the_same_command_from_another_address_is_answered_when_the_first_is_over(phase: str) -> None:
    bench = Bench()
    command = step("Hello", DOCS)
    effects = bench.tell(command) if phase == "load" else bench.open(command)
    if phase == "commit":
        effects = bench.tell(offer(queries(effects)[0], candidate()))
        assert bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1")) == ()
    bench.tell(ask_refresh(command="c2"))
    other = msgspec.structs.replace(command, reply_to=CLIENT + ".other")
    assert bench.tell(other, other, msgspec.structs.replace(other, reply_to=CLIENT + ".last")) == ()
    assert bench.tell(command) == ()
    assert [c.command for c in bench.state.waiting] == ["c1", "c2"]
    if phase == "commit":
        fetch = only(bench.commit(effects), Fetch)
        blobs = tuple((d, bench.log.blobs[d]) for d in fetch.digests)
        answer = sent(bench.tell(Fetched(run=RUN, token=fetch.token, blobs=blobs)), StepCompiled, CLIENT + ".last")
        assert answer.sequence == bench.log.last[0]
    else:
        bench.tell(elapsed("c1"))
        assert bench.state.flight is not None
        assert bench.state.flight.command.reply_to == CLIENT + ".last"
        assert bench.selection.timers["c1#deadline"] == 10.0
        assert refusal(bench.tell(elapsed("c1")), CLIENT + ".last") == "deadline_exceeded"


@pytest.mark.rule("D.W.5")
@pytest.mark.parametrize("phase", ["gather", "commit"])
def test_a_cancelled_command_takes_the_one_that_follows_it_along(phase: str) -> None:
    bench = Bench()
    command = step("Hello", DOCS)
    effects = bench.open(command)
    if phase == "commit":
        bench.tell(offer(queries(effects)[0], candidate()))
    bench.tell(msgspec.structs.replace(command, reply_to=CLIENT + ".other"))
    bench.tell(CancelCommand(run=RUN, tenant=TENANT, command="c1"))
    assert bench.state.waiting == ()
    assert ("c1#deadline" in bench.selection.timers) == (phase == "commit")

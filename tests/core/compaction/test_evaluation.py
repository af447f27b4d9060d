"""Whether a step compacts: estimates, triggers, both numbers of a window, pauses (C.H, C.J, C.M, C.N, P.J)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.compaction.evaluation import (
    AskTrigger,
    Matched,
    RequestEstimate,
    describe_excess,
    estimate_request,
    evaluation_id,
    find_match,
    is_paused,
    is_range_paused,
    policy_of,
    ratio_room,
    target_tokens,
    tokens_before,
)
from contextbus.core.estimate import make_estimator
from contextbus.core.history import SourceHistory
from contextbus.core.run_state import CompactionFailures, Measured, RunState
from contextbus.core.working_memory import create_working_memory
from contextbus_protocol.chat import user
from contextbus_protocol.values import (
    CompactionOptions,
    EstimatorSpec,
    Model,
    RetentionPolicy,
    Scope,
    StepOptions,
    Trigger,
)

MODEL = Model("openai", "gpt-test", 1_000, 100)
LAST = RetentionPolicy(keep_last_messages=1)
RATIO = RetentionPolicy(keep_ratio=0.8)
WINDOW = CompactionOptions(
    triggers=(Trigger(kind="usage-exceeded", keep=LAST), Trigger(kind="window-exceeded", ratio=1.0, keep=RATIO)),
    target_ratio=0.8,
    keep=RATIO,
    on_failure="continue",
    reserves_output=True,
)
ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
MEASURED = Measured(count=2, model=("openai", "gpt-test"), tools=None, settings=None, input_tokens=500)


def options(compaction: CompactionOptions | None, **changed: object) -> StepOptions:
    chosen: dict[str, Any] = {"scope": Scope(), "model": MODEL, "compaction": compaction} | changed
    return StepOptions(**chosen)


def triggered(*triggers: Trigger) -> StepOptions:
    return options(CompactionOptions(triggers=triggers, target_tokens=500))


def run_of(*tokens: int, measured: Measured | None = None) -> RunState:
    """A run whose messages cost so many tokens each."""
    messages = [user(str(index)) for index in range(len(tokens))]
    return RunState("r", history=SourceHistory().append(messages, [18 * t for t in tokens]), measured=measured)


def seen(tokens: int = 0, messages: int = 0, *, measured: int | None = None, reserve: int = 0) -> RequestEstimate:
    """An estimate; with ``measured`` the whole request is that and the reserve."""
    return RequestEstimate(
        tokens=tokens if measured is None else measured + reserve,
        counted=tokens,
        envelope=reserve,
        message_count=messages,
        reserve=reserve,
        measured=measured,
    )


def estimated(state: RunState, of: StepOptions, **given: object) -> RequestEstimate:
    chosen: dict[str, Any] = {"now": 0, "working_memory": None, "estimator": ESTIMATOR} | given
    return estimate_request(state, of, **chosen)


@pytest.mark.rule("C.H.2", "C.H.3")
@pytest.mark.parametrize("kind", ["tokens-exceed", "messages-exceed"])
def test_more_than_so_many_and_equality_does_not_match(kind: str) -> None:
    of = triggered(Trigger(kind=kind, limit=10))  # type: ignore[arg-type]  # the kinds are given as texts
    found = [find_match(of, seen(tokens=n, messages=n), {}) for n in (9, 10, 11)]
    assert found == [None, None, Matched(0)]


@pytest.mark.rule("C.H.5", "C.H.6")
def test_a_cold_cache_needs_an_age_and_a_retention_and_equality_matches() -> None:
    own, given_ = triggered(Trigger(kind="cache-likely-cold")), triggered(Trigger(kind="cache-likely-cold", limit=50))
    for age, retention, of, matches in [
        (100, 100, own, True),
        (99, 100, own, False),
        (None, 100, own, False),
        (100, None, own, False),
        (50, None, given_, True),
        (50, 100, given_, True),
        (49, 1, given_, False),
        (None, 1, given_, False),
    ]:
        estimate = RequestEstimate(
            tokens=1, counted=1, envelope=0, message_count=1, cache_age_ms=age, cache_retention_ms=retention
        )
        assert (find_match(of, estimate, {}) == Matched(0)) is matches


@pytest.mark.rule("C.I.3", "C.H.8")
def test_triggers_go_in_order_and_the_hosts_own_are_asked_only_when_their_turn_comes() -> None:
    custom = Trigger(kind="custom")
    of = triggered(Trigger(kind="tokens-exceed", limit=10), custom, Trigger(kind="messages-exceed", limit=1), custom)
    assert find_match(of, seen(tokens=11), {}) == Matched(0)
    assert find_match(of, seen(), {}) == AskTrigger(1)
    assert find_match(of, seen(messages=2), {1: True}) == Matched(1)
    assert find_match(of, seen(messages=2), {1: False}) == Matched(2)
    assert find_match(of, seen(), {1: False}) == AskTrigger(3)
    assert find_match(of, seen(), {1: False, 3: False}) is None


@pytest.mark.rule("C.J.1", "C.J.3", "C.M.14", "P.J.1", "P.J.6")
def test_the_count_is_of_the_whole_request() -> None:
    state = run_of(10, 20)
    plain = estimated(state, triggered(Trigger(kind="custom")))
    assert (plain.tokens, plain.counted, plain.envelope, plain.message_count) == (30, 30, 0, 2)
    with_tools = estimated(state, options(WINDOW, overhead_tokens=7))
    assert (with_tools.tokens, with_tools.envelope, with_tools.reserve) == (30 + 7 + 100, 107, 100)
    memory = create_working_memory(scope="r", now=0, goal="Deploy.")
    with_memory = estimated(state, options(WINDOW, overhead_tokens=7), working_memory=memory)
    tail = with_memory.envelope - 107
    assert tail > 0
    assert with_memory.tokens == with_tools.tokens + tail


@pytest.mark.rule("C.M.2", "C.M.14", "C.J.1")
def test_a_measured_count_takes_the_place_of_messages_and_envelope() -> None:
    state = run_of(10, 20, 30, 40, measured=MEASURED)
    estimate = estimated(state, triggered(Trigger(kind="custom")))
    assert (estimate.tokens, estimate.measured, estimate.counted) == (500 + 70, 570, 100)
    again = estimated(state, options(WINDOW, overhead_tokens=7))
    assert (again.tokens, again.measured) == (570 + 100, 570)


@pytest.mark.rule("C.M.14")
def test_the_old_tail_is_taken_off_and_the_coming_one_put_on() -> None:
    state = run_of(
        10,
        20,
        measured=Measured(count=2, model=MEASURED.model, tools=None, settings=None, input_tokens=500, tail=18 * 40),
    )
    of = triggered(Trigger(kind="custom"))
    assert estimated(state, of).tokens == 460
    memory = create_working_memory(scope="r", now=0, goal="Deploy.")
    estimate = estimated(state, of, working_memory=memory)
    assert estimate.tokens == 460 + estimate.envelope


@pytest.mark.rule("C.M.3", "C.M.7", "C.N.4")
@pytest.mark.parametrize(
    "changed",
    [
        {"model": Model("openai", "gpt-other", 1_000, 100)},
        {"model": Model("azure", "gpt-test", 1_000, 100)},
        {"tools_digest": "sha256:1"},
        {"settings_digest": "sha256:2"},
    ],
)
def test_other_settings_end_baseline_and_cache_evidence(changed: dict[str, object]) -> None:
    state = run_of(
        10,
        20,
        measured=Measured(
            count=2, model=MEASURED.model, tools=None, settings=None, input_tokens=500, cached_at=5, retention_ms=9
        ),
    )
    of = triggered(Trigger(kind="custom"))
    known = estimated(state, of, now=15)
    assert (known.measured, known.cache_age_ms, known.cache_retention_ms) == (500, 10, 9)
    other = estimated(state, options(of.compaction, **changed), now=15)
    assert (other.tokens, other.measured, other.cache_age_ms, other.cache_retention_ms) == (30, None, None, None)


@pytest.mark.rule("C.M.10", "C.L.8")
def test_a_damaged_baseline_is_as_if_it_were_not_there_and_harms_nothing_else() -> None:
    def stored(tokens: int | None, at: int | None) -> RequestEstimate:
        measured = Measured(
            count=2, model=MEASURED.model, tools=None, settings=None, input_tokens=tokens, cached_at=at, retention_ms=9
        )
        return estimated(run_of(10, 20, measured=measured), options(None), now=15)

    for tokens in (-1, 2**53, None):
        estimate = stored(tokens, 5)
        assert (estimate.tokens, estimate.measured, estimate.cache_age_ms) == (30, None, 10)
    estimate = stored(500, -5)
    assert (estimate.measured, estimate.cache_age_ms, estimate.cache_retention_ms) == (500, None, None)


@pytest.mark.rule("C.M.3")
def test_a_larger_window_of_the_same_model_keeps_the_baseline() -> None:
    larger = options(None, model=Model("openai", "gpt-test", 2_000, 50))
    assert estimated(run_of(1, 2, measured=MEASURED), larger).measured == 500


@pytest.mark.rule("C.N.4")
@pytest.mark.parametrize(("now", "age"), [(4, None), (5, 0), (6, 1)])
def test_a_clock_that_went_back_leaves_the_age_unknown(now: int, age: int | None) -> None:
    measured = Measured(count=1, model=MEASURED.model, tools=None, settings=None, cached_at=5, retention_ms=9)
    assert estimated(run_of(1, measured=measured), options(None), now=now).cache_age_ms == age


@pytest.mark.rule("C.M.11")
def test_the_hosts_count_takes_the_place_of_both() -> None:
    estimate = estimated(run_of(10, 20, measured=MEASURED), options(WINDOW, overhead_tokens=7), host_tokens=3)
    assert (estimate.tokens, estimate.counted, estimate.measured) == (3 + 107, 110, None)


@pytest.mark.rule("P.J.1")
@pytest.mark.parametrize(("ratio", "limit"), [(1.0, 1_000), (0.5, 500), (0.333, 333)])
def test_strictly_above_the_floor_of_the_share(ratio: float, limit: int) -> None:
    of = triggered(Trigger(kind="window-exceeded", ratio=ratio))
    assert [find_match(of, seen(tokens=n), {}) for n in (limit, limit + 1)] == [None, Matched(0)]


@pytest.mark.rule("P.J.1", "P.J.6", "C.X.1")
def test_target_and_policy_are_shares_of_the_window_with_the_reserve_taken_off() -> None:
    assert (target_tokens(WINDOW, 1_001), target_tokens(CompactionOptions(triggers=(), target_tokens=5), 9)) == (800, 5)
    assert [policy_of(WINDOW, index) for index in (0, 1, None)] == [LAST, RATIO, RATIO]
    envelope = estimated(run_of(1), options(WINDOW, overhead_tokens=7)).envelope
    assert ratio_room(RATIO, 1_001, envelope) == 800 - 107
    assert ratio_room(RATIO, 100, envelope) == 0


@pytest.mark.rule("P.J.2")
def test_of_both_numbers_the_larger_counts() -> None:
    of = options(WINDOW)
    usage, window = Matched(0), Matched(1)
    for counted, measured, found in [
        (900, 1_000, window),  # with the reserve of 100 the report alone is above
        (900, 800, None),
        (1_001, 500, window),
        (900, 1_001, usage),
        (1_101, 1_001, usage),  # the same number
        (1_102, 1_001, window),  # the estimate is the larger one
        (1_001, None, window),
        (1_000, None, None),
    ]:
        estimate = seen(counted, measured=measured, reserve=100)
        assert find_match(of, estimate, {}) == found, (counted, measured)
    assert tokens_before(WINDOW, seen(1_200, measured=900, reserve=100), 1) == 1_200
    assert tokens_before(WINDOW, seen(900, measured=1_050, reserve=100), 1) == 1_150


@pytest.mark.rule("P.J.2", "C.M.2")
def test_a_report_that_happens_to_be_the_estimate_is_a_report_all_the_same() -> None:
    estimate = seen(1_101, measured=1_001, reserve=100)
    assert estimate.tokens == estimate.counted
    assert find_match(options(WINDOW), estimate, {}) == Matched(0)


@pytest.mark.rule("P.J.8")
def test_what_the_host_is_told() -> None:
    of = options(WINDOW, overhead_tokens=7)
    info = describe_excess(of, estimated(run_of(500, 600), of), 1)
    assert (info.current_tokens, info.limit, info.envelope_tokens, info.history_tokens) == (1_207, 1_000, 107, 1_100)
    measured = describe_excess(of, seen(900, measured=1_050, reserve=100), 0)
    assert (measured.current_tokens, measured.limit, measured.envelope_tokens) == (1_050, 1_000, 0)
    plain = triggered(Trigger(kind="tokens-exceed", limit=10), Trigger(kind="messages-exceed", limit=1))
    assert [describe_excess(plain, seen(11, 2), index).limit for index in (0, 1)] == [10, 500]


@pytest.mark.rule("C.X.5", "C.X.4")
@given(at=st.integers(1, 10**9), now=st.integers(0, 10**10))
def test_a_pause_ends_once_the_history_or_the_range_is_a_fifth_larger(at: int, now: int) -> None:
    grown = 5 * now >= 6 * at
    state = RunState("r", history=SourceHistory().append([user("x")], [now]))
    assert is_paused(RunState("r", history=state.history, failures=CompactionFailures(paused_at=at))) is not grown
    assert is_range_paused(CompactionFailures(refused_range=at), now) is not grown
    assert not is_paused(state)


@pytest.mark.rule("C.O.1")
def test_one_id_for_an_evaluation() -> None:
    ids = {evaluation_id(run, command, at) for run in "ab" for command in "cd" for at in (0, 1)}
    assert len(ids) == 8
    assert evaluation_id("a", "c", 0) == evaluation_id("a", "c", 0)
    assert all(each.startswith("compaction-") and len(each) == 43 for each in ids)

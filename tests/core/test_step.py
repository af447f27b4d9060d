"""One step of a run: the messages that it brings, what is settled before sources are asked, and the decision."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.logs import MODEL, append, commit_to, compiled

from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus.core.new_messages import apply_history, take_messages
from contextbus.core.run_state import RunState
from contextbus.core.step import StepPlan, decide_step, plan_step
from contextbus.core.working_memory import create_working_memory
from contextbus_protocol.chat import ChatMessage, Text, ToolResult, assistant, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.commands import NewMessages
from contextbus_protocol.digests import EMPTY_CHAIN, digest_text, extend_chain
from contextbus_protocol.errors import ConflictError, InvalidRequestError, InvalidTypeError
from contextbus_protocol.events import CallSucceeded
from contextbus_protocol.values import (
    Candidate,
    EstimatorSpec,
    Model,
    Scope,
    SourceResult,
    SourceSpec,
    SourceStatus,
    StepOptions,
)
from contextbus_protocol.working_memory import Task, TaskList, TasksInput, WorkingMemorySnapshot

ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
SCOPE = Scope(user_id="ada")
OPTIONS = StepOptions(scope=SCOPE, model=MODEL, sources=(SourceSpec("docs", "rag"),))
TEXT = "Deploys need a green CI run."
FOUND = SourceResult("docs", "rag", candidates=(Candidate("0", TEXT, 0.9, digest_text(TEXT)),))
A, B, C = user("a"), assistant("b"), user("c")
RESULTS = ChatMessage(role="user", content=(ToolResult(id="t1", name="look", content=(Text("found"),)),))
replace = msgspec.structs.replace


def chain_of(*messages: ChatMessage) -> str:
    chain = EMPTY_CHAIN
    for message in messages:
        chain = extend_chain(chain, digest_message(message))
    return chain


def bring(*messages: ChatMessage, base: tuple[ChatMessage, ...] = (), keep: int | None = None) -> NewMessages:
    kept = len(base) if keep is None else keep
    return NewMessages(len(base), chain_of(*base), kept, messages, chain_of(*base[:kept], *messages))


def run_with(*messages: ChatMessage) -> RunState:
    return take_messages(RunState("r"), bring(*messages), SCOPE, ESTIMATOR)[0]


def plan(
    state: RunState,
    options: StepOptions = OPTIONS,
    *,
    step: int = 0,
    user_text: str = "How?",
    snapshot: WorkingMemorySnapshot | None = None,
) -> StepPlan:
    return plan_step(
        state,
        step=step,
        options=options,
        host_request=False,
        user_text=user_text,
        snapshot=snapshot,
        estimator=ESTIMATOR,
    )


# -- messages


@pytest.mark.rule("D.F.19", "D.M.14")
def test_new_messages_become_facts_behind_what_the_run_has() -> None:
    state, fact = take_messages(RunState("r"), bring(A, B), SCOPE, ESTIMATOR)
    assert fact.started is not None
    assert (fact.started.scope, fact.started.estimator) == (SCOPE, ESTIMATOR.spec)
    assert [(f.digest, f.role) for f in fact.facts] == [(digest_message(m), m.role) for m in (A, B)]
    assert (fact.start, fact.count, fact.chain, fact.replaced) == (0, 2, chain_of(A, B), None)
    assert state.history.eighteenths == ESTIMATOR.message(A) + ESTIMATOR.message(B)
    started = replace(state, scope=SCOPE)
    after, fact = take_messages(started, bring(C, base=(A, B)), SCOPE, ESTIMATOR)
    assert (fact.started, fact.start, fact.messages, after.history.count) == (None, 2, (C,), 3)


@pytest.mark.rule("D.F.19")
def test_the_end_of_the_present_history_may_be_replaced() -> None:
    state, fact = take_messages(run_with(A, B), bring(C, base=(A, B), keep=1), SCOPE, ESTIMATOR)
    assert fact.replaced is not None
    assert (fact.replaced.keep, fact.start, state.history.chain) == (1, 1, chain_of(A, C))


@pytest.mark.rule("D.F.19")
def test_on_an_older_history_only_what_is_there_and_more_is_taken() -> None:
    state = run_with(A, B)
    after, fact = take_messages(state, bring(B, C, base=(A,)), SCOPE, ESTIMATOR)
    assert (fact.start, fact.messages, fact.replaced) == (2, (C,), None)
    assert after.history.chain == chain_of(A, B, C)
    after, fact = take_messages(state, bring(B, base=(A,)), SCOPE, ESTIMATOR)
    assert (fact.facts, after.history.chain) == ((), chain_of(A, B))
    for stale in (bring(C, base=(A,)), bring(base=(A,)), bring(C, base=(A, C)), bring(base=(A, B, C))):
        with pytest.raises(ConflictError):
            take_messages(state, stale, SCOPE, ESTIMATOR)


def test_a_chain_that_is_not_that_of_the_messages_is_refused() -> None:
    for new in (replace(bring(A), chain=chain_of(B)), replace(bring(A), chain="")):
        with pytest.raises(InvalidRequestError):
            take_messages(RunState("r"), new, SCOPE, ESTIMATOR)
    for keep in (-1, 1, 9):
        with pytest.raises(ConflictError):
            take_messages(RunState("r"), replace(bring(A), keep=keep), SCOPE, ESTIMATOR)


# -- the plan


def with_task(active: str | None) -> WorkingMemorySnapshot:
    tasks = TasksInput(TaskList("g", (Task("t1", "Check CI"), Task("t2", "Roll out"))), active)
    return create_working_memory(scope="s", now=0, tasks=tasks)


@pytest.mark.rule("D.B.2", "D.B.3", "D.B.21")
def test_input_and_used_tokens() -> None:
    state = run_with(A, B)
    made = plan(state, replace(OPTIONS, overhead_tokens=77))
    assert made.input_tokens == 120_000
    assert made.used_tokens == ESTIMATOR.estimate([A, B]) + 77
    assert plan(state, replace(OPTIONS, model=Model("p", "m", 10, 20))).input_tokens == 0
    with pytest.raises(InvalidTypeError):
        plan(state, replace(OPTIONS, model=Model("p", "m", -1, 0)))


@pytest.mark.rule("D.B.3", "D.F.2")
def test_placed_blocks_count_as_used() -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a"))
    before = plan(state).used_tokens
    state = commit_to(state, compiled(state, 0, "x"))
    assert plan(state, step=1).used_tokens == before
    state = commit_to(state, CallSucceeded(step=0))
    assert plan(state, step=1).used_tokens == before + 10  # 180 eighteenths


@pytest.mark.rule("D.G.16", "D.G.8", "D.D.23")
def test_the_query_begins_with_the_active_task() -> None:
    made = plan(run_with(A), snapshot=with_task("t1"))
    assert (made.query, made.active_task_id, made.pass_) == ("Check CI\nHow?", "t1", 1)
    made = plan(run_with(A), snapshot=with_task(None), user_text="")
    assert (made.query, made.active_task_id, made.pass_, made.refresh.skipped) == ("", None, 0, True)


@pytest.mark.rule("D.F.15", "D.F.16", "D.F.22", "D.Y.7")
def test_causes_of_a_changed_prefix() -> None:
    state = run_with(A)
    assert plan(state).prefix_cause is None
    state = commit_to(state, compiled(state, 0, "x"))
    assert plan(state, step=1).prefix_cause == "history"  # its block was sent and did not stay
    state = commit_to(state, CallSucceeded(step=0))
    assert plan(state, step=1).prefix_cause is None
    assert plan(state, replace(OPTIONS, tools_digest="sha256:t")).prefix_cause == "tools"
    assert plan(state, replace(OPTIONS, model=Model("openai", "other", 9, 1), tools_digest="x")).prefix_cause == "model"
    assert plan(replace(state, broken_prefix="system")).prefix_cause == "system"


# -- the decision


@pytest.mark.rule("D.G.21", "D.D.7", "D.D.24")
def test_a_skipped_step_lists_all_its_sources() -> None:
    state = run_with(A)
    made = plan(state, user_text=" ")
    decision = decide_step(state, made, options=OPTIONS, results=(), snapshot=None, estimator=ESTIMATOR)
    assert [(s.source, s.status) for s in decision.manifest.sources] == [("docs", SourceStatus.SKIPPED)]
    assert (decision.manifest.refresh, decision.manifest.pass_) == ("initial", 0)


@pytest.mark.rule("D.G.28", "D.T.2")
def test_a_failed_required_source_is_no_decision() -> None:
    state = run_with(A)
    failed = SourceResult("docs", "rag", SourceStatus.FAILED, required=True, error="error")
    with pytest.raises(InvalidRequestError):
        decide_step(state, plan(state), options=OPTIONS, results=(failed,), snapshot=None, estimator=ESTIMATOR)


@pytest.mark.rule("D.A.6", "D.G.25", "D.G.32")
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=30), max_size=5), task=st.sampled_from([None, "t1"]))
def test_the_same_step_is_decided_the_same(texts: list[str], task: str | None) -> None:
    state = run_with(*map(user, texts)) if texts else run_with(A)
    snapshot = with_task(task)

    def decide() -> bytes:
        made = plan(state, snapshot=snapshot, user_text=texts[-1] if texts else "How?")
        decision = decide_step(state, made, options=OPTIONS, results=(FOUND,), snapshot=snapshot, estimator=ESTIMATOR)
        return msgspec.json.encode((made, decision))

    assert decide() == decide()


@pytest.mark.rule("C.K.9", "C.L.5", "C.E.6")
@pytest.mark.parametrize("last", [RESULTS, ChatMessage(role="tool", content=RESULTS.content)])
def test_tool_results_alone_begin_no_turn_whatever_their_role(last: ChatMessage) -> None:
    state = replace(run_with(A, B), turn_begins=False)
    after, history = take_messages(state, bring(last, base=(A, B)), SCOPE, ESTIMATOR)
    assert [fact.only_results for fact in history.facts] == [last.role == "user"]
    assert not after.turn_begins
    asked = ChatMessage(role="user", content=(*RESULTS.content, *C.content))
    after, history = take_messages(state, bring(last, asked, base=(A, B)), SCOPE, ESTIMATOR)
    assert not history.facts[-1].only_results
    assert after.turn_begins


@pytest.mark.rule("C.K.9")
def test_a_log_that_does_not_say_what_a_user_message_holds_reads_as_before() -> None:
    state = replace(run_with(A, B), turn_begins=False)
    _, history = take_messages(state, bring(RESULTS, base=(A, B)), SCOPE, ESTIMATOR)
    (fact,) = history.facts
    assert apply_history(state, replace(history, facts=(replace(fact, only_results=False),))).turn_begins
    assert b"onlyResults" not in encode_json(replace(fact, only_results=False))
    assert b'"onlyResults":true' in encode_json(fact)

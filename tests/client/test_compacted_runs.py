"""Runs that compact their history, through clients: in memory and on an embedded server (C.K, C.L, C.O, C.X)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, sent, state_of
from tests.client.test_kept_tails import OPUS, hidden, thought, thoughts

import contextbus.client as contextbus
from contextbus.core.compaction.composition import LABEL
from contextbus.core.run_state import RunState
from contextbus.sources.interface import check_source
from contextbus.summarisers.interface import FunctionSummariser, Summary, SummaryRequest
from contextbus_protocol import blobs, codec
from contextbus_protocol.chat import (
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    user,
)
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import SummariserFailedError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    StepCompiled,
)
from contextbus_protocol.values import CompactionOptions, EstimatorSpec, RetentionPolicy, Trigger

SECRET = "XYZZY"


class Writer:
    """A summariser that remembers what it was asked; ``text`` is what it writes, or what it raises."""

    def __init__(self) -> None:
        self.asked: list[SummaryRequest] = []
        self.text: str | BaseException = f"They spoke of {SECRET}."
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def write(self, request: SummaryRequest) -> Summary:
        self.asked.append(request)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        if isinstance(self.text, BaseException):
            raise self.text
        return Summary((SummaryPart("text", f"{self.text} ({len(self.asked)})"),), usage=contextbus.Usage(11, 3))


def compacting(limit: int = 8, **changes: Any) -> CompactionOptions:
    given: dict[str, Any] = {
        "triggers": (Trigger(kind="messages-exceed", limit=limit),),
        "target_tokens": 1_500,
        "keep": RetentionPolicy(keep_last_messages=4),
        "summariser": "writer",
    }
    return CompactionOptions(**(given | changes))


@asynccontextmanager
async def opened(writer: Writer, *sources: Scripted, data: Path | None = None) -> AsyncGenerator[contextbus.ContextBus]:
    where: dict[str, Any] = {"url": "memory:"} if data is None else {"data": data, "durability": "interval"}
    checked = [check_source(source) for source in sources]
    made = FunctionSummariser(writer.write, id="writer")
    async with contextbus.open(**where, sources=checked, memory=False, summarisers=[made]) as bus:
        yield bus


def said(number: int) -> ChatMessage:
    return user(f"Question {number} about ticket {7000 + number}: " + "word " * 30)


def answered(number: int) -> ChatMessage:
    return assistant(f"Answer {number}: " + "text " * 30)


async def take(
    run: contextbus.Run, number: int, answer: ChatMessage | None = None, **changes: Any
) -> contextbus.CompiledStep:
    """A turn of one step."""
    run.append(said(number))
    given: dict[str, Any] = {"model": MODEL, **changes}
    step = await run.before_model_call(**given)
    await run.after_model_call(contextbus.Report(status="succeeded", messages=[answer or answered(number)]))
    return step


async def events(bus: contextbus.ContextBus, kind: type[Any]) -> list[Any]:
    log = await bus.log("r")
    return [e for c in log.commits for e in c.commit.events if isinstance(e, kind)]


def texts(step: contextbus.CompiledStep) -> list[str]:
    return [str(m["content"]) for m in sent(step)]


async def check_log(bus: contextbus.ContextBus, state: RunState, writer: Writer) -> None:
    """What the log of a run of ten turns and more says of its compactions, and what it does not say."""
    log = await bus.log("r")
    stored = await bus.blobs(log)
    completed = await events(bus, CompactionCompleted)
    started = await events(bus, CompactionStarted)
    assert [c.evaluation for c in completed] == [s.evaluation for s in started]
    assert len(completed) == len(writer.asked) >= 3
    for before, after in pairwise(completed):
        assert after.source_count > before.source_count
        first, *_ = blobs.decode_archive(stored[after.archive or ""]).messages
        assert LABEL in str(first)  # the summary before is part of the span (C.G.14, C.X.8)
    assert all(c.tokens.after < c.tokens.before for c in completed)
    assert all(c.identifiers is not None and c.identifiers.seen > c.identifiers.kept >= 0 for c in completed)
    assert state.usage.input_tokens == 11 * len(writer.asked)  # the summaries' (C.K.5)
    # each later turn says once that it begins with a checkpoint (C.L.5)
    restored = await events(bus, CompactionRestored)
    turns = [e for e in await events(bus, StepCompiled) if e.step > 4]
    assert len(restored) == len(turns)
    raw = b"".join(codec.encode_commit(c.commit) for c in log.commits)
    for word in (SECRET, "They spoke", "Question", "Answer", "word word", LABEL):
        assert word.encode() not in raw


WHERE = [pytest.param(False, id="memory"), pytest.param(True, id="embedded", marks=pytest.mark.broker)]


@pytest.mark.rule(
    "C.K.1", "C.K.2", "C.K.3", "C.K.5", "C.K.6", "C.L.1", "C.L.2", "C.L.5", "C.L.7", "C.M.6", "C.O.1", "C.O.3"
)
@pytest.mark.rule("C.O.5", "C.O.7", "C.O.8", "C.O.9", "C.O.13", "C.X.4", "C.X.7", "C.X.8", "C.G.14")
@pytest.mark.parametrize("embedded", WHERE)
async def test_a_run_compacts_again_and_again_and_any_client_goes_on(tmp_path: Path, *, embedded: bool) -> None:
    writer = Writer()
    data = tmp_path if embedded else None
    async with opened(writer, data=data) as bus:
        one = await bus.run("r", scope=SCOPE, compaction=compacting())
        for number in range(10):
            step = await take(one, number)
        assert len(writer.asked) == 3
        # a fresh client continues, and renders the same bytes
        other = await bus.run("r", scope=SCOPE, compaction=compacting())
        await one.load()
        assert other.state == one.state == await state_of(bus, one)
        other.append(said(10))
        step = await other.before_model_call(model=MODEL)
        request = step.payload("openai").json()
        again = await (await bus.run("r", scope=SCOPE, compaction=compacting())).before_model_call(model=MODEL)
        assert (again.stored, again.payload("openai").json()) == (True, request)
        await other.after_model_call(contextbus.Report(status="succeeded", messages=[answered(10)]))
        # the one that was away reads what happened
        await one.load()
        step = await take(one, 11)
        state = await state_of(bus, one)
        assert state.history.count == 24 == len(one.messages)  # all source messages, no summary among them (C.K.6)
        assert not any(LABEL in str(m) for m in one.messages)
        heads = texts(step)
        assert heads[0].startswith(f"{LABEL}:\nThey spoke of {SECRET}.")
        assert "Archived: context://archive/" in heads[0]
        assert len(heads) < 10
        await check_log(bus, state, writer)
        assert (await bus.verify("r")).is_clean
    if not embedded:
        return
    async with opened(writer, data=data) as bus:  # a restart
        run = await bus.run("r", scope=SCOPE, compaction=compacting(99))
        assert run.state == state
        step = await take(run, 12)
        assert texts(step)[0] == heads[0]
        assert not step.manifest.cache_prefix_changed
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.22", "D.F.15", "C.M.7", "C.N.12", "D.R.2")
async def test_the_prefix_changes_once_and_no_count_of_before_holds() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        causes: list[str | None] = []
        for number in range(7):
            run.append(said(number))
            step = await run.before_model_call(model=MODEL)
            causes.append(step.manifest.cache_prefix_cause)
            assert step.manifest.cache_prefix_changed == (causes[-1] is not None)
            usage = contextbus.Usage(input_tokens=100 * number, cache_read_tokens=50)
            report = contextbus.Report(status="succeeded", messages=[answered(number)], usage=usage)
            await run.after_model_call(report)
        assert causes == [None] * 4 + ["compaction"] + [None, "compaction"]
        state = await state_of(bus, run)
        assert state.measured is not None
        assert state.measured.input_tokens == 650
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.L.4", "C.L.5", "C.L.11", "D.F.14", "D.F.22")
async def test_a_rewind_before_the_boundary_leaves_the_checkpoint_aside_and_the_same_messages_bring_it_back() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        for number in range(5):
            await take(run, number)
        whole: list[Any] = list(run.messages)
        before = (await state_of(bus, run)).checkpoint
        assert before is not None
        assert before.applies
        run.append(said(5))
        kept = await run.before_model_call(model=MODEL)
        await run.after_model_call(contextbus.Report(status="failed"))
        short = await run.before_model_call(whole[:3], model=MODEL)
        state = await state_of(bus, run)
        assert state.checkpoint is not None
        assert (state.checkpoint.applies, state.checkpoint.replaced_by) == (False, before.replaced_by)
        assert len(texts(short)) == 3
        assert not any(LABEL in t for t in texts(short))
        await run.after_model_call(contextbus.Report(status="failed"))
        # with another message before the boundary it does not apply, and the history is compacted anew
        edited = await run.before_model_call([*whole[:2], user("Otherwise."), *whole[3:]], model=MODEL)
        assert len(writer.asked) == 2
        assert "Otherwise." in str(writer.asked[1].messages)
        assert LABEL in texts(edited)[0]
        other = (await state_of(bus, run)).checkpoint
        assert other is not None
        assert other.replaced_by != before.replaced_by
        await run.after_model_call(contextbus.Report(status="failed"))
        # the first one is over for good: the same messages are compacted once more
        again = await run.before_model_call([*whole, said(5)], model=MODEL)
        assert len(writer.asked) == 3
        assert texts(again)[1:] == texts(kept)[3:]
        fresh = await bus.run("r", scope=SCOPE, compaction=compacting())
        assert fresh.state == await state_of(bus, run)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.L.4", "C.L.5", "C.L.11")
async def test_forward_again_to_the_same_messages_is_the_same_request() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        for number in range(5):
            await take(run, number)
        whole: list[Any] = list(run.messages)
        run.append(said(5))
        kept = await run.before_model_call(model=MODEL)
        await run.after_model_call(contextbus.Report(status="failed"))
        await run.before_model_call(whole[:3], model=MODEL)
        await run.after_model_call(contextbus.Report(status="failed"))
        again = await run.before_model_call([*whole, said(5)], model=MODEL)
        assert texts(again) == texts(kept)
        assert again.manifest.cache_prefix_cause in ("compaction", "history")
        assert len(writer.asked) == 1
        # a list that holds what the checkpoint replaced is no difference
        listed = await run.before_model_call([*whole, said(5)], model=MODEL)
        assert listed.stored
        state = await state_of(bus, run)
        assert state.checkpoint is not None
        assert state.checkpoint.applies
        fresh = await bus.run("r", scope=SCOPE, compaction=compacting())
        seen = await fresh.before_model_call(model=MODEL)
        assert seen.payload("openai").json() == again.payload("openai").json()
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.H.5", "D.F.14", "C.E.9", "C.X.11")
async def test_records_of_a_block_in_the_range_are_owed_and_return() -> None:
    writer = Writer()
    rag = Scripted([contextbus.candidate("ci", "Deploys need CI.", 0.9)])
    async with opened(writer, rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], compaction=compacting())
        first = await take(run, 0)
        assert [e.reason for e in first.manifest.entries if e.selected] == ["ranked"]
        rag.answer = []
        steps = [await take(run, n) for n in range(1, 6)]
        compacted = next(s for s in steps if s.manifest.cache_prefix_cause == "compaction")
        assert [(e.record_id, e.reason) for e in compacted.manifest.entries if e.selected] == [("ci", "restored")]
        (completed,) = await events(bus, CompactionCompleted)
        assert [(r.source, r.record_id) for r in completed.records] == [("rag", "ci")]
        assert "Deploys need CI." not in "".join(str(m) for m in writer.asked[0].messages)
        assert sum("Deploys need CI." in t for t in texts(steps[-1])) == 1
        state = await state_of(bus, run)
        assert [(b.step, b.position) for b in state.blocks] == [(compacted.step, 9)]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.E.9", "C.X.1", "D.F.14")
async def test_a_block_right_behind_the_boundary_stays_where_it_is() -> None:
    writer = Writer()
    rag = Scripted()
    async with opened(writer, rag) as bus:
        given = compacting(12, keep=RetentionPolicy(keep_recent_tokens=450))
        run = await bus.run("r", scope=SCOPE, sources=["rag"], compaction=given)
        for number in range(6):
            rag.answer = [contextbus.candidate(str(number), f"Record {number}. " + "fact " * 40, 0.9)]
            await take(run, number, refresh=True)
        completed = await events(bus, CompactionCompleted)
        state = await state_of(bus, run)
        (last,) = completed
        assert (last.replaced_range.end, last.source_count) == (7, 5)  # five messages and two blocks
        assert [r.record_id for r in last.records] == ["0", "1"]
        assert [(b.step, b.position) for b in state.blocks] == [(2, 5), (3, 7), (4, 9), (5, 11)]
        fresh = await bus.run("r", scope=SCOPE, sources=["rag"], compaction=given)
        run.append(said(6))
        step = await run.before_model_call(model=MODEL)
        await fresh.load()
        assert (await fresh.before_model_call(model=MODEL)).payload("openai").json() == step.payload("openai").json()
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.X.6", "D.F.20", "D.F.9")
async def test_thinking_of_kept_messages_is_withheld_and_listed_where_it_is_bound() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        steps = [await take(run, n, thought(n), model=OPUS) for n in range(6)]
        (completed,) = await events(bus, CompactionCompleted)
        at = next(i for i, s in enumerate(steps) if s.manifest.cache_prefix_cause == "compaction")
        assert (at, completed.source_count) == (4, 5)
        assert completed.thinking == ((5, 6), (7, 8))
        assert hidden(steps[at]) == 2
        assert thoughts(steps[at]) == []
        assert thoughts(steps[at + 1]) == [f"sig-{at}"]  # what was written behind the new prefix is whole
        assert (await bus.verify("r")).is_clean


CALL = ChatMessage(
    role="assistant",
    content=(
        ToolCall(id="deploy-1", name="deploy", arguments="{}"),
        ApprovalRequest(id="approve-1", call_id="deploy-1"),
    ),
)
YES = ChatMessage(role="tool", content=(ApprovalResponse(id="approve-1", approved=True),))
RESULT = ChatMessage(role="tool", content=(ToolResult(id="deploy-1", name="deploy", content=(Text(text="Done."),)),))


@pytest.mark.rule("C.L.10", "C.D.6")
async def test_an_approval_behind_the_boundary_is_answered_later_and_keeps_the_checkpoint() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting(keep=RetentionPolicy(keep_last_messages=1)))
        for number in range(4):
            await take(run, number)
        run.append(said(4), CALL, said(5))
        await run.before_model_call(model=MODEL)
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[]))
        (completed,) = await events(bus, CompactionCompleted)
        assert completed.source_count == 9  # open work and what follows it stays
        run.append(YES, RESULT)
        step = await run.before_model_call(model=MODEL)
        state = await state_of(bus, run)
        assert state.checkpoint is not None
        assert state.checkpoint.applies
        assert sum("deploy-1" in str(m) for m in sent(step)) >= 2
        assert len(writer.asked) == 1
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.I.5", "D.R.2", "D.R.6")
async def test_an_overflow_compacts_and_then_compiles_again_for_less() -> None:
    writer = Writer()
    prepared: list[int] = []
    rewritten: list[str] = []

    def prepare_step(context: contextbus.StepContext) -> None:
        prepared.append(context.step)

    def rewrite_query(query: str, _: contextbus.StepContext) -> str:
        rewritten.append(query)
        return query

    rag = Scripted([contextbus.candidate("ci", "Deploys need CI.", 0.9)])
    async with opened(writer, rag) as bus:
        run = await bus.run(
            "r",
            scope=SCOPE,
            sources=["rag"],
            compaction=compacting(99),
            prepare_step=prepare_step,
            rewrite_query=rewrite_query,
        )
        for number in range(4):
            await take(run, number)
        run.append(said(4))
        first = await run.before_model_call(model=MODEL, refresh=True)
        count = (len(prepared), len(rewritten), len(rag.asked))
        again = await run.on_overflow()
        assert (len(prepared), len(rewritten), len(rag.asked)) == count
        assert len(writer.asked) == 1
        assert (again.step, again.manifest.refresh) == (first.step, "overflow-retry")
        assert again.manifest.budget.used_tokens < first.manifest.budget.used_tokens
        assert LABEL in texts(again)[0]
        (started,) = await events(bus, CompactionStarted)
        assert (started.cause, started.trigger_index) == ("overflow", None)
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[answered(4)]))
        step = await take(run, 5)
        assert texts(step)[: len(texts(again)) - 1] == texts(again)[:-1] or not step.manifest.cache_prefix_changed
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.R.2", "C.K.1", "D.W.4")
async def test_the_hosts_functions_run_once_in_a_step_that_compacts() -> None:
    writer = Writer()
    calls: list[str] = []

    def prepare_step(context: contextbus.StepContext) -> None:
        calls.append(f"prepare {context.step}")

    def rewrite_query(query: str, context: contextbus.StepContext) -> str:
        calls.append(f"rewrite {context.step}")
        return query

    rag = Scripted([contextbus.candidate("ci", "Deploys need CI.", 0.9)])
    async with opened(writer, rag) as bus:
        functions: dict[str, Any] = {"prepare_step": prepare_step, "rewrite_query": rewrite_query}
        run = await bus.run("r", scope=SCOPE, sources=["rag"], compaction=compacting(), **functions)
        for number in range(6):
            await take(run, number, refresh=True)
        assert len(writer.asked) >= 1
        assert calls == [f"{what} {n}" for n in range(6) for what in ("prepare", "rewrite")]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.M.5", "D.M.11", "C.C.11")
async def test_a_run_that_calibrates_compacts_by_what_it_learned() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        spec = EstimatorSpec(calibrate=True)
        run = await bus.run("r", scope=SCOPE, compaction=compacting(), estimator=spec)
        for number in range(10):
            run.append(said(number))
            step = await run.before_model_call(model=MODEL)
            used = step.manifest.budget.used_tokens
            usage = contextbus.Usage(input_tokens=used * 13 // 10)
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[answered(number)], usage=usage))
        assert len(await events(bus, CompactionCompleted)) >= 2
        assert (await state_of(bus, run)).estimator != spec
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.K.4", "C.F.8", "C.O.4", "C.O.7", "D.W.2")
async def test_what_a_summariser_raises_is_the_cause_and_its_text_stays_here() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        for number in range(4):
            await take(run, number)
        before = await state_of(bus, run)
        writer.text = ValueError(f"the provider said {SECRET}")
        run.append(said(4))
        with pytest.raises(SummariserFailedError) as raised:
            await run.before_model_call(model=MODEL)
        assert raised.value.__cause__ is writer.text
        (failed,) = await events(bus, CompactionFailed)
        assert (failed.phase, failed.reason, failed.origin_type) == ("compact", "error", "ValueError")
        log = await bus.log("r")
        assert SECRET.encode() not in b"".join(codec.encode_commit(c.commit) for c in log.commits)
        after = await state_of(bus, run)
        assert (after.checkpoint, after.history.count) == (before.checkpoint, before.history.count + 1)
        writer.text = "Short."
        step = await run.before_model_call(model=MODEL)
        assert LABEL in texts(step)[0]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.X.5")
async def test_a_run_that_goes_on_warns_its_host() -> None:
    writer = Writer()
    writer.text = ValueError("no")
    told: list[str] = []
    async with opened(writer) as bus:
        given = compacting(on_failure="continue")
        run = await bus.run("r", scope=SCOPE, compaction=given, on_warning=lambda w: told.append(w.code))
        for number in range(8):
            await take(run, number)
        assert told == ["compaction-failed"] * 4
        assert len(writer.asked) == 3
        state = await state_of(bus, run)
        assert state.failures.in_row == 3
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.D.2", "C.E.1", "C.E.3", "C.E.4", "C.L.2")
async def test_leading_system_messages_and_the_users_request_stand_around_the_summary() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting(6, keep=RetentionPolicy(keep_last_messages=2)))
        work: list[ChatMessage] = []
        for number in range(4):
            call = ToolCall(id=f"c{number}", name="look", arguments="{}")
            work.append(ChatMessage(role="assistant", content=(call,)))
            result = ToolResult(id=f"c{number}", name="look", content=(Text(text="seen " * 60),))
            work.append(ChatMessage(role="tool", content=(result,)))
        step = await run.before_model_call([system("Be brief."), said(0), *work], model=MODEL)
        roles = [m["role"] for m in sent(step)]
        assert roles == ["system", "user", "user", "assistant", "tool"]
        assert texts(step)[2].startswith("Question 0")
        assert step.payload("openai").repairs == ()
        (completed,) = await events(bus, CompactionCompleted)
        assert [(f.own, f.source) for f in completed.replacement] == [("", 0), ("summary", None), ("", 1)]
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[answered(0)]))
        for number in range(1, 4):
            await take(run, number)
        assert len(await events(bus, CompactionCompleted)) >= 2
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("C.K.9")
async def test_messages_added_while_it_waits_stay_and_the_step_goes_on() -> None:
    writer = Writer()
    async with opened(writer) as bus:
        run = await bus.run("r", scope=SCOPE, compaction=compacting())
        for number in range(4):
            await take(run, number)
        other = await bus.run("r", scope=SCOPE, compaction=compacting())

        async def append() -> None:
            await other.load()
            other.append(user("Meanwhile."))
            await other.flush()

        writer.meanwhile = append
        run.append(said(4))
        step = await run.before_model_call(model=MODEL)  # it is asked for again behind what came
        assert len(writer.asked) == 1
        (completed,) = await events(bus, CompactionCompleted)
        assert completed.source_count == 5
        assert [t for t in texts(step) if "Meanwhile." in t]
        assert (await state_of(bus, run)).history.count == 10
        assert LABEL in texts(step)[0]
        assert (await bus.verify("r")).is_clean

"""The query that sources are asked, as the host makes it of the step's own (D.A.9, D.G.16 to D.G.21)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.client.callbacks import Callbacks
from contextbus.client.request_view import RequestView
from contextbus.client.step_hooks import HookFunctions, StepHooks
from contextbus.core.history import SourceHistory
from contextbus_protocol import blobs
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.values import SourceStatus
from contextbus_protocol.working_memory import Task, TaskList, TasksInput

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])


async def last_event(bus: contextbus.ContextBus, run: str) -> StepCompiled:
    return [e for c in (await bus.log(run)).commits for e in c.commit.events if isinstance(e, StepCompiled)][-1]


@pytest.mark.rule("D.A.9", "D.G.16", "D.G.23", "D.D.25")
async def test_sources_are_asked_what_the_host_made_of_the_query() -> None:
    asked: list[tuple[str, int, tuple[contextbus.ChatMessage, ...]]] = []

    async def rewrite(query: str, step: StepContext) -> str:
        await asyncio.sleep(0)
        asked.append((query, step.step, step.messages))
        return "pipeline deploy"

    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=rewrite)
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert asked == [("How?", 0, (user("How?"),))]
        assert [q.text for q in rag.asked] == ["pipeline deploy"]
        assert [e.query for e in step.manifest.entries] == ["pipeline deploy"]
        event = await last_event(bus, "r")
        assert (event.rewritten, event.query_digest) == (True, digest_text("pipeline deploy"))
        output = blobs.decode_output((await bus.blobs(await bus.log("r")))[event.package])
        assert (output.query, output.user_text) == ("pipeline deploy", "How?")
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.A.9", "D.G.18")
async def test_one_function_serves_runs_and_compilers_and_sees_no_block_of_ours() -> None:
    seen: list[StepContext] = []

    def rewrite(query: str, step: StepContext) -> str:
        seen.append(step)
        return query.upper()

    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=rewrite)
        step = await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        await run.before_model_call([user("How?"), *step.placed_messages(), *DONE.messages], model=MODEL, refresh=True)
    compiler = contextbus.Compiler(sources=[rag], rewrite_query=rewrite)
    first = await compiler.before_model_call(run_id="r", step=0, messages=[user("How?")], model=MODEL)
    placed = [m for block in first.blocks if block.placement == "append" for m in block.messages]
    assert placed
    messages = [user("How?"), *placed, *DONE.messages]
    await compiler.before_model_call(run_id="r", step=1, messages=messages, model=MODEL, refresh=True)
    assert seen[:2] == seen[2:]
    assert [(s.run, s.step, len(s.messages), s.model) for s in seen[2:]] == [("r", 0, 1, MODEL), ("r", 1, 2, MODEL)]


class Counting(SourceHistory, frozen=True):
    """A history that counts how often its messages are read."""

    read: list[None] = msgspec.field(default_factory=list[None])

    def messages(self) -> list[contextbus.ChatMessage | None]:
        """Count one."""
        self.read.append(None)
        return super().messages()


@pytest.mark.rule("D.A.9", "D.W.4")
async def test_the_messages_are_read_only_when_a_function_is_asked() -> None:
    seen: list[StepContext] = []

    def rewrite(query: str, step: StepContext) -> str:
        seen.append(step)
        return query

    async with bus_with() as bus:

        async def read_view(_: object) -> RequestView:
            return RequestView(counting)

        hooks = StepHooks(model=MODEL, functions=HookFunctions(rewrite_query=rewrite))
        callbacks = Callbacks(bus.host, "r", hooks.answerers(), read_view)
        history = Counting().append([user("How?")], [0])
        counting = Counting(**{name: getattr(history, name) for name in SourceHistory.__struct_fields__})
        assert counting.read == []
        address, _ = bus.host.reply_address()
        question = AskCallback(
            run="r",
            command="c",
            token="t",
            reply_to=address,
            name="rewrite-query",
            step=4,
            seconds_left=1.0,
            query="q",
        )
        callbacks.take(question)
        for _ in range(20):
            await asyncio.sleep(0)
        callbacks.close()
        assert [(s.step, s.messages) for s in seen] == [(4, (user("How?"),))]
        assert len(counting.read) == 1


@pytest.mark.rule("D.A.9", "D.G.13", "D.R.7")
async def test_the_query_is_made_once_and_only_where_sources_are_asked() -> None:
    asked: list[str] = []

    def rewrite(query: str, _: StepContext) -> str:
        asked.append(query)
        return query.upper()

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=rewrite)
        await run.before_model_call([user("How?")], model=MODEL)
        await (await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=rewrite)).before_model_call(model=MODEL)
        await run.on_overflow()
        await run.after_model_call(DONE)
        run.append(user("And?"))
        await run.before_model_call(model=MODEL)  # reused
        await run.after_model_call(DONE)
        await run.before_model_call(model=MODEL, refresh=True)
        assert asked == ["How?", "And?"]
        none = await bus.run(scope=SCOPE, rewrite_query=rewrite)
        await none.before_model_call([user("Nobody is asked.")], model=MODEL)
        blank = await bus.run(scope=SCOPE, sources=["rag"], rewrite_query=rewrite)
        await blank.before_model_call([user(" \n")], model=MODEL)
        assert asked == ["How?", "And?"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.G.16", "D.G.19", "D.A.9")
async def test_the_host_sees_the_title_of_the_task_and_the_text_and_its_query_is_cut_too() -> None:
    asked: list[str] = []

    def rewrite(query: str, _: StepContext) -> str:
        asked.append(query)
        return "y" * 5_000

    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=rewrite)
        tasks = TasksInput(TaskList("Ship.", (Task("t", "Roll back", "in_progress"),)), "t")
        await run.working_memory.create(tasks=tasks)
        await run.before_model_call([user("x" * 3_000)], model=MODEL)
        assert asked == ["Roll back\n" + "x" * 1_990]
        assert [q.text for q in rag.asked] == ["y" * 2_000]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.A.9", "D.G.17")
async def test_the_host_makes_its_query_of_the_messages_that_it_prepared() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(
            "r",
            scope=SCOPE,
            sources=["rag"],
            prepare_step=lambda _: PreparedStep(messages=[user("Prepared?")]),
            rewrite_query=lambda query, _: f"rewritten {query}",
        )
        await run.before_model_call([user("How?")], model=MODEL)
        assert [q.text for q in rag.asked] == ["rewritten Prepared?"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.G.21", "D.G.22", "D.A.9")
@pytest.mark.parametrize("blank", ["", " \n\t"])
async def test_a_query_that_was_made_blank_asks_nobody_and_the_refresh_stays_due(blank: str) -> None:
    rag, queries = Scripted([CI]), [blank, "deploy"]
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=lambda _, __: queries.pop(0))
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (step.manifest.refresh, step.manifest.pass_) == ("initial", 0)
        assert [s.status for s in step.manifest.sources] == [SourceStatus.SKIPPED]
        assert (await last_event(bus, "r")).rewritten
        await run.after_model_call(DONE)
        step = await run.before_model_call(model=MODEL)
        assert (step.manifest.refresh, step.manifest.pass_) == ("initial", 1)
        assert [q.text for q in rag.asked] == ["deploy"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.A.9", "D.M.7")
async def test_a_lone_surrogate_in_a_query_becomes_the_replacement_character() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], rewrite_query=lambda _, __: "half \ud83d")
        await run.before_model_call([user("How?")], model=MODEL)
        assert [q.text for q in rag.asked] == ["half \ufffd"]
        assert (await bus.verify("r")).is_clean

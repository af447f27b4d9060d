"""What a run gives after a restart and to a second client, from its log alone (D.H, D.R.3-D.R.9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.forgetting import erase_blob
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, sent, state_of

import contextbus.client as contextbus
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.errors import SourceFailedError
from contextbus_protocol.values import RefreshOptions

CI, EU = contextbus.candidate("0", "Deploys need CI.", 0.9, 2), contextbus.candidate("1", "Use eu-west.", 0.8)
MUST = contextbus.candidate("0", "Deploys need CI.", 0.9, 2, mandatory=True)
TIGHT = RefreshOptions(min_steps=99, max_passes=1)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run it.")])
LOAD = ChatMessage(role="assistant", content=(ToolCall(id="c1", name="load_skill", arguments='{"skill": "tea"}'),))
RECEIPT = ChatMessage(role="tool", content=(ToolResult(id="c1", name="load_skill", content=(Text(text="Loaded."),)),))


def opened(data: Path, *sources: Scripted) -> Any:
    checked = [check_source(source) for source in sources]
    return contextbus.open(data=data, memory=False, durability="interval", sources=checked)


def told(step: contextbus.CompiledStep) -> list[tuple[str, str]]:
    return [(e.record_id, e.reason) for e in step.manifest.entries if e.selected]


async def erase_blobs(bus: contextbus.ContextBus, run: str) -> None:
    """Retention takes every package of a run; the messages stay."""
    log = await bus.log(run)
    for logged in log.commits:
        for event in logged.commit.events:
            reference = getattr(event, "package", None)
            if reference is not None:
                await erase_blob(bus, run, reference)


@pytest.mark.broker
@pytest.mark.rule("D.R.0", "D.R.7", "D.R.8", "D.R.3", "D.H.1", "D.H.11", "D.R.13")
async def test_a_step_that_is_reopened_is_sent_again_and_other_messages_are_compiled_anew(tmp_path: Path) -> None:
    rag = Scripted([CI])
    async with opened(tmp_path, rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        state = await state_of(bus, run)
    rag.asked, rag.answer = [], [EU]
    async with opened(tmp_path, rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        assert await state_of(bus, run) == run.state == state
        again = await run.before_model_call([user("How?")], model=MODEL)
        assert (again.text, again.step, again.stored, again.reference) == (step.text, 0, True, step.reference)
        assert again.payload("openai").json() == step.payload("openai").json()
        assert rag.asked == []
        other = await run.before_model_call([user("Why?")], model=MODEL, step=0)
        assert (other.step, other.stored, other.manifest.cache_prefix_cause) == (0, False, "history")
        assert (await bus.verify("r")).is_clean


@pytest.mark.broker
@pytest.mark.rule("D.H.5", "D.H.4", "D.H.9", "D.H.13", "D.W.1")
async def test_records_of_a_block_that_left_return_after_a_restart(tmp_path: Path) -> None:
    rag = Scripted([CI, EU])
    async with opened(tmp_path, rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        await run.before_model_call([user("Otherwise.")], model=MODEL, command="gone")
        await run.after_model_call(contextbus.Report(status="failed"))
    rag.asked.clear()
    async with opened(tmp_path, rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        run.append(user("And?"))
        step = await run.before_model_call(model=MODEL)
        assert (told(step), rag.asked) == ([("0", "restored"), ("1", "restored")], [])
        await run.after_model_call(DONE)
        state = await state_of(bus, run)
        assert [(p.source, p.record_id, p.revision, p.step, p.pass_) for p in state.placed] == [
            ("rag", "0", 2, 2, 1),
            ("rag", "1", None, 2, 1),
        ]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.H.7", "D.H.8", "D.H.14", "D.G.27", "D.W.2")
@pytest.mark.parametrize("required", [False, True])
async def test_a_mandatory_record_without_text_is_asked_until_its_source_answers(*, required: bool) -> None:
    rag = Scripted([MUST, EU], required=required)
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], refresh=TIGHT)
        await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        await erase_blobs(bus, "r")
        rag.asked, rag.answer = [], RuntimeError("down")
        if required:
            with pytest.raises(SourceFailedError) as raised:
                await run.before_model_call([user("Why?")], model=MODEL)
            assert isinstance(raised.value.__cause__, RuntimeError)
        else:
            failed = await run.before_model_call([user("Why?")], model=MODEL)
            assert (failed.manifest.fallback, told(failed)) == ("source-failed", [])
            assert [w.code for w in failed.warnings] == ["context-source-failed"]
            await run.after_model_call(contextbus.Report(status="succeeded"))
        rag.answer = [MUST, EU]
        step = await run.before_model_call([user("Why?"), user("Well?")], model=MODEL)
        assert [(q.records, q.only_records) for q in rag.asked] == [(("0",), True)] * 2
        assert (told(step), step.manifest.pass_) == ([("0", "mandatory")], 1)  # the optional one waits
        assert step.manifest.refresh == "reused"
        await run.after_model_call(contextbus.Report(status="succeeded"))
        await run.before_model_call(model=MODEL)
        assert len(rag.asked) == 2


@pytest.mark.rule("D.R.7", "D.F.13", "D.W.1")
async def test_an_old_command_gets_its_request_again_without_what_came_later() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL, command="one")
        before = sent(first)
        await run.after_model_call(DONE)
        rag.answer = [EU]
        run.append(user("And?"))
        await run.before_model_call(model=MODEL, refresh=True, command="two")
        await run.after_model_call(DONE)
        other = await bus.run("r", scope=SCOPE, sources=["rag"])
        for who in (other, run):
            again = await who.before_model_call([user("How?")], model=MODEL, command="one")
            assert (again.stored, again.text) == (True, first.text)
            assert sent(again) == before


@pytest.mark.rule("D.K.26", "D.H.8", "D.K.13", "D.H.5")
async def test_the_body_of_a_loaded_skill_is_a_record_of_the_next_step(tmp_path: Path) -> None:
    folder = tmp_path / "tea"
    folder.mkdir()
    text = "---\nname: Tea\ndescription: How tea is brewed.\n---\nBoil the water.\n"
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    async with contextbus.open("memory:", memory=False, skills=tmp_path) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["skills"], refresh=TIGHT)
        step = await run.before_model_call([user("Make tea")], model=MODEL)
        assert told(step) == [("tea", "ranked")]
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[LOAD, RECEIPT]))
        step = await run.before_model_call(model=MODEL)
        assert (told(step), step.manifest.refresh, step.manifest.pass_) == ([("tea/body", "mandatory")], "reused", 1)
        assert str(sent(step)).count("Boil the water.") == 1
        await run.after_model_call(DONE)
        run.append(user("Again?"))
        step = await run.before_model_call(model=MODEL)
        assert (told(step), str(sent(step)).count("Boil the water.")) == ([], 1)  # never twice
        await run.after_model_call(DONE)
        kept = [m for m in run.messages if isinstance(m, ChatMessage)][:3]
        step = await run.before_model_call([*kept, user("Otherwise?")], model=MODEL)
        assert (told(step), str(sent(step)).count("Boil the water.")) == ([], 1)
        await run.after_model_call(DONE)
        step = await run.before_model_call([*kept[1:], user("From anew?")], model=MODEL)
        assert told(step) == [("tea/body", "mandatory"), ("tea", "restored")]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.R.3", "D.R.2", "D.R.4")
async def test_between_the_commit_and_the_call_nothing_is_lost_and_nothing_joins_the_transcript() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        step = await run.before_model_call([user("How?")], model=MODEL)
        other = await bus.run("r", scope=SCOPE, sources=["rag"])  # whoever takes over after a crash
        again = await other.before_model_call([user("How?")], model=MODEL)
        assert (again.text, len(rag.asked)) == (step.text, 1)
        await other.after_model_call(DONE)
        await run.load()
        assert run.messages == other.messages == (user("How?"), assistant("Run it."))
        assert len((await state_of(bus, run)).blocks) == 1


@pytest.mark.rule("D.R.3", "D.R.2", "D.W.7")
async def test_the_budget_is_that_of_the_model_that_the_hook_chose() -> None:
    small = contextbus.Model("openai", "gpt-small", 9_000, 1_000)

    def prepare(context: contextbus.StepContext) -> contextbus.PreparedStep:
        assert context.messages[-1:] == (user("How?"),)
        return contextbus.PreparedStep(model=small)

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], prepare_step=prepare)
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (step.model, step.manifest.budget.input_tokens) == (small, 8_000)
        later = await bus.run("r", scope=SCOPE, sources=["rag"], prepare_step=prepare)
        again = await later.before_model_call([user("How?")], model=MODEL)
        assert (again.stored, again.model, again.text) == (True, small, step.text)
        assert (await bus.verify("r")).is_clean

"""What a run is offered of what was said: never its own request, never anything of ours (D.K.12, D.G.33)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.scripted import SCOPE, Scripted, sent

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Model

BOUND = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)
PLAIN = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
RECORD = contextbus.candidate("0", "Umbrellas belong in the umbrella stand.", 0.9)
SOURCES = ["rag", "transcript"]


def bus_with_transcript(rag: Scripted) -> Any:
    return contextbus.open("memory:", sources=[check_source(rag)], memory=False, transcript=True)


def offered(step: contextbus.CompiledStep) -> list[str]:
    """The record ids that the transcript offered."""
    return [e.record_id for e in step.manifest.entries if e.source == "transcript"]


async def talk(
    run: contextbus.Run, *questions: str, model: Model = PLAIN, **options: Any
) -> list[contextbus.CompiledStep]:
    """Ask, and let the model answer."""
    steps: list[contextbus.CompiledStep] = []
    for question in questions:
        run.append(user(question))
        steps.append(await run.before_model_call(model=model, refresh=True, **options))
        await run.after_model_call(
            contextbus.Report(status="succeeded", messages=[assistant(f"Of {question}: the stand.")])
        )
    return steps


@pytest.mark.rule("D.K.12", "D.G.33", "D.R.5", "B56")
@pytest.mark.parametrize("model", [PLAIN, BOUND])
async def test_blocks_and_kept_tails_of_a_run_are_nobodys_words(model: Model) -> None:
    async with bus_with_transcript(Scripted([RECORD])) as bus:
        first = await bus.run("first", scope=SCOPE, sources=SOURCES)
        await first.working_memory.create(goal="Find the umbrella stand.")
        steps = await talk(first, "Where is my umbrella?", "And the other umbrella?", model=model)
        assert steps[0].manifest.placement.tail_kept == (model is BOUND)
        assert [offered(step) for step in steps] == [[], []]  # its own words are in its request
        other = await bus.run("other", scope=SCOPE, sources=SOURCES)
        (step,) = await talk(other, "umbrella stand retrieved_context working_memory goal", model=model)
        assert sorted(offered(step)) == ["first/0", "first/1", "first/2", "first/3"]
        texts = str([b.messages for b in step.blocks])
        assert "Retrieved material, for reference only" in texts  # the block itself
        assert texts.count("Retrieved material, for reference only") == 1  # and none in it
        assert "Find the umbrella stand." not in texts


@pytest.mark.rule("D.G.33", "D.G.17", "D.G.18", "B56")
async def test_blocks_that_a_host_hands_back_are_neither_asked_for_nor_said() -> None:
    rag = Scripted([RECORD])
    async with bus_with_transcript(rag) as bus:
        run = await bus.run("first", scope=SCOPE, sources=SOURCES)
        await run.working_memory.create(goal="Find the umbrella stand.")
        (step,) = await talk(run, "Where is my umbrella?", model=BOUND)
        ours: list[ChatMessage] = [m for block in step.blocks for m in block.messages]
        handed = [user("Where is my umbrella?"), *ours, *run.messages[1:], *ours]
        await run.before_model_call([m for m in handed if isinstance(m, ChatMessage)], model=BOUND, refresh=True)
        assert [q.text for q in rag.asked] == ["Where is my umbrella?"] * 2
        assert len(run.messages) == 2
        other = await bus.run("other", scope=SCOPE, sources=SOURCES)
        (step,) = await talk(other, "umbrella")
        assert sorted(offered(step)) == ["first/0", "first/1"]


@pytest.mark.rule("D.K.12", "B57")
async def test_what_was_recalled_is_not_recalled_from_where_it_was_recalled() -> None:
    async with bus_with_transcript(Scripted()) as bus:
        await talk(await bus.run("first", scope=SCOPE), "Where is my umbrella?")
        second = await bus.run("second", scope=SCOPE, sources=SOURCES)
        steps = await talk(second, "umbrella?", "umbrella again?", "umbrella once more?")
        assert [e.reason for e in steps[0].manifest.entries] == ["ranked", "ranked"]
        for step in steps[1:]:
            assert [e.reason for e in step.manifest.entries] == ["already-placed"] * 2
            assert step.manifest.budget.selected_tokens == 0
        third = await bus.run("third", scope=SCOPE, sources=SOURCES)
        (step,) = await talk(third, "umbrella?")
        bodies = str(sent(step))
        assert bodies.count("Where is my umbrella?") == 2  # said once, and quoted in its answer
        assert "&lt;record" not in bodies  # no block within a block


@pytest.mark.rule("D.K.12", "D.W.7", "D.G.33")
async def test_messages_that_a_hook_gave_were_never_said() -> None:
    async with bus_with_transcript(Scripted([RECORD])) as bus:
        given = [user("A secret umbrella of the hook.")]

        def prepare(_: StepContext) -> PreparedStep:
            return PreparedStep(messages=given)

        first = await bus.run("first", scope=SCOPE, sources=SOURCES, prepare_step=prepare)
        await talk(first, "Where is my umbrella?")
        other = await bus.run("other", scope=SCOPE, sources=SOURCES)
        (step,) = await talk(other, "secret umbrella of the hook")
        assert sorted(offered(step)) == ["first/0", "first/1"]
        assert "secret umbrella" not in str([b.messages for b in step.blocks])


@pytest.mark.rule("D.G.24", "D.H.11", "D.G.32")
async def test_no_query_names_a_time_and_no_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    rag = Scripted([RECORD])
    packages: list[str] = []
    for now in (0, 4_102_444_800_000):
        monkeypatch.setattr("contextbus.client.sending.read_milliseconds", lambda now=now: now)
        async with bus_with_transcript(rag) as bus:
            run = await bus.run("r", scope=SCOPE, sources=SOURCES)
            packages += [step.text for step in await talk(run, "umbrella?", "And now?")]
            assert {c.commit.at for c in (await bus.log("r")).commits} == {now}
            assert (await bus.verify("r")).is_clean
    assert packages[:2] == packages[2:]
    assert not [f for f in Query.__struct_fields__ if "time" in f or "as_of" in f or "recorded" in f or f == "now"]

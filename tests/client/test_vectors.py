"""Examples 1 and 2 number by number, through the client and the actors (D.V1, D.V2)."""

from __future__ import annotations

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, state_of, text_in, text_of

import contextbus.client as contextbus
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.package import BlockPlacement
from contextbus_protocol.values import SOURCE_KINDS, Model, Provenance

QUESTION = "How do I deploy?"
CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
TAG = contextbus.candidate("1", "Rollbacks use the previous image tag.", 0.4)
REGION = contextbus.candidate(
    "mem-1", "Every deploy goes to eu-west.", 1.0, 1, provenance=Provenance("asserted", ("host",))
)


def placements(step: contextbus.CompiledStep) -> list[BlockPlacement]:
    return [block.placement for block in step.blocks]


def entries(step: contextbus.CompiledStep) -> list[tuple[str, str, bool, str]]:
    return [(e.source, e.record_id, e.selected, e.reason) for e in step.manifest.entries]


@pytest.mark.rule(
    "D.V1.1", "D.V1.2", "D.V1.4", "D.V1.5", "D.V1.6", "D.V1.7", "D.V1.8", "D.A.1", "D.B.2", "D.B.3", "D.G.23"
)
async def test_example_1() -> None:
    memory, rag = Scripted([REGION], id="memory", kind="memory"), Scripted([CI, TAG])
    async with bus_with(memory, rag) as bus:
        run = await bus.run("run-1", scope=SCOPE, sources=["memory", "rag"], estimator=CHARACTERS)
        await run.working_memory.create(
            scope="acme", goal="Deploy the billing service.", constraints=["No deploys on Friday."]
        )
        model = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)
        step = await run.before_model_call([user(QUESTION)], model=model)
        verdict = await bus.verify("run-1")

    manifest = step.manifest
    budget = manifest.budget
    assert (budget.input_tokens, budget.used_tokens, budget.context_tokens) == (192_000, 9, 8192)
    assert (budget.working_memory_tokens, budget.selected_tokens) == (97, 270)
    (asked,) = memory.asked
    assert (asked.text, asked.limit, asked.scope, asked.budget_tokens) == (QUESTION, 16, SCOPE, 2833)
    assert [q.budget_tokens for q in rag.asked] == [3238]
    assert (manifest.pass_, manifest.refresh, manifest.fallback) == (1, "initial", None)
    assert (manifest.cache_prefix_changed, manifest.redacted) == (False, False)
    estimator = manifest.estimator
    assert (estimator.kind, estimator.calibrated, estimator.name) == ("heuristic", False, "characters")
    assert placements(step) == ["append", "ephemeral-tail"]
    assert entries(step) == [
        ("working-memory", "goal", True, "mandatory"),
        ("working-memory", "constraint/constraints-0-0", True, "mandatory"),
        ("memory", "mem-1", True, "ranked"),
        ("rag", "0", True, "ranked"),
        ("rag", "1", True, "ranked"),
    ]
    assert [e.tokens for e in manifest.entries] == [12, 12, 40, 22, 25]
    assert [e.digest for e in manifest.entries[2:]] == [
        "sha256:30ebe05fa377231ec37fcb490c041fbbfcb5aba85941fe177b9b46a466effe1b",
        "sha256:cc3add54a0f14586a23ccf1084e71eaafcfa89f4924230e93dc96350ea8c7a41",
        "sha256:e20b36e5c46d16a89a444b1f37ed20d9474ae08d1926a9516e3501edd6a23084",
    ]
    assert [(s.source, s.selected, s.excluded, s.tokens) for s in manifest.sources] == [
        ("memory", 1, 0, 40),
        ("rag", 2, 0, 47),
    ]
    assert [len(text_of(block)) for block in step.blocks] == [603, 328]
    assert (verdict.is_clean, verdict.steps) == (True, 1)


@pytest.mark.rule("D.A.1", "D.B.9")
async def test_four_kinds_of_material_share_one_budget() -> None:
    kinds = SOURCE_KINDS
    sources = [Scripted([contextbus.candidate("r", f"text of {k}", 0.5)], id=k, kind=k) for k in kinds]
    async with bus_with(*sources) as bus:
        run = await bus.run(scope=SCOPE, sources=list(kinds), estimator=CHARACTERS)
        step = await run.before_model_call([user(QUESTION)], model=MODEL)
    assert [(e.kind, e.selected) for e in step.manifest.entries] == [(k, True) for k in kinds]
    assert [s.asked[0].budget_tokens for s in sources] == [2867, 3276, 1228, 819]  # shares of 8192


@pytest.mark.rule("D.V2.1", "D.V2.2", "D.V2.3", "D.G.13", "D.G.14", "D.G.18", "D.G.29", "D.G.30", "D.F.18", "D.F.2")
async def test_example_2() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("run-2", scope=SCOPE, sources=["rag"], estimator=CHARACTERS)

        step = await run.before_model_call([user(QUESTION)], model=MODEL)
        budget = step.manifest.budget
        assert (budget.input_tokens, budget.used_tokens, budget.context_tokens) == (120_000, 9, 8192)
        assert (step.manifest.refresh, step.manifest.pass_) == ("initial", 1)
        assert entries(step) == [("rag", "0", True, "ranked")]
        assert placements(step) == ["append"]
        assert len(text_of(step.blocks[0])) == 374
        assert step.manifest.entries[0].tokens == 22
        assert budget.selected_tokens == 108
        assert not step.manifest.cache_prefix_changed
        state = await state_of(bus, run)
        assert (state.passes, state.last_refresh_step) == (1, 0)
        block = step.messages_of("append")
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")]))

        step = await run.before_model_call(model=MODEL)
        assert (step.step, step.manifest.refresh, step.manifest.pass_) == (1, "reused", 1)
        assert (step.blocks, step.manifest.entries, step.manifest.sources) == ((), (), ())
        assert not step.manifest.cache_prefix_changed
        assert (await state_of(bus, run)).passes == 1
        assert len(rag.asked) == 1
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("Done.")]))

        await run.request_refresh()
        step = await run.before_model_call(model=MODEL)
        assert [q.text for q in rag.asked] == [QUESTION, QUESTION]
        assert (step.step, step.manifest.refresh, step.manifest.pass_) == (2, "host-request", 2)
        assert entries(step) == [("rag", "0", False, "already-placed")]
        assert (step.blocks, step.manifest.cache_prefix_changed) == ((), False)
        state = await state_of(bus, run)
        assert (state.passes, state.last_refresh_step) == (2, 2)
        assert [m["role"] for m in sent(step)] == ["user", "user", "assistant", "assistant"]
        assert sent(step)[1]["content"] == text_in(block[0])
        assert (await bus.verify("run-2")).steps == 3


@pytest.mark.rule("D.V2.4", "D.G.10", "D.G.11", "D.G.12", "D.G.31")
async def test_example_2_with_twelve_due_refreshes() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        told: list[tuple[str, str | None]] = []
        for number in range(13):
            messages = [user(QUESTION)] if number == 0 else None
            step = await run.before_model_call(messages, model=MODEL, refresh=0 < number < 12)
            told.append((step.manifest.refresh, step.manifest.fallback))
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant(f"Turn {number}.")]))
    assert len(rag.asked) == 8
    assert told == [
        ("initial", None),
        *[("host-request", None)] * 7,
        *[("reused", "pass-limit")] * 4,
        ("reused", None),
    ]


@pytest.mark.rule("D.V2.6", "D.C.11", "D.F.3")
async def test_example_2_with_a_changed_record() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        first = await run.before_model_call([user(QUESTION)], model=MODEL)
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")]))
        before = first.payload("openai").chunks()
        rag.answer = [contextbus.candidate("0", "Deploys need two green CI runs.", 0.9)]
        second = await run.before_model_call(model=MODEL, refresh=True)
    assert entries(second) == [("rag", "0", True, "ranked")]
    assert second.manifest.entries[0].digest == digest_text("Deploys need two green CI runs.")
    assert "two green" in text_of(second.blocks[0])
    old, new = b"".join(before), b"".join(second.payload("openai").chunks())
    shared = old.rstrip(b"]}")
    assert new.startswith(shared)
    assert not second.manifest.cache_prefix_changed

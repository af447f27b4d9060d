"""Examples 1 and 2 number by number, through a compiler that a host uses by itself (D.V1, D.V2)."""

from __future__ import annotations

import pytest
from tests.client.compiling import BOUND, CHARACTERS, CI, MODEL, QUESTION, TAG, Host, appended, entries, placements
from tests.client.scripted import SCOPE, Scripted, text_of

import contextbus.client as contextbus
from contextbus.core.history import digest_message
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.values import Provenance, RefreshOptions

REGION = contextbus.candidate(
    "mem-1", "Every deploy goes to eu-west.", 1.0, 1, provenance=Provenance("asserted", ("host",))
)


@pytest.mark.rule(
    "D.V1.1", "D.V1.2", "D.V1.3", "D.V1.4", "D.V1.5", "D.V1.6", "D.V1.7", "D.V1.8", "D.F.10", "D.F.16", "D.G.1", "D.A.5"
)
async def test_example_1() -> None:
    memory, rag = Scripted([REGION], id="memory", kind="memory"), Scripted([CI, TAG])
    compiler = contextbus.Compiler(scope=SCOPE, sources=[memory, rag], estimator=CHARACTERS)
    package = await compiler.before_model_call(
        run_id="run-1",
        step=0,
        messages=[{"role": "user", "content": QUESTION}],
        model=BOUND,
        overhead_tokens=0,
        working_memory=contextbus.create_working_memory(
            scope="acme", now=0, goal="Deploy the billing service.", constraints=["No deploys on Friday."]
        ),
    )
    manifest, budget = package.manifest, package.manifest.budget
    assert (budget.input_tokens, budget.used_tokens, budget.context_tokens) == (192_000, 9, 8192)
    assert (budget.working_memory_tokens, budget.selected_tokens) == (97, 270)
    assert [(q.text, q.limit, q.scope, q.budget_tokens) for q in memory.asked] == [(QUESTION, 16, SCOPE, 2833)]
    assert [q.budget_tokens for q in rag.asked] == [3238]
    assert (manifest.version, manifest.pass_, manifest.refresh, manifest.fallback) == (1, 1, "initial", None)
    assert (manifest.cache_prefix_changed, manifest.redacted, manifest.package) == (False, False, None)
    estimator = manifest.estimator
    assert (estimator.kind, estimator.calibrated, estimator.name) == ("heuristic", False, "characters")
    assert placements(package) == ["append", "ephemeral-tail"]
    assert [m.role for block in package.blocks for m in block.messages] == ["user", "user"]
    assert manifest.placement.tail_kept
    assert [(e.source, e.record_id, e.selected, e.reason) for e in manifest.entries] == [
        ("working-memory", "goal", True, "mandatory"),
        ("working-memory", "constraint/constraints-0-0", True, "mandatory"),
        ("memory", "mem-1", True, "ranked"),
        ("rag", "0", True, "ranked"),
        ("rag", "1", True, "ranked"),
    ]
    assert [e.tokens for e in manifest.entries] == [12, 12, 40, 22, 25]
    assert [e.digest[:15] for e in manifest.entries[2:]] == ["sha256:30ebe05f", "sha256:cc3add54", "sha256:e20b36e5"]
    assert [(s.source, s.selected, s.excluded) for s in manifest.sources] == [("memory", 1, 0), ("rag", 2, 0)]
    assert [len(text_of(block)) for block in package.blocks] == [603, 328]


@pytest.mark.rule("D.V2.1", "D.V2.2", "D.V2.3", "D.G.13", "D.G.14", "D.G.18", "D.G.30", "D.F.18", "D.F.6", "D.C.10")
async def test_example_2() -> None:
    rag = Scripted([CI])
    compiler = contextbus.Compiler(sources=[rag], estimator=CHARACTERS)
    host = Host(compiler)

    first = await host.compile()
    budget = first.manifest.budget
    assert (budget.input_tokens, budget.used_tokens, budget.context_tokens) == (120_000, 9, 8192)
    assert (first.manifest.refresh, first.manifest.pass_) == ("initial", 1)
    assert entries(first) == [("0", True, "ranked")]
    assert placements(first) == ["append"]
    assert len(text_of(first.blocks[0])) == 374
    assert budget.selected_tokens == 108
    assert not first.manifest.cache_prefix_changed
    assert (compiler.state().passes, compiler.state().last_refresh_step) == (1, 0)

    host.history += [*first.blocks[0].messages, assistant("Checking CI.")]
    host.step = 1
    second = await host.compile()
    assert (second.manifest.refresh, second.blocks, second.manifest.entries) == ("reused", (), ())
    assert (second.manifest.sources, second.manifest.cache_prefix_changed) == ((), False)
    assert compiler.state().passes == 1
    assert len(rag.asked) == 1

    compiler.request_refresh()
    host.step = 2
    third = await host.compile()
    assert [q.text for q in rag.asked] == [QUESTION, QUESTION]
    assert third.manifest.refresh == "host-request"
    assert entries(third) == [("0", False, "already-placed")]
    assert third.blocks == ()
    assert (compiler.state().passes, compiler.state().last_refresh_step) == (2, 2)

    host.step = 3
    assert (await host.compile()).manifest.refresh == "reused"
    assert len(rag.asked) == 2


@pytest.mark.rule("D.V2.4", "D.G.10", "D.G.11", "D.G.12", "D.G.31")
async def test_example_2_with_twelve_due_refreshes() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag], refresh=RefreshOptions(max_passes=8)))
    told: list[tuple[str, str | None]] = []
    for number in range(13):
        manifest = (await host.turn(refresh=0 < number < 12)).manifest
        told.append((manifest.refresh, manifest.fallback))
    assert len(rag.asked) == 8
    assert told == [
        ("initial", None),
        *[("host-request", None)] * 7,
        *[("reused", "pass-limit")] * 4,
        ("reused", None),
    ]
    assert host.compiler.state().passes == 8


@pytest.mark.rule("D.V2.5", "D.H.5", "D.H.6", "D.H.7", "D.H.10", "D.F.14", "D.F.15", "D.F.22", "D.Y.2")
async def test_example_2_with_a_dropped_block() -> None:
    rag = Scripted([CI])
    compiler = contextbus.Compiler(sources=[rag], estimator=CHARACTERS)
    first = await Host(compiler).compile()
    again = contextbus.Compiler(sources=[rag], estimator=CHARACTERS, state=compiler.state())
    dropped = [user(QUESTION), assistant("Checking CI.")]

    same = await compiler.before_model_call(run_id="r", step=1, messages=dropped, model=MODEL)
    assert entries(same) == [("0", True, "restored")]
    assert CI.text in text_of(same.blocks[0])
    assert (same.manifest.refresh, same.manifest.pass_, same.manifest.sources) == ("reused", 1, ())
    assert (same.manifest.cache_prefix_changed, same.manifest.cache_prefix_cause) == (True, "history")
    assert digest_message(appended(same)[0]) != digest_message(appended(first)[0])  # its own step

    restarted = await again.before_model_call(run_id="r", step=1, messages=dropped, model=MODEL)
    assert (restarted.blocks, restarted.manifest.entries, restarted.manifest.refresh) == ((), (), "reused")
    assert restarted.manifest.cache_prefix_changed
    assert len(rag.asked) == 1

    later = await again.before_model_call(run_id="r", step=2, messages=dropped, model=MODEL, refresh=True)
    assert entries(later) == [("0", True, "ranked")]


@pytest.mark.rule("D.V2.6", "D.C.11", "D.F.3", "D.F.2")
async def test_example_2_with_a_changed_record() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag], estimator=CHARACTERS))
    first = await host.turn()
    rag.answer = [contextbus.candidate("0", "Deploys need two green CI runs.", 0.9)]
    second = await host.turn(refresh=True)
    assert entries(second) == [("0", True, "ranked")]
    assert second.manifest.entries[0].digest == digest_text("Deploys need two green CI runs.")
    assert appended(first)[0] in host.history
    assert not second.manifest.cache_prefix_changed
    third = await host.turn()
    assert (third.blocks, third.manifest.cache_prefix_changed) == ((), False)

"""Placement of a decided step, and example 2 as far as one compile shows it (D.E, D.F, D.V2)."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide
from contextbus.core.estimate import make_estimator
from contextbus.core.placement import place
from contextbus.core.working_memory_items import list_items, render_working_memory
from contextbus_protocol.chat import Text
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.package import Block
from contextbus_protocol.values import Candidate, ContextBudget, EstimatorSpec, PlacedEntry, SourceResult
from contextbus_protocol.working_memory import Goal, Observation, WorkingMemorySnapshot

ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
QUERY = "How do I deploy?"
DOCS = SourceResult(
    "rag",
    "rag",
    candidates=(
        Candidate(
            "0",
            "Deploys need a green CI run.",
            0.9,
            "sha256:cc3add54a0f14586a23ccf1084e71eaafcfa89f4924230e93dc96350ea8c7a41",
        ),
    ),
)
STEP = ContextInput(run_id="r", step=0, input_tokens=120_000, used_tokens=9, results=(DOCS,), query=QUERY)
STANDING = PlacedEntry("rag", "0", DOCS.candidates[0].digest, step=0, pass_=1, tokens=22)


def text_of(block: Block) -> str:
    (part,) = block.messages[0].content
    assert isinstance(part, Text)
    return part.text


def snapshot(*observations: str, goal: str | None = None) -> WorkingMemorySnapshot:
    return WorkingMemorySnapshot(
        version=1,
        scope="s",
        revision=9,
        goal=None if goal is None else Goal(text=goal, writer="host", revision=0, changed_at=0),
        observations=tuple(
            Observation(id=f"o-{number}", text=text, writer="model", revision=0, changed_at=0)
            for number, text in enumerate(observations)
        ),
    )


@pytest.mark.rule("D.V2.1", "D.F.6", "D.F.16")
def test_v2_1_first_step() -> None:
    package = compile_context(STEP, ESTIMATOR)
    manifest = package.manifest
    assert manifest.budget.context_tokens == 8192
    assert [(e.source, e.record_id, e.selected, e.reason) for e in manifest.entries] == [("rag", "0", True, "ranked")]
    assert [block.placement for block in package.blocks] == ["append"]
    assert len(text_of(package.blocks[0])) == 374
    assert manifest.budget.selected_tokens == 86 + 22
    assert (manifest.refresh, manifest.pass_, manifest.cache_prefix_changed) == ("initial", 1, False)


@pytest.mark.rule("D.V2.2", "D.G.14", "D.D.24")
def test_v2_2_reused_step() -> None:
    step = ContextInput(run_id="r", step=1, input_tokens=120_000, used_tokens=130, placed=(STANDING,), refresh="reused")
    package = compile_context(step, ESTIMATOR)
    assert (package.blocks, package.manifest.entries, package.manifest.refresh) == ((), (), "reused")


@pytest.mark.rule("D.V2.3", "D.E.10", "D.C.10", "D.F.2")
def test_v2_3_host_request_places_nothing_twice() -> None:
    step = msgspec.structs.replace(STEP, step=2, placed=(STANDING,), refresh="host-request", pass_=2)
    package = compile_context(step, ESTIMATOR)
    assert [(e.record_id, e.selected, e.reason) for e in package.manifest.entries] == [("0", False, "already-placed")]
    assert package.blocks == ()
    assert (package.manifest.refresh, package.manifest.pass_) == ("host-request", 2)


@pytest.mark.rule("D.V2.5", "D.H.10")
def test_v2_5_record_of_a_block_that_left_is_placed_again() -> None:
    step = ContextInput(
        run_id="r",
        step=1,
        input_tokens=120_000,
        used_tokens=40,
        restored=(DOCS,),
        query="another question",
        refresh="reused",
        cache_prefix_changed=True,
        cache_prefix_cause="compaction",
    )
    package = compile_context(step, ESTIMATOR)
    (entry,) = package.manifest.entries
    assert (entry.reason, entry.selected, entry.query) == ("restored", True, None)
    assert package.manifest.cache_prefix_changed
    assert text_of(package.blocks[0]).count("Deploys need a green CI run.") == 1


@pytest.mark.rule("D.V2.6", "D.C.11")
def test_v2_6_changed_text_is_a_new_candidate() -> None:
    text = "Deploys need two green CI runs."
    changed = SourceResult("rag", "rag", candidates=(Candidate("0", text, 0.9, digest_text(text)),))
    package = compile_context(msgspec.structs.replace(STEP, results=(changed,), placed=(STANDING,), pass_=2), ESTIMATOR)
    assert [entry.reason for entry in package.manifest.entries] == ["ranked"]
    assert DOCS.candidates[0].text not in text_of(package.blocks[0])


@pytest.mark.rule("D.D.22", "D.A.3")
def test_placing_a_decision_makes_the_package_of_the_compile() -> None:
    memory = snapshot("seen", "seen too", goal="Ship.")
    restored = SourceResult(
        "old", "memory", candidates=(Candidate("x", "Old.", 0.1, digest_text("Old."), query="then"),)
    )
    for step in (
        STEP,
        msgspec.structs.replace(STEP, working_memory=memory),
        msgspec.structs.replace(STEP, working_memory=memory, restored=(restored,), placed=(STANDING,)),
        msgspec.structs.replace(STEP, working_memory=memory, results=(), refresh="reused"),
    ):
        decision = decide(step, ESTIMATOR)
        package = place(decision, step.results, step.working_memory, step.query, step.restored)
        assert msgspec.json.encode(package) == msgspec.json.encode(compile_context(step, ESTIMATOR))


@pytest.mark.rule("D.E.9", "D.D.6")
def test_records_stand_in_the_order_of_their_entries() -> None:
    def offer(record_id: str, score: float, length: int) -> Candidate:
        text = f"<{record_id}>" * length
        return Candidate(record_id, text, score, digest_text(text))

    results = (
        SourceResult("z", "rag", candidates=(offer("c", 0.1, 1), offer("big", 0.5, 9_000), offer("a", 0.9, 1))),
        SourceResult("a", "memory", candidates=(offer("b", 1.0, 1),)),
    )
    package = compile_context(msgspec.structs.replace(STEP, results=results), ESTIMATOR)
    text = text_of(package.blocks[0])
    selected = [entry.record_id for entry in package.manifest.entries if entry.selected]
    assert selected == ["a", "c", "b"]
    assert sorted(selected, key=lambda record_id: text.index(f'id="{record_id}"')) == selected
    assert 'id="big"' not in text


@pytest.mark.rule("D.F.4", "D.F.5", "D.E.2", "D.E.11")
def test_tail_comes_last_and_holds_the_selected_items_only() -> None:
    memory = snapshot("short", "long " * 300, goal="Ship.")
    budget = ContextBudget(working_memory_tokens=120)
    package = compile_context(msgspec.structs.replace(STEP, working_memory=memory, budget=budget), ESTIMATOR)
    assert [block.placement for block in package.blocks] == ["append", "ephemeral-tail"]
    goal, short, long = list_items(memory)
    entries = {entry.record_id: entry.selected for entry in package.manifest.entries}
    assert (entries[goal.record_id], entries[short.record_id], entries[long.record_id]) == (True, True, False)
    assert text_of(package.blocks[1]) == render_working_memory((goal, short), 9)


@pytest.mark.rule("D.F.7", "D.F.6")
@pytest.mark.parametrize("memory", [None, snapshot(), snapshot("long " * 300)])
def test_working_memory_without_anything_to_show_makes_no_block(memory: WorkingMemorySnapshot | None) -> None:
    budget = ContextBudget(working_memory_tokens=120)
    step = ContextInput(
        run_id="r", step=1, input_tokens=9_000, used_tokens=0, working_memory=memory, budget=budget, refresh="reused"
    )
    package = compile_context(step, ESTIMATOR)
    assert package.blocks == ()
    assert not package.manifest.placement.tail
    assert package.manifest.budget.selected_tokens == 0


@pytest.mark.rule("D.F.10", "D.V1.3")
@pytest.mark.parametrize("kept", [True, False])
def test_kept_tail_keeps_its_placement(kept: bool) -> None:
    step = msgspec.structs.replace(STEP, working_memory=snapshot(goal="Ship."), tail_kept=kept)
    package = compile_context(step, ESTIMATOR)
    assert package.blocks[1].placement == "ephemeral-tail"
    assert (b'"tailKept":true' in msgspec.json.encode(package)) is kept


@pytest.mark.rule("D.D.22")
def test_offers_of_another_decision_are_refused() -> None:
    decision = decide(STEP, ESTIMATOR)
    with pytest.raises(InvalidRequestError, match="decision"):
        place(decision, (), None, QUERY)
    with pytest.raises(InvalidRequestError, match="decision"):
        place(decision, STEP.results, snapshot(goal="Ship."), QUERY)

"""The pure compile: same input, same bytes; sums, bounds and bad input (D.A.6, D.A.7, D.M.13, D.T)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import contextbus
import contextbus_protocol
from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide
from contextbus.core.estimate import make_estimator
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import ContextBudgetExceededError, InvalidTypeError
from contextbus_protocol.values import (
    SOURCE_KINDS,
    Candidate,
    ContextBudget,
    EstimatorSpec,
    PlacedEntry,
    Provenance,
    SourceKind,
    SourceResult,
)
from contextbus_protocol.working_memory import Goal, Hypothesis, Observation, WorkingMemorySnapshot

TEXT = st.text(st.sampled_from("ab 你é&<\"'\r\n😀"), min_size=1, max_size=60)
LABEL = st.text(st.sampled_from('ab9é"&'), min_size=1, max_size=4)
SPEC = st.builds(
    EstimatorSpec, name=st.sampled_from(["characters", "classes"]), factor=st.sampled_from([5000, 10_000, 13_337])
)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    text = draw(TEXT)
    return Candidate(
        draw(LABEL),
        text,
        draw(st.sampled_from([0.0, 0.5, 0.5, 1.0, -1.0])),
        digest_text(text),
        revision=draw(st.none() | st.integers(0, 3)),
        provenance=draw(st.sampled_from([None, Provenance("asserted", ("user", "host"))])),
        mandatory=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> WorkingMemorySnapshot:
    goal = draw(st.none() | TEXT)
    return WorkingMemorySnapshot(
        version=1,
        scope="s",
        revision=draw(st.integers(0, 99)),
        goal=None if goal is None else Goal(text=goal, writer="host", revision=0, changed_at=0),
        observations=tuple(
            Observation(id=f"o{n}", text=text, writer="model", revision=1, changed_at=0)
            for n, text in enumerate(draw(st.lists(TEXT, max_size=3)))
        ),
        hypotheses=tuple(
            Hypothesis(id=f"h{n}", text=text, writer="model", revision=1, changed_at=0)
            for n, text in enumerate(draw(st.lists(TEXT, max_size=3)))
        ),
    )


@st.composite
def inputs(draw: st.DrawFn, room: int = 1_000_000) -> ContextInput:
    results = tuple(
        SourceResult(f"s{number}", kind, candidates=tuple(draw(st.lists(candidates(), max_size=6))))
        for number, kind in enumerate(draw(st.lists(st.sampled_from(SOURCE_KINDS), max_size=4)))
    )
    offered = [(result.source, candidate) for result in results for candidate in result.candidates]
    placed = tuple(
        PlacedEntry(source, c.record_id, c.digest, step=0, pass_=1, tokens=9, revision=c.revision)
        for source, c in (draw(st.lists(st.sampled_from(offered), max_size=2)) if offered else [])
    )
    return ContextInput(
        run_id="run",
        step=draw(st.integers(0, 1000)),
        pass_=draw(st.integers(0, 1000)),
        input_tokens=room,
        used_tokens=0,
        results=results,
        working_memory=draw(st.none() | snapshots()),
        placed=placed,
        query=draw(st.sampled_from(["", "How?"])),
        budget=ContextBudget(
            ratio=1, max_tokens=draw(st.integers(0, 600)), working_memory_tokens=draw(st.integers(0, 300))
        ),
    )


@pytest.mark.rule("D.A.6", "D.A.7")
@given(inputs(), SPEC)
def test_same_input_gives_the_same_bytes_and_stays_as_it_was(given_: ContextInput, spec: EstimatorSpec) -> None:
    before = msgspec.json.encode(given_)
    first = msgspec.json.encode(compile_context(given_, make_estimator(spec)))
    copy = msgspec.json.decode(before, type=ContextInput)
    assert msgspec.json.encode(compile_context(copy, make_estimator(spec))) == first
    assert msgspec.json.encode(given_) == before


@pytest.mark.rule("D.A.6", "D.C.2")
@given(inputs(), st.randoms(use_true_random=False))
def test_order_inside_an_answer_changes_nothing(given_: ContextInput, chance: Any) -> None:
    shuffled: list[SourceResult] = []
    for result in given_.results:
        # One record offered twice over is settled by the first of its labels, so each is offered once here.
        unique = {(c.record_id, c.revision, c.digest): c for c in result.candidates}
        shuffled.append(msgspec.structs.replace(result, candidates=tuple(unique.values())))
    straight = msgspec.structs.replace(given_, results=tuple(shuffled))
    for index, result in enumerate(shuffled):
        mixed = list(result.candidates)
        chance.shuffle(mixed)
        shuffled[index] = msgspec.structs.replace(result, candidates=tuple(mixed))
    mixed_input = msgspec.structs.replace(given_, results=tuple(shuffled), placed=given_.placed[::-1])
    assert msgspec.json.encode(compile_context(mixed_input)) == msgspec.json.encode(compile_context(straight))


SCRIPT = """
import sys, msgspec
from contextbus.core.compile import ContextInput, compile_context
from contextbus_protocol.digests import digest_text
from contextbus_protocol.values import Candidate, Provenance, SourceResult
def offer(n): return Candidate(f"r{n}", f"text {n % 7} <&>", n % 3, digest_text(f"text {n % 7} <&>"), revision=n % 2,
                               provenance=Provenance("o", ("user", "host", "tool")))
results = tuple(SourceResult(f"s{k}", kind, candidates=tuple(offer(n + k) for n in range(12)))
                for k, kind in enumerate(("skills", "rag", "memory", "transcript")))
given = ContextInput(run_id="r", step=1, input_tokens=3000, used_tokens=0, results=results, query="q")
package = compile_context(given)
sys.stdout.buffer.write(msgspec.json.encode(package))
"""


@pytest.mark.rule("D.A.6")
def test_hash_order_changes_nothing() -> None:
    roots = [str(Path(module.__file__ or "").parents[1]) for module in (contextbus, contextbus_protocol)]
    outputs: set[bytes] = set()
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(roots)}
        outputs.add(
            subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True).stdout
        )
    (output,) = outputs
    assert len(output) > 1000


@pytest.mark.rule("D.M.13", "D.D.9", "D.D.10")
@given(inputs(), SPEC)
def test_blocks_never_cost_more_than_the_sum_of_their_parts(given_: ContextInput, spec: EstimatorSpec) -> None:
    estimator = make_estimator(spec)
    package = compile_context(given_, estimator)
    budget = package.manifest.budget
    costs = {block.placement: estimator.estimate(block.messages) for block in package.blocks}
    assert costs.get("append", 0) <= budget.selected_tokens - budget.working_memory_tokens
    assert costs.get("ephemeral-tail", 0) <= budget.working_memory_tokens
    messages = [message for block in package.blocks for message in block.messages]
    assert estimator.estimate(messages) <= budget.selected_tokens


@pytest.mark.rule("D.B.17", "D.B.13", "D.B.15")
@given(inputs(), st.sampled_from([0, 1, 2]) | st.integers(3, 900))
def test_b47_optional_content_never_passes_the_budget(given_: ContextInput, tokens: int) -> None:
    """Public report B47: a result passes its budget in silence because something is always emitted."""
    tight = msgspec.structs.replace(given_, input_tokens=tokens)
    owed = [e.tokens for e in compile_context(given_).manifest.entries if e.reason == "mandatory"]
    if owed and sum(owed) >= tokens:
        with pytest.raises(ContextBudgetExceededError) as caught:
            compile_context(tight)
        assert caught.value.required_tokens > sum(owed)
        assert caught.value.available_tokens == tokens
    elif not owed:
        package = compile_context(tight)
        budget = package.manifest.budget
        assert budget.selected_tokens <= budget.context_tokens <= tokens
        assert tokens > 2 or package.blocks == ()


@pytest.mark.rule("D.A.2")
def test_nothing_given_places_nothing() -> None:
    package = compile_context(ContextInput(run_id="r", step=0, input_tokens=0, used_tokens=0))
    assert (package.blocks, package.manifest.entries, package.manifest.sources) == ((), (), ())


@pytest.mark.rule("D.M.2", "D.D.11")
def test_default_estimator_weighs_character_classes() -> None:
    manifest = compile_context(ContextInput(run_id="r", step=0, input_tokens=0, used_tokens=0)).manifest
    assert (manifest.estimator.kind, manifest.estimator.name) == ("heuristic", "classes")


@pytest.mark.rule("D.T.4", "D.G.4", "D.B.19", "D.W.6", "D.D.16")
@pytest.mark.parametrize(
    "change",
    [
        {"results": (SourceResult("docs", "rag"), SourceResult("docs", "memory"))},
        {"restored": (SourceResult("docs", "rag"), SourceResult("docs", "rag"))},
        {"results": (SourceResult("working-memory", "memory"),)},
        {"results": (SourceResult("", "memory"),)},
        {"results": (SourceResult("docs\ud800", "memory"),)},
        {"results": (SourceResult("docs", cast("SourceKind", "web")),)},
        {"results": (SourceResult("docs", "rag", candidates=(cast("Candidate", {"recordId": "1"}),)),)},
        {"budget": ContextBudget(ratio=0)},
        {"step": -1},
        {"pass_": True},
        {"input_tokens": -1},
        {"used_tokens": 1.5},
        {"input_tokens": 2**53},
        {"candidates_per_source": -1},
        {"candidates_per_source": "2"},
        {"cache_prefix_changed": True},
        {"cache_prefix_cause": "model"},
    ],
)
def test_malformed_input_is_a_type_error(change: dict[str, object]) -> None:
    given_ = ContextInput(run_id="r", step=0, input_tokens=10, used_tokens=0, results=(SourceResult("docs", "rag"),))
    with pytest.raises(InvalidTypeError):
        compile_context(msgspec.structs.replace(given_, **change))


@pytest.mark.rule("D.M.14")
def test_counts_of_a_tokenizer_are_facts_of_the_decision() -> None:
    text = "Deploys need a green run."
    step = ContextInput(
        run_id="r",
        step=0,
        input_tokens=1000,
        used_tokens=0,
        results=(SourceResult("docs", "rag", candidates=(Candidate("1", text, 1.0, digest_text(text)),)),),
    )
    tokenizer = make_estimator(EstimatorSpec(kind="tokenizer", name="words"), {"words": lambda text: len(text.split())})
    assert len(decide(step, tokenizer).counts) == 2
    assert decide(step, make_estimator()).counts == ()

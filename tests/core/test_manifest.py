"""The manifest: what it says, what it never says (D.D, D.Y)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.decision import decide
from contextbus.core.estimate import make_estimator
from contextbus.core.manifest import context_warnings
from contextbus_protocol.digests import digest_text
from contextbus_protocol.package import (
    ContextManifest,
    ContextWarning,
    Package,
)
from contextbus_protocol.values import (
    Candidate,
    EstimatorSpec,
    PlacedEntry,
    Provenance,
    SourceKind,
    SourceResult,
    SourceStatus,
)
from contextbus_protocol.working_memory import Constraint, Goal, Observation, WorkingMemorySnapshot


def offer(record_id: str, text: str, score: float = 1.0, **fields: Any) -> Candidate:
    return Candidate(record_id, text, score, digest_text(text), **fields)


def answer(source: str, *candidates: Candidate, kind: SourceKind = "rag", **fields: Any) -> SourceResult:
    return SourceResult(source, kind, candidates=candidates, **fields)


def step(*results: SourceResult, **fields: Any) -> ContextInput:
    base = ContextInput(run_id="run-1", step=4, input_tokens=100_000, used_tokens=50, results=results)
    return msgspec.structs.replace(base, **fields)


def plain(package: Package) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(package))
    return decoded


SNAPSHOT = WorkingMemorySnapshot(
    version=1,
    scope="s",
    revision=5,
    goal=Goal(text="Zeppelin goal", writer="host", revision=2, changed_at=0),
    constraints=(Constraint(id="c-1", text="Yonder limit", writer="host", revision=3, changed_at=0),),
    observations=(Observation(id="o-1", text="Xylophone seen", writer="model", revision=5, changed_at=0),),
)


@pytest.mark.rule("D.D.22", "D.D.2", "D.D.19", "D.D.18", "D.A.5")
def test_package_has_its_recorded_form() -> None:
    package = plain(
        compile_context(
            step(answer("docs", offer("1", "Text.")), query="q"), make_estimator(EstimatorSpec(name="characters"))
        )
    )
    assert list(package) == ["version", "runId", "step", "blocks", "manifest"]
    assert [list(block) for block in package["blocks"]] == [["placement", "messages"]]
    manifest = package["manifest"]
    assert manifest["entries"] == [
        {
            "source": "docs",
            "kind": "rag",
            "recordId": "1",
            "digest": digest_text("Text."),
            "tokens": 16,
            "selected": True,
            "reason": "ranked",
            "query": "q",
        }
    ]
    assert manifest["budget"] == {
        "inputTokens": 100_000,
        "usedTokens": 50,
        "contextTokens": 8192,
        "selectedTokens": 102,
        "workingMemoryTokens": 0,
    }
    del manifest["entries"], manifest["budget"]
    assert manifest == {
        "version": 1,
        "runId": "run-1",
        "step": 4,
        "refresh": "initial",
        "pass": 1,
        "estimator": {"kind": "heuristic", "calibrated": False, "name": "characters", "version": 1},
        "sources": [{"source": "docs", "status": "ok", "selected": 1, "excluded": 0, "tokens": 16}],
        "placement": {"append": True, "tail": False},
        "cachePrefixChanged": False,
    }


@pytest.mark.rule("D.D.2", "D.D.25")
@pytest.mark.parametrize(
    ("own", "asked", "query"),
    [
        (None, "", None),
        (None, "asked", "asked"),
        ("own", "asked", "own"),
        ("own", "", "own"),
        (None, "\ud83d", "\ufffd"),
    ],
)
def test_query_of_an_entry_is_its_candidates_own_or_what_was_asked(
    own: str | None, asked: str, query: str | None
) -> None:
    entry = compile_context(step(answer("docs", offer("1", "Text.", query=own)), query=asked)).manifest.entries[0]
    assert entry.query == query


@pytest.mark.rule("D.D.25")
def test_decision_holds_no_query() -> None:
    given_ = step(answer("docs", offer("1", "Text.")), query="secret question", working_memory=SNAPSHOT)
    assert b"secret question" not in msgspec.json.encode(decide(given_, make_estimator()))


@pytest.mark.rule("D.D.4", "D.D.5", "D.D.6", "D.D.21", "D.D.26")
def test_working_memory_items_come_first_with_their_own_revisions() -> None:
    package = compile_context(step(answer("docs", offer("1", "Text.")), working_memory=SNAPSHOT, query="q"))
    assert [(e.source, e.kind, e.record_id, e.revision, e.selected, e.query) for e in package.manifest.entries] == [
        ("working-memory", "working-memory", "goal", 2, True, None),
        ("working-memory", "working-memory", "constraint/c-1", 3, True, None),
        ("working-memory", "working-memory", "observation/o-1", 5, True, None),
        ("docs", "rag", "1", None, True, "q"),
    ]
    alone = compile_context(step(working_memory=SNAPSHOT, refresh="reused"))
    assert [entry.selected for entry in alone.manifest.entries] == [True, True, True]
    assert [block.placement for block in alone.blocks] == ["ephemeral-tail"]


@pytest.mark.rule("D.D.7", "D.D.8", "D.D.14", "D.D.24", "D.Y.3", "D.Y.6")
def test_summaries_say_what_came_of_each_source() -> None:
    results = (
        answer("ok", offer("1", "Text."), offer("2", "Text.")),
        answer("late", status=SourceStatus.FAILED, error="timeout"),
        answer("broken", offer("3", "Ignored."), status=SourceStatus.FAILED),
        answer("idle", status=SourceStatus.SKIPPED, error="unused"),
    )
    manifest = compile_context(step(*results, fallback="pass-limit")).manifest
    assert [(s.source, s.status.value, s.selected, s.excluded, s.error) for s in manifest.sources] == [
        ("ok", "ok", 1, 1, None),
        ("late", "failed", 0, 0, "timeout"),
        ("broken", "failed", 0, 0, "failed"),
        ("idle", "skipped", 0, 0, None),
    ]
    assert manifest.sources[0].tokens == manifest.entries[0].tokens
    assert manifest.fallback == "source-failed"
    assert len(manifest.entries) == 2


@pytest.mark.rule("D.D.14", "D.D.24", "D.G.14")
def test_reused_step_lists_no_source_and_keeps_its_fallback() -> None:
    manifest = compile_context(step(refresh="reused", fallback="pass-limit", pass_=8)).manifest
    assert (manifest.sources, manifest.entries, manifest.fallback, manifest.pass_) == ((), (), "pass-limit", 8)


@pytest.mark.rule("D.D.20", "D.Y.4")
def test_warnings_come_from_the_manifest_alone() -> None:
    results = (
        answer("a", status=SourceStatus.FAILED, error="busy"),
        answer("b"),
        answer("c", status=SourceStatus.FAILED),
    )
    manifest = compile_context(step(*results)).manifest
    stored = msgspec.json.decode(msgspec.json.encode(manifest), type=ContextManifest)
    assert context_warnings(stored) == (
        ContextWarning("context-source-failed", "a", "busy"),
        ContextWarning("context-source-failed", "c", "failed"),
    )
    assert context_warnings(compile_context(step()).manifest) == ()


@pytest.mark.rule("D.D.11", "D.M.16")
def test_estimator_kind_is_a_label_and_changes_no_count() -> None:
    candidate = answer("docs", offer("1", "Text."))
    calibrated = make_estimator(EstimatorSpec(name="characters", calibrated=True))
    plain_, labelled = (
        compile_context(step(candidate, estimator_kind=kind), calibrated).manifest for kind in (None, "provider")
    )
    assert (plain_.estimator.kind, labelled.estimator.kind) == ("heuristic", "provider")
    assert plain_.estimator.calibrated
    assert plain_.budget == labelled.budget
    assert plain_.entries == labelled.entries


@pytest.mark.rule("D.D.12", "D.D.13", "D.D.15", "D.D.16", "D.D.17", "D.F.10", "D.F.15", "D.Y.7")
def test_what_the_caller_knows_is_recorded() -> None:
    manifest = compile_context(
        step(
            refresh="redacted",
            pass_=3,
            redacted=True,
            cache_prefix_changed=True,
            cache_prefix_cause="redacted",
            tail_kept=True,
        )
    ).manifest
    assert (manifest.refresh, manifest.pass_, manifest.redacted) == ("redacted", 3, True)
    assert (manifest.cache_prefix_changed, manifest.cache_prefix_cause) == (True, "redacted")
    assert (manifest.placement.append, manifest.placement.tail, manifest.placement.tail_kept) == (False, False, True)


WORDS = st.text("qxzj", min_size=12, max_size=20)


@pytest.mark.rule("D.D.3", "D.D.8")
@given(st.lists(WORDS, min_size=1, max_size=6, unique=True), WORDS, WORDS, st.integers(0, 400))
def test_manifest_holds_no_text(texts: list[str], goal: str, limit: str, context: int) -> None:
    snapshot = WorkingMemorySnapshot(
        version=1,
        scope="s",
        revision=0,
        goal=Goal(text=goal, writer="host", revision=0, changed_at=0),
        constraints=(Constraint(id="c", text=limit, writer="host", revision=0, changed_at=0),),
    )
    candidates = tuple(
        offer(str(number), text, provenance=Provenance("o", ("host",))) for number, text in enumerate(texts)
    )
    placed = (PlacedEntry("docs", "0", candidates[0].digest, step=0, pass_=1, tokens=1),)
    package = compile_context(
        step(
            answer("docs", *candidates),
            answer("late", status=SourceStatus.FAILED, error="timeout"),
            working_memory=snapshot,
            placed=placed,
            input_tokens=4 * (context + 1000),
        )
    )
    written = msgspec.json.encode(package.manifest).decode()
    assert not any(text in written for text in (*texts, goal, limit))

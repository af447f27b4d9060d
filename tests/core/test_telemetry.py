"""What a span says of a compile: these attributes and no others, and nothing that anybody wrote (D.S)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.telemetry import attribute_id, count_entries, span_attributes
from contextbus_protocol.digests import digest_text
from contextbus_protocol.package import ContextManifest
from contextbus_protocol.values import Candidate, SourceResult, SourceStatus
from contextbus_protocol.working_memory import Constraint, Goal, WorkingMemorySnapshot

DIGEST = "sha256:" + "0" * 64


def offer(record_id: str, text: str, **fields: Any) -> Candidate:
    return Candidate(record_id, text, 0.5, digest_text(text), **fields)


def answer(source: str, *candidates: Candidate, **fields: Any) -> SourceResult:
    return SourceResult(source, "rag", candidates=candidates, **fields)


def compiled(*results: SourceResult, **fields: Any) -> ContextManifest:
    step = ContextInput(run_id="run-1", step=4, input_tokens=100_000, used_tokens=50, results=results)
    return compile_context(msgspec.structs.replace(step, **fields)).manifest


def memory(goal: str, limit: str = "No deploys on Friday.") -> WorkingMemorySnapshot:
    return WorkingMemorySnapshot(
        version=1,
        scope="s",
        revision=0,
        goal=Goal(text=goal, writer="host", revision=0, changed_at=0),
        constraints=(Constraint(id="c", text=limit, writer="host", revision=0, changed_at=0),),
    )


@pytest.mark.rule("D.S.2")
def test_these_attributes_and_no_others() -> None:
    manifest = compiled(
        answer("docs", offer("1", "Text."), offer("2", "Text."), offer("3", "More.")),
        answer("late", status=SourceStatus.FAILED, error="timeout"),
        working_memory=memory("Roll back."),
        query="q",
    )
    docs = sum(entry.tokens for entry in manifest.entries if entry.source == "docs" and entry.selected)
    assert docs > 0
    assert span_attributes(manifest, DIGEST) == {
        "contextbus.context.manifest_digest": DIGEST,
        "contextbus.context.refresh_reason": "initial",
        "contextbus.context.fallback": "source-failed",
        "contextbus.context.estimator": "heuristic",
        "contextbus.context.cache_prefix_changed": False,
        "contextbus.context.selected": 4,
        "contextbus.context.excluded": 1,
        "contextbus.context.tokens": manifest.budget.selected_tokens,
        "contextbus.context.source.docs.selected": 2,
        "contextbus.context.source.docs.excluded": 1,
        "contextbus.context.source.docs.tokens": docs,
        "contextbus.context.source.late.selected": 0,
        "contextbus.context.source.late.excluded": 0,
        "contextbus.context.source.late.tokens": 0,
    }


@pytest.mark.rule("D.S.2")
def test_a_reused_step_has_no_sources_and_no_fallback() -> None:
    manifest = compiled(
        refresh="reused", cache_prefix_changed=True, cache_prefix_cause="model", estimator_kind="provider"
    )
    assert span_attributes(manifest, DIGEST) == {
        "contextbus.context.manifest_digest": DIGEST,
        "contextbus.context.refresh_reason": "reused",
        "contextbus.context.estimator": "provider",
        "contextbus.context.cache_prefix_changed": True,
        "contextbus.context.selected": 0,
        "contextbus.context.excluded": 0,
        "contextbus.context.tokens": 0,
    }


@pytest.mark.rule("D.S.2")
def test_what_was_cut_beyond_the_limit_is_excluded_in_all_as_it_is_in_its_source() -> None:
    manifest = compiled(answer("docs", offer("1", "Text."), truncated=3), answer("more", truncated=4))
    attributes = span_attributes(manifest, DIGEST)
    assert attributes["contextbus.context.source.docs.excluded"] == 3
    assert attributes["contextbus.context.excluded"] == 7
    assert (count_entries(manifest).selected, count_entries(manifest).excluded) == (1, 7)


@pytest.mark.rule("D.S.3")
@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("docs", "docs"),
        ("Docs-2_x", "docs-2_x"),
        ("azAZ09_-", "azaz09_-"),
        ("a.b/c d:e", "a_b_c_d_e"),
        ("Über", "_ber"),
        ("٣x", "_x"),
    ],
)
def test_ids_are_lower_case_and_the_rest_becomes_a_line(source: str, written: str) -> None:
    assert attribute_id(source) == written
    attributes = span_attributes(compiled(answer(source)), DIGEST)
    assert attributes[f"contextbus.context.source.{written}.selected"] == 0


@pytest.mark.rule("D.S.3")
@given(st.text(max_size=12))
def test_written_ids_hold_nothing_else(source: str) -> None:
    assert set(attribute_id(source)) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


@pytest.mark.rule("D.S.3")
def test_sources_that_are_written_alike_are_summed() -> None:
    first, second, other = (
        answer("my docs", offer("1", "One."), truncated=1),
        answer("My.Docs", offer("2", "Two, longer."), offer("3", "Three."), truncated=2),
        answer("other", offer("4", "Four.")),
    )
    manifest = compiled(first, second, other)
    attributes = span_attributes(manifest, DIGEST)
    tokens = {summary.source: summary.tokens for summary in manifest.sources}
    assert attributes["contextbus.context.source.my_docs.selected"] == 3
    assert attributes["contextbus.context.source.my_docs.excluded"] == 3
    assert attributes["contextbus.context.source.my_docs.tokens"] == tokens["my docs"] + tokens["My.Docs"]
    assert attributes["contextbus.context.source.other.selected"] == 1


WORDS = st.text("qxzj", min_size=12, max_size=20)


@pytest.mark.rule("D.S.4", "D.D.3", "D.D.25")
@given(st.lists(WORDS, min_size=1, max_size=6, unique=True), WORDS, WORDS, WORDS, WORDS)
def test_no_attribute_holds_a_text_or_a_query(
    texts: list[str], goal: str, limit: str, asked: str, rewritten: str
) -> None:
    candidates = tuple(offer(str(number), text, query=rewritten) for number, text in enumerate(texts))
    manifest = compiled(
        answer("docs", *candidates, offer("plain", "Text.")), working_memory=memory(goal, limit), query=asked
    )
    assert {entry.query for entry in manifest.entries} == {None, asked, rewritten}
    written = repr(span_attributes(manifest, DIGEST))
    assert not any(text in written for text in (*texts, goal, limit, asked, rewritten))

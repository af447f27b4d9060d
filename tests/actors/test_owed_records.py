"""Records that a run is owed, from selection's side: read from the log, or asked of their source (D.H, D.K.26)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import DOCS, candidate, head, new_messages, options, queries
from tests.actors.driven import Driven, chosen

from contextbus.actors.needs import AskSources, Decide, next_need
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, user
from contextbus_protocol.commands import CompileStep, NewMessages
from contextbus_protocol.digests import EMPTY_CHAIN
from contextbus_protocol.events import StepCompiled, StepFailed
from contextbus_protocol.values import RefreshOptions, SourceSpec

SKILLS = SourceSpec("skills", "skills")
STRICT = SourceSpec("docs", "rag", required=True)
TIGHT = RefreshOptions(min_steps=99, max_passes=1)
LOAD = ChatMessage(role="assistant", content=(ToolCall(id="c", name="load_skill", arguments='{"skill":"pdf"}'),))
LOADED = ChatMessage(role="tool", content=(ToolResult(id="c", name="load_skill", content=(Text(text="loaded"),)),))


def rewritten(run: Driven, text: str, *sources: SourceSpec, **changes: Any) -> CompileStep:
    """A step whose messages take the place of all that the run has."""
    fold = run.fold
    only = new_messages(user(text))
    new = NewMessages(fold.history.count, fold.history.chain, 0, only.messages, only.chain)
    assert only.base_chain == EMPTY_CHAIN
    return CompileStep(**head(text), history=new, user_text=text, options=options(*(sources or (DOCS,)), **changes))


def with_block(*found: Any) -> Driven:
    """A run with one placed block."""
    run = Driven()
    run.found["docs"] = found
    run.step("first")
    run.report()
    run.asked.clear()
    return run


def last_step(run: Driven) -> StepCompiled:
    return [e for _, _, c in run.log.commits for e in c.events if isinstance(e, StepCompiled)][-1]


@pytest.mark.rule("D.H.5", "D.H.6", "D.G.14", "D.R.13")
@pytest.mark.parametrize("restarted", [False, True])
def test_records_return_from_the_log_without_a_question(*, restarted: bool) -> None:
    run = with_block(candidate(1), candidate(2))
    if restarted:
        run = run.beside()
    run.found["docs"] = (candidate(3),)
    manifest = run.compiled(rewritten(run, "other"))
    assert chosen(manifest) == [("r1", True, "restored"), ("r2", True, "restored")]
    assert (manifest.refresh, manifest.pass_, manifest.sources, run.asked) == ("reused", 1, (), [])
    assert manifest.cache_prefix_cause == "history"
    run.report()
    assert chosen(run.step("next")) == []
    assert [p.record_id for p in run.fold.placed] == ["r1", "r2"]
    assert run.verify().is_clean
    assert run.verify().steps == 3


@pytest.mark.rule("D.H.5")
def test_a_restored_record_whose_block_leaves_again_returns_from_the_step_that_restored_it() -> None:
    run = with_block(candidate(1))
    first = run.package
    run.compiled(rewritten(run, "other"))
    run.report()
    del run.log.blobs[first]
    assert chosen(run.compiled(rewritten(run, "third"))) == [("r1", True, "restored")]


@pytest.mark.rule("D.H.5", "D.C.10", "D.G.15")
def test_on_a_retrieval_a_record_that_its_source_offers_again_counts_once() -> None:
    run = with_block(candidate(1), candidate(2))
    run.found["docs"] = (candidate(1), candidate(3))
    manifest = run.compiled(msgspec.structs.replace(rewritten(run, "other"), refresh=True))
    assert chosen(manifest) == [("r1", True, "ranked"), ("r2", True, "restored"), ("r3", True, "ranked")]
    assert run.verify().is_clean


@pytest.mark.rule("D.H.7")
def test_where_the_blob_is_gone_an_optional_record_comes_back_with_the_next_refresh_only() -> None:
    run = with_block(candidate(1))
    run.log.blobs.clear()
    manifest = run.compiled(rewritten(run, "other"))
    assert (chosen(manifest), run.asked) == ([], [])
    run.report()
    assert chosen(run.step("more")) == []
    run.report()
    assert chosen(run.step("ask", refresh=True)) == [("r1", True, "ranked")]


@pytest.mark.rule("D.H.8", "D.H.7", "D.G.14", "D.D.24")
def test_a_mandatory_record_is_asked_of_its_source_at_once_and_spends_no_pass() -> None:
    run = with_block(candidate(1, mandatory=True), candidate(2))
    run.log.blobs.clear()
    manifest = run.compiled(rewritten(run, "other", refresh=TIGHT))
    (query,) = run.asked
    assert (query.records, query.only_records) == (("r1",), True)
    assert chosen(manifest) == [("r1", True, "mandatory")]  # whatever else the source gave
    assert (manifest.refresh, manifest.pass_, manifest.fallback) == ("reused", 1, None)
    assert [s.source for s in manifest.sources] == ["docs"]
    assert last_step(run).demanded == (("docs", "r1"),)
    run.report()
    run.asked.clear()
    assert chosen(run.step("next")) == []
    assert run.asked == []


@pytest.mark.rule("D.H.14", "D.G.26")
def test_where_an_optional_source_fails_the_record_stays_owed() -> None:
    run = with_block(candidate(1, mandatory=True))
    run.log.blobs.clear()
    run.found["docs"] = "timeout"
    manifest = run.compiled(rewritten(run, "other"))
    assert (manifest.fallback, manifest.refresh, chosen(manifest)) == ("source-failed", "reused", [])
    run.report()
    run.found["docs"] = (candidate(1, mandatory=True),)
    assert chosen(run.step("next")) == [("r1", True, "mandatory")]
    run.report()
    assert run.fold.owed == ()


@pytest.mark.rule("D.H.14", "D.G.27")
def test_where_a_required_source_fails_the_step_fails_and_the_record_stays_owed() -> None:
    run = Driven()
    run.found["docs"] = (candidate(1, mandatory=True),)
    run.step("first", STRICT)
    run.report()
    run.log.blobs.clear()
    run.found["docs"] = "error"
    command = rewritten(run, "other", STRICT)
    assert run.refused(command) == "source_failed"
    assert isinstance(run.log.commits[-1][2].events[-1], StepFailed)
    run.found["docs"] = (candidate(1, mandatory=True),)
    assert chosen(run.compiled(command)) == [("r1", True, "mandatory")]


# -- skills


def load(run: Driven, *sources: SourceSpec, command: str = "load", **changes: Any) -> CompileStep:
    """A step behind the load of a skill."""
    new = new_messages(LOAD, LOADED, after=run.fold)
    return CompileStep(**head(command), history=new, user_text="first", options=options(*sources, **changes))


@pytest.mark.rule("D.K.26", "D.H.8", "D.K.13")
def test_the_body_of_a_loaded_skill_is_asked_at_once() -> None:
    run = with_block(candidate(1))
    body = candidate(7, record_id="pdf/body", mandatory=True)
    run.found["skills"] = (body, candidate(8, record_id="pdf"))
    manifest = run.compiled(load(run, DOCS, SKILLS, refresh=TIGHT))
    assert [(q.source, q.records, q.only_records) for q in run.asked] == [("skills", ("pdf/body",), True)]
    assert chosen(manifest) == [("pdf/body", True, "mandatory")]
    assert (manifest.refresh, manifest.pass_) == ("reused", 1)
    run.report()
    run.asked.clear()
    run.step("next", DOCS, SKILLS)
    assert run.asked == []
    assert run.verify().is_clean


@pytest.mark.rule("D.K.26", "D.G.23")
def test_on_a_retrieval_the_body_travels_with_the_query() -> None:
    run = Driven()
    run.found["skills"] = (candidate(7, record_id="pdf/body", mandatory=True), candidate(8, record_id="pdf"))
    manifest = run.compiled(load(run, DOCS, SKILLS))
    asked = {q.source: (q.records, q.only_records, q.limit) for q in run.asked}
    assert asked == {"docs": ((), False, 16), "skills": (("pdf/body",), False, 16)}
    assert chosen(manifest) == [("pdf/body", True, "mandatory"), ("pdf", True, "ranked")]


@pytest.mark.rule("D.K.26")
def test_a_skill_without_a_body_is_asked_once() -> None:
    run = with_block(candidate(1))
    run.compiled(load(run, DOCS, SKILLS))
    run.report()
    run.asked.clear()
    run.step("next", DOCS, SKILLS)
    assert run.asked == []


@pytest.mark.rule("D.K.26", "D.H.14")
def test_a_source_of_skills_that_fails_is_asked_again() -> None:
    run = with_block(candidate(1))
    run.found["skills"] = "busy"
    assert run.compiled(load(run, DOCS, SKILLS)).fallback == "source-failed"
    run.report()
    run.found["skills"] = (candidate(7, record_id="pdf/body", mandatory=True),)
    assert chosen(run.step("next", DOCS, SKILLS)) == [("pdf/body", True, "mandatory")]


@pytest.mark.rule("D.K.26", "D.H.8")
def test_what_comes_to_be_owed_after_the_sources_were_asked_is_asked_in_the_same_step() -> None:
    run = with_block(candidate(1))
    effects = run.bench.open(load(run, DOCS, SKILLS, refresh=TIGHT))
    assert [q.records for q in queries(effects)] == [("pdf/body",)]
    flight = run.bench.state.flight
    assert flight is not None
    for gathered in ("all", "records"):
        done = msgspec.structs.replace(flight, phase="open", gathered=gathered)
        assert isinstance(next_need(run.fold, done, {})[1], Decide)
        other = msgspec.structs.replace(done, queries=())
        assert next_need(run.fold, other, {})[1] == AskSources((("skills", "pdf/body"),))

"""What sources offer: checks, cutting, exclusion (D.C.4, D.C.10-D.C.18, D.K.17-D.K.27)."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
import pytest

from contextbus.core.candidates import cut_result, validate_candidates
from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.estimate import make_estimator
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import Package
from contextbus_protocol.values import Candidate, EstimatorSpec, PlacedEntry, Provenance, SourceKind, SourceResult


def offer(record_id: str, text: str, score: float = 1.0, **fields: Any) -> Candidate:
    return Candidate(record_id, text, score, digest_text(text), **fields)


def answer(source: str, *candidates: Candidate, kind: SourceKind = "rag") -> SourceResult:
    return SourceResult(source, kind, candidates=candidates)


def placed(source: str, candidate: Candidate) -> PlacedEntry:
    return PlacedEntry(
        source, candidate.record_id, candidate.digest, step=0, pass_=1, tokens=20, revision=candidate.revision
    )


def compiled(*results: SourceResult, placed: tuple[PlacedEntry, ...] = (), **fields: Any) -> Package:
    return compile_context(
        ContextInput(
            run_id="run", step=1, input_tokens=100_000, used_tokens=0, results=results, placed=placed, **fields
        )
    )


def reasons(package: Package) -> list[tuple[str, str, str]]:
    return [(entry.source, entry.record_id, entry.reason) for entry in package.manifest.entries]


GOOD = offer("1", "Deploys need a green run.", 0.5, revision=2, provenance=Provenance("asserted", ("host",)))
MALFORMED: dict[str, dict[str, object]] = {
    "nan": {"score": math.nan},
    "infinite": {"score": math.inf},
    "score text": {"score": "0.5"},
    "score beyond floats": {"score": 10**400},
    "score bool": {"score": True},
    "empty text": {"text": "", "digest": digest_text("")},
    "no text": {"text": None},
    "empty id": {"record_id": ""},
    "surrogate id": {"record_id": "a\ud83d"},
    "negative revision": {"revision": -1},
    "float revision": {"revision": 1.0},
    "bool revision": {"revision": True},
    "huge revision": {"revision": 2**53},
    "other digest": {"digest": digest_text("another text")},
    "upper-case digest": {"digest": digest_text(GOOD.text).upper()},
    "bare digest": {"digest": digest_text(GOOD.text).removeprefix("sha256:")},
    "mandatory text": {"mandatory": "yes"},
    "query number": {"query": 1},
    "provenance text": {"provenance": "asserted"},
    "origin number": {"provenance": Provenance(cast("str", 1))},
}


@pytest.mark.rule("D.C.4", "D.C.17", "D.C.18", "D.K.18", "D.K.21", "D.K.27")
@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_one_malformed_candidate_is_a_type_error_without_content(change: dict[str, object]) -> None:
    bad = msgspec.structs.replace(GOOD, **change)
    with pytest.raises(InvalidTypeError, match="candidate 1 is malformed") as caught:
        validate_candidates((GOOD, bad))
    assert isinstance(caught.value, TypeError)
    assert "green run" not in str(caught.value)
    with pytest.raises(TypeError):
        compiled(answer("docs", GOOD, bad))


@pytest.mark.rule("D.K.17", "D.K.27")
def test_well_formed_candidates_pass() -> None:
    validate_candidates((GOOD, offer("2", " ", -1.5), offer("3", "\ud83d", 0, revision=0)))
    validate_candidates(tuple(offer("1", "text", score, revision=2**53 - 1) for score in (2**53 - 1, 1 - 2**53)))


@pytest.mark.rule("D.C.16", "D.D.1", "D.D.7")
def test_longer_answer_is_cut_to_the_first_of_its_own_order() -> None:
    result = answer("docs", offer("c", "C", 0.1), offer("b", "B", 0.2), offer("a", "A", 0.9), offer("d", "D", 1.0))
    package = compiled(result, candidates_per_source=2)
    assert reasons(package) == [("docs", "b", "ranked"), ("docs", "c", "ranked")]
    (summary,) = package.manifest.sources
    assert (summary.selected, summary.excluded, summary.truncated) == (2, 2, 2)


@pytest.mark.rule("D.C.16")
def test_cut_adds_to_what_was_cut_before_and_leaves_short_answers_alone() -> None:
    result = msgspec.structs.replace(answer("docs", offer("a", "A"), offer("b", "B")), truncated=3)
    assert cut_result(result, 2) is result
    cut = cut_result(result, 1)
    assert (cut.candidates, cut.truncated) == (result.candidates[:1], 4)
    assert cut_result(result, 0).candidates == ()


@pytest.mark.rule("D.C.10", "D.C.11", "D.C.12", "D.D.1")
def test_unchanged_record_is_not_placed_again() -> None:
    package = compiled(answer("docs", GOOD), placed=(placed("docs", GOOD),))
    (entry,) = package.manifest.entries
    assert (entry.selected, entry.reason) == (False, "already-placed")
    assert package.blocks == ()
    assert package.manifest.budget.selected_tokens == 0
    assert not package.manifest.placement.append


@pytest.mark.rule("D.C.11", "D.F.2", "D.F.3", "D.V2.6")
@pytest.mark.parametrize(
    ("source", "candidate"),
    [
        ("docs", offer("1", "Another text.", 0.5, revision=2)),
        ("docs", offer("1", GOOD.text, 0.5, revision=3)),
        ("docs", offer("2", GOOD.text, 0.5, revision=2)),
        ("wiki", GOOD),
    ],
    ids=["digest", "revision", "record", "source"],
)
def test_a_change_makes_a_new_candidate(source: str, candidate: Candidate) -> None:
    package = compiled(answer(source, candidate), placed=(placed("docs", GOOD),))
    assert reasons(package) == [(source, candidate.record_id, "ranked")]


@pytest.mark.rule("D.C.18")
@pytest.mark.parametrize("text", [GOOD.text, "An older text."])
def test_older_revision_than_a_placed_one_is_superseded(text: str) -> None:
    older = offer("1", text, revision=1)
    assert reasons(compiled(answer("docs", older), placed=(placed("docs", GOOD),))) == [("docs", "1", "superseded")]
    mandatory = msgspec.structs.replace(older, mandatory=True)
    assert reasons(compiled(answer("docs", mandatory), placed=(placed("docs", GOOD),))) == [("docs", "1", "superseded")]
    other = compiled(answer("wiki", older), placed=(placed("docs", GOOD),))
    assert reasons(other) == [("wiki", "1", "ranked")]


@pytest.mark.rule("D.C.18", "D.H.9")
def test_newest_of_several_placements_counts_and_revisions_compare_as_numbers() -> None:
    ten = offer("1", "Ten.", revision=10)
    nine = offer("1", "Nine.", revision=9)
    for order in ((nine, ten), (ten, nine)):
        entries = tuple(placed("docs", candidate) for candidate in order)
        assert reasons(compiled(answer("docs", nine), placed=entries)) == [("docs", "1", "superseded")]
        assert reasons(compiled(answer("docs", ten), placed=entries)) == [("docs", "1", "already-placed")]


@pytest.mark.rule("D.C.15")
def test_only_the_highest_revision_of_one_source_competes() -> None:
    old = offer("1", "Old.", 0.9, revision=9)
    new = offer("1", "New.", 0.1, revision=10)
    assert reasons(compiled(answer("docs", old, new))) == [("docs", "1", "superseded"), ("docs", "1", "ranked")]
    apart = compiled(answer("docs", old), answer("wiki", new))
    assert [reason for _, _, reason in reasons(apart)] == ["ranked", "ranked"]


@pytest.mark.rule("D.C.15", "D.C.14")
def test_superseded_offer_makes_no_duplicate() -> None:
    package = compiled(
        answer("docs", offer("1", "Same.", revision=1), offer("1", "New.", revision=2)),
        answer("wiki", offer("x", "Same.")),
    )
    assert reasons(package) == [("docs", "1", "ranked"), ("docs", "1", "superseded"), ("wiki", "x", "ranked")]


@pytest.mark.rule("D.C.14", "D.C.2", "D.C.3")
def test_of_two_equal_texts_the_first_by_source_then_id_wins() -> None:
    across = compiled(answer("a", offer("9", "Same.", 0.1)), answer("b", offer("1", "Same.", 0.9)))
    assert reasons(across) == [("a", "9", "ranked"), ("b", "1", "duplicate")]
    inside = compiled(answer("a", offer("b", "Same.", 0.9), offer("a", "Same.", 0.1), offer("B", "Same.", 0.5)))
    assert reasons(inside) == [("a", "b", "duplicate"), ("a", "B", "ranked"), ("a", "a", "duplicate")]


@pytest.mark.rule("D.C.14", "D.B.12")
def test_of_two_equal_texts_the_mandatory_one_wins() -> None:
    package = compiled(
        answer("a", offer("1", "Same.", 0.9)),
        answer("skills", offer("deploy/body", "Same.", 0.1, mandatory=True), kind="skills"),
    )
    assert reasons(package) == [("a", "1", "duplicate"), ("skills", "deploy/body", "mandatory")]


@pytest.mark.rule("D.C.14", "D.C.10")
def test_text_that_stands_in_the_history_is_not_sent_again_by_another_source() -> None:
    candidate = offer("1", "Same.")
    package = compiled(answer("a", offer("x", "Same.")), answer("docs", candidate), placed=(placed("docs", candidate),))
    assert reasons(package) == [("a", "x", "duplicate"), ("docs", "1", "already-placed")]


@pytest.mark.rule("D.C.14", "D.D.1")
def test_one_record_offered_twice_is_placed_once() -> None:
    package = compiled(answer("docs", GOOD, GOOD))
    assert reasons(package) == [("docs", "1", "ranked"), ("docs", "1", "duplicate")]
    assert package.manifest.sources[0].excluded == 1


@pytest.mark.rule("D.C.10")
def test_b57_same_query_for_five_steps_adds_no_bytes() -> None:
    """Public report B57: the same memory injected again at each step."""
    candidates = tuple(offer(str(number), f"Fact {number}.", 1 / (number + 1), revision=1) for number in range(6))
    standing: tuple[PlacedEntry, ...] = ()
    sizes: list[int] = []
    for _ in range(5):
        package = compiled(answer("memory", *candidates, kind="memory"), placed=standing, refresh="host-request")
        sizes.append(len(msgspec.json.encode(package.blocks)))
        chosen = {entry.record_id for entry in package.manifest.entries if entry.selected}
        standing += tuple(placed("memory", candidate) for candidate in candidates if candidate.record_id in chosen)
    assert len(standing) == 6
    assert sizes[1:] == [len(b"[]")] * 4


@pytest.mark.rule("D.K.22", "D.D.7")
def test_own_token_count_replaces_the_cost_of_the_text_only() -> None:
    text = "Deploys need a green run. " * 10
    plain = compiled(answer("docs", offer("1", text))).manifest.entries[0].tokens
    ours = 65  # of 260 characters, under both heuristics near a quarter
    more = compiled(answer("docs", offer("1", text, tokens=500))).manifest
    assert more.entries[0].tokens > 500
    assert more.entries[0].tokens - 500 < plain - ours / 2
    assert more.sources[0].tokens_ignored == 0


@pytest.mark.rule("D.K.22", "D.D.7")
@pytest.mark.parametrize("tokens", [0, -5, 1, 2**53, True, 40.0])
def test_own_token_count_that_cannot_be_is_ignored_and_counted(tokens: Any) -> None:
    text = "Deploys need a green run. " * 10
    plain = compiled(answer("docs", offer("1", text)))
    claimed = compiled(answer("docs", offer("1", text, tokens=tokens), offer("2", "Rollbacks.")))
    assert claimed.manifest.entries[0].tokens == plain.manifest.entries[0].tokens
    assert claimed.manifest.sources[0].tokens_ignored == 1


@pytest.mark.rule("D.K.22", "D.M.14")
def test_no_tokens_are_no_count_even_where_a_tokenizer_finds_none() -> None:
    nothing = make_estimator(EstimatorSpec(kind="tokenizer", name="none"), {"none": lambda _: 0})
    results = (answer("docs", offer("1", "Deploys.", tokens=0)),)
    given = ContextInput(run_id="run", step=1, input_tokens=100_000, used_tokens=0, results=results)
    assert compile_context(given, nothing).manifest.sources[0].tokens_ignored == 1

"""What a source's answer comes to, for a run and for a compiler without one (D.C.16, D.G.14, D.K.27)."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.core.answers import read_answer
from contextbus.core.candidates import check_candidates
from contextbus_protocol.digests import digest_text
from contextbus_protocol.questions import Failed, Offered
from contextbus_protocol.values import Candidate, SourceResult, SourceSpec, SourceStatus

SPEC = SourceSpec("skills", "skills", required=True)


def candidate(record: str, text: str = "a", revision: int | None = None) -> Candidate:
    return Candidate(record, text, 0.5, digest_text(text), revision)


def read(*candidates: Candidate, records: tuple[str, ...] = (), only: bool = False) -> SourceResult:
    answer = Offered(run="r", token="", source="skills", kind="skills", candidates=candidates)
    return read_answer(SPEC, answer, 2, records, only_records=only)


@pytest.mark.rule("D.C.16", "D.G.23", "D.H.8", "D.G.14")
@pytest.mark.parametrize(
    ("offered", "records", "only", "kept", "truncated"),
    [
        ("0 1", "", False, "0 1", 0),
        ("0 1 2", "", False, "0 1", 1),
        ("b 0 1 2", "b", False, "b 0 1", 1),
        ("0 1 2 b", "b", False, "0 1 b", 1),
        ("0 1 2", "b", False, "0 1", 1),  # what is owed and did not come back leaves no room for others
        ("0 b c 1 2", "b c d", False, "0 b c 1", 1),
        ("b b b b", "b", False, "b b b", 1),  # a record is owed once
        ("0 b 1", "b", True, "b", 0),
        ("0 1", "b", True, "", 0),
        ("b b b b", "b", True, "b b b", 1),
    ],
)
def test_an_answer_is_cut_to_the_limit_and_what_was_owed_and_came_back(
    offered: str, records: str, only: bool, kept: str, truncated: int
) -> None:
    result = read(*map(candidate, offered.split()), records=tuple(records.split()), only=only)
    assert (" ".join(c.record_id for c in result.candidates), result.truncated) == (kept, truncated)
    assert (result.status, result.required, result.kind) == (SourceStatus.OK, True, "skills")


@pytest.mark.rule("D.K.27", "D.K.21", "D.C.4")
def test_a_malformed_candidate_that_is_kept_fails_the_whole_answer() -> None:
    wrong = msgspec.structs.replace(candidate("b"), digest="sha256:")
    for result in (read(candidate("0"), wrong), read(wrong, records=("b",), only=True)):
        assert (result.status, result.error, result.candidates) == (SourceStatus.FAILED, "malformed", ())
        assert result.required
    assert read(candidate("0"), candidate("1"), wrong).status is SourceStatus.OK  # it was cut off
    assert read(wrong, candidate("0"), records=("0",), only=True).status is SourceStatus.OK


@pytest.mark.rule("D.D.8", "D.G.26")
def test_a_failure_is_told_in_words_only() -> None:
    failed = Failed(run="r", token="", source="skills", code="busy", origin_code="no_index", origin_type="BusyError")
    result = read_answer(SPEC, failed, 2)
    assert (result.status, result.error, result.required) == (SourceStatus.FAILED, "busy", True)
    assert (result.origin_code, result.origin_type) == ("no_index", "BusyError")
    secret = read_answer(SPEC, msgspec.structs.replace(failed, code="the text", origin_code="of ada"), 2)
    assert (secret.error, secret.origin_code) == ("error", None)


@pytest.mark.rule("D.G.25")
def test_an_empty_answer_of_this_process_is_that_of_a_bus() -> None:
    checked = check_candidates(())
    assert checked is not None
    assert type(read_answer(SPEC, msgspec.structs.replace(_empty(), candidates=checked), 2).candidates) is tuple


def _empty() -> Offered:
    return Offered(run="r", token="", source="skills", kind="skills")

"""What looks at many texts or candidates at once says the same as what looks at each."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.blocks import render_record, render_records
from contextbus.core.candidates import CheckedCandidates, check_candidates, validate_candidates
from contextbus.core.escape import are_plain, escape_attribute, escape_text
from contextbus.core.estimate import make_estimator
from contextbus.core.history import SourceHistory
from contextbus.sources.interface import candidate
from contextbus_protocol.chat import user
from contextbus_protocol.codec import decode_message, encode_message
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Offered
from contextbus_protocol.values import Candidate, EstimatorSpec, Provenance

URI = "see data:image/png;base64,QUJDREVGRw== there"
TEXTS = st.lists(st.text(max_size=30) | st.sampled_from(["plain words 12", "A&B <c>", "nul \0 in it", URI]), max_size=6)


@pytest.mark.rule("D.M.2", "D.M.13")
@pytest.mark.parametrize("name", ["classes", "characters"])
@given(texts=TEXTS)
def test_many_texts_weigh_what_each_weighs(name: str, texts: list[str]) -> None:
    estimator = make_estimator(EstimatorSpec(name=name))
    assert estimator.texts(texts) == [estimator.text(text) for text in texts]


@pytest.mark.rule("D.E.7")
@given(TEXTS)
def test_texts_are_plain_only_if_escaping_leaves_them(texts: list[str]) -> None:
    if are_plain(texts):
        assert [escape_text(text) for text in texts] == texts
    if are_plain(texts, lines=True):
        assert [escape_attribute(text) for text in texts] == texts


def test_plain_texts_are_known_to_be() -> None:
    assert are_plain(["two lines\nand a tab\t", "#1"])
    assert not are_plain(["two lines\n"], lines=True)
    assert not are_plain(["a", "<"])
    assert not are_plain(["a", "half \ud83d"])


@pytest.mark.rule("D.E.3", "D.E.5")
@given(st.lists(st.text(min_size=1, max_size=20), max_size=5), st.booleans())
def test_many_records_are_rendered_as_each_is(texts: list[str], revised: bool) -> None:
    candidates = [
        candidate(f"id {text[0]!r}", text, 0.5, 3 if revised and n % 2 else None, provenance=Provenance("told"))
        for n, text in enumerate(texts)
    ]
    rendered = render_records(("docs", "rag", c) for c in candidates)
    assert rendered == [render_record("docs", "rag", c) for c in candidates]


GOOD = candidate("r1", "some text", 0.5, 2, tokens=3, provenance=Provenance("told", ("host",)), query="q", match="m")


@pytest.mark.rule("D.K.27")
def test_checked_candidates_are_not_checked_again_and_do_not_cross_a_bus() -> None:
    checked = check_candidates([GOOD])
    assert type(checked) is CheckedCandidates
    assert type(check_candidates([GOOD, candidate("r2", "other text", 0.5)])) is CheckedCandidates
    validate_candidates(checked)
    offered = Offered(run="r", token="t", source="s", kind="rag", candidates=checked)
    arrived = decode_message(encode_message(offered))
    assert isinstance(arrived, Offered)
    assert type(arrived.candidates) is tuple
    assert arrived.candidates == (GOOD,)


@pytest.mark.rule("D.C.4", "D.C.18", "D.K.21", "D.K.27")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", ""),
        ("text", 7),
        ("text", "other"),
        ("record_id", ""),
        ("record_id", None),
        ("score", float("nan")),
        ("score", True),
        ("digest", "sha256:00"),
        ("revision", -1),
        ("revision", True),
        ("tokens", "3"),
        ("mandatory", 1),
        ("query", 5),
        ("match", b"m"),
        ("match", "half \ud83d"),
        ("provenance", "told"),
        ("provenance", Provenance("told", ["host"])),  # type: ignore[arg-type]  # what a stranger's code may do
    ],
)
def test_a_candidate_that_is_not_plainly_good_is_looked_at_closely(field: str, value: object) -> None:
    assert check_candidates([GOOD, msgspec.structs.replace(GOOD, **{field: value})]) is None


def test_what_is_no_candidate_is_not_checked() -> None:
    assert check_candidates(["text"]) is None
    bad: Candidate = msgspec.structs.replace(GOOD, digest="sha256:00")
    with pytest.raises(InvalidTypeError, match="candidate 1"):
        validate_candidates([GOOD, bad])


@pytest.mark.rule("D.F.19")
@given(st.integers(0, 150), st.integers(0, 150), st.none() | st.integers(0, 149))
def test_a_history_begins_with_another_if_its_messages_do(mine: int, others: int, changed: int | None) -> None:
    texts = [f"m{n}" for n in range(mine)]
    other = [f"m{n}" for n in range(others)]
    if changed is not None and changed < others:
        other[changed] = "changed"

    def history(of: list[str]) -> SourceHistory:
        return SourceHistory().append([user(t) for t in of], [1] * len(of))

    assert history(texts).begins_with(history(other)) == (texts[:others] == other and others <= mine)

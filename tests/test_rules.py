"""The page of rules: every rule in scope has a test, and no test names a rule that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rules


def test_every_rule_in_scope_has_a_test() -> None:
    found = rules.collect()
    assert rules.missing(found) == []
    assert rules.unknown(found) == []


def test_the_sections_have_their_numbers_of_rules() -> None:
    counts = {page: {s: len(rules.names_of(s, page)) for s in sections} for page, (_, sections) in rules.PAGES.items()}
    context, compaction, payload = counts["D"], counts["C"], counts["P"]
    assert sum(context.values()) + 1 + sum(compaction.values()) == len(rules.known_rules())
    assert len(set(rules.known_rules())) == len(rules.known_rules())
    assert [context[section] for section in ("A", "B", "G", "R", "W", "V1")] == [10, 21, 33, 15, 9, 8]
    assert [*compaction.values()] == [10, 5, 11, 16, 9, 10, 14, 10, 7, 8, 9, 11, 15, 13, 13, 11]
    assert payload == {"A": 7, "B": 5, "C": 4, "D": 4, "E": 23, "K": 1}
    assert {prefix: len(names) for prefix, (_, names) in rules.PROVIDERS.items()} == {
        "all": 1,
        "anthropic": 19,
        "openai": 12,
        "responses": 11,
        "gemini": 10,
    }
    assert {*rules.known_rules(("D", "C", "P")), *rules.provider_rules()} >= rules.SCOPE


def test_rules_of_payload_and_providers_are_listed_and_none_is_made_up() -> None:
    assert rules.missing({rule: ["t"] for rule in rules.SCOPE}) == []
    page = rules.render({"anthropic.A6": ["t.py::test"], "P.E.1": ["t.py::test"]})
    assert "## P.E. Targets" in page
    assert "| P.E.1 | rules of the providers | tested | t.py::test |" in page
    assert "| P.B.1 | kinds of state | open |  |" in page
    assert "## Providers: Anthropic Messages" in page
    assert "| anthropic.A6 | one result a call | tested | t.py::test |" in page
    assert "| anthropic.A7 | results first | open |  |" in page
    assert "Providers: 53 rules, 1 tested, 52 open." in page
    assert rules.unknown({"anthropic.A11": ["t"], "gemini.L8": ["t"], "P.A.8": ["t"], "P.F.1": ["t"]}) == [
        "P.A.8",
        "anthropic.A11",
    ]


def test_every_rule_of_the_providers_has_a_test() -> None:
    found = rules.collect()
    assert [rule for rule in rules.provider_rules() if rule not in found] == []


SUITE = """
import pytest
pytestmark = pytest.mark.rule("D.A.1")

@pytest.mark.rule("D.B.4", "D.B.5")
@pytest.mark.parametrize("x", [1])
def test_one(x): ...

class TestMore:
    @pytest.mark.rule("D.B.4")
    async def test_two(self): ...

@pytest.mark.xfail(strict=True)
@pytest.mark.rule("D.B.6")
def test_three(): ...

@pytest.mark.rule("D.Z.1")
def helper(): ...
"""


def test_markers_are_read_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_it.py").write_text(SUITE, encoding="utf-8")
    one, two = "unit/test_it.py::test_one", "unit/test_it.py::test_two"
    assert rules.collect(tmp_path) == {"D.A.1": [one, two], "D.B.4": [one, two], "D.B.5": [one]}


def test_a_stale_page_and_a_rule_without_test_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "rules.md"
    monkeypatch.setattr(rules, "PAGE", page)
    assert rules.main([]) == 0
    assert rules.main(["--check"]) == 0
    assert "| D.B.4 | the smaller of two | tested |" in page.read_text(encoding="utf-8")
    assert "| D.R.10 | injected twice | open |" in page.read_text(encoding="utf-8")
    page.write_text("old", encoding="utf-8")
    monkeypatch.setattr(rules, "SCOPE", frozenset({"D.R.10"}))
    assert rules.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "D.R.10: in scope" in said
    assert "stale" in said

"""What of a report is a fact of the log: words, a moment and a digest (D.W.8, D.D.25)."""

from __future__ import annotations

from typing import Any

import pytest

from contextbus.core.reported import model_word, outcome_of_report
from contextbus_protocol.commands import ReportStep
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import CallFailed, CallSucceeded

DIGEST = digest_text("{}")
SENTENCE = "the password is swordfish"


def report(status: Any = "succeeded", **fields: Any) -> ReportStep:
    head: dict[str, Any] = {
        "run": "r",
        "tenant": "t",
        "command": "c",
        "attempt": 1,
        "reply_to": "",
        "seconds_left": 1.0,
        "now": 0,
        "seen": 0,
        "seen_memory": 0,
    }
    return ReportStep(**head, step=3, status=status, **fields)


@pytest.mark.rule("D.W.8")
def test_words_a_moment_and_a_digest_are_facts() -> None:
    fields: dict[str, Any] = {
        "finish_reason": "end_turn",
        "started_at": 1_700_000_000_000,
        "response_model": "claude-opus-4-6",
        "request_digest": DIGEST,
        "upstream": "bedrock",
    }
    assert outcome_of_report(report(**fields)) == CallSucceeded(step=3, **fields)
    assert outcome_of_report(report("failed", **fields)) == CallFailed(step=3, status="failed")


@pytest.mark.rule("D.W.8", "D.D.25")
@pytest.mark.parametrize("wrong", [SENTENCE, "x" * 65, "", "sha256:" + "g" * 64, "sha256:abc", DIGEST.upper()])
def test_what_is_no_word_is_left_out_whoever_sent_it(wrong: str) -> None:
    outcome = outcome_of_report(
        report(finish_reason=wrong, started_at=-1, response_model=wrong + " ", request_digest=wrong, upstream=wrong)
    )
    assert outcome == CallSucceeded(step=3, finish_reason="other")
    assert outcome_of_report(report(started_at=2**53)) == CallSucceeded(step=3)


@pytest.mark.rule("C.M.8", "C.N.13")
@pytest.mark.parametrize("wrong", [-1, 2**53, True, 1.0, "9", None])
def test_a_measure_or_retention_that_is_no_count_is_left_out_whoever_sent_it(wrong: Any) -> None:
    assert outcome_of_report(report(measured=wrong, retention_ms=7)) == CallSucceeded(step=3, retention_ms=7)
    assert outcome_of_report(report(measured=7, retention_ms=wrong)) == CallSucceeded(step=3, measured=7)
    assert outcome_of_report(report("failed", measured=7, retention_ms=7)) == CallFailed(step=3, status="failed")


@pytest.mark.rule("D.W.8")
@pytest.mark.parametrize("name", ["meta-llama/Llama-3", "anthropic.claude-v2:1", "gemini@001", "gpt-4.1"])
def test_the_separators_of_model_names_are_part_of_them(name: str) -> None:
    assert model_word(name) == name
    assert model_word(name + " or so") is model_word("/" * 3) is model_word("a" * 65) is model_word(None) is None

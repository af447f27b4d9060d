"""The benchmark of prompt caches: both sides of each cache, and what the plain agent does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from benchmarks import prompt_cache
from benchmarks.long_run import made_script, take_run
from benchmarks.plain_agent import ask_plainly

from contextbus.core.payload import Payload

CACHES = [
    "Anthropic, breakpoints",
    "Anthropic, tail kept",
    "OpenAI Chat Completions",
    "OpenAI Responses",
    "Gemini, from 2,048",
    "Gemini, from 4,096",
]


def test_the_prompt_caches_of_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    prompt_cache.main(["--quick", "--json"])
    report = msgspec.json.decode(capsys.readouterr().out)
    assert (report["quick"], report["conversation"]) == (True, "made")
    rows: list[dict[str, Any]] = report["rows"]
    assert list(dict.fromkeys(row["provider"] for row in rows)) == CACHES
    sides = {(row["provider"], row["side"]): row for row in rows}
    for row in rows:
        assert 0 <= row["read"] <= row["read"] + row["written"] <= row["sent"]
        assert row["share"] == pytest.approx(row["read"] / row["sent"])
        assert row["written"] == 0 or row["provider"].startswith("Anthropic")
    for cache in (CACHES[0], CACHES[2], CACHES[3]):  # the run is too short for the minimum of the others
        assert sides[cache, "ours"]["share"] > 1.5 * sides[cache, "plain"]["share"]
    for found in report["prefixes"]:
        assert found["kept"] + len(found["broken"]) == found["pairs"] == report["calls"] - 1
        assert {cause for _, cause in found["broken"]} <= {"compaction"}
    causes = {loss["cause"] for loss in report["losses"] if loss["side"] != "ours"}
    assert causes == {"system changed"}


def test_the_tables_name_every_cache_and_cause(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    prompt_cache.main(["--quick"])
    shown = capsys.readouterr().out
    assert all(cache in shown for cache in CACHES)
    assert "behind the append point" in shown
    assert "its figures mean nothing" in shown


async def test_the_plain_agent_says_the_same_and_drops_whole_turns_at_its_window() -> None:
    script = made_script(24, 3_000)
    steps = await take_run(script, cache=True)

    def count(payload: Payload) -> int:
        return len(payload.json()) // 4

    asked = ask_plainly(script, steps, count)
    limit = script.window - script.window // 12
    lengths: list[int] = []
    for number, requests in enumerate(asked):
        assert count(requests["openai"]) <= limit
        body = json.loads(requests["anthropic"].json())
        assert [("cache_control" in block) for block in body["system"]] == [True, False]
        assert f"<call>{number}</call>" in body["system"][1]["text"]
        assert "<working_memory" in body["system"][1]["text"]
        assert "cache_control" in body["messages"][-1]["content"][-1]
        # only the breakpoints are left out there: no result is without its call
        assert {repair.code for repair in requests["openai"].repairs} == {"breakpoint"}
        messages = json.loads(requests["openai"].json())["messages"]
        assert messages[2]["role"] == "user"
        lengths.append(len(messages))
    assert lengths != sorted(lengths)

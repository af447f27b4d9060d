"""The benchmarks run, and say what they are asked for; how fast anything is, no test says."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from benchmarks import compaction, conformance, history, replay, selection, step
from benchmarks.ratios import summarise
from benchmarks.sizes import read_hops, read_stored
from benchmarks.workload import STEP_KINDS, STEPS_OF_A_RUN


def run(capsys: pytest.CaptureFixture[str], benchmark: Any, *arguments: str) -> dict[str, Any]:
    benchmark.main(["--quick", "--json", *arguments])
    report: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
    assert report["cores"] >= 1
    assert report["quick"] is True
    for ratio in report["ratios"]:
        assert math.isfinite(ratio["ratio"])
        assert 0 < ratio["lowest"] <= ratio["ratio"] <= ratio["highest"]
        assert (ratio["met"] is None) == (ratio["goal"] is None)
    return report


@pytest.mark.broker
def test_steps_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, step, "--where", "one")
    goals = {
        (r["what"], r["setting"], r["measure"]): r["goal"] for r in report["ratios"] if r["where"] == "one process"
    }
    assert goals == {
        (kind, setting, measure): goal
        for setting in ("sync always",)
        for kind, measure, goal in (
            ("refresh", "p50", 2.0),
            ("refresh", "throughput", 0.5),
            ("reused", "p50", 1.2),
            ("reused", "throughput", 0.5),
        )
    }
    beside = [r for r in report["ratios"] if r["where"] != "one process"]
    assert len(beside) == len(goals)
    assert all(r["goal"] is None for r in beside)


@pytest.mark.broker
def test_steps_over_separate_processes(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, step, "--where", "separate")
    goals = {(r["what"], r["setting"], r["measure"]): r["goal"] for r in report["ratios"]}
    assert goals == {
        (kind, setting, measure): goal
        for setting in ("sync always",)
        for kind in STEP_KINDS
        for measure, goal in (("p50", 1.5), ("throughput", 0.6))
    }


@pytest.mark.broker
def test_replay(capsys: pytest.CaptureFixture[str]) -> None:
    (ratio,) = run(capsys, replay)["ratios"]
    assert (ratio["measure"], ratio["goal"], ratio["at_least"]) == ("rate", 0.5, True)


def test_growth_with_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert [r["what"] for r in run(capsys, selection)["ratios"]] == ["1,000 candidates", "10,000 candidates"]


async def test_the_yardstick_stores_and_sends_what_a_step_does() -> None:
    stored = {kind: await read_stored(kind) for kind in STEP_KINDS}
    assert all(len(steps) == STEPS_OF_A_RUN and len(s.blobs) == 2 for steps in stored.values() for s in steps)
    # 48 candidates of 320 characters, once as offers and once in the package
    assert all(len(s.blobs[1]) > 2 * 48 * 320 for s in stored["refresh"])
    assert all(len(s.blobs[1]) < 1_000 for s in stored["reused"])
    refresh, reused = await read_hops("refresh"), await read_hops("reused")
    assert (refresh.sources, reused.sources) == (4, 0)
    assert refresh.offer > 12 * 320
    assert refresh.place > 48 * 320 > reused.place
    hops = ("compile", "ask", "items", "place", "committed", "compiled")
    assert all(getattr(each, hop) > 0 for each in (refresh, reused) for hop in hops)


@pytest.mark.parametrize(("ratio", "at_least", "met"), [(1.9, False, True), (2.1, False, False), (2.1, True, True)])
def test_a_goal_is_met_by_the_median(ratio: float, at_least: bool, met: bool) -> None:
    found = summarise([ratio, 0.1, 9.0], where="", what="", setting="", measure="p50", goal=2.0, at_least=at_least)
    assert (found.ratio, found.lowest, found.highest, found.met) == (ratio, 0.1, 9.0, met)


@pytest.mark.broker
def test_steps_by_length_of_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, history)
    assert [(r["where"], r["what"].split(", ")[1], r["goal"]) for r in report["ratios"]] == [
        (where, model, 1.5) for where in ("rules alone", "one process") for model in ("plain", "tails kept")
    ]


def test_compaction(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, compaction)
    whats = [r["what"].rpartition(",")[0] for r in report["ratios"]]
    assert whats == ["plan, a message", "extractive summary, a message", "step behind a compaction"]
    assert all(r["goal"] == history.GROWTH_GOAL for r in report["ratios"])


def test_what_a_summary_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    conformance.main(["--quick", "--json"])
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert [row["language"] for row in rows] == [
        name
        for name in ("kit", "English", "German", "Russian", "English, held out", "Spanish, held out", "French, unseen")
        for _ in range(3)
    ]
    assert all(row["budget_kept"] for row in rows)

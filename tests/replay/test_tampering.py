"""A step that was changed after the fact, commit and blob alike, is noticed: nothing in it is taken on trust."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.golden.journal import FOLDER, Journal, read_journal

from contextbus.replay.checks import Check
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import verify_run
from contextbus.sources.interface import candidate
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.events import Commit, PackageRedacted, StepCompiled

replace = msgspec.structs.replace
JOURNAL = read_journal(FOLDER / "0.1.0-policy2-classes.jsonl")


def step_of(commit: Commit) -> StepCompiled | None:
    return next((e for e in commit.events if isinstance(e, StepCompiled)), None)


def until(journal: Journal, is_it: Callable[[StepCompiled], bool]) -> tuple[list[LoggedCommit], StepCompiled]:
    """The log up to the last step of a kind: nothing behind it vouches for it."""
    log = list(journal.log().commits)
    index = max(i for i, c in enumerate(log) if (step := step_of(c.commit)) is not None and is_it(step))
    step = step_of(log[index].commit)
    assert step is not None
    return log[: index + 1], step


def flaws(commits: list[LoggedCommit], changed: StepCompiled, stored: dict[str, bytes]) -> list[Check]:
    """What is told of the log with another step at its end."""
    last = commits[-1]
    events = tuple(changed if isinstance(e, StepCompiled) else e for e in last.commit.events)
    commit = replace(last.commit, events=events)
    data = codec.encode_commit(commit)
    logged = LoggedCommit(last.sequence, digests.digest_bytes(data), codec.decode_commit(data))
    log = RunLog(JOURNAL.run, (*commits[:-1], logged), JOURNAL.log().memory)
    checks = verify_run(log, {**JOURNAL.blobs, **stored}.get).checks
    return [c for c in checks if c.status not in ("same", "redacted") and c.field != "replacement"]


def is_overflow(step: StepCompiled) -> bool:
    return step.overflow is not None


def is_demanding(step: StepCompiled) -> bool:
    return bool(step.demanded)


CHANGES: list[tuple[Callable[[StepCompiled], bool], Callable[[StepCompiled], StepCompiled]]] = [
    (is_overflow, lambda s: replace(s, overflow=(s.overflow or 0) + 1)),
    (is_overflow, lambda s: replace(s, overflow=None)),
    (is_overflow, lambda s: replace(s, options=replace(s.options, estimator_kind="tokenizer"))),
    (is_overflow, lambda s: replace(s, options=replace(s.options, overhead_tokens=9))),
    (is_overflow, lambda s: replace(s, demanded=(("skills", "ci/body"),))),
    (is_overflow, lambda s: replace(s, placement=replace(s.placement, tail_kept=False))),
    (is_overflow, lambda s: replace(s, refresh="reused")),
    (is_overflow, lambda s: replace(s, query_digest="sha256:other")),
    (is_demanding, lambda s: replace(s, demanded=())),
    (is_demanding, lambda s: replace(s, demanded=(*s.demanded, ("skills", "tea/body")))),
    (is_demanding, lambda s: replace(s, overflow=900)),
    (is_demanding, lambda s: replace(s, redacted=True)),
    (is_demanding, lambda s: replace(s, cache_prefix_cause="redacted")),
    (is_demanding, lambda s: replace(s, rewritten=True)),
]


@pytest.mark.rule("D.A.6", "D.I.1", "D.H.8", "D.F.10")
@pytest.mark.parametrize(("is_it", "change"), CHANGES)
def test_a_changed_field_is_different(
    is_it: Callable[[StepCompiled], bool], change: Callable[[StepCompiled], StepCompiled]
) -> None:
    commits, step = until(JOURNAL, is_it)
    assert flaws(commits, step, {}) == []
    told = flaws(commits, change(step), {})
    assert [c.status for c in told] == ["different"]
    assert told[0].expected != told[0].got


def with_output(step: StepCompiled, **changes: Any) -> tuple[StepCompiled, dict[str, bytes]]:
    """The step with another output, under that output's own digest."""
    output = replace(blobs.decode_output(JOURNAL.blobs[step.package]), **changes)
    data = codec.encode_json(output)
    return replace(step, package=digests.digest_bytes(data)), {digests.digest_bytes(data): data}


@pytest.mark.rule("D.A.6", "D.H.5")
@pytest.mark.parametrize("is_it", [is_overflow, is_demanding])
def test_other_restored_offers_are_different_even_under_their_own_digest(
    is_it: Callable[[StepCompiled], bool],
) -> None:
    commits, step = until(JOURNAL, is_it)
    output = blobs.decode_output(JOURNAL.blobs[step.package])
    (restored,) = output.restored
    more = replace(restored, candidates=(*restored.candidates, candidate("9", "Never placed.", 0.1)))
    less = replace(restored, candidates=restored.candidates[:-1])
    first = restored.candidates[0]
    other = replace(restored, candidates=(replace(first, score=0.95), *restored.candidates[1:]))
    for changed in ((more,), (less,), (other,), (restored, replace(restored, source="memory"))):
        told = flaws(commits, *with_output(step, restored=changed))
        assert [c.status for c in told] == ["different"]
    assert flaws(commits, *with_output(step)) == []


@pytest.mark.rule("D.A.6", "D.J.6")
def test_what_a_forget_left_is_held_against_its_digest() -> None:
    log = JOURNAL.log()
    gone = [e.replacement for c in log.commits for e in c.commit.events if isinstance(e, PackageRedacted)]
    assert gone
    for reference in gone:
        spoiled = verify_run(log, {**JOURNAL.blobs, reference: b"{}"}.get)
        assert [(c.status, c.field) for c in spoiled.checks if c.status not in ("same", "redacted")] == [
            ("different", "replacement")
        ]
        missing = verify_run(log, {k: v for k, v in JOURNAL.blobs.items() if k != reference}.get)
        assert missing.is_clean
        assert [c.expected for c in missing.checks if c.status == "missing"] == [reference]

"""Recorded runs fold and verify for good, and no changed byte goes unnoticed (A.6, W.1 of the rules for runs)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.golden.journal import Journal, list_journals, read_journal, summarise, write_journal

from contextbus.core.run import fold_commit
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import RunLog, read_commits, replay_memory, replay_states
from contextbus.replay.verify import Verdict, verify_run
from contextbus_protocol import codec
from contextbus_protocol.errors import InvalidTypeError, UnsupportedVersionError
from contextbus_protocol.events import StepCompiled

read = functools.cache(read_journal)
JOURNALS = list_journals()
each = pytest.mark.parametrize("path", JOURNALS, ids=lambda p: p.stem)


def verify(journal: Journal) -> Verdict:
    return verify_run(journal.log(), journal.blobs.get)


@each
def test_a_recorded_run_comes_to_what_it_came_to(path: Path) -> None:
    journal = read(path)
    assert summarise(journal.log()) == journal.expected


@each
def test_a_recorded_run_verifies_clean(path: Path) -> None:
    verdict = verify(read(path))
    assert [c for c in verdict.checks if c.status != "same"] == []
    assert verdict.is_clean
    assert verdict.steps == 4


@each
def test_a_recorded_run_has_every_event_and_the_bytes_that_this_release_writes(path: Path) -> None:
    journal = read(path)
    log = journal.log()
    tags = {str(e.__struct_config__.tag) for c in (*log.commits, *log.memory) for e in c.commit.events}
    assert tags >= {
        "run-started",
        "messages-appended",
        "history-replaced",
        "step-compiled",
        "step-failed",
        "call-succeeded",
        "call-failed",
        "refresh-requested",
        "working-memory-created",
        "working-memory-patched",
    }
    for _, data in (*journal.commits, *journal.memory):
        assert codec.encode_commit(codec.decode_commit(data)) == data


@each
def test_folding_a_prefix_is_the_state_at_that_commit(path: Path) -> None:
    log = read(path).log()
    states = replay_states(log)
    for count in range(len(log.commits) + 1):
        part = RunLog(log.run, log.commits[:count])
        expected = states[count - 1][1] if count else RunState(log.run)
        state = RunState(log.run)
        for logged in part.commits:
            state = fold_commit(state, logged.sequence, logged.digest, logged.commit)
        assert state == expected


def test_a_recorded_run_is_never_overwritten() -> None:
    with pytest.raises(FileExistsError):
        write_journal(JOURNALS[0], read(JOURNALS[0]))


# -- changed bytes

# What nothing else repeats: in the last commit of a part these may change and nobody can tell.
# The policy is reported as unverifiable where a step was decided by it.
BLIND = re.compile(rb'"(?:command|engine)":"[^"]*"|"(?:at|attempt|policy)":\d+', re.ASCII)


def spoil(data: bytes, at: int, byte: int) -> bytes:
    """The bytes with one other byte."""
    changed = bytearray(data)
    changed[at] = byte if byte != changed[at] else byte ^ 1
    return bytes(changed)


def outcome(journal: Journal) -> str:
    """How verification tells of the journal: ``damaged``, ``reported`` or ``clean``."""
    try:
        verdict = verify(journal)
    except (InvalidTypeError, UnsupportedVersionError):
        return "damaged"
    flaws = [c for c in verdict.checks if c.status != "same"]
    assert all(c.field and c.sequence >= 0 for c in flaws)
    assert [c for c in flaws if c.expected == c.got] == []
    return "reported" if flaws else "clean"


def with_commit(journal: Journal, part: str, index: int, change: Callable[[bytes], bytes]) -> Journal:
    commits = list(journal.commits if part == "run" else journal.memory)
    sequence, data = commits[index]
    commits[index] = (sequence, change(data))
    if part == "run":
        return msgspec.structs.replace(journal, commits=tuple(commits))
    return msgspec.structs.replace(journal, memory=tuple(commits))


@pytest.mark.rule("D.A.6")
@each
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_changed_byte_of_a_commit_is_noticed(path: Path, data: st.DataObject) -> None:
    journal = read(path)
    part = data.draw(st.sampled_from(["run", "run", "working-memory"]))
    commits = journal.commits if part == "run" else journal.memory
    index = data.draw(st.integers(0, len(commits) - 1))
    stored = commits[index][1]
    at, byte = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(0, 255) | st.sampled_from(b'0a9 ",}'))
    told = outcome(with_commit(journal, part, index, lambda d: spoil(d, at, byte)))
    is_last = index == len(commits) - 1
    if not (is_last and any(m.start() <= at < m.end() for m in BLIND.finditer(stored))):
        assert told != "clean", (part, index, stored[max(0, at - 30) : at + 30], byte)


@each
@pytest.mark.parametrize("part", ["run", "working-memory"])
def test_every_byte_of_the_last_commit_but_the_blind_ones_is_noticed(path: Path, part: str) -> None:
    journal = read(path)
    stored = (journal.commits if part == "run" else journal.memory)[-1][1]
    blind = {at for m in BLIND.finditer(stored) for at in range(m.start(), m.end())}
    for at in range(0, len(stored), 3):
        if at not in blind:
            byte = stored[at] + 1 if stored[at] not in b"9z" else stored[at] - 1
            told = outcome(with_commit(journal, part, -1, functools.partial(spoil, at=at, byte=byte)))
            assert told != "clean", stored[max(0, at - 30) : at + 30]


@pytest.mark.rule("D.A.6")
@each
@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, 99), at=st.integers(0, 10_000), byte=st.integers(0, 255))
@example(which=0, at=0, byte=0)
def test_a_changed_byte_of_a_blob_is_noticed(path: Path, which: int, at: int, byte: int) -> None:
    journal = read(path)
    reference = sorted(journal.blobs)[which % len(journal.blobs)]
    stored = journal.blobs[reference]
    changed = {**journal.blobs, reference: spoil(stored, at % len(stored), byte)}
    assert outcome(msgspec.structs.replace(journal, blobs=changed)) == "reported"


@each
def test_a_blob_that_is_gone_is_missing_and_not_different(path: Path) -> None:
    journal = read(path)
    for reference in journal.blobs:
        left = {k: v for k, v in journal.blobs.items() if k != reference}
        verdict = verify(msgspec.structs.replace(journal, blobs=left))
        missing = [c for c in verdict.checks if c.status == "missing"]
        assert [c.expected for c in missing] == [reference] * len(missing) != []
        assert verdict.is_clean


@each
def test_a_commit_that_is_gone_or_out_of_order_is_noticed(path: Path) -> None:
    journal = read(path)
    commits = journal.commits
    for index in range(len(commits) - 1):
        for changed in (
            commits[:index] + commits[index + 1 :],
            (*commits[:index], commits[index + 1], commits[index], *commits[index + 2 :]),
            (*commits[: index + 1], *commits[index:]),
        ):
            assert outcome(msgspec.structs.replace(journal, commits=changed)) == "reported"


@each
def test_a_difference_is_named_by_step_field_and_both_values(path: Path) -> None:
    journal = read(path)
    index = max(
        i
        for i, (_, data) in enumerate(journal.commits)
        if any(isinstance(e, StepCompiled) for e in codec.decode_commit(data).events)
    )
    assert index == len(journal.commits) - 1
    changed = with_commit(journal, "run", index, lambda d: d.replace(b'"step":9', b'"step":8', 1))
    (check,) = [c for c in verify(changed).checks if c.status == "different"]
    assert (check.step, check.sequence) == (8, journal.commits[-1][0])
    budget = re.compile(rb'"selectedTokens":(\d+)')
    changed = with_commit(journal, "run", index, lambda d: budget.sub(rb'"selectedTokens":1\1', d))
    (check,) = [c for c in verify(changed).checks if c.status == "different"]
    assert (check.step, check.field) == (9, "budget.selectedTokens")
    assert check.expected == "1" + check.got


@each
def test_another_policy_is_unverifiable_and_never_different(path: Path) -> None:
    journal = read(path)
    changed = with_commit(journal, "run", -1, lambda d: d.replace(b'"policy":1', b'"policy":7'))
    flaws = [c for c in verify(changed).checks if c.status != "same"]
    assert [(c.status, c.field, c.expected) for c in flaws] == [("unverifiable", "policy", "7")]


def test_the_memory_part_replays_to_what_steps_used() -> None:
    for path in JOURNALS:
        log = read(path).log()
        by_sequence = {logged.sequence: state.snapshot_digest for logged, state in replay_memory(log)}
        used = [e.working_memory for c in log.commits for e in c.commit.events if isinstance(e, StepCompiled)]
        assert len(used) == 4
        assert all(u is not None and by_sequence[u.sequence] == u.digest for u in used)
    assert read_commits(()) == ()

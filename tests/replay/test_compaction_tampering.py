"""A compaction that was changed after the fact is noticed, also where its command and its blobs were made to fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.golden.journal import FOLDER, read_journal

from contextbus.core.compaction.composition import summary_message
from contextbus.replay.checks import Check
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import verify_run
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.events import (
    AnyEvent,
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    IdentifierCounts,
    MessagesAppended,
    RecordReference,
    ReplacedRange,
    StepCompiled,
    StepFailed,
    SummaryRedacted,
    TokenChange,
    UnknownEvent,
)
from contextbus_protocol.values import RetentionPolicy, Trigger, Usage

replace = msgspec.structs.replace
JOURNAL = read_journal(FOLDER / "0.1.0-policy2-compacted.jsonl")
COMPACTION = (CompactionRestored, CompactionStarted, CompactionCompleted, CompactionFailed)
Change = Callable[[Any], Any]


def places(kind: type[AnyEvent], is_it: Callable[[Any], bool] = lambda _: True) -> list[int]:
    """The commits that hold an event of a kind."""
    found = enumerate(JOURNAL.log().commits)
    return [i for i, c in found if any(isinstance(e, kind) and is_it(e) for e in c.commit.events)]


def forge(
    index: int, events: tuple[AnyEvent | UnknownEvent, ...], stored: dict[str, bytes] | None = None
) -> list[Check]:
    """What is told of the log up to a commit whose events are others, under a command that fits them."""
    commits = JOURNAL.log().commits[: index + 1]
    commit = replace(commits[-1].commit, events=events)
    own = tuple(e for e in events if isinstance(e, COMPACTION))
    if own and not any(isinstance(e, StepCompiled | StepFailed) for e in events):
        last = own[-1]
        status = {"CompactionCompleted": "completed", "CompactionStarted": "started"}.get(type(last).__name__, "")
        status = status or (f"failed-{last.phase}" if isinstance(last, CompactionFailed) else "started")
        digest = digests.digest_bytes(codec.encode_json(own))
        commit = replace(commit, command=f"{last.evaluation}-{status}", command_digest=digest)
    data = codec.encode_commit(commit)
    logged = LoggedCommit(commits[-1].sequence, digests.digest_bytes(data), codec.decode_commit(data))
    log = RunLog(JOURNAL.run, (*commits[:-1], logged), JOURNAL.log().memory)
    checks = verify_run(log, {**JOURNAL.blobs, **(stored or {})}.get).checks
    return [c for c in checks if c.status != "same"]


def change(index: int, kind: type[AnyEvent], edit: Change, stored: dict[str, bytes] | None = None) -> list[Check]:
    """What is told where one event is another."""
    events = JOURNAL.log().commits[index].commit.events
    return forge(index, tuple(edit(e) if isinstance(e, kind) else e for e in events), stored)


def by(cause: str) -> int:
    return places(CompactionStarted, lambda e: e.cause == cause)[-1]


STARTED: list[tuple[str, str, Change]] = [
    ("trigger", "messageCount", lambda e: replace(e, message_count=e.message_count + 1)),
    ("trigger", "tokensBefore", lambda e: replace(e, tokens_before=e.tokens_before + 1)),
    ("trigger", "tokensBefore", lambda e: replace(e, envelope_tokens=e.envelope_tokens + 50, tokens_before=7)),
    ("trigger", "envelopeTokens", lambda e: replace(e, envelope_tokens=0)),
    ("trigger", "targetTokens", lambda e: replace(e, target_tokens=e.target_tokens + 1)),
    ("trigger", "triggerIndex", lambda e: replace(e, trigger_index=9)),
    ("trigger", "triggerIndex", lambda e: replace(e, trigger_index=None)),
    (
        "trigger",
        "triggerIndex",
        lambda e: replace(e, options=replace(e.options, triggers=(Trigger(kind="messages-exceed", limit=99),))),
    ),
    ("trigger", "triggerIndex", lambda e: replace(e, options=replace(e.options, triggers=(Trigger(kind="custom"),)))),
    ("trigger", "policy", lambda e: replace(e, policy=RetentionPolicy(keep_last_messages=1))),
    ("trigger", "hostTokens", lambda e: replace(e, host_tokens=900)),
    ("trigger", "tokenScope", lambda e: replace(e, token_scope=None)),
    ("trigger", "bindsThinking", lambda e: replace(e, binds_thinking=False)),
    ("trigger", "memorySequence", lambda e: replace(e, memory_sequence=77)),
    ("trigger", "memorySequence", lambda e: replace(e, memory_sequence=0)),
    ("trigger", "cause", lambda e: replace(e, cause="redacted", trigger_index=None)),
    ("trigger", "step", lambda e: replace(e, step=0)),
    ("trigger", "evaluation", lambda e: replace(e, evaluation="compaction-other")),
    ("overflow", "step", lambda e: replace(e, step=e.step + 1)),
    ("overflow", "model", lambda e: replace(e, model=replace(e.model, provider="openai"))),
    ("overflow", "options", lambda e: replace(e, options=replace(e.options, on_failure="drop"))),
    (
        "overflow",
        "envelopeTokens",
        lambda e: replace(e, envelope_tokens=e.envelope_tokens + 5, tokens_before=e.tokens_before + 5),
    ),
    ("overflow", "triggerIndex", lambda e: replace(e, trigger_index=0)),
    ("overflow", "cause", lambda e: replace(e, cause="redacted")),
]


@pytest.mark.rule("C.I.3", "C.J.1", "C.J.6", "C.O.1", "C.O.2", "C.H.2", "C.H.3", "D.A.6")
@pytest.mark.parametrize(("cause", "field", "edit"), STARTED)
def test_a_changed_start_is_different(cause: str, field: str, edit: Change) -> None:
    index = by(cause)
    assert change(index, CompactionStarted, lambda e: e) == []
    told = change(index, CompactionStarted, edit)
    assert field in [c.field for c in told]
    assert all(c.status == "different" and c.expected != c.got for c in told)


WHOLE = places(CompactionCompleted, lambda e: not e.dropped)[0]
PIECES = places(CompactionCompleted, lambda e: e.pieces > 1)[-1]
DROPPED = places(CompactionCompleted, lambda e: e.dropped)[-1]
SECOND = places(CompactionCompleted, lambda e: not e.dropped)[-1]
OTHER = "sha256:" + "0" * 64

COMPLETED: list[tuple[int, str, Change]] = [
    (WHOLE, "tokens.before", lambda e: replace(e, tokens=TokenChange(e.tokens.before + 1, e.tokens.after))),
    (WHOLE, "tokens.after", lambda e: replace(e, tokens=TokenChange(e.tokens.before, e.tokens.after - 1))),
    (WHOLE, "replacedRange.end", lambda e: replace(e, replaced_range=ReplacedRange(0, e.replaced_range.end - 1))),
    (WHOLE, "replacedRange.start", lambda e: replace(e, replaced_range=ReplacedRange(1, e.replaced_range.end))),
    (WHOLE, "sourceCount", lambda e: replace(e, source_count=e.source_count - 1)),
    (WHOLE, "sourceHash", lambda e: replace(e, source_hash=OTHER)),
    (WHOLE, "replacement", lambda e: replace(e, replacement=e.replacement[1:])),
    (
        WHOLE,
        "replacement",
        lambda e: replace(e, replacement=(*e.replacement[:-1], replace(e.replacement[-1], eighteenths=1))),
    ),
    (
        WHOLE,
        "replacement",
        lambda e: replace(e, replacement=(*e.replacement[:-1], replace(e.replacement[-1], source=0))),
    ),
    (WHOLE, "replacement", lambda e: replace(e, replacement=tuple(replace(f, own="") for f in e.replacement))),
    (WHOLE, "summariser", lambda e: replace(e, summariser="another")),
    (WHOLE, "pieces", lambda e: replace(e, pieces=2)),
    (WHOLE, "pieces", lambda e: replace(e, pieces=0)),
    (
        WHOLE,
        "identifiers.kept",
        lambda e: replace(e, identifiers=IdentifierCounts(e.identifiers.seen, e.identifiers.kept + 1)),
    ),
    (WHOLE, "identifiers", lambda e: replace(e, identifiers=None)),
    (WHOLE, "thinking", lambda e: replace(e, thinking=())),
    (WHOLE, "thinking", lambda e: replace(e, thinking=((0, 1), *e.thinking))),
    (WHOLE, "records", lambda e: replace(e, records=())),
    (SECOND, "records", lambda e: replace(e, records=(*e.records, RecordReference("rag", "9", 1)))),
    (WHOLE, "tokenScope", lambda e: replace(e, token_scope=None)),
    (WHOLE, "hostCounts", lambda e: replace(e, host_counts=(1,))),
    (WHOLE, "replacedBy", lambda e: replace(e, dropped=True)),
    (WHOLE, "archive", lambda e: replace(e, archive=None)),
    (WHOLE, "evaluation", lambda e: replace(e, evaluation="compaction-" + "0" * 32)),
    (PIECES, "pieces", lambda e: replace(e, pieces=2)),
    (DROPPED, "summariser", lambda e: replace(e, summariser="scripted")),
    (DROPPED, "dropped", lambda e: replace(e, dropped=False)),
    (DROPPED, "tokens.after", lambda e: replace(e, tokens=TokenChange(e.tokens.before, e.tokens.after + 9))),
    (SECOND, "sourceCount", lambda e: replace(e, source_count=e.source_count + 1)),
]


@pytest.mark.rule("C.L.1", "C.L.2", "C.L.7", "C.O.3", "C.X.2", "C.X.4", "C.X.6", "C.X.7", "C.X.8", "C.X.11", "D.A.6")
@pytest.mark.parametrize(("index", "field", "edit"), COMPLETED)
def test_a_changed_checkpoint_is_different(index: int, field: str, edit: Change) -> None:
    assert change(index, CompactionCompleted, lambda e: e) == []
    told = change(index, CompactionCompleted, edit)
    assert told
    assert all(c.status == "different" and c.expected != c.got for c in told), told
    assert any(c.field.startswith(field) or c.field == "compaction" for c in told), told


def blob(data: bytes) -> dict[str, bytes]:
    return {digests.digest_bytes(data): data}


@pytest.mark.rule("C.L.1", "C.X.8", "C.E.2", "C.O.3", "D.A.6")
def test_other_texts_are_different_even_under_their_own_digest() -> None:
    event = next(e for e in JOURNAL.log().commits[WHOLE].commit.events if isinstance(e, CompactionCompleted))
    messages = blobs.decode_replacement(JOURNAL.blobs[event.replaced_by]).messages
    assert event.archive is not None
    archived = blobs.decode_archive(JOURNAL.blobs[event.archive]).messages
    longer = blob(
        blobs.encode_replacement((summary_message("They deploy nothing at all. " * 3, event.archive), *messages[1:]))
    )
    plain = blob(blobs.encode_replacement((summary_message("No archive."), *messages[1:])))
    fewer = blob(blobs.encode_archive(archived[1:]))
    for stored, field in ((longer, "replaced_by"), (plain, "replaced_by"), (fewer, "archive")):
        (reference,) = stored
        told = change(WHOLE, CompactionCompleted, partial(replace, **{field: reference}), stored)
        assert [c.status for c in told] == ["different"], told


@pytest.mark.rule("C.L.8", "D.A.6")
@pytest.mark.parametrize("field", ["replaced_by", "archive"])
def test_a_blob_that_is_gone_is_missing_and_one_that_a_forget_erased_redacted(field: str) -> None:
    log = JOURNAL.log()
    event = next(e for e in log.commits[WHOLE].commit.events if isinstance(e, CompactionCompleted))
    reference = getattr(event, field)
    left = {k: v for k, v in JOURNAL.blobs.items() if k != reference}
    verdict = verify_run(log, left.get)
    assert verdict.is_clean
    assert {(c.status, c.expected) for c in verdict.checks if c.status != "same"} == {("missing", reference)}
    spoiled = verify_run(log, {**JOURNAL.blobs, reference: b"{}"}.get)
    assert not spoiled.is_clean
    gone = SummaryRedacted(replaced_by=event.replaced_by, archive=event.archive, source="rag", record_id="0", erasure=1)
    index = WHOLE
    commit = replace(log.commits[index].commit, events=(*log.commits[index].commit.events, gone))
    data = codec.encode_commit(commit)
    logged = LoggedCommit(log.commits[index].sequence, digests.digest_bytes(data), commit)
    redacted = verify_run(RunLog(log.run, (*log.commits[:index], logged), log.memory), left.get)
    assert [c.status for c in redacted.checks if c.status != "same"] == ["redacted"]


FAILED = places(CompactionFailed, lambda e: e.reason == "error")[-1]
PAUSED = places(CompactionFailed, lambda e: e.reason == "paused")[-1]

FAILURES: list[tuple[int, str, Change]] = [
    (FAILED, "reason", lambda e: replace(e, reason="request-overhead")),
    (FAILED, "reason", lambda e: replace(e, reason="no-safe-boundary")),
    (FAILED, "reason", lambda e: replace(e, reason="protected-history")),
    (FAILED, "refused", lambda e: replace(e, refused=77)),
    (FAILED, "refused", lambda e: replace(e, reason="summary-too-large", refused=77)),
    (FAILED, "summariser", lambda e: replace(e, summariser="another")),
    (FAILED, "step", lambda e: replace(e, step=e.step + 1)),
    (FAILED, "evaluation", lambda e: replace(e, evaluation="compaction-" + "0" * 32)),
    (FAILED, "reason", lambda e: replace(e, phase="evaluate", reason="paused")),
    (PAUSED, "reason", lambda e: replace(e, reason="empty-summary")),
    (PAUSED, "evaluation", lambda e: replace(e, phase="compact", reason="error")),
]


@pytest.mark.rule("C.D.10", "C.F.2", "C.J.5", "C.O.4", "C.X.4", "C.X.5", "D.A.6")
@pytest.mark.parametrize(("index", "field", "edit"), FAILURES)
def test_a_changed_failure_is_different(index: int, field: str, edit: Change) -> None:
    assert change(index, CompactionFailed, lambda e: e) == []
    told = change(index, CompactionFailed, edit)
    assert field in [c.field for c in told], told
    assert all(c.status == "different" for c in told)


@pytest.mark.rule("C.X.5", "D.A.6")
def test_a_pause_that_nothing_led_to_and_one_that_was_told_are_different() -> None:
    paused = next(e for e in JOURNAL.log().commits[PAUSED].commit.events if isinstance(e, CompactionFailed))
    first = places(CompactionStarted)[0] - 1
    events = JOURNAL.log().commits[first].commit.events
    (told,) = forge(first, (*events, paused))
    assert (told.field, told.got) == ("reason", "no pause")
    (told,) = forge(PAUSED, (paused, paused))
    assert (told.field, told.got) == ("reason", "told already")


RESTORED = places(CompactionRestored)[-1]


@pytest.mark.rule("C.L.3", "C.L.5", "C.O.5", "C.O.6", "D.A.6")
def test_a_restoration_that_is_left_out_repeated_or_another_is_different() -> None:
    for index in places(CompactionRestored):
        events = JOURNAL.log().commits[index].commit.events
        event = next(e for e in events if isinstance(e, CompactionRestored))
        assert forge(index, events) == []
        without = forge(index, tuple(e for e in events if e is not event))
        assert "restored" in [c.field for c in without]
        twice = forge(index, tuple(x for e in events for x in ((e, e) if e is event else (e,))))
        assert [c.field for c in twice] == ["restored"]
        other = change(index, CompactionRestored, lambda e: replace(e, source_messages=1, replacement_messages=9))
        assert [c.field for c in other] == ["sourceMessages", "replacementMessages"]
    index = places(CompactionRestored, lambda _: True)[-1]
    named = [i for i in places(CompactionRestored) if i in places(StepCompiled)][-1]
    told = change(named, CompactionRestored, lambda e: replace(e, evaluation="compaction-" + "0" * 32))
    assert [c.field for c in told] == ["evaluation"]
    early = JOURNAL.log().commits[places(CompactionStarted)[0]].commit.events
    event = next(e for e in JOURNAL.log().commits[index].commit.events if isinstance(e, CompactionRestored))
    assert "restored" in [c.field for c in forge(places(CompactionStarted)[0], (early[0], event, *early[1:]))]


@pytest.mark.rule("C.O.8", "D.A.6")
@pytest.mark.parametrize("index", [by("trigger"), WHOLE, FAILED, PAUSED])
def test_a_command_that_is_not_of_its_events_is_different(index: int) -> None:
    commits = JOURNAL.log().commits[: index + 1]
    for field, value in (("command", "another"), ("command_digest", OTHER)):
        commit = replace(commits[-1].commit, **{field: value})
        data = codec.encode_commit(commit)
        logged = LoggedCommit(commits[-1].sequence, digests.digest_bytes(data), commit)
        verdict = verify_run(RunLog(JOURNAL.run, (*commits[:-1], logged), JOURNAL.log().memory), JOURNAL.blobs.get)
        names = [c.field for c in verdict.checks if c.status == "different"]
        assert names == ["command" if field == "command" else "commandDigest"]


@pytest.mark.rule("C.X.5", "D.A.6")
def test_a_warning_of_a_compaction_that_did_not_fail_is_different() -> None:
    warned = places(StepCompiled, lambda e: "compaction-failed" in e.warnings)
    assert len(warned) == 4
    plain = places(StepCompiled, lambda e: not e.warnings and e.options.compaction is not None)[0]
    told = change(plain, StepCompiled, lambda e: replace(e, warnings=("compaction-failed",)))
    assert [c.field.partition("[")[0].partition(".")[0] for c in told] == ["warnings"]


def test_a_fact_that_a_host_or_a_summariser_reported_is_taken_as_it_is() -> None:
    assert change(WHOLE, CompactionCompleted, lambda e: replace(e, usage=Usage(1, 1))) == []
    assert change(FAILED, CompactionFailed, lambda e: replace(e, origin_code="other", usage=Usage(1, 1))) == []


@pytest.mark.rule("C.E.6", "C.K.9", "D.A.6")
def test_a_message_of_the_user_that_is_said_to_hold_results_alone_is_different() -> None:
    (index, *_) = places(MessagesAppended, lambda e: any(fact.role == "user" for fact in e.messages))

    def silence(event: MessagesAppended) -> MessagesAppended:
        return replace(event, messages=tuple(replace(f, only_results=f.role == "user") for f in event.messages))

    told = [c for c in change(index, MessagesAppended, silence) if c.field.endswith(".onlyResults")]
    assert [(c.status, c.expected, c.got) for c in told] == [("different", "True", "None")]

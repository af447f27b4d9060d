"""What selection takes from a forget that deleted summaries, and what it refuses (C.X.11, D.D.25)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.bench import RUN, Bench, head, more, only, options, refusal, sent, step

from contextbus.actors.effects import Fetch, Load
from contextbus.core.history import digest_message
from contextbus_protocol.commands import CompileStep, ErrorReply, Recorded, RedactedSummary, RedactPackages
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.compaction import Compact, CompactionEnded
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionFailed,
    MessageFact,
    MessagesAppended,
    RecordReference,
    ReplacedRange,
    SummaryRedacted,
    TokenChange,
)
from contextbus_protocol.outcomes import Conflicted
from contextbus_protocol.values import CompactionOptions, Trigger

COMPACTION = CompactionOptions(triggers=(Trigger(kind="messages-exceed", limit=1),), target_tokens=5_000)


def blob(name: str) -> str:
    return digest_bytes(name.encode())


def completed(bench: Bench, name: str = "one", *records: str) -> CompactionCompleted:
    return CompactionCompleted(
        evaluation=name,
        tokens=TokenChange(9, 1),
        replaced_range=ReplacedRange(0, 1),
        source_count=1,
        source_hash=bench.log.fold.history.keep(1).chain,
        replacement=(),
        replaced_by=blob(name),
        archive=blob(f"{name} archive"),
        records=tuple(RecordReference("memory", record, 1) for record in records),
    )


def redaction(*names: str, record: str = "m-1", command: str = "f", **fields: Any) -> RedactPackages:
    summaries = tuple(RedactedSummary(blob(name), blob(f"{name} archive")) for name in names)
    given: dict[str, Any] = {"source": "memory", "summaries": summaries} | fields
    return RedactPackages(**head(command=command), record_id=record, erasure=1, packages=(), **given)


def compacted(*names: str) -> Bench:
    """A run whose summaries list m-1 and m-2, each in the place of the one before."""
    bench = Bench()
    bench.record(more("a", "b", command="say"))
    for name in names:
        bench.log.add(completed(bench, name, "m-1", "m-2"), command=name)
    return Bench(bench.log)


def events(bench: Bench) -> list[SummaryRedacted]:
    return [e for _, _, commit in bench.log.commits for e in commit.events if isinstance(e, SummaryRedacted)]


def said(bench: Bench, command: CompileStep) -> MessagesAppended:
    """The event of a command's messages."""
    new = command.history
    facts = tuple(MessageFact(digest_message(message), 90, message.role) for message in new.messages)
    return MessagesAppended(start=bench.log.fold.history.count, messages=facts, chain=new.chain, inputs=blob("said"))


@pytest.mark.rule("C.X.11", "D.J.7")
def test_each_summary_that_is_told_is_in_the_log_once() -> None:
    bench = compacted("one", "two")
    bench.record(redaction("one", "two"))
    made = events(bench)
    assert [e.replaced_by for e in made] == [blob("one"), blob("two")]
    assert {(e.source, e.record_id, e.erasure) for e in made} == {("memory", "m-1", 1)}
    assert bench.log.fold.compaction_due
    # told again with another command: nothing is new
    effects = bench.begin(redaction("one", "two", command="g"))
    assert sent(effects, Recorded).sequence == bench.log.last[0]
    assert events(bench) == made
    # of another record of them the log says so as well
    bench.record(redaction("two", record="m-2", command="h"))
    assert [e.record_id for e in events(bench)] == ["m-1", "m-1", "m-2"]


@pytest.mark.rule("C.X.11", "D.D.25")
@pytest.mark.parametrize(
    "forged",
    [
        redaction("never"),
        redaction("two", record="m-3"),
        redaction("two", source="docs"),
        redaction(summaries=(RedactedSummary("dear diary", blob("two archive")),)),
        redaction(summaries=(RedactedSummary(blob("two"), "dear diary"),)),
        redaction(summaries=(RedactedSummary(blob("two")),)),
        redaction(summaries=(RedactedSummary(blob("two archive"), blob("two")),)),
        redaction(summaries=(RedactedSummary(blob("two"), blob("one archive")),)),
        redaction("two", record=""),
        redaction("two", record="x" * 100_000),
    ],
)
def test_what_is_no_summary_of_the_run_or_no_record_of_its_present_one_is_refused(forged: RedactPackages) -> None:
    bench = compacted("one", "two")
    before = len(bench.log.commits)
    effects = bench.begin(forged)
    assert sent(effects, ErrorReply).code in {"invalid_request", "invalid_type"}
    assert len(bench.log.commits) == before
    assert not bench.log.fold.compaction_due
    assert bench.selection.idle


@pytest.mark.rule("C.X.11")
def test_a_run_without_a_log_is_told_nothing() -> None:
    assert refusal(Bench().begin(redaction("one"))) == "not_found"


@pytest.mark.rule("C.X.11")
def test_a_step_without_compaction_goes_on_with_the_source_messages() -> None:
    bench = compacted("one")
    bench.record(redaction("one"))
    bench.compile(step(after=bench.log.fold, command="next"))
    fold = bench.log.fold
    assert fold.last is not None
    assert fold.last.count == fold.history.count == 3
    assert fold.compaction_due  # until a step compacts


@pytest.mark.rule("C.X.11", "C.L.8")
def test_a_turn_that_begins_while_the_summary_goes_does_not_take_it_for_damaged() -> None:
    bench = compacted("one")
    effects = bench.open(step(after=bench.log.fold, command="next"))
    fetch = only(list(effects), Fetch)
    assert fetch.digests == (blob("one"),)
    # another instance records the forget, and its worker erases the blob
    gone = SummaryRedacted(
        replaced_by=blob("one"), archive=blob("one archive"), source="memory", record_id="m-1", erasure=1
    )
    bench.log.add(gone, command="f")
    failed = sent(bench.read(effects), Record)
    assert [type(event) for event in failed.events] == [CompactionFailed]
    again = bench.tell(Conflicted(run=RUN, token=failed.head.token, part="run"))
    placed = bench.tell(*(bench.log.load(load) for load in again if isinstance(load, Load)))
    assert sent(placed, Place).decision.manifest.redacted
    bench.commit(placed)
    assert not any(isinstance(e, CompactionFailed) for _, _, commit in bench.log.commits for e in commit.events)


@pytest.mark.rule("C.X.11", "C.K.9")
def test_a_summary_that_goes_before_its_step_is_stored_is_made_again() -> None:
    bench = compacted()
    command = step(after=bench.log.fold, command="next", options_=options(compaction=COMPACTION))
    effects = bench.open(command)
    asked = sent(effects, Compact)
    assert asked.started.cause == "trigger"
    bench.log.add(asked.started, said(bench, command), command="started")
    bench.log.add(completed(bench, "one", "m-1"), command="completed")
    first = CompactionEnded(
        run=RUN,
        token=asked.head.token,
        evaluation=asked.started.evaluation,
        sequence=bench.log.last[0],
        status="completed",
    )
    gone = SummaryRedacted(
        replaced_by=blob("one"), archive=blob("one archive"), source="memory", record_id="m-1", erasure=1
    )
    bench.log.add(gone, command="f")
    loaded = bench.read(bench.tell(first))
    second = sent(loaded, Compact)
    assert (second.started.cause, second.started.trigger_index) == ("redacted", None)
    assert second.started.evaluation != asked.started.evaluation

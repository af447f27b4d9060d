"""What a forget of a summary does to the state of a run, and what takes the summary's place (C.X.11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.logs import append, commit_to, compiled

from contextbus.core.compaction.forgotten import drop_forgotten, forgotten_boundary, is_only_forgotten
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.reduction import CountComposed, ReductionOptions, advance, begin
from contextbus.core.compaction.request_items import placed_records, request_items
from contextbus.core.compaction.saving import archive_of
from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus.core.projection import applied, request_count, request_eighteenths
from contextbus.core.run_state import RunState
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage, Text, ToolResult, assistant, system, user
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.events import (
    CallSucceeded,
    CompactionCompleted,
    CompactionStarted,
    HistoryCleared,
    HistoryReplaced,
    MessageFact,
    MessagesAppended,
    PackageRedacted,
    RecordReference,
    ReplacedRange,
    ReplacementFact,
    SummaryRedacted,
    TokenChange,
)
from contextbus_protocol.values import CompactionOptions, EstimatorSpec, Model, RetentionPolicy, Trigger

NEW = RunState("r")
X, Y = RecordReference("docs", "x"), RecordReference("docs", "y")
replace = msgspec.structs.replace


def talked(*texts: str) -> RunState:
    """A run of some messages whose first step placed x and y."""
    state = commit_to(NEW, append(NEW, texts[0]))
    state = commit_to(state, compiled(state, 0, "x", "y"), CallSucceeded(step=0))
    for text in texts[1:]:
        state = commit_to(state, append(state, text))
    return state


def completed(state: RunState, count: int, *records: RecordReference, name: str = "one") -> CompactionCompleted:
    """A compaction of the first messages of a run."""
    return CompactionCompleted(
        evaluation=name,
        tokens=TokenChange(9, 1),
        replaced_range=ReplacedRange(0, count + 1),
        source_count=count,
        source_hash=state.history.keep(count).chain,
        replacement=(ReplacementFact(digest=f"sha256:summary-{name}", eighteenths=18, own="summary"),),
        replaced_by=f"sha256:replaced-{name}",
        archive=f"sha256:archive-{name}",
        records=records,
    )


def gone(record: str = "x", name: str = "one", source: str = "docs") -> SummaryRedacted:
    """A forget of a record took a summary."""
    return SummaryRedacted(
        replaced_by=f"sha256:replaced-{name}",
        archive=f"sha256:archive-{name}",
        source=source,
        record_id=record,
        erasure=4,
    )


def started(cause: Any = "redacted") -> CompactionStarted:
    """What an evaluation begins with."""
    return CompactionStarted(
        evaluation="e",
        step=1,
        cause=cause,
        tokens_before=9,
        envelope_tokens=7,
        target_tokens=100,
        message_count=1,
        model=Model("test", "m", 1000, 100),
        options=CompactionOptions(triggers=(Trigger(kind="messages-exceed", limit=1),)),
        policy=RetentionPolicy(),
    )


@pytest.mark.rule("C.X.11", "D.J.1", "D.F.22", "C.M.7")
def test_the_summary_leaves_the_history_and_the_next_step_compacts_and_retrieves() -> None:
    state = talked("a", "b", "c")
    state = commit_to(state, completed(state, 2, X, Y))
    assert applied(state) is not None
    assert request_count(state) == 2
    state = commit_to(state, gone())
    assert applied(state) is None
    assert (request_count(state), request_eighteenths(state)) == (3, state.history.eighteenths)
    assert (state.compaction_due, state.redaction_due, state.broken_prefix, state.broken_at) == (
        True,
        True,
        "redacted",
        0,
    )
    assert forgotten_boundary(state, started()) == 2
    assert forgotten_boundary(state, started("trigger")) is None
    done = commit_to(state, completed(state, 2, Y, name="two"))
    assert (done.compaction_due, forgotten_boundary(done, started())) == (False, None)
    assert applied(done) is not None
    assert done.broken_prefix == "redacted"  # named before `compaction`


@pytest.mark.rule("C.X.11")
def test_the_records_of_a_summary_are_passed_on_but_for_those_that_are_forgotten() -> None:
    state = talked("a", "b", "c")
    assert placed_records(state) == ((), (X, Y))
    state = commit_to(state, completed(state, 2, X, Y))
    assert placed_records(state) == ((X, Y),)
    # one that does not apply left no block behind either
    assert placed_records(commit_to(state, HistoryReplaced(keep=1))) == ((X, Y),)
    redacted = commit_to(state, gone())
    assert placed_records(redacted) == ((Y,),)
    package = PackageRedacted(
        step=0, package="sha256:package-0", replacement="sha256:less", source="docs", record_id="y", erasure=5
    )
    assert placed_records(commit_to(redacted, package)) == ((),)
    assert placed_records(commit_to(state, package)) == ((X, Y),)  # the summary is still there, and is to go first
    assert placed_records(commit_to(state, HistoryCleared())) == ((),)


@pytest.mark.rule("C.X.11", "C.L.4", "C.L.5")
def test_what_does_not_apply_is_due_for_nothing_and_never_applies_again() -> None:
    state = talked("a", "b", "c")
    state = commit_to(state, completed(state, 2, X))
    rewound = commit_to(commit_to(state, HistoryReplaced(keep=1)), gone())
    assert (rewound.compaction_due, rewound.redaction_due) == (False, False)
    again = commit_to(rewound, append(rewound, "b"))
    assert again.history.keep(2).chain == state.history.keep(2).chain
    assert applied(again) is None
    due = commit_to(state, gone())
    assert due.compaction_due
    assert commit_to(due, HistoryReplaced(keep=2)).compaction_due
    assert not commit_to(due, HistoryReplaced(keep=1)).compaction_due
    assert not commit_to(due, HistoryCleared()).compaction_due


@pytest.mark.rule("C.X.11")
def test_a_summary_that_another_followed_changes_nothing_of_the_history() -> None:
    state = talked("a", "b", "c", "d")
    state = commit_to(state, completed(state, 1, X))
    state = commit_to(state, completed(state, 3, X, name="two"))
    after = commit_to(state, gone())
    assert applied(after) == applied(state)
    assert not after.compaction_due
    assert [*after.summaries] == [(f"sha256:replaced-{n}", f"sha256:archive-{n}") for n in ("one", "two")]
    assert after.redactions == (("sha256:replaced-one", "docs", "x"),)
    assert commit_to(after, completed(after, 3, X)).redactions == ()  # the same blobs came again


def said(*messages: ChatMessage, at: int = 0, chain: str | None = None) -> MessagesAppended:
    """The event of messages with their real digests."""
    links = digests.EMPTY_CHAIN if chain is None else chain
    facts = tuple(MessageFact(digest_message(m), 180, m.role) for m in messages)
    for fact in facts:
        links = digests.extend_chain(links, fact.digest)
    inputs = digests.digest_bytes(blobs.encode_input(messages))
    return MessagesAppended(start=at, messages=facts, chain=links, inputs=inputs)


FIRST = (system("Be brief."), user("Which tea?"))
SECOND = (assistant("Green."), user("Why?"))
THIRD = (assistant("It is light."),)


def conversation() -> tuple[RunState, dict[str, tuple[ChatMessage, ...]]]:
    """A run of three appends whose summary stood for the first two, and was forgotten; with its texts."""
    state = NEW
    texts: dict[str, tuple[ChatMessage, ...]] = {}
    for messages in (FIRST, SECOND, THIRD):
        event = said(*messages, at=state.history.count, chain=state.history.chain)
        texts[event.inputs] = messages
        state = commit_to(state, event)
        if messages is FIRST:
            state = commit_to(state, compiled(state, 0, "x", "y"), CallSucceeded(step=0))
    state = commit_to(state, completed(state, 4, X, Y))
    return commit_to(state, gone()), texts


@pytest.mark.rule("C.X.11", "C.E.1", "C.E.4", "C.L.2")
def test_where_the_messages_are_gone_the_history_goes_on_from_the_boundary() -> None:
    state, texts = conversation()
    first, second, third = texts
    assert is_only_forgotten(state, 4, {first, second})
    assert not is_only_forgotten(state, 4, {third})
    assert not is_only_forgotten(state, 3, {second})
    estimator = make_estimator(EstimatorSpec())

    def dropped(*there: str) -> tuple[CompactionCompleted, tuple[ChatMessage, ...]]:
        saved = drop_forgotten(state, 4, {name: texts[name] for name in there}, started(), estimator)
        ((reference, data),) = saved.blobs
        assert saved.event.replaced_by == reference == digests.digest_bytes(data)
        assert blobs.decode_replacement(data).records == saved.event.records == (Y,)
        return saved.event, blobs.decode_replacement(data).messages

    event, messages = dropped(third)
    assert messages == ()
    assert (event.dropped, event.archive, event.source_count) == (True, None, 4)
    assert event.source_hash == state.history.keep(4).chain
    assert event.replaced_range == ReplacedRange(1, 4)
    assert event.tokens == TokenChange(estimator.tokens(5 * 180) + 7, estimator.tokens(180) + 7)
    event, messages = dropped(first, third)
    assert messages == (FIRST[0], FIRST[1])  # the system message, and the last of the user's that is there
    event, messages = dropped(second, third)
    assert messages == (SECOND[1],)
    assert event.replacement == (ReplacementFact(digest=digest_message(SECOND[1]), eighteenths=180, source=3),)
    results = ChatMessage(role="user", content=(ToolResult(id="t1", name="look", content=(Text("found"),)),))
    told = drop_forgotten(state, 4, {first: FIRST, second: (SECOND[0], results), third: THIRD}, started(), estimator)
    assert [fact.source for fact in told.event.replacement] == [0, 1]  # results alone are none of the user's (C.E.6)
    done = commit_to(state, event)
    assert applied(done) is not None
    later = commit_to(replace(state, redaction_due=False), event)  # a step without compaction came between
    assert done.redaction_due
    assert later.redaction_due
    assert (done.compaction_due, request_count(done), request_eighteenths(done)) == (False, 2, 2 * 180)
    with pytest.raises(NotFoundError):
        dropped(first, second)


@pytest.mark.rule("C.X.11", "C.X.8")
def test_the_archived_span_lists_the_records_of_the_blocks_in_or_before_it() -> None:
    state = NEW
    texts: dict[str, tuple[ChatMessage, ...]] = {}
    for step, messages in enumerate((FIRST, SECOND, THIRD)):
        event = said(*messages, at=state.history.count, chain=state.history.chain)
        texts[event.inputs] = messages
        state = commit_to(state, event)
        state = commit_to(state, compiled(state, step, f"r{step}"), CallSucceeded(step=step))
    request = request_items(state, texts)
    assert [item.own for item in request.items] == ["", "", "block", "", "", "block", "", "block"]
    for end, records in ((2, []), (3, ["r0"]), (5, ["r0"]), (6, ["r0", "r1"]), (8, ["r0", "r1", "r2"])):
        assert [r.record_id for r in request.records_before(end)] == records
        span = archive_of(request, 0, end).data
        assert [r.record_id for r in blobs.decode_archive(span).records] == records


@pytest.mark.rule("C.X.11", "C.X.1")
@pytest.mark.parametrize(
    ("keep", "least", "end"),
    [
        (RetentionPolicy(keep_last_messages=1), 2, 4),  # the policy takes more than the summary had
        (RetentionPolicy(keep_last_messages=4), 3, 3),
        (RetentionPolicy(keep_last_messages=9), 3, 3),  # nothing, by the policy
        (RetentionPolicy(keep_recent_tokens=90), 3, 3),
        (RetentionPolicy(keep_last_messages=4), None, 1),
    ],
)
def test_the_range_reaches_at_least_as_far_as_the_summary_did(
    keep: RetentionPolicy, least: int | None, end: int
) -> None:
    items = [Item(message, "", 18) for message in (user("a"), assistant("b"), user("c"), assistant("d"), user("e"))]
    reduction, asked = begin(items, ReductionOptions(target_tokens=100, keep=keep, least_end=least))
    while not isinstance(asked, CountComposed):
        reduction, asked = advance(reduction, 50, lambda _: 1)
    assert (asked.start, asked.end) == (0, end)
